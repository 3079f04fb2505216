//! What the Helm chart renders for values that real clusters need, and the permissions it grants.

use crate::{SOON, runtime};
use bed::cluster::Cluster;
use bed::process::printed;
use bed::{Options, eventually, parts, root};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// Renders the chart as the release `plimsoll` with these arguments.
fn template(arguments: &[&str]) -> Result<Vec<Value>, String> {
    template_as("plimsoll", arguments)
}

fn template_as(release: &str, arguments: &[&str]) -> Result<Vec<Value>, String> {
    template_of(&root().join("deploy/chart"), release, arguments)
}

fn template_of(chart: &Path, release: &str, arguments: &[&str]) -> Result<Vec<Value>, String> {
    let done = Command::new(parts(&["helm"]).join("helm"))
        .args(["template", release])
        .arg(chart)
        .args(["-n", "plimsoll", "--kube-version=1.36.0"])
        .args(arguments)
        .output()
        .expect("helm can be run");
    let documents: Vec<Option<Value>> =
        serde_saphyr::from_multiple(&printed(&done)?).expect("YAML");
    Ok(documents.into_iter().flatten().collect())
}

/// The object of a kind whose name ends so.
fn object<'a>(objects: &'a [Value], kind: &str, end: &str) -> &'a Value {
    let is = |object: &&Value| {
        object["kind"] == kind
            && object["metadata"]["name"].as_str().is_some_and(|name| name.ends_with(end))
    };
    objects.iter().find(is).unwrap_or_else(|| panic!("no {kind} {end}"))
}

fn set(value: &str) -> [&str; 2] {
    ["--set", value]
}

#[test]
fn each_combination_of_metrics_apis_has_the_rights_it_needs_and_no_more() {
    runtime().block_on(async {
        let cluster = Cluster::control_plane(&Options::default()).await;
        cluster.kubectl(&["create", "namespace", "plimsoll"]).await;
        let all = ["v1beta1.custom", "v1beta2.custom", "v1beta1.external", "v1beta1"];
        let reviews: Api<SubjectAccessReview> = Api::all(cluster.client.clone());
        for combination in 0..16_u8 {
            let on = |bit: u8| combination & (1 << bit) != 0;
            let [custom, external, resource, own_certificate] = [0, 1, 2, 3].map(on);
            let release = format!("p{combination}");
            let values = format!(
                "apiServices.custom={custom},apiServices.external={external},\
                 apiServices.resource={resource}{}",
                if own_certificate { ",tls.secret=tls,tls.caBundle=PEM" } else { "" }
            ) + if resource { ",config.resourceRules.window=1m" } else { "" };
            let objects = template_as(&release, &set(&values)).expect("it is rendered");
            let roles = objects.into_iter().filter(|object| {
                let kind = object["kind"].as_str().unwrap_or_default();
                kind.contains("Role") || kind == "ServiceAccount"
            });
            let roles =
                json!({"apiVersion": "v1", "kind": "List", "items": roles.collect::<Vec<_>>()});
            cluster.apply(&roles.to_string()).await;
            let can = async |group: &str, resource: &str, verb: &str, name: &str| -> bool {
                let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                let review = serde_json::from_value(json!({
                    "metadata": {},
                    "spec": {
                        "user": format!("system:serviceaccount:plimsoll:{release}"),
                        "groups": ["system:serviceaccounts", "system:authenticated"],
                        "resourceAttributes": {"group": group, "resource": resource, "verb": verb,
                            "subresource": subresource, "name": name},
                    },
                }));
                let review = review.expect("a review");
                let answer = reviews.create(&PostParams::default(), &review).await;
                answer.expect("an answer").status.expect("a status").allowed
            };
            // The authorizer lags behind RBAC objects that were just created.
            eventually("the role counts", SOON, async || {
                match can("", "pods", "watch", "").await {
                    true => Ok(()),
                    false => Err(values.clone()),
                }
            })
            .await;
            let aggregation = "apiregistration.k8s.io";
            for other in ["", "v1.apps", "v1.", "v1beta1.metrics.k8s.io.example.com"] {
                for verb in ["patch", "update", "create", "delete", "get"] {
                    let may = can(aggregation, "apiservices", verb, other).await;
                    assert!(!may, "{values}: {verb} of the APIService {other:?}");
                }
            }
            for (name, registered) in all.iter().zip([custom, custom, external, resource]) {
                let name = format!("{name}.metrics.k8s.io");
                let may = can(aggregation, "apiservices", "patch", &name).await;
                assert_eq!(may, registered && !own_certificate, "{values}: patch of {name}");
            }
            let watches = can(aggregation, "apiservices", "watch", "").await;
            assert_eq!(watches, !own_certificate, "{values}: watch of APIServices");
            assert_eq!(can("", "nodes", "list", "").await, resource, "{values}: nodes");
            for (group, kind, verb) in [
                ("autoscaling", "horizontalpodautoscalers", "create"),
                ("autoscaling", "horizontalpodautoscalers", "patch"),
                ("autoscaling", "horizontalpodautoscalers", "delete"),
                ("autoscaling", "horizontalpodautoscalers/status", "patch"),
                ("", "secrets", "get"),
                ("", "configmaps", "get"),
                ("apps", "deployments", "update"),
                ("", "users", "impersonate"),
            ] {
                assert!(!can(group, kind, verb, "").await, "{values}: {verb} of {kind}");
            }
        }
        for (values, verb, kind) in [
            ("nativeHpaExecutor=true", "delete", "horizontalpodautoscalers"),
            ("nativeHpas=manage", "patch", "horizontalpodautoscalers/status"),
        ] {
            let objects = template(&set(values)).unwrap();
            let text = json!(objects).to_string();
            assert!(text.contains(verb) && text.contains(kind), "{values}");
        }
    });
}

