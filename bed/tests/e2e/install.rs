//! What `kubectl apply -k deploy` and the Helm chart install. Every bed is installed so, and Plimsoll
//! runs as its service account; these tests check what that account must not do.

use crate::{FOLLOWS, SOON, on_own_bed, on_shared_bed, runtime};
use bed::cluster::Cluster;
use bed::plimsoll::Plimsoll;
use bed::workload::Namespace;
use bed::{Options, eventually, root};
use serde_json::{Value, json};

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
            &["patch", "apiservices.apiregistration.k8s.io"],
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
fn all_three_metrics_apis_are_served_if_installed() {
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
        // Only the component of the executor grants the permission to write HPAs.
        for verb in ["create", "patch", "delete"] {
            let account = "--as=system:serviceaccount:plimsoll:plimsoll";
            let words =
                ["auth", "can-i", account, verb, "horizontalpodautoscalers.autoscaling", "-A"];
            assert!(bed.cluster.try_kubectl(&words).await.is_err(), "it must not {verb} HPAs");
        }
    });
}

/// Whether a path is in the context of `docker build`: the last matching line of .dockerignore
/// decides. Supports the patterns that the file uses.
fn in_build_context(ignored: &str, path: &str) -> bool {
    let mut inside = true;
    for line in ignored.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        let (pattern, again) = match line.strip_prefix('!') {
            Some(pattern) => (pattern, true),
            None => (line, false),
        };
        let known = pattern == "*" || !pattern.contains(['*', '?', '[', '\\']);
        assert!(known, ".dockerignore: {line}: teach this test that pattern");
        let below =
            path.strip_prefix(pattern).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if !pattern.is_empty() && (pattern == "*" || below) {
            inside = again;
        }
    }
    inside
}

#[test]
fn the_build_context_of_the_image_has_all_that_it_is_built_from() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).expect(name);
    let (dockerfile, ignored) = (read("Dockerfile"), read(".dockerignore"));
    let context = tempfile::tempdir().expect("a folder");
    let copies = dockerfile.lines().filter_map(|line| line.trim().strip_prefix("COPY "));
    for copy in copies.filter(|copy| !copy.contains("--from=")) {
        let words: Vec<&str> = copy.split_whitespace().filter(|w| !w.starts_with("--")).collect();
        let (destination, sources) = words.split_last().expect("a destination");
        let path = context.path().join(destination);
        if destination.ends_with('/') {
            std::fs::create_dir_all(&path).expect("a folder");
        }
        for source in sources {
            assert!(
                in_build_context(&ignored, source),
                "COPY {source}: .dockerignore leaves it out"
            );
            assert!(root().join(source).exists(), "COPY {source}: it is not there");
            let copied = std::process::Command::new("cp")
                .arg("-r")
                .args([&root().join(source), &path])
                .status();
            assert!(copied.expect("cp can be run").success());
        }
    }
    assert!(!in_build_context(&ignored, "target") && !in_build_context(&ignored, ".git"));
    // A build would take minutes. Cargo loads the whole workspace before it looks for the binary,
    // so this error means that the manifests and sources are complete.
    let done = std::process::Command::new(env!("CARGO"))
        .args([
            "build",
            "--locked",
            "--offline",
            "--package",
            "plimsoll",
            "--bin",
            "no-such-program",
        ])
        .current_dir(context.path())
        .output()
        .expect("cargo can be run");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("no bin target named `no-such-program`"), "{said}");
}

#[test]
fn both_ways_to_build_the_image_give_it_the_same_contents() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).expect(name);
    let image: Value = serde_json::from_str(&read("deploy/image.json")).expect("JSON");
    let dockerfile = read("Dockerfile").replace("\\\n", "");
    let (_, last) = dockerfile.split_once("FROM scratch\n").expect("an empty image");
    let mut built = serde_json::json!({"files": {}, "exposedPorts": [], "labels": {}});
    for line in last.lines().filter(|line| !line.starts_with('#')) {
        let (word, rest) = line.split_once(' ').expect("an instruction");
        match word {
            "COPY" => {
                let path = rest.rsplit(' ').next().expect("a path");
                built["files"][path] = image["files"][path].clone();
            }
            "USER" => built["user"] = rest.into(),
            "EXPOSE" => built["exposedPorts"] = serde_json::json!([format!("{rest}/tcp")]),
            "ENTRYPOINT" => built["entrypoint"] = serde_json::from_str(rest).expect("a list"),
            "LABEL" => {
                for label in rest.split("\" ").map(|label| label.trim().trim_end_matches('"')) {
                    let (name, value) = label.split_once("=\"").expect("a label");
                    built["labels"][name] = value.into();
                }
            }
            other => panic!("teach this test {other}"),
        }
    }
    assert_eq!(built, image);
}

