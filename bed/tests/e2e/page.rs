//! `plimsoll ui`: the page, in a real Chromium.

use crate::browser::{Browser, LOOKS, Ui};
use crate::{FOLLOWS, SOON, on_shared_bed, runtime};
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use bed::eventually;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Keys as WebDriver writes them (17.4.2).
const ENTER: &str = "\u{E007}";
const END: &str = "\u{E010}";
const LEFT: &str = "\u{E012}";
const DOWN: &str = "\u{E015}";

#[test]
fn the_demos_story_is_seen_on_the_page() {
    on_shared_bed("shop", async |bed, ns| {
        let autoscaler = async |name: &str, metric: &str, max: i32, more: &str| {
            let fields = format!(
                "minReplicas: 2, maxReplicas: {max}, syncPeriodSeconds: 1, \
                 customMetrics: [{{metricName: {metric}, averageValue: 20}}], \
                 behavior: {{scaleDown: {{stabilizationWindowSeconds: 15}}}}{more}"
            );
            ns.autoscaler_with("Deployment", name, &fields).await;
        };
        for (name, exposed) in
            [("web", ""), ("cart", "queue_depth 90"), ("search", "queue_depth 20")]
        {
            ns.deployment(name, 2, exposed).await;
        }
        bed.cluster.load("shop", "app=web", "/hit/http_requests_total", 36.0).await;
        autoscaler("web", "http_requests_total", 12, "").await;
        autoscaler("cart", "queue_depth", 4, "").await;
        autoscaler("search", "queue_depth", 9, "").await;
        autoscaler("mail", "queue_depth", 9, "").await;
        autoscaler("night", "queue_depth", 9, ", mode: Paused").await;

        let ui = Ui::start(&bed.cluster.folder, &bed.cluster.kubeconfig, &["-n", "shop"]).await;
        let browser = Browser::start(&bed.cluster.folder).await;
        browser.look(LOOKS[0]).await;
        browser.open(&ui.address).await;

        // What needs a person comes first.
        let rows = "[...document.querySelectorAll('#rows tbody tr')].map((row) => row.cells[1].innerText + ' ' + row.className)";
        let expected =
            ["mail failing", "cart atMax", "night paused", "search steady", "web steady"];
        eventually("the list is in its order", FOLLOWS, async || {
            let shown = browser.value(rows).await;
            if shown == json!(expected) { Ok(()) } else { Err(shown.to_string()) }
        })
        .await;
        browser.shows("#rows tr.failing", "FailedGetScale").await;
        let address = browser.value("location.href").await;
        assert!(!address.to_string().contains("key="), "the key leaves the address: {address}");
        browser.is_accessible().await;
        browser.screenshot("page-list").await;

        // Without a mouse: search, to the row, and open it.
        browser.press("/").await;
        browser.press("web").await;
        browser.shows("#count", "1 of 1 shown").await;
        browser.press(DOWN).await;
        browser.press(ENTER).await;
        browser.shows("#one-title", "web in shop").await;
        browser.shows("#story-head", "Stays at 2 replicas").await;

        // The load rises, and the page shows it without being loaded again.
        bed.cluster.load("shop", "app=web", "/hit/http_requests_total", 115.0).await;
        browser.shows("#decisions", "Scaled up from").await;
        eventually("it is at 6 replicas", FOLLOWS, async || {
            let facts = browser.text("#facts").await;
            if facts.contains("\n6\n") { Ok(()) } else { Err(facts) }
        })
        .await;
        ns.wait_ready("Deployment", "web", 6).await;

        // The story of the decision, by keys.
        let focus = "document.getElementById('chart').focus()";
        browser.value(focus).await;
        eventually("the keys lead to the scale-up", SOON, async || {
            browser.press(LEFT).await;
            let head = browser.text("#story-head").await;
            if head.starts_with("Scaled up from 2 to") { Ok(()) } else { Err(head) }
        })
        .await;
        let story = browser.text("#story").await;
        for part in ["http_requests_total", "target 20", "Plimsoll wrote the scale"] {
            assert!(story.contains(part), "{story}");
        }
        let spoken = browser.value("document.getElementById('chart').ariaValueText").await;
        assert!(spoken.to_string().contains("Scaled up from 2 to"), "{spoken}");
        browser.shows("#metrics", "sum by").await;
        browser.shows("#conditions", "ScalingActive").await;

        // And under the pointer.
        browser.press(END).await;
        let last = browser.text("#story-when").await;
        eventually("the pointer chooses a decision", SOON, async || {
            for right in [0.0, 40.0, 80.0, 120.0, 160.0] {
                browser.point("#chart .u-over", right).await;
                let when = browser.text("#story-when").await;
                if !when.is_empty() && when != last {
                    return Ok(());
                }
            }
            Err(browser.text("#story").await)
        })
        .await;

        // The load falls: held by the stabilization window first.
        bed.cluster.load("shop", "app=web", "/hit/http_requests_total", 36.0).await;
        browser.shows("#decisions", "Scaled down from").await;
        browser.shows("#decisions", "Stabilized").await;
        browser.is_accessible().await;
        browser.value(focus).await;
        browser.press(END).await;
        eventually("the keys lead to a decision that is held", SOON, async || {
            browser.press(LEFT).await;
            let text = browser.text("#story-text").await;
            if text.contains("stabilization window") { Ok(()) } else { Err(text) }
        })
        .await;
        browser.screenshot("page-one").await;
        browser.look(LOOKS[1]).await;
        browser.screenshot("page-one-dark").await;
        browser.look(LOOKS[3]).await;
        browser.screenshot("page-one-narrow").await;
        browser.look(LOOKS[0]).await;
        browser.stayed_at(ui.origin()).await;
        browser.quit().await;
    });
}