#[test]
fn the_chart_rejects_values_that_contradict_each_other() {
    for (values, expected) in [
        ("tls.secret=tls", "tls.caBundle"),
        ("tls.caBundle=PEM", "tls.secret"),
        (r"apiServices.annotations.cert-manager\.io/inject-ca-from=plimsoll/x", "tls.secret"),
        (r"apiServices.annotations.service\.beta\.openshift\.io/inject-cabundle=yes", "tls.secret"),
        ("apiServices.resource=true", "config.resourceRules"),
        ("image.digest=latest", "/image/digest"),
        ("serviceAccount.create=false", "serviceAccount.name"),
        ("networkPolicy.extraEgress=all", "/networkPolicy/extraEgress"),
        // Invalid names of a Service.
        ("fullnameOverride=9a", "/fullnameOverride"),
        ("fullnameOverride=a.b", "/fullnameOverride"),
        // Probes, Service, Role and volumes follow the value, not the flag.
        ("extraArgs={--secure-port=7000}", "--secure-port: set the value port"),
        ("extraArgs={--secure-port}", "--secure-port: set the value port"),
        ("extraArgs={--native-hpas=manage}", "nativeHpas"),
        ("extraArgs={--leader-elect-resource-name=x}", "fullnameOverride"),
        ("extraArgs={--leader-elect-resource-namespace=x}", "release's namespace"),
        ("extraArgs={--service-name=x}", "fullnameOverride"),
        ("extraArgs={--service-namespace=x}", "release's namespace"),
        ("extraArgs={--tls-cert-file=/x}", "tls.secret"),
        ("extraArgs={--config=/x}", "config"),
        ("extraArgs={--prometheus-url=http://x}", "prometheus.url"),
        ("extraArgs={--log-format=json}", "logFormat"),
        ("prometheus.tokenSecret=x,extraArgs={--prometheus-token-file=/x}", "tokenSecret"),
        ("env[0].name=POD_NAMESPACE,env[0].value=x", "/env/0/name"),
        // The Deployment's selector.
        (r"commonLabels.app\.kubernetes\.io/name=x", "commonLabels: app.kubernetes.io/name"),
        (r"podLabels.app\.kubernetes\.io/instance=x", "podLabels: app.kubernetes.io/instance"),
    ] {
        let error = template(&set(values)).err().unwrap_or_else(|| panic!("{values} is accepted"));
        assert!(error.contains(expected), "{values}: {error}");
    }
    let error = template_as("a.b", &[]).expect_err("a release with a dot");
    assert!(error.contains("set fullnameOverride"), "{error}");
    template_as("a.b", &set("fullnameOverride=ab")).expect("a name of its own");
    template(&set("extraArgs={--prometheus-token-file=/mine/token}")).expect("no value sets it");
    let annotated =
        r"tls.secret=tls,apiServices.annotations.cert-manager\.io/inject-ca-from=plimsoll/plimsoll";
    let objects = template(&set(annotated)).expect("a controller writes the CA");
    let service = object(&objects, "APIService", "v1beta2.custom.metrics.k8s.io");
    let annotations = &service["metadata"]["annotations"];
    assert_eq!(annotations["cert-manager.io/inject-ca-from"], "plimsoll/plimsoll");
    template(&set("tls.secret=tls,apiServices.custom=false,apiServices.decisions=false"))
        .expect("no API, so no CA is needed");
}

