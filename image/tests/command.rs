//! The command of `make image`, in a repository whose origin has a token in its URL.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const TOKEN: &str = "glpat-0123456789";

/// The headers of an ELF file for amd64 with one program header of this type.
fn program(kind: u8) -> Vec<u8> {
    let mut bytes = vec![0; 64 + 56];
    bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    // e_machine, e_phoff, e_phentsize, e_phnum, and p_type.
    for (at, value) in [(18, 62), (32, 64), (54, 56), (56, 1), (64, kind)] {
        bytes[at] = value;
    }
    bytes
}

/// A repository of one commit, with the definition of the image and a program.
fn repository(name: &str, origin: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("deploy")).expect("a folder");
    let definition = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/image.json");
    fs::copy(definition, folder.join("deploy/image.json")).expect("the definition");
    fs::write(folder.join("program"), program(1)).expect("a file");
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
    image_with(folder, &[("SOURCE", source)])
}

/// The same with these variables.
fn image_with(folder: &Path, variables: &[(&str, &str)]) -> (String, Vec<u8>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_image"));
    command.args(["program", "plimsoll:1", "image.tar"]).current_dir(folder);
    command.env_remove("SOURCE_DATE_EPOCH").env_remove("SOURCE").env_remove("REVISION");
    command.envs(variables.iter().copied());
    let done = command.output().expect("it can be run");
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
    let (_, archive) = image_with(&folder, &[("REVISION", "0a110bb")]);
    assert!(has(&archive, &label("0a110bb")));
}

#[test]
fn a_program_that_no_container_could_run_is_refused() {
    let folder = repository("programs", "git@example.com:team/plimsoll.git");
    let other = |at: usize, value: u8| {
        let mut bytes = program(1);
        bytes[at] = value;
        bytes
    };
    for (program, why) in [
        // Of a Mac, of FreeBSD, with 32 bits.
        (b"\xcf\xfa\xed\xfe\x0c\0\0\x01\0\0".to_vec(), "no program for Linux"),
        (other(7, 9), "no program for Linux"),
        (other(4, 1), "no program for Linux"),
        (other(18, 40), "neither amd64 nor arm64"),
        (program(3), "not static"),
        (program(1)[..65].to_vec(), "cut off"),
    ] {
        fs::write(folder.join("program"), program).expect("a file");
        let (said, archive) = image(&folder, "");
        assert!(said.contains(why) && archive.is_empty(), "{why}: {said}");
    }
}

#[test]
fn the_architecture_is_that_of_the_program() {
    let folder = repository("architecture", "git@example.com:team/plimsoll.git");
    for (machine, name) in [(62, "amd64"), (183, "arm64")] {
        let mut program = program(1);
        program[18] = machine;
        fs::write(folder.join("program"), program).expect("a file");
        let (_, archive) = image(&folder, "");
        assert!(has(&archive, &format!(r#""architecture":"{name}""#)), "{name}");
    }
}

#[test]
fn where_git_refuses_the_folder_its_own_words_are_said() {
    let folder = repository("refused", "git@example.com:team/plimsoll.git");
    let refused = ("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1");
    for variables in [&[refused][..], &[refused, ("SOURCE_DATE_EPOCH", "1700000000")]] {
        let (said, archive) = image_with(&folder, variables);
        assert!(said.contains("dubious ownership") && archive.is_empty(), "{said}");
    }
}
