//! `plimsoll status`: the leader, the freeze, and the failing Autoscalers.

use super::age::age;
use super::cluster::{client, leases};
use super::error::{OperateError, api_error};
use crate::clock::WallClock;
use crate::config::ClusterFlags;
use crate::crd::{Autoscaler, AutoscalerStatus, Mode};
use crate::leader::Freeze;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use std::fmt::Write;

/// Shows the leader, the freeze, and the failing Autoscalers.
///
/// # Errors
/// As [`OperateError`] says.
pub async fn status(flags: &ClusterFlags) -> Result<String, OperateError> {
    let client = client(flags).await?.0;
    let lease =
        leases(&client, flags).get_opt(&flags.lease).await.map_err(api_error("the Lease"))?;
    let mut text = String::new();
    match &lease {
        None => {
            _ = writeln!(
                text,
                "Leader   none: there is no Lease {}/{}",
                flags.plimsoll_namespace, flags.lease
            )
        }
        Some(lease) => {
            let spec = lease.spec.clone().unwrap_or_default();
            let renewed = spec.renew_time.map_or_else(|| "never".to_owned(), |time| age(time.0));
            match spec.holder_identity.filter(|holder| !holder.is_empty()) {
                Some(holder) => _ = writeln!(text, "Leader   {holder}, renewed {renewed} ago"),
                None => _ = writeln!(text, "Leader   none"),
            }
            if let Some(freeze) = Freeze::of(lease) {
                let _ = writeln!(text, "Frozen   no scale is written: {freeze}");
            }
        }
    }
    let api: Api<Autoscaler> = Api::all(client);
    let all = api.list(&ListParams::default()).await.map_err(api_error("autoscalers"))?;
    let mut failing = Vec::new();
    for object in &all {
        let status = object.status.clone().unwrap_or_default();
        let fault =
            fault(&status).map(|condition| (condition.reason.clone(), condition.message.clone()));
        if let Some((reason, message)) = fault {
            let name = format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any());
            failing.push((name, reason, message));
        }
    }
    let now = WallClock::default().timestamp().as_millisecond();
    let paused = all.iter().filter(|object| object.spec.mode_at(now) == Mode::Paused).count();
    let _ = writeln!(
        text,
        "Autoscalers   {}, {} of them failing, {paused} paused",
        all.items.len(),
        failing.len()
    );
    if !failing.is_empty() {
        let width = failing.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
        for (name, reason, message) in failing {
            let _ = writeln!(text, "  {name:width$}   {reason}: {message}");
        }
    }
    Ok(text)
}

/// The condition with which an Autoscaler fails, if it does.
fn fault(status: &AutoscalerStatus) -> Option<&Condition> {
    let conditions = status.conditions.as_ref()?;
    let healthy = ["AbleToScale", "ScalingActive"];
    conditions.iter().find(|c| {
        c.status != "True" && healthy.contains(&&*c.type_) && c.reason != "ScalingDisabled"
    })
}
