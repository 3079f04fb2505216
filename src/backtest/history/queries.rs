//! The queries for what Prometheus recorded of an autoscaler's workload.

use super::range::Grid;
use crate::backtest::{Candidate, Measure, Of};
use crate::hpa::TargetRef;
use crate::promql::matcher::{Matcher, label_name, regex_of};
use crate::promql::narrow::with_label;
use crate::promql::query::{MetricType, PodQueries, PrometheusMetric};
use crate::promql::quote::quoted;

/// The label that marks the series of the workload's own pods. A name of a Kubernetes label can't be it.
pub const OWN: &str = "plimsoll_own_pod";
/// The characters of the names that Kubernetes generates.
const GENERATED: &str = "[bcdfghjklmnpqrstvwxz2456789]";
/// The longest name of which a whole pod name can be made: 58 bytes, less the hash of a ReplicaSet and two hyphens.
const MAX_WHOLE_NAME: usize = 46;

/// The query for the value of a metric for all of a workload, and the one that counts its series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Total {
    /// The sum. If it is [marked](Self::is_marked), the series with the label [`OWN`] is it.
    pub sum: String,
    /// How many pods have a series; none for metrics of the workload as a whole.
    pub count: Option<String>,
    /// Other series than that of the workload may be in the result.
    pub is_marked: bool,
}

/// The regular expression of the names of a workload's pods.
pub fn pod_names(target: &TargetRef) -> String {
    let name = regex_of([&target.name]);
    let is_long = target.name.len() > MAX_WHOLE_NAME;
    match target.kind.as_str() {
        _ if is_long => format!("{}.*", regex_of([cut(&target.name)])),
        "Deployment" => format!("{name}-{GENERATED}{{1,10}}-{GENERATED}{{5}}"),
        "StatefulSet" => format!("{name}-[0-9]+"),
        "ReplicaSet" | "ReplicationController" => format!("{name}-{GENERATED}{{5}}"),
        _ => format!("{name}-.+"),
    }
}

fn cut(name: &str) -> &str {
    let end = (0..=MAX_WHOLE_NAME).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    &name[..end]
}

/// The query for a metric of Plimsoll's own.
///
/// # Errors
/// If the query can't be made.
pub fn custom(
    queries: &PodQueries,
    metric: &PrometheusMetric,
    metric_type: MetricType,
    candidate: &Candidate,
    of: &Of,
) -> Result<Total, String> {
    let query = queries.query(metric, metric_type, &candidate.namespace);
    let values = query.map_err(|error| error.to_string())?.values;
    if matches!(of, Of::Workload | Of::Object) {
        return Ok(Total { sum: format!("sum({values})"), count: None, is_marked: false });
    }
    let names = pod_names(&candidate.spec.target);
    if metric.query.is_some() {
        // Its selectors are the user's: only its result can be told by pods.
        let [own, pod] = [quoted(OWN), quoted(&queries.pod_label)];
        let names = quoted(&names);
        let marked = format!("label_replace({values}, {own}, \"1\", {pod}, {names})");
        return Ok(Total {
            sum: format!("sum by ({OWN}) ({marked})"),
            count: Some(format!("count by ({OWN}) ({marked})")),
            is_marked: true,
        });
    }
    let values = with_label(&values, &queries.pod_label, &names)?;
    let count = Some(format!("count({values})"));
    Ok(Total { sum: format!("sum({values})"), count, is_marked: false })
}

/// The query for CPU in cores or memory in bytes, by the metrics of cAdvisor.
///
/// # Errors
/// If it is another resource.
pub fn resource(candidate: &Candidate, metric: &Measure) -> Result<Total, String> {
    let Of::Resource { resource, container } = &metric.of else {
        return Err(format!("{}: no resource", metric.name));
    };
    let matchers = of_pods(candidate, container.as_deref());
    let of_pods = match resource.as_str() {
        "cpu" => {
            format!("sum by (pod) (rate(container_cpu_usage_seconds_total{{{matchers}}}[2m]))")
        }
        "memory" => format!("sum by (pod) (container_memory_working_set_bytes{{{matchers}}})"),
        _ => {
            return Err(format!(
                "the resource {resource}: cpu or memory was expected; give its total with --query {resource}=PROMQL"
            ));
        }
    };
    let count = Some(format!("count({of_pods})"));
    Ok(Total { sum: format!("sum({of_pods})"), count, is_marked: false })
}

