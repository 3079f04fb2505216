//! Autoscalers whose executor is a native HPA: Plimsoll writes the HPA with the
//! generated names, and kube-controller-manager decides.

use super::reconcile::{Ended, FAILED, HELD, State, now, write_status};
use super::run::Shared;
use super::{message, send, status, within};
use crate::crd::AutoscalerSpec;
use crate::hpa::{self, Condition, ConditionKind, Spec};
use crate::leader::FencingToken;
use crate::watch::{self, AutoscalerRecord, HpaRecord, ObjectKey, Subject};
use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Api, Client};
use serde_json::{Value, json};

/// Who is named as the writer of fields.
const MANAGER: &str = "plimsoll";

/// Has a native HPA decide, and shows its status.
pub async fn delegate(
    shared: &Shared,
    token: &FencingToken,
    subject: &Subject,
    record: &AutoscalerRecord,
    parsed: &watch::ParsedSpec,
    state: &mut State,
) -> Ended {
    let key = &subject.key;
    let known = shared.cluster.read(|index| index.hpa(key));
    let frozen = shared.leader.frozen();
    let held = match (&frozen, parsed.spec.paused) {
        (Some(why), _) => Some((ConditionKind::Frozen, "FrozenByAdministrator", &**why)),
        (None, true) => Some((ConditionKind::Paused, "PausedBySpec", "spec.paused is set")),
        (None, false) => None,
    };
    let spec = if held.is_some() { left_alone(&parsed.spec) } else { parsed.spec.clone() };
    let Shared { client, .. } = shared;
    let is_held = held.is_some();
    let known_now = known.as_deref();
    let written = write(client, token, key, &record.uid, &spec, is_held, known_now).await;
    // What kube-controller-manager says is of this HPA once it has a status; until
    // then what was shown last still stands.
    let theirs = known.filter(|hpa| hpa.status.conditions.is_some() && written.is_ok());
    let status = &mut state.status;
    if let Some(hpa) = &theirs {
        let ours = |condition: &Condition| {
            matches!(condition.kind, ConditionKind::Frozen | ConditionKind::Paused)
        };
        let kept = std::mem::take(&mut status.conditions).into_iter().filter(ours);
        let theirs = hpa::Status::from_api(&hpa.status);
        let conditions = theirs.conditions.into_iter().chain(kept).collect();
        *status = hpa::Status { conditions, ..theirs };
    }
    for kind in [ConditionKind::Frozen, ConditionKind::Paused] {
        if held.is_none_or(|(held, ..)| held != kind) {
            status.remove(kind);
        }
    }
    let reason = "FailedWriteHPA";
    match &written {
        Err(error) => {
            status.set(ConditionKind::AbleToScale, false, reason, format_args!("{error}"), now());
        }
        Ok(()) => status.conditions.retain(|condition| condition.reason != reason),
    }
    if let (Ok(()), Some((kind, reason, why))) = (&written, held) {
        let text = format_args!(
            "the HorizontalPodAutoscaler has selectPolicy Disabled in both directions: {why}"
        );
        status.set(kind, true, reason, text, now());
    }
    let decided = &parsed.scaling.spec;
    let mut shown = status::shown(status, decided, record.generation);
    if let Some(hpa) = theirs {
        shown.current_metrics.clone_from(&hpa.status.current_metrics);
    }
    write_status(shared, Some(token), subject, state, shown);
    if written.is_ok() { HELD } else { FAILED }
}

/// The same, so that nothing is scaled: that is what an HPA has for it.
fn left_alone(spec: &AutoscalerSpec) -> AutoscalerSpec {
    let mut spec = spec.clone();
    let behavior = spec.behavior.get_or_insert_default();
    for rules in [&mut behavior.scale_up, &mut behavior.scale_down] {
        rules.get_or_insert_default().select_policy = Some("Disabled".to_owned());
    }
    spec
}

