//! Warnings of what is around an Autoscaler: live, and by `plimsoll check`.

use crate::{FOLLOWS, SOON, on_shared_bed};
use bed::Bed;
use bed::eventually;
use bed::plimsoll::binary;
use bed::workload::Namespace;
use serde_json::{Value, json};
use std::path::Path;

/// Applies a part of a Deployment as another field manager does.
async fn apply_as(ns: &Namespace<'_>, manager: &str, name: &str, spec: Value) {
    let path = ns.path("deployment").expect("a path");
    let path = format!("{path}/{name}?fieldManager={manager}&force=true");
    let object = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": ns.name}, "spec": spec});
    let kind = "application/apply-patch+yaml";
    let applied = ns.cluster.request("PATCH", &path, kind, object.to_string()).await;
    applied.expect("it is applied");
}

#[test]
fn the_manager_that_sets_the_replicas_back_is_named() {
    on_shared_bed("warnings-replicas", async |bed, ns| {
        ns.deployment("web", 1, "queue_depth 30").await;
        ns.autoscaler("web", "queue_depth", "10", 3).await;
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 3).await;
        let warned = |object: &Value| object["status"]["conditions"].to_string();
        let object = ns.get("autoscaler", "web").await.expect("it is there");
        assert!(!warned(&object).contains("ConfigurationWarning"), "{object}");
        // Its own writes have its name.
        let deployment = ns.get("deployment", "web").await.expect("it is there");
        let fields = deployment["metadata"]["managedFields"].to_string();
        assert!(fields.contains(r#""manager":"plimsoll""#), "{fields}");

        apply_as(ns, "argocd-controller", "web", json!({"replicas": 2})).await;
        let is_true = |c: &Value| c["status"] == "True" && c["reason"] == "ReplicasWrittenByOthers";
        let message = ns.wait_condition("web", "ConfigurationWarning", SOON, is_true).await;
        let start = "field manager \"argocd-controller\" (Apply, ";
        let then = " changed spec.replicas from 3 to 2: ";
        assert!(message.starts_with(start) && message.contains(then), "{message}");
        assert!(message.contains("ignoreDifferences"), "{message}");
        let counted = "plimsoll_foreign_replica_writes_total";
        assert!(bed.plimsoll.metric(&bed.cluster, counted, "").await >= 1.0);
        // No decision is another for it.
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 3).await;
        ns.wait_condition("web", "Ready", SOON, |c| c["status"] == "True").await;
        eventually("there is an event", SOON, async || {
            let events = ["-n", &ns.name, "get", "events", "-o", "json"];
            let events = bed.cluster.try_kubectl(&events).await?;
            let is_there = events.contains("ReplicasWrittenByOthers");
            if is_there { Ok(()) } else { Err(events) }
        })
        .await;
    });
}

/// Runs `plimsoll check -f` on this Autoscaler in the namespace.
fn check(
    bed: &Bed,
    ns: &Namespace<'_>,
    kubeconfig: &Path,
    target: &str,
    fields: &str,
) -> (Option<i32>, Value) {
    let file = bed.cluster.folder.join(format!("{}-{target}.yaml", ns.name));
    let manifest = format!(
        "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\n\
         metadata: {{name: {target}, namespace: {}}}\n\
         spec: {{scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {target}}}, maxReplicas: 3, {fields}}}\n",
        ns.name
    );
    std::fs::write(&file, manifest).expect("a file");
    let output = std::process::Command::new(binary())
        .args(["check", "-o", "json", "--cluster", "-f", &file.display().to_string()])
        .args(["--kubeconfig", &kubeconfig.display().to_string()])
        .args(["--prometheus-url", &format!("http://127.0.0.1:{}", bed.cluster.prometheus_port)])
        .output()
        .expect("it can be run");
    let text = String::from_utf8(output.stdout).expect("text");
    (output.status.code(), serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}")))
}

fn texts(report: &Value, field: &str) -> Vec<String> {
    serde_json::from_value(report[field].clone()).expect("texts")
}

/// A workload of one pod, without `spec.replicas`.
fn deployment(ns: &Namespace<'_>, name: &str, labels: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, namespace: {}}}\n\
         spec: {{selector: {{matchLabels: {{tier: {name}}}}}, template: {{\n\
         \x20 metadata: {{labels: {{tier: {name}, {labels}}}, annotations: {{bed.plimsoll.dev/metrics: 'queue_depth 30'}}}},\n\
         \x20 spec: {{terminationGracePeriodSeconds: 0, containers: [\n\
         \x20   {{name: app, image: fleet, resources: {{requests: {{cpu: 100m}}}}}}]}}}}}}\n",
        ns.name
    )
}

/// As far as the check reads it.
const VPA_DEFINITION: &str = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
metadata:\n  name: verticalpodautoscalers.autoscaling.k8s.io\n\
\x20 annotations: {api-approved.kubernetes.io: https://github.com/kubernetes/kubernetes/pull/63797}\n\
spec:\n  group: autoscaling.k8s.io\n  scope: Namespaced\n\
\x20 names: {plural: verticalpodautoscalers, singular: verticalpodautoscaler, kind: VerticalPodAutoscaler}\n\
\x20 versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {\n\
\x20   spec: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}}]\n";

