//! MetricRules: rules that teams write for their own namespaces.

use crate::{FOLLOWS, SOON, on_own_bed};
use bed::workload::Namespace;
use bed::{Options, eventually, root};
use serde_json::{Value, json};

const SUM: &str = "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)";

/// Applies a MetricRule.
async fn apply(ns: &Namespace<'_>, name: &str, spec: Value) {
    let rule = json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "MetricRule",
        "metadata": {"name": name, "namespace": ns.name}, "spec": spec});
    ns.cluster.apply(&rule.to_string()).await;
}

/// Waits until a rule stands like this; returns the message of its condition.
async fn stands(ns: &Namespace<'_>, name: &str, reason: &str, metrics: &[&str]) -> String {
    eventually(&format!("{name} is {reason}"), FOLLOWS, async || {
        let object = ns.get("metricrule", name).await?;
        let (status, ready) = (&object["status"], &object["status"]["conditions"][0]);
        let served = status["metrics"].as_array().cloned().unwrap_or_default();
        let current = status["observedGeneration"] == object["metadata"]["generation"];
        if current && ready["reason"] == reason && served == metrics {
            assert_eq!(status["metricCount"], metrics.len());
            assert_eq!(ready["status"] == "True", reason == "Served", "{status}");
            return Ok(ready["message"].as_str().unwrap_or_default().to_owned());
        }
        Err(status.to_string())
    })
    .await
}

/// Waits until a metric of the pods has this value in each of so many.
async fn value(ns: &Namespace<'_>, path: &str, items: usize, expected: &str) {
    eventually(&format!("{path} is {expected}"), FOLLOWS, async || {
        let list = ns.raw("v1beta2", path).await?;
        let found = list["items"].as_array().cloned().unwrap_or_default();
        let all = found.iter().all(|item| item["value"] == expected);
        if found.len() == items && all { Ok(()) } else { Err(list.to_string()) }
    })
    .await;
}

