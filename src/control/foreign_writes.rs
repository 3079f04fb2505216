//! Changes of a target's replicas by another writer: who it is.

use super::context::ControllerContext;
use super::decision_time::DecisionTime;
use super::rescales::Change;
use super::warnings::{Warnings, Writer};
use crate::hpa::{self, TargetRef};
use crate::k8s::managed_fields::replicas_owners;
use crate::watch::{AutoscalerKind, AutoscalerRef, Workload};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use std::time::Duration;

/// How long a decision waits for the lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// Notes a change that Plimsoll did not make, unless the scale is left alone, and looks up whose it is before the
/// decision on it is written: the write takes the field from its owners.
pub async fn note(
    ctx: &ControllerContext,
    autoscaler: &AutoscalerRef,
    target: &TargetRef,
    change: Change,
    at: DecisionTime,
    warnings: &mut Warnings,
) {
    if autoscaler.kind != AutoscalerKind::Autoscaler || !warnings.scales {
        return;
    }
    let found = match warnings.is_lookup_due(at.process) {
        true => Some(look_up(&ctx.client, &autoscaler.key.namespace, target).await),
        false => None,
    };
    if warnings.note_write(change, found, at) {
        ctx.metrics.foreign_replica_write();
    }
}

/// The last writer of a target's replicas. Plimsoll may list Deployments and StatefulSets; the scale of another kind
/// does not say.
async fn look_up(client: &Client, namespace: &str, target: &TargetRef) -> Writer {
    let group = hpa::parse_group(&target.api_version).unwrap_or_default();
    let resource = match Workload::of(group, &target.kind) {
        Some(Workload::Deployment) => ApiResource::erase::<Deployment>(&()),
        Some(Workload::StatefulSet) => ApiResource::erase::<StatefulSet>(&()),
        None => return Writer::Other(None),
    };
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let only = ListParams::default().fields(&format!("metadata.name={}", target.name));
    let read = tokio::time::timeout(LOOKUP_TIMEOUT, api.list_metadata(&only)).await;
    let Ok(Ok(mut list)) = read else { return Writer::Unknown };
    let fields = list.items.pop().and_then(|object| object.metadata.managed_fields);
    let owners = replicas_owners(&fields.unwrap_or_default());
    let is_own = !owners.is_empty() && owners.iter().all(|owner| owner.is_plimsoll());
    match is_own {
        true => Writer::Plimsoll,
        false => Writer::Other(owners.into_iter().find(|owner| !owner.is_plimsoll())),
    }
}
