//! Runs the commands of the pages in docs/ (```console) and compares their output.

use crate::{SOON, on_shared_bed, runtime};
use bed::cluster::Cluster;
use bed::plimsoll::{Plimsoll, binary};
use bed::{Options, parts, root};
use serde_json::Value;
use std::path::Path;

/// A command of a page, and its expected output.
struct Step {
    line: usize,
    command: String,
    expected: Vec<String>,
}

/// The steps of a page, block by block.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut inside = false;
    for (number, line) in page.lines().enumerate() {
        match (line, line.strip_prefix("$ ")) {
            ("```console", _) => inside = true,
            ("```", _) => inside = false,
            (_, Some(command)) if inside => steps.push(Step {
                line: number + 1,
                command: command.to_owned(),
                expected: Vec::new(),
            }),
            _ if inside => steps.last_mut().expect("a command").expected.push(line.to_owned()),
            _ => {}
        }
    }
    steps
}

/// Whether a line is as expected: `...` matches anything, and the amount of whitespace is ignored.
fn matches(expected: &str, line: &str) -> bool {
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (expected, line) = (plain(expected), plain(line));
    let mut rest = line.as_str();
    let parts: Vec<&str> = expected.split("...").collect();
    for (place, part) in parts.iter().enumerate() {
        let part = if parts.len() > 1 { part.trim() } else { part };
        match rest.find(part) {
            Some(0) => rest = &rest[part.len()..],
            Some(at) if place > 0 => rest = &rest[at + part.len()..],
            _ => return false,
        }
    }
    rest.is_empty() || parts.last() == Some(&"")
}

/// The first expected line that is missing, in order.
fn missing<'a>(expected: &'a [String], output: &str) -> Option<&'a str> {
    let mut lines = output.lines();
    let comes = |wanted: &&String| *wanted == "..." || lines.any(|line| matches(wanted, line));
    let known = expected.iter().take_while(comes).count();
    expected.get(known).map(String::as_str)
}

/// Runs the commands of a page.
async fn follow(name: &str, folder: &Path, kubeconfig: &Path) -> usize {
    let text = std::fs::read_to_string(root().join("docs").join(name)).expect("the page");
    let steps = steps(&text);
    for Step { line, command, expected } in &steps {
        let path = std::env::var("PATH").unwrap_or_default();
        let done = tokio::process::Command::new("bash")
            .args(["-o", "pipefail", "-c", command])
            .current_dir(folder)
            .env("PATH", format!("{}:{path}", folder.join("bin").display()))
            .env("KUBECONFIG", kubeconfig)
            .env("HOME", folder)
            .output()
            .await
            .expect("bash can be run");
        let output = String::from_utf8_lossy(&done.stdout).into_owned();
        let error = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "docs/{name}:{line}: {command}\n{output}{error}");
        if let Some(missing) = missing(expected, &output) {
            panic!("docs/{name}:{line}: {command}\nprints no line {missing:?}:\n{output}{error}");
        }
    }
    println!("docs/{name}: {} commands", steps.len());
    steps.len()
}

/// Sets up the folder in which commands run, with the programs that they use.
fn prepare(folder: &Path, cluster: &Cluster) {
    for name in ["docs", "deploy", "config"] {
        std::os::unix::fs::symlink(root().join(name), folder.join(name)).expect("a link");
    }
    let bin = folder.join("bin");
    std::fs::create_dir(&bin).expect("a folder");
    for name in ["plimsoll", "kubectl-plimsoll"] {
        std::os::unix::fs::symlink(binary(), bin.join(name)).expect("a link");
    }
    let helm = parts(&["helm"]).join("helm");
    std::os::unix::fs::symlink(helm, bin.join("helm")).expect("a link");
    let kubectl = bin.join("kubectl");
    let program = cluster.parts.join("cluster").display().to_string();
    std::fs::write(&kubectl, format!("#!/bin/sh\nexec {program} kubectl \"$@\"\n"))
        .expect("a file");
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&kubectl, PermissionsExt::from_mode(0o755)).expect("a mode");
}

