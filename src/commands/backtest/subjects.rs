//! The autoscalers that are tried, from files.

use super::{carries, names};
use crate::backtest::Candidate;
use crate::commands::convert;
use crate::commands::objects::{self, text};
use crate::config::RecordedFlags;
use crate::hpa::TargetRef;
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// An autoscaler of a file.
#[derive(Clone, Debug)]
pub struct Subject {
    /// As an Autoscaler.
    pub object: Value,
    /// As it is in the file, without what the server sets.
    pub written: Value,
    /// Its kind in the file.
    pub kind: String,
    /// How it is tried.
    pub candidate: Candidate,
}

/// The autoscalers of files.
#[derive(Debug, Default)]
pub struct Subjects {
    /// Those that can be tried.
    pub found: Vec<Subject>,
    /// Why others can't be.
    pub failed: Vec<String>,
    /// What of them was left out or has another meaning than before.
    pub notes: Vec<String>,
    /// What each of all of them sizes; none if its object does not say it.
    workloads: Vec<Option<Workload>>,
}

/// A namespace, and a workload in it.
type Workload = (String, TargetRef);

impl Subjects {
    /// Reads files, by the flags of a command. What an Autoscaler or ScaledObject has made is left out, as it is tried
    /// with that.
    ///
    /// # Errors
    /// If a file can't be read, or has no autoscaler in it.
    pub fn read(files: &[PathBuf], flags: &RecordedFlags) -> Result<Self, String> {
        let read = |path: &PathBuf| {
            let objects = objects::parse(&objects::read(path)?);
            let objects = objects.map_err(|error| error.of(path.display()))?;
            Ok((path.clone(), objects))
        };
        Self::of(&files.iter().map(read).collect::<Result<Vec<_>, String>>()?, flags)
    }

    /// The same of objects, by the paths of their files.
    ///
    /// # Errors
    /// If a file has no autoscaler in it.
    pub fn of(files: &[(PathBuf, Vec<Value>)], flags: &RecordedFlags) -> Result<Self, String> {
        let mut subjects = Self::default();
        let mut paths: Vec<&Path> = Vec::new();
        for (path, objects) in files {
            let in_file = |error: String| format!("{}: {error}", path.display());
            let before = subjects.found.len() + subjects.failed.len();
            let mut made = None;
            for object in objects {
                if let Some(by) = objects::maker(object) {
                    made.get_or_insert((object, by));
                    continue;
                }
                match subject(object, flags, &mut subjects.notes) {
                    Ok(None) => continue,
                    Ok(Some(subject)) => {
                        subjects.found.push(subject);
                        paths.push(path);
                    }
                    Err(error) => subjects.failed.push(in_file(error)),
                }
                let target = objects::target(object);
                let namespace = namespace(object, flags).to_owned();
                subjects.workloads.push(target.map(|target| (namespace, target)));
            }
            if subjects.found.len() + subjects.failed.len() == before {
                return Err(in_file(match made {
                    Some((object, by)) => only_made(object, &by),
                    None => format!(
                        "there is no Autoscaler, HorizontalPodAutoscaler or ScaledObject in it{}",
                        objects::hint(objects)
                    ),
                }));
            }
        }
        for name in &flags.load_metrics {
            let candidates = || subjects.found.iter().map(|one| &one.candidate);
            names::check(candidates(), name).map_err(|error| format!("--load-metric: {error}"))?;
        }
        for subject in &mut subjects.found {
            names::take_for_loads(&mut subject.candidate, &flags.load_metrics);
        }
        subjects.tell_apart(&paths, flags.load.is_some());
        Ok(subjects)
    }