/// Every value and every section of values, as a path for `--set`.
fn paths(values: &Value) -> Vec<String> {
    let mut paths = Vec::new();
    for (name, value) in values.as_object().expect("values") {
        paths.push(name.clone());
        let inner = value.as_object().into_iter().flat_map(|inner| inner.keys());
        paths.extend(inner.map(|key| format!("{name}.{}", key.replace('.', "\\."))));
    }
    paths
}

#[test]
fn a_null_value_is_rejected_by_name_or_leaves_a_working_chart() {
    let values = std::fs::read_to_string(root().join("deploy/chart/values.yaml")).expect("values");
    let values: Value = serde_saphyr::from_str(&values).expect("YAML");
    let on = "serviceMonitor.enabled=true,prometheusRule.enabled=true,dashboard.enabled=true";
    let mut refused = 0;
    for path in paths(&values) {
        match template(&[set(on), set(&format!("{path}=null"))].concat()) {
            Err(error) => {
                let key = path.rsplit('.').next().unwrap_or(&path);
                assert!(error.contains(&format!("missing property '{key}'")), "{path}: {error}");
                refused += 1;
            }
            Ok(objects) => {
                let deployment = object(&objects, "Deployment", "plimsoll");
                let container = &deployment["spec"]["template"]["spec"]["containers"][0];
                for argument in container["args"].as_array().expect("arguments") {
                    let argument = argument.as_str().expect("text");
                    assert!(!argument.ends_with(['=', '/']), "{path}: {argument}");
                }
                assert!(!json!(objects).to_string().contains("nil>"), "{path}");
            }
        }
    }
    assert!(refused > 20, "{refused}");
}

#[test]
fn values_of_an_earlier_chart_are_still_accepted() {
    // `helm upgrade --reset-then-reuse-values` passes them.
    template(&set(
        "serviceMonitor.serviceAccount.name=x,serviceMonitor.serviceAccount.namespace=y",
    ))
    .expect("deprecated and ignored");
}

#[test]
fn an_umbrella_chart_turns_it_on_and_has_values_for_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |path: &str, text: &str| std::fs::write(folder.path().join(path), text).unwrap();
    std::fs::create_dir(folder.path().join("charts")).unwrap();
    std::os::unix::fs::symlink(root().join("deploy/chart"), folder.path().join("charts/plimsoll"))
        .unwrap();
    file(
        "Chart.yaml",
        "apiVersion: v2\nname: platform\nversion: 1.0.0\ndependencies:\n\
         - {name: plimsoll, version: 0.1.0, condition: plimsoll.enabled}\n",
    );
    file("values.yaml", "global: {team: a}\nplimsoll: {enabled: true}\n");
    let on = template_of(folder.path(), "platform", &[]).expect("it is rendered");
    object(&on, "Deployment", "platform");
    let off = template_of(folder.path(), "platform", &set("plimsoll.enabled=false")).unwrap();
    assert_eq!(off, [] as [Value; 0]);
}

/// Tags can be moved, and the chart is signed.
#[test]
fn a_released_chart_names_its_image_by_digest() {
    let folder = tempfile::tempdir().expect("a folder");
    let chart = folder.path().join("chart");
    let digest = format!("sha256:{}", "a".repeat(64));
    let changelog = std::fs::read_to_string(root().join("CHANGELOG.md")).expect("a file");
    let section = changelog.lines().find_map(|line| line.strip_prefix("## ")).expect("a section");
    let section = section.split(' ').next().unwrap();
    let name = "registry.example/owner/name";
    let done = Command::new(root().join("deploy/release"))
        .args(["chart", section, "owner/name", name, &digest])
        .arg(&chart)
        .output();
    printed(&done.expect("it can be run")).expect("a chart");
    // The section of CHANGELOG.md gets its number when it is released.
    let metadata = std::fs::read_to_string(chart.join("Chart.yaml")).unwrap();
    let metadata = metadata.replace(&format!(":{section}@"), ":0.1.0@");
    std::fs::write(chart.join("Chart.yaml"), metadata).unwrap();
    let image = |values: &str| {
        let objects = template_of(&chart, "plimsoll", &set(values)).expect("it is rendered");
        let pod = &object(&objects, "Deployment", "plimsoll")["spec"]["template"]["spec"];
        pod["containers"][0]["image"].as_str().unwrap().to_owned()
    };
    let other = format!("sha256:{}", "b".repeat(64));
    for (values, expected) in [
        ("replicas=2", format!("{name}:0.1.0@{digest}")),
        // As the page has it for an upgrade.
        ("image.tag=,image.digest=", format!("{name}:0.1.0@{digest}")),
        ("image.tag=mine", format!("{name}:mine")),
        // An image that was loaded into the nodes has no digest there.
        ("image.tag=0.1.0", format!("{name}:0.1.0")),
        ("image.repository=mirror/name", "mirror/name:0.1.0".to_owned()),
        (&*format!("image.digest={other}"), format!("{name}@{other}")),
    ] {
        assert_eq!(image(values), expected, "{values}");
    }
}

