//! What one tenant can cost all others: the time between two decisions for each autoscaler of the
//! others, with and without the tenant's load. `make bench-fairness` runs it.

use crate::round::{ROUND, show_progress};
use crate::sides;
use crate::world::{MetricChoice, RATE, Size, World, namespace};
use bed::proxy::{Fault, Proxy};
use plimsoll::promql::name::generated_name;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// The autoscalers of the others, and their metrics.
const AUTOSCALERS: usize = 1_000;
const METRICS: usize = 50;
/// The load of the tenant: queries of different shapes, each just below the timeout, and
/// concurrent requests.
const QUERIES: usize = 24;
const SLOW: Duration = Duration::from_secs(8);
const REQUESTS: usize = 400;
const TENANT: &str = "tenant";

/// The load of the tenant in one run.
#[derive(Clone, Copy, Debug)]
struct TenantLoad {
    name: &'static str,
    queries: bool,
    requests: bool,
}

const LOADS: [TenantLoad; 4] = [
    TenantLoad { name: "nothing", queries: false, requests: false },
    TenantLoad { name: "24 slow queries", queries: true, requests: false },
    TenantLoad { name: "400 slow requests", queries: false, requests: true },
    TenantLoad { name: "both", queries: true, requests: true },
];

/// The result of a run, for all others.
struct Outcome {
    name: &'static str,
    /// Of each autoscaler of the others, the p99 of the time between two decisions; sorted.
    p99: Vec<f64>,
    decisions_per_second: f64,
    tenants_decisions: usize,
    tenants_responses: usize,
}

impl Outcome {
    fn worst(&self) -> f64 {
        self.p99.last().copied().unwrap_or(f64::INFINITY)
    }

    fn median(&self) -> f64 {
        self.p99.get(self.p99.len() / 2).copied().unwrap_or(f64::INFINITY)
    }
}

/// Runs the autoscalers beside each load of the tenant, for this time each.
pub async fn run(time: Duration) -> ExitCode {
    let mut world = World::start(Size { autoscalers: AUTOSCALERS, pods: 3 }, true).await;
    world.make_autoscalers().await;
    let metric = |app: usize| format!("one_of_fifty_{}_total", app % METRICS);
    world.set_metrics(MetricChoice { metric, ..MetricChoice::OWN_LABEL }).await;
    make_tenant(&world).await;
    let prometheus = Proxy::start(world.cluster.prometheus_port).await;
    prometheus.fail("slow_metric", Fault::Slow(SLOW));
    let token = ["-n", TENANT, "create", "token", "default", "--duration=24h"];
    let token = world.cluster.kubectl(&token).await.trim().to_owned();
    let mut outcomes = Vec::new();
    for load in LOADS {
        show_progress(&format!("the tenant does: {}, for {} s", load.name, time.as_secs()));
        outcomes.push(one(&world, prometheus.port, &token, load, time).await);
    }
    print(&outcomes, time)
}

/// Creates the tenant's workloads, each with a pod; each load creates its Autoscalers.
async fn make_tenant(world: &World) {
    world.send("POST", "/api/v1/namespaces", json!({"metadata": {"name": TENANT}})).await;
    let path = format!("/api/v1/namespaces/{TENANT}/serviceaccounts");
    world.send("POST", &path, json!({"metadata": {"name": "default"}})).await;
    let admin = format!("--serviceaccount={TENANT}:default");
    let binding = ["create", "clusterrolebinding", TENANT, "--clusterrole=cluster-admin", &admin];
    world.cluster.kubectl(&binding).await;
    for number in 0..QUERIES {
        world.make_workload(TENANT, &format!("slow-{number}"), 1).await;
        world.make_pod(TENANT, &format!("slow-{number}"), 0).await;
    }
}

fn metric(number: usize) -> String {
    format!("slow_metric_{number}")
}

