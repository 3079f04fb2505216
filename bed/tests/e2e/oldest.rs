//! The oldest Kubernetes that the chart takes.

use crate::{FOLLOWS, SOON, on_own_bed};
use bed::{Options, eventually, root};
use serde_json::Value;

/// The minor version that the chart and the pages name.
const MINOR: &str = "30";

#[test]
#[ignore = "it builds another Kubernetes: make oldest"]
fn plimsoll_is_installed_and_decides_on_the_oldest_kubernetes() {
    let options = Options { kubernetes: "kubernetes-oldest", ..Options::default() };
    on_own_bed(options, async |bed| {
        let cluster = &bed.cluster;
        let version = cluster.raw("/version").await.expect("a version");
        let version: Value = serde_json::from_str(&version).expect("JSON");
        assert_eq!(version["minor"], MINOR, "{version}");
        let ns = bed::workload::Namespace::new(cluster, "oldest").await;
        ns.deployment("web", 1, "").await;
        ns.deployment("hpa", 1, "").await;
        ns.autoscaler("web", "http_requests_total", "10", 5).await;
        ns.hpa("hpa", "http_requests_total", "10", 5).await;
        for name in ["web", "hpa"] {
            let selector = format!("app={name}");
            cluster.load(&ns.name, &selector, "/hit/http_requests_total", 27.0).await;
        }
        for name in ["web", "hpa"] {
            ns.wait_replicas("Deployment", name, FOLLOWS, |replicas| replicas == 3).await;
        }
        ns.wait_condition("web", "Ready", SOON, |condition| condition["status"] == "True").await;
        let decisions = eventually("decisions are listed", SOON, async || {
            let text = cluster.try_kubectl(&["-n", &ns.name, "get", "decisions"]).await?;
            if text.contains("web") { Ok(text) } else { Err(text) }
        });
        println!("{}", decisions.await);
        // Its rules in CEL are in force.
        let wrong = "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\nmetadata: {name: x, namespace: oldest}\n\
             spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, minReplicas: 2, maxReplicas: 1}\n";
        let file = cluster.folder.join("wrong.yaml");
        std::fs::write(&file, wrong).expect("a file");
        let refused = cluster.try_kubectl(&["apply", "-f", &file.display().to_string()]).await;
        let refused = refused.expect_err("it is refused");
        assert!(refused.contains("maxReplicas must be at least minReplicas"), "{refused}");
        let release = version["gitVersion"].as_str().expect("a version");
        let chart = root().join("deploy/chart").display().to_string();
        let rendered = cluster.helm(&["template", &chart, "--kube-version", release]).await;
        assert!(
            rendered.as_ref().is_ok_and(|text| text.contains("kind: Deployment")),
            "{rendered:?}"
        );
    });
}

#[test]
fn the_oldest_kubernetes_that_is_claimed_is_the_one_that_is_tested() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).expect(path);
    let part = read("bed/parts/kubernetes-oldest/go.mod");
    assert!(part.contains(&format!("k8s.io/kubernetes v1.{MINOR}.")));
    for (path, claim) in [
        ("deploy/chart/Chart.yaml", format!("kubeVersion: \">=1.{MINOR}.0-0\"")),
        ("docs/install.md", format!("Kubernetes 1.{MINOR} or newer")),
        ("docs/versions.md", format!("| required | 1.{MINOR} ")),
    ] {
        assert!(read(path).contains(&claim), "{path}: {claim}");
    }
}
