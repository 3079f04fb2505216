//! The command, without a cluster.

mod check;
mod connect;
mod convert;

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn plimsoll(arguments: &[&str]) -> Output {
    plimsoll_in("", arguments)
}

/// Runs it in a pod whose API server has this address; outside of a pod, if empty.
fn plimsoll_in(cluster: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(arguments).env_remove("KUBERNETES_SERVICE_HOST");
    if !cluster.is_empty() {
        command.env("KUBERNETES_SERVICE_HOST", cluster);
    }
    command.output().expect("it can be run")
}

#[test]
fn the_name_alone_prints_help_and_serves_nothing() {
    let output = plimsoll(&[]);
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(help.contains("serve") && help.contains("freeze"), "{help}");
    assert!(help.lines().count() < 40 && !help.contains("--prometheus-url"), "{help}");
}

#[test]
fn a_pod_with_the_command_line_of_prometheus_adapter_serves_and_a_person_gets_a_hint() {
    // The invalid flag is one of `serve`: so `serve` was run.
    let wrong = "--prometheus-url=ftp://x";
    for arguments in [&["/adapter", wrong][..], &["adapter", wrong], &[wrong], &["serve", wrong]] {
        let output = plimsoll_in("10.0.0.1", arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("http:// or https:// was expected"), "{arguments:?}: {error}");
    }
    let output = plimsoll(&["--secure-port=6443"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("tip: to serve, run: plimsoll serve"), "{error}");
    assert!(!plimsoll(&["/adapter", "--secure-port=6443"]).status.success());
}

#[test]
fn each_help_fits_a_screen_and_groups_what_is_long() {
    let help = |arguments: &[&str]| String::from_utf8(plimsoll(arguments).stdout).unwrap();
    for command in ["status", "explain", "pause", "freeze", "check", "autoscale", "version"] {
        let help = help(&[command, "-h"]);
        assert!(help.lines().count() <= 60, "{command}: {}", help.lines().count());
        assert!(help.contains("Usage: plimsoll "), "{help}");
        let other = ["--at", "--output", "--reason"].map(|flag| help.find(flag));
        let (cluster, other) = (help.find("\nCluster:\n"), other.into_iter().flatten().max());
        assert!(other.is_none_or(|flag| cluster.is_none_or(|cluster| flag < cluster)), "{help}");
    }
    let serve = help(&["serve", "-h"]);
    for heading in
        ["Prometheus:", "API server:", "Serving:", "Leader election:", "Autoscaling:", "Logging:"]
    {
        assert!(serve.lines().any(|line| line == heading), "{heading}: {serve}");
    }
    assert!(help(&["-h"]).contains("Exit codes: 0 success"));
}

#[test]
fn flags_of_kubectl_may_stand_before_the_command() {
    let output = plimsoll(&["--kubeconfig", "/nowhere", "-n", "shop", "explain", "web"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("--kubeconfig: /nowhere: "), "{error}");
    let output = plimsoll(&["serve", "--leader-elect", "false"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("tip: write --FLAG=false"), "{error}");
    let output = plimsoll(&["explian", "web"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("explain"), "{error}");
}

#[test]
fn a_manifest_of_an_autoscaler_is_printed_without_a_cluster() {
    let line = "autoscale deploy web --metric qps --value 10 --max 3 -n shop --dry-run=client \
        --kubeconfig=/nowhere -o";
    let of = |format: &str| plimsoll(&line.split_whitespace().chain([format]).collect::<Vec<_>>());
    let yaml = of("yaml").stdout;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &yaml).unwrap();
    let checked = plimsoll(&["check", "-f", file.path().to_str().unwrap()]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    assert_eq!(of("name").stdout, b"autoscaler.plimsoll.dev/web\n");
}

#[test]
fn kubectl_completes_by_the_program_under_another_name() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("kubectl_complete-plimsoll");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_plimsoll"), &link).unwrap();
    let output = Command::new(&link).args(["check-"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("check-cluster\tCheck the installation"), "{text}");
    assert!(text.ends_with("\n:4\n"), "{text}");
}

/// Only pods serve, and the plugin is for people.
#[test]
fn the_help_of_the_plugin_of_kubectl_has_no_commands_of_pods() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("kubectl-plimsoll");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_plimsoll"), &link).unwrap();
    let run = |arguments: &[&str]| Command::new(&link).args(arguments).output().unwrap();
    let commands = |help: &[u8]| {
        let lines = std::str::from_utf8(help).unwrap().lines();
        let words = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    let helps: [&[&str]; 3] = [&[], &["-h"], &["help"]];
    for arguments in helps {
        let (own, plugin) = (plimsoll(arguments).stdout, run(arguments).stdout);
        assert!(String::from_utf8_lossy(&plugin).contains("Usage: kubectl plimsoll "));
        let (own, plugin) = (commands(&own), commands(&plugin));
        for hidden in ["serve", "crd", "replay"] {
            let has = |all: &[String]| all.iter().any(|word| word == hidden);
            assert!(has(&own) && !has(&plugin), "{arguments:?} {hidden}: {plugin:?}");
        }
        assert!(plugin.iter().any(|word| word == "explain"), "{plugin:?}");
    }
    assert!(run(&["crd"]).status.success());
    let help = String::from_utf8(run(&["explain", "-h"]).stdout).unwrap();
    assert!(help.contains("Usage: kubectl plimsoll explain "), "{help}");
}

#[test]
fn manual_pages_are_written_for_each_command() {
    let folder = tempfile::tempdir().unwrap();
    assert!(plimsoll(&["man", folder.path().to_str().unwrap()]).status.success());
    for page in ["plimsoll.1", "plimsoll-check-cluster.1", "plimsoll-serve.1"] {
        let text = std::fs::read_to_string(folder.path().join(page)).unwrap();
        assert!(text.contains(".TH "), "{page}");
    }
    assert!(!folder.path().join("plimsoll-help-serve.1").exists());
}

#[test]
fn the_version_of_the_client_needs_no_cluster() {
    let output = plimsoll(&["version", "--client", "-o", "json"]);
    let version: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(version["clientVersion"]["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn a_backtest_is_written_in_each_format() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let autoscaler = r#"{"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
        "metadata": {"name": "web", "namespace": "shop"}, "spec": {"minReplicas": 1, "maxReplicas": 9,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "customMetrics": [{"metricName": "requests", "averageValue": "10"}]}}"#;
    std::fs::write(path("web.yaml"), autoscaler).unwrap();
    std::fs::write(path("load.csv"), "time,value\n0,20\n600,60\n1200,20\n").unwrap();
    let run = |format: &str, files: usize| {
        let (load, file) = (path("load.csv"), path("web.yaml"));
        let mut arguments = vec!["backtest", "--load", &load, "--output", format];
        (0..files).for_each(|_| arguments.extend(["-f", &file]));
        plimsoll(&arguments)
    };
    for (format, start) in [
        ("text", &b"web: 1."[..]),
        ("json", b"{\"candidates\":[{\"name\":\"web\""),
        ("html", b"<!doctype html>"),
        ("svg", b"<svg xmlns="),
        ("png", b"\x89PNG\r\n\x1a\n"),
    ] {
        let output = run(format, 1);
        assert!(output.status.success() && output.stderr.is_empty(), "{format}");
        let shown = String::from_utf8_lossy(&output.stdout[..80]);
        assert!(output.stdout.starts_with(start), "{format}: {shown}");
    }
    for example in ["autoscaler", "modes", "schedules", "scaledobject"] {
        let file = format!("{}/docs/examples/{example}.yaml", env!("CARGO_MANIFEST_DIR"));
        let output = plimsoll(&["backtest", "--load", &path("load.csv"), "-f", &file]);
        assert!(output.status.success(), "{example}");
    }
    let error = String::from_utf8(run("svg", 9).stderr).unwrap();
    assert!(error.contains("9 candidates: at most 8 fit in a chart"), "{error}");
}

#[test]
fn no_command_succeeds_that_tries_none_of_many() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("two.yaml").display().to_string();
    let object = |name: &str| {
        format!(
            r#"{{"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
        "metadata": {{"name": "{name}", "namespace": "shop"}}, "spec": {{"maxReplicas": 9,
        "scaleTargetRef": {{"apiVersion": "apps/v1", "kind": "Deployment", "name": "{name}"}},
        "customMetrics": [{{"metricName": "requests", "averageValue": "10"}}]}}}}"#
        )
    };
    std::fs::write(&file, format!("{}\n---\n{}\n", object("web"), object("api"))).unwrap();
    for (command, format) in [("backtest", "json"), ("recommend", "text"), ("recommend", "yaml")] {
        let output =
            plimsoll(&[command, "-f", &file, "--prometheus-url=http://127.0.0.1:1", "-o", format]);
        assert_eq!(output.status.code(), Some(1), "{command}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("none of 2 autoscalers could be tried:"), "{error}");
    }
}

#[test]
fn an_invalid_configuration_is_refused_with_file_line_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wrong.yaml");
    std::fs::write(&path, "podMetrics:\n  podLabel: pod\n  counterQuery: rate(<<.Series>>[2m])\n")
        .unwrap();
    let output = plimsoll(&["serve", "--config", path.to_str().unwrap()]);
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("wrong.yaml:3:"), "{error}");
    assert!(error.contains("podMetrics.counterQuery: <<.LabelMatchers>> is missing"), "{error}");
}

#[test]
fn an_invalid_flag_is_refused_with_the_expected_values() {
    for (flag, expected) in [
        ("--prometheus-url=ftp://x", "http:// or https:// was expected"),
        ("--prometheus-timeout=5", "such as 250ms, 15s or 5m"),
        ("--log-level=plimsoll=loud", "--log-level"),
        ("--log-level=verbose", "\"verbose\" is not a log level"),
        ("--tls-cert-file=/nowhere/tls.crt", "--tls-private-key-file"),
        ("--kubeconfig=/nowhere/config", "/nowhere/config"),
    ] {
        let output = plimsoll(&["serve", flag]);
        assert!(!output.status.success(), "{flag}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(expected), "{flag}: {error}");
    }
}

#[test]
fn a_duration_that_goes_back_is_taken_with_and_without_its_sign() {
    for (command, flag) in [("history", "--since"), ("explain", "--at")] {
        for time in ["3d", "-3d"] {
            let output = plimsoll(&[command, "web", flag, time, "--kubeconfig=/nowhere"]);
            let error = String::from_utf8(output.stderr).unwrap();
            // The flags are valid: what is missing is the cluster.
            assert_eq!(output.status.code(), Some(1), "{command} {time}: {error}");
        }
    }
}

#[test]
fn the_printed_definition_is_the_checked_in_one() {
    let printed = plimsoll(&["crd"]).stdout;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/base/crd.yaml");
    assert_eq!(printed, std::fs::read(path).unwrap());
}

#[test]
fn commands_reach_the_api_server_through_the_proxy_of_the_environment() {
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = proxy.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("config");
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
        clusters: [{name: a, cluster: {server: 'https://api.example:6443'}}]\n\
        contexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {}}]\n";
    std::fs::write(&kubeconfig, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.arg("status").arg("--kubeconfig").arg(&kubeconfig).stderr(Stdio::piped());
    // NO_PROXY matches the proxy, not the server.
    command.env("HTTPS_PROXY", format!("http://{address}")).env("NO_PROXY", "127.0.0.1");
    let child = command.spawn().unwrap();
    // If it does not connect, this unblocks the accept below.
    let waker = std::thread::spawn(move || {
        let output = child.wait_with_output().unwrap();
        let _ = std::net::TcpStream::connect(address);
        String::from_utf8(output.stderr).unwrap()
    });
    let mut line = String::new();
    BufReader::new(proxy.accept().unwrap().0).read_line(&mut line).unwrap();
    drop(proxy);
    let error = waker.join().unwrap();
    assert_eq!(line.trim(), "CONNECT api.example:6443 HTTP/1.1", "{error}");
}

/// As in `plimsoll crd | head -1`.
#[test]
fn a_reader_that_stops_is_no_failure() {
    let example = |name: &str| format!("{}/docs/examples/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    let (object, autoscaler) = (example("scaledobject"), example("autoscaler"));
    for arguments in [
        &["crd"][..],
        &["reference"],
        &["completions", "bash"],
        &["convert", &object],
        &["check", "-f", &autoscaler],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        let output = command.args(arguments).stdout(writer).output().expect("it can be run");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{arguments:?}: {error}");
        assert!(!error.contains("panicked") && !error.contains("pipe"), "{arguments:?}: {error}");
    }
}

#[test]
fn completions_are_printed_for_each_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = plimsoll(&["completions", shell]);
        let text = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && text.contains("prometheus-url"), "{shell}");
    }
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files below a folder, each with its text.
fn texts(folder: &str) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push((path.clone(), std::fs::read_to_string(&path).unwrap())),
            }
        }
    }
    files
}

