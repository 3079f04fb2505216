//! Query parameters that requests of several groups have.

use super::response::ApiError;
use crate::k8s::Selector;
use serde::Deserialize;

/// What a request for a list says beside its path.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Listing {
    /// Whether changes are asked for, instead of a list.
    watch: Option<String>,
    /// Which objects, by field.
    pub field_selector: String,
}

impl Listing {
    /// Whether changes are asked for. Source: `Convert_Slice_string_To_bool` of
    /// k8s.io/apimachinery, for which any text but two means yes.
    pub fn watches(&self) -> bool {
        let watch = self.watch.as_deref();
        watch.is_some_and(|watch| watch != "0" && !watch.eq_ignore_ascii_case("false"))
    }
}

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
