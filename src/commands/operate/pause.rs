//! `plimsoll pause` and `plimsoll resume`.

use super::cluster::autoscalers;
use super::error::{OperateError, api_error};
use crate::config::ObjectFlags;
use kube::api::{Patch, PatchParams};
use serde_json::json;

/// Sets or clears `spec.paused`.
///
/// # Errors
/// As [`OperateError`] says.
pub async fn pause(flags: &ObjectFlags, paused: bool) -> Result<String, OperateError> {
    let (api, object) = autoscalers(flags).await?;
    let patch = Patch::Merge(json!({"spec": {"paused": paused}}));
    api.patch(&flags.name, &PatchParams::default(), &patch)
        .await
        .map_err(api_error(object.clone()))?;
    Ok(format!("{object} {}\n", if paused { "paused" } else { "resumed" }))
}
