//! The command of `make image`, in a repository whose origin has a token in its URL.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const TOKEN: &str = "glpat-0123456789";

/// A repository of one commit, with the definition of the image and a program.
fn repository(name: &str, origin: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("deploy")).expect("a folder");
    let definition = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/image.json");
    fs::copy(definition, folder.join("deploy/image.json")).expect("the definition");
    fs::write(folder.join("program"), "#!/bin/true\n").expect("a file");
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        for kind in ["AUTHOR", "COMMITTER"] {
            git.env(format!("GIT_{kind}_NAME"), "someone");
            git.env(format!("GIT_{kind}_EMAIL"), "someone@example.com");
            git.env(format!("GIT_{kind}_DATE"), "2024-01-01T00:00:00Z");
        }
        let done = git.args(words).current_dir(&folder).output().expect("git can be run");
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    };
    git(&["init", "--quiet"]);
    git(&["add", "."]);
    git(&["commit", "--quiet", "--message=first"]);
    git(&["remote", "add", "origin", origin]);
    folder
}

/// What the command prints and writes.
fn image(folder: &Path, source: &str) -> (String, Vec<u8>) {
    run(folder, source, None)
}

/// The same of a program of another commit.
fn run(folder: &Path, source: &str, revision: Option<&str>) -> (String, Vec<u8>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_image"));
    command.env_remove("REVISION").envs(revision.map(|commit| ("REVISION", commit)));
    command.args(["program", "plimsoll:1", "image.tar"]).current_dir(folder).env("SOURCE", source);
    let done = command.env_remove("SOURCE_DATE_EPOCH").output().expect("it can be run");
    let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    (said, fs::read(folder.join("image.tar")).unwrap_or_default())
}

fn has(archive: &[u8], text: &str) -> bool {
    archive.windows(text.len()).any(|bytes| bytes == text.as_bytes())
}

#[test]
fn clones_by_a_token_and_by_ssh_give_the_same_image_without_the_token() {
    let by_token = format!("https://gitlab-ci-token:{TOKEN}@example.com/team/plimsoll.git");
    let (said, archive) = image(&repository("token", &by_token), "");
    assert!(has(
        &archive,
        r#""org.opencontainers.image.source":"https://example.com/team/plimsoll""#
    ));
    assert!(!has(&archive, TOKEN) && !said.contains(TOKEN));
    let (_, by_ssh) = image(&repository("ssh", "git@example.com:team/plimsoll.git"), "");
    assert_eq!(archive, by_ssh);
}

#[test]
fn a_given_source_is_without_its_token_too() {
    let folder = repository("given", "/srv/git/plimsoll.git");
    let (_, archive) = image(&folder, &format!("https://{TOKEN}@example.com/other/plimsoll"));
    assert!(has(&archive, "https://example.com/other/plimsoll") && !has(&archive, TOKEN));
    let (said, _) = image(&folder, &format!("{TOKEN}@nowhere"));
    assert!(said.contains("SOURCE") && !said.contains(TOKEN), "{said}");
}

#[test]
fn the_revision_of_a_program_of_another_commit_can_be_given() {
    let folder = repository("revision", "/srv/git/plimsoll.git");
    let label = |commit: &str| format!(r#""org.opencontainers.image.revision":"{commit}""#);
    fs::write(folder.join("program"), "#!/bin/false\n").expect("a file");
    let (_, archive) = run(&folder, "", Some("0a110bb"));
    assert!(has(&archive, &label("0a110bb")));
}
