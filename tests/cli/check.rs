//! `plimsoll check`: configurations and objects.

use super::plimsoll;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

/// A configuration without rules.
const NO_RULES: &str = "podMetrics: {}\n";

/// Runs it on a configuration, which its output calls FILE.
fn checked(config: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config).unwrap();
    let path = file.path().to_str().unwrap();
    let output = plimsoll(&[&["check", path], arguments].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.code(), text.replace(path, "FILE"))
}

#[test]
fn check_finds_what_prometheus_would_refuse() {
    let rule = |list: &str, series: &str, query: &str| {
        format!(
            "{list}:\n- seriesQuery: '{series}'\n  metricsQuery: '{query}'\n  resources: {{template: <<.Resource>>}}\n"
        )
    };
    let good = "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)";
    let (code, text) = checked(&rule("rules", "http_requests_total{pod!=\"\"}", good), &[]);
    assert_eq!(code, Some(0), "{text}");
    for (config, expected) in [
        (rule("rules", "x", "sum(<<.Series>>{<<.LabelMatchers>>}"), "rules[0].metricsQuery"),
        (rule("externalRules", "x", "sum(<<.Series>>{<<.LabelMatchers>>}"), "externalRules[0].metricsQuery"),
        (rule("rules", "x{", good), "rules[0].seriesQuery"),
        (rule("rules", "x{pod=~\"(\"}", good), "rules[0].seriesQuery"),
        (
            "podMetrics:\n  counterQuery: 'sum by (<<.GroupBy>>) (rate(<<.Series>>{<<.LabelMatchers>>}[2m])'\n".to_owned(),
            "podMetrics.counterQuery",
        ),
        (
            "resourceRules:\n  cpu: {containerQuery: 'sum(x{<<.LabelMatchers>>}', nodeQuery: 'x', resources: {template: <<.Resource>>}, containerLabel: c}\n  \
             memory: {containerQuery: 'x', nodeQuery: 'x', resources: {template: <<.Resource>>}, containerLabel: c}\n  window: 1m\n".to_owned(),
            "resourceRules.cpu.containerQuery",
        ),
    ] {
        let (code, text) = checked(&config, &[]);
        assert_eq!(code, Some(1), "{config}{text}");
        assert!(text.contains(expected), "{config}{text}");
    }
}

#[test]
fn check_names_its_own_parser_and_points_to_prometheus() {
    let config = "rules:\n- seriesQuery: x\n  metricsQuery: 'sum(rate(<<.Series>>{<<.LabelMatchers>>}[5m*2])) by (<<.GroupBy>>)'\n  \
                  resources: {template: <<.Resource>>}\n";
    let (code, text) = checked(config, &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("rules[0].metricsQuery"), "{text}");
    assert!(text.contains("Plimsoll's parser can't read this"), "{text}");
    assert!(text.contains("with --prometheus-url"), "{text}");
}

#[test]
fn check_takes_autoscalers_instead_of_a_configuration() {
    for name in
        ["totals", "schedules", "policies", "modes", "design-document", "autoscaler", "native-hpa"]
    {
        let path = format!("{}/docs/examples/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let output = plimsoll(&["check", "-f", &path]);
        let text = String::from_utf8_lossy(&output.stdout);
        // A window that is once passes.
        let is_over = |line: &&str| name == "schedules" && line.contains(" is over");
        let lines: Vec<&str> = text.lines().filter(|line| !is_over(line)).collect();
        assert_eq!(
            (output.status.code(), &*lines),
            (Some(0), &["the Autoscalers are valid"][..]),
            "{name}"
        );
    }
    let nothing = plimsoll(&["check"]);
    assert_eq!(nothing.status.code(), Some(2));
    let text = String::from_utf8_lossy(&nothing.stderr);
    for way in ["CONFIG", "--config <FILE>", "--filename <FILE>"] {
        assert!(text.contains(way), "{text}");
    }
}

/// Runs it on objects in a file.
fn check_objects(objects: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), objects).unwrap();
    let path = file.path().to_str().unwrap();
    let output = plimsoll(&[&["check", "-f", path], arguments].concat());
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

const AUTOSCALER: &str = "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\nmetadata: {name: web}\n\
    spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, maxReplicas: 3, \
    customMetrics: [{metricName: requests_total, averageValue: 1}]}\n";
const METRIC_RULE: &str = "apiVersion: plimsoll.dev/v1alpha1\nkind: MetricRule\nmetadata: {name: requests}\n\
    spec: {seriesQuery: x, metricsQuery: 'sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)'}\n";
