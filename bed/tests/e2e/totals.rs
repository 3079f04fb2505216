//! Metrics of a whole workload: `per: Workload`.

use crate::{FOLLOWS, SOON, on_own_bed, on_shared_bed};
use bed::workload::Namespace;
use bed::{Options, eventually, root};
use plimsoll::prometheus::{Client, Options as To, read_query_response};
use plimsoll::promql::formula::{to_promql, trigger_value};
use plimsoll::promql::name::generated_name;
use serde_json::Value;

/// An Autoscaler of the Deployment `web` with these fields of its spec, in YAML.
async fn autoscaler(ns: &Namespace<'_>, fields: &str) {
    let manifest = format!(
        "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\n\
         metadata: {{name: web, namespace: {}}}\n\
         spec:\n  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: web}}\n\
         \x20 behavior: {{scaleDown: {{stabilizationWindowSeconds: 3}}}}\n{fields}",
        ns.name
    );
    ns.cluster.apply(&manifest).await;
}

#[test]
fn a_workload_follows_the_length_of_a_queue_that_another_exports() {
    on_shared_bed("totals-queue", async |_, ns| {
        ns.workload("StatefulSet", "source", 1, "queue_depth 35").await;
        ns.deployment("web", 1, "").await;
        autoscaler(
            ns,
            "  minReplicas: 1\n  maxReplicas: 9\n  syncPeriodSeconds: 1\n\
             \x20 customMetrics: [{metricName: backlog, per: Workload, averageValue: 10, query: 'sum(queue_depth)'}]\n",
        )
        .await;
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 4).await;
        eventually("its targets are those of an External metric", SOON, async || {
            let object = ns.get("autoscaler", "web").await?;
            match object["status"]["targets"].as_str() {
                Some("8750m/10 (avg)") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    });
}

#[test]
fn a_total_has_one_series_and_a_query_with_more_is_refused_with_the_reason() {
    on_shared_bed("totals-many", async |_, ns| {
        ns.workload("StatefulSet", "source", 2, "queue_depth 35").await;
        ns.deployment("web", 1, "").await;
        autoscaler(
            ns,
            "  maxReplicas: 9\n  syncPeriodSeconds: 1\n\
             \x20 customMetrics: [{metricName: backlog, per: Workload, averageValue: 100, query: queue_depth}]\n",
        )
        .await;
        let failed = |c: &Value| c["message"].to_string().contains("the query gives 2 series");
        ns.wait_condition("web", "ScalingActive", FOLLOWS, failed).await;
        assert_eq!(ns.replicas("Deployment", "web").await, 1);
    });
}

#[test]
fn a_workload_waits_at_zero_until_its_total_is_above_the_activation() {
    on_shared_bed("totals-zero", async |_, ns| {
        ns.workload("StatefulSet", "source", 1, "queue_depth 35").await;
        ns.deployment("web", 1, "").await;
        autoscaler(
            ns,
            "  minReplicas: 0\n  maxReplicas: 9\n  syncPeriodSeconds: 1\n\
             \x20 customMetrics: [{metricName: backlog, per: Workload, averageValue: 10, activation: 20, query: 'sum(queue_depth)'}]\n",
        )
        .await;
        let depth = async |value: u32| {
            let metric = format!("bed.plimsoll.dev/metrics=queue_depth {value}");
            ns.cluster
                .kubectl(&["-n", &ns.name, "annotate", "--overwrite", "pod", "source-0", &metric])
                .await;
        };
        let replicas = async |wanted: fn(i64) -> bool| {
            ns.wait_replicas("Deployment", "web", FOLLOWS, wanted).await;
        };
        replicas(|replicas| replicas == 4).await;
        // Below the activation it is zero that is wanted, though the average asks for two.
        depth(20).await;
        replicas(|replicas| replicas == 0).await;
        depth(21).await;
        replicas(|replicas| replicas == 3).await;
    });
}

#[test]
fn a_native_hpa_reads_a_total_by_its_generated_name() {
    let options = Options { manifests: "deploy/overlays/all-metrics", ..Options::default() };
    on_own_bed(options, async |bed| {
        let rights = root().join("deploy/components/native-hpa-executor/rbac.yaml");
        bed.cluster.apply(&std::fs::read_to_string(rights).expect("a manifest")).await;
        let ns = Namespace::new(&bed.cluster, "totals-native").await;
        ns.workload("StatefulSet", "source", 1, "queue_depth 35").await;
        ns.deployment("web", 1, "").await;
        autoscaler(
            &ns,
            "  minReplicas: 1\n  maxReplicas: 9\n  executor: NativeHPA\n\
             \x20 customMetrics: [{metricName: queue_depth, per: Workload, averageValue: 10}]\n",
        )
        .await;
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 4).await;
        let name = generated_name("queue_depth", None, &ns.name, "web");
        let path = |namespace: &str| {
            format!("/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{name}")
        };
        let list: Value =
            serde_json::from_str(&bed.cluster.raw(&path(&ns.name)).await.expect("a list"))
                .expect("JSON");
        assert_eq!(list["items"][0]["value"], "35");
        // Nowhere but in its own namespace.
        let elsewhere = bed.cluster.raw(&path("default")).await.expect_err("no such metric");
        assert!(elsewhere.contains("NotFound"), "{elsewhere}");
    });
}

/// Each value is what expr-lang, the language of KEDA's formulas, makes of these.
#[test]
fn the_query_of_a_formula_has_the_value_of_the_formula() {
    on_shared_bed("totals-formulas", async |bed, _| {
        let url = format!("http://127.0.0.1:{}", bed.cluster.prometheus_port);
        let prometheus = Client::new(To::new(&url)).expect("a client");
        let operands = [
            ("a", trigger_value("vector(3)", false)),
            ("b", "vector(-2.5)".to_owned()),
            ("below", trigger_value("vector(-2.5)", true)),
            ("none", trigger_value("vector(1) > 2", false)),
            ("zero", trigger_value("vector(1) > 2", true)),
            ("infinite", trigger_value("vector(1) / 0", false)),
            ("lowest", trigger_value("vector(-1) / 0", false)),
        ];
        let operands = operands.map(|(name, query)| (name.to_owned(), query)).into();
        for (formula, expected) in [
            ("(a + b) / 2", Some(0.25)),
            ("a - -b", Some(0.5)),
            ("-a ** 2", Some(-9.0)),
            ("abs(b) ** 2", Some(6.25)),
            ("int(b)", Some(-2.0)),
            ("round(b)", Some(-3.0)),
            ("ceil(b) + floor(b)", Some(-5.0)),
            ("int(a) % 2", Some(1.0)),
            ("max([a, b, 1])", Some(3.0)),
            ("min(a, b)", Some(-2.5)),
            ("median([a, b, 1])", Some(1.0)),
            ("mean([a, b])", Some(0.25)),
            ("sum([a, b, zero])", Some(0.5)),
            ("count([a, b], # > 0)", Some(1.0)),
            ("a > 2 ? 7 : 1", Some(7.0)),
            ("b > 0 ? 7 : 1", Some(1.0)),
            ("a > 1 && b > 1 ? 9 : 4", Some(4.0)),
            ("a > 1 or b > 1 ? 9 : 4", Some(9.0)),
            ("1 < a < 5 ? a : 0", Some(3.0)),
            ("zero + 1", Some(1.0)),
            ("none ?? 5", Some(5.0)),
            ("infinite ?? 2", Some(2.0)),
            ("lowest ?? 2", Some(2.0)),
            ("below + 1", Some(1.0)),
            ("a > 2 ? 7 : none", None),
            ("a + none", None),
        ] {
            let query = to_promql(formula, &operands).expect("a query");
            let body = prometheus.query(&query, &[]).await.expect("an answer");
            let mut values = Vec::new();
            body.read(|body| read_query_response(body, |series| values.extend(series.value.ok())))
                .expect("a vector");
            assert_eq!(values, Vec::from_iter(expected), "{formula}: {query}");
        }
    });
}
