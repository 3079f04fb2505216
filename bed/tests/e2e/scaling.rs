//! The control loop, for Autoscalers and HPAs.

use crate::{FOLLOWS, SOON, managing_native_hpas, on_own_bed, on_shared_bed};
use bed::workload::Namespace;
use bed::{Options, eventually};
use plimsoll::promql::name::generated_name;
use std::time::{Duration, Instant};

/// Replicas follow a rising load, stay at the target, and follow a falling load.
async fn follows_its_load(ns: &Namespace<'_>, kind: &str) {
    ns.workload(kind, "web", 1, "").await;
    let metric = "{metricName: http_requests_total, averageValue: 10}";
    ns.autoscaler_of(kind, "web", metric, 8).await;
    let load =
        async |qps| ns.cluster.load(&ns.name, "app=web", "/hit/http_requests_total", qps).await;
    load(57.5).await;
    ns.wait_replicas(kind, "web", FOLLOWS, |replicas| replicas == 6).await;
    ns.wait_ready(kind, "web", 6).await;
    // It settles with the load per pod near the target. On a busy machine the generator catches up
    // in bursts: extra replicas come, and go after the stabilization window.
    let targets = "jsonpath={.status.targets}";
    eventually("6 replicas with 57.5 / 6 requests a second each", FOLLOWS, async || {
        let shown =
            ns.cluster.kubectl(&["-n", &ns.name, "get", "autoscaler", "web", "-o", targets]).await;
        let now: plimsoll::k8s::Quantity =
            shown.split('/').next().unwrap_or_default().parse().map_err(|e| format!("{e}"))?;
        match ns.replicas(kind, "web").await {
            6 if (8_600..=10_600).contains(&now.milli()) => Ok(()),
            replicas => Err(format!("{replicas} replicas, {shown}")),
        }
    })
    .await;
    load(0.0).await;
    ns.wait_replicas(kind, "web", FOLLOWS, |replicas| replicas == 1).await;
    let events = ns.cluster.kubectl(&["-n", &ns.name, "get", "events"]).await;
    assert!(events.contains("SuccessfulRescale") && events.contains("autoscaler/web"), "{events}");
    let table = ns.cluster.kubectl(&["-n", &ns.name, "get", "autoscalers"]).await;
    let columns: Vec<_> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(
        columns,
        ["NAME", "REFERENCE", "TARGETS", "MINPODS", "MAXPODS", "REPLICAS", "READY", "AGE"]
    );
    ns.wait_condition("web", "Ready", SOON, |c| c["status"] == "True").await;
    assert!(table.contains(&format!("{kind}/web")), "{table}");
}

#[test]
fn a_deployment_follows_its_load_up_and_down() {
    on_shared_bed("scale-deployment", async |_, ns| follows_its_load(ns, "Deployment").await);
}

#[test]
fn a_statefulset_follows_its_load_up_and_down() {
    on_shared_bed("scale-statefulset", async |_, ns| follows_its_load(ns, "StatefulSet").await);
}