#[test]
fn the_page_says_what_its_user_may_not_read() {
    on_shared_bed("page-rights", async |bed, _| {
        let kubeconfig = bed.cluster.kubeconfig_of("nobody-in-particular", &[]);
        let ui = Ui::start(&bed.cluster.folder, &kubeconfig, &[]).await;
        let browser = Browser::start(&bed.cluster.folder).await;
        browser.open(&ui.address).await;
        browser.shows("#problems", "You may not list and watch autoscalers.plimsoll.dev").await;
        browser.shows("#problems", "horizontalpodautoscalers.autoscaling").await;
        browser.shows("#problems", "-n NAMESPACE").await;
        // Who has not the key reads nothing.
        browser.value("localStorage.clear()").await;
        browser.open("about:blank").await;
        browser.open(ui.origin()).await;
        browser.shows("#broken", "Open the address that plimsoll ui printed").await;
        browser.quit().await;
        let http = reqwest::Client::new();
        for (path, host, expected) in [
            ("/", "127.0.0.1", 200),
            ("/api/autoscalers", "127.0.0.1", 403),
            ("/", "evil.example", 403),
        ] {
            let port = ui.origin().rsplit(':').next().unwrap_or_default();
            let request = http.get(format!("{}{path}", ui.origin()));
            let response = request.header("host", format!("{host}:{port}")).send().await;
            let response = response.expect("a response");
            assert_eq!(response.status(), expected, "{path} {host}");
            let policy = response.headers()["content-security-policy"].to_str().unwrap_or_default();
            assert!(policy.contains("default-src 'none'"), "{policy}");
        }
    });
}

/// The autoscalers of a cluster with many.
const MANY: usize = 10_000;

/// A kube-apiserver as far as the page reads it: a list in pages, and watches in which nothing happens.
async fn many(
    State(all): State<Arc<Vec<Value>>>,
    uri: http::Uri,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    if query.contains_key("watch") {
        return axum::body::Body::from_stream(futures::stream::pending::<
            Result<bytes::Bytes, std::io::Error>,
        >())
        .into_response();
    }
    let at: usize = query.get("continue").and_then(|token| token.parse().ok()).unwrap_or(0);
    let limit: usize = query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(MANY);
    let (items, kind, version) = match uri.path() {
        "/apis/plimsoll.dev/v1alpha1/autoscalers" => {
            (&all[..], "AutoscalerList", "plimsoll.dev/v1alpha1")
        }
        _ => (&[][..], "HorizontalPodAutoscalerList", "autoscaling/v2"),
    };
    let end = (at + limit).min(items.len());
    let more = if end < items.len() { end.to_string() } else { String::new() };
    let metadata = json!({"resourceVersion": "1", "continue": more});
    Json(
        json!({"apiVersion": version, "kind": kind, "metadata": metadata, "items": items[at..end]}),
    )
    .into_response()
}

