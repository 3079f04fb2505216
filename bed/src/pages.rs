//! Runs the commands of the pages in docs/ (```console) and compares their output. Has the programs that they use, for
//! readers, too.

use crate::cluster::Cluster;
use crate::parts::{parts, root};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A command of a page, and its expected output.
pub struct Step {
    /// The heading of its section, without the hashes.
    section: String,
    line: usize,
    command: String,
    expected: Vec<String>,
}

/// The steps of a page, block by block.
pub fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let (mut inside, mut section) = (false, "");
    for (number, line) in page.lines().enumerate() {
        match (line, line.strip_prefix("$ ")) {
            ("```console", _) => inside = true,
            ("```", _) => inside = false,
            (_, Some(command)) if inside => steps.push(Step {
                section: section.to_owned(),
                line: number + 1,
                command: command.to_owned(),
                expected: Vec::new(),
            }),
            _ if inside => steps.last_mut().expect("a command").take(line),
            _ => section = line.strip_prefix("## ").unwrap_or(section),
        }
    }
    steps
}

impl Step {
    /// Takes the next line: of the command, if that ends with a backslash, or of its output.
    fn take(&mut self, line: &str) {
        if self.expected.is_empty() && self.command.ends_with('\\') {
            self.command = format!("{}\n{line}", self.command);
        } else {
            self.expected.push(line.to_owned());
        }
    }
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

/// Makes a folder for the `PATH` of a reader: kubectl, and Plimsoll's program as its plugin.
pub fn commands(cluster: &Cluster, plimsoll: &Path) -> PathBuf {
    let bin = cluster.folder.join("bin");
    std::fs::create_dir(&bin).expect("a folder");
    add_kubectl(cluster, &bin);
    symlink(plimsoll, bin.join("kubectl-plimsoll")).expect("a link");
    bin
}

fn add_kubectl(cluster: &Cluster, bin: &Path) {
    let kubectl = bin.join("kubectl");
    let program = cluster.parts.join("cluster").display().to_string();
    std::fs::write(&kubectl, format!("#!/bin/sh\nexec {program} kubectl \"$@\"\n"))
        .expect("a file");
    std::fs::set_permissions(&kubectl, PermissionsExt::from_mode(0o755)).expect("a mode");
}

/// A folder in which commands of the pages run, with the programs that they use.
pub struct Pages {
    folder: TempDir,
    kubeconfig: PathBuf,
}

impl Pages {
    /// Sets it up, for the administrator of a cluster.
    pub fn new(cluster: &Cluster) -> Self {
        let temporary = tempfile::tempdir().expect("a folder");
        let folder = temporary.path();
        for name in ["docs", "deploy", "config"] {
            symlink(root().join(name), folder.join(name)).expect("a link");
        }
        let bin = folder.join("bin");
        std::fs::create_dir(&bin).expect("a folder");
        symlink(parts(&["helm"]).join("helm"), bin.join("helm")).expect("a link");
        add_kubectl(cluster, &bin);
        Self { folder: temporary, kubeconfig: cluster.kubeconfig.clone() }
    }

    /// Adds a program that commands use.
    pub fn add(&self, name: &str, program: &Path) {
        symlink(program, self.folder.path().join("bin").join(name)).expect("a link");
    }

    /// Runs the commands of a page, and returns how many it has. Panics where one fails, or prints
    /// other lines than the page shows.
    pub async fn follow(&self, name: &str) -> usize {
        self.follow_section(name, "").await
    }

    /// The same for the sections whose headings begin with this text.
    pub async fn follow_section(&self, name: &str, heading: &str) -> usize {
        let text = std::fs::read_to_string(root().join("docs").join(name)).expect("the page");
        let mut steps = steps(&text);
        steps.retain(|step| step.section.starts_with(heading));
        for Step { line, command, expected, .. } in &steps {
            let what = format!("docs/{name}:{line}: {command}");
            let output = self.run(command).await.unwrap_or_else(|e| panic!("{what}\n{e}"));
            if let Some(missing) = missing(expected, &output) {
                panic!("{what}\nprints no line {missing:?}:\n{output}");
            }
        }
        println!("docs/{name}: {} commands", steps.len());
        steps.len()
    }

    /// Runs a command as the pages have it. Returns what it prints, or all output where it fails.
    pub async fn run(&self, command: &str) -> Result<String, String> {
        let folder = self.folder.path();
        let path = std::env::var("PATH").unwrap_or_default();
        let done = tokio::process::Command::new("bash")
            .args(["-o", "pipefail", "-c", command])
            .current_dir(folder)
            .env("PATH", format!("{}:{path}", folder.join("bin").display()))
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", folder)
            .output()
            .await
            .expect("bash can be run");
        let output = String::from_utf8_lossy(&done.stdout).into_owned();
        match done.status.success() {
            true => Ok(output),
            false => Err(output + &String::from_utf8_lossy(&done.stderr)),
        }
    }
}
