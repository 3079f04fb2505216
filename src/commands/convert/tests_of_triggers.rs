//! Triggers that KEDA reads otherwise than their text alone says.

use super::tests::{converted, scaled};
use super::*;
use crate::commands::check_files;

/// The ScaledObject of a Prometheus trigger of this query, and with this metadata.
fn of_query(query: &str, metadata: &str) -> Converted {
    let query = query.replace("NS", "{namespace=\"shop\"}");
    converted(&format!(
        "{{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, metadata: {{name: web, namespace: shop}}, spec: \
         {{scaleTargetRef: {{name: web}}, triggers: [{{type: prometheus, metadata: {{query: '{query}', threshold: '5', \
         {metadata}}}}}]}}}}"
    ))
}

/// Without traffic the mean of a latency is NaN, which KEDA reads as 0: a workload goes to zero by it.
#[test]
fn nan_and_infinities_count_as_nothing_where_keda_ignores_them() {
    const MEAN: &str = "sum(rate(a_sumNS[2m])) / sum(rate(a_countNS[2m]))";
    for (query, expected) in [
        (MEAN, Some("(sum(rate(a_sumNS[2m])) / sum(rate(a_countNS[2m]))) < Inf > -Inf")),
        (
            "histogram_quantile(0.9, sum by (le) (rate(a_bucketNS[2m])))",
            Some("histogram_quantile(0.9, sum by (le) (rate(a_bucketNS[2m]))) < Inf > -Inf"),
        ),
        ("avg(rate(a_totalNS[2m]))", Some("avg(rate(a_totalNS[2m])) < Inf > -Inf")),
        ("sum(queueNS)", Some("sum(queueNS) < Inf > -Inf")),
        ("sum(job:latency:p99NS)", Some("sum(job:latency:p99NS) < Inf > -Inf")),
        ("vector(scalar(a_totalNS))", Some("vector(scalar(a_totalNS)) < Inf > -Inf")),
        ("ln(sum(a_totalNS)) or vector(0)", Some("(ln(sum(a_totalNS)) or vector(0)) < Inf > -Inf")),
        ("sum(queueNS) # all", Some("(sum(queueNS) # all\n) < Inf > -Inf")),
        ("sum(a_totalNS) / 0", Some("(sum(a_totalNS) / 0) < Inf > -Inf")),
        ("sum(rate(a_totalNS[2m]))", None),
        ("sum by (app) (increase(a_totalNS[2m])) / 60", None),
        ("sum(rate(a_totalNS[2m])) - 30 or vector(0)", None),
        ("max(a_totalNS) > 7", None),
        ("count(queueNS) + count(jobs_bucketNS)", None),
        ("sum(queueNS > bool 3) * 2", None),
        ("vector(100)", None),
    ] {
        let text = |query: &str| json!(query.replace("NS", "{namespace=\"shop\"}"));
        let made = of_query(query, "");
        let metric = &made.objects[0]["spec"]["customMetrics"][0];
        let query_then = text(expected.unwrap_or(query));
        assert_eq!((&metric["query"], &metric["onEmpty"]), (&query_then, &json!("Zero")));
        let is_noted = made.notes.iter().any(|note| note.contains("leaves NaN and infinities out"));
        assert_eq!(is_noted, expected.is_some(), "{query}: {:?}", made.notes);
        let strict = of_query(query, "ignoreNullValues: 'false'");
        assert_eq!(strict.objects[0]["spec"]["customMetrics"][0]["query"], text(query));
        if expected.is_some() {
            let checked = check_files::tests::checked(&yaml(&made.objects[0])).texts;
            assert!(checked.errors.is_empty() && checked.warnings.is_empty(), "{checked:?}");
        }
    }
}

/// The second metric of an idle workload is of the same values.
#[test]
fn an_idle_workload_has_no_bound_by_nan() {
    let (spec, _) = scaled(
        "  idleReplicaCount: 0\n  minReplicaCount: 3\n  triggers: [{type: prometheus, metadata: {threshold: '5', \
         query: 'avg(x{namespace=\"shop\"})'}}]\n",
    );
    assert_eq!(
        spec["customMetrics"][1]["query"],
        "((avg(x{namespace=\"shop\"}) < Inf > -Inf\n) > bool 0) * 3"
    );
}
