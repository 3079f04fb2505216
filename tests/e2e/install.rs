//! What `kubectl apply -k deploy` and the Helm chart install. Every bed is installed by it, and
//! Plimsoll runs as its service account; here is what that account can't do.

use crate::bed::cluster::Cluster;
use crate::bed::plimsoll::Plimsoll;
use crate::bed::workload::Namespace;
use crate::bed::{Options, eventually, root};
use crate::{FOLLOWS, SOON, on_own_bed, on_shared_bed, runtime};
use serde_json::Value;

#[test]
fn the_service_account_may_do_what_it_needs_and_no_more() {
    on_shared_bed("install-rbac", async |bed, _| {
        let account = "--as=system:serviceaccount:plimsoll:plimsoll";
        let can = async |words: &[&str]| {
            let arguments = [&["auth", "can-i", account], words].concat();
            bed.cluster.try_kubectl(&arguments).await.is_ok()
        };
        for needed in [
            &["watch", "pods", "-A"][..],
            &["watch", "autoscalers.plimsoll.dev", "-A"],
            &["watch", "horizontalpodautoscalers.autoscaling", "-A"],
            &["update", "deployments.apps", "--subresource=scale", "-A"],
            &["patch", "autoscalers.plimsoll.dev", "--subresource=status", "-A"],
            &["update", "leases.coordination.k8s.io/plimsoll", "-n", "plimsoll"],
            &["patch", "configmaps/plimsoll-memory", "-n", "plimsoll"],
            &["create", "tokenreviews.authentication.k8s.io"],
            &["create", "subjectaccessreviews.authorization.k8s.io"],
            &["patch", "apiservices.apiregistration.k8s.io/v1beta1.custom.metrics.k8s.io"],
        ] {
            assert!(can(needed).await, "it needs to {needed:?}");
        }
        for needless in [
            &["get", "secrets", "-A"][..],
            &["list", "configmaps", "-A"],
            &["update", "deployments.apps", "-A"],
            &["delete", "pods", "-A"],
            &["create", "pods", "-A"],
            &["update", "autoscalers.plimsoll.dev", "-A"],
            &["patch", "horizontalpodautoscalers.autoscaling", "--subresource=status", "-A"],
            &["patch", "apiservices.apiregistration.k8s.io/v1.apps"],
            &["impersonate", "users"],
            &["update", "leases.coordination.k8s.io/other", "-n", "plimsoll"],
            &["update", "leases.coordination.k8s.io/plimsoll", "-n", "kube-system"],
            &["patch", "configmaps/plimsoll", "-n", "plimsoll"],
            &["get", "configmaps/plimsoll-memory", "-n", "kube-system"],
            &["delete", "leases.coordination.k8s.io/plimsoll", "-n", "plimsoll"],
            &["list", "nodes"],
            &["get", "deployments.apps", "-A"],
            &["create", "clusterrolebindings.rbac.authorization.k8s.io"],
            &["escalate", "clusterroles.rbac.authorization.k8s.io"],
        ] {
            assert!(!can(needless).await, "it must not {needless:?}");
        }
    });
}

#[test]
fn all_three_metrics_apis_are_served_where_they_are_installed() {
    let config = "externalRules:\n- seriesQuery: queue_depth\n\
         \x20 resources: {overrides: {namespace: {resource: namespace}}}\n\
         \x20 metricsQuery: 'sum(<<.Series>>{<<.LabelMatchers>>})'\n\
         resourceRules:\n  window: 5s\n\
         \x20 cpu: &usage\n    containerLabel: container\n\
         \x20   containerQuery: 'sum(cpu_usage{<<.LabelMatchers>>}) by (<<.GroupBy>>)'\n\
         \x20   nodeQuery: 'sum(cpu_usage{<<.LabelMatchers>>}) by (<<.GroupBy>>)'\n\
         \x20   resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}, node: {resource: node}}}\n\
         \x20 memory: *usage\n";
    let options = Options {
        manifests: "deploy/overlays/all-metrics",
        flags: vec!["--metrics-relist-interval=2s".to_owned()],
        config,
        ..Options::default()
    };
    on_own_bed(options, async |bed| {
        let ns = Namespace::new(&bed.cluster, "whole").await;
        let shown = "queue_depth 7\ncpu_usage{container=\"app\",node=\"fleet\"} 0.25";
        ns.workload("StatefulSet", "web", 2, shown).await;
        let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/whole/queue_depth";
        eventually("an external metric", SOON, async || {
            let answer = bed.cluster.try_kubectl(&["get", "--raw", path]).await?;
            if answer.contains("\"value\":\"14\"") { Ok(()) } else { Err(answer) }
        })
        .await;
        for (what, expected) in [("pods", "web-1"), ("nodes", "fleet")] {
            let top = eventually("kubectl top", SOON, async || {
                bed.cluster.try_kubectl(&["top", what, "-n", "whole"]).await
            })
            .await;
            assert!(top.contains(expected) && top.contains("m"), "{top}");
        }
    });
}

const CHART: [&str; 2] = ["plimsoll", "deploy/chart"];