/// Writes the HPA of an Autoscaler where it is not as it should be. One of that
/// name that is not ours is not touched, whether a watch has told of it or not. One that
/// is not held, so that it scales, is written as a scale is: not while scales are frozen.
///
/// # Errors
/// Where there is one that is not ours, or it can't be written; the text is for a condition.
pub async fn write(
    client: &Client,
    token: &FencingToken,
    key: &ObjectKey,
    uid: &str,
    spec: &AutoscalerSpec,
    is_held: bool,
    known: Option<&HpaRecord>,
) -> Result<(), String> {
    let foreign = || {
        format!(
            "the HorizontalPodAutoscaler {key} is there and does not belong to this Autoscaler; delete it, or name the Autoscaler otherwise"
        )
    };
    let wanted = spec.as_hpa(&key.namespace, &key.name);
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
        "spec": wanted,
    });
    let api: Api<HorizontalPodAutoscaler> = Api::namespaced(client.clone(), &key.namespace);
    let place = Request::new(api.resource_url());
    let version = match known {
        Some(known) if known.owner.as_deref() != Some(uid) => return Err(foreign()),
        Some(known) if known.scaling.spec == Spec::from_api(&wanted) => return Ok(()),
        Some(known) => known.version.clone(),
        None => {
            let object = serde_json::to_vec(&hpa).map_err(|error| error.to_string())?;
            let parameters =
                PostParams { field_manager: Some(MANAGER.to_owned()), ..Default::default() };
            match put(client, token, is_held, place.create(&parameters, object)).await {
                Ok(()) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(message(&error)),
            }
            // It is there, though no watch has told of it.
            let found = within(api.get_metadata(&key.name)).await.map_err(|e| message(&e))?;
            if watch::owner(&found.metadata).as_deref() != Some(uid) {
                return Err(foreign());
            }
            found.metadata.resource_version
        }
    };
    // Who changes it meanwhile, such as its owner, is seen first: the API server
    // refuses another version.
    let patch = json!({"metadata": {"resourceVersion": version}, "spec": whole(&wanted)});
    let parameters = PatchParams { field_manager: Some(MANAGER.to_owned()), ..Default::default() };
    let patch = Patch::Merge(patch);
    let request = place.patch(&key.name, &parameters, &patch);
    put(client, token, is_held, request).await.map_err(|error| message(&error))
}

