//! Which decisions a request selects, by labels and fields.

use super::super::error::ApiError;
use super::super::options::label_selector;
use crate::k8s::Selector;
use crate::ledger::api::{AUTOSCALER_LABEL, KIND_LABEL};
use crate::ledger::{Position, Scope, Sequences, autoscaler_label, name, position};
use crate::watch::AutoscalerRef;

/// The decisions that a request selects.
pub struct Selection {
    labels: Selector,
    names: Vec<FieldTerm>,
    namespaces: Vec<FieldTerm>,
}

struct FieldTerm {
    value: String,
    is_equal: bool,
}

impl FieldTerm {
    fn matches(&self, value: &str) -> bool {
        (self.value == value) == self.is_equal
    }
}

impl Selection {
    /// Parses `labelSelector` and `fieldSelector`.
    ///
    /// # Errors
    /// 400 if one is invalid, or of a field that can't be selected by.
    pub fn parse(labels: &str, fields: &str) -> Result<Self, ApiError> {
        let (mut names, mut namespaces) = (Vec::new(), Vec::new());
        for term in fields.split(',').map(str::trim).filter(|term| !term.is_empty()) {
            let (field, value, is_equal) = match term.split_once("!=") {
                Some((field, value)) => (field, value, false),
                None => match term.split_once('=') {
                    Some((field, value)) => (field, value.strip_prefix('=').unwrap_or(value), true),
                    None => {
                        let message = format!("fieldSelector: {term:?} is not FIELD=VALUE");
                        return Err(ApiError::bad_request(message));
                    }
                },
            };
            let term = FieldTerm { value: value.to_owned(), is_equal };
            match field {
                "metadata.name" => names.push(term),
                "metadata.namespace" => namespaces.push(term),
                other => {
                    return Err(ApiError::bad_request(format!(
                        "field label not supported: {other}: use metadata.name or metadata.namespace"
                    )));
                }
            }
        }
        Ok(Self { labels: label_selector(labels)?, names, namespaces })
    }

    /// The namespace to look in: that of the path, or the one that a field selects.
    pub fn scope(&self, namespace: Option<&str>) -> Scope {
        let selected = || self.namespaces.iter().find(|term| term.is_equal);
        let selected = || selected().map(|term| term.value.as_str());
        Scope { namespace: namespace.or_else(selected).map(str::to_owned), since: None }
    }

    /// Of an autoscaler, the sequences that may be selected: see [`Self::selects`].
    pub fn filter(&self) -> impl Fn(&AutoscalerRef) -> Sequences + '_ {
        let named = self.names.iter().filter(|term| term.is_equal);
        let named: Vec<_> = named.map(|term| position("", &term.value)).collect();
        move |autoscaler| {
            let name = autoscaler_label(&autoscaler.key.name);
            let label = |key: &str| match key {
                AUTOSCALER_LABEL => Some(&*name),
                KIND_LABEL => Some(autoscaler.kind.as_str()),
                _ => None,
            };
            if !self.labels.matches(label) {
                return None;
            }
            // A name is that of one decision, or of none.
            named.iter().try_fold((0, u64::MAX), |(first, last), name| {
                let is_of = |name: &&Position| {
                    (&name.key.name, name.kind) == (&autoscaler.key.name, autoscaler.kind)
                };
                let sequence = name.as_ref().filter(is_of)?.sequence;
                Some((first.max(sequence), last.min(sequence)))
            })
        }
    }

    /// Whether a decision is selected, of those that the filter lets through.
    pub fn selects(&self, autoscaler: &AutoscalerRef, sequence: u64) -> bool {
        self.namespaces.iter().all(|term| term.matches(&autoscaler.key.namespace))
            && (self.names.is_empty() || {
                let name = name(autoscaler, sequence);
                self.names.iter().all(|term| term.matches(&name))
            })
    }
}
