//! Metrics that answer to scaling.

use super::candidate::{Candidate, Measure, Of};
use crate::promql::kind_of_value::{KindOfValue, kind_of_value};
use std::collections::BTreeMap;

/// What is in the names of metrics that say how much waits or is worked on: more pods make them smaller, so that what was
/// recorded says nothing of another number of pods.
const AMOUNTS: [&str; 31] = [
    "queue",
    "queued",
    "backlog",
    "lag",
    "offset_diff",
    "length",
    "len",
    "depth",
    "buffer_fill",
    "fill_level",
    "pending",
    "waiting",
    "remaining",
    "unacked",
    "unprocessed",
    "outstanding",
    "messages_visible",
    "messages_ready",
    "approximate_number_of_messages",
    "inflight",
    "in_flight",
    "active",
    "running",
    "busy",
    "concurrent",
    "concurrency",
    "in_use",
    "threads",
    "workers_used",
    "slots_used",
    "connections_used",
];
/// The same of how long something takes, and of what share of a pod is taken.
const TIMES_AND_SHARES: [&str; 17] = [
    "latency",
    "duration",
    "delay",
    "age",
    "oldest",
    "response_time",
    "sojourn",
    "ttft",
    "rtt",
    "p50",
    "p75",
    "p90",
    "p95",
    "p99",
    "p999",
    "saturation",
    "utilization",
];
/// What such a name ends with, but for what [`STATISTICS`] say of it. Of CPU and of a rate it is a load.
const UNITS: [&str; 5] = ["seconds", "ms", "millis", "milliseconds", "time"];
const STATISTICS: [&str; 8] = ["avg", "average", "mean", "median", "max", "min", "current", "last"];
const LOADS: [&str; 2] = ["cpu", "per"];
/// Who is active whatever the pods do.
const PEOPLE: [&str; 4] = ["users", "players", "viewers", "sessions"];
/// What makes a load of any amount: so much in a time.
const RATES: [&str; 5] = ["rate", "per_second", "per_minute", "arrivals", "arrived"];

impl Candidate {
    /// Refuses metrics that answer to scaling. `totals` has the queries that are asked in place of metrics'.
    ///
    /// # Errors
    /// If one of its metrics probably is one.
    pub fn refuse_feedback(&self, totals: &BTreeMap<String, String>) -> Result<(), String> {
        let feedback = |metric: &Measure| {
            // A name of several metrics is refused where its query is asked.
            let total = self.given(metric, totals).ok().flatten();
            let total = total.filter(|_| !metric.is_load);
            metric.feedback(of_name).or_else(|| total.and_then(|total| of_query(total, of_name)))
        };
        match self.metrics.iter().find_map(feedback) {
            Some(why) => Err(format!(
                "{}: {why}: it answers to scaling, so that what was recorded with one number of pods says nothing of another; scale on the load itself, such as the rate of what arrives, name a model of it (plimsoll backtest --feedback queue), or say that it is a load (--load-metric)",
                self.name
            )),
            None if self.metrics.iter().all(Measure::is_memory) => Err(format!(
                "{}: memory: pods hold much of it whatever their load, so that what all held says nothing of another number of pods",
                self.name
            )),
            None => Ok(()),
        }
    }

    /// Refuses metrics that are no length of a queue.
    ///
    /// # Errors
    /// If one of its metrics is a time or a share.
    pub fn refuse_no_queue(&self) -> Result<(), String> {
        match self.metrics.iter().find_map(|metric| metric.feedback(of_time_or_share)) {
            Some(why) => Err(format!("{}: {why}: it is no length of a queue", self.name)),
            None => Ok(()),
        }
    }
}

/// Says of the name of a metric why it is none that is asked for.
type OfName = fn(&str) -> Option<String>;

impl Measure {
    /// Whether it is the memory of pods.
    pub(super) fn is_memory(&self) -> bool {
        matches!(&self.of, Of::Resource { resource, .. } if resource == "memory")
    }

    /// Why it answers to scaling, if it probably does by its name or the names in its query.
    fn feedback(&self, of_name: OfName) -> Option<String> {
        if self.is_load {
            return None;
        }
        let query = self.query.as_ref();
        match query.and_then(|query| query.query.as_deref()) {
            Some(text) => of_query(text, of_name),
            None => {
                let name = query.map_or(self.name.as_str(), |query| query.metric.as_str());
                // A counter becomes a rate, which is a load whatever it counts.
                let is_counter = name.ends_with("_total") || name.ends_with("_count");
                (!is_counter).then(|| of_name(name)).flatten()
            }
        }
    }
}

fn of_query(text: &str, of_name: OfName) -> Option<String> {
    // One that is no PromQL is refused elsewhere.
    let KindOfValue { is_quantile, mean_of, levels } = kind_of_value(text).ok()?;
    if is_quantile {
        return Some("its query asks for a quantile of durations".to_owned());
    }
    let mean = mean_of.map(|name| format!("its query asks for the mean of {name}"));
    mean.or_else(|| levels.iter().find_map(|name| of_name(name)))
}

fn of_name(name: &str) -> Option<String> {
    let amount = || {
        let words = words(name);
        let is_rate = RATES.iter().any(is_in(&words));
        AMOUNTS.into_iter().find(is_in(&words)).filter(|_| !is_rate)
    };
    of_time_or_share(name).or_else(|| found(name, amount()))
}