#[test]
fn a_replicaset_and_a_custom_resource_are_scaled_too() {
    on_shared_bed("scale-kinds", async |bed, ns| {
        ns.workload("ReplicaSet", "set", 1, "queue_depth 30").await;
        let metric = "{metricName: queue_depth, averageValue: 10}";
        ns.autoscaler_of("ReplicaSet", "set", metric, 3).await;
        // A custom resource with a scale subresource; a Deployment creates its pods.
        bed.cluster
            .apply(
                "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: crews.example.com}\n\
                 spec:\n  group: example.com\n  scope: Namespaced\n  names: {plural: crews, singular: crew, kind: Crew}\n\
                 \x20 versions:\n  - name: v1\n    served: true\n    storage: true\n\
                 \x20   schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {spec: {type: object, properties: {replicas: {type: integer}}}, status: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {replicas: {type: integer}, selector: {type: string}}}}}}\n\
                 \x20   subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}}\n",
            )
            .await;
        ns.deployment("crew", 1, "queue_depth 20").await;
        let crew = format!(
            "apiVersion: example.com/v1\nkind: Crew\nmetadata: {{name: crew, namespace: {}}}\nspec: {{replicas: 1}}\n",
            ns.name
        );
        eventually("the kind is known", SOON, async || {
            let admin = &bed.cluster.kubeconfig;
            bed.cluster.kubectl_as(admin, &["apply", "-f", "-"], &crew).await
        })
        .await;
        let status = r#"{"status":{"replicas":1,"selector":"app=crew"}}"#;
        let patch = [
            "-n",
            &ns.name,
            "patch",
            "crew",
            "crew",
            "--subresource=status",
            "--type=merge",
            "-p",
            status,
        ];
        bed.cluster.kubectl(&patch).await;
        bed.cluster
            .apply(&format!(
                "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\nmetadata: {{name: crew, namespace: {}}}\n\
                 spec: {{scaleTargetRef: {{apiVersion: example.com/v1, kind: Crew, name: crew}}, maxReplicas: 5, syncPeriodSeconds: 1, customMetrics: [{metric}]}}\n",
                ns.name
            ))
            .await;
        ns.wait_replicas("Crew", "crew", SOON, |replicas| replicas == 2).await;
        ns.wait_replicas("ReplicaSet", "set", SOON, |replicas| replicas == 3).await;
    });
}