#[test]
fn the_commands_of_every_page_print_what_the_page_shows() {
    runtime().block_on(async {
        let options = Options::default();
        let cluster = Cluster::start(&options).await;
        let folder = tempfile::tempdir().unwrap();
        prepare(folder.path(), &cluster);
        let page = async |name: &str| follow(name, folder.path(), &cluster.kubeconfig).await;
        let mut commands = page("install.md").await;
        // There is no container runtime: a process replaces the pods.
        cluster.kubectl(&["-n", "plimsoll", "scale", "deployment/plimsoll", "--replicas=0"]).await;
        let server = format!("https://127.0.0.1:{}", cluster.api_port());
        let prometheus = format!("http://127.0.0.1:{}", cluster.prometheus_port);
        let _plimsoll = Plimsoll::start(&cluster, &server, &prometheus, &options).await;
        cluster.load("shop", "app=web", "/hit/http_requests_total", 27.0).await;
        for name in
            ["first-autoscaler.md", "moving-from-keda.md", "troubleshooting.md", "operating.md"]
        {
            commands += page(name).await;
        }
        // The Service points at the process; the upgrade recreates it.
        cluster.kubectl(&["-n", "plimsoll", "delete", "service", "plimsoll"]).await;
        commands += page("upgrade-and-uninstall.md").await;
        // Every page with commands was run.
        let pages = std::fs::read_dir(root().join("docs")).expect("docs").flatten();
        let texts = pages.filter_map(|page| std::fs::read_to_string(page.path()).ok());
        assert_eq!(commands, texts.map(|text| steps(&text).len()).sum::<usize>());
    });
}

#[test]
fn every_example_of_an_autoscaler_is_accepted_and_evaluated() {
    on_shared_bed("docs-examples", async |bed, ns| {
        let folder = std::fs::read_dir(root().join("docs/examples")).expect("examples");
        let mut names = Vec::new();
        for path in folder.flatten().map(|file| file.path()) {
            let text = std::fs::read_to_string(&path).expect("an example");
            let objects: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
            for mut object in objects.into_iter().filter(|one| one["kind"] == "Autoscaler") {
                object["metadata"]["namespace"] = ns.name.as_str().into();
                bed.cluster.apply(&object.to_string()).await;
                names.push(object["metadata"]["name"].as_str().expect("a name").to_owned());
            }
        }
        assert!(names.len() >= 8, "{names:?}");
        for name in names {
            // None has a target here. A spec that can't be read would say so.
            let fault =
                |c: &Value| ["FailedGetScale", "Paused", "Ready"].iter().any(|r| c["reason"] == *r);
            ns.wait_condition(&name, "Ready", SOON, fault).await;
        }
    });
}

#[test]
fn every_test_that_the_threat_model_names_exists() {
    let mut sources = Vec::new();
    let mut folders = ["src", "tests", "bed"].map(|folder| root().join(folder)).to_vec();
    while let Some(folder) = folders.pop() {
        for file in std::fs::read_dir(folder).expect("a folder").flatten().map(|file| file.path()) {
            if file.is_dir() {
                folders.push(file);
            } else if file.extension() == Some("rs".as_ref()) {
                let text = std::fs::read_to_string(&file).expect("a source file");
                let file = file.with_extension("");
                let modules: Vec<_> =
                    file.iter().map(|part| part.to_string_lossy().into_owned()).collect();
                sources.push((modules, text));
            }
        }
    }
    let page = std::fs::read_to_string(root().join("docs/security.md")).expect("a page");
    let named: Vec<&str> = page.split('`').filter(|text| text.contains("::")).collect();
    assert!(named.len() > 40, "only {} tests are named", named.len());
    for path in named {
        let (modules, name) = path.rsplit_once("::").expect("a path");
        let of = |kind: &str, name: &str, text: &str| {
            let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
            text.split(&format!("{kind} {name}")).skip(1).any(ends)
        };
        // Each module is a part of the file's path, or in the file.
        let is_there = sources.iter().any(|(parts, text)| {
            let is_in =
                |module: &str| parts.iter().any(|part| part == module) || of("mod", module, text);
            modules.split("::").all(is_in) && (of("fn", name, text) || of("mod", name, text))
        });
        assert!(is_there, "docs/security.md names {path}, which is not there");
    }
}

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    let mut pages: Vec<_> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"]
        .map(|page| root().join(page))
        .into();
    for folder in ["docs", "docs/runbooks"] {
        let files = std::fs::read_dir(root().join(folder)).expect("a folder").flatten();
        pages.extend(
            files.map(|file| file.path()).filter(|path| path.extension() == Some("md".as_ref())),
        );
    }
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("a page");
        for part in text.split("](").skip(1) {
            let target = part.split([')', '#']).next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let file = page.parent().expect("a folder").join(target);
            assert!(file.exists(), "{}: {target} is not there", page.display());
        }
    }
}
