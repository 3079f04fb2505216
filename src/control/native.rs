//! Autoscalers whose executor is a native HPA: Plimsoll writes the HPA with the
//! generated names, and kube-controller-manager decides.

use super::within;
use crate::crd::AutoscalerSpec;
use crate::leader::Permit;
use crate::watch::{HpaRecord, ObjectKey};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use serde_json::json;

/// Writes the HPA of an Autoscaler; one of that name that is not ours is not touched.
pub async fn write(
    client: &Client,
    permit: &Permit,
    key: &ObjectKey,
    uid: &str,
    spec: &AutoscalerSpec,
    known: Option<&HpaRecord>,
) -> Result<(), String> {
    if let Some(known) = known
        && known.owner.as_deref() != Some(uid)
    {
        return Err(format!(
            "the HorizontalPodAutoscaler {key} is there and does not belong to this Autoscaler; delete it, or name the Autoscaler otherwise"
        ));
    }
    let hpa = json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {
            "name": key.name,
            "namespace": key.namespace,
            "ownerReferences": [{
                "apiVersion": "plimsoll.dev/v1alpha1",
                "kind": "Autoscaler",
                "name": key.name,
                "uid": uid,
                "controller": true,
            }],
        },
        "spec": spec.as_hpa(&key.namespace, &key.name),
    });
    let api: Api<HorizontalPodAutoscaler> = Api::namespaced(client.clone(), &key.namespace);
    let parameters = PatchParams::apply("plimsoll").force();
    let written = permit.write(api.patch(&key.name, &parameters, &Patch::Apply(hpa))).await;
    written.map(|_| ()).map_err(|error| super::message(&error))
}

/// Deletes the HPA that was written for an Autoscaler which no longer wants one.
pub async fn remove(
    client: &Client,
    permit: &Permit,
    key: &ObjectKey,
    uid: &str,
    known: Option<&HpaRecord>,
) {
    if known.is_none_or(|known| known.owner.as_deref() != Some(uid)) {
        return;
    }
    let api: Api<HorizontalPodAutoscaler> = Api::namespaced(client.clone(), &key.namespace);
    let parameters = DeleteParams {
        // Only the one that was seen to be ours.
        preconditions: within(api.get_metadata(&key.name))
            .await
            .ok()
            .and_then(|hpa| hpa.metadata.uid)
            .map(|uid| Preconditions { uid: Some(uid), resource_version: None }),
        ..Default::default()
    };
    if let Err(error) = permit.write(api.delete(&key.name, &parameters)).await {
        tracing::warn!(autoscaler = %key, %error, "could not delete its HorizontalPodAutoscaler");
    }
}