#[test]
fn labels_are_rendered_once() {
    let labels = "commonLabels.team=a,podLabels.team=b,serviceMonitor.enabled=true,\
        serviceMonitor.labels.team=c,commonLabels.app\\.kubernetes\\.io/version=mine";
    // The parser rejects duplicate keys.
    let objects = template(&set(labels)).unwrap();
    let deployment = object(&objects, "Deployment", "plimsoll");
    let pod = &deployment["spec"]["template"]["metadata"]["labels"];
    assert_eq!(
        (&deployment["metadata"]["labels"]["team"], &pod["team"]),
        (&json!("a"), &json!("b"))
    );
    assert_eq!(pod["app.kubernetes.io/version"], "mine");
    assert_eq!(object(&objects, "ServiceMonitor", "plimsoll")["metadata"]["labels"]["team"], "c");
    for (label, value) in deployment["spec"]["selector"]["matchLabels"].as_object().unwrap() {
        assert_eq!(&pod[label], value, "{label}");
    }
}

#[test]
fn a_rollout_on_the_host_network_needs_no_port_twice() {
    let strategy = |values: &str| {
        let objects = template(&set(values)).unwrap();
        object(&objects, "Deployment", "plimsoll")["spec"]["strategy"]["rollingUpdate"].clone()
    };
    assert_eq!(strategy("hostNetwork=true"), json!({"maxSurge": 0, "maxUnavailable": 1}));
    assert_eq!(strategy("hostNetwork=false"), json!({"maxSurge": 1, "maxUnavailable": 0}));
}