#[test]
fn what_a_runbook_greps_in_the_log_is_logged() {
    let mut messages = Vec::new();
    for (_, code) in texts("src") {
        for level in ["error", "warn", "info"] {
            for call in code.split(&format!("tracing::{level}!(")).skip(1) {
                let call = call.split_once(");").map_or(call, |(call, _)| call);
                messages.extend(call.split('"').skip(1).step_by(2).map(str::to_lowercase));
            }
        }
    }
    assert!(messages.len() > 40, "{messages:?}");
    let mut searches = 0;
    for (path, text) in texts("docs/runbooks") {
        for line in text.lines().filter(|line| line.contains(" logs ")) {
            for filter in line.split("| grep ").skip(1) {
                let filter = filter.split(" | ").next().unwrap().trim();
                let text =
                    filter.trim_start_matches("-iE ").trim_start_matches("-i ").trim_matches('\'');
                for wanted in text.split('|') {
                    let found =
                        messages.iter().any(|message| message.contains(&wanted.to_lowercase()));
                    assert!(found, "{}: nothing logs {wanted:?}", path.display());
                    searches += 1;
                }
            }
        }
    }
    assert!(searches > 6, "{searches}");
}

/// The modules below a folder, and their functions without arguments, such as `planned::a_test`.
fn modules_and_tests(folder: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut names = Vec::new();
    for (path, code) in texts(folder) {
        let path = path.strip_prefix(&root).unwrap().with_extension("");
        let parts = path.iter().map(|part| part.to_str().unwrap());
        let module = parts.filter(|part| *part != "mod").collect::<Vec<_>>().join("::");
        let functions =
            code.lines().filter_map(|line| line.split_once("fn ")?.1.split_once("() {"));
        names.extend(functions.map(|(name, _)| format!("{module}::{name}")));
        names.push(module);
    }
    names
}

