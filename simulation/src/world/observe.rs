//! Tells the oracles of each write that the API server carries out.

use super::replica_of;
use crate::api_server::Write;
use crate::oracle::{Oracles, SpecView};
use crate::plan::{Millis, Written};
use crate::workload::{NAMES, NAMESPACE};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Tells the oracles of a write.
pub(super) fn observe(
    oracles: &mut Oracles,
    scaled: &mpsc::UnboundedSender<usize>,
    at: Millis,
    write: &Write,
) {
    let number = || NAMES.iter().position(|name| *name == write.name);
    match write.resource.plural {
        "deployments" | "statefulsets" => {
            let replicas = |object: &Option<Arc<Value>>| {
                let replicas = object.as_ref()?.pointer("/spec/replicas")?.as_i64()?;
                i32::try_from(replicas).ok()
            };
            let (Some(number), before, after) =
                (number(), replicas(&write.before), replicas(&write.after))
            else {
                return;
            };
            let by = replica_of(&write.who);
            match (before, after) {
                (Some(before), Some(after)) if before != after => {
                    oracles.scale_changed(at, number, by, (before, after));
                    let _ = scaled.send(number);
                }
                (None, after @ Some(_)) => {
                    oracles.records[number].undisturbed_since = at;
                    oracles.records[number].replicas.set(at, after);
                    oracles.records[number].reported = None;
                    let _ = scaled.send(number);
                }
                (Some(_), None) => {
                    oracles.records[number].undisturbed_since = at;
                    oracles.records[number].replicas.set(at, None);
                }
                _ => {}
            }
        }
        "autoscalers" => {
            let spec = |object: &Option<Arc<Value>>| {
                let object = object.as_ref()?;
                Some((object["metadata"]["uid"].clone(), object["spec"].clone()))
            };
            let Some(number) = number() else { return };
            if spec(&write.before) != spec(&write.after) {
                let zero = oracles.scales_to_zero;
                let spec =
                    write.after.as_ref().map(|object| SpecView::new(object, NAMESPACE, zero));
                oracles.spec_changed(at, number, spec.map(Arc::new));
            }
            if let (Some(by), Some(after)) = (replica_of(&write.who), &write.after) {
                let before = write.before.as_ref().map(|before| &before["status"]);
                oracles.status_written(at, number, by, (before, &after["status"]));
            }
        }
        "leases" => {
            let holder = write
                .after
                .as_ref()
                .and_then(|lease| replica_of(lease.pointer("/spec/holderIdentity")?.as_str()?));
            oracles.lease_held(at, holder);
        }
        "configmaps" => {
            if let Some(replica) = replica_of(&write.who) {
                oracles.checkpoint_written(at, replica);
                oracles.check_checkpoint(at, replica, write.after.as_deref());
            }
        }
        _ => {}
    }
}

/// What a write is one to.
pub(super) fn written(write: &Write) -> Option<Written> {
    Some(match (write.resource.plural, write.subresource) {
        (_, "scale") => {
            let replicas = write.after.as_ref().map(|object| &object["spec"]["replicas"]);
            if replicas == Some(&json!(0)) { Written::ScaleToZero } else { Written::Scale }
        }
        ("autoscalers", "status") => Written::Status,
        ("leases", _) => Written::Lease,
        ("configmaps", _) => Written::Checkpoint,
        ("horizontalpodautoscalers", _) => Written::Hpa,
        _ => return None,
    })
}