/// The output of `kubectl kustomize` for these resources and components.
async fn kustomize(cluster: &Cluster, lines: &str) -> Vec<Value> {
    // Paths of components are relative to the folder, which must not be inside another.
    let folder = tempfile::tempdir_in(root().join("target")).expect("a folder");
    let text = format!("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n{lines}");
    std::fs::write(folder.path().join("kustomization.yaml"), text).expect("a file");
    let text = cluster.kubectl(&["kustomize", &folder.path().display().to_string()]).await;
    let documents: Vec<Option<Value>> = serde_saphyr::from_multiple(&text).expect("YAML");
    documents.into_iter().flatten().collect()
}

/// Its patches are by places in lists, which others would move unnoticed.
#[test]
fn the_kustomization_of_the_page_names_the_image_prometheus_and_its_port() {
    runtime().block_on(async {
        let cluster = Cluster::control_plane(&Options::default()).await;
        let page = std::fs::read_to_string(root().join("docs/install.md")).expect("the page");
        let (_, block) = page.split_once("kind: Kustomization\n").expect("a kustomization");
        let (lines, _) = block.split_once("```").expect("its end");
        let objects = kustomize(&cluster, &lines.replace("deploy/", "../../deploy/")).await;
        let spec = |kind: &str| {
            let is = |object: &&Value| {
                object["kind"] == kind && object["metadata"]["name"] == "plimsoll"
            };
            objects.iter().find(is).map(|object| object["spec"].clone()).expect(kind)
        };
        let container = spec("Deployment")["template"]["spec"]["containers"][0].clone();
        assert_eq!(container["image"], "REGISTRY/plimsoll:0.1.0");
        let arguments = container["args"].as_array().expect("a list");
        let with = |flag: &str| -> Vec<&str> {
            let texts = arguments.iter().filter_map(Value::as_str);
            texts.filter(|text| text.starts_with(flag)).collect()
        };
        let url = "--prometheus-url=http://prometheus-server.monitoring.svc";
        assert_eq!(with("--prometheus-url"), [url]);
        assert_eq!(with("--config=").len(), 1);
        let egress = spec("NetworkPolicy")["egress"].to_string();
        assert!(egress.contains("9091") && !egress.contains("9090"), "{egress}");
    });
}

#[test]
fn the_components_combine_and_each_adds_what_it_says() {
    runtime().block_on(async {
        let cluster = Cluster::control_plane(&Options::default()).await;
        let lines = "resources: [../../deploy/base]\ncomponents:\n\
             - ../../deploy/components/all-metrics\n- ../../deploy/components/manage-native-hpas\n\
             - ../../deploy/components/native-hpa-executor\n- ../../deploy/components/openshift\n\
             - ../../deploy/monitoring\n";
        let objects = kustomize(&cluster, lines).await;
        let find = |kind: &str, name: &str| {
            let is = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
            objects.iter().find(is).unwrap_or_else(|| panic!("no {kind} {name}"))
        };
        find("APIService", "v1beta1.metrics.k8s.io");
        find("APIService", "v1beta1.external.metrics.k8s.io");
        let alerts = std::fs::read_to_string(root().join("deploy/monitoring/alerts.yaml")).unwrap();
        let alerts: Value = serde_saphyr::from_str(&alerts).unwrap();
        assert_eq!(find("PrometheusRule", "plimsoll")["spec"], alerts);
        assert!(find("ConfigMap", "plimsoll-dashboard")["data"]["plimsoll.json"].is_string());
        let pod = &find("Deployment", "plimsoll")["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"].get("runAsUser"), None);
        assert_eq!(pod["containers"][0]["args"][0], "serve");
        assert!(pod["containers"][0]["args"].to_string().contains("--native-hpas=manage"));
        find("ClusterRoleBinding", "plimsoll:native-hpa-executor");
        // Without the CRD everything else is still in, so that `kubectl delete -k` removes it.
        let lines = format!("{lines}- ../../deploy/components/without-crd\n");
        let kinds = |objects: &[Value]| -> Vec<String> {
            objects
                .iter()
                .map(|object| format!("{} {}", object["kind"], object["metadata"]["name"]))
                .collect()
        };
        let mut expected = kinds(&objects);
        expected.retain(|name| {
            !name.contains("\"CustomResourceDefinition\"") && !name.contains("\"Namespace\"")
        });
        assert_eq!(kinds(&kustomize(&cluster, &lines).await), expected);
        // Without them it registers only its own APIs, and may not write HPAs.
        let plain = kustomize(&cluster, "resources: [../../deploy]\n").await;
        let registered: Vec<&Value> = plain.iter().filter(|o| o["kind"] == "APIService").collect();
        assert_eq!(registered.len(), 3);
        let mut rules = rules_of(&plain);
        let own =
            rules.remove("\"ClusterRole\" plimsoll").expect("the role of the service account");
        let writes = own.as_array().cloned().unwrap_or_default().into_iter();
        for rule in writes.filter(|rule| rule["apiGroups"].to_string().contains("\"autoscaling\""))
        {
            assert_eq!(rule["verbs"], json!(["list", "watch"]), "{rule}");
        }
    });
}

