//! The cgroups of a node, of version 1 or 2. kubelet makes those of pods below them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ROOT: &str = "/sys/fs/cgroup";
/// The controllers of version 2 that kubelet needs in its root, those of them that the machine has.
const CONTROLLERS: [&str; 5] = ["cpu", "cpuset", "memory", "hugetlb", "pids"];
/// Where the processes of the root are moved that keep it from having controllers for others.
const MOVED: &str = "processes";

/// The hierarchies: one of version 2, or of version 1 one for each controller, or for some of them together.
pub fn hierarchies() -> Vec<PathBuf> {
    let has_processes = |path: &PathBuf| path.join("cgroup.procs").exists();
    let entries = fs::read_dir(ROOT).into_iter().flatten().flatten();
    // Links such as `cpu` lead to one of several controllers, `cpu,cpuacct`.
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    match is_version2() {
        true => vec![PathBuf::from(ROOT)],
        false => folders.map(|entry| entry.path()).filter(has_processes).collect(),
    }
}

fn is_version2() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
}

/// Creates a cgroup by its path, whose parent exists, in each hierarchy.
///
/// # Errors
/// Why it can't be made, or would lack a controller that kubelet needs.
pub fn create(path: &[&str]) -> Result<(), String> {
    let all = hierarchies();
    if all.is_empty() {
        return Err(format!("{ROOT} has no cgroups"));
    }
    for root in all {
        let group = path.iter().fold(root.clone(), |path, part| path.join(part));
        fs::create_dir(&group).map_err(|error| format!("{}: {error}", group.display()))?;
        if is_version2() {
            let parent = group.parent().expect("its parent");
            provide(&root, parent)?;
            let missing = missing(&root, &words(&group.join("cgroup.controllers"))?)?;
            if !missing.is_empty() {
                return Err(format!("{} has no {}", group.display(), missing.join(", ")));
            }
        }
    }
    Ok(())
}

/// Has a group of version 2 give its children the controllers: a new one gives them none.
fn provide(root: &Path, group: &Path) -> Result<(), String> {
    let file = group.join("cgroup.subtree_control");
    let missing = missing(root, &words(&file)?)?;
    let wanted: Vec<String> = missing.iter().map(|name| format!("+{name}")).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let write = || fs::write(&file, wanted.join(" "));
    // A group with processes can't, but for the root of the machine: this is a container's.
    let written = match write() {
        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy && group == root => {
            move_processes(root).and_then(|()| write())
        }
        written => written,
    };
    written.map_err(|error| format!("{}: {error}", file.display()))
}

/// Moves the processes of a container's root into a group of their own, as kind and Docker do.
fn move_processes(root: &Path) -> std::io::Result<()> {
    let group = root.join(MOVED);
    fs::create_dir_all(&group)?;
    for process in fs::read_to_string(root.join("cgroup.procs"))?.lines() {
        match fs::write(group.join("cgroup.procs"), process) {
            // It has ended.
            Err(_) if !Path::new("/proc").join(process).exists() => {}
            moved => moved?,
        }
    }
    Ok(())
}

/// The controllers that kubelet needs and the machine has, without those of a list.
fn missing(root: &Path, present: &[String]) -> Result<Vec<String>, String> {
    let mut of_machine = words(&root.join("cgroup.controllers"))?;
    of_machine.retain(|name| CONTROLLERS.contains(&&**name) && !present.contains(name));
    Ok(of_machine)
}

fn words(file: &Path) -> Result<Vec<String>, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

/// Removes a cgroup with those in it, which are empty as soon as the last process is gone.
pub fn remove(name: &str) {
    fn remove(path: &Path) -> std::io::Result<()> {
        for entry in fs::read_dir(path)?.flatten().filter(|entry| entry.path().is_dir()) {
            remove(&entry.path())?;
        }
        fs::remove_dir(path)
    }
    let start = Instant::now();
    for path in hierarchies().into_iter().map(|path| path.join(name)) {
        while path.exists() {
            match remove(&path) {
                Ok(()) => {}
                Err(error) if start.elapsed() > Duration::from_secs(20) => {
                    eprintln!("{} is left: {error}", path.display());
                    break;
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

/// The file with the limit of the memory of a process's cgroup.
pub fn memory_of(process: u32) -> PathBuf {
    let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).expect("its cgroups");
    // ID:CONTROLLERS:PATH, and no controllers in version 2.
    let of = |line: &str, controllers: &str| {
        let (_, line) = line.split_once(':')?;
        line.strip_prefix(controllers)?.strip_prefix(":/").map(str::to_owned)
    };
    let version1 = groups.lines().find_map(|line| of(line, "memory"));
    let version1 = version1
        .map(|path| Path::new(ROOT).join("memory").join(path).join("memory.limit_in_bytes"));
    version1.unwrap_or_else(|| {
        let path = groups.lines().find_map(|line| of(line, "")).expect("a cgroup");
        Path::new(ROOT).join(path).join("memory.max")
    })
}
