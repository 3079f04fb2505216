//! Query parameters that requests of several groups have.

use super::response::ApiError;
use crate::k8s::Selector;

/// Reads `labelSelector`.
///
/// # Errors
/// 400 where it is no selector.
pub fn label_selector(text: &str) -> Result<Selector, ApiError> {
    text.parse().map_err(|error| ApiError::bad_request(format!("labelSelector: {error}")))
}

/// The name that a `fieldSelector` of the form `metadata.name=NAME` selects.
pub fn selected_name(text: &str) -> Option<&str> {
    text.strip_prefix("metadata.name=").map(|name| name.trim_start_matches('='))
}
