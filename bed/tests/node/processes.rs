//! The processes of containers, which are in the node's namespace of processes.

use std::fs;
use std::path::Path;

/// The process of the container of a pod of Plimsoll, which has the name of the pod in its environment.
pub fn of_plimsoll(pod: &str) -> Option<u32> {
    let is_it = |process: &Path| {
        let read = |name: &str| fs::read(process.join(name)).unwrap_or_default();
        let named = format!("POD_NAME={pod}");
        let mut variables = read("environ")
            .split(|byte| *byte == 0)
            .map(<[u8]>::to_vec)
            .collect::<Vec<_>>()
            .into_iter();
        read("cmdline").starts_with(b"/plimsoll\0") && variables.any(|one| one == named.as_bytes())
    };
    let processes = fs::read_dir("/proc").expect("/proc").flatten().map(|entry| entry.path());
    let found = processes.filter(|path| is_it(path));
    found.filter_map(|path| path.file_name()?.to_str()?.parse().ok()).next()
}