#[test]
fn each_test_that_the_threat_model_names_exists() {
    let tests = [modules_and_tests("src"), modules_and_tests("bed/tests/e2e")].concat();
    let model = read("docs/security.md");
    let is_path = |word: &&str| {
        let letters = word.chars().all(|c| c.is_ascii_alphanumeric() || "_:".contains(c));
        letters && word.contains("::")
    };
    let named: Vec<&str> = model.split('`').filter(is_path).collect();
    assert!(named.len() > 60, "{named:?}");
    for name in named {
        assert!(tests.iter().any(|test| test == name), "there is no {name}");
    }
}

#[test]
fn each_filter_of_the_makefile_matches_a_test() {
    let tests = modules_and_tests("bed/tests/e2e");
    let makefile = read("Makefile");
    let mut filters = Vec::new();
    for line in makefile.lines() {
        let alone = line.strip_prefix("ALONE := ");
        let run = ["$(E2E_RUN) ", "$(E2E) "].iter().find_map(|run| Some(line.split_once(run)?.1));
        let words = alone.or(run).unwrap_or_default().split_whitespace();
        filters.extend(words.take_while(|word| *word != "--"));
    }
    assert!(filters.len() >= 4, "{filters:?}");
    for filter in filters {
        assert!(tests.iter().any(|test| test.contains(filter)), "no test has {filter} in its name");
    }
}

