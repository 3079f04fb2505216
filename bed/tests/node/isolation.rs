//! Namespaces of processes, mounts and network for the node: what runs in them ends with them, and
//! so do its mounts and its network.

use crate::cgroups;
use bed::process::child;
use bed::{parts, root};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// The name of the node's folder and cgroups, set inside its namespaces.
const NAME: &str = "PLIMSOLL_NODE";
/// A folder with an image that was built elsewhere, `plimsoll.tar`, and the program `plimsoll` in it.
const IMAGE: &str = "NODE_IMAGE";
/// Before the process id of the process outside.
const PREFIX: &str = "plimsoll-node-";
/// Parameters of the whole kernel that kubelet sets, and the values that it wants: it gets files in their place.
const TUNABLES: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Which side of the namespaces this process is on.
pub enum Isolated {
    /// Inside, where the tests run.
    Inside,
    /// Outside, after the process inside has ended, and all of it was removed.
    Ended(ExitCode),
}

impl Isolated {
    /// Runs this program again in namespaces of its own, or sets them up if it is that process.
    ///
    /// # Errors
    /// Why a node can't run here.
    pub fn enter() -> Result<Self, String> {
        match std::env::var(NAME) {
            Ok(_) => {
                set_up();
                Ok(Self::Inside)
            }
            Err(_) => run_inside().map(Self::Ended),
        }
    }
}

/// Has `make` write the image, of the `PROFILE` in the environment, and that of before for the tests that are
/// ignored otherwise. With `NODE_IMAGE` there is one.
fn build_images() {
    if std::env::var_os(IMAGE).is_some() {
        return;
    }
    let mut make = Command::new("make");
    make.args(["--no-print-directory", "image"]).current_dir(root());
    if std::env::args().any(|argument| argument.ends_with("ignored")) {
        make.arg("old-image");
    }
    // Cargo's variables of this package would have build scripts run again.
    let of_package =
        |name: &String| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for name in std::env::vars().map(|(name, _)| name).filter(of_package) {
        make.env_remove(name);
    }
    let made = make.status();
    assert!(made.is_ok_and(|status| status.success()), "no images");
}

fn target() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| root().join("target"))
}

/// The folder of the images and of the program in Plimsoll's.
fn images() -> PathBuf {
    std::env::var_os(IMAGE).map_or_else(|| target().join("image"), PathBuf::from)
}

/// The archives of the images that `make image` and `make old-image` wrote.
pub fn built() -> impl Iterator<Item = PathBuf> {
    let names = ["plimsoll.tar", "plimsoll-old.tar"];
    names.map(|name| images().join(name)).into_iter().filter(|path| path.exists())
}

/// The chart of the old image, if there is one.
pub fn old_chart() -> Option<PathBuf> {
    Some(target().join("old/deploy/chart")).filter(|path| path.exists())
}

/// The program in the image.
pub fn binary() -> PathBuf {
    images().join("plimsoll")
}

/// The folder of the node.
pub fn folder() -> PathBuf {
    std::env::temp_dir()
}

/// Creates the cgroups of a machine, and returns their path below those of each controller.
pub fn add_cgroups(machine: &str) -> String {
    let name = std::env::var(NAME).expect("a process inside the namespaces");
    cgroups::create(&[&name, machine]).expect("cgroups");
    format!("/{name}/{machine}")
}