/// The rules of every role that a manifest has, role by role.
fn rules(manifests: &str) -> std::collections::BTreeMap<String, Value> {
    let documents: Vec<Option<Value>> = serde_saphyr::from_multiple(manifests).expect("YAML");
    let roles = documents.into_iter().flatten().filter(|object| object["rules"].is_array());
    roles
        .map(|role| {
            let name = role["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            (format!("{} {name}", role["kind"]), role["rules"].clone())
        })
        .collect()
}

#[test]
fn the_chart_gives_the_rights_of_the_manifests_and_refuses_wrong_values() {
    runtime().block_on(async {
        let cluster = Cluster::control_plane(&Options::default()).await;
        let chart = root().join(CHART[1]).display().to_string();
        let template = async |arguments: &[&str]| {
            let of = ["template", "plimsoll", &chart, "-n", "plimsoll", "--kube-version=1.36.0"];
            let all = [&of[..], arguments].concat();
            cluster.helm(&all).await
        };
        let base = std::fs::read_to_string(root().join("deploy/base/rbac.yaml")).unwrap();
        assert_eq!(rules(&template(&[]).await.unwrap()), rules(&base));
        let managing = template(&["--set", "nativeHpas=manage"]).await.unwrap();
        let overlay = root().join("deploy/overlays/manage-native-hpas/rbac.yaml");
        let overlay = std::fs::read_to_string(overlay).unwrap();
        for (role, expected) in rules(&overlay) {
            assert_eq!(rules(&managing).get(&role), Some(&expected), "{role}");
        }
        for (wrong, expected) in [
            ("replicas=0", "replicas"),
            ("prometheus.url=prometheus:9090", "/prometheus/url"),
            ("nativeHpas=some", "nativeHpas"),
            ("replica=2", "replica"),
        ] {
            let error = template(&["--set", wrong]).await.unwrap_err();
            assert!(error.contains(expected), "{wrong}: {error}");
        }
        for copied in ["crd.yaml", "alerts.yaml", "dashboard.json"] {
            let folder = if copied == "crd.yaml" { "deploy/base" } else { "deploy/monitoring" };
            let [original, copy] = [folder, "deploy/chart/files"]
                .map(|folder| std::fs::read(root().join(folder).join(copied)).expect(copied));
            assert!(original == copy, "{copied}: `make generate` copies it into the chart");
        }
    });
}

#[test]
fn the_chart_is_installed_upgraded_and_uninstalled_and_workloads_are_left_alone() {
    runtime().block_on(async {
        let options = Options::default();
        let cluster = Cluster::start(&options).await;
        // The strictest of Kubernetes's own standards for pods.
        cluster.kubectl(&["create", "namespace", "plimsoll"]).await;
        let strict = "pod-security.kubernetes.io/enforce=restricted";
        cluster.kubectl(&["label", "namespace", "plimsoll", strict]).await;
        let chart = root().join(CHART[1]).display().to_string();
        let everything = [
            "-n",
            "plimsoll",
            "--set",
            "apiServices.external=true,apiServices.resource=true",
            "--set",
            "dashboard.enabled=true,priorityClassName=",
        ];
        let old = [&["install", "plimsoll", &chart, "--set", "image.tag=0.0.9"], &everything[..]];
        cluster.helm(&old.concat()).await.expect("helm install");
        eventually("its pods are let in", SOON, async || {
            let pods = ["-n", "plimsoll", "get", "pods", "-o", "name"];
            let pods = cluster.kubectl(&pods).await;
            if pods.lines().count() == 2 { Ok(()) } else { Err(pods) }
        })
        .await;

        let ns = Namespace::new(&cluster, "chart").await;
        ns.deployment("web", 1, "queue 20").await;
        ns.autoscaler("web", "queue", "10", 3).await;
        let written = async || {
            let object = ns.get("autoscaler", "web").await.expect("it is still there");
            (object["metadata"]["uid"].clone(), object["spec"].clone())
        };
        let before = written().await;
        let new = [&["upgrade", "plimsoll", &chart, "--set", "replicas=3"], &everything[..]];
        cluster.helm(&new.concat()).await.expect("helm upgrade");
        let image = "jsonpath={.spec.template.spec.containers[0].image} {.spec.replicas}";
        let deployed = ["-n", "plimsoll", "get", "deployment", "plimsoll", "-o", image];
        assert_eq!(cluster.kubectl(&deployed).await, "plimsoll:0.1.0 3");
        assert_eq!(written().await, before);
        assert_eq!(ns.replicas("Deployment", "web").await, 1);

        // A real process under the rights that the chart gives.
        cluster.kubectl(&["-n", "plimsoll", "scale", "deployment/plimsoll", "--replicas=0"]).await;
        cluster.kubectl(&["-n", "plimsoll", "create", "serviceaccount", "scraper"]).await;
        let server = format!("https://127.0.0.1:{}", cluster.api_port());
        let prometheus = format!("http://127.0.0.1:{}", cluster.prometheus_port);
        let mut plimsoll = Plimsoll::start(&cluster, &server, &prometheus, &options).await;
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 3).await;
        let log = std::fs::read_to_string(&plimsoll.process.log).unwrap();
        assert!(!log.contains("forbidden"), "{log}");

        cluster.helm(&["uninstall", "plimsoll", "-n", "plimsoll"]).await.expect("helm uninstall");
        plimsoll.process.stop();
        assert_eq!(written().await, before);
        assert_eq!(ns.replicas("Deployment", "web").await, 3);
        let left = cluster.kubectl(&["get", "apiservices", "-o", "name"]).await;
        assert!(!left.contains("metrics.k8s.io"), "{left}");
        let role = cluster.try_kubectl(&["get", "clusterrole", "plimsoll"]).await;
        assert!(role.unwrap_err().contains("NotFound"));
    });
}