#[test]
fn ten_thousand_autoscalers_are_shown_within_a_second() {
    runtime().block_on(async {
        let object = |number: usize| {
            json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
                "metadata": {"name": format!("web-{number}"), "namespace": format!("team-{}", number % 100)},
                "spec": {"scaleTargetRef": {"kind": "Deployment", "name": format!("web-{number}")},
                    "minReplicas": 2, "maxReplicas": 20},
                "status": {"currentReplicas": 4, "desiredReplicas": if number == 7_654 { 20 } else { 4 },
                    "targets": format!("{number}m/10"),
                    "conditions": [{"type": "AbleToScale", "status": "True", "reason": "ReadyForNewScale", "message": "recommended size matches current size"}]}})
        };
        let all: Arc<Vec<Value>> = Arc::new((0..MANY).map(object).collect());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let router = Router::new().fallback(many).with_state(all);
        let server = tokio::spawn(async move { axum::serve(listener, router).await });
        let folder = tempfile::tempdir().expect("a folder");
        let kubeconfig = folder.path().join("kubeconfig");
        let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "many",
            "clusters": [{"name": "many", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
            "users": [{"name": "many", "user": {}}],
            "contexts": [{"name": "many", "context": {"cluster": "many", "user": "many"}}]});
        std::fs::write(&kubeconfig, text.to_string()).expect("a file");
        let ui = Ui::start(folder.path(), &kubeconfig, &[]).await;
        let browser = Browser::start(folder.path()).await;
        browser.look(LOOKS[0]).await;
        browser.open(&ui.address).await;
        browser.shows("#count", "50 of 10000 shown").await;

        // The best of three: other tests use the same cores.
        let mut took = Vec::new();
        for _ in 0..3 {
            browser.refresh().await;
            let filled = eventually("the list is filled", Duration::from_secs(30), async || {
                let marks = "performance.getEntriesByName('filled')[0]?.startTime ?? null";
                browser.value(marks).await.as_f64().ok_or_else(|| "not yet".to_owned())
            });
            took.push(filled.await);
        }
        let paint = browser.value("performance.getEntriesByName('first-contentful-paint')[0]?.startTime").await;
        println!("10,000 rows: first paint after {paint} ms, all known and 50 filled after {took:?} ms");
        assert!(took.iter().any(|took| *took < 1_000.0), "{took:?}");

        let rows = "document.querySelectorAll('#rows tbody tr').length";
        assert_eq!(browser.value(rows).await, 50);
        browser.shows("#rows tbody tr", "web-7654").await;
        let sort = "(() => { const began = performance.now();
            document.querySelector('#columns .metrics button').click();
            document.body.offsetHeight; return performance.now() - began; })()";
        let sorted = browser.value(sort).await.as_f64().expect("a time");
        println!("sorted by another column in {sorted} ms");
        assert!(sorted < 1_000.0, "{sorted}");
        let search = "(() => { const began = performance.now(); const box = document.getElementById('search');
            box.value = 'team-42 web-9942'; box.dispatchEvent(new Event('input'));
            document.body.offsetHeight; return performance.now() - began; })()";
        let searched = browser.value(search).await.as_f64().expect("a time");
        println!("searched in {searched} ms");
        assert!(searched < 1_000.0, "{searched}");
        browser.shows("#count", "1 of 1 shown, of 10000 in all").await;
        browser.is_accessible().await;
        browser.stayed_at(ui.origin()).await;
        browser.quit().await;
        server.abort();
    });
}