async fn not_found(ns: &Namespace<'_>, path: &str) {
    eventually(&format!("{path} is not served in {}", ns.name), SOON, async || {
        match ns.raw("v1beta2", path).await {
            Err(error) if error.contains("NotFound") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// The administrator serves one metric himself.
const RULES: &str = "rules:\n- seriesQuery: 'queue_depth{pod!=\"\"}'\n\
    \x20 resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}\n\
    \x20 name: {as: administrators}\n\
    \x20 metricsQuery: 'sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>) * 100'\n";

#[test]
fn a_team_moves_a_rule_into_its_own_namespace_and_no_further() {
    on_own_bed(Options { config: RULES, ..Options::default() }, async |bed| {
        let ours = Namespace::new(&bed.cluster, "team").await;
        let others = Namespace::new(&bed.cluster, "others").await;
        // Their pods have the same names.
        let series = "queue_depth 7\nsecret 3\nhttp_requests_total 30";
        ours.workload("StatefulSet", "web", 2, series).await;
        others.workload("StatefulSet", "web", 2, "queue_depth 900\nsecret 1000").await;

        let length = |query: &str| {
            json!({"seriesQuery": "queue_depth{pod!=\"\"}", "metricsQuery": query,
                "name": {"matches": "^(.*)_depth$", "as": "${1}_length"}})
        };
        apply(&ours, "depth", length(SUM)).await;
        stands(&ours, "depth", "Served", &["pods/queue_length"]).await;
        value(&ours, "pods/*/queue_length", 2, "7").await;
        value(&ours, "pods/*/queue_length?labelSelector=app%3Dweb", 2, "7").await;
        value(&ours, "pods/web-1/queue_length", 1, "7").await;
        for path in ["pods/*/queue_length", "pods/web-0/queue_length"] {
            not_found(&others, path).await;
        }
        let listed = bed.cluster.raw("/apis/custom.metrics.k8s.io/v1beta2").await.expect("a list");
        assert!(listed.contains("administrators") && !listed.contains("queue_length"), "{listed}");

        // The label of the namespace is the administrator's, and every selector has it.
        let hostile = "max by (pod) (secret) or max by (pod) (secret{namespace=\"others\"})";
        let overrides = json!({"job": {"resource": "namespace"}, "pod": {"resource": "pod"}});
        apply(
            &ours,
            "spy",
            json!({"seriesQuery": "secret", "metricsQuery": hostile,
            "resources": {"overrides": overrides}}),
        )
        .await;
        stands(&ours, "spy", "Served", &["pods/secret"]).await;
        value(&ours, "pods/*/secret?metricLabelSelector=namespace%3Dothers", 2, "3").await;
        apply(
            &ours,
            "lister",
            json!({"seriesQuery": "secret{namespace=\"others\"}",
            "name": {"as": "listed"}, "metricsQuery": SUM}),
        )
        .await;
        let message = stands(&ours, "lister", "NoSeries", &[]).await;
        assert!(message.contains("namespace=\"team\""), "{message}");

        // What the administrator serves is the administrator's.
        apply(
            &ours,
            "taken",
            json!({"seriesQuery": "queue_depth", "metricsQuery": SUM,
            "name": {"as": "administrators"}}),
        )
        .await;
        let message = stands(&ours, "taken", "Conflict", &[]).await;
        assert!(
            message.contains("pods/administrators") && message.contains("administrator serves it"),
            "{message}"
        );
        value(&ours, "pods/*/administrators", 2, "700").await;
        apply(
            &ours,
            "younger",
            json!({"seriesQuery": "{__name__=~\"queue_depth|secret\",pod!=\"\"}",
            "metricsQuery": SUM}),
        )
        .await;
        let message = stands(&ours, "younger", "Conflict", &["pods/queue_depth"]).await;
        assert!(message.contains("pods/secret") && message.contains("MetricRule spy"), "{message}");

        // Autoscalers and HPAs scale on it.
        ours.deployment("app", 1, "queue_depth 7").await;
        ours.deployment("native", 1, "queue_depth 7").await;
        let metrics = json!([{"type": "Pods", "pods": {"metric": {"name": "queue_length"},
            "target": {"type": "AverageValue", "averageValue": "5"}}}]);
        let scaler = |api: &str, kind: &str, name: &str| {
            json!({"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": "team"},
                "spec": {"maxReplicas": 3, "metrics": metrics, "scaleTargetRef":
                    {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}}})
        };
        ours.cluster.apply(&scaler("plimsoll.dev/v1alpha1", "Autoscaler", "app").to_string()).await;
        let native = scaler("autoscaling/v2", "HorizontalPodAutoscaler", "native");
        ours.cluster.apply(&native.to_string()).await;
        for name in ["app", "native"] {
            ours.wait_replicas("Deployment", name, FOLLOWS, |replicas| replicas == 3).await;
        }

        // An edit is live, one that is invalid serves nothing, and a deletion ends it.
        apply(&ours, "depth", length(&format!("{SUM} * 2"))).await;
        value(&ours, "pods/web-0/queue_length", 1, "14").await;
        apply(&ours, "depth", length("sum(")).await;
        let message = stands(&ours, "depth", "Invalid", &[]).await;
        assert!(message.starts_with("spec.metricsQuery: "), "{message}");
        not_found(&ours, "pods/web-0/queue_length").await;
        apply(&ours, "depth", length(SUM)).await;
        value(&ours, "pods/web-0/queue_length", 1, "7").await;
        bed.cluster.kubectl(&["-n", "team", "delete", "metricrule", "depth"]).await;
        not_found(&ours, "pods/web-0/queue_length").await;

        // The example of the documents.
        let example = root().join("docs/examples/metric-rule.yaml").display().to_string();
        bed.cluster.kubectl(&["-n", "team", "apply", "-f", &example]).await;
        stands(&ours, "http-requests", "Served", &["pods/http_requests_per_second"]).await;
        eventually("the example gives a value", SOON, async || {
            let list = ours.raw("v1beta2", "pods/web-0/http_requests_per_second").await?;
            if list["items"][0]["value"].is_string() { Ok(()) } else { Err(list.to_string()) }
        })
        .await;
    });
}

#[test]
fn the_teams_of_a_namespace_may_write_rules_and_the_schema_says_what_is_wrong() {
    crate::on_shared_bed("rules-rights", async |bed, ns| {
        let role = ["create", "rolebinding", "ann", "--clusterrole=edit", "--user=ann"];
        bed.cluster.kubectl(&[&["-n", ns.name.as_str()][..], &role].concat()).await;
        let may = async |namespace: &str, verb: &str, subresource: &str| {
            let rules = "metricrules.plimsoll.dev";
            let ask = ["-n", namespace, "auth", "can-i", verb, rules, subresource, "--as=ann"];
            bed.cluster.try_kubectl(&ask).await.is_ok_and(|answer| answer.trim() == "yes")
        };
        eventually("the roles are aggregated", SOON, async || {
            match may(&ns.name, "create", "--subresource=").await {
                true => Ok(()),
                false => Err("ann may not".to_owned()),
            }
        })
        .await;
        assert!(!may("default", "create", "--subresource=").await);
        assert!(!may(&ns.name, "patch", "--subresource=status").await);
        for (spec, expected) in [
            (json!({"seriesQuery": "x"}), "metricsQuery"),
            (json!({"seriesQuery": "", "metricsQuery": "x"}), "seriesQuery"),
            (json!({"seriesQuery": "x", "metricsQuery": "y".repeat(5_000)}), "metricsQuery"),
            (
                json!({"seriesQuery": "x", "metricsQuery": "x", "seriesFilters": [{"is": "a", "isNot": "b"}]}),
                "one of is and isNot",
            ),
            (
                json!({"seriesQuery": "x", "metricsQuery": "x",
                    "resources": {"overrides": {"l".repeat(254): {"resource": "pod"}}}}),
                "labels in overrides may have at most 253",
            ),
        ] {
            let rule = json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "MetricRule",
                "metadata": {"name": "wrong", "namespace": ns.name}, "spec": spec});
            let admin = &bed.cluster.kubeconfig;
            let apply = ["apply", "-f", "-"];
            let refused = bed.cluster.kubectl_as(admin, &apply, &rule.to_string()).await;
            assert!(refused.as_ref().is_err_and(|error| error.contains(expected)), "{refused:?}");
        }
    });
}