#[test]
fn check_finds_what_is_around_an_autoscaler() {
    on_shared_bed("warnings-check", async |bed, ns| {
        let kubeconfig = &bed.cluster.kubeconfig;
        ns.deployment("web", 1, "queue_depth 30").await;
        bed.cluster.apply(&deployment(ns, "other", "app: web")).await;
        bed.cluster.apply(&deployment(ns, "clean", "app: clean")).await;
        ns.wait_ready("Deployment", "other", 1).await;
        ns.wait_ready("Deployment", "clean", 1).await;
        let clean = "resourceMetrics: [{resourceName: cpu, averageUtilization: 60}], \
                     customMetrics: [{metricName: queue_depth, averageValue: 10}]";

        // Until the pods were scraped, their query has no series.
        let report = eventually("nothing is found", SOON, async || {
            match check(bed, ns, kubeconfig, "clean", clean) {
                (Some(0), report) if texts(&report, "warnings").is_empty() => Ok(report),
                (_, report) => Err(report.to_string()),
            }
        })
        .await;
        let not_checked = texts(&report, "notChecked");
        assert!(
            not_checked.len() == 1 && not_checked[0].contains("VerticalPodAutoscalers"),
            "there is no such kind: {report}"
        );
        // Without any right each thing is named.
        let nobody = bed.cluster.kubeconfig_of("nobody", &[]);
        let (code, report) = check(bed, ns, &nobody, "clean", clean);
        assert_eq!((code, texts(&report, "warnings")), (Some(0), vec![]), "{report}");
        let not_checked = texts(&report, "notChecked").join("\n");
        for what in
            ["who writes the replicas", "HorizontalPodAutoscalers", "Autoscalers of", "VerticalPod"]
        {
            assert!(not_checked.contains(what), "{what} is not in\n{not_checked}");
        }
        assert!(not_checked.contains("is forbidden"), "{not_checked}");

        bed.cluster.apply(VPA_DEFINITION).await;
        let vpa = |name: &str, mode: &str| {
            format!(
                "apiVersion: autoscaling.k8s.io/v1\nkind: VerticalPodAutoscaler\nmetadata: {{name: {name}, namespace: {}}}\n\
                 spec: {{targetRef: {{apiVersion: apps/v1, kind: Deployment, name: {name}}}, updatePolicy: {{updateMode: {mode}}}}}\n",
                ns.name
            )
        };
        bed.cluster.apply(&vpa("web", "Recreate")).await;
        bed.cluster.apply(&vpa("clean", "'Off'")).await;
        let (code, report) = check(bed, ns, kubeconfig, "clean", clean);
        let found = (texts(&report, "warnings"), texts(&report, "notChecked"));
        assert_eq!((code, found), (Some(0), (vec![], vec![])), "{report}");

        ns.hpa("web", "queue_depth", "15", 1).await;
        apply_as(ns, "argocd-controller", "web", json!({"replicas": 1})).await;
        let fields = "resourceMetrics: [{resourceName: memory, averageUtilization: 60}], customMetrics: [\
            {metricName: never, averageValue: 1}, \
            {metricName: depth, averageValue: 10, query: 'sum by (pod) (queue_depth)'}, \
            {metricName: idle, averageValue: 1, query: 'sum by (pod) (no_such_metric)', onEmpty: Zero}]";
        let (code, report) = check(bed, ns, kubeconfig, "web", fields);
        assert_eq!(code, Some(0), "{report}");
        assert_eq!(texts(&report, "notChecked"), Vec::<String>::new(), "{report}");
        let warnings = texts(&report, "warnings");
        let name = format!("autoscaler {}/web: ", ns.name);
        for expected in [
            "spec.scaleTargetRef: field manager \"bed\" (Apply, ",
            "spec.scaleTargetRef: field manager \"argocd-controller\" (Apply",
            "spec.scaleTargetRef: HorizontalPodAutoscaler web scales Deployment web, too",
            "spec.resourceMetrics[0]: VerticalPodAutoscaler web (updateMode Recreate) sets the requests for memory",
            "spec.resourceMetrics[0]: missing request for memory in containers app of Pod web-",
            "spec.scaleTargetRef: the selector app=web of Deployment web matches pods of ReplicaSet other-",
            "spec.customMetrics[0].metricName: its query had no series at any minute of the last day",
        ] {
            let found = warnings.iter().any(|text| text.starts_with(&format!("{name}{expected}")));
            assert!(found, "{expected} is not in\n{}", warnings.join("\n"));
        }
        assert_eq!(warnings.len(), 7, "{warnings:#?}");
    });
}

#[test]
fn check_tells_how_often_a_query_was_empty_and_when_last() {
    on_shared_bed("warnings-history", async |bed, ns| {
        // Series that come and go by the hour have a past of a day on a Prometheus of today.
        let fields = "customMetrics: [\
            {metricName: steady, per: Workload, value: 1, query: 'sum(vector(1))'}, \
            {metricName: odd, per: Workload, value: 1, query: 'sum(vector(1) and on () (vector(time()) % 7200 < 3600))'}]";
        let (code, report) = check(bed, ns, &bed.cluster.kubeconfig, "absent", fields);
        assert_eq!(code, Some(0), "{report}");
        let warnings = texts(&report, "warnings");
        let part = "spec.customMetrics[1].query: its query had no series in ";
        assert!(warnings.len() == 1 && warnings[0].contains(part), "{report}");
        assert!(warnings[0].contains(", last at 20"), "{warnings:?}");
        let not_checked = texts(&report, "notChecked").join("\n");
        assert!(not_checked.contains("deployments.apps \"absent\" not found"), "{not_checked}");
    });
}
