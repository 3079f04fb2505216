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

/// Checks the resource version that a list is asked at.
pub fn check_version(options: &DecisionOptions, versions: Versions) -> Result<(), ApiError> {
    let wanted = match options.resource_version.as_str() {
        "" | "0" => return Ok(()),
        text => text.parse().map_err(|_| invalid_version(text))?,
    };
    if wanted > versions.last {
        return Err(ApiError::too_large_resource_version(wanted, versions.last));
    }
    if options.resource_version_match == "Exact" && wanted != versions.last {
        return Err(ApiError::expired(format!("resource version {wanted} is no longer known")));
    }
    Ok(())
}

/// 400: a resource version is not one.
pub fn invalid_version(text: &str) -> ApiError {
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
