//! The kubeconfig, as kubectl finds and reads it.

use super::error::ConnectError;
use crate::causes::causes;
use http::HeaderValue;
use kube::config::{AuthInfo, Context, Kubeconfig, KubeconfigError};
use secrecy::{ExposeSecret, SecretString};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

/// A kubeconfig.
pub struct Found {
    /// What is in it.
    pub config: Kubeconfig,
    /// The files that it was read from, as errors name them.
    files: String,
}

/// The most contexts that an error names.
const MAX_NAMED: usize = 20;

/// Reads the kubeconfig that a flag names.
///
/// # Errors
/// If it can't be read.
pub fn read(flag: &str, path: &Path) -> Result<Found, ConnectError> {
    let files = format!("{flag}: {}", path.display());
    match read_file(path) {
        Ok(config) => Ok(Found { config, files }),
        Err(error) => Err(unreadable(files, &error)),
    }
}

fn unreadable(files: String, error: &KubeconfigError) -> ConnectError {
    ConnectError::Kubeconfig { files, error: causes(error) }
}

/// Reads a file.
fn read_file(path: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let mut read = Kubeconfig::read_from(path)?;
    leave_out_empty(&mut read, path.parent().unwrap_or(Path::new("")));
    Ok(read)
}

/// A text that is empty is none, as for kubectl: `kubectl config unset` and generators leave such. The names of files are
/// absolute by now: an empty one is the folder.
fn leave_out_empty(config: &mut Kubeconfig, folder: &Path) {
    fn text(field: &mut Option<String>) {
        field.take_if(|text| text.is_empty());
    }
    fn secret(field: &mut Option<SecretString>) {
        field.take_if(|text| text.expose_secret().is_empty());
    }
    let folder = folder.join("");
    let file = |field: &mut Option<String>| {
        field.take_if(|path| path.is_empty() || Path::new(path).as_os_str() == folder.as_os_str());
    };
    text(&mut config.current_context);
    for context in config.contexts.iter_mut().filter_map(|named| named.context.as_mut()) {
        text(&mut context.namespace);
        text(&mut context.user);
    }
    for cluster in config.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        text(&mut cluster.server);
        text(&mut cluster.tls_server_name);
        text(&mut cluster.proxy_url);
        text(&mut cluster.certificate_authority_data);
        file(&mut cluster.certificate_authority);
    }
    for user in config.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        text(&mut user.username);
        secret(&mut user.password);
        secret(&mut user.token);
        file(&mut user.token_file);
        text(&mut user.client_certificate_data);
        file(&mut user.client_certificate);
        secret(&mut user.client_key_data);
        file(&mut user.client_key);
        text(&mut user.impersonate);
        text(&mut user.impersonate_uid);
    }
}

/// The field of credentials that no header can have.
pub fn unsendable(user: &AuthInfo) -> Option<&'static str> {
    let token = user.token.as_ref().map(ExposeSecret::expose_secret);
    let groups = user.impersonate_groups.iter().flatten();
    let texts = [
        ("token", token),
        ("as", user.impersonate.as_deref()),
        ("as-uid", user.impersonate_uid.as_deref()),
    ];
    let texts = texts.into_iter().filter_map(|(field, text)| Some((field, text?)));
    let mut all = texts.chain(groups.map(|group| ("as-groups", &**group)));
    all.find(|(_, text)| HeaderValue::try_from(*text).is_err()).map(|(field, _)| field)
}

/// The kubeconfig of the environment: the files of `KUBECONFIG`, of those that are there, or `~/.kube/config`. None where
/// there is no file, as in a pod.
///
/// # Errors
/// If a file can't be read, or they do not go together.
pub fn found() -> Result<Option<Found>, ConnectError> {
    found_in(std::env::var_os("KUBECONFIG").as_deref(), std::env::home_dir().as_deref())
}