const UNREACHABLE: &str = "--prometheus-url=http://127.0.0.1:1";

#[test]
fn check_says_what_was_checked_and_what_was_not() {
    let (code, text) = check_objects(METRIC_RULE, &[]);
    assert_eq!((code, &*text), (Some(0), "the MetricRules are valid\n"));
    let both = format!("{AUTOSCALER}---\n{METRIC_RULE}");
    let (code, text) = check_objects(&both, &["-n", "shop"]);
    assert_eq!((code, &*text), (Some(0), "the Autoscalers and the MetricRules are valid\n"));
    let (code, text) = check_objects(&both, &[UNREACHABLE]);
    assert_eq!(code, Some(0), "{text}");
    for expected in [
        "not checked: autoscaler web: spec.customMetrics[0].metricName: whether its query was empty: it has no namespace",
        "not checked: metricrule requests: whether Prometheus has its series",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    let (code, text) = check_objects(AUTOSCALER, &["--namespace=shop", UNREACHABLE]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("not checked: autoscaler shop/web") && !text.contains("no namespace"),
        "{text}"
    );
    let (code, _) = check_objects(AUTOSCALER, &["--namespace=shop", UNREACHABLE, "--strict"]);
    assert_eq!(code, Some(1), "what could not be checked");
    let named = AUTOSCALER.replace("name: web}\nspec", "name: web, namespace: other}\nspec");
    let (code, text) = check_objects(&named, &["-n", "shop"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains(
            "autoscaler other/web: metadata.namespace: \"other\": --namespace is \"shop\""
        ),
        "{text}"
    );
}

#[test]
fn check_asks_with_the_labels_of_the_configuration() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("--prometheus-url=http://{}", server.local_addr().unwrap());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), AUTOSCALER).unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    let config = "podMetrics: {namespaceLabel: ns, podLabel: pod_name}\n";
    let checking = std::thread::spawn(move || {
        let answer = checked(config, &["-f", &path, "-n", "shop", &url]);
        let _ = std::net::TcpStream::connect(url.rsplit('/').next().unwrap());
        answer
    });
    // The server has one minute, without series, and none now.
    let mut asked = String::new();
    loop {
        let (mut client, _) = server.accept().unwrap();
        let mut reader = BufReader::new(client.try_clone().unwrap());
        let mut first = String::new();
        if reader.read_line(&mut first).unwrap() == 0 {
            break;
        }
        let is_history = first.contains("%5B1d%3A1m%5D");
        if is_history {
            asked.clone_from(&first);
        }
        while reader.read_line(&mut first).unwrap() > 2 {}
        let result = if is_history { r#"{"metric":{},"values":[[0,"-1"]]}"# } else { "" };
        let body = format!(
            r#"{{"status":"success","data":{{"resultType":"matrix","result":[{result}]}}}}"#
        );
        let length = body.len();
        let _ = write!(
            client,
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
    }
    let (code, text) = checking.join().unwrap();
    assert_eq!(code, Some(0), "{text}");
    assert!(asked.contains("ns%3D%22shop%22") && asked.contains("pod_name"), "{asked} {text}");
    assert!(text.contains("no series at any minute"), "{text}");
    assert!(text.contains("(asked with ns=\"shop\", pods by the label pod_name"), "{text}");
    assert!(text.ends_with("the configuration and the Autoscalers are valid\n"), "{text}");
}

#[test]
fn check_warns_of_a_metric_that_no_rule_of_the_configuration_gives() {
    let metric = |kind: &str, field: &str, more: &str| {
        format!(
            "{{type: {kind}, {field}: {{metric: {{name: queue}}, target: {{type: AverageValue, averageValue: 5}}{more}}}}}"
        )
    };
    let external = metric("External", "external", "");
    let pods = metric("Pods", "pods", "");
    let object = metric(
        "Object",
        "object",
        ", describedObject: {apiVersion: networking.k8s.io/v1, kind: Ingress, name: web}",
    );
    let rule = |list: &str, series: &str, name: &str| {
        format!(
            "{list}:\n- seriesQuery: '{series}'\n  metricsQuery: 'sum(<<.Series>>{{<<.LabelMatchers>>}}) by (<<.GroupBy>>)'\n  \
             resources: {{template: <<.Resource>>}}\n  name: {name}\n"
        )
    };
    let pass_on = "passOn: {external.metrics.k8s.io: {url: 'https://other:443'}}\n".to_owned();
    let metric_rule = METRIC_RULE.replace("name: requests", "name: requests, namespace: shop");
    for (config, metric, more, expected) in [
        (
            NO_RULES.to_owned(),
            &external,
            "",
            Some("external.metric.name: no rule of externalRules gives \"queue\""),
        ),
        (
            NO_RULES.to_owned(),
            &pods,
            "",
            Some("pods.metric.name: no rule of rules gives \"queue\""),
        ),
        (
            NO_RULES.to_owned(),
            &object,
            "",
            Some("object.metric.name: no rule of rules gives \"queue\""),
        ),
        (rule("rules", "queue", "{}"), &external, "", Some("no rule of externalRules")),
        (
            rule("externalRules", "jobs{a=\"b\"}", "{}"),
            &external,
            "",
            Some("no rule of externalRules"),
        ),
        (
            rule("externalRules", "{a=\"b\"}", "{as: jobs}"),
            &external,
            "",
            Some("no rule of externalRules"),
        ),
        (
            rule("externalRules", "queue", "{as: length}"),
            &external,
            "",
            Some("no rule of externalRules"),
        ),
        (rule("externalRules", "queue{a=\"b\"}", "{}"), &external, "", None),
        (rule("externalRules", "jobs", "{as: queue}"), &external, "", None),
        (rule("rules", "{__name__=~\"^q.*\"}", "{}"), &pods, "", None),
        (rule("rules", "{a=\"b\"}", "{matches: ^(.*)_total$, as: 'que${1}'}"), &object, "", None),
        // Another adapter may, and a MetricRule.
        (pass_on, &external, "", None),
        (NO_RULES.to_owned(), &pods, &*metric_rule, None),
    ] {
        let file = tempfile::NamedTempFile::new().unwrap();
        let autoscaler =
            AUTOSCALER.replace("name: web}\nspec", "name: web, namespace: shop}\nspec").replace(
                "customMetrics: [{metricName: requests_total, averageValue: 1}]",
                &format!("metrics: [{metric}]"),
            );
        std::fs::write(file.path(), format!("{autoscaler}---\n{more}")).unwrap();
        let path = file.path().to_str().unwrap();
        let (code, text) = checked(&config, &["-f", path]);
        assert_eq!(code, Some(0), "{text}");
        let warning = "warning: autoscaler shop/web: spec.metrics[0].";
        assert_eq!(text.contains(warning), expected.is_some(), "{config}{text}");
        assert!(expected.is_none_or(|expected| text.contains(expected)), "{text}");
        // Without a configuration nothing is known of rules.
        let output = plimsoll(&["check", "-f", path]);
        assert!(!String::from_utf8_lossy(&output.stdout).contains("warning"), "{metric}");
    }
}

#[test]
fn check_hints_at_what_to_do_with_a_kubernetes_object() {
    for (kind, expected) in [
        ("ConfigMap", "jsonpath='{.data.config\\.yaml}'"),
        ("Autoscaler", "check it with `plimsoll check -f"),
        ("MetricRule", "check it with `plimsoll check -f"),
    ] {
        let (code, text) =
            checked(&format!("apiVersion: v1\nkind: {kind}\ndata: {{config.yaml: x}}\n"), &[]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn check_tells_what_a_configuration_lacks_and_a_configuration_from_objects() {
    let rule = |fields: &str| format!("rules:\n- {{seriesQuery: x, {fields}}}\n");
    let resources =
        "resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}";
    let query = "metricsQuery: 'sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)'";
    for (config, expected, code) in [
        (rule(resources), "error: FILE:2:3: rules[0].metricsQuery is missing\n1 error\n", 1),
        (
            rule(query),
            "warning: FILE:2:3: rules[0].resources: none, so that no label names an object, and no metric is exposed\nthe configuration is valid\n",
            0,
        ),
        (
            rule(&format!(
                "{resources}, {query}, name: {{matches: ^(.*)_total$, as: $1_per_second}}"
            )),
            "error: FILE:2:208: rules[0].name.as: \"$1_per_second\": matches has no group 1_per_second: write ${1}_per_second\n1 error\n",
            1,
        ),
    ] {
        assert_eq!(checked(&config, &[]), (Some(code), expected.to_owned()), "{config}");
    }
    let usage = "resourceRules:\n  cpu: {containerQuery: a, nodeQuery: b, resources: {template: <<.Resource>>}}\n";
    assert_eq!(
        checked(usage, &[]).1,
        "error: FILE:2:3: resourceRules.memory is missing\n1 error\n"
    );
    let (code, text) = checked("backends: {global: {url: 'thanos:9090'}}\n", &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(": backends.global.url: http:// or https:// is missing"), "{text}");
    let (_, text) = checked("podMetrics: {sharedNamespaces: infra}\n", &[]);
    assert!(text.contains("a list was expected"), "{text}");
    let (code, text) = check_objects(&rule(resources), &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("this is a configuration: plimsoll check "), "{text}");
    let rule = METRIC_RULE
        .replace("seriesQuery: x", "name: {matches: ^(.*)_total$, as: $1_x}, seriesQuery: x");
    let (code, text) = check_objects(&rule, &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("spec.name.as: \"$1_x\": matches has no group 1_x: write ${1}_x"),
        "{text}"
    );
    let output = plimsoll(&["check"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("--filename <FILE>"));
}

#[test]
fn check_contacts_a_prometheus_whenever_one_is_given() {
    // Nothing listens on port 1.
    for (config, expected) in [
        (NO_RULES, "--prometheus-url: "),
        ("podMetrics: {podLabel: pod}\n", "--prometheus-url: "),
        ("backends: {a: {url: 'http://127.0.0.1:1'}}\n", "backends.a: "),
    ] {
        let (code, text) = checked(config, &["--prometheus-url=http://127.0.0.1:1"]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(expected), "{text}");
    }
    // It authenticates as the server does.
    let flags = ["--prometheus-url=http://127.0.0.1:1", "--prometheus-token-file=/nowhere/token"];
    let (code, text) = checked(NO_RULES, &flags);
    assert_eq!(code, Some(1));
    assert!(text.contains("/nowhere/token"), "{text}");
}

#[test]
fn check_refuses_a_file_without_any_field_as_a_running_server_does() {
    for config in ["", "# nothing\n", "podMetrics:\n"] {
        let (code, text) = checked(config, &[]);
        assert_eq!(code, Some(1), "{text}");
        let expected =
            "error: FILE: there is nothing in it, which may be a mistake; `podMetrics: {}`";
        assert!(text.starts_with(expected), "{text}");
    }
    assert_eq!(checked(NO_RULES, &[]).0, Some(0));
}

#[test]
fn check_names_the_file_of_each_object() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (a, b) = (path("a.yaml"), path("b.yaml"));
    std::fs::write(&a, AUTOSCALER).unwrap();
    std::fs::write(&b, AUTOSCALER.replace("maxReplicas: 3", "maxReplicas: x")).unwrap();
    let folder = folder.path().display().to_string();
    for arguments in [&["check", "-f", &a, "-f", &b][..], &["check", "-f", &folder]] {
        let output = plimsoll(arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let [twice, wrong, count] = lines[..] else { panic!("{text}") };
        assert_eq!(count, "2 errors");
        let expected = format!(
            "error: {b}:3:18: autoscaler web: metadata.name: an object before it, in {a}, has"
        );
        assert!(twice.starts_with(&expected), "{text}");
        let expected = format!("error: {b}:4:");
        assert!(wrong.starts_with(&expected), "{text}");
        assert!(wrong.ends_with(": autoscaler web: spec.maxReplicas: \"x\": expected integer"));
    }
    // As a shell writes *.yaml.
    let output = plimsoll(&["check", "-f", &a, &b]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("write -f before each file with objects, or -f FOLDER"), "{text}");
    let output = plimsoll(&["check", "-f", &a, &b, &a]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("tip: write -f before each file"), "{text}");
}

#[test]
fn check_reads_a_configuration_from_standard_input() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "podMetrics: {podLable: pod}\n").unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["check", "-"])
        .stdin(std::fs::File::open(file.path()).unwrap())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("error: -:1:14: unknown field `podLable`"), "{text}");
    let (_, text) = checked(NO_RULES, &["-f", "-"]);
    assert!(text.contains("-: no Autoscaler or MetricRule is in it"), "{text}");
    for config in [&["--config", "-"][..], &["-"]] {
        let output = plimsoll(&[&["check"], config, &["-f", "-"]].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("either CONFIG or a file of -f"), "{text}");
    }
    let output = plimsoll(&["check", "a.yaml", "--config=b.yaml"]);
    assert_eq!(output.status.code(), Some(2));
}
