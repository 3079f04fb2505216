//! `plimsoll pause` and `plimsoll resume`.

use super::cluster::{autoscalers, user_name};
use super::error::{OperateError, api_error};
use crate::clock::WallClock;
use crate::config::{ObjectFlags, PauseFlags};
use jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

/// Sets `spec.mode` to `Paused`, with who did it and why.
///
/// # Errors
/// As [`OperateError`] says.
pub async fn pause(flags: &PauseFlags) -> Result<String, OperateError> {
    let until: Option<Timestamp> = flags.until_after.map(|duration| {
        let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        WallClock::default().timestamp().saturating_add(duration).unwrap_or(Timestamp::MAX)
    });
    // A CustomResourceDefinition has times of whole seconds.
    let until = until.map(|until| until.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    let by = |user: Option<String>| user.filter(|user| user.chars().count() <= MAX_BY);
    let (api, object) = autoscalers(&flags.object).await?;
    let by = by(user_name(&api.clone().into_client()).await);
    let pause = json!({"until": until, "reason": flags.reason, "by": by});
    let patch = json!({"spec": {"mode": "Paused", "pause": pause}});
    api.patch(&flags.object.name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .map_err(api_error(object.clone()))?;
    let until = until.map(|until| format!(" until {until}")).unwrap_or_default();
    Ok(format!("{object} paused{until}\n"))
}

/// The longest user name in `pause.by`, in characters.
const MAX_BY: usize = 128;

/// Sets `spec.mode` to `Active`.
///
/// # Errors
/// As [`OperateError`] says.
pub async fn resume(flags: &ObjectFlags) -> Result<String, OperateError> {
    let (api, object) = autoscalers(flags).await?;
    let patch = Patch::Merge(json!({"spec": {"mode": "Active", "pause": Value::Null}}));
    api.patch(&flags.name, &PatchParams::default(), &patch)
        .await
        .map_err(api_error(object.clone()))?;
    Ok(format!("{object} resumed\n"))
}