#[test]
fn an_hpa_scales_on_our_api_and_is_observed() {
    on_shared_bed("scale-native", async |bed, ns| {
        ns.deployment("web", 1, "").await;
        let metric = ns.hpa("web", "http_requests_total", "10", 5).await;
        bed.cluster.load(&ns.name, "app=web", "/hit/http_requests_total", 36.0).await;
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 4).await;
        // Plimsoll reports its decision beside the actual one, and writes nothing.
        eventually("both want 4", SOON, async || {
            let metrics = bed.plimsoll.metrics(&bed.cluster).await;
            let wanted = |by: &str| {
                let series = format!(
                    "plimsoll_native_hpa_desired_replicas{{namespace=\"scale-native\",name=\"web\",by=\"{by}\"}} 4"
                );
                metrics.lines().any(|line| line == series)
            };
            let both = wanted("plimsoll") && wanted("kube-controller-manager");
            if both { Ok(()) } else { Err(metrics.clone()) }
        })
        .await;
        for kind in ["hpa", "deployment"] {
            let written =
                ["-n", &ns.name, "get", kind, "web", "-o", "yaml", "--show-managed-fields"];
            let written = bed.cluster.kubectl(&written).await;
            assert!(!written.contains("manager: plimsoll"), "{written}");
        }
        bed.cluster.load(&ns.name, "app=web", "/hit/http_requests_total", 0.0).await;
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 1).await;
        eventually("its steps are compared", SOON, async || {
            let metrics = bed.plimsoll.metrics(&bed.cluster).await;
            let has = |series: &str| {
                let line = metrics.lines().find_map(|line| line.strip_prefix(series));
                line.and_then(|count| count.trim().parse::<f64>().ok()).is_some_and(|n| n > 0.0)
            };
            let compared = has("plimsoll_native_hpa_comparisons_total{outcome=\"agreed\"}");
            let counted = has("plimsoll_native_hpas{observed=\"yes\"}");
            if compared && counted { Ok(()) } else { Err(metrics.clone()) }
        })
        .await;
        // The metric is deleted with the HPA.
        bed.cluster.kubectl(&["-n", &ns.name, "delete", "hpa", "web"]).await;
        eventually("the metric is gone", SOON, async || {
            match ns.raw("v1beta2", &format!("pods/*/{metric}")).await {
                Err(error) if error.contains("NotFound") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    });
}

#[test]
fn an_hpa_is_managed_if_the_built_in_controller_is_off() {
    on_own_bed(managing_native_hpas(), async |bed| {
        let ns = Namespace::new(&bed.cluster, "managed").await;
        ns.deployment("web", 1, "").await;
        ns.hpa("web", "http_requests_total", "10", 5).await;
        bed.cluster.load(&ns.name, "app=web", "/hit/http_requests_total", 36.0).await;
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 4).await;
        eventually("the HPA's status is written", SOON, async || {
            let status = ns.get("hpa", "web").await?["status"].clone();
            let shown = status["desiredReplicas"] == 4 && status["currentReplicas"] == 4;
            if shown { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
        let events = bed.cluster.kubectl(&["-n", "managed", "get", "events"]).await;
        assert!(events.contains("horizontalpodautoscaler/web"), "{events}");
        bed.cluster.load(&ns.name, "app=web", "/hit/http_requests_total", 0.0).await;
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 1).await;
    });
}

#[test]
fn an_autoscaler_may_delegate_to_an_hpa() {
    on_shared_bed("scale-executor", async |bed, ns| {
        ns.deployment("web", 1, "queue_depth 30").await;
        ns.autoscaler("web", "queue_depth", "10", 3).await;
        let executor = |name: &str| {
            format!(
                r#"{{"spec":{{"executor":"{name}","syncPeriodSeconds":null,"mode":"Active"}}}}"#
            )
        };
        let patch = async |body: String| {
            let change =
                ["-n", &ns.name, "patch", "autoscaler", "web", "--type=merge", "-p", &body];
            bed.cluster.kubectl(&change).await;
        };
        // A pause applies to both executors.
        patch(r#"{"spec":{"mode":"Paused"}}"#.to_owned()).await;
        ns.wait_condition("web", "Paused", SOON, |c| c["status"] == "True").await;
        bed.cluster.kubectl(&["-n", &ns.name, "scale", "deployment/web", "--replicas=1"]).await;
        patch(executor("NativeHPA").replace("Active", "Paused")).await;
        let hpa = eventually("the HPA is written", SOON, async || ns.get("hpa", "web").await).await;
        assert_eq!(hpa["metadata"]["ownerReferences"][0]["kind"], "Autoscaler");
        for direction in ["scaleUp", "scaleDown"] {
            assert_eq!(hpa["spec"]["behavior"][direction]["selectPolicy"], "Disabled", "{hpa}");
        }
        // Until then the condition is that of the embedded loop.
        ns.wait_condition("web", "Paused", SOON, |c| {
            c["message"].to_string().contains("selectPolicy Disabled in both directions")
        })
        .await;
        eventually("kube-controller-manager has decided to do nothing", SOON, async || {
            let status = ns.get("hpa", "web").await?["status"].clone();
            if status.to_string().contains("ScalingLimited") {
                Ok(())
            } else {
                Err(status.to_string())
            }
        })
        .await;
        assert_eq!(ns.replicas("Deployment", "web").await, 1);
        patch(executor("NativeHPA")).await;
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 3).await;
        // The conditions of the HPA are shown on the Autoscaler.
        ns.wait_condition("web", "ScalingActive", SOON, |c| c["status"] == "True").await;
        patch(executor("Embedded")).await;
        eventually("the HPA is gone", SOON, async || match ns.get("hpa", "web").await {
            Err(error) if error.contains("NotFound") => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    });
}

#[test]
fn an_autoscaler_for_a_missing_target_says_so() {
    on_shared_bed("scale-missing", async |_, ns| {
        ns.autoscaler("nobody", "queue_depth", "10", 3).await;
        let message =
            ns.wait_condition("nobody", "AbleToScale", SOON, |c| c["status"] == "False").await;
        assert_eq!(
            message,
            "the HPA controller was unable to get the target's current scale: deployments.apps \"nobody\" not found"
        );
        ns.autoscaler_of("Gizmo", "nothing", "{metricName: m, averageValue: 1}", 3).await;
        let message =
            ns.wait_condition("nothing", "AbleToScale", SOON, |c| c["status"] == "False").await;
        assert!(message.contains("no matches for kind \"Gizmo\" in group \"apps\""), "{message}");
    });
}

#[test]
fn an_invalid_query_is_reported_by_line_and_column_and_others_continue() {
    on_shared_bed("scale-broken", async |_, ns| {
        ns.deployment("bad", 1, "queue_depth 20").await;
        ns.deployment("good", 1, "queue_depth 20").await;
        let query =
            "{metricName: broken, averageValue: 10, query: \"sum by (pod) (queue_depth{)\"}";
        ns.autoscaler_of("Deployment", "bad", query, 3).await;
        ns.autoscaler("good", "queue_depth", "10", 3).await;
        let message =
            ns.wait_condition("bad", "ScalingActive", SOON, |c| c["status"] == "False").await;
        assert!(message.contains("the query of broken can't be run"), "{message}");
        assert!(message.contains("1:27: parse error"), "{message}");
        ns.wait_replicas("Deployment", "good", FOLLOWS, |replicas| replicas == 3).await;
        assert_eq!(ns.replicas("Deployment", "bad").await, 1);
    });
}

#[test]
fn a_users_query_sees_its_own_namespace_only() {
    on_shared_bed("scale-guarded", async |bed, ns| {
        let secret = Namespace::new(&bed.cluster, "scale-secret").await;
        secret.workload("StatefulSet", "web", 1, "revenue 5000").await;
        ns.workload("StatefulSet", "web", 1, "other 1").await;
        let query = r#"max by (pod) (revenue{namespace="scale-secret"} or revenue or {__name__="revenue"})"#;
        let metric = format!("{{metricName: spy, averageValue: 10, query: '{query}'}}");
        ns.autoscaler_of("StatefulSet", "web", &metric, 9).await;
        let message =
            ns.wait_condition("web", "ScalingActive", SOON, |c| c["status"] == "False").await;
        assert!(message.contains("no metrics returned"), "{message}");
        let name = generated_name("spy", None, &ns.name, "web");
        let list = ns.raw("v1beta2", &format!("pods/*/{name}")).await.unwrap();
        assert_eq!(list["items"].as_array().map(Vec::len), Some(0));
    });
}

#[test]
fn noise_in_a_metric_causes_no_status_writes() {
    on_shared_bed("scale-noise", async |bed, ns| {
        ns.workload("StatefulSet", "web", 1, "queue_depth 10").await;
        let metric = "{metricName: queue_depth, averageValue: 10}";
        ns.autoscaler_of("StatefulSet", "web", metric, 3).await;
        ns.wait_condition("web", "ScalingActive", SOON, |c| c["status"] == "True").await;
        let targets = async || {
            let path = format!("/live/autoscalers/{}/web", ns.name);
            let text = bed.plimsoll.get_as_scraper(&bed.cluster, &path).await;
            let status: serde_json::Value = serde_json::from_str(&text).expect("a status");
            status["targets"].as_str().unwrap_or_default().to_owned()
        };
        let version = async || {
            let object = ns.get("autoscaler", "web").await.expect("the Autoscaler");
            object["metadata"]["resourceVersion"].clone()
        };
        let written = version().await;
        let noise = async |value: &str| {
            let metric = format!("bed.plimsoll.dev/metrics=queue_depth {value}");
            bed.cluster
                .kubectl(&["-n", &ns.name, "annotate", "--overwrite", "pod", "web-0", &metric])
                .await;
        };
        noise("10.4").await;
        eventually("the number is read live", SOON, async || match targets().await {
            now if now == "10400m/10" => Ok(()),
            other => Err(other),
        })
        .await;
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(3) {
            assert_eq!(version().await, written, "noise is not worth a write");
        }
        noise("30").await;
        ns.wait_replicas("StatefulSet", "web", SOON, |replicas| replicas == 3).await;
        eventually("the decision is written", SOON, async || {
            let object = ns.get("autoscaler", "web").await?;
            let desired = object["status"]["desiredReplicas"].clone();
            if desired == 3 { Ok(()) } else { Err(desired.to_string()) }
        })
        .await;
    });
}

#[test]
fn a_paused_autoscaler_does_not_scale() {
    on_shared_bed("scale-paused", async |bed, ns| {
        ns.deployment("web", 1, "queue_depth 30").await;
        ns.cluster
            .apply(&format!(
                "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\nmetadata: {{name: web, namespace: {}}}\n\
                 spec: {{scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: web}}, maxReplicas: 3, mode: Paused, syncPeriodSeconds: 1, customMetrics: [{{metricName: queue_depth, averageValue: 10}}]}}\n",
                ns.name
            ))
            .await;
        ns.wait_condition("web", "Paused", SOON, |c| c["status"] == "True").await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(ns.replicas("Deployment", "web").await, 1);
        let resume = [
            "-n",
            &ns.name,
            "patch",
            "autoscaler",
            "web",
            "--type=merge",
            "-p",
            r#"{"spec":{"mode":"Active"}}"#,
        ];
        bed.cluster.kubectl(&resume).await;
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 3).await;
    });
}

#[test]
fn the_schema_rejects_nonsensical_specs() {
    on_shared_bed("scale-schema", async |bed, ns| {
        let spec = |change: &str| {
            format!(
                "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\nmetadata: {{name: x, namespace: {}}}\n\
                 spec: {{scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: web}}, {change}}}\n",
                ns.name
            )
        };
        for (change, expected) in [
            ("maxReplicas: 1, minReplicas: 2", "maxReplicas must be at least minReplicas"),
            ("maxReplicas: 1, minReplicas: 0", "at least one Object or External metric"),
            ("maxReplicas: 0", "spec.maxReplicas"),
            ("maxReplicas: 1, syncPeriodSeconds: 0", "spec.syncPeriodSeconds"),
            (
                "maxReplicas: 1, customMetrics: [{metricName: m, averageValue: -1}]",
                "must be more than 0",
            ),
            ("maxReplicas: 1, customMetrics: [{metricName: m, averageValue: ten}]", "averageValue"),
            ("maxReplicas: 1, customMetrics: [{metricName: 'a/b', averageValue: 1}]", "metricName"),
            (
                "maxReplicas: 1, customMetrics: [{metricName: m, averageValue: 1, labels: {'': c}}]",
                "a label name must have 1 to 128 characters",
            ),
            ("maxReplicas: 1, executor: Nobody", "executor"),
            (
                "maxReplicas: 1, executor: NativeHPA, syncPeriodSeconds: 5",
                "syncPeriodSeconds require executor Embedded",
            ),
            (
                "maxReplicas: 1, executor: NativeHPA, fallback: {failureThreshold: 1, replicas: 1}",
                "syncPeriodSeconds require executor Embedded",
            ),
            ("maxReplicas: 1, executor: NativeHPA, mode: Preview", "mode Preview needs"),
            ("maxReplicas: 1, executor: NativeHPA, rollouts: Cap", "rollouts"),
            ("maxReplicas: 1, mode: Off", "spec.mode"),
            ("maxReplicas: 1, customMetrics: [{metricName: m}]", "either averageValue or value"),
            (
                "maxReplicas: 1, customMetrics: [{metricName: m, value: 1}]",
                "value needs per: Workload",
            ),
            (
                "maxReplicas: 1, customMetrics: [{metricName: m, averageValue: 1, activation: 1}]",
                "activation needs per: Workload",
            ),
            (
                "maxReplicas: 1, executor: NativeHPA, customMetrics: [{metricName: m, averageValue: 1, onEmpty: Zero}]",
                "onEmpty",
            ),
            (
                "maxReplicas: 1, executor: NativeHPA, resourceMetrics: [{resourceName: cpu, averageValue: 1, onError: Hold}]",
                "onError and fallback require executor Embedded",
            ),
            (
                "maxReplicas: 1, customMetrics: [{metricName: m, averageValue: 1, labels: {a: b, c: d}}, \
                 {metricName: m, averageValue: 2, labels: {c: d, a: b}}]",
                "two metrics have the same metricName and labels",
            ),
            ("maxReplicas: 1, resourceMetrics: [{resourceName: cpu}]", "averageUtilization"),
            (
                "maxReplicas: 1, resourceMetrics: [{resourceName: cpu, targetType: Utilization, averageValue: 1}]",
                "targetType",
            ),
            (
                "maxReplicas: 1, schedules: [{name: a, start: '0 8 * * *', minReplicas: 1}]",
                "start and end, or from and until are required",
            ),
            (
                "maxReplicas: 1, schedules: [{name: a, start: '0 8 * * *', end: '0 9 * * *'}]",
                "minReplicas, maxReplicas or both are required",
            ),
            (
                "maxReplicas: 1, schedules: [{name: a, start: '0 8 * * *', end: '0 9 * * *', minReplicas: 0}]",
                "at least one Object or External metric",
            ),
            (
                "maxReplicas: 1, schedules: [{name: A, start: '0 8 * * *', end: '0 9 * * *', minReplicas: 1}]",
                "schedules[0].name",
            ),
        ] {
            let admin = &bed.cluster.kubeconfig;
            let refused = bed.cluster.kubectl_as(admin, &["apply", "-f", "-"], &spec(change)).await;
            let error = refused.expect_err(change);
            assert!(error.contains(expected), "{change}: {error}");
        }
        bed.cluster
            .apply(&spec("maxReplicas: 1, customMetrics: [{metricName: m, averageValue: 500m}]"))
            .await;
        // What no rule of the schema can say is a condition.
        let february = "maxReplicas: 1, schedules: [{name: a, start: '0 0 30 2 *', end: '0 9 * * *', minReplicas: 1}]";
        bed.cluster.apply(&spec(february)).await;
        let message = ns.wait_condition("x", "Ready", SOON, |c| c["reason"] == "InvalidSpec").await;
        assert!(message.contains("spec.schedules[0].start: \"0 0 30 2 *\""), "{message}");
    });
}

#[test]
fn a_steady_evaluation_sends_no_request_to_the_api_server() {
    on_own_bed(Options::default(), async |bed| {
        let ns = Namespace::new(&bed.cluster, "steady").await;
        // At the target, and at the minimum.
        for (name, replicas, metric) in [("a", 2, "queue 10"), ("b", 1, "queue 0")] {
            ns.deployment(name, replicas, metric).await;
            ns.autoscaler(name, "queue", "10", 5).await;
            ns.wait_condition(name, "ScalingActive", SOON, |c| c["status"] == "True").await;
        }
        // The initial replicas count as a recommendation until the window ends.
        for name in ["a", "b"] {
            let settled = |c: &serde_json::Value| c["reason"] == "ReadyForNewScale";
            ns.wait_condition(name, "AbleToScale", SOON, settled).await;
        }
        bed.plimsoll.decided(&bed.cluster, 4).await;
        let requests = async || -> Vec<String> {
            let text = bed.cluster.kubectl(&["get", "--raw", "/metrics"]).await;
            let of = [
                "autoscalers",
                "configmaps",
                "deployments",
                "events",
                "horizontalpodautoscalers",
                "pods",
            ];
            let ours = |line: &&str| {
                let resource = of.iter().any(|of| line.contains(&format!("resource=\"{of}\"")));
                let resource = resource || line.contains("metrics.k8s.io\",resource=\"");
                line.starts_with("apiserver_request_total") && resource && !line.contains("WATCH")
            };
            text.lines().filter(ours).map(str::to_owned).collect()
        };
        let before = requests().await;
        bed.plimsoll.decided(&bed.cluster, 10).await;
        assert_eq!(requests().await, before);
    });
}
