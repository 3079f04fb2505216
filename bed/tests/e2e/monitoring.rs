//! What is on call for Plimsoll: metrics, alerts, runbooks and dashboards.

use crate::{SOON, on_own_bed};
use bed::kube_state_metrics::KubeStateMetrics;
use bed::workload::Namespace;
use bed::{Bed, Options, eventually, parts, root};
use serde_json::Value;
use std::process::Command;

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
        let annotation = |name: &str| rule["annotations"][name].as_str().unwrap();
        let page = root().join(annotation("runbook_url"));
        let page = std::fs::read_to_string(&page).unwrap_or_else(|_| panic!("{}", page.display()));
        let (name, expr) = (rule["alert"].as_str().unwrap(), rule["expr"].as_str().unwrap());
        assert!(page.starts_with(&format!("# {name}\n")) && page.contains(expr), "{name}");
        assert!(text.contains(&format!("{name} fires")), "{name} has no test");
        let impact = page.split_once("## Impact\n\n").expect("an impact").1.replace('\n', " ");
        assert!(impact.starts_with(annotation("description")), "{name}: {impact}");
        let quiet = format!("alertname: {name}, exp_alerts: []");
        assert!(text.contains(&quiet), "nothing shows that {name} is quiet on a healthy cluster");
    }
}

/// A dashboard, by its file.
fn dashboard(file: &str) -> Value {
    let path = root().join("deploy/monitoring").join(file);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The texts of all fields of this name.
fn texts<'a>(value: &'a Value, field: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get(field).and_then(Value::as_str));
            fields.values().for_each(|value| texts(value, field, found));
        }
        Value::Array(values) => values.iter().for_each(|value| texts(value, field, found)),
        _ => {}
    }
}

const DASHBOARDS: [&str; 2] = ["dashboard.json", "dashboard-autoscaler.json"];