#[test]
fn viewers_may_read_the_metrics_apis_that_are_registered() {
    let view = |values: &str| {
        let objects = template(&set(values)).unwrap();
        object(&objects, "ClusterRole", ":view")["rules"].to_string()
    };
    let plain = view("apiServices.custom=true");
    assert!(!plain.contains("\"metrics.k8s.io") && !plain.contains("external"), "{plain}");
    assert!(
        view("apiServices.resource=true,config.resourceRules.window=1m")
            .contains(r#"["metrics.k8s.io"],"resources":["pods","nodes"]"#)
    );
    assert!(view("apiServices.external=true").contains("external.metrics.k8s.io"));
}

#[test]
fn openshift_issues_the_certificate_and_the_ca_of_prometheus() {
    let values = r"tls.secret=plimsoll-tls,
        prometheus.caConfigMap=openshift-service-ca.crt,prometheus.caKey=service-ca.crt,
        service.annotations.service\.beta\.openshift\.io/serving-cert-secret-name=plimsoll-tls";
    let values = values.split_whitespace().collect::<String>();
    let inject = r"apiServices.annotations.service\.beta\.openshift\.io/inject-cabundle=true";
    let objects = template(&["--set", &values, "--set-string", inject]).unwrap();
    let annotations = &object(&objects, "Service", "plimsoll")["metadata"]["annotations"];
    assert_eq!(annotations["service.beta.openshift.io/serving-cert-secret-name"], "plimsoll-tls");
    let deployment = object(&objects, "Deployment", "plimsoll").to_string();
    assert!(deployment.contains("--prometheus-ca-file=/etc/plimsoll-prometheus-ca/service-ca.crt"));
}

#[test]
fn the_network_policy_allows_egress_to_what_the_values_name() {
    let config = "prometheus.url=https://thanos.monitoring.svc:10902/path,\
                  config.backends.a.url=http://mimir:8080,config.backends.b.url=https://v.example,\
                  config.passOn.external\\.metrics\\.k8s\\.io.url=http://[fd00::1]:8081,\
                  env[0].name=HTTPS_PROXY,env[0].value=http://me:secret@proxy:3128";
    let objects = template(&set(config)).unwrap();
    let rules = object(&objects, "NetworkPolicy", "plimsoll")["spec"]["egress"].clone();
    let ports_of = |rule: &Value| -> Vec<(u64, String)> {
        let ports = rule["ports"].as_array().cloned().unwrap_or_default();
        let port = |port: Value| (port["port"].as_u64().unwrap(), port["protocol"].to_string());
        ports.into_iter().map(port).collect()
    };
    let open: Vec<(u64, String)> = rules
        .as_array()
        .expect("rules")
        .iter()
        .filter(|rule| rule.get("to").is_none())
        .flat_map(ports_of)
        .collect();
    for port in [443, 6443, 10902, 8080, 8081, 3128, 53, 5353] {
        assert!(open.contains(&(port, "\"TCP\"".to_owned())), "{port}: {open:?}");
    }
    for port in [53, 5353] {
        assert!(open.contains(&(port, "\"UDP\"".to_owned())), "{port}: {open:?}");
    }
    let plain = template(&set("prometheus.url=http://prometheus-server.monitoring.svc")).unwrap();
    let rules = &object(&plain, "NetworkPolicy", "plimsoll")["spec"]["egress"];
    assert!(rules.to_string().contains("\"port\":80,"), "{rules}");
    let extra = r#"networkPolicy.extraEgress=[{"to":[{"ipBlock":{"cidr":"10.0.0.0/8"}}]}]"#;
    let extra = template(&["--set-json", extra]).unwrap();
    let rules = &object(&extra, "NetworkPolicy", "plimsoll")["spec"]["egress"];
    assert!(rules.to_string().contains("10.0.0.0/8"), "{rules}");
    // Values of --set are other numbers than those of a file.
    let given = template(&set("networkPolicy.egressPorts={443,16443,9090}")).unwrap();
    let rule = &object(&given, "NetworkPolicy", "plimsoll")["spec"]["egress"][1];
    let ports: Vec<u64> = ports_of(rule).into_iter().map(|(port, _)| port).collect();
    assert_eq!(ports, [443, 16443, 9090, 6443]);
}

#[test]
fn requirements_of_a_cluster_on_the_pods_are_values_of_the_chart() {
    let plain = template(&[]).unwrap();
    let pod = &object(&plain, "Deployment", "plimsoll")["spec"]["template"]["spec"];
    assert_eq!(pod.get("priorityClassName"), None, "GKE has no quota for system-cluster-critical");
    assert_eq!(pod["nodeSelector"]["kubernetes.io/os"], "linux");
    assert_eq!(pod["automountServiceAccountToken"], true);
    assert_eq!(pod["enableServiceLinks"], false);
    assert_eq!(pod["containers"][0]["args"][0], "serve");
    assert_eq!(object(&plain, "ServiceAccount", "plimsoll")["automountServiceAccountToken"], false);

    let digest = format!("sha256:{}", "a".repeat(64));
    let values = json!({
        "fullnameOverride": "scaler",
        "commonLabels": {"team": "platform"},
        "image": {"digest": digest},
        "serviceAccount": {"create": false, "name": "mine", "annotations": {}},
        "podSecurityContext": {"runAsUser": null, "runAsGroup": null},
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "extraVolumes": [{"name": "keda-ca", "configMap": {"name": "keda-ca"}}],
        "extraVolumeMounts": [{"name": "keda-ca", "mountPath": "/etc/keda"}],
        "extraContainers": [{"name": "signer", "image": "sigv4-proxy:1"}],
        "livenessProbe": {"timeoutSeconds": 9},
        "readinessProbe": {"failureThreshold": 7},
        "securityContext": {"privileged": false},
        "deploymentAnnotations": {"reloader": "yes"},
        "priorityClassName": "mine",
    });
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), values.to_string()).expect("a file");
    let objects = template(&["-f", &file.path().display().to_string()]).unwrap();
    let deployment = object(&objects, "Deployment", "scaler");
    assert_eq!(deployment["metadata"]["annotations"]["reloader"], "yes");
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["image"], format!("plimsoll@{digest}"));
    assert_eq!(pod["serviceAccountName"], "mine");
    assert_eq!(pod["priorityClassName"], "mine");
    let user = pod["securityContext"].get("runAsUser");
    assert_eq!((user, &pod["securityContext"]["runAsNonRoot"]), (None, &json!(true)));
    assert_eq!(container["securityContext"]["privileged"], false);
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    assert!(container["env"].to_string().contains("http://proxy:3128"));
    assert_eq!(pod["containers"][1]["name"], "signer");
    assert!(container["volumeMounts"].to_string().contains("/etc/keda"));
    assert!(pod["volumes"].to_string().contains("keda-ca"));
    assert_eq!(container["livenessProbe"]["timeoutSeconds"], 9);
    assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/livez");
    assert_eq!(container["readinessProbe"]["failureThreshold"], 7);
    assert!(!objects.iter().any(|object| object["kind"] == "ServiceAccount"));
    for object in &objects {
        assert_eq!(object["metadata"]["labels"]["team"], "platform", "{}", object["kind"]);
    }
    let subjects = &object(&objects, "ClusterRoleBinding", "scaler")["subjects"];
    assert_eq!(subjects[0]["name"], "mine");
    // With any release name, the flags name its own Service, Lease and scaling history.
    let arguments = container["args"].to_string();
    for expected in ["--service-name=scaler", "--leader-elect-resource-name=scaler"] {
        assert!(arguments.contains(expected), "{arguments}");
    }
}