#[test]
fn what_make_generate_writes_is_as_it_would_write_it() {
    let reference = String::from_utf8(plimsoll(&["reference"]).stdout).unwrap();
    assert!(reference == read("docs/reference.md"), "`make generate` writes docs/reference.md");
    let yaml = |path: &str| -> serde_json::Value { serde_saphyr::from_str(&read(path)).unwrap() };
    let rule = yaml("deploy/monitoring/prometheusrule.yaml");
    assert_eq!(rule["spec"], yaml("deploy/monitoring/alerts.yaml"), "run `make generate`");
    for copied in [
        "base/crd.yaml",
        "monitoring/alerts.yaml",
        "monitoring/dashboard.json",
        "monitoring/dashboard-autoscaler.json",
    ] {
        let name = copied.rsplit('/').next().unwrap();
        let copy = read(&format!("deploy/chart/files/{name}"));
        assert!(copy == read(&format!("deploy/{copied}")), "`make generate` copies {copied}");
    }
}

/// Whoever checks the objects of a cluster reads texts of each tenant.
#[test]
fn no_text_of_an_object_controls_a_terminal() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let object = r#"{"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
        "metadata": {"name": "web", "namespace": "shop"}, "spec": {"maxReplicas": 9, "rollouts": "Hold",
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Roll\u001b[31mout\u202e", "name": "web"},
        "customMetrics": [{"metricName": "requests", "averageValue": "10"}]}}"#;
    std::fs::write(file.path(), object).unwrap();
    let path = file.path().to_str().unwrap();
    let scaled = object
        .replace("plimsoll.dev/v1alpha1", "keda.sh/v1alpha1")
        .replace("\"Autoscaler\"", "\"ScaledObject\"")
        .replace("\"web\", \"namespace\"", "\"we\\u001b[2Jb\", \"namespace\"");
    let second = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(second.path(), scaled).unwrap();
    for arguments in [
        &["check", "-f", path][..],
        &["convert", second.path().to_str().unwrap()],
        &["convert", "no\u{1b}such"],
    ] {
        let output = plimsoll(arguments);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(text.contains("\\u{1b}") && !text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
    }
}
