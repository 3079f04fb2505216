//! The commands of operators: `plimsoll status`, `explain`, `pause`, `freeze`, ...
//! As `kubectl-plimsoll` in the path they are `kubectl plimsoll status`, ...

mod freeze;

pub use freeze::{freeze, thaw};

use crate::clock::Clock;
use crate::config::{ClusterFlags, ObjectFlags};
use crate::connect::{self, ConnectError};
use crate::crd::{Autoscaler, AutoscalerStatus};
use crate::leader::Freeze;
use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerCondition as Condition;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use std::fmt::Write;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    /// There is no way to the cluster.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The API server refused.
    #[error("{what}: {error}")]
    Api {
        /// What was asked for.
        what: String,
        /// The answer.
        error: kube::Error,
    },
    /// There is nobody to freeze at that place.
    #[error(
        "there is no Lease {place}, so nobody would hear it and nothing was written; \
         --plimsoll-namespace and --lease name that of Plimsoll{others}"
    )]
    NoLease {
        /// The namespace and name that were asked for.
        place: String,
        /// Where there are some.
        others: String,
    },
    /// Nobody answers.
    #[error(
        "nobody answers: Lease {place} was last renewed at {renewed}. It is marked as {done}, which \
         counts for whoever leads next; look at the pods of Plimsoll, and at --plimsoll-namespace and --lease"
    )]
    Nobody {
        /// The namespace and name of the Lease.
        place: String,
        /// What it says now.
        done: &'static str,
        /// When it was renewed last.
        renewed: String,
    },
    /// Somebody else came between.
    #[error(
        "somebody else froze or thawed Lease {place} meanwhile; `plimsoll status` says how it is now"
    )]
    Overtaken {
        /// The namespace and name of the Lease.
        place: String,
    },
}

fn of(what: impl Into<String>) -> impl FnOnce(kube::Error) -> OperateError {
    let what = what.into();
    |error| OperateError::Api { what, error }
}

/// Who leads, what is frozen, and which Autoscalers fail.
///
/// # Errors
/// As [`OperateError`] says.
pub async fn status(flags: &ClusterFlags) -> Result<String, OperateError> {
    let client = client(flags).await?.0;
    let lease = leases(&client, flags).get_opt(&flags.lease).await.map_err(of("the Lease"))?;
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
    let all = api.list(&ListParams::default()).await.map_err(of("autoscalers"))?;
    let mut failing = Vec::new();
    for object in &all {
        let status = object.status.clone().unwrap_or_default();
        let fault = fault(&status).map(|condition| {
            let message = condition.message.clone().unwrap_or_default();
            (condition.reason.clone().unwrap_or_default(), message)
        });
        if let Some((reason, message)) = fault {
            let place = format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any());
            failing.push((place, reason, message));
        }
    }
    let paused = all.iter().filter(|object| object.spec.paused).count();
    let _ = writeln!(
        text,
        "Autoscalers   {}, {} of them failing, {paused} paused",
        all.items.len(),
        failing.len()
    );
    if !failing.is_empty() {
        let width = failing.iter().map(|(place, ..)| place.len()).max().unwrap_or(0);
        for (place, reason, message) in failing {
            let _ = writeln!(text, "  {place:width$}   {reason}: {message}");
        }
    }
    Ok(text)
}

/// The condition that says why it does not scale.
fn fault(status: &AutoscalerStatus) -> Option<&Condition> {
    let conditions = status.conditions.as_ref()?;
    let healthy = ["AbleToScale", "ScalingActive"];
    conditions.iter().find(|c| {
        c.status != "True"
            && healthy.contains(&&*c.type_)
            && c.reason.as_deref() != Some("ScalingDisabled")
    })
}

/// Why an Autoscaler scales as it does.
///
/// # Errors
/// As [`OperateError`] says.
pub async fn explain(flags: &ObjectFlags) -> Result<String, OperateError> {
    let (api, place) = autoscalers(flags).await?;
    let object = api.get(&flags.name).await.map_err(of(place))?;
    let spec = &object.spec;
    let status = object.status.clone().unwrap_or_default();
    let mut text = String::new();
    let target = &spec.scale_target_ref;
    let _ = writeln!(text, "Target      {}/{}", target.kind, target.name);
    let current = status.current_replicas.map_or_else(|| "?".to_owned(), |n| n.to_string());
    let _ = writeln!(
        text,
        "Replicas    {current} now, {} wanted, {} to {} allowed",
        status.desired_replicas, spec.min_replicas, spec.max_replicas
    );
    let _ =
        writeln!(text, "Metrics     {}", status.targets.as_deref().unwrap_or("not looked at yet"));
    let last = status
        .last_scale_time
        .as_ref()
        .map_or_else(|| "never".to_owned(), |time| format!("{} ago", age(time.0)));
    let _ = writeln!(text, "Last scaled {last}");
    for condition in status.conditions.iter().flatten() {
        let since = condition
            .last_transition_time
            .as_ref()
            .map_or_else(String::new, |time| format!(", for {}", age(time.0)));
        let _ = writeln!(
            text,
            "{} is {}{since}: {}",
            condition.type_,
            condition.status,
            condition.reason.as_deref().unwrap_or_default()
        );
        let _ = writeln!(text, "    {}", condition.message.as_deref().unwrap_or_default());
    }
    Ok(text)
}

/// Sets or clears `spec.paused`.
///
/// # Errors
/// As [`OperateError`] says.
pub async fn pause(flags: &ObjectFlags, paused: bool) -> Result<String, OperateError> {
    let (api, place) = autoscalers(flags).await?;
    let patch = Patch::Merge(json!({"spec": {"paused": paused}}));
    api.patch(&flags.name, &PatchParams::default(), &patch).await.map_err(of(place.clone()))?;
    Ok(format!("{place} {}\n", if paused { "paused" } else { "resumed" }))
}

async fn client(flags: &ClusterFlags) -> Result<(Client, String), ConnectError> {
    let (kubeconfig, context) = (flags.kubeconfig.as_deref(), flags.context.as_deref());
    connect::as_kubectl(kubeconfig, context, Clock::default()).await
}

fn leases(client: &Client, flags: &ClusterFlags) -> Api<Lease> {
    Api::namespaced(client.clone(), &flags.plimsoll_namespace)
}

async fn autoscalers(flags: &ObjectFlags) -> Result<(Api<Autoscaler>, String), OperateError> {
    let (client, namespace) = client(&flags.cluster).await?;
    let namespace = flags.namespace.clone().unwrap_or(namespace);
    let place = format!("autoscaler {namespace}/{}", flags.name);
    Ok((Api::namespaced(client, &namespace), place))
}

/// How long ago, as kubectl shows it.
fn age(time: Timestamp) -> String {
    let seconds = (Timestamp::now() - time).get_seconds().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}
