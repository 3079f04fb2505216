//! `plimsoll pause` and `plimsoll resume`.

use super::cluster::Changed;
use super::error::{OperateError, error_before_write, write_error};
use crate::config::{ObjectFlags, PauseFlags};
use crate::crd::{AutoscalerSpec, Mode};
use crate::time::UnixMillis;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

/// Sets `spec.mode` to `Paused`, with who did it and why.
///
/// # Errors
/// As [`OperateError`] says, and if it is a preview, which writes no scale.
pub async fn pause(flags: &PauseFlags) -> Result<String, OperateError> {
    let of = Changed::of(&flags.object).await?;
    pause_in(&of, flags).await.map_err(|error| of.cluster.told(error))
}

async fn pause_in(of: &Changed, flags: &PauseFlags) -> Result<String, OperateError> {
    let user = of.cluster.user_name().await?;
    let by = user.filter(|user| user.chars().count() <= MAX_BY);
    let paused = |now: UnixMillis| {
        let until = flags.until_after.and_then(|duration| {
            let ms = i64::try_from(duration.as_millis()).ok()?;
            Timestamp::from_millisecond(now.saturating_add(ms)).ok()
        });
        // A CustomResourceDefinition has times of whole seconds.
        let until = until.map(|until| until.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        json!({"until": until, "reason": flags.reason, "by": by})
    };
    let changed = set_mode(of, &flags.object.name, Mode::Paused, paused).await?;
    let until = changed.pause.and_then(|pause| pause.until);
    let until = until.map(|until| format!(" until {}", until.0)).unwrap_or_default();
    Ok(format!("{} paused in {}{until}\n", of.object, of.cluster.place))
}

/// The longest user name in `pause.by`, in characters.
const MAX_BY: usize = 128;

/// Sets `spec.mode` to `Active`.
///
/// # Errors
/// As [`OperateError`] says, and if it is a preview.
pub async fn resume(flags: &ObjectFlags) -> Result<String, OperateError> {
    let of = Changed::of(flags).await?;
    let set = set_mode(&of, &flags.name, Mode::Active, |_| Value::Null).await;
    set.map_err(|error| of.cluster.told(error))?;
    Ok(format!("{} resumed in {}\n", of.object, of.cluster.place))
}

/// How often a write is tried if there are conflicts: with each status that is written there is one.
const CONFLICT_ATTEMPTS: usize = 10;

/// Sets the mode and `pause` of an Autoscaler that is no preview. Returns what was written.
async fn set_mode(
    of: &Changed,
    name: &str,
    to: Mode,
    pause: impl Fn(UnixMillis) -> Value,
) -> Result<AutoscalerSpec, OperateError> {
    let Changed { cluster, autoscalers: api, object } = of;
    let mut tries = 0;
    let changed = loop {
        let known = api.get(name).await.map_err(error_before_write(object.as_str()))?;
        if known.spec.mode == Mode::Preview {
            return Err(OperateError::Refused(format!(
                "{object}: its mode is {:?}, which writes no scale: set spec.mode yourself",
                known.spec.mode
            )));
        }
        let patch = json!({
            "metadata": {"resourceVersion": known.metadata.resource_version},
            "spec": {"mode": to, "pause": pause(cluster.clock.server_or_wall())},
        });
        tries += 1;
        match api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            // A status was written in between, or the mode was set.
            Err(kube::Error::Api(status)) if status.code == 409 && tries < CONFLICT_ATTEMPTS => {}
            changed => break changed.map_err(write_error(object.as_str()))?.spec,
        }
    };
    if changed.mode != to {
        return Err(OperateError::Refused(format!(
            "{object}: the CustomResourceDefinition does not know spec.mode: update it to that of this version"
        )));
    }
    Ok(changed)
}
