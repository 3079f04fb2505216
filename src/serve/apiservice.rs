//! Writes the CA of a self-made certificate to the APIServices that lead here.

use super::ApiGroup;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::ByteString;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

/// Keeps `caBundle` of every APIService of our groups that names this Service,
/// for ever. Others are left alone: another adapter may serve them.
pub async fn keep_ca_bundles(client: Client, service: String, namespace: String, ca: String) {
    let api: Api<APIService> = Api::all(client);
    let mut objects = watcher(api.clone(), watcher::Config::default())
        .default_backoff()
        .applied_objects()
        .boxed();
    let ca = ByteString(ca.into_bytes());
    loop {
        let object = match objects.try_next().await {
            Ok(Some(object)) => object,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "can't follow APIServices");
                continue;
            }
        };
        let Some(spec) = &object.spec else { continue };
        let group = spec.group.as_deref();
        let ours = ApiGroup::ALL.iter().any(|ours| group == Some(ours.as_str()))
            && spec.service.as_ref().is_some_and(|reference| {
                reference.name.as_deref() == Some(&service)
                    && reference.namespace.as_deref() == Some(&namespace)
            });
        if !ours || spec.ca_bundle.as_ref() == Some(&ca) {
            continue;
        }
        let name = object.name_any();
        let patch = json!({"spec": {"caBundle": ca, "insecureSkipTLSVerify": null}});
        match api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => tracing::info!(apiservice = name, "wrote caBundle"),
            Err(error) => {
                tracing::warn!(apiservice = name, %error, "could not write caBundle");
            }
        }
    }
}