/// Creates the tenant's Autoscalers. With a period of a second they run the slow queries; with an
/// hour they only define the metrics of the requests.
async fn make_autoscalers(world: &World, period: u64) {
    for number in 0..QUERIES {
        let name = format!("slow-{number}");
        let query = format!("max by (pod) ({})", metric(number));
        let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": name});
        let autoscaler = json!({
            "apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler", "metadata": {"name": name},
            "spec": {"scaleTargetRef": target, "maxReplicas": 2, "syncPeriodSeconds": period,
                "customMetrics": [{"metricName": metric(number), "averageValue": RATE.to_string(),
                    "query": query}]},
        });
        let path = format!("/apis/plimsoll.dev/v1alpha1/namespaces/{TENANT}/autoscalers");
        world.send("POST", &path, autoscaler).await;
    }
}

async fn one(
    world: &World,
    prometheus: u16,
    token: &str,
    load: TenantLoad,
    time: Duration,
) -> Outcome {
    let running = sides::start_logged(world, prometheus);
    let process = &running.processes[0].1;
    crate::measure::Meter::new(world, Some(&running)).wait_settled().await;
    if load.queries || load.requests {
        make_autoscalers(world, if load.queries { 1 } else { 3600 }).await;
    }
    let (stop, responses) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let requests = if load.requests { REQUESTS } else { 0 };
    let clients: Vec<_> = (0..requests)
        .map(|index| {
            let number = index % QUERIES;
            let name = generated_name(&metric(number), None, TENANT, &format!("slow-{number}"));
            let url = format!(
                "https://127.0.0.1:{}/apis/custom.metrics.k8s.io/v1beta2/namespaces/{TENANT}/pods/*/{name}",
                world.adapter_port
            );
            tokio::spawn(send_requests(url, token.to_owned(), stop.clone(), responses.clone()))
        })
        .collect();
    // Decisions that began before the load do not count.
    tokio::time::sleep(ROUND).await;
    let begin = jiff::Timestamp::now();
    tokio::time::sleep(time).await;
    let end = jiff::Timestamp::now();
    let log = std::fs::read_to_string(&process.log).expect("the log");
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.abort();
    }
    let path = format!("/apis/plimsoll.dev/v1alpha1/namespaces/{TENANT}/autoscalers");
    world.send("DELETE", &path, json!({})).await;
    drop(running);
    let all = decisions(&log, begin, end);
    assert!(!all.is_empty(), "the log shows no decision");
    let others = (0..AUTOSCALERS).map(|app| format!("{}/app-{app}", namespace(app)));
    let none = Vec::new();
    let span = (end - begin).get_milliseconds() as f64 / 1000.0;
    let mut p99: Vec<f64> = others
        .map(|other| {
            p99_gap(all.get(&other).unwrap_or(&none), (end.duration_since(begin)).as_secs_f64())
        })
        .collect();
    p99.sort_by(f64::total_cmp);
    let of_tenant = |name: &String| name.starts_with(&format!("{TENANT}/"));
    let [tenants, others] = [true, false].map(|of| {
        let decisions = all.iter().filter(|(name, _)| of_tenant(name) == of);
        decisions.map(|(_, times)| times.len()).sum::<usize>()
    });
    Outcome {
        name: load.name,
        p99,
        decisions_per_second: others as f64 / span.max(time.as_secs_f64()),
        tenants_decisions: tenants,
        tenants_responses: responses.load(Ordering::Relaxed),
    }
}