fn found_in(variable: Option<&OsStr>, home: Option<&Path>) -> Result<Option<Found>, ConnectError> {
    let named = variable.into_iter().flat_map(std::env::split_paths);
    let mut paths: Vec<PathBuf> = named.filter(|path| !path.as_os_str().is_empty()).collect();
    if paths.is_empty() {
        paths.extend(home.map(|home| home.join(".kube/config")));
    }
    let mut merged: Option<Found> = None;
    for path in paths {
        let files = path.display().to_string();
        let read = match read_file(&path) {
            Err(KubeconfigError::ReadConfig(error, _))
                if error.kind() == io::ErrorKind::NotFound =>
            {
                continue;
            }
            read => read.map_err(|error| unreadable(files.clone(), &error))?,
        };
        merged = Some(match merged {
            Some(before) => {
                let merged = before.config.merge(read);
                let config = merged.map_err(|error| unreadable(files.clone(), &error))?;
                Found { config, files: format!("{}, {files}", before.files) }
            }
            None => Found { config: read, files },
        });
    }
    Ok(merged)
}

impl Found {
    /// An error of what is in it.
    pub fn wrong(&self, error: String) -> ConnectError {
        ConnectError::Kubeconfig { files: self.files.clone(), error }
    }

    /// The context of this name, or the current one; its user is in the file, if it has one. `hint` says how one is
    /// named where none is.
    ///
    /// # Errors
    /// If there is no such context, or no such user.
    pub fn context(
        &self,
        named: Option<&str>,
        hint: &str,
    ) -> Result<(&str, &Context), ConnectError> {
        let Kubeconfig { contexts, current_context, auth_infos, .. } = &self.config;
        let (wanted, from) = match (named, current_context) {
            (Some(named), _) => (named, "--context"),
            (None, Some(current)) => (&**current, "current-context"),
            (None, None) => {
                let hint = match contexts.is_empty() {
                    true => String::new(),
                    false => format!(": {hint}"),
                };
                let error = format!("it has no current-context{hint}; {}", self.contexts());
                return Err(self.wrong(error));
            }
        };
        let known = contexts.iter().find(|known| known.name == wanted);
        let Some((name, context)) =
            known.and_then(|known| Some((&*known.name, known.context.as_ref()?)))
        else {
            let error = format!("{from}: context {wanted:?} does not exist; {}", self.contexts());
            return Err(self.wrong(error));
        };
        match context.user.as_deref() {
            Some(user) if auth_infos.iter().all(|known| known.name != user) => {
                Err(self.wrong(format!("user {user:?} was not found for context {name:?}")))
            }
            _ => Ok((name, context)),
        }
    }

    /// Which contexts there are.
    fn contexts(&self) -> String {
        let names: Vec<&str> = self.config.contexts.iter().map(|known| &*known.name).collect();
        let (named, more) = names.split_at(names.len().min(MAX_NAMED));
        match (named, more.len()) {
            ([], _) => "it has no contexts".to_owned(),
            (named, 0) => format!("its contexts are {}", named.join(", ")),
            (named, more) => format!("its contexts are {} and {more} more", named.join(", ")),
        }
    }
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
            found_in(Some(&variable), None).unwrap().unwrap().config.current_context
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
            found.unwrap().map(|found| found.config.current_context.unwrap_or_default())
        };
        let of = |context: &str| Some(context.to_owned());
        assert_eq!(context(Some(&["gone", "a", "b"]), ""), of("prod"));
        assert_eq!(context(Some(&["b", "gone"]), ""), of("test"));
        assert_eq!(context(Some(&["gone"]), ""), None);
        assert_eq!(context(None, ""), of("home"));
        assert_eq!(context(None, "gone"), None);
        let empty = found_in(Some(OsStr::new("")), Some(folder.path())).unwrap();
        assert!(empty.is_some_and(|found| found.config.current_context.as_deref() == Some("home")));
        // One that is there has to be read.
        std::fs::write(path("a"), "{").unwrap();
        let files = std::env::join_paths([path("b"), path("a")]).unwrap();
        let error = found_in(Some(&files), None).map(|_| ()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: ", path("a").display())), "{error}");
    }
}
