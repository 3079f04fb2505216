//! What an operator does and sees: commands, metrics, alerts and the dashboard.

use crate::{FOLLOWS, SOON, on_own_bed, on_shared_bed};
use bed::plimsoll::binary;
use bed::process::printed;
use bed::workload::Namespace;
use bed::{Bed, Options, eventually, parts, root};
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
        assert_eq!(results("plimsoll-replicas"), ["error"], "{shown}");
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

#[test]
fn each_alert_fires_on_its_condition_and_has_a_runbook() {
    let alerts = root().join("deploy/monitoring/alerts.yaml");
    let text = std::fs::read_to_string(root().join("tests/data/alerts_test.yaml")).unwrap();
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), text.replace("ALERTS", &alerts.display().to_string())).unwrap();
    let promtool = parts(&["promtool"]).join("promtool");
    let done = Command::new(promtool).args(["test", "rules"]).arg(file.path()).output().unwrap();
    let said = [&done.stdout[..], &done.stderr].concat();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&said));
    let rules: Value =
        serde_saphyr::from_str(&std::fs::read_to_string(&alerts).unwrap()).expect("YAML");
    let rules = rules["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() >= 10);
    for rule in rules {
        let page = root().join(rule["annotations"]["runbook_url"].as_str().unwrap());
        let page = std::fs::read_to_string(&page).unwrap_or_else(|_| panic!("{}", page.display()));
        let (name, expr) = (rule["alert"].as_str().unwrap(), rule["expr"].as_str().unwrap());
        assert!(page.starts_with(&format!("# {name}\n")) && page.contains(expr), "{name}");
        assert!(text.contains(&format!("{name} fires")), "{name} has no test");
    }
}

#[test]
fn the_dashboard_shows_data_and_every_metric_has_a_sane_name() {
    on_own_bed(Options::default(), async |bed| {
        // Prometheus scrapes it with its own service account.
        let token = ["-n", "plimsoll", "create", "token", "scraper", "--duration=24h"];
        let token = bed.cluster.kubectl(&token).await;
        let path = bed.cluster.folder.join("prometheus.yml");
        let mut config = std::fs::read_to_string(&path).unwrap();
        config += &format!(
            "  - job_name: plimsoll\n    scheme: https\n    tls_config: {{insecure_skip_verify: true}}\n\
             \x20   authorization: {{credentials: '{}'}}\n    static_configs: [{{targets: ['127.0.0.1:{}']}}]\n",
            token.trim(),
            bed.plimsoll.port
        );
        bed.cluster.write_prometheus_config(&config);
        bed.cluster.stop_prometheus();
        bed.cluster.start_prometheus();
        bed.cluster.wait_prometheus().await;
        let ns = Namespace::new(&bed.cluster, "dashboard").await;
        ns.deployment("web", 1, "queue 20").await;
        ns.autoscaler("web", "queue", "10", 2).await;
        ns.autoscaler("gone", "queue", "10", 2).await;
        let metric = ns.hpa("native", "http_requests_total", "10", 5).await;
        ns.deployment("native", 1, "").await;
        // kube-controller-manager changes the scale, which is when decisions are compared.
        bed.cluster.load("dashboard", "app=native", "/hit/http_requests_total", 36.0).await;
        let dashboard = root().join("deploy/monitoring/dashboard.json");
        let dashboard: Value =
            serde_json::from_str(&std::fs::read_to_string(dashboard).unwrap()).unwrap();
        let panels = dashboard["panels"].as_array().unwrap();
        let targets =
            panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
        let queries: Vec<String> = targets
            .map(|target| target["expr"].as_str().unwrap().replace("$__rate_interval", "20s"))
            .collect();
        assert!(queries.len() > 20);
        for query in queries {
            eventually(&format!("data of {query}"), SOON, async || {
                let _ = ns.raw("v1beta2", &format!("pods/*/{metric}")).await;
                let base = format!("http://127.0.0.1:{}/api/v1/query", bed.cluster.prometheus_port);
                let url = reqwest::Url::parse_with_params(&base, [("query", &query)]).unwrap();
                let answer = reqwest::get(url).await.map_err(|error| error.to_string())?;
                let answer = answer.text().await.map_err(|error| error.to_string())?;
                let answer: Value = serde_json::from_str(&answer).map_err(|e| e.to_string())?;
                let found = answer["data"]["result"].as_array().map_or(0, Vec::len);
                if found > 0 { Ok(()) } else { Err(answer.to_string()) }
            })
            .await;
        }
        // What is served is described.
        let metrics = bed.plimsoll.metrics(&bed.cluster).await;
        let described: Vec<&str> =
            metrics.lines().filter_map(|l| l.strip_prefix("# HELP ")).collect();
        assert!(described.len() > 20, "{described:?}");
        let known = plimsoll::commands::reference::markdown();
        for line in described {
            let name = line.split(' ').next().unwrap();
            assert!(known.contains(&format!("`{name}")), "{name} is not in the reference");
        }
    });
}