#[test]
fn the_values_for_a_decision_log_have_a_volume_that_is_large_enough() {
    let page = std::fs::read_to_string(root().join("docs/decisions.md")).expect("a page");
    let values = page.split("```yaml\n").find(|block| block.starts_with("extraArgs")).unwrap();
    let values = values.split("```").next().unwrap();
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), values).expect("a file");
    let objects = template(&["-f", &file.path().display().to_string()]).unwrap();
    let pod = &object(&objects, "Deployment", "plimsoll")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let last = |list: &Value| list.as_array().and_then(|list| list.last()).unwrap().clone();
    let (mount, volume) = (last(&container["volumeMounts"]), last(&pod["volumes"]));
    let log = format!("--decision-log={}/log.jsonl", mount["mountPath"].as_str().unwrap());
    assert_eq!(last(&container["args"]), log);
    assert_eq!(volume["name"], mount["name"]);
    let limit = volume["emptyDir"]["sizeLimit"].as_str().and_then(|size| size.strip_suffix("Mi"));
    assert!(limit.unwrap().parse::<u64>().unwrap() > 1024, "more than --decision-log-max-bytes");
    let security = &pod["securityContext"];
    assert_eq!(security["fsGroup"], security["runAsGroup"]);
    assert_eq!(security["runAsNonRoot"], true);
}

#[test]
fn monitoring_needs_no_file_inside_prometheus() {
    let values = "serviceMonitor.enabled=true,prometheusRule.enabled=true,dashboard.enabled=true,\
         prometheusRule.runbookUrl=https://runbooks.example/";
    let objects = template(&set(values)).unwrap();
    let endpoint = &object(&objects, "ServiceMonitor", "plimsoll")["spec"]["endpoints"][0];
    assert_eq!(endpoint.get("bearerTokenFile"), None);
    assert_eq!(endpoint["honorLabels"], true, "a metric of an Autoscaler has its namespace");
    let secret = &endpoint["authorization"]["credentials"];
    let name = secret["name"].as_str().expect("a Secret");
    let secret = object(&objects, "Secret", name);
    assert_eq!(secret["type"], "kubernetes.io/service-account-token");
    let account = secret["metadata"]["annotations"]["kubernetes.io/service-account.name"].as_str();
    object(&objects, "ServiceAccount", account.expect("an account"));
    let binding = object(&objects, "ClusterRoleBinding", ":scraper");
    assert_eq!(binding["subjects"][0]["name"], account.unwrap());
    let rule = object(&objects, "PrometheusRule", "plimsoll");
    assert!(rule["spec"]["groups"].is_array());
    let boards = object(&objects, "ConfigMap", "-dashboard");
    assert_eq!(boards["data"].as_object().map(serde_json::Map::len), Some(2));
    for linked in [rule, boards] {
        let text = linked.to_string();
        assert!(text.contains("https://runbooks.example/Plimsoll"), "{text}");
        assert!(!text.contains("docs/runbooks"), "{text}");
    }
}
