//! `plimsoll pause` and `plimsoll resume`.

use super::super::shown::Shown;
use super::super::story::plain;
use super::cluster::Cluster;
use super::error::{OperateError, error_before_write, write_error};
use super::named::{Named, each};
use crate::config::{ObjectFlags, OutputFormat, PauseFlags};
use crate::crd::{Autoscaler, AutoscalerSpec, Mode};
use crate::time::UnixMillis;
use crate::watch::AutoscalerKind;
use jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

/// Sets `spec.mode` to `Paused`, with who did it and why.
///
/// # Errors
/// As [`OperateError`] says, and if it is a preview, which writes no scale.
pub async fn pause(flags: &PauseFlags) -> Result<String, OperateError> {
    let tell = async |named: &Named| pause_in(&Changed::of(named)?, flags).await.map(Shown::Text);
    each(&flags.object, OutputFormat::Text, tell).await
}

/// An Autoscaler that a command changes.
struct Changed<'a> {
    /// The Autoscaler.
    named: &'a Named,
    /// Its cluster.
    cluster: &'a Cluster,
    /// The Autoscalers of its namespace.
    autoscalers: Api<Autoscaler>,
    /// Its name.
    name: &'a str,
    /// Its name in messages.
    object: String,
}

impl<'a> Changed<'a> {
    fn of(named: &'a Named) -> Result<Self, OperateError> {
        let object = plain(&named.object()).into_owned();
        if named.kind == AutoscalerKind::Hpa {
            return Err(OperateError::Refused(format!(
                "{object}: only an Autoscaler can be paused; to hold this: kubectl -n {} patch hpa {} --type=merge -p \
                 '{{\"spec\":{{\"behavior\":{{\"scaleUp\":{{\"selectPolicy\":\"Disabled\"}},\"scaleDown\":{{\"selectPolicy\":\"Disabled\"}}}}}}}}'",
                named.namespace, named.name
            )));
        }
        let autoscalers = Api::namespaced(named.cluster.client.clone(), &named.namespace);
        Ok(Self { named, cluster: &named.cluster, autoscalers, name: &named.name, object })
    }
}

async fn pause_in(of: &Changed<'_>, flags: &PauseFlags) -> Result<String, OperateError> {
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
    let changed = set_mode(of, Mode::Paused, paused).await?;
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
    let tell = async |named: &Named| {
        let of = Changed::of(named)?;
        set_mode(&of, Mode::Active, |_| Value::Null).await?;
        Ok(Shown::Text(format!("{} resumed in {}\n", of.object, of.cluster.place)))
    };
    each(flags, OutputFormat::Text, tell).await
}

/// How often a write is tried if there are conflicts: with each status that is written there is one.
const CONFLICT_ATTEMPTS: usize = 10;

/// Sets the mode and `pause` of an Autoscaler that is no preview. Returns what was written.
async fn set_mode(
    of: &Changed<'_>,
    to: Mode,
    pause: impl Fn(UnixMillis) -> Value,
) -> Result<AutoscalerSpec, OperateError> {
    let Changed { named, cluster, autoscalers: api, name, object } = of;
    let mut tries = 0;
    let changed = loop {
        let known = match api.get(name).await {
            Ok(known) => known,
            Err(error) => {
                let error = error_before_write(object.as_str())(error);
                return Err(named.with_hint::<Autoscaler>(error).await);
            }
        };
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
