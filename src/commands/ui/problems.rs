//! What is wrong with the sources of what is shown.

use std::collections::BTreeMap;

/// The sources that have a problem, each with its text.
#[derive(Debug, Default)]
pub struct Problems(BTreeMap<&'static str, String>);

impl Problems {
    /// Sets or ends the problem of a source. Returns whether that changes anything.
    pub fn set(&mut self, source: &'static str, problem: Option<String>) -> bool {
        if self.0.get(source) == problem.as_ref() {
            return false;
        }
        match problem {
            Some(problem) => self.0.insert(source, problem),
            None => self.0.remove(source),
        };
        true
    }

    /// The texts, in the order of the sources.
    pub fn texts(&self) -> Vec<String> {
        self.0.values().cloned().collect()
    }
}
