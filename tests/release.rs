//! What a release is made of: `deploy/release`, the chart's metadata and README, the manifest for
//! krew, and the workflows.

use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Output};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(Path::new(ROOT).join(program)).args(arguments).output().expect("it can be run")
}

/// What a program prints that succeeds.
fn printed(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(ROOT).join(path)).unwrap()
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A file with the sums of all archives, each another one.
fn sums() -> (tempfile::NamedTempFile, Vec<(String, String)>) {
    let platforms = ["linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64"];
    let sums: Vec<(String, String)> = (1..)
        .zip(platforms)
        .map(|(sum, name)| (format!("plimsoll-{name}.tar.gz"), format!("{sum:064x}")))
        .collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut text = format!("{:064x}  plimsoll-linux-amd64.cdx.json\n", 9);
    for (name, sum) in &sums {
        writeln!(text, "{sum}  {name}").unwrap();
    }
    std::fs::write(file.path(), text).unwrap();
    (file, sums)
}

/// What krew validates of a manifest (`internal/index/validation`), and its naming guide.
#[test]
fn the_manifest_for_krew_is_valid_and_has_the_sum_of_each_archive() {
    let (file, sums) = sums();
    let path = file.path().to_str().unwrap();
    let text = printed("deploy/release", &["krew", "1.2.3-rc.1", "owner/name", path]);
    assert!(!text.contains('@'), "{text}");
    let manifest = yaml(&text);
    assert_eq!(manifest["apiVersion"], "krew.googlecontainertools.github.com/v1alpha2");
    assert_eq!(manifest["kind"], "Plugin");
    assert_eq!(manifest["metadata"]["name"], "plimsoll");
    let spec = &manifest["spec"];
    assert_eq!(spec["version"], "v1.2.3-rc.1");
    assert_eq!(spec["homepage"], "https://github.com/owner/name");
    let short = spec["shortDescription"].as_str().unwrap();
    assert!(!short.is_empty() && short.len() <= 50 && !short.contains('\n'), "{short}");
    let platforms = spec["platforms"].as_array().unwrap();
    assert_eq!(platforms.len(), sums.len());
    for (platform, (archive, sum)) in platforms.iter().zip(&sums) {
        let labels = platform["selector"]["matchLabels"].as_object().unwrap();
        assert_eq!(labels.len(), 2, "{labels:?}");
        let name = format!(
            "plimsoll-{}-{}.tar.gz",
            labels["os"].as_str().unwrap(),
            labels["arch"].as_str().unwrap()
        );
        assert_eq!(&name, archive);
        let uri = format!("https://github.com/owner/name/releases/download/v1.2.3-rc.1/{archive}");
        assert_eq!(platform["uri"], Value::from(uri));
        assert_eq!(platform["sha256"], sum.as_str());
        assert_eq!(platform["bin"], "plimsoll");
    }
}

#[test]
fn a_manifest_for_krew_without_a_sum_is_not_printed() {
    let (file, sums) = sums();
    std::fs::write(file.path(), format!("{}  {}\n", sums[0].1, sums[0].0)).unwrap();
    let path = file.path().to_str().unwrap();
    let output = run("deploy/release", &["krew", VERSION, "owner/name", path]);
    assert!(!output.status.success() && output.stdout.is_empty());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("has no SHA-256 of plimsoll-linux-arm64.tar.gz"), "{error}");
}

#[test]
fn each_place_with_a_version_has_that_of_the_package() {
    // The section of CHANGELOG.md gets its number when it is released.
    let output = run("deploy/release", &["check", VERSION]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.lines().all(|line| line.starts_with("CHANGELOG.md")), "{error}");
    let output = run("deploy/release", &["check", "99.0.0"]);
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error.lines().count(), 5, "{error}");
}

