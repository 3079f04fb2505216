//! The page of `plimsoll ui` while the cluster answers watches with what servers do at a failover or an upgrade, in a real
//! Chromium.

use crate::browser::{Browser, LOOKS, Ui};
use crate::runtime;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use http::StatusCode;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::sleep;

/// A kube-apiserver that ends the first watches: those of autoscalers with 401, those of decisions with 410.
#[derive(Default)]
struct Server {
    lists_of_autoscalers: AtomicUsize,
    lists_of_decisions: AtomicUsize,
    watches_of_decisions: AtomicUsize,
    watches_of_autoscalers: AtomicUsize,
}

fn refused(code: StatusCode) -> Response {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "said so", "reason": "Expired", "code": code.as_u16()});
    (code, Json(status)).into_response()
}

fn silent() -> Response {
    let nothing = futures::stream::pending::<Result<bytes::Bytes, std::io::Error>>();
    axum::body::Body::from_stream(nothing).into_response()
}

fn autoscaler() -> Value {
    json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
        "metadata": {"name": "web", "namespace": "shop", "resourceVersion": "1"},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web"}, "minReplicas": 2, "maxReplicas": 9},
        "status": {"currentReplicas": 4, "desiredReplicas": 4, "targets": "9/10", "conditions": []}})
}

/// The nth decision: a minute each, the last one now.
fn decision(number: usize, count: usize) -> Value {
    let now = jiff::Timestamp::now();
    let at = now - jiff::SignedDuration::from_mins((count - number) as i64);
    json!({"apiVersion": "decisions.plimsoll.dev/v1alpha1", "kind": "Decision",
        "metadata": {"name": format!("web.autoscaler.{number}"), "namespace": "shop",
            "labels": {"plimsoll.dev/autoscaler": "web"}},
        "firstTime": at.to_string(), "lastTime": at.to_string(), "count": 1, "reason": "WithinTolerance",
        "currentReplicas": 4, "desiredReplicas": 4,
        "metrics": [{"metricIndex": 0, "name": "rate", "status": "Used", "targetType": "AverageValue", "value": "9",
            "target": "10", "query": "sum by (pod) (rate(requests_total{app=\"<b>web</b>\"}[2m]))"}],
        "basis": {"minReplicas": 2, "maxReplicas": 9}})
}

async fn answer(
    State(server): State<Arc<Server>>,
    uri: http::Uri,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let is_watch = query.contains_key("watch");
    let of_decisions = uri.path().contains("/decisions");
    let count = |counter: &AtomicUsize| counter.fetch_add(1, Ordering::Relaxed) + 1;
    let is_autoscalers = uri.path().ends_with("/autoscalers");
    match (is_watch, of_decisions) {
        (true, true) if count(&server.watches_of_decisions) == 1 => refused(StatusCode::GONE),
        (true, false) if is_autoscalers && count(&server.watches_of_autoscalers) == 1 => {
            refused(StatusCode::UNAUTHORIZED)
        }
        (true, _) => silent(),
        (false, _) => {
            let (kind, items) = if of_decisions {
                let last = 39 + count(&server.lists_of_decisions);
                ("DecisionList", (0..=last).map(|number| decision(number, last)).collect())
            } else if is_autoscalers {
                count(&server.lists_of_autoscalers);
                ("AutoscalerList", vec![autoscaler()])
            } else {
                ("HorizontalPodAutoscalerList", Vec::new())
            };
            let metadata = json!({"resourceVersion": "1"});
            Json(json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "items": items}))
                .into_response()
        }
    }
}

/// A kubeconfig of the server at this port.
fn kubeconfig(folder: &Path, port: u16) -> std::path::PathBuf {
    let path = folder.join("kubeconfig");
    let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
        "users": [{"name": "x", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]});
    std::fs::write(&path, text.to_string()).expect("a file");
    path
}