    /// Names the file of those that have the same name. One without a namespace may be in any, and a file of load has
    /// that of one workload, whatever the namespaces.
    fn tell_apart(&mut self, paths: &[&Path], is_one_workload: bool) {
        let mut of_name: HashMap<String, usize> = HashMap::new();
        let mut of_key: HashMap<(String, String), usize> = HashMap::new();
        for subject in &self.found {
            let key = subject.key();
            *of_name.entry(key.1.clone()).or_default() += 1;
            *of_key.entry(key).or_default() += 1;
        }
        let mut of_file: HashMap<(String, &Path), usize> = HashMap::new();
        for (subject, path) in self.found.iter_mut().zip(paths) {
            let (namespace, name) = subject.key();
            let count = of_file.entry((name.clone(), *path)).or_default();
            *count += 1;
            let key = |namespace: String| of_key.get(&(namespace, name.clone())).unwrap_or(&0);
            let same = match namespace.is_empty() || is_one_workload {
                true => of_name[&name],
                false => key(namespace) + key(String::new()),
            };
            if same > 1 {
                subject.candidate.name = format!("{name} ({})", path.display());
                // Of the same file, too, a number does.
                if *count > 1 {
                    subject.candidate.name += &format!(" {count}");
                }
            }
        }
    }

    /// Whether they size more than one workload, as far as is known.
    pub fn are_of_several_workloads(&self) -> bool {
        let [first, others @ ..] = &*self.workloads else { return false };
        others.iter().any(|other| other.is_none() || other != first)
    }

    /// Those that can be tried, if all can be.
    ///
    /// # Errors
    /// Why the first one can't be that can't be.
    pub fn all(self) -> Result<Vec<Subject>, String> {
        match self.failed.into_iter().next() {
            Some(error) => Err(error),
            None => Ok(self.found),
        }
    }
}

impl Subject {
    fn key(&self) -> (String, String) {
        (self.candidate.namespace.clone(), self.candidate.name.clone())
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Candidate { namespace, name, .. } = &self.candidate;
        match namespace.is_empty() {
            true => write!(f, "{}", name.escape_debug()),
            false => write!(f, "{}/{}", namespace.escape_debug(), name.escape_debug()),
        }
    }
}

fn subject(
    object: &Value,
    flags: &RecordedFlags,
    notes: &mut Vec<String>,
) -> Result<Option<Subject>, String> {
    let (converted, said) = convert::convert_one(object, flags.prometheus_url.as_deref())?;
    notes.extend(said);
    let Some(mut converted) = converted else { return Ok(None) };
    let (name, namespace) = (text(object, "/metadata/name"), namespace(object, flags));
    if !namespace.is_empty() {
        converted["metadata"]["namespace"] = namespace.into();
    }
    if name.is_empty() {
        return Err("metadata.name: a name was expected".to_owned());
    }
    let candidate = Candidate::new(name, namespace, converted["spec"].clone());
    let of_it = |error: String| format!("{}: {error}", name.escape_debug());
    let candidate = candidate.map_err(of_it)?;
    let annotations = object.pointer("/metadata/annotations");
    if annotations.is_some_and(|all| !all.is_null() && !all.is_object()) {
        return Err(of_it("metadata.annotations: a map was expected".to_owned()));
    }
    if flags.pod_carries.is_none() {
        carries::annotated(&candidate, object).map_err(of_it)?;
    }
    let kind = text(object, "/kind").to_owned();
    Ok(Some(Subject { object: converted, written: written(object), kind, candidate }))
}

fn namespace<'a>(object: &'a Value, flags: &'a RecordedFlags) -> &'a str {
    let own = Some(text(object, "/metadata/namespace")).filter(|own| !own.is_empty());
    own.or(flags.namespace.as_deref()).unwrap_or_default()
}

/// The object without what the server sets.
pub fn written(object: &Value) -> Value {
    let mut written = object.clone();
    let _ = written.as_object_mut().map(|fields| fields.remove("status"));
    for field in ["managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"] {
        let _ = written["metadata"].as_object_mut().map(|fields| fields.remove(field));
    }
    let annotations = written.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    let applied = "kubectl.kubernetes.io/last-applied-configuration";
    let _ = annotations.map(|annotations| annotations.remove(applied));
    written
}

/// Why there is nothing to try where all objects are made.
fn only_made(object: &Value, by: &str) -> String {
    let name = text(object, "/metadata/name").escape_debug();
    let who = if by.starts_with("ScaledObject") { "KEDA makes" } else { "Plimsoll makes" };
    format!(
        "{who} the HorizontalPodAutoscaler {name} of the {by}, and would take a change of it back: try the {by} with plimsoll backtest -f FILE"
    )
}