#[test]
fn kustomize_uninstalls_what_it_installed_and_keeps_the_autoscalers() {
    runtime().block_on(async {
        let cluster = Cluster::control_plane(&Options::default()).await;
        let folder = |name: &str| root().join(name).display().to_string();
        cluster.kubectl(&["apply", "-k", &folder("deploy")]).await;
        eventually("the definition is served", SOON, async || {
            cluster.try_kubectl(&["get", "autoscalers", "-A"]).await
        })
        .await;
        cluster
            .apply(
                "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\nmetadata: {name: web, namespace: default}\n\
                 spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, maxReplicas: 3}\n",
            )
            .await;
        cluster.kubectl(&["delete", "-k", &folder("deploy/overlays/without-crd"), "--wait=false"]).await;
        cluster.kubectl(&["get", "autoscaler", "web", "-n", "default"]).await;
        for gone in ["deployment/plimsoll", "serviceaccount/plimsoll", "role/plimsoll"] {
            let left = cluster.try_kubectl(&["-n", "plimsoll", "get", gone]).await;
            assert!(left.unwrap_err().contains("NotFound"), "{gone}");
        }
        // Helm takes over what is left, by the commands of the page.
        let page = std::fs::read_to_string(root().join("docs/install.md")).unwrap();
        for words in page.lines().filter_map(|line| line.strip_prefix("    kubectl ")) {
            if words.contains(" crd ") {
                cluster.kubectl(&words.split(' ').collect::<Vec<_>>()).await;
            }
        }
        let install = ["install", "plimsoll", &folder("deploy/chart"), "-n", "plimsoll"];
        cluster.helm(&install).await.expect("helm install");
    });
}

#[test]
fn an_operator_may_freeze_and_rewrites_no_autoscaler() {
    on_shared_bed("install-operator", async |bed, _| {
        let binding = [
            "create",
            "clusterrolebinding",
            "operator-olga",
            "--clusterrole=plimsoll:operator",
            "--user=olga",
        ];
        bed.cluster.kubectl(&binding).await;
        let can = async |words: &[&str]| {
            let arguments = [&["auth", "can-i", "--as=olga"], words].concat();
            bed.cluster.try_kubectl(&arguments).await.is_ok()
        };
        eventually("the binding counts", SOON, async || {
            match can(&["patch", "leases.coordination.k8s.io/plimsoll", "-n", "plimsoll"]).await {
                true => Ok(()),
                false => Err("not yet".to_owned()),
            }
        })
        .await;
        for needed in [
            &["get", "leases.coordination.k8s.io/plimsoll", "-n", "plimsoll"][..],
            &["list", "autoscalers.plimsoll.dev", "-A"],
        ] {
            assert!(can(needed).await, "{needed:?}");
        }
        for needless in [
            &["patch", "leases.coordination.k8s.io/other", "-n", "plimsoll"][..],
            &["delete", "leases.coordination.k8s.io/plimsoll", "-n", "plimsoll"],
            &["patch", "autoscalers.plimsoll.dev", "-A"],
            &["create", "autoscalers.plimsoll.dev", "-A"],
            &["delete", "autoscalers.plimsoll.dev", "-A"],
            &["update", "deployments.apps", "--subresource=scale", "-A"],
        ] {
            assert!(!can(needless).await, "{needless:?}");
        }
    });
}

