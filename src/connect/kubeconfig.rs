//! The kubeconfig, as kubectl finds and reads it.

use kube::config::{Kubeconfig, KubeconfigError};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

/// Reads a kubeconfig. An empty `current-context`, as `kubectl config unset` leaves it, is none.
///
/// # Errors
/// If it can't be read.
pub fn read(path: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let mut read = Kubeconfig::read_from(path)?;
    read.current_context.take_if(|context| context.is_empty());
    Ok(read)
}

/// The kubeconfig of the environment: the files of `KUBECONFIG`, of those that are there, or `~/.kube/config`. None where
/// there is no file, as in a pod.
///
/// # Errors
/// If a file can't be read, or they do not go together.
pub fn found() -> Result<Option<Kubeconfig>, KubeconfigError> {
    found_in(std::env::var_os("KUBECONFIG").as_deref(), std::env::home_dir().as_deref())
}

fn found_in(
    variable: Option<&OsStr>,
    home: Option<&Path>,
) -> Result<Option<Kubeconfig>, KubeconfigError> {
    let named = variable.into_iter().flat_map(std::env::split_paths);
    let mut paths: Vec<PathBuf> = named.filter(|path| !path.as_os_str().is_empty()).collect();
    if paths.is_empty() {
        paths.extend(home.map(|home| home.join(".kube/config")));
    }
    let mut merged: Option<Kubeconfig> = None;
    for path in paths {
        let read = match read(&path) {
            Err(KubeconfigError::ReadConfig(error, _))
                if error.kind() == io::ErrorKind::NotFound =>
            {
                continue;
            }
            read => read?,
        };
        merged = Some(match merged {
            Some(merged) => merged.merge(read)?,
            None => read,
        });
    }
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `kubectl config unset current-context` writes it.
    #[test]
    fn an_empty_current_context_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("a"), "current-context: \"\"\n").unwrap();
        std::fs::write(path("b"), "current-context: x\n").unwrap();
        let context = |files: &[&str]| {
            let variable = std::env::join_paths(files.iter().map(|file| path(file))).unwrap();
            found_in(Some(&variable), None).unwrap().unwrap().current_context
        };
        assert_eq!(context(&["a", "b"]).as_deref(), Some("x"));
        assert_eq!(context(&["b", "a"]).as_deref(), Some("x"));
        assert_eq!(context(&["a"]), None);
    }

    #[test]
    fn files_that_are_not_there_are_left_out_as_by_kubectl() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir(path(".kube")).unwrap();
        for (file, context) in [("a", "prod"), ("b", "test"), (".kube/config", "home")] {
            std::fs::write(path(file), format!("current-context: {context}\n")).unwrap();
        }
        let context = |variable: Option<&[&str]>, home: &str| {
            let variable =
                variable.map(|files| std::env::join_paths(files.iter().map(|f| path(f))).unwrap());
            let found = found_in(variable.as_deref(), Some(&path(home)));
            found.unwrap().map(|found| found.current_context.unwrap_or_default())
        };
        let of = |context: &str| Some(context.to_owned());
        assert_eq!(context(Some(&["gone", "a", "b"]), ""), of("prod"));
        assert_eq!(context(Some(&["b", "gone"]), ""), of("test"));
        assert_eq!(context(Some(&["gone"]), ""), None);
        assert_eq!(context(None, ""), of("home"));
        assert_eq!(context(None, "gone"), None);
        let empty = found_in(Some(OsStr::new("")), Some(folder.path())).unwrap();
        assert!(empty.is_some_and(|found| found.current_context.as_deref() == Some("home")));
        // One that is there has to be read.
        std::fs::write(path("a"), "{").unwrap();
        assert!(found_in(Some(path("a").as_os_str()), None).is_err());
    }
}
