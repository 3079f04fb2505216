//! The query parameters that requests of several API groups have.

use super::error::ApiError;
use crate::k8s::Selector;
use axum::extract::Query;
use axum::http::Uri;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The part of `metav1.ListOptions` that distinguishes a watch from a list, and one object from
/// all.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListOptions {
    /// Whether a watch is requested, instead of a list.
    watch: Option<String>,
    /// Selects objects by field.
    pub field_selector: String,
}

impl ListOptions {
    /// Whether a watch is requested. Source: `Convert_Slice_string_To_bool` of
    /// k8s.io/apimachinery, for which any text other than `0` and `false` means yes.
    pub fn is_watch(&self) -> bool {
        let watch = self.watch.as_deref();
        watch.is_some_and(|watch| watch != "0" && !watch.eq_ignore_ascii_case("false"))
    }
}

/// Parses `labelSelector`.
///
/// # Errors
/// 400 if it is not a selector.
pub fn label_selector(text: &str) -> Result<Selector, ApiError> {
    text.parse().map_err(|error| ApiError::bad_request(format!("labelSelector: {error}")))
}

/// The name in a `fieldSelector` of the form `metadata.name=NAME`.
pub fn selected_name(text: &str) -> Option<&str> {
    text.strip_prefix("metadata.name=").map(|name| name.trim_start_matches('='))
}

/// The query parameters of a request.
///
/// # Errors
/// 400 if they are not those.
pub fn parameters<T: DeserializeOwned>(uri: &Uri) -> Result<T, ApiError> {
    let parsed = Query::<T>::try_from_uri(uri);
    parsed.map(|Query(parsed)| parsed).map_err(|error| ApiError::bad_request(error.to_string()))
}
