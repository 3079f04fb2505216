//! Writes the CA of a self-made certificate to the APIServices that lead here,
//! beside those of other replicas.

use super::ApiGroup;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::ByteString;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

/// How many CAs a bundle has at most; those that were written first are dropped
/// first, and written again by a replica that still needs its own.
const BUNDLED: usize = 16;
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";

/// A bundle with one CA more.
fn with_ca(bundle: &[u8], ca: &str) -> String {
    let text = String::from_utf8_lossy(bundle);
    let others = text.split(BEGIN).skip(1).map(|rest| format!("{BEGIN}{}\n", rest.trim_end()));
    let mut all: Vec<String> = others.collect();
    all.push(format!("{}\n", ca.trim_end()));
    all.drain(..all.len().saturating_sub(BUNDLED));
    all.concat()
}

/// Keeps our CA in `caBundle` of every APIService of our groups that names this Service,
/// for ever. Others are left alone: another adapter may serve them.
pub async fn keep_ca_bundles(client: Client, service: String, namespace: String, ca: String) {
    let api: Api<APIService> = Api::all(client);
    let mut objects = watcher(api.clone(), watcher::Config::default())
        .default_backoff()
        .applied_objects()
        .boxed();
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
        let bundle = spec.ca_bundle.as_ref().map_or(&[][..], |bundle| &bundle.0);
        if !ours || String::from_utf8_lossy(bundle).contains(ca.trim_end()) {
            continue;
        }
        let name = object.name_any();
        let bundle = ByteString(with_ca(bundle, &ca).into_bytes());
        // Another replica may write at the same time: then what it wrote comes by the watch.
        let patch = json!({
            "metadata": {"resourceVersion": object.metadata.resource_version},
            "spec": {"caBundle": bundle, "insecureSkipTLSVerify": null},
        });
        match api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => tracing::info!(apiservice = name, "wrote caBundle"),
            Err(error) => {
                tracing::warn!(apiservice = name, %error, "could not write caBundle");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_cas_of_replicas_stand_side_by_side() {
        let ca = |n: usize| format!("{BEGIN}\n{n}\n-----END CERTIFICATE-----");
        let mut bundle = String::new();
        for n in 0..BUNDLED + 2 {
            bundle = with_ca(bundle.as_bytes(), &ca(n));
        }
        let expected: String = (2..BUNDLED + 2).map(|n| ca(n) + "\n").collect();
        assert_eq!(bundle, expected);
    }
}