/// The query for the request of a resource that a pod has, by kube-state-metrics: the median over its pods.
pub fn request(candidate: &Candidate, resource: &str, container: Option<&str>) -> String {
    let matchers = of_pods(candidate, container);
    let resource = quoted(resource);
    let series = format!("kube_pod_container_resource_requests{{resource={resource},{matchers}}}");
    format!("quantile(0.5, sum by (pod) (max by (pod,container) ({series})))")
}

/// The matchers for the containers of the workload's pods in the metrics of cAdvisor and kube-state-metrics.
fn of_pods(candidate: &Candidate, container: Option<&str>) -> String {
    let namespace = Matcher::Is(candidate.namespace.clone()).render("namespace");
    let pods = quoted(&pod_names(&candidate.spec.target));
    let container = container.map_or(Matcher::NotEmpty, |name| Matcher::Is(name.to_owned()));
    let container = container.render(&label_name("container"));
    format!("{namespace},pod=~{pods},{container}")
}

/// The selectors of kube-state-metrics for the replicas that a workload shall have, and for those that are ready.
pub fn replicas(namespace: &str, target: &TargetRef) -> Option<[String; 2]> {
    let (label, wanted, ready) = match target.kind.as_str() {
        "Deployment" => {
            ("deployment", "kube_deployment_spec_replicas", "kube_deployment_status_replicas_ready")
        }
        "StatefulSet" => {
            ("statefulset", "kube_statefulset_replicas", "kube_statefulset_status_replicas_ready")
        }
        "ReplicaSet" => {
            ("replicaset", "kube_replicaset_spec_replicas", "kube_replicaset_status_ready_replicas")
        }
        _ => return None,
    };
    let namespace = Matcher::Is(namespace.to_owned()).render("namespace");
    let name = Matcher::Is(target.name.clone()).render(label);
    Some([wanted, ready].map(|metric| format!("{metric}{{{namespace},{name}}}")))
}

/// The query for the time in seconds from a pod's creation until it was ready first, by kube-state-metrics: a share of
/// the pods that were created within the grid. Of an older one only the last time that it became ready may be known.
pub fn pod_start(candidate: &Candidate, share: f64, grid: Grid) -> String {
    let namespace = Matcher::Is(candidate.namespace.clone()).render("namespace");
    let pods = quoted(&pod_names(&candidate.spec.target));
    let of = |metric: &str| format!("max by (pod,uid) ({metric}{{{namespace},pod=~{pods}}})");
    let (ready, created) = (of("kube_pod_status_ready_time"), of("kube_pod_created"));
    let span = grid.last - grid.first;
    let step = (span / 4_000).max(15_000);
    let first = grid.first.div_euclid(1_000);
    format!(
        "quantile({share}, min_over_time(({ready} - on (pod,uid) ({created} >= {first}))[{span}ms:{step}ms]) >= 0)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use regex::Regex;

    fn target(kind: &str, name: &str) -> TargetRef {
        let (kind, name) = (kind.to_owned(), name.to_owned());
        TargetRef { api_version: "apps/v1".to_owned(), kind, name }
    }

    #[test]
    fn pods_are_told_from_those_of_workloads_with_longer_names() {
        for (kind, name, own, others) in [
            ("Deployment", "web", "web-7d9c5bd8f-x2x4z", "web-admin-7d9c5bd8f-x2x4z"),
            ("Deployment", "a.b", "a.b-5f-x2x4z", "axb-5f-x2x4z"),
            ("StatefulSet", "db", "db-10", "db-x-0"),
            ("ReplicaSet", "web-7d9c5bd8f", "web-7d9c5bd8f-x2x4z", "web-7d9c5bd8f-x2x4"),
        ] {
            let regex = Regex::new(&format!("^(?:{})$", pod_names(&target(kind, name)))).unwrap();
            assert!(regex.is_match(own), "{regex} {own}");
            assert!(!regex.is_match(others), "{regex} {others}");
        }
        let long = "a".repeat(60);
        let names = pod_names(&target("Deployment", &long));
        assert!(Regex::new(&names).unwrap().is_match(&format!("{}-x2x4z", &long[..58])));
    }
}
