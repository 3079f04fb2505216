//! The adapters that requests for unknown metrics are forwarded to (`passOn`).

use crate::prometheus::Pem;
use crate::rules::FieldError;
use crate::serve::{ApiGroup, ForwardOptions, ForwardTarget};
use serde::Deserialize;
use serde_saphyr::Spanned;
use std::path::PathBuf;

/// An adapter that requests are forwarded to.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RawForwardTarget {
    url: Spanned<String>,
    #[serde(default)]
    ca_file: Option<PathBuf>,
    #[serde(default, rename = "insecureSkipTLSVerify")]
    insecure_skip_tls_verify: bool,
    #[serde(default)]
    token_file: Option<PathBuf>,
}

/// Reads the adapter of a group of APIs, by the name of the group.
pub fn forward_target(
    group: &str,
    raw: RawForwardTarget,
) -> Result<(ApiGroup, ForwardTarget), FieldError> {
    let path = format!("passOn.{group}");
    let wrong = |error: String| FieldError::of(&raw.url, path.clone(), error);
    let known = [ApiGroup::Custom, ApiGroup::External];
    let group = known.into_iter().find(|known| known.as_str() == group).ok_or_else(|| {
        wrong(format!("{} or {} was expected", known[0].as_str(), known[1].as_str()))
    })?;
    let roots = raw.ca_file.as_ref().map(|file| Pem::read("caFile", file)).transpose();
    let target = ForwardTarget::new(ForwardOptions {
        url: raw.url.value.clone(),
        roots: roots.map_err(|error| wrong(error.to_string()))?,
        insecure_skip_tls_verify: raw.insecure_skip_tls_verify,
        token_file: raw.token_file.clone(),
    });
    Ok((group, target.map_err(wrong)?))
}
