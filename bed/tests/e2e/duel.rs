//! The duel: two equal workloads under the same recorded load, one scaled by
//! kube-controller-manager through an HPA, the other by Plimsoll. `make duel` shows both curves.

use crate::on_own_bed;
use bed::adapter::Adapter;
use bed::cluster::Cluster;
use bed::workload::Namespace;
use bed::{Bed, Options};
use plimsoll::promql::name::generated_name;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::{Duration, SystemTime};

/// The sync period of both, and how long each recorded value lasts.
const PERIOD: u64 = 5;
/// When both decide within an epoch: its values are scraped by then.
const PHASE: f64 = 2.5;
/// How far apart the same step of both may be: one sync period.
const APART: f64 = PERIOD as f64 + 1.0;

/// One duel.
struct Duel {
    name: &'static str,
    /// The load of the whole workload by epoch; `None`: the metric is missing.
    recorded: Vec<(&'static str, Vec<Option<f64>>)>,
    /// The spec of the autoscalers, without target and metrics.
    spec: Value,
    /// Pods metrics: the name and the target per pod.
    pods: Vec<(&'static str, &'static str)>,
    /// Other metrics, as `autoscaling/v2` writes them.
    metrics: Vec<Value>,
    /// The seconds until a pod is ready.
    ready_after: u64,
}

/// A load of levels, each for a number of epochs.
fn levels(levels: &[(f64, usize)]) -> Vec<Option<f64>> {
    levels.iter().flat_map(|&(load, epochs)| std::iter::repeat_n(Some(load), epochs)).collect()
}

fn duels() -> Vec<Duel> {
    let mut failing = levels(&[(30.0, 17)]);
    failing[6..13].fill(None);
    vec![
        Duel {
            name: "qps-steps",
            recorded: vec![(
                "requests",
                levels(&[(10.0, 3), (55.0, 5), (95.0, 5), (32.0, 6), (8.0, 7)]),
            )],
            spec: json!({"maxReplicas": 12}),
            pods: vec![("requests", "10")],
            metrics: vec![],
            ready_after: 0,
        },
        Duel {
            name: "behavior",
            recorded: vec![("requests", levels(&[(10.0, 3), (118.0, 9), (9.0, 10)]))],
            spec: json!({"maxReplicas": 20, "minReplicas": 1, "behavior": {
                "scaleUp": {"policies": [{"type": "Pods", "value": 3, "periodSeconds": 12}]},
                "scaleDown": {"stabilizationWindowSeconds": 12, "selectPolicy": "Min", "policies": [
                    {"type": "Percent", "value": 40, "periodSeconds": 7},
                    {"type": "Pods", "value": 4, "periodSeconds": 7}]},
            }}),
            pods: vec![("requests", "10")],
            metrics: vec![],
            ready_after: 0,
        },
        Duel {
            name: "cpu-slow-start",
            recorded: vec![("cpu_usage", levels(&[(0.06, 4), (0.31, 8), (0.47, 6), (0.12, 8)]))],
            spec: json!({"maxReplicas": 12}),
            pods: vec![],
            metrics: vec![json!({"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 60}}})],
            ready_after: 8,
        },
        Duel {
            name: "one-metric-fails",
            recorded: vec![
                ("requests", levels(&[(55.0, 4), (8.0, 9), (75.0, 4), (8.0, 8)])),
                ("jobs", failing),
            ],
            spec: json!({"maxReplicas": 12}),
            pods: vec![("requests", "10"), ("jobs", "10")],
            metrics: vec![],
            ready_after: 0,
        },
    ]
}

/// CPU and memory usage by the metric `cpu_usage`.
pub const RULES: &str = "resourceRules:\n  window: 5s\n\
    \x20 cpu: &usage\n    containerLabel: container\n\
    \x20   containerQuery: &query 'sum by (<<.GroupBy>>) (cpu_usage{<<.LabelMatchers>>})'\n\
    \x20   nodeQuery: *query\n\
    \x20   resources: {overrides: {node: {resource: node}, namespace: {resource: namespace}, pod: {resource: pod}}}\n\
    \x20 memory: *usage\n";

/// The replicas of a workload, each with the time when they were first seen.
type Curve = Vec<(f64, i64)>;

#[test]
fn plimsoll_decides_as_kube_controller_manager_does() {
    let decisions = vec![
        format!("--horizontal-pod-autoscaler-sync-period={PERIOD}s"),
        "--horizontal-pod-autoscaler-downscale-stabilization=12s".to_owned(),
        "--horizontal-pod-autoscaler-cpu-initialization-period=40s".to_owned(),
        "--horizontal-pod-autoscaler-initial-readiness-delay=12s".to_owned(),
    ];
    let flags = vec!["--native-hpas=ignore".to_owned()];
    // Both have CPU usage by the same rules: Plimsoll by its own, kube-controller-manager through
    // prometheus-adapter.
    on_own_bed(Options { decisions, flags, config: RULES, ..Options::default() }, async |bed| {
        let adapter = Adapter::start(&bed.cluster, "prometheus-adapter", RULES);
        adapter.register(&bed.cluster, "metrics.k8s.io", "v1beta1").await;
        let duels = duels();
        let fought = duels.iter().map(|duel| fight(bed, duel));
        let curves = futures::future::join_all(fought).await;
        let (mut disagreements, mut passing) = (String::new(), 0);
        for (duel, (theirs, ours)) in duels.iter().zip(&curves) {
            println!("{}", picture(duel, theirs, ours));
            let (one, other) = without_passing(theirs, ours);
            passing += theirs.len() + ours.len() - one.len() - other.len();
            match compare(theirs, ours) {
                Ok(steps) => println!("{}: agree, {steps} steps\n", duel.name),
                Err(difference) => {
                    println!("{}: {difference}\n", duel.name);
                    let _ = writeln!(disagreements, "{}: {difference}", duel.name);
                }
            }
        }
        assert!(disagreements.is_empty(), "{disagreements}");
        // One may be chance; more are a difference in the algorithm.
        assert!(passing <= 1, "{passing} steps were taken by only one side");
    });
}

fn seconds() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock").as_secs_f64()
}

async fn fight(bed: &Bed, duel: &Duel) -> (Curve, Curve) {
    let ns = Namespace::new(&bed.cluster, &format!("duel-{}", duel.name)).await;
    // The same times for all: whole periods from a round time.
    let start = (seconds() / 10.0).ceil() * 10.0 + 20.0;
    let mut recording = format!("{start} {PERIOD}");
    for (metric, values) in &duel.recorded {
        let value = |value: &Option<f64>| value.map_or("-".to_owned(), |value| value.to_string());
        let values: Vec<String> = values.iter().map(value).collect();
        let _ = write!(recording, "; {metric} {}", values.join(" "));
    }
    for fighter in ["theirs", "ours"] {
        deploy(&ns, fighter, &recording, duel.ready_after).await;
    }
    for fighter in ["theirs", "ours"] {
        ns.wait_ready("Deployment", fighter, 1).await;
    }
    let creation = start + PHASE;
    let create = async {
        tokio::time::sleep(Duration::from_secs_f64((creation - seconds()).max(0.0))).await;
        let (native, embedded) = (native(&ns, duel), embedded(&ns, duel));
        tokio::join!(ns.cluster.apply(&native), ns.cluster.apply(&embedded));
    };
    let epochs = duel.recorded.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    let curves = watch(&bed.cluster, &ns.name, start, epochs as u64 * PERIOD);
    tokio::join!(curves, create).0
}

async fn deploy(ns: &Namespace<'_>, name: &str, recording: &str, ready_after: u64) {
    let labels = json!({"app": name});
    let annotations = json!({"bed.plimsoll.dev/recording": recording,
        "bed.plimsoll.dev/ready-after": format!("{ready_after}s")});
    let container = json!({"name": "app", "image": "fleet",
        "resources": {"requests": {"cpu": "100m"}}});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": ns.name},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels, "annotations": annotations},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}},
    });
    ns.cluster.apply(&deployment.to_string()).await;
}

fn target(name: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": name})
}

fn native(ns: &Namespace<'_>, duel: &Duel) -> String {
    let pods = duel.pods.iter().map(|(metric, average)| {
        let name = generated_name(metric, None, &ns.name, "theirs");
        json!({"type": "Pods", "pods": {"metric": {"name": name},
            "target": {"type": "AverageValue", "averageValue": average}}})
    });
    let mut spec = duel.spec.clone();
    spec["scaleTargetRef"] = target("theirs");
    spec["metrics"] = pods.chain(duel.metrics.iter().cloned()).collect();
    json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "theirs", "namespace": ns.name}, "spec": spec})
    .to_string()
}

