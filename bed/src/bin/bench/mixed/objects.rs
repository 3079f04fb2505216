//! The autoscaler of a workload, as each side has it.

use super::mix::{App, CPU, Kind, LOAD, MEMORY, QUANTILE, RATIO};
use crate::world::target;
use serde_json::{Value, json};

/// The HorizontalPodAutoscaler.
pub fn hpa(app: &App) -> Value {
    let window = app.window();
    let pods = |name: String, average: &str| {
        json!({"type": "Pods", "pods": {"metric": {"name": name},
            "target": {"type": "AverageValue", "averageValue": average}}})
    };
    let (metric, load) = (app.metric, LOAD.to_string());
    let metric = match app.kind {
        Kind::Counter => pods(format!("requests_{metric}_per_second_{window}"), &load),
        Kind::Gauge => pods(format!("in_flight_{metric}"), &load),
        Kind::Quantile => pods(format!("latency_{metric}_p90_{window}"), &milli(QUANTILE)),
        Kind::Ratio => pods(format!("utilization_{metric}_{window}"), &milli(RATIO)),
        Kind::Recorded => pods(format!("calls_{metric}_per_second_{window}"), &load),
        Kind::Total => json!({"type": "External", "external": {
            "metric": {"name": format!("jobs_{metric}_per_second_{window}"),
                "selector": {"matchLabels": {"app": app.name()}}},
            "target": {"type": "AverageValue", "averageValue": load}}}),
        Kind::Cpu | Kind::Memory => usage(app.kind),
    };
    json!({
        "metadata": {"name": app.name()},
        "spec": {"scaleTargetRef": target(app.number), "minReplicas": 1, "maxReplicas": 20,
            "metrics": [metric]},
    })
}

/// The metric of CPU or memory.
fn usage(kind: Kind) -> Value {
    let (name, target) = match kind {
        Kind::Memory => {
            ("memory", json!({"type": "AverageValue", "averageValue": MEMORY.to_string()}))
        }
        _ => ("cpu", json!({"type": "Utilization", "averageUtilization": 50})),
    };
    json!({"type": "Resource", "resource": {"name": name, "target": target}})
}

/// The Autoscaler: with the query of each written out, as its user writes it.
pub fn autoscaler(app: &App) -> Value {
    let (metric, window, labels) = (app.metric, app.window(), format!("app=\"{}\"", app.name()));
    let rate = |name: String| format!("rate({name}{{{labels}}}[{window}])");
    let (name, query, average) = match app.kind {
        Kind::Counter => {
            let name = format!("requests_{metric}_total");
            (name.clone(), format!("sum by (pod) ({})", rate(name)), LOAD)
        }
        Kind::Gauge => {
            let name = format!("in_flight_{metric}");
            (name.clone(), format!("sum by (pod) ({name}{{{labels}}})"), LOAD)
        }
        Kind::Quantile => {
            let name = format!("latency_{metric}_seconds_bucket");
            let by = format!("sum by (pod, le) ({})", rate(name.clone()));
            (name, format!("histogram_quantile(0.9, {by})"), QUANTILE)
        }
        Kind::Ratio => {
            let [busy, all] = ["busy", "worker"].map(|of| format!("{of}_{metric}_seconds_total"));
            let [over, under] =
                [busy.clone(), all].map(|name| format!("sum by (pod) ({})", rate(name)));
            (busy, format!("{over} / {under}"), RATIO)
        }
        Kind::Recorded => {
            let name = format!("pod:calls_{metric}:rate{window}");
            (name.clone(), format!("sum by (pod) ({name}{{{labels}}})"), LOAD)
        }
        Kind::Total => {
            let name = format!("jobs_{metric}_total");
            (name.clone(), format!("sum({})", rate(name)), LOAD)
        }
        Kind::Cpu | Kind::Memory => (String::new(), String::new(), LOAD),
    };
    let mut spec =
        json!({"scaleTargetRef": target(app.number), "minReplicas": 1, "maxReplicas": 20});
    if query.is_empty() {
        spec["metrics"] = json!([usage(app.kind)]);
    } else {
        let per = if app.kind == Kind::Total { "Workload" } else { "Pod" };
        spec["customMetrics"] = json!([{"metricName": name, "query": query, "per": per,
            "averageValue": milli(average)}]);
    }
    json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
        "metadata": {"name": app.name()}, "spec": spec})
}

/// The ScaledObject, with a query of the whole workload: KEDA divides it by the replicas where it is a
/// sum. CPU and memory are triggers of Prometheus, too: by those of KEDA's own a second adapter would
/// have to serve metrics.k8s.io.
pub fn scaled_object(app: &App, prometheus: u16) -> Value {
    let (metric, window) = (app.metric, app.window());
    let labels = format!("namespace=\"{}\",app=\"{}\"", app.namespace(), app.name());
    let of_pods =
        format!("namespace=\"{}\",pod=~\"{}-.*\",container!=\"\"", app.namespace(), app.name());
    let rate = |name: &str| format!("sum(rate({name}_{metric}_total{{{labels}}}[{window}]))");
    let (query, kind, threshold) = match app.kind {
        Kind::Counter => (rate("requests"), "AverageValue", LOAD),
        Kind::Gauge => (format!("sum(in_flight_{metric}{{{labels}}})"), "AverageValue", LOAD),
        Kind::Quantile => {
            let buckets = format!("latency_{metric}_seconds_bucket{{{labels}}}[{window}]");
            let query = format!("histogram_quantile(0.9, sum(rate({buckets})) by (le))");
            (query, "Value", QUANTILE)
        }
        Kind::Ratio => {
            let rate =
                |of: &str| format!("sum(rate({of}_{metric}_seconds_total{{{labels}}}[{window}]))");
            (format!("{} / {}", rate("busy"), rate("worker")), "Value", RATIO)
        }
        Kind::Recorded => {
            (format!("sum(pod:calls_{metric}:rate{window}{{{labels}}})"), "AverageValue", LOAD)
        }
        Kind::Total => (rate("jobs"), "AverageValue", LOAD),
        Kind::Cpu => {
            let window = super::mix::CPU_WINDOW;
            let series = format!("container_cpu_usage_seconds_total{{{of_pods}}}[{window}]");
            (format!("sum(rate({series}))"), "AverageValue", CPU)
        }
        Kind::Memory => {
            let series = format!("container_memory_working_set_bytes{{{of_pods}}}");
            (format!("sum({series})"), "AverageValue", MEMORY)
        }
    };
    json!({"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
        "metadata": {"name": app.name()},
        "spec": {
            "scaleTargetRef": {"name": app.name()}, "minReplicaCount": 1, "maxReplicaCount": 20,
            "triggers": [{"type": "prometheus", "metricType": kind, "useCachedMetrics": true, "metadata": {
                "serverAddress": format!("http://127.0.0.1:{prometheus}"),
                "query": query, "threshold": threshold.to_string()}}]}})
}

/// A quantity in thousandths.
fn milli(value: f64) -> String {
    format!("{}m", (value * 1000.0).round())
}