#[test]
fn grafanas_schema_accepts_the_dashboards_and_their_links_lead_somewhere() {
    let check = |folder: &std::path::Path| {
        let mut check = Command::new(parts(&["grafana-schema"]).join("grafana-schema"));
        check.args(DASHBOARDS.map(|file| folder.join(file)));
        let done = check.output().unwrap();
        (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let (is_accepted, said) = check(&root().join("deploy/monitoring"));
    assert!(is_accepted, "{said}");
    let wrong = tempfile::tempdir().unwrap();
    for file in DASHBOARDS {
        let text = dashboard(file).to_string().replace("\"reduceOptions\"", "\"reducedOptions\"");
        std::fs::write(wrong.path().join(file), text).unwrap();
    }
    let (is_accepted, said) = check(wrong.path());
    assert!(!is_accepted && said.contains("reducedOptions"), "{said}");

    let boards = DASHBOARDS.map(dashboard);
    let uids = boards.each_ref().map(|board| board["uid"].as_str().unwrap());
    for board in &boards {
        let mut urls = Vec::new();
        texts(board, "url", &mut urls);
        assert!(urls.len() > 3, "{urls:?}");
        for url in urls {
            if let Some(board) = url.strip_prefix("/d/") {
                assert!(uids.contains(&board.split('?').next().unwrap()), "{url}");
            } else if !url.contains('$') {
                assert!(root().join(url).is_file(), "{url}");
            }
        }
        // It begins with what it shows, and where that is described.
        let about = &board["panels"][0];
        let content = about["options"]["content"].as_str().unwrap();
        assert_eq!(about["type"], "text");
        for link in content.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            let other = link.strip_prefix("/d/");
            assert!(other.is_some_and(|uid| uids.contains(&uid)) || root().join(link).is_file());
        }
        let pages = content.split_whitespace().filter(|word| word.starts_with("docs/"));
        assert!(pages.clone().count() > 0, "{content}");
        assert!(pages.clone().all(|page| root().join(page).is_file()), "{content}");
        // A number that is a state has a word or a colour.
        for panel in board["panels"].as_array().unwrap() {
            let defaults = &panel["fieldConfig"]["defaults"];
            let says = defaults["thresholds"].is_object() || defaults["mappings"].is_array();
            assert!(panel["type"] != "stat" || says, "{panel}");
            let has_numbers = panel["type"] != "row" && panel["type"] != "text";
            assert!(!has_numbers || defaults["unit"].is_string(), "{panel}");
        }
    }
}

/// Has Prometheus scrape Plimsoll with its own service account, and evaluate its alerts.
async fn scrape_plimsoll(bed: &mut Bed) {
    let token = ["-n", "plimsoll", "create", "token", "scraper", "--duration=24h"];
    let token = bed.cluster.kubectl(&token).await;
    let path = bed.cluster.folder.join("prometheus.yml");
    let config = std::fs::read_to_string(&path).unwrap();
    let mut config = config.replacen("global: {", "global: {evaluation_interval: 2s, ", 1);
    config += &format!(
        "  - job_name: plimsoll\n    honor_labels: true\n    scheme: https\n    tls_config: {{insecure_skip_verify: true}}\n\
         \x20   authorization: {{credentials: '{}'}}\n    static_configs: [{{targets: ['127.0.0.1:{}']}}]\n\
         rule_files: ['{}']\n",
        token.trim(),
        bed.plimsoll.port,
        root().join("deploy/monitoring/alerts.yaml").display()
    );
    bed.cluster.write_prometheus_config(&config);
    bed.cluster.stop_prometheus();
    bed.cluster.start_prometheus();
    bed.cluster.wait_prometheus().await;
}

/// The number of series that a query has, or Prometheus's response if there are none.
async fn series(bed: &Bed, query: &str) -> Result<usize, String> {
    let base = format!("http://127.0.0.1:{}/api/v1/query", bed.cluster.prometheus_port);
    let url = reqwest::Url::parse_with_params(&base, [("query", query)]).unwrap();
    let response = reqwest::get(url).await.map_err(|error| error.to_string())?;
    let response = response.text().await.map_err(|error| error.to_string())?;
    let response: Value = serde_json::from_str(&response).map_err(|error| error.to_string())?;
    match response["data"]["result"].as_array().map_or(0, Vec::len) {
        0 => Err(response.to_string()),
        found => Ok(found),
    }
}

#[test]
fn the_dashboards_show_data_and_every_metric_has_a_sane_name() {
    on_own_bed(Options::default(), async |bed| {
        scrape_plimsoll(bed).await;
        let ns = Namespace::new(&bed.cluster, "dashboard").await;
        ns.deployment("web", 1, "queue 20").await;
        ns.autoscaler("web", "queue", "10", 2).await;
        // It fails, and its pending alert is shown.
        ns.autoscaler("gone", "queue", "10", 2).await;
        let metric = ns.hpa("native", "http_requests_total", "10", 5).await;
        ns.deployment("native", 1, "").await;
        // kube-controller-manager changes the scale, which is when decisions are compared.
        bed.cluster.load("dashboard", "app=native", "/hit/http_requests_total", 36.0).await;
        for file in DASHBOARDS {
            let board = dashboard(file);
            let autoscaler = |title: &str| if title == "Alerts" { "gone" } else { "web" };
            let mut queries = Vec::new();
            for panel in board["panels"].as_array().unwrap() {
                let autoscaler = autoscaler(panel["title"].as_str().unwrap());
                for target in panel["targets"].as_array().into_iter().flatten() {
                    let expr = target["expr"].as_str().unwrap().replace("$__rate_interval", "20s");
                    let expr = expr.replace("=~\"$namespace\"", "=~\".*\"");
                    let expr = expr.replace("$namespace", "dashboard");
                    let expr = expr.replace("$cluster", ".*").replace("$job", ".*");
                    let expr = expr.replace("$instance", ".*");
                    queries.push(expr.replace("$autoscaler", autoscaler));
                }
            }
            assert!(queries.len() > 15, "{file}");
            for query in queries {
                assert!(!query.contains('$'), "{query}");
                eventually(&format!("data of {query}"), SOON, async || {
                    let _ = ns.raw("v1beta2", &format!("pods/*/{metric}")).await;
                    series(bed, &query).await.map(drop)
                })
                .await;
            }
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

#[test]
fn kube_state_metrics_has_the_metrics_of_autoscalers_under_the_same_names() {
    on_own_bed(Options::default(), async |bed| {
        let _state = KubeStateMetrics::start(&mut bed.cluster).await;
        let ns = Namespace::new(&bed.cluster, "state").await;
        ns.deployment("web", 1, "queue 20").await;
        ns.autoscaler("web", "queue", "10", 2).await;
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 2).await;
        let web = "namespace=\"state\",autoscaler=\"web\"";
        for (name, labels, value) in [
            (
                "info",
                ",scaletargetref_api_version=\"apps/v1\",scaletargetref_kind=\"Deployment\",scaletargetref_name=\"web\"",
                "== 1",
            ),
            ("spec_min_replicas", "", "== 1"),
            ("spec_max_replicas", "", "== 2"),
            ("status_current_replicas", "", "== 2"),
            ("status_desired_replicas", "", "== 2"),
            ("status_last_scale_timestamp_seconds", "", "> 1.7e9"),
            ("status_condition", ",condition=\"ScalingActive\"", "== 1"),
            ("status_condition", ",condition=\"ScalingLimited\"", "== 0"),
        ] {
            let query = format!("plimsoll_autoscaler_{name}{{{web}{labels}}} {value}");
            eventually(&query, SOON, async || series(bed, &query).await.map(drop)).await;
        }
        // Each name and label is one of Plimsoll's own.
        let known = plimsoll::commands::reference::markdown();
        let file = root().join("deploy/monitoring/kube-state-metrics.yaml");
        let config: Value =
            serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        for metric in config["spec"]["resources"][0]["metrics"].as_array().unwrap() {
            let name = metric["name"].as_str().unwrap();
            assert!(known.contains(&format!("`plimsoll_autoscaler_{name}`")), "{name}");
        }
    });
}
