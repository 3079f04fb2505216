//! Metrics that answer to scaling.

use super::candidate::{Candidate, Measure};
use crate::promql::kind_of_value::{KindOfValue, kind_of_value};
use std::collections::BTreeMap;

/// What is in the names of metrics that say how long something takes or how much waits: more pods make them smaller, so
/// that what was recorded says nothing of another number of pods.
const WORDS: [&str; 31] = [
    "queue",
    "queued",
    "backlog",
    "lag",
    "pending",
    "waiting",
    "depth",
    "latency",
    "duration",
    "inflight",
    "saturation",
    "oldest",
    "age",
    "unacked",
    "delay",
    "messages_visible",
    "messages_ready",
    "outstanding",
    "unprocessed",
    "response_time",
    "rtt",
    "p50",
    "p75",
    "p90",
    "p95",
    "p99",
    "p999",
    "busy",
    "pool_utilization",
    "worker_utilization",
    "active_requests",
];

impl Candidate {
    /// Refuses metrics that answer to scaling. `totals` has the queries that are asked in place of metrics'.
    ///
    /// # Errors
    /// If one of its metrics probably is one.
    pub fn refuse_feedback(&self, totals: &BTreeMap<String, String>) -> Result<(), String> {
        let feedback = |metric: &Measure| {
            // A name of several metrics is refused where its query is asked.
            let total = self.given(metric, totals).ok().flatten();
            metric.feedback().or_else(|| total.and_then(|total| of_query(total)))
        };
        match self.metrics.iter().find_map(feedback) {
            None => Ok(()),
            Some(why) => Err(format!(
                "{}: {why}: it answers to scaling, so that what was recorded with one number of pods says nothing of another; scale on the load itself, such as the rate of what arrives, or name a model of it (plimsoll backtest --feedback queue)",
                self.name
            )),
        }
    }
}

impl Measure {
    /// Why it answers to scaling, if it probably does.
    fn feedback(&self) -> Option<String> {
        let query = self.query.as_ref();
        match query.and_then(|query| query.query.as_deref()) {
            Some(text) => of_query(text),
            None => {
                let name = query.map_or(self.name.as_str(), |query| query.metric.as_str());
                // A counter becomes a rate, which is a load whatever it counts.
                let is_counter = name.ends_with("_total") || name.ends_with("_count");
                (!is_counter).then(|| of_name(name)).flatten()
            }
        }
    }
}

fn of_query(text: &str) -> Option<String> {
    // One that is no PromQL is refused elsewhere.
    let KindOfValue { is_quantile, mean_of, levels } = kind_of_value(text).ok()?;
    if is_quantile {
        return Some("its query asks for a quantile of durations".to_owned());
    }
    let mean = mean_of.map(|name| format!("its query asks for the mean of {name}"));
    mean.or_else(|| levels.iter().find_map(|name| of_name(name)))
}

fn of_name(name: &str) -> Option<String> {
    // camelCase has its words, too.
    let mut lower = String::from("_");
    for c in name.chars() {
        if c.is_ascii_uppercase() && !lower.ends_with('_') {
            lower.push('_');
        }
        lower.push(if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' });
    }
    let lower = lower.replace("in_flight", "inflight") + "_";
    let word = WORDS.into_iter().find(|word| lower.contains(&format!("_{word}_")))?;
    Some(format!("the metric {name} has {word:?} in its name"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_answers_to_scaling_is_told_from_a_load() {
        let refused = |metric: &str, query: Option<&str>, total: Option<&str>| {
            let mut spec = json!({
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "maxReplicas": 10,
                "customMetrics": [{"metricName": metric, "averageValue": "10"}],
            });
            if let Some(query) = query {
                spec["customMetrics"][0]["query"] = json!(query);
                spec["customMetrics"][0]["per"] = json!("Workload");
            }
            let candidate = Candidate::new("web", "shop", spec).expect("a candidate");
            let totals = total.map(|total| (candidate.metrics[0].name.clone(), total.to_owned()));
            candidate.refuse_feedback(&totals.into_iter().collect()).err()
        };
        for load in ["http_requests_total", "queue_consumed_total", "cpu_usage", "message_size"] {
            assert_eq!(refused(load, None, None), None, "{load}");
        }
        for metric in [
            "queue_length",
            "queueDepth",
            "http_requests_in_flight",
            "request_latency",
            "http_response_time_p95_ms",
            "requests_p999",
            "responseTime",
            "outstanding_jobs",
            "active_requests",
            "busy_workers",
            "thread_pool_utilization",
            "rabbitmq_queue_messages_ready",
        ] {
            assert!(refused(metric, None, None).is_some(), "{metric}");
        }
        assert_eq!(refused("cpu_utilization", None, None), None);
        assert_eq!(refused("responses_time_series", None, None), None);
        let mean = "sum(rate(http_duration_seconds_sum{namespace=\"shop\"}[5m])) / sum(rate(http_duration_seconds_count{namespace=\"shop\"}[5m]))";
        assert!(
            refused("latency", Some(mean), None).unwrap().contains("the mean of http_duration")
        );
        let rate = "sum(rate(queue_arrived_total{namespace=\"shop\"}[1m]))";
        assert_eq!(refused("arrived", Some(rate), None), None);
        assert!(refused("requests", None, Some("max(queue_length)")).is_some());
        assert_eq!(refused("requests", None, Some(rate)), None);
    }
}
