//! Autoscalers whose executor is a native HPA: Plimsoll writes the HPA with the
//! generated names, and kube-controller-manager decides.

use super::reconcile::{Ended, FAILED, HELD, State, now, write_status};
use super::run::Shared;
use super::{status, within};
use crate::crd::AutoscalerSpec;
use crate::hpa::{self, ConditionKind};
use crate::leader::Permit;
use crate::watch::{self, AutoscalerRecord, HpaRecord, ObjectKey, Subject};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use serde_json::{Value, json};

/// Has a native HPA decide, and shows its status.
pub async fn delegate(
    shared: &Shared,
    permit: &Permit,
    subject: &Subject,
    record: &AutoscalerRecord,
    asked: &watch::Asked,
    state: &mut State,
) -> Ended {
    let key = &subject.key;
    let known = shared.cluster.read(|index| index.hpa(key));
    let Shared { client, .. } = shared;
    let written = match shared.leader.frozen() {
        Some(why) => Err(format!("writes are frozen: {why}")),
        None => write(client, permit, key, &record.uid, &asked.spec, known.as_deref()).await,
    };
    let spec = &asked.demand.decided;
    let shown = match written {
        Ok(()) => {
            let status = known.map(|hpa| hpa.status.clone()).unwrap_or_default();
            let current = hpa::Status::from_api(&status).current;
            status::from_hpa(status, spec, &current, record.generation)
        }
        Err(ref error) => {
            let status = &mut state.status;
            status.set(
                ConditionKind::AbleToScale,
                false,
                "FailedWriteHPA",
                format_args!("{error}"),
                now(),
            );
            status::shown(status, spec, record.generation)
        }
    };
    write_status(shared, Some(permit), subject, state, shown);
    if written.is_ok() { HELD } else { FAILED }
}

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

#[cfg(test)]
mod tests {
    use super::super::fake;
    use super::*;

    fn spec() -> AutoscalerSpec {
        AutoscalerSpec::read(json!({"executor": "NativeHPA", "maxReplicas": 3,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}))
        .unwrap()
    }

    fn hpa(uid: &str, owner: Option<&str>) -> Value {
        let reference = |uid| {
            json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
                   "name": "web", "uid": uid, "controller": true})
        };
        let owners: Vec<Value> = owner.into_iter().map(reference).collect();
        let owners = if owners.is_empty() { Value::Null } else { json!(owners) };
        json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "web", "namespace": "shop", "uid": uid, "resourceVersion": "7",
                "ownerReferences": owners},
            "spec": {"maxReplicas": 3, "scaleTargetRef": {
                "apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}})
    }

    fn record(object: &Value) -> HpaRecord {
        watch::read_hpa(serde_json::from_value(object.clone()).unwrap())
    }

    #[tokio::test]
    async fn an_hpa_of_which_no_watch_has_told_is_not_taken_over() {
        let theirs = hpa("theirs", None);
        let (client, log) = fake::api(move |request| match &*request.line {
            line if line.starts_with("POST") => fake::failure(409, "AlreadyExists", "exists"),
            _ => (200, theirs.clone()),
        });
        let key = fake::autoscaler("web").key;
        let written = write(&client, &fake::permit(&client), &key, "ours", &spec(), None).await;
        assert!(log.of("PATCH").is_empty(), "{:?}", log.of(""));
        assert!(written.unwrap_err().contains("does not belong to this Autoscaler"));
    }

    #[tokio::test]
    async fn an_hpa_that_is_as_it_should_be_is_not_written_again() {
        let ours = hpa("1", Some("ours"));
        let known = record(&ours);
        let (client, log) = fake::api(move |_| (200, ours.clone()));
        let key = fake::autoscaler("web").key;
        let permit = fake::permit(&client);
        write(&client, &permit, &key, "ours", &spec(), Some(&known)).await.unwrap();
        assert!(log.of("").is_empty(), "{:?}", log.of(""));
    }

    #[tokio::test]
    async fn only_the_very_hpa_that_was_seen_to_be_ours_is_deleted() {
        let known = record(&hpa("1", Some("ours")));
        let (client, log) = fake::api(|request| match &*request.line {
            line if line.starts_with("GET") => (200, hpa("2", None)),
            _ => fake::failure(409, "Conflict", "the UID in the precondition is another"),
        });
        let key = fake::autoscaler("web").key;
        remove(&client, &fake::permit(&client), &key, "ours", Some(&known)).await;
        let deletes = log.of("DELETE");
        assert_eq!(deletes[0].body["preconditions"]["uid"], "1", "{deletes:?}");
        assert_eq!(deletes[0].body["preconditions"]["resourceVersion"], "7", "{deletes:?}");
    }
}
