//! What an operator does: commands.

use crate::{FOLLOWS, SOON, on_own_bed, on_shared_bed};
use bed::plimsoll::binary;
use bed::process::printed;
use bed::workload::Namespace;
use bed::{Bed, Options, eventually, root};
use serde_json::Value;
use std::process::Command;

/// Runs a command of Plimsoll as a kubectl plugin.
pub async fn plugin(bed: &Bed, arguments: &[&str]) -> Result<String, String> {
    let folder = bed.cluster.folder.join("plugins");
    std::fs::create_dir_all(&folder).expect("a folder");
    let link = folder.join("kubectl-plimsoll");
    let _ = std::os::unix::fs::symlink(binary(), &link);
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let kubectl = bed.cluster.parts.join("cluster");
    let mut command = tokio::process::Command::new(kubectl);
    command.arg("kubectl").arg("plimsoll").args(arguments).env("PATH", path);
    command.env("KUBECONFIG", &bed.cluster.kubeconfig);
    printed(&command.output().await.expect("kubectl can be run"))
}

#[test]
fn kubectl_plimsoll_autoscales_a_workload_and_checks_the_installation() {
    on_own_bed(Options::default(), async |bed| {
        let ns = Namespace::new(&bed.cluster, "plugin").await;
        ns.deployment("web", 1, "queue 20").await;
        let of = "deployment/web --metric queue --value 10 --max 2 -n plugin";
        let autoscale = async |before: &str, after: &str| {
            let line = format!("{before} autoscale {of} {after}");
            plugin(bed, &line.split_whitespace().collect::<Vec<_>>()).await
        };
        let dry = "autoscaler.plimsoll.dev/web autoscaled (server dry run)\n";
        assert_eq!(autoscale("--request-timeout=20s", "--dry-run=server").await.unwrap(), dry);
        let missing =
            plugin(bed, &["autoscale", "sts", "web", "--cpu=70%", "--max=2", "-n=plugin"]);
        let error = missing.await.unwrap_err();
        assert!(
            error.contains("Error from server (NotFound): statefulsets.apps \"web\" not found"),
            "{error}"
        );
        assert_eq!(autoscale("", "").await.unwrap(), "autoscaler.plimsoll.dev/web autoscaled\n");
        let again = autoscale("--request-timeout 20", "").await.unwrap_err();
        assert!(again.contains("Error from server (AlreadyExists)"), "{again}");
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 2).await;

        let version = plugin(bed, &["version", "-o", "json"]).await.unwrap();
        let version: Value = serde_json::from_str(&version).unwrap();
        let [client, server] =
            ["clientVersion", "serverVersion"].map(|of| version[of]["version"].clone());
        assert!(client.is_string() && client == server, "{version}");
        let names = plugin(bed, &["-n", "plugin", "status", "-o", "name"]).await.unwrap();
        assert_eq!(names, "autoscaler.plimsoll.dev/web\n");

        // Plimsoll runs beside the cluster, and not as its Deployment.
        let url = format!("--prometheus-url=http://127.0.0.1:{}", bed.cluster.prometheus_port);
        let checked = Command::new(binary())
            .args(["check-cluster", "-o=json", &url])
            .env("KUBECONFIG", &bed.cluster.kubeconfig)
            .output()
            .expect("it can be run");
        let shown = String::from_utf8_lossy(&checked.stdout);
        assert_eq!(checked.status.code(), Some(1), "{shown}");
        let report: Value = serde_json::from_str(&shown).expect(&shown);
        let results = |category: &str| -> Vec<String> {
            let all = report["categories"].as_array().unwrap();
            let group = all.iter().find(|one| one["categoryName"] == category).unwrap();
            let checks = group["checks"].as_array().unwrap();
            checks.iter().map(|check| check["result"].as_str().unwrap().to_owned()).collect()
        };
        let passed = |category: &str| results(category).iter().all(|result| result == "success");
        for category in ["kubernetes-api", "plimsoll-definitions", "plimsoll-metrics"] {
            assert!(passed(category), "{category}: {shown}");
        }
        assert_eq!(results("plimsoll-replicas"), ["success", "error"], "{shown}");
        assert_eq!(results("prometheus")[0], "success", "{shown}");
        assert_eq!(results("plimsoll-leader")[0], "success", "{shown}");
    });
}