/// Sends requests one after the other, until `stop`.
async fn send_requests(
    url: String,
    token: String,
    stop: Arc<AtomicBool>,
    responses: Arc<AtomicUsize>,
) {
    let http = reqwest::Client::builder().tls_danger_accept_invalid_certs(true).http1_only();
    let http = http.timeout(Duration::from_secs(60)).build().expect("a client");
    while !stop.load(Ordering::Relaxed) {
        if http.get(&url).bearer_auth(&token).send().await.is_ok() {
            responses.fetch_add(1, Ordering::Relaxed);
        } else {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// The times of the decisions for each autoscaler, in seconds since `begin`, from the log.
fn decisions(log: &str, begin: jiff::Timestamp, end: jiff::Timestamp) -> HashMap<String, Vec<f64>> {
    let mut all: HashMap<String, Vec<f64>> = HashMap::new();
    for line in log.lines().filter(|line| line.contains("plimsoll::control::")) {
        let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
        let autoscaler = line["fields"]["autoscaler"].as_str().or(line["autoscaler"].as_str());
        let time = line["timestamp"].as_str().and_then(|time| time.parse().ok());
        let (Some(autoscaler), Some(time)): (_, Option<jiff::Timestamp>) = (autoscaler, time)
        else {
            continue;
        };
        let message = line["fields"]["message"].as_str().or(line["message"].as_str());
        if !message.is_some_and(is_decision) || time < begin || time > end {
            continue;
        }
        // `KIND NAMESPACE/NAME`.
        let name = autoscaler.rsplit(' ').next().unwrap_or(autoscaler).to_owned();
        all.entry(name).or_default().push(time.duration_since(begin).as_secs_f64());
    }
    all
}

/// Whether a log message is that of a decision.
fn is_decision(message: &str) -> bool {
    ["Kept", "Rescaled", "Failed to evaluate"].iter().any(|decision| {
        message.get(..decision.len()).is_some_and(|start| start.eq_ignore_ascii_case(decision))
    })
}

/// The p99 of the time between two decisions. The ends of the run count as decisions: an autoscaler
/// without any has the length of the run.
fn p99_gap(times: &[f64], length: f64) -> f64 {
    let mut times: Vec<f64> = times.to_vec();
    times.sort_by(f64::total_cmp);
    let (before, after) = (std::iter::once(0.0), std::iter::once(length));
    let all: Vec<f64> = before.chain(times).chain(after).collect();
    let mut gaps: Vec<f64> = all.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_by(f64::total_cmp);
    gaps[((gaps.len() as f64 * 0.99).ceil() as usize).clamp(1, gaps.len()) - 1]
}

fn print(outcomes: &[Outcome], time: Duration) -> ExitCode {
    println!(
        "\n{AUTOSCALERS} autoscalers over {METRICS} metrics, every {} s; {} s each\n",
        ROUND.as_secs(),
        time.as_secs()
    );
    println!(
        "{:<20} {:>12} {:>12} {:>14} {:>18} {:>16}",
        "one tenant does",
        "p99, median",
        "p99, worst",
        "decisions/s",
        "its own decisions",
        "its answers"
    );
    for outcome in outcomes {
        println!(
            "{:<20} {:>10.1} s {:>10.1} s {:>14.1} {:>18} {:>16}",
            outcome.name,
            outcome.median(),
            outcome.worst(),
            outcome.decisions_per_second,
            outcome.tenants_decisions,
            outcome.tenants_responses
        );
    }
    let alone = outcomes[0].worst();
    let cost = |outcome: &Outcome| outcome.worst() - alone;
    let broken: Vec<&str> = outcomes
        .iter()
        .filter(|outcome| cost(outcome) >= ROUND.as_secs_f64())
        .map(|outcome| outcome.name)
        .collect();
    for name in &broken {
        println!("BROKEN: {name} cost an other autoscaler a period or more");
    }
    let figures: serde_json::Map<String, Value> = outcomes
        .iter()
        .map(|outcome| {
            let figures = json!({"p99_median_seconds": outcome.median(),
                "p99_worst_seconds": outcome.worst(), "cost_seconds": cost(outcome),
                "decisions_per_second": outcome.decisions_per_second});
            (outcome.name.to_owned(), figures)
        })
        .collect();
    println!(
        "fairness: {}",
        json!({"seconds": time.as_secs(), "tenant": figures, "broken": broken})
    );
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