/// Runs `deploy/release` with programs that print these texts; those that fail, with `!` in front. No others are there.
fn released(arguments: &[&str], programs: &[(&str, &str)]) -> (bool, String) {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    for &(name, says) in programs {
        let (end, says) = says.strip_prefix('!').map_or(("", says), |says| (" >&2; exit 1", says));
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\necho '{says}'{end}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    // What else the path has, such as a docker of this machine, must not be found.
    let path = std::env::var_os("PATH").unwrap();
    for needed in ["bash", "dirname", "sha256sum"] {
        let mut all = std::env::split_paths(&path).map(|folder| folder.join(needed));
        symlink(all.find(|one| one.exists()).expect("it is there"), folder.path().join(needed))
            .unwrap();
    }
    let output = Command::new(Path::new(ROOT).join("deploy/release"))
        .args(arguments)
        .env("PATH", folder.path())
        .output()
        .expect("it can be run");
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

/// Both would be signed alike.
#[test]
fn a_version_is_released_once() {
    let image = "registry.example/owner/name";
    let unpublished_as = |image: &str, docker: &str, gh: &str| {
        let chart = "registry.example/owner/name/chart";
        let arguments = ["unpublished", "1.2.3", "owner/name", image, chart];
        // A program without a text is not there.
        let mut programs = vec![("docker", docker), ("gh", gh)];
        programs.retain(|(_, says)| !says.is_empty());
        released(&arguments, &programs)
    };
    let unpublished = |docker: &str, gh: &str| unpublished_as(image, docker, gh);
    let no_image = "!ERROR: registry.example/owner/name:1.2.3: not found";
    let no_helper =
        "!error getting credentials: docker-credential-x: executable file not found in $PATH";
    let no_repository = "!HTTP 404: Not Found (https://api.github.com/repos/owner/name)";
    let no_release = "!release not found";
    assert_eq!(unpublished(no_image, no_release), (true, String::new()));
    for (docker, gh, expected) in [
        ("Name: it", no_release, "registry.example/owner/name:1.2.3 is published already"),
        (no_image, "title: it", "v1.2.3 is released already"),
        ("!ERROR: connection refused", no_release, "is not known: ERROR: connection refused"),
        (no_image, "!HTTP 502", "whether v1.2.3 is released is not known: HTTP 502"),
        // Other things that are not found.
        ("", no_release, "docker is not installed"),
        (no_image, "", "gh is not installed"),
        (no_helper, no_release, "registry.example/owner/name:1.2.3 is published is not known"),
        (no_image, no_repository, "v1.2.3 is released is not known: HTTP 404"),
    ] {
        let (succeeds, error) = unpublished(docker, gh);
        assert!(!succeeds && error.contains(expected), "{error}");
    }
    // A job that is run again finds what it has published: a manifest, or the layer of a chart, by its digest.
    let manifest = r#"{"layers": [{"digest": "sha256:0c"}]}"#;
    let sum = "232939db49aea45fed8508617d6a7e07e6e771a082ae0d4abf7702f1987c5035";
    for own in [format!("sha256:{sum}"), "sha256:0c".to_owned()] {
        let (_, error) = unpublished_as(&format!("{image}@{own}"), manifest, no_release);
        assert!(error.contains("name/chart:1.2.3 is published already"), "{own}: {error}");
    }
    let (_, error) = unpublished_as(&format!("{image}@sha256:0d"), manifest, no_release);
    assert!(error.contains("owner/name:1.2.3 is published already"), "{error}");
    // Each job that gives something a name others use asks first.
    let workflow = read(".github/workflows/release.yaml");
    for (name, job) in yaml(&workflow)["jobs"].as_object().unwrap() {
        let steps = job["steps"].as_array().into_iter().flatten();
        let script: String = steps.filter_map(|step| step["run"].as_str()).collect();
        let runs = |text: &str| script.contains(text);
        if ["imagetools create", "helm push"].into_iter().any(runs) {
            assert!(runs("deploy/release unpublished"), "{name}");
        }
        // And waits for a person, whoever pushed the tag.
        if ["imagetools create", "helm push", "gh release create"].into_iter().any(runs) {
            assert_eq!(job["environment"], "release", "{name}");
        }
        assert_eq!(runs("gh release create"), runs("deploy/release tagged"), "{name}");
        // The name of an image comes last.
        if let Some(named) = script.find("--tag \"$IMAGE:$VERSION\"") {
            for before in ["deploy/release unpublished", "cosign sign", "cosign attest"] {
                assert!(script.find(before).is_some_and(|place| place < named), "{before}");
            }
        }
    }
    assert!(workflow.contains("run: deploy/release reviewed \"${TAG#v}\""));
}

/// What was built is the commit of the run; the sources of a release are those of its tag.
#[test]
fn a_tag_that_was_moved_is_not_released() {
    let [built, other] = ["a", "b"].map(|digit| digit.repeat(40));
    let tagged = |gh: &str| released(&["tagged", "1.2.3", "owner/name", &built], &[("gh", gh)]);
    assert_eq!(tagged(&built), (true, String::new()));
    for (gh, expected) in [
        (&*other, "v1.2.3 was moved"),
        ("!HTTP 502", "the commit of v1.2.3 is not known"),
        ("", "v1.2.3 was moved"),
    ] {
        let (succeeds, error) = tagged(gh);
        assert!(!succeeds && error.contains(expected), "{error}");
    }
}

#[test]
fn commits_of_main_are_released_and_corrections_of_a_release_branch() {
    let folder = tempfile::tempdir().unwrap();
    let git = |arguments: &[&str]| {
        let who =
            ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgSign=no"];
        let mut command = Command::new("git");
        command.current_dir(folder.path()).args(who).args(arguments);
        let output = command.output().expect("git can be run");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let commit = || git(&["commit", "--quiet", "--allow-empty", "--message=x"]);
    let is_tip_of =
        |branch: &str| git(&["update-ref", &format!("refs/remotes/origin/{branch}"), "HEAD"]);
    let program = folder.path().join("deploy/release");
    std::fs::create_dir(program.parent().unwrap()).unwrap();
    std::fs::copy(Path::new(ROOT).join("deploy/release"), &program).unwrap();
    let refused = |version: &str| {
        let output = Command::new(&program).args(["reviewed", version]).output().unwrap();
        (!output.status.success()).then(|| String::from_utf8(output.stderr).unwrap())
    };
    git(&["init", "--quiet"]);
    commit();
    is_tip_of("main");
    commit();
    is_tip_of("release-0.1");
    for version in ["0.1.1", "0.1.12", "0.1.2-rc.1"] {
        assert_eq!(refused(version), None, "{version}");
    }
    // That branch is for corrections of 0.1 only.
    for version in ["0.1.0", "0.2.0", "0.2.1", "1.0.1"] {
        assert!(refused(version).is_some(), "{version}");
    }
    commit();
    let error = refused("0.1.1").expect("nobody has reviewed it");
    assert!(error.contains("it is no commit of main or release-0.1"), "{error}");
    git(&["checkout", "--quiet", "origin/main"]);
    for version in ["0.1.1", "0.2.0"] {
        assert_eq!(refused(version), None, "{version}");
    }
}

#[test]
fn the_notes_of_a_release_are_its_section_of_the_changelog() {
    let first = read("CHANGELOG.md");
    let first = first.lines().find_map(|line| line.strip_prefix("## ")).unwrap();
    let first = first.split(' ').next().unwrap();
    let notes = printed("deploy/release", &["notes", first]);
    assert!(notes.starts_with("### ") && !notes.contains("\n## "), "{notes}");
    assert!(!run("deploy/release", &["notes", "99.0.0"]).status.success());
}

#[test]
fn the_chart_is_packaged_with_its_image_and_annotations() {
    let changelog = read("CHANGELOG.md");
    let section = changelog.lines().find_map(|line| line.strip_prefix("## ")).unwrap();
    let section = section.split(' ').next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let chart = folder.path().join("chart");
    let chart = chart.to_str().unwrap();
    let digest = format!("sha256:{:064x}", 7);
    let image = "registry.example/owner/name";
    let arguments = ["chart", section, "Owner/name", image, &digest, chart];
    printed("deploy/release", &arguments);
    let file = |name: &str| std::fs::read_to_string(Path::new(chart).join(name)).unwrap();
    assert_eq!(yaml(&file("values.yaml"))["image"]["repository"], image);
    assert!(file("README.md").contains(&format!("| `image.repository` | `{image}` |")));
    let metadata = yaml(&file("Chart.yaml"));
    assert_eq!(metadata["home"], "https://github.com/Owner/name");
    let annotation = |name: &str| {
        let text = metadata["annotations"][format!("artifacthub.io/{name}")].as_str();
        yaml(text.unwrap_or_else(|| panic!("no annotation {name}")))
    };
    let named = format!("{image}:{section}@{digest}");
    assert_eq!(annotation("images")[0]["image"], Value::from(named));
    let changes = annotation("changes");
    let changes = changes.as_array().unwrap();
    let items = printed("deploy/release", &["notes", section]);
    assert_eq!(changes.len(), items.lines().filter(|line| line.starts_with("- ")).count());
    for change in changes {
        let kind = change["kind"].as_str().unwrap();
        assert!(["added", "changed", "fixed", "removed", "security"].contains(&kind), "{kind}");
        assert!(!change["description"].as_str().unwrap().is_empty());
    }
    assert!(annotation("links").as_array().unwrap().iter().all(|link| link["url"].is_string()));
    assert!(!run("deploy/release", &["chart", section, "a/b", image, "7", chart]).status.success());
}

#[test]
fn the_annotations_of_the_chart_name_the_definition_and_a_valid_example() {
    let metadata = yaml(&read("deploy/chart/Chart.yaml"));
    let annotations = &metadata["annotations"];
    assert_eq!(annotations["artifacthub.io/license"], "Apache-2.0");
    let definitions = read("deploy/base/crd.yaml");
    let definitions: Vec<Value> = serde_saphyr::from_multiple(&definitions).unwrap();
    let described = yaml(annotations["artifacthub.io/crds"].as_str().unwrap());
    assert_eq!(described.as_array().map(Vec::len), Some(definitions.len()));
    for (described, definition) in described.as_array().unwrap().iter().zip(&definitions) {
        assert_eq!(described["name"], definition["metadata"]["name"]);
        assert_eq!(described["kind"], definition["spec"]["names"]["kind"]);
        assert_eq!(described["version"], definition["spec"]["versions"][0]["name"]);
    }
    let examples = yaml(annotations["artifacthub.io/crdsExamples"].as_str().unwrap());
    for (number, file) in ["autoscaler", "metric-rule"].into_iter().enumerate() {
        assert_eq!(examples[number], yaml(&read(&format!("docs/examples/{file}.yaml"))));
    }
}

#[test]
fn the_readme_of_the_chart_has_each_value() {
    let readme = read("deploy/chart/README.md");
    assert!(printed("deploy/chart-readme", &[]) == readme, "run `make generate`");
    let mut rows = 0;
    let mut values = vec![(String::new(), yaml(&read("deploy/chart/values.yaml")))];
    while let Some((path, value)) = values.pop() {
        if !path.is_empty() && readme.contains(&format!("\n| `{path}` | `")) {
            rows += 1;
            continue;
        }
        let fields = value.as_object().unwrap_or_else(|| panic!("no row for {path}"));
        assert!(!fields.is_empty(), "no row for {path}");
        let below = if path.is_empty() { path } else { format!("{path}.") };
        values.extend(fields.iter().map(|(key, value)| (format!("{below}{key}"), value.clone())));
    }
    assert!(rows > 60, "{rows}");
}

/// A tag can be moved to another commit, a commit can't.
#[test]
fn each_action_of_a_workflow_is_pinned_by_its_commit() {
    let mut actions = 0;
    for entry in std::fs::read_dir(Path::new(ROOT).join(".github/workflows")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for line in text.lines() {
            let Some((_, action)) = line.split_once("uses: ") else { continue };
            if action.starts_with("./") {
                continue;
            }
            let pinned = action.split_once('@').and_then(|(_, version)| version.split_once(" # v"));
            let is_commit = pinned.is_some_and(|(commit, _)| {
                commit.len() == 40 && commit.chars().all(|c| c.is_ascii_hexdigit())
            });
            assert!(is_commit, "{}: {line}", path.display());
            actions += 1;
        }
    }
    assert!(actions > 20, "{actions}");
}

/// Who changes a workflow by a pull request, or a package that it runs, gets no more than the sources.
#[test]
fn each_job_of_a_workflow_has_the_rights_that_it_needs() {
    let read_only = json!({"contents": "read"});
    let mut more = serde_json::Map::new();
    for entry in std::fs::read_dir(Path::new(ROOT).join(".github/workflows")).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_stem().unwrap().to_str().unwrap();
        let workflow = yaml(&std::fs::read_to_string(&path).unwrap());
        let of_all = &workflow["permissions"];
        assert!(*of_all == read_only || *of_all == json!({}), "{}: {of_all}", workflow["name"]);
        for (name, job) in workflow["jobs"].as_object().unwrap() {
            let rights = job.get("permissions").unwrap_or(of_all);
            if *rights != read_only {
                more.insert(format!("{file}/{name}"), rights.clone());
            }
        }
    }
    let publishes = json!({"contents": "read", "packages": "write", "id-token": "write"});
    let expected = json!({
        "release/check": {"contents": "read", "packages": "read"},
        "release/image": {"contents": "read", "packages": "write"},
        "release/node-image": {"contents": "read", "packages": "read"},
        "release/publish-image": publishes,
        "release/publish-chart": publishes,
        "release/release": {"contents": "write", "id-token": "write"},
    });
    assert_eq!(Value::from(more), expected);
}

#[test]
fn an_image_is_published_after_all_that_may_refuse_it() {
    let workflow = yaml(&read(".github/workflows/release.yaml"));
    let needs = &workflow["jobs"]["publish-image"]["needs"];
    for job in ["node-image", "advisories", "sbom"] {
        assert!(needs.as_array().unwrap().contains(&job.into()), "{job}: {needs}");
    }
}

/// A build without it has the version only.
#[test]
fn each_build_of_a_program_that_is_released_has_its_commit() {
    let workflow = read(".github/workflows/release.yaml");
    let with_commit = "--build-arg \"REVISION=$GITHUB_SHA\"";
    let built = workflow.replace("\\\n", "");
    let builds = built.lines().filter(|line| line.contains("docker buildx build "));
    assert_eq!(builds.filter(|line| line.contains(with_commit)).count(), 2);
    let mut cargo = built.lines().filter(|line| line.contains("cargo build "));
    assert!(cargo.all(|line| line.contains("PLIMSOLL_REVISION=\"$GITHUB_SHA\" cargo build ")));
    let dockerfile = read("Dockerfile").replace("\\\n", "");
    assert!(dockerfile.contains("\nARG REVISION\n"));
    assert!(dockerfile.contains("PLIMSOLL_REVISION=\"$REVISION\" cargo build "));
    let makefile = read("Makefile");
    assert!(makefile.contains("\nSTATIC_BUILD = PLIMSOLL_REVISION=\"$(REVISION)\" "));
}
