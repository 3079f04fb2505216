//! How long after a step in the load the scale is written, by what makes it up: the scrape, the window of
//! `rate()`, the period, and the decision with its query and write. Plimsoll, and prometheus-adapter with
//! kube-controller-manager, on equal workloads whose load steps at the same times.

mod cases;
mod parts;
mod picture;

use crate::measure::sum;
use crate::round::show_progress;
use crate::sides::{self, Peers};
use crate::world::{RATE, Size, World, namespace, target};
use bed::free_port;
use bed::random::Random;
use cases::{CASES, FACTOR, PODS, REPLICAS, SIDES};
use futures::StreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use parts::{Parts, Reaction};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time over which the steps are spread, in seconds: of four scrapes and periods of 15 s.
const SPREAD: f64 = 60.0;

/// Measures this number of steps for each case and side.
pub async fn run(steps: usize) -> bool {
    let size = Size { autoscalers: SIDES.len() * CASES.len() * steps, pods: PODS };
    let world = World::scraped(size, false, 0.0, &[("every-5s", 5), ("every-15s", 15)]).await;
    make_autoscalers(&world, steps).await;
    let config = rules();
    let plimsoll = sides::start_with(&world, &config, &["--native-hpas=ignore"]);
    let port = free_port();
    let adapter = sides::start_adapter_with(&world, Peers::Tuned, &config, port);
    sides::register(&world, port, &sides::CUSTOM_METRICS).await;
    let (manager, manager_port) = sides::start_manager(&world, Peers::Tuned);
    show_progress("filling the longest window");
    tokio::time::sleep(Duration::from_secs(140)).await;

    let writes: Writes = Arc::default();
    let watching = tokio::spawn(watch(world.cluster.client.clone(), writes.clone()));
    let stepped = step(&world, steps).await;
    show_progress("waiting for the scales");
    let longest = Duration::from_secs(120 + 60);
    let start = std::time::Instant::now();
    let all_grown = |writes: &Writes| {
        let writes = writes.lock().expect("no panic");
        let grown =
            |app: &usize| writes.get(app).is_some_and(|of| of.iter().any(|w| w.1 >= REPLICAS));
        (0..size.autoscalers).all(|app| grown(&app))
    };
    while !all_grown(&writes) && start.elapsed() < longest {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    watching.abort();
    // Until the samples that are looked up are all there.
    tokio::time::sleep(Duration::from_secs(15)).await;
    let client = crate::load::client(&world);
    // Of Plimsoll all decisions, most of which hold and write nothing, so that a write is added; of
    // kube-controller-manager those that scale up.
    let ours = async |histogram: &str, label: &str| {
        mean(&client, world.adapter_port, &format!("plimsoll_{histogram}_seconds"), label).await
    };
    let theirs = "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds";
    let decisions = [
        ours("decision_duration", "").await
            + ours("kube_request_duration", "verb=\"update\"").await,
        mean(&client, manager_port, theirs, "action=\"scale_up\"").await,
    ];
    let writes = std::mem::take(&mut *writes.lock().expect("no panic"));
    let (mut reactions, mut missing) = (BTreeMap::new(), 0);
    for (side, name) in SIDES.iter().enumerate() {
        for (number, case) in CASES.into_iter().enumerate() {
            let mut measured = Vec::new();
            for app in (0..steps).map(|n| (side * CASES.len() + number) * steps + n) {
                let none = Vec::new();
                let of_app = writes.get(&app).unwrap_or(&none);
                let found =
                    Parts::of(&world, app, case, stepped[&app], of_app, decisions[side]).await;
                match found {
                    Some(parts) => measured.push(parts),
                    None => {
                        // Of Plimsoll, the first side.
                        missing += usize::from(side == 0);
                        eprintln!("  app-{app} of {name} did not react: {of_app:?}");
                    }
                }
            }
            reactions.insert((case, *name), Reaction::of(&measured));
        }
    }
    drop((plimsoll, adapter, manager));
    parts::print(&reactions, steps);
    if std::env::var_os("UPDATE_PICTURES").is_some() {
        let file = bed::root().join("docs/images/reaction.svg");
        std::fs::write(file, picture::svg(&reactions)).expect("a file");
        println!("written to docs/images/reaction.svg");
    }
    crate::bounds::are_met(&[("each step has a scale of Plimsoll", Some(missing == 0))])
}

/// The times of the replicas of each workload, in Unix seconds.
type Writes = Arc<Mutex<BTreeMap<usize, Vec<(f64, i64)>>>>;

/// Unix time in seconds.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs_f64()
}

