//! Namespaces of processes, mounts and network for the node: what runs in them ends with them, and
//! so do its mounts and its network.

use crate::cgroups;
use bed::process::{child, printed};
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

/// Variables of proxies, which can't be reached from inside.
const PROXIES: [&str; 6] =
    ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];

/// What the tests that run need beside the node.
pub struct Needs {
    /// Packages of the machine that are missing, which are installed.
    pub packages: bool,
    /// Parts that only some tests need.
    pub parts: Vec<&'static str>,
    /// The image and the chart of before.
    pub old_image: bool,
}

/// Which side of the namespaces this process is on.
pub enum Isolated {
    /// Inside, where the tests run.
    Inside,
    /// Outside, after the process inside has ended, and all of it was removed.
    Ended(ExitCode),
    /// Outside, after this process was told to end, and all of it was removed.
    Interrupted,
}

impl Isolated {
    /// Runs this program again in namespaces of its own, or sets them up if it is that process.
    ///
    /// # Errors
    /// Why a node can't run here.
    pub fn enter(needs: &Needs) -> Result<Self, String> {
        match std::env::var_os(NAME) {
            // Nothing of the machine may be mounted over by another process that has the variable.
            Some(_) if std::process::id() == 1 => {
                set_up();
                Ok(Self::Inside)
            }
            Some(_) => Err(format!("{NAME} is set, which is for processes of these tests alone")),
            None => run_inside(needs),
        }
    }
}

/// Has `make` write an image, of the `PROFILE` in the environment. Returns whether it could.
fn make(image: &str) -> bool {
    let mut make = Command::new("make");
    make.args(["--no-print-directory", "--silent", image]).current_dir(root());
    // Cargo's variables of this package would have build scripts run again.
    let of_package =
        |name: &String| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for name in std::env::vars().map(|(name, _)| name).filter(of_package) {
        make.env_remove(name);
    }
    make.status().is_ok_and(|status| status.success())
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

fn run_inside(needs: &Needs) -> Result<Isolated, String> {
    can_run(needs)?;
    for name in abandoned() {
        remove(&name);
    }
    if !needs.parts.is_empty() {
        parts(&needs.parts);
    }
    let parts = parts(&["node"]);
    assert!(std::env::var_os(IMAGE).is_some() || make("image"), "no image");
    // Without it the one test that needs it fails.
    let _ = needs.old_image && make("old-image");
    let told_to_end = told_to_end().map_err(|error| error.to_string())?;
    let name = name();
    let folder = std::env::temp_dir().join(&name);
    fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let created = cgroups::create(&[&name]);
    let ended = created.and_then(|()| {
        let mut command = Command::new(parts.join("fleet"));
        command.arg("guard").args(UNSHARE).arg(std::env::current_exe().expect("this program"));
        command.args(std::env::args_os().skip(1)).env(NAME, &name).env("TMPDIR", &folder);
        for name in PROXIES {
            command.env_remove(name);
        }
        // The guard ends it with this process, which holds its input, and when this one is told to end.
        let inside = command.stdin(Stdio::piped()).spawn();
        let ended = inside.and_then(|mut inside| {
            let alive = inside.stdin.take();
            let told = std::thread::spawn(move || {
                told_to_end();
                drop(alive);
            });
            write_id(inside.id(), &folder);
            inside.wait().map(|status| (status, told.is_finished()))
        });
        ended.map_err(|error| error.to_string())
    });
    if let Some(to) = std::env::var_os("NODE_LOGS") {
        keep_logs(&folder, Path::new(&to));
    }
    remove(&name);
    let (status, told) = ended?;
    if told {
        return Ok(Isolated::Interrupted);
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(Isolated::Ended(code.map_or(ExitCode::FAILURE, ExitCode::from)))
}

/// Takes the signals that would end this process, which has to remove what is left. Returns what waits for one.
fn told_to_end() -> std::io::Result<impl FnOnce() + Send> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let entered = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(entered);
    Ok(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
        });
    })
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

/// What containerd and runc do in the node's folder: they mount layers over each other, and run programs of them.
const CONTAINER: &str = "mkdir lower upper work merged\n\
    echo '#!/bin/sh' >lower/program; chmod +x lower/program; lower/program\n\
    mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged; merged/program";

fn can_run(needs: &Needs) -> Result<(), String> {
    let said = |program: &mut Command| -> Result<String, String> {
        let done = program.output().map_err(|error| format!("{program:?}: {error}"))?;
        let text = printed(&done).map_err(|text| text.replace('\n', " "))?;
        Ok(text.trim().to_owned())
    };
    if said(Command::new("id").arg("-u"))? != "0" {
        return Err(r#"it needs root: sudo -E env "PATH=$PATH" make ..."#.to_owned());
    }
    if !needs.packages {
        let missing = said(Command::new(root().join("bed/build")).args(["missing", "node"]))?;
        if !missing.is_empty() {
            return Err(missing);
        }
    }
    let inside = || {
        let [unshare, flags @ ..] = UNSHARE;
        let mut command = Command::new(unshare);
        command.args(flags);
        command
    };
    said(inside().arg("true")).map_err(|why| format!("no namespaces can be made: {why}"))?;
    let folder = tempfile::tempdir().map_err(|error| format!("no folder for it: {error}"))?;
    said(inside().args(["sh", "-ec", CONTAINER]).current_dir(&folder)).map_err(|why| {
        let parent = std::env::temp_dir();
        format!("no container can run in {}, but maybe in another TMPDIR: {why}", parent.display())
    })?;
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
    // The id may be that of another program by now.
    let runs = |id: u32| {
        let program = fs::read_to_string(format!("/proc/{id}/comm"));
        program.is_ok_and(|program| program.starts_with("node-"))
    };
    let gone = |name: &String| {
        let id = name.strip_prefix(PREFIX).and_then(|id| id.parse().ok());
        id.is_some_and(|id| !runs(id))
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
