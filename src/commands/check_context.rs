//! `plimsoll check -f`: what objects are checked by, and what is found in one.

use crate::config::Config;
use crate::crd::AutoscalerSpec;
use crate::promql::query::PodQueries;
use crate::time::UnixMillis;
use std::time::Duration;

/// What objects are checked by.
pub struct Context<'a> {
    /// The namespace that all must have, as `kubectl apply -n` requires it.
    pub required: Option<&'a str>,
    /// The namespace of those that have none; empty, if it is not known.
    pub default: &'a str,
    /// The labels and shared namespaces of the server's configuration.
    pub queries: &'a PodQueries,
    /// That configuration, if it was given.
    pub config: Option<&'a Config>,
    /// How often Prometheus scrapes.
    pub scrape_interval: Duration,
    /// The time.
    pub now: UnixMillis,
}

/// A valid Autoscaler of a file.
pub struct FileAutoscaler {
    /// Its namespace; empty, if it is not known.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its spec.
    pub spec: AutoscalerSpec,
}

impl FileAutoscaler {
    /// A text about it.
    pub fn about(&self, text: &str) -> String {
        format!("{}: {text}", named("autoscaler", &self.namespace, &self.name))
    }
}

/// An object in a text, such as `autoscaler shop/web`. Its namespace and its name may not be known.
pub fn named(kind: &str, namespace: &str, name: &str) -> String {
    // A file may have any text there, lines included.
    let escaped = |text: &str| text.escape_debug().to_string();
    match (namespace, name) {
        (_, "") => escaped(kind),
        ("", name) => format!("{} {}", escaped(kind), escaped(name)),
        (namespace, name) => {
            format!("{} {}/{}", escaped(kind), escaped(namespace), escaped(name))
        }
    }
}

/// What was found in one object. Each text begins with the field.
#[derive(Debug, Default)]
pub struct Texts {
    /// What is invalid.
    pub errors: Vec<String>,
    /// What is probably a mistake.
    pub warnings: Vec<String>,
}

/// What was found around objects. Each text begins with the object and the field.
#[derive(Default)]
pub struct Findings {
    /// What is probably a mistake.
    pub warnings: Vec<String>,
    /// What could not be looked at, and why.
    pub not_checked: Vec<String>,
    /// Whether one of these failed that a flag asks for.
    pub is_incomplete: bool,
}
