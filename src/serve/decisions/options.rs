//! The query parameters of requests for decisions, and what all of these have in common.

use super::super::error::ApiError;
use crate::ledger::api::Decision;
use crate::ledger::{Listed, Versions, decision, parse_time};
use crate::time::UnixMillis;
use serde::Deserialize;
use serde_json::Value;

/// The query parameters of a list or watch (`metav1.ListOptions`).
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DecisionOptions {
    pub label_selector: String,
    pub field_selector: String,
    pub limit: Option<i64>,
    #[serde(rename = "continue")]
    pub continue_from: String,
    pub resource_version: String,
    pub resource_version_match: String,
    pub allow_watch_bookmarks: Option<String>,
    pub send_initial_events: Option<String>,
    pub timeout_seconds: Option<u64>,
    /// Ours beyond `ListOptions`, as `kubectl logs --since-time` has it: a list has no decisions, or runs that ended,
    /// before this time.
    pub since_time: String,
    /// What the rows of a table have of their object.
    pub include_object: String,
}

/// Whether a flag of a query is set. Source: `Convert_Slice_string_To_bool` of k8s.io/apimachinery.
pub fn is_set(flag: Option<&String>) -> bool {
    flag.is_some_and(|flag| flag != "0" && !flag.eq_ignore_ascii_case("false"))
}

/// The time since which a list is asked for.
pub fn since(options: &DecisionOptions) -> Result<Option<UnixMillis>, ApiError> {
    match options.since_time.as_str() {
        "" => Ok(None),
        text => parse_time(text).map(Some).ok_or_else(|| {
            let expected = "a time was expected, such as 2026-11-24T03:05:10Z";
            ApiError::bad_request(format!("sinceTime: {text:?} is not one: {expected}"))
        }),
    }
}

impl DecisionOptions {
    /// Checks what is asked for together. Source: `ValidateListOptions` of k8s.io/apimachinery.
    ///
    /// # Errors
    /// 422 if parameters exclude each other, 400 if a list continues at a resource version.
    pub fn check(&self, is_watch: bool) -> Result<(), ApiError> {
        let version = self.resource_version.as_str();
        let sends_initial = self.send_initial_events.is_some();
        let refused = match (self.resource_version_match.as_str(), is_watch) {
            (_, false) if sends_initial => "sendInitialEvents: forbidden for a list",
            ("", true) if sends_initial => {
                "sendInitialEvents: requires resourceVersionMatch=NotOlderThan"
            }
            ("", _) => "",
            (_, true) if !sends_initial => {
                "resourceVersionMatch: forbidden for a watch without sendInitialEvents"
            }
            ("NotOlderThan", true) => "",
            (_, true) => "resourceVersionMatch: must be NotOlderThan for a watch",
            (_, false) if version.is_empty() => {
                "resourceVersionMatch: forbidden without resourceVersion"
            }
            (_, false) if !self.continue_from.is_empty() => {
                "resourceVersionMatch: forbidden together with continue"
            }
            ("Exact", false) if version == "0" => {
                "resourceVersionMatch: Exact is forbidden for resourceVersion 0"
            }
            ("Exact" | "NotOlderThan", false) => "",
            (_, false) => "resourceVersionMatch: must be Exact or NotOlderThan",
        };
        if !refused.is_empty() {
            return Err(ApiError::invalid(refused));
        }
        if !self.continue_from.is_empty() && !matches!(version, "" | "0") {
            return Err(ApiError::bad_request("resourceVersion: forbidden together with continue"));
        }
        Ok(())
    }

    /// The resource version that is asked for; none for any.
    ///
    /// # Errors
    /// 400 if it is not a number.
    pub fn version(&self) -> Result<Option<u64>, ApiError> {
        match self.resource_version.as_str() {
            "" | "0" => Ok(None),
            text => text.parse().map(Some).map_err(|_| invalid_version(text)),
        }
    }
}

/// Checks the resource version that a list is asked at.
pub fn check_version(options: &DecisionOptions, versions: Versions) -> Result<(), ApiError> {
    let Some(wanted) = options.version()? else { return Ok(()) };
    if wanted > versions.last {
        return Err(ApiError::too_large_resource_version(wanted, versions.last));
    }
    if options.resource_version_match == "Exact" && wanted != versions.last {
        return Err(ApiError::expired(format!("resource version {wanted} is no longer known")));
    }
    Ok(())
}

/// 400: a resource version is not one.
fn invalid_version(text: &str) -> ApiError {
    ApiError::bad_request(format!("resourceVersion: {text:?} is not a number"))
}

/// An entry as the API shows it.
pub fn rendered(listed: &Listed, since: i64) -> Decision {
    decision(&listed.autoscaler, &listed.entry, since)
}

/// A decision as JSON.
pub fn value(decision: &Decision) -> Value {
    serde_json::to_value(decision).expect("a decision can be written as JSON")
}