#[test]
fn the_page_goes_on_after_a_failover_and_leaves_the_reader_in_peace() {
    runtime().block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let server = Arc::new(Server::default());
        let router = Router::new().fallback(answer).with_state(server.clone());
        let task = tokio::spawn(async move { axum::serve(listener, router).await });
        let folder = tempfile::tempdir().expect("a folder");
        let ui = Ui::start(folder.path(), &kubeconfig(folder.path(), port), &[]).await;
        let browser = Browser::start(folder.path()).await;
        browser.look(LOOKS[0]).await;
        browser.open(&ui.address).await;

        // A refusal takes no row out, and the page says when it is over though nothing has changed.
        browser.shows("#rows", "web").await;
        browser.shows("#connection", "Live").await;
        assert!(server.lists_of_autoscalers.load(Ordering::Relaxed) > 1);
        assert_eq!(browser.text("#problems").await, "");

        // The watch of decisions expired at its start: they were listed again.
        browser.value("location.hash = '#/shop/Autoscaler/web'").await;
        browser.shows("#older", "Show 22 older decisions").await;
        browser.shows("#change-off", "plimsoll ui --prometheus-url=URL").await;
        assert_eq!(browser.value("document.getElementById('change').hidden").await, true);
        browser.shows("#connection", "Live").await;
        assert_eq!(server.lists_of_decisions.load(Ordering::Relaxed), 2);

        // Over several draws, what is selected and what has the focus stay, and the page does not jump.
        let begin = "(() => {
            const button = document.querySelector('#decisions tbody tr:nth-child(3) button');
            button.click(); button.focus(); scrollTo(0, 0);
            getSelection().selectAllChildren(document.querySelector('#metrics code')); })()";
        browser.value(begin).await;
        sleep(Duration::from_secs(22)).await;
        let after = "[getSelection().toString(), scrollY,
            document.activeElement.closest('tr')?.dataset.key,
            document.querySelector('#decisions tr[aria-current]')?.dataset.key]";
        let query = "sum by (pod) (rate(requests_total{app=\"<b>web</b>\"}[2m]))";
        let name = "web.autoscaler.39";
        assert_eq!(browser.value(after).await, json!([query, 0, name, name]));

        // A click on the chart holds the decision while the pointer moves on.
        let at = "(() => { const over = document.querySelector('#chart .u-over'); const box = over.getBoundingClientRect();
            const send = (type, part) => over.dispatchEvent(new MouseEvent(type, {bubbles: true,
                clientX: box.x + box.width * part, clientY: box.y + 20}));
            for (const type of ['mousemove', 'mousedown', 'mouseup', 'click']) send(type, 0.5);
            const held = document.getElementById('story-when').textContent; send('mousemove', 0.9);
            const after = document.getElementById('story-when').textContent;
            document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'})); send('mousemove', 0.8);
            return [held !== '', held === after, document.getElementById('story-when').textContent !== held]; })()";
        assert_eq!(browser.value(at).await, json!([true, true, true]));
        browser.is_accessible().await;

        // The load of a run is known at its end, where it failed there is a gap, and values that came stay.
        let columns = "Promise.all([import('/chart.js'), import('/story.js')]).then(([{ columns, alone }, { identity }]) => {
            const m = identity({ name: 'm' });
            const time = (minute) => `2026-11-24T12:${String(minute).padStart(2, '0')}:00Z`;
            const of = (first, last, value, seen) => ({ firstTime: time(first), lastTime: time(last), seen,
                currentReplicas: 2, desiredReplicas: 3, metrics: [{ name: 'm', value, target: '10' }] });
            const { load, between, current, desired } = columns([of(0, 0, '0'), of(1, 10, '-7'), of(11, 20),
                of(21, 30, '9G', [[time(25), new Map([[m, '8']])]])], m);
            return [load, between.map((one) => (one === undefined ? 'unknown' : one)), alone(load), current[0], desired[0]]; })";
        let expected = json!([
            [0, null, -7, null, null, null, 8, 9e9 as i64],
            [0, "unknown", -7, null, null, "unknown", 8, 9e9 as i64],
            [0, 2],
            2,
            3
        ]);
        assert_eq!(browser.value(columns).await, expected);

        // Metrics of one name are told apart, and a clock that was ahead takes no later decision from its place.
        let columns = "Promise.all([import('/chart.js'), import('/story.js')]).then(([{ columns }, { identity, nameOf }]) => {
            const name = 'cpu_820193bd2d60_shop_web';
            const metrics = [{ name, scope: 'container app', value: '20%' }, { name, scope: 'container proxy', value: '95%' }];
            const metadata = { name: 'web.autoscaler.7', namespace: 'shop' };
            const at = (second) => { const time = `2026-11-24T12:00:${second}Z`; return { metadata, metrics, firstTime: time, lastTime: time }; };
            const { x, load } = columns([at('00'), at('40'), at('50'), at('10'), at('20')], identity(metrics[1]));
            return [x.map((one) => one % 60), load, metrics.map((one) => nameOf(one, at('00'))), nameOf(metrics[0], { metadata, metrics: [metrics[0]] })]; })";
        let expected = json!([
            [0, 10, 10, 10, 20],
            [95, 95, 95, 95, 95],
            ["cpu of container app", "cpu of container proxy"],
            "cpu"
        ]);
        assert_eq!(browser.value(columns).await, expected);

        // What prevents a change is told in words.
        let told = "import('/story.js').then(({ sentences }) => {
            const metrics = [{ metricIndex: 0, name: 'm', status: 'Used' }, { metricIndex: 1, name: 'n', status: 'Valid', proposedReplicas: 4 }];
            const of = (more, fewer) => sentences({ metrics, basis: { minReplicas: 2, maxReplicas: 9 },
                wouldChange: { metricIndex: 0, more: { preventedBy: more }, fewer: { preventedBy: fewer, preventedByMetric: 1 } } }, true).slice(-2);
            return [...of('maxReplicas', 'metric'), ...of('ScaleUpLimit', 'RollingOut')]; })";
        let expected = json!([
            "One more: no, maxReplicas is 9.",
            "One fewer: no, n asks for 4.",
            "One more: no, not while the policies of scaleUp allow none.",
            "One fewer: no, not during a rollout (spec.rollouts)."
        ]);
        assert_eq!(browser.value(told).await, expected);
        // What is wanted already needs no other value, and what no replicas share is a total.
        let wanted = "import('/story.js').then(({ sentences }) => {
            const metrics = [{ metricIndex: 0, name: 'm', status: 'Used', targetType: 'AverageValue', value: '28', target: '10' }];
            const [total, more] = sentences({ currentReplicas: 0, desiredReplicas: 3, recommendedReplicas: 3, metrics,
                carriedOut: { reason: 'Preview' }, wouldChange: { metricIndex: 0, more: { replicas: 1, value: '1' } } }, true)
                .filter((sentence) => !sentence.startsWith('Not written'));
            return [total, more]; })";
        let expected = json!([
            "m was 28 in all, target 10 per pod.",
            "One more: the metrics ask for 3 already."
        ]);
        assert_eq!(browser.value(wanted).await, expected);
        // It is told of the present alone: of a decision that another one would have followed, it is not.
        let present = "import('/story.js').then(({ isPresent }) => {
            const lastTime = '2026-11-24T12:00:00Z';
            const after = (minutes, period) => isPresent({ lastTime }, Date.parse(lastTime) + minutes * 60_000, period);
            return [after(-1, 15_000), after(5, 15_000), after(6, 15_000), after(35, 600_000), after(45, 600_000)]; })";
        let expected = json!([true, true, false, true, false]);
        assert_eq!(browser.value(present).await, expected);
        browser.stayed_at(ui.origin()).await;
        browser.quit().await;
        task.abort();
    });
}