const CHART: [&str; 2] = ["plimsoll", "deploy/chart"];

/// The rules of every role in a manifest.
fn rules(manifests: &str) -> std::collections::BTreeMap<String, Value> {
    let documents: Vec<Option<Value>> = serde_saphyr::from_multiple(manifests).expect("YAML");
    rules_of(&documents.into_iter().flatten().collect::<Vec<_>>())
}

fn rules_of(objects: &[Value]) -> std::collections::BTreeMap<String, Value> {
    let roles = objects.iter().filter(|object| object["rules"].is_array());
    roles
        .map(|role| {
            let name = role["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            (format!("{} {name}", role["kind"]), role["rules"].clone())
        })
        .collect()
}

#[test]
fn the_chart_grants_the_permissions_of_the_manifests_and_rejects_invalid_values() {
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
        let overlay = root().join("deploy/components/manage-native-hpas/rbac.yaml");
        let overlay = std::fs::read_to_string(overlay).unwrap();
        for (role, expected) in rules(&overlay) {
            assert_eq!(rules(&managing).get(&role), Some(&expected), "{role}");
        }
        for (wrong, expected) in [
            ("replicas=0", "replicas"),
            ("prometheus.url=prometheus:9090", "/prometheus/url"),
            ("nativeHpas=some", "nativeHpas"),
            ("replica=2", "replica"),
            ("image.digest=latest", "digest"),
        ] {
            let error = template(&["--set", wrong]).await.unwrap_err();
            assert!(error.contains(expected), "{wrong}: {error}");
        }
    });
}

#[test]
fn the_chart_is_installed_upgraded_and_uninstalled_without_touching_workloads() {
    runtime().block_on(async {
        let options = Options::default();
        let cluster = Cluster::start(&options).await;
        // The strictest Pod Security Standard.
        cluster.kubectl(&["create", "namespace", "plimsoll"]).await;
        let strict = "pod-security.kubernetes.io/enforce=restricted";
        cluster.kubectl(&["label", "namespace", "plimsoll", strict]).await;
        let chart = root().join(CHART[1]).display().to_string();
        let everything = [
            "-n",
            "plimsoll",
            "--set",
            "apiServices.external=true,apiServices.resource=true,config.resourceRules.window=1m",
            "--set",
            "dashboard.enabled=true,prometheus.url=http://me:s3cret@prometheus:9090",
        ];
        let old = [&["install", "plimsoll", &chart, "--set", "image.tag=0.0.9"], &everything[..]];
        let notes = cluster.helm(&old.concat()).await.expect("helm install");
        let other_image = "--set image.tag=,image.digest=";
        assert!(notes.contains("image plimsoll:0.0.9.") && notes.contains(other_image), "{notes}");
        assert!(notes.contains("queried at http://prometheus:9090.\n"), "{notes}");
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
        // An earlier chart granted the permission to write its HPA.
        let native = json!({
            "apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
            "metadata": {"name": "native", "namespace": ns.name},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "other"},
                "maxReplicas": 3,
                "executor": "NativeHPA",
            },
        });
        cluster.apply(&native.to_string()).await;
        let new = [&["upgrade", "plimsoll", &chart, "--set", "replicas=3"], &everything[..]];
        let notes = cluster.helm(&new.concat()).await.expect("helm upgrade");
        let warns = |notes: &str| notes.contains(&format!("{}/native. To allow it", ns.name));
        assert!(warns(&notes), "{notes}");
        assert!(notes.contains("image plimsoll:0.1.0."), "{notes}");
        assert!(!notes.contains(other_image), "{notes}");
        let allowed = [&new.concat()[..], &["--set", "nativeHpaExecutor=true"]].concat();
        let notes = cluster.helm(&allowed).await.expect("helm upgrade");
        assert!(!warns(&notes), "{notes}");
        cluster.kubectl(&["-n", &ns.name, "delete", "autoscaler", "native"]).await;
        let image = "jsonpath={.spec.template.spec.containers[0].image} {.spec.replicas}";
        let deployed = ["-n", "plimsoll", "get", "deployment", "plimsoll", "-o", image];
        assert_eq!(cluster.kubectl(&deployed).await, "plimsoll:0.1.0 3");
        assert_eq!(written().await, before);
        assert_eq!(ns.replicas("Deployment", "web").await, 1);

        // A process with the permissions of the chart.
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
