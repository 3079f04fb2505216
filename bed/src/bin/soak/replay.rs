//! The decision logs of both replicas, decided again.

use crate::settings::NAMES;
use bed::cluster::Cluster;
use bed::plimsoll::{binary, decision_log};
use std::path::PathBuf;
use std::process::Command;

/// Replays all that the replicas have logged. Returns what was said of each file.
///
/// # Errors
/// If a file can't be read, has no decision, or has one that is made differently.
pub fn all(cluster: &Cluster) -> Result<String, String> {
    let mut said = String::new();
    for name in NAMES {
        for log in files(decision_log(cluster, name)) {
            let failed = |error: std::io::Error| format!("{}: {error}", log.display());
            // The last line of a replica that runs, or was killed, may be a part of one.
            let mut lines = std::fs::read(&log).map_err(failed)?;
            let whole = lines.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            lines.truncate(whole);
            // A replica that never led has decided nothing.
            if lines.is_empty() {
                continue;
            }
            let copy = log.with_extension("whole");
            std::fs::write(&copy, lines).map_err(failed)?;
            let done = Command::new(binary()).arg("replay").arg(&copy).output().map_err(failed)?;
            let output = String::from_utf8_lossy(&done.stdout);
            if !done.status.success() {
                let error = String::from_utf8_lossy(&done.stderr);
                return Err(format!("the decision log of {name}: {output}{error}"));
            }
            said += &format!("  {name}: {output}");
        }
    }
    match said.is_empty() {
        true => Err("no replica has logged a decision".to_owned()),
        false => Ok(said),
    }
}

/// A log and what was rotated away from it.
fn files(log: PathBuf) -> Vec<PathBuf> {
    let rotated = (1..=7).map(|number| {
        let mut name = log.clone().into_os_string();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    });
    let rotated: Vec<_> = rotated.filter(|file| file.exists()).collect();
    [log].into_iter().chain(rotated).collect()
}