async fn put(
    client: &Client,
    token: &FencingToken,
    is_held: bool,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<(), kube::Error> {
    let request = async { send(client, request).await.map(|_: HorizontalPodAutoscaler| ()) };
    if is_held { token.write(request).await } else { token.write_scale(request).await }
}

/// A spec as a merge patch that leaves nothing of the one before it, such as the
/// `selectPolicy` of a pause: a merge patch keeps what it does not name.
fn whole(spec: &HorizontalPodAutoscalerSpec) -> Value {
    let mut spec = json!(spec);
    let name_all = |object: &mut Value, fields: &[&str]| {
        for field in fields {
            if object.get(field).is_none() {
                object[*field] = Value::Null;
            }
        }
    };
    name_all(&mut spec, &["minReplicas", "metrics", "behavior"]);
    name_all(&mut spec["scaleTargetRef"], &["apiVersion"]);
    if spec["behavior"].is_object() {
        name_all(&mut spec["behavior"], &["scaleUp", "scaleDown"]);
        for rules in ["scaleUp", "scaleDown"] {
            if spec["behavior"][rules].is_object() {
                let fields =
                    ["stabilizationWindowSeconds", "selectPolicy", "policies", "tolerance"];
                name_all(&mut spec["behavior"][rules], &fields);
            }
        }
    }
    spec
}

/// Deletes the HPA that was written for an Autoscaler which no longer wants one:
/// the very one that was seen to be ours, as it was seen. True where it is gone.
pub async fn remove(
    client: &Client,
    token: &FencingToken,
    key: &ObjectKey,
    uid: &str,
    known: Option<&HpaRecord>,
) -> bool {
    let Some(known) = known.filter(|known| known.owner.as_deref() == Some(uid)) else {
        return false;
    };
    let api: Api<HorizontalPodAutoscaler> = Api::namespaced(client.clone(), &key.namespace);
    let (uid, resource_version) = (Some(known.uid.clone()), known.version.clone());
    let preconditions = Some(Preconditions { uid, resource_version });
    let parameters = DeleteParams { preconditions, ..Default::default() };
    match token.write(api.delete(&key.name, &parameters)).await {
        // An object in the answer is one that finalizers still hold.
        Ok(answer) => answer.is_right(),
        // It has changed: the watch will tell how.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => false,
        Err(error) => {
            let error = message(&error);
            tracing::warn!(autoscaler = %key, error, "could not delete its HorizontalPodAutoscaler");
            false
        }
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
        let written =
            write(&client, &fake::fencing_token(&client), &key, "ours", &spec(), false, None).await;
        assert!(log.of("PATCH").is_empty(), "{:?}", log.of(""));
        assert!(written.unwrap_err().contains("does not belong to this Autoscaler"));
    }

    #[tokio::test]
    async fn an_hpa_that_scales_is_not_written_once_scales_are_frozen() {
        let (client, log) = fake::api(|request| (200, request.body.clone()));
        let leader = fake::leader(&client);
        let (token, key) = (leader.fencing_token().unwrap(), fake::autoscaler("web").key);
        // After the round had looked.
        fake::freeze(&leader);
        let ours = record(&hpa("1", Some("ours")));
        let spec = AutoscalerSpec { max_replicas: 9, ..spec() };
        for known in [None, Some(&ours)] {
            let written = write(&client, &token, &key, "ours", &spec, false, known).await;
            assert!(written.unwrap_err().contains("frozen: incident"));
        }
        assert!(log.of("").is_empty(), "{:?}", log.of(""));
        write(&client, &token, &key, "ours", &left_alone(&spec), true, None).await.unwrap();
        let created = &log.of("POST /apis/autoscaling/")[0];
        assert!(created.query.contains("timeout=10s"), "{created:?}");
    }

    #[tokio::test]
    async fn an_hpa_that_is_as_it_should_be_is_not_written_again() {
        let ours = hpa("1", Some("ours"));
        let known = record(&ours);
        let (client, log) = fake::api(move |_| (200, ours.clone()));
        let key = fake::autoscaler("web").key;
        let token = fake::fencing_token(&client);
        write(&client, &token, &key, "ours", &spec(), false, Some(&known)).await.unwrap();
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
        let token = fake::fencing_token(&client);
        assert!(!remove(&client, &token, &key, "ours", Some(&known)).await);
        let deletes = log.of("DELETE");
        assert_eq!(deletes[0].body["preconditions"]["uid"], "1", "{deletes:?}");
        assert_eq!(deletes[0].body["preconditions"]["resourceVersion"], "7", "{deletes:?}");
    }

    #[tokio::test]
    async fn an_hpa_is_left_alone_by_disabling_both_directions() {
        let mut spec = spec();
        let rules = json!({"scaleDown": {"stabilizationWindowSeconds": 60}});
        spec.behavior = serde_json::from_value(rules).unwrap();
        let behavior = json!(left_alone(&spec).behavior);
        assert_eq!(behavior["scaleUp"]["selectPolicy"], "Disabled");
        assert_eq!(behavior["scaleDown"]["selectPolicy"], "Disabled");
        assert_eq!(behavior["scaleDown"]["stabilizationWindowSeconds"], 60);
        // A change of it alone is written.
        let (client, log) = fake::api(|request| (200, request.body.clone()));
        let (key, known) = (fake::autoscaler("web").key, record(&hpa("1", Some("ours"))));
        let token = fake::fencing_token(&client);
        let held = left_alone(&spec);
        write(&client, &token, &key, "ours", &held, true, Some(&known)).await.unwrap();
        // What is given up here is not done later.
        assert!(log.of("PATCH")[0].query.contains("timeout=10s"), "{:?}", log.of("PATCH"));
        let disabled = &log.of("PATCH")[0].body;
        assert_eq!(disabled["metadata"]["resourceVersion"], "7");
        assert_eq!(disabled["spec"]["behavior"]["scaleUp"]["selectPolicy"], "Disabled");
        // And nothing is left of it afterwards.
        let mut paused = hpa("1", Some("ours"));
        paused["spec"]["behavior"] = behavior;
        let known = record(&paused);
        write(&client, &token, &key, "ours", &self::spec(), false, Some(&known)).await.unwrap();
        let resumed = &log.of("PATCH")[1].body["spec"];
        assert_eq!(
            (resumed.get("behavior"), &resumed["maxReplicas"]),
            (Some(&Value::Null), &json!(3))
        );
        let rules = json!({"scaleDown": {"stabilizationWindowSeconds": 60}});
        let spec = HorizontalPodAutoscalerSpec {
            behavior: serde_json::from_value(rules).unwrap(),
            ..Default::default()
        };
        let down = &whole(&spec)["behavior"]["scaleDown"];
        assert_eq!(
            (down.get("selectPolicy"), down.get("policies")),
            (Some(&Value::Null), Some(&Value::Null))
        );
    }
}