fn embedded(ns: &Namespace<'_>, duel: &Duel) -> String {
    let mut spec = duel.spec.clone();
    spec["scaleTargetRef"] = target("ours");
    spec["syncPeriodSeconds"] = json!(PERIOD);
    let pods = duel.pods.iter();
    spec["customMetrics"] =
        pods.map(|(name, average)| json!({"metricName": name, "averageValue": average})).collect();
    spec["metrics"] = json!(duel.metrics);
    json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
        "metadata": {"name": "ours", "namespace": ns.name}, "spec": spec})
    .to_string()
}

/// Records both workloads for this many seconds after the start.
async fn watch(cluster: &Cluster, namespace: &str, start: f64, for_seconds: u64) -> (Curve, Curve) {
    let (mut theirs, mut ours) = (Curve::new(), Curve::new());
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    while seconds() < start + for_seconds as f64 {
        let request = http::Request::get(&path).body(Vec::new()).expect("a request");
        let at = seconds() - start;
        if let Ok(list) = cluster.client.request::<Value>(request).await {
            for deployment in list["items"].as_array().into_iter().flatten() {
                let curve = match deployment["metadata"]["name"].as_str() {
                    Some("theirs") => &mut theirs,
                    _ => &mut ours,
                };
                let replicas = deployment["spec"]["replicas"].as_i64().unwrap_or(0);
                if curve.last().is_none_or(|(_, last)| *last != replicas) {
                    curve.push((at, replicas));
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    (theirs, ours)
}

/// Whether a step of only one side is tolerated: it lies between its neighbours and lasts at most
/// one period. A decision during a change sees some pods before and some after it.
fn is_passing(curve: &[(f64, i64)]) -> bool {
    let [(_, before), (at, replicas), (until, after), ..] = *curve else { return false };
    let between = before.min(after) < replicas && replicas < before.max(after);
    between && until - at <= 1.2 * PERIOD as f64
}

/// Removes the step that only one side has.
fn without_passing(theirs: &Curve, ours: &Curve) -> (Curve, Curve) {
    let (mut theirs, mut ours) = (theirs.clone(), ours.clone());
    let differ = theirs.iter().zip(&ours).position(|((_, a), (_, b))| a != b);
    if let Some(step @ 1..) = differ {
        let longer = if theirs.len() > ours.len() { &mut theirs } else { &mut ours };
        if is_passing(&longer[step - 1..]) {
            longer.remove(step);
        }
    }
    (theirs, ours)
}

/// The number of steps of both, if they are the same within one period.
fn compare(theirs: &Curve, ours: &Curve) -> Result<usize, String> {
    let (theirs, ours) = &without_passing(theirs, ours);
    let replicas = |curve: &Curve| curve.iter().map(|(_, replicas)| *replicas).collect::<Vec<_>>();
    let apart = theirs.iter().zip(ours).map(|((a, _), (b, _))| (a - b).abs());
    if replicas(theirs) != replicas(ours) || apart.fold(0.0, f64::max) > APART {
        return Err(format!("theirs went {theirs:.1?}, ours {ours:.1?}"));
    }
    // A duel without steps proves nothing.
    if theirs.len() < 4 {
        return Err(format!("only {} steps", theirs.len()));
    }
    Ok(theirs.len() - 1)
}

#[test]
fn a_step_during_a_change_may_be_of_only_one_side() {
    let theirs = vec![(0.0, 1), (18.5, 4), (24.1, 6), (80.2, 4), (105.5, 3), (110.6, 1)];
    let ours = vec![(0.0, 1), (17.9, 4), (22.8, 6), (77.9, 4), (107.8, 1)];
    assert_eq!(compare(&theirs, &ours), Ok(4));
    assert_eq!(compare(&ours, &theirs), Ok(4));
    // A step that lasts, or exceeds its neighbours, is not tolerated.
    for step in [(98.0, 3), (105.5, 5)] {
        let mut theirs = theirs.clone();
        theirs[4] = step;
        assert!(compare(&theirs, &ours).is_err(), "{step:?}");
    }
}

fn picture(duel: &Duel, theirs: &Curve, ours: &Curve) -> String {
    let at = |curve: &Curve, time: f64| {
        curve.iter().take_while(|(at, _)| *at <= time).last().map_or(0, |(_, replicas)| *replicas)
    };
    let mut text = format!("{}: replicas over time\n", duel.name);
    let _ =
        writeln!(text, "  {:>5}  {:<24} {:<24} load", "s", "kube-controller-manager", "Plimsoll");
    let epochs = duel.recorded[0].1.len();
    for epoch in 0..epochs {
        let end = ((epoch + 1) as u64 * PERIOD) as f64 - 0.2;
        let (a, b) = (at(theirs, end), at(ours, end));
        let bar = |replicas: i64| format!("{replicas:>2} {}", "#".repeat(replicas as usize));
        let load: Vec<String> = duel
            .recorded
            .iter()
            .map(|(metric, values)| match values[epoch.min(values.len() - 1)] {
                Some(value) => format!("{metric} {value}"),
                None => format!("{metric} missing"),
            })
            .collect();
        let (a, b) = (bar(a), bar(b));
        let _ =
            writeln!(text, "  {:>5}  {a:<24} {b:<24} {}", epoch as u64 * PERIOD, load.join(", "));
    }
    text
}