fn run_inside() -> Result<ExitCode, String> {
    can_run()?;
    // Ctrl-C ends the guard, and with it what is inside. This process removes what that leaves.
    let runtime = Builder::new_current_thread().enable_io().build().map_err(|e| e.to_string())?;
    let _handler = runtime.block_on(async { signal(SignalKind::interrupt()) });
    for name in abandoned() {
        remove(&name);
    }
    let parts = parts(&["node"]);
    build_images();
    let name = name();
    let folder = std::env::temp_dir().join(&name);
    fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let created = cgroups::create(&[&name]);
    let ended = created.and_then(|()| {
        let mut command = Command::new(parts.join("fleet"));
        command.arg("guard").args(UNSHARE).arg(std::env::current_exe().expect("this program"));
        command.args(std::env::args_os().skip(1)).env(NAME, &name).env("TMPDIR", &folder);
        // The guard ends it with this process, which holds its input.
        let inside = command.stdin(Stdio::piped()).spawn();
        let ended = inside.and_then(|mut inside| {
            let alive = inside.stdin.take();
            write_id(inside.id(), &folder);
            let ended = inside.wait();
            drop(alive);
            ended
        });
        ended.map_err(|error| error.to_string())
    });
    if let Some(to) = std::env::var_os("NODE_LOGS") {
        keep_logs(&folder, Path::new(&to));
    }
    remove(&name);
    let code = ended?.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// The file with the process id, seen from outside, of the process inside.
const ID: &str = "id";

/// Writes the process id of what `unshare` starts under the guard.
fn write_id(guard: u32, folder: &Path) {
    let start = Instant::now();
    let inside = loop {
        match child(guard).and_then(child) {
            Some(inside) => break inside.to_string(),
            None if start.elapsed() > Duration::from_secs(5) => return,
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    fs::write(folder.join(ID), inside).expect("a file");
}

/// The process id, seen from outside, of this process.
pub fn outside() -> String {
    fs::read_to_string(folder().join(ID)).unwrap_or_default()
}

const UNSHARE: [&str; 8] = [
    "unshare",
    "--mount",
    "--pid",
    "--net",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--propagation=private",
];

fn can_run() -> Result<(), String> {
    let user = Command::new("id").arg("-u").output().map_err(|error| format!("id: {error}"))?;
    if user.stdout.trim_ascii() != b"0" {
        return Err("it needs root".to_owned());
    }
    let [unshare, flags @ ..] = UNSHARE;
    let tried = Command::new(unshare).args(flags).arg("true").output();
    let tried = tried.map_err(|error| format!("unshare: {error}"))?;
    if !tried.status.success() {
        let said = String::from_utf8_lossy(&tried.stderr);
        return Err(format!("no namespaces can be made: {}", said.trim()));
    }
    // As deep as those of a machine, which is where controllers can be missing.
    let name = name();
    let created = cgroups::create(&[&name]).and_then(|()| cgroups::create(&[&name, "probe"]));
    cgroups::remove(&name);
    created
}

/// The name of the node whose process outside is this one.
fn name() -> String {
    format!("{PREFIX}{}", std::process::id())
}

/// The names of nodes whose process outside is gone.
fn abandoned() -> Vec<String> {
    let folders = cgroups::hierarchies().into_iter().chain([std::env::temp_dir()]);
    let entries = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let gone = |name: &String| {
        let id = name.strip_prefix(PREFIX).and_then(|id| id.parse::<u32>().ok());
        id.is_some_and(|id| !Path::new("/proc").join(id.to_string()).exists())
    };
    names.filter(gone).collect()
}

fn remove(name: &str) {
    cgroups::remove(name);
    let folder = std::env::temp_dir().join(name);
    if folder.exists()
        && let Err(error) = fs::remove_dir_all(&folder)
    {
        eprintln!("{} is left: {error}", folder.display());
    }
}

/// Copies the logs of the programs, which are below the folder.
fn keep_logs(folder: &Path, to: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension() == Some("log".as_ref()) {
            let copied =
                fs::create_dir_all(to).and_then(|()| fs::copy(&path, to.join(entry.file_name())));
            copied.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        } else if entry.file_name().to_string_lossy().starts_with("plimsoll-bed-") {
            keep_logs(&path, to);
        }
    }
}

/// Keeps what the node writes in its own folder, and what it mounts in its own namespace.
fn set_up() {
    let folder = folder();
    run("mount", &["--make-rshared", "/"]);
    run("mount", &["-t", "tmpfs", "tmpfs", "/run"]);
    for path in ["/var/lib", "/var/log"] {
        let own = folder.join(path.trim_start_matches('/').replace('/', "-"));
        fs::create_dir(&own).expect("a folder");
        run("mount", &["--bind", &own.display().to_string(), path]);
    }
    for (name, value) in TUNABLES {
        let own = folder.join(name.replace('/', "-"));
        fs::write(&own, value).expect("a file");
        run("mount", &["--bind", &own.display().to_string(), &format!("/proc/sys/{name}")]);
    }
}

/// Runs a program that must succeed.
pub fn run(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).output();
    let done = done.unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {}: {said}", arguments.join(" "));
}