#[test]
fn kubectl_plimsoll_shows_explains_pauses_and_freezes() {
    on_own_bed(Options::default(), async |bed| {
        let ns = Namespace::new(&bed.cluster, "plugin").await;
        ns.deployment("web", 1, "queue 20").await;
        ns.autoscaler("web", "queue", "10", 2).await;
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 2).await;
        ns.autoscaler("gone", "queue", "10", 2).await;
        ns.wait_condition("gone", "AbleToScale", SOON, |c| c["status"] == "False").await;
        let status = plugin(bed, &["status"]).await.unwrap();
        assert!(status.contains("Leader       plimsoll_"), "{status}");
        assert!(status.contains("Autoscalers  2: 1 failing, 0 paused, 0 in fallback"), "{status}");
        let row = status.lines().find(|line| line.starts_with("plugin     gone  Failing  "));
        assert!(row.is_some_and(|row| row.contains("FailedGetScale")), "{status}");
        eventually("it is explained", SOON, async || {
            let explained = plugin(bed, &["explain", "web", "-n", "plugin"]).await?;
            let said = ["2 replicas of Deployment/web (1 to 2 allowed)", "TooManyReplicas"];
            let all = said.iter().all(|said| explained.contains(said));
            if all { Ok(()) } else { Err(explained) }
        })
        .await;

        plugin(bed, &["pause", "web", "-n", "plugin", "--reason", "INC-7", "--for=1h"])
            .await
            .unwrap();
        let message = ns.wait_condition("web", "Paused", SOON, |c| c["status"] == "True").await;
        assert!(message.contains("by \"admin\", reason \"INC-7\", until 20"), "{message}");
        plugin(bed, &["resume", "web", "-n", "plugin"]).await.unwrap();
        ns.wait_condition("web", "Paused", SOON, |c| c["status"] == "False").await;
        plugin(bed, &["freeze", "incident 42"]).await.unwrap();
        ns.wait_condition("web", "Frozen", SOON, |c| c["status"] == "True").await;
        let status = plugin(bed, &["status"]).await.unwrap();
        assert!(status.contains("no scale is written: incident 42"), "{status}");
        let metrics = bed.plimsoll.metrics(&bed.cluster).await;
        assert!(metrics.contains("plimsoll_frozen 1"), "{metrics}");
        plugin(bed, &["thaw"]).await.unwrap();
        eventually("it is thawed", SOON, async || {
            let metrics = bed.plimsoll.metrics(&bed.cluster).await;
            if metrics.contains("plimsoll_frozen 0") { Ok(()) } else { Err(metrics) }
        })
        .await;
        let error = plugin(bed, &["explain", "nobody", "-n", "plugin"]).await.unwrap_err();
        assert!(
            error.contains("autoscaler plugin/nobody") && error.contains("not found"),
            "{error}"
        );
    });
}

#[test]
fn the_output_of_convert_is_accepted_by_the_api_server_and_scales() {
    on_shared_bed("operating-convert", async |bed, ns| {
        ns.deployment("old", 1, "").await;
        ns.deployment("worker", 1, "").await;
        ns.workload("StatefulSet", "source", 1, "queue_depth 35").await;
        let prometheus = format!("http://127.0.0.1:{}", bed.cluster.prometheus_port);
        let hpa = format!(
            "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\n\
             metadata: {{name: old, namespace: {0}, labels: {{team: a}}}}\n\
             spec:\n  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: old}}\n\
             \x20 minReplicas: 2\n  maxReplicas: 4\n\
             \x20 metrics: [{{type: Resource, resource: {{name: cpu, target: {{type: Utilization, averageUtilization: 60}}}}}}]\n\
             ---\napiVersion: keda.sh/v1alpha1\nkind: ScaledObject\n\
             metadata: {{name: keda, namespace: {0}}}\n\
             spec:\n  scaleTargetRef: {{name: missing}}\n  minReplicaCount: 1\n\
             \x20 triggers: [{{type: prometheus, metadata: {{query: 'sum(queue)', threshold: '5'}}}}, {{type: kafka}}]\n\
             ---\napiVersion: keda.sh/v1alpha1\nkind: ScaledObject\n\
             metadata: {{name: worker, namespace: {0}}}\n\
             spec:\n  scaleTargetRef: {{name: worker}}\n  minReplicaCount: 1\n  maxReplicaCount: 9\n\
             \x20 triggers:\n  - type: prometheus\n    metadata:\n      serverAddress: {prometheus}\n\
             \x20     query: sum(queue_depth{{namespace=\"{0}\"}})\n      threshold: '10'\n",
            ns.name
        );
        let file = bed.cluster.folder.join("convert.yaml");
        std::fs::write(&file, hpa).unwrap();
        let mut convert = Command::new(binary());
        convert.arg("convert").arg(&file).args(["--prometheus-url", &prometheus]);
        let done = convert.output().expect("it can be run");
        let notes = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{notes}");
        assert!(notes.contains("a trigger of type kafka can't be converted"), "{notes}");
        bed.cluster.apply(&String::from_utf8_lossy(&done.stdout)).await;
        ns.wait_replicas("Deployment", "old", SOON, |replicas| replicas == 2).await;
        let spec = ns.get("autoscaler", "keda").await.expect("it was made")["spec"].clone();
        assert_eq!(spec["mode"], "Preview");
        assert_eq!(spec["customMetrics"][0]["per"], "Workload");
        // A queue of 35, at 10 a replica.
        ns.wait_replicas("Deployment", "worker", FOLLOWS, |replicas| replicas == 4).await;
        let spec = ns.get("autoscaler", "worker").await.expect("it was made")["spec"].clone();
        assert_eq!(spec["mode"].as_str().unwrap_or("Active"), "Active", "{notes}");
        // And so are those of KEDA's own tests, whatever is in them.
        let corpus = root().join("tests/data/keda-scaledobjects.yaml");
        let done =
            Command::new(binary()).arg("convert").arg(&corpus).output().expect("it can be run");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let objects = String::from_utf8_lossy(&done.stdout)
            .replace("namespace: test-namespace", &format!("namespace: {}", ns.name));
        bed.cluster.apply(&objects).await;
    });
}
