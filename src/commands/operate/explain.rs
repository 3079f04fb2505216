//! `plimsoll explain`: why an Autoscaler scales as it does.

use super::age::age;
use super::cluster::autoscalers;
use super::error::{OperateError, api_error};
use crate::config::ObjectFlags;
use std::fmt::Write;

/// Explains the status of an Autoscaler.
///
/// # Errors
/// As [`OperateError`] says.
pub async fn explain(flags: &ObjectFlags) -> Result<String, OperateError> {
    let (api, object, _) = autoscalers(flags).await?;
    let object = api.get(&flags.name).await.map_err(api_error(object))?;
    let spec = &object.spec;
    let status = object.status.clone().unwrap_or_default();
    let mut text = String::new();
    let target = &spec.scale_target_ref;
    let _ = writeln!(text, "Target      {}/{}", target.kind, target.name);
    let bounds = status.schedule.as_ref().map(|now| (now.min_replicas, now.max_replicas));
    let (min, max) = bounds.unwrap_or((spec.min_replicas, spec.max_replicas));
    let current = status.current_replicas.map_or_else(|| "?".to_owned(), |n| n.to_string());
    let _ = writeln!(
        text,
        "Replicas    {current} now, {} wanted, {min} to {max} allowed",
        status.desired_replicas.map_or_else(|| "?".to_owned(), |n| n.to_string())
    );
    let _ =
        writeln!(text, "Metrics     {}", status.targets.as_deref().unwrap_or("not looked at yet"));
    let last = status
        .last_scale_time
        .as_ref()
        .map_or_else(|| "never".to_owned(), |time| format!("{} ago", age(time.0)));
    let _ = writeln!(text, "Last scaled {last}");
    for condition in status.conditions.iter().flatten() {
        let since = age(condition.last_transition_time.0);
        let _ = writeln!(
            text,
            "{} is {}, for {since}: {}",
            condition.type_, condition.status, condition.reason
        );
        let _ = writeln!(text, "    {}", condition.message);
    }
    Ok(text)
}