fn of_time_or_share(name: &str) -> Option<String> {
    let words = words(name);
    let word = TIMES_AND_SHARES.into_iter().find(is_in(&words));
    found(name, word.or_else(|| unit(&words)))
}

fn found(name: &str, word: Option<&str>) -> Option<String> {
    word.map(|word| format!("the metric {name} has {word:?} in its name"))
}

fn is_in(words: &str) -> impl Fn(&&str) -> bool {
    move |word| words.contains(&format!("_{word}_"))
}

/// The unit of time that a name ends with.
fn unit(words: &str) -> Option<&'static str> {
    if LOADS.iter().any(is_in(words)) {
        return None;
    }
    let mut last = words.rsplit('_').filter(|word| !word.is_empty());
    let last = last.find(|word| !STATISTICS.contains(word))?;
    UNITS.into_iter().find(|unit| *unit == last)
}

/// The words of a name, each between underscores. `camelCase` has its words, too.
fn words(name: &str) -> String {
    let mut lower = String::from("_");
    for c in name.chars() {
        if c.is_ascii_uppercase() && !lower.ends_with('_') {
            lower.push('_');
        }
        lower.push(if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' });
    }
    // How busy CPUs are is what the load makes of them.
    let mut words = lower + "_";
    for (of, instead) in
        [("cpu_utilization", "cpu_usage"), ("_over_time_", "_"), ("_real_time_", "_")]
    {
        words = words.replace(of, instead);
    }
    if PEOPLE.iter().any(is_in(&words)) {
        words = words.replace("_active_", "_").replace("_concurrent_", "_");
    }
    words
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
        for load in [
            "http_requests_total",
            "queue_consumed_total",
            "cpu_usage",
            "message_size",
            "requests",
            "http_requests_per_second",
            "requestsPerSecond",
            "http_request_duration_seconds_count",
            "worker_seconds_total",
            "cpu_seconds",
            "container_cpu_time",
            "interactive_requests",
            "number_of_messages_sent",
            "active_users",
            "concurrent_players",
            "websocket_connections",
            "active_sessions",
            "requests_over_time",
            "page_views_real_time",
            "queue_arrival_rate",
            "message_queue_arrivals_per_second",
        ] {
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
            "redis_list_length",
            "sqs_approximate_number_of_messages",
            "ApproximateNumberOfMessagesVisible",
            "jobs_remaining",
            "kafka_offset_diff",
            "buffer_fill",
            "request_seconds",
            "http_request_time_avg",
            "http_server_requests_seconds_max",
            "response_ms",
            "sojourn_ms",
            "ttft_seconds",
            "time_in_system_seconds",
            "concurrent_requests",
            "http_server_active_connections",
            "vllm_num_requests_running",
            "db_connections_in_use",
            "celery_tasks_active",
            "threads_used",
            "gpu_utilization",
        ] {
            assert!(refused(metric, None, None).is_some(), "{metric}");
        }
        for (metric, word) in [("requests_in_flight", "in_flight"), ("jobsInflight", "inflight")] {
            let why = refused(metric, None, None).unwrap();
            assert!(why.contains(&format!("has \"{word}\" in its name")), "{why}");
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
        let rate = "sum(rate(worker_seconds_total{namespace=\"shop\"}[1m]))";
        assert_eq!(refused("work", Some(rate), None), None);
        let level = "avg(request_seconds{namespace=\"shop\"})";
        assert!(refused("work", Some(level), None).unwrap().contains("\"seconds\" in its name"));
    }

    #[test]
    fn memory_is_no_load_and_a_time_no_queue() {
        let candidate = |resources: &[&str], metrics: &[&str]| {
            let resources = resources.iter().map(|name| {
                json!({"resourceName": name, "targetType": "Utilization", "averageUtilization": 60})
            });
            let metrics =
                metrics.iter().map(|name| json!({"metricName": name, "averageValue": "10"}));
            let spec = json!({
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "maxReplicas": 10,
                "resourceMetrics": resources.collect::<Vec<_>>(),
                "customMetrics": metrics.collect::<Vec<_>>(),
            });
            Candidate::new("web", "shop", spec).expect("a candidate")
        };
        let none = BTreeMap::new();
        let error = candidate(&["memory"], &[]).refuse_feedback(&none).unwrap_err();
        assert!(error.contains("whatever their load"), "{error}");
        assert_eq!(candidate(&["cpu"], &[]).refuse_feedback(&none), Ok(()));
        let both = candidate(&["cpu", "memory"], &[]);
        assert_eq!(both.refuse_feedback(&none), Ok(()));
        assert!(both.doubts[0].starts_with("memory is taken for a load"), "{:?}", both.doubts);
        for time in
            ["request_latency", "request_duration_seconds_p95", "wait_ms", "pool_utilization"]
        {
            let error = candidate(&[], &[time]).refuse_no_queue().unwrap_err();
            assert!(error.contains("no length of a queue"), "{error}");
        }
        for queue in ["queue_length", "requests_in_flight", "orders"] {
            assert_eq!(candidate(&[], &[queue]).refuse_no_queue(), Ok(()), "{queue}");
        }
    }
}
