//! Runs the commands of the pages in docs/ (```console) and compares their output.

use crate::{SOON, on_shared_bed, runtime};
use bed::cluster::Cluster;
use bed::pages::{Pages, steps};
use bed::plimsoll::{Plimsoll, binary};
use bed::{Options, root};
use serde_json::Value;

#[test]
fn the_commands_of_every_page_print_what_the_page_shows() {
    runtime().block_on(async {
        let options = Options::default();
        let cluster = Cluster::start(&options).await;
        let pages = Pages::new(&cluster);
        pages.add("plimsoll", &binary());
        pages.add("kubectl-plimsoll", &binary());
        let page = async |name: &str| pages.follow(name).await;
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
        // Every page with commands was run, but for those that are run on a real node.
        let on_node = ["moving-from-prometheus-adapter.md", "quickstart.md"];
        let pages = std::fs::read_dir(root().join("docs")).expect("docs").flatten();
        let pages = pages.filter(|page| !on_node.iter().any(|name| page.file_name() == *name));
        let texts = pages.filter_map(|page| std::fs::read_to_string(page.path()).ok());
        assert_eq!(commands, texts.map(|text| steps(&text).len()).sum::<usize>());
    });
}

#[test]
fn the_quickstart_has_the_same_commands_and_output_in_chinese() {
    let blocks = |page: &str| {
        let text = std::fs::read_to_string(root().join("docs").join(page)).expect("a page");
        // Those of files have comments in their language.
        let blocks = text.split("\n```").skip(1).step_by(2).map(str::to_owned);
        blocks
            .filter(|block| block.starts_with("console") || block.starts_with("shell"))
            .collect::<Vec<_>>()
    };
    let english = blocks("quickstart.md");
    assert!(english.len() > 10, "{english:?}");
    assert_eq!(blocks("zh/quickstart.md"), english);
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
    for folder in ["docs", "docs/runbooks", "docs/zh"] {
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