/// Records changes of replicas, forever.
async fn watch(client: kube::Client, writes: Writes) {
    let mut events = watcher(Api::<Deployment>::all(client), watcher::Config::default()).boxed();
    while let Some(event) = events.next().await {
        let Ok(watcher::Event::Apply(object)) = event else { continue };
        let app = object.name_any().strip_prefix("app-").and_then(|app| app.parse().ok());
        let replicas = object.spec.as_ref().and_then(|spec| spec.replicas);
        let (Some(app), Some(replicas)) = (app, replicas) else { continue };
        writes.lock().expect("no panic").entry(app).or_default().push((now(), replicas.into()));
    }
}

/// Steps the load of all workloads, those of both sides and all cases at the same times; when, in Unix seconds.
async fn step(world: &World, steps: usize) -> BTreeMap<usize, f64> {
    show_progress(&format!("stepping the load {steps} times"));
    let mut random = Random(now().to_bits());
    let each = SPREAD / steps as f64;
    let (start, http) = (tokio::time::Instant::now(), reqwest::Client::new());
    let mut stepped = BTreeMap::new();
    for number in 0..steps {
        let part = random.below(1_000) as f64 / 1_000.0;
        let at = start + Duration::from_secs_f64((number as f64 + part) * each);
        tokio::time::sleep_until(at).await;
        for app in (0..SIDES.len() * CASES.len()).map(|of| of * steps + number) {
            let port = world.series_port;
            let url = format!("http://127.0.0.1:{port}/step?app={app}&factor={FACTOR}");
            stepped.insert(app, now());
            let sent = http.post(url).send().await.and_then(reqwest::Response::error_for_status);
            sent.expect("the load steps");
        }
    }
    stepped
}

/// A metric for each window.
fn rules() -> String {
    let mut windows: Vec<u64> = CASES.iter().map(|case| case.window).collect();
    windows.sort_unstable();
    windows.dedup();
    let rule = |window: u64| {
        format!(
            "- seriesQuery: 'http_requests_total{{namespace!=\"\",pod!=\"\"}}'\n\
             \x20 resources: {{overrides: {{namespace: {{resource: namespace}}, pod: {{resource: pod}}}}}}\n\
             \x20 name: {{matches: \"^(.*)_total$\", as: \"${{1}}_over_{window}s\"}}\n\
             \x20 metricsQuery: sum(rate(<<.Series>>{{<<.LabelMatchers>>}}[{window}s])) by (<<.GroupBy>>)\n"
        )
    };
    "rules:\n".to_owned() + &windows.into_iter().map(rule).collect::<String>()
}

/// An Autoscaler or a HorizontalPodAutoscaler for each workload, with the same metric.
async fn make_autoscalers(world: &World, steps: usize) {
    world.install_autoscalers().await;
    let autoscaler = async |app: usize| {
        let (side, case) = (app / (CASES.len() * steps), CASES[app / steps % CASES.len()]);
        let spec = json!({
            "scaleTargetRef": target(app), "minReplicas": 1, "maxReplicas": 2 * REPLICAS,
            "metrics": [{"type": "Pods", "pods": {
                "metric": {
                    "name": format!("http_requests_over_{}s", case.window),
                    "selector": {"matchLabels": {"job": format!("every-{}s", case.scrape)}},
                },
                "target": {"type": "AverageValue", "averageValue": RATE.to_string()}}}],
        });
        let (group, kind, plural) = match side {
            0 => ("plimsoll.dev/v1alpha1", "Autoscaler", "autoscalers"),
            _ => ("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
        };
        let path = format!("/apis/{group}/namespaces/{}/{plural}", namespace(app));
        let name = format!("app-{app}");
        let object =
            json!({"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": spec});
        world.send("POST", &path, object).await;
    };
    world.each("autoscalers", world.size.autoscalers, autoscaler).await;
}

/// The mean of a histogram of a side, of its series with a label, in seconds.
async fn mean(client: &reqwest::Client, port: u16, histogram: &str, label: &str) -> f64 {
    let url = format!("https://127.0.0.1:{port}/metrics");
    let response = client.get(url).send().await.expect("metrics");
    let text = response.error_for_status().expect("metrics").text().await.expect("metrics");
    let of = |part: &str| sum(&text, &format!("{histogram}_{part}"), label);
    of("sum") / of("count")
}
