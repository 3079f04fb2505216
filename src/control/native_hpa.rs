//! The executor `NativeHPA`: Plimsoll writes a HorizontalPodAutoscaler with the generated metric
//! names, and kube-controller-manager decides.

use super::context::{ControllerContext, SyncResult};
use super::decision_time::DecisionTime;
use super::requests::{handled_once, message, send, within};
use super::schedules;
use super::state::AutoscalerState;
use super::status::{self, paused_text};
use super::update_status::update_status;
use crate::crd::{Autoscaler, AutoscalerSpec, Mode};
use crate::hpa::{self, Condition, ConditionKind, Reason, Spec, schedule};
use crate::k8s::managed_fields::FIELD_MANAGER;
use crate::leader::FencingToken;
use crate::watch::{self, AutoscalerRecord, AutoscalerRef, HpaRecord, ObjectKey};
use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Api, Client, Resource};
use serde_json::{Value, json};

/// Writes the HPA, and updates the status of the Autoscaler from that of the HPA.
pub async fn apply(
    ctx: &ControllerContext,
    token: &FencingToken,
    autoscaler: &AutoscalerRef,
    record: &AutoscalerRecord,
    parsed: &watch::ParsedSpec,
    state: &mut AutoscalerState,
) -> SyncResult {
    let key = &autoscaler.key;
    let known = ctx.cluster.read(|index| index.hpa(key));
    let (frozen, at) = (ctx.leader.frozen(), DecisionTime::now(&ctx.clock));
    let pause = paused_text(&parsed.spec);
    let disabled_by = match (&frozen, parsed.spec.mode_at(at.server)) {
        (Some(why), _) => Some((ConditionKind::Frozen, Reason::FrozenByAdministrator, &**why)),
        (None, Mode::Paused) => Some((ConditionKind::Paused, Reason::PausedBySpec, &*pause)),
        (None, Mode::Active | Mode::Preview) => None,
    };
    let mut spec = if disabled_by.is_some() { disabled(&parsed.spec) } else { parsed.spec.clone() };
    let moment = parsed.scaling.spec.moment(at.server);
    let known_spec = known.as_ref().filter(|known| known.owner.as_deref() == Some(&record.uid));
    match (&moment, known_spec) {
        // kube-controller-manager applies bounds whatever selectPolicy says.
        (Some(_), Some(known)) if disabled_by.is_some() => {
            let known = &known.scaling.spec;
            (spec.min_replicas, spec.max_replicas) = (known.min_replicas, known.max_replicas);
        }
        (Some(schedule::Moment { bounds, .. }), _) => {
            (spec.min_replicas, spec.max_replicas) = (bounds.min, bounds.max);
        }
        (None, _) => {}
    }
    let ControllerContext { client, .. } = ctx;
    let is_disabled = disabled_by.is_some();
    let known_now = known.as_deref();
    let written = write(client, token, key, &record.uid, &spec, is_disabled, known_now).await;
    // Until kube-controller-manager has written a status to this HPA, the last one is shown.
    let reported = known.filter(|hpa| hpa.status.conditions.is_some() && written.is_ok());
    let status = &mut state.status;
    if let Some(hpa) = &reported {
        let is_ours = |condition: &Condition| {
            use ConditionKind::{Frozen, Paused, Ready};
            matches!(condition.kind, Frozen | Paused | Ready)
        };
        let ours = std::mem::take(&mut status.conditions).into_iter().filter(is_ours);
        let theirs = hpa::Status::from_api(&hpa.status);
        let conditions = theirs.conditions.into_iter().chain(ours).collect();
        *status = hpa::Status { conditions, ..theirs };
    }
    for kind in [ConditionKind::Frozen, ConditionKind::Paused] {
        if disabled_by.is_none_or(|(other, ..)| other != kind) {
            status.end(kind, "the HorizontalPodAutoscaler is enabled", at.wall);
        }
    }
    let (reason, now) = (Reason::FailedWriteHPA, ctx.clock.wall_ms());
    match &written {
        Err(error) => {
            status.set(ConditionKind::AbleToScale, false, reason, format_args!("{error}"), now);
        }
        Ok(()) => status.conditions.retain(|condition| condition.reason != reason),
    }
    if let (Ok(()), Some((kind, reason, why))) = (&written, disabled_by) {
        let text = format_args!(
            "the HorizontalPodAutoscaler has selectPolicy Disabled in both directions: {why}"
        );
        status.set(kind, true, reason, text, now);
    }
    status.schedule = moment.map(Box::new);
    let events =
        schedules::events(&parsed.scaling.spec, &mut state.active, status.schedule.as_deref(), at);
    ctx.events.publish(token, autoscaler, &record.uid, &events);
    let mut rendered = status::render(status, &parsed.scaling.spec, record.generation);
    if let Some(hpa) = reported {
        rendered.current_metrics.clone_from(&hpa.status.current_metrics);
    }
    update_status(ctx, Some(token), autoscaler, state, rendered);
    if written.is_ok() { SyncResult::Held } else { SyncResult::Failed }
}

/// The spec with `selectPolicy: Disabled` in both directions, the way to pause an HPA.
fn disabled(spec: &AutoscalerSpec) -> AutoscalerSpec {
    let mut spec = spec.clone();
    let behavior = spec.behavior.get_or_insert_default();
    for rules in [&mut behavior.scale_up, &mut behavior.scale_down] {
        rules.get_or_insert_default().select_policy = Some("Disabled".to_owned());
    }
    spec
}

/// Writes the HPA of an Autoscaler if its spec differs. An HPA of that name that the Autoscaler does
/// not own is not changed, whether it is in the watch cache or not. An HPA that is not disabled
/// scales its target, so it is written like a scale: not while scales are frozen.
///
/// # Errors
/// If an HPA of that name is not owned by the Autoscaler, or it can't be written; the text is for a
/// condition.
pub async fn write(
    client: &Client,
    token: &FencingToken,
    key: &ObjectKey,
    uid: &str,
    spec: &AutoscalerSpec,
    is_disabled: bool,
    known: Option<&HpaRecord>,
) -> Result<(), String> {
    let foreign = || {
        format!(
            "the HorizontalPodAutoscaler {key} already exists and is not owned by this Autoscaler; delete it or rename the Autoscaler"
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
                "apiVersion": Autoscaler::api_version(&()),
                "kind": "Autoscaler",
                "name": key.name,
                "uid": uid,
                "controller": true,
            }],
        },
        "spec": wanted,
    });
    let api: Api<HorizontalPodAutoscaler> = Api::namespaced(client.clone(), &key.namespace);
    let request = Request::new(api.resource_url());
    let version = match known {
        Some(known) if known.owner.as_deref() != Some(uid) => return Err(foreign()),
        Some(known) if known.scaling.spec == Spec::from_api(&wanted) => return Ok(()),
        Some(known) => known.version.clone(),
        None => {
            let object = serde_json::to_vec(&hpa).map_err(|error| error.to_string())?;
            let parameters =
                PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
            match put(client, token, is_disabled, request.create(&parameters, object)).await {
                Ok(()) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(message(&error)),
            }
            // It exists, but is not in the watch cache yet.
            let found = within(api.get_metadata(&key.name)).await.map_err(|e| message(&e))?;
            if watch::owner(&found.metadata).as_deref() != Some(uid) {
                return Err(foreign());
            }
            found.metadata.resource_version
        }
    };
    // With the version the API server rejects the patch if another writer, such as the owner, changed
    // the HPA meanwhile.
    let patch = json!({"metadata": {"resourceVersion": version}, "spec": whole(&wanted)});
    let parameters =
        PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
    let patch = Patch::Merge(patch);
    let patched = put(client, token, is_disabled, request.patch(&key.name, &parameters, &patch));
    patched.await.map_err(|error| message(&error))
}

async fn put(
    client: &Client,
    token: &FencingToken,
    is_disabled: bool,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<(), kube::Error> {
    let written = if is_disabled {
        // No freeze waits for it, and it may be repeated: it is a create, or names the version.
        token.write(send(client, request)).await
    } else {
        token.write_scale(send(client, handled_once(request))).await
    };
    written.map(|_: HorizontalPodAutoscaler| ())
}

/// A spec as a merge patch that replaces the old one, such as the `selectPolicy` of a pause: fields
/// without a value are null, because a merge patch keeps those that it does not name.
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

/// Deletes the HPA of an Autoscaler whose executor is no longer `NativeHPA`. UID and version are
/// preconditions, so that only the HPA that was seen to be Plimsoll's is deleted. Returns whether it
/// was there and is gone.
///
/// # Errors
/// If it stays; the text is for a condition.
pub async fn remove(
    client: &Client,
    token: &FencingToken,
    key: &ObjectKey,
    uid: &str,
    known: Option<&HpaRecord>,
) -> Result<bool, String> {
    let Some(known) = known.filter(|known| known.owner.as_deref() == Some(uid)) else {
        return Ok(false);
    };
    let api: Api<HorizontalPodAutoscaler> = Api::namespaced(client.clone(), &key.namespace);
    let (uid, resource_version) = (Some(known.uid.clone()), known.version.clone());
    let preconditions = Some(Preconditions { uid, resource_version });
    let parameters = DeleteParams { preconditions, ..Default::default() };
    let stays = |why: String| {
        let autoscaler = AutoscalerRef::autoscaler(key.clone());
        tracing::warn!(%autoscaler, error = why, "Failed to delete the HorizontalPodAutoscaler");
        format!(
            "the HorizontalPodAutoscaler of this Autoscaler can't be deleted, so kube-controller-manager still scales the target: {why}"
        )
    };
    match token.write(api.delete(&key.name, &parameters)).await {
        Ok(response) if response.is_right() => Ok(true),
        Ok(_) => Err(stays("its finalizers keep it".to_owned())),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        // It has changed, or is another by now: the watch will show which.
        Err(error) => Err(stays(message(&error))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake;
    use super::*;
    use crate::retry::Retries;
    use tower::{Layer, retry::RetryLayer};

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
    async fn an_hpa_that_is_not_in_the_watch_cache_yet_is_not_taken_over() {
        let theirs = hpa("theirs", None);
        let (client, log) = fake::api(move |request| match &*request.line {
            line if line.starts_with("POST") => fake::failure(409, "AlreadyExists", "exists"),
            _ => (200, theirs.clone()),
        });
        let key = fake::autoscaler("web").key;
        let written =
            write(&client, &fake::fencing_token(&client), &key, "ours", &spec(), false, None).await;
        assert!(log.of("PATCH").is_empty(), "{:?}", log.of(""));
        assert!(written.unwrap_err().contains("is not owned by this Autoscaler"));
    }

    #[tokio::test]
    async fn an_hpa_that_scales_is_not_written_once_scales_are_frozen() {
        let (client, log) = fake::api(|request| (200, request.body.clone()));
        let leader = fake::leader(&client);
        let (token, key) = (leader.fencing_token().unwrap(), fake::autoscaler("web").key);
        // After the evaluation read it.
        fake::freeze(&leader);
        let ours = record(&hpa("1", Some("ours")));
        let spec = AutoscalerSpec { max_replicas: 9, ..spec() };
        for known in [None, Some(&ours)] {
            let written = write(&client, &token, &key, "ours", &spec, false, known).await;
            assert!(written.unwrap_err().contains("frozen: incident"));
        }
        assert!(log.of("").is_empty(), "{:?}", log.of(""));
        write(&client, &token, &key, "ours", &disabled(&spec), true, None).await.unwrap();
        let created = &log.of("POST /apis/autoscaling/")[0];
        assert!(created.query.contains("timeout=10s"), "{created:?}");
    }

    #[tokio::test]
    async fn an_hpa_with_the_wanted_spec_is_not_written_again() {
        let ours = hpa("1", Some("ours"));
        let known = record(&ours);
        let (client, log) = fake::api(move |_| (200, ours.clone()));
        let key = fake::autoscaler("web").key;
        let token = fake::fencing_token(&client);
        write(&client, &token, &key, "ours", &spec(), false, Some(&known)).await.unwrap();
        assert!(log.of("").is_empty(), "{:?}", log.of(""));
    }

    /// No acknowledgement of a freeze waits for an HPA that is disabled.
    #[tokio::test(start_paused = true)]
    async fn disabling_an_hpa_is_retried_and_enabling_it_is_not() {
        for is_disabled in [true, false] {
            let mut failed = false;
            let (client, log) = fake::api(move |request| {
                match request.line.starts_with("PATCH") && !std::mem::replace(&mut failed, true) {
                    true => fake::failure(503, "ServiceUnavailable", "shutting down"),
                    false => (200, request.body.clone()),
                }
            });
            let send = tower::service_fn(move |request| {
                let client = client.clone();
                async move { client.send(request).await.map_err(tower::BoxError::from) }
            });
            let client = Client::new(RetryLayer::new(Retries::new()).layer(send), "default");
            let (key, known) = (fake::autoscaler("web").key, record(&hpa("1", Some("ours"))));
            let spec = if is_disabled {
                disabled(&spec())
            } else {
                AutoscalerSpec { max_replicas: 9, ..spec() }
            };
            let token = fake::fencing_token(&client);
            let written =
                write(&client, &token, &key, "ours", &spec, is_disabled, Some(&known)).await;
            assert_eq!((written.is_ok(), log.of("PATCH").len() == 2), (is_disabled, is_disabled));
        }
    }

    #[tokio::test]
    async fn an_hpa_is_deleted_only_by_the_uid_and_version_that_were_seen() {
        let known = record(&hpa("1", Some("ours")));
        let (client, log) = fake::api(|request| match &*request.line {
            line if line.starts_with("GET") => (200, hpa("2", None)),
            _ => fake::failure(409, "Conflict", "the UID in the precondition is another"),
        });
        let key = fake::autoscaler("web").key;
        let token = fake::fencing_token(&client);
        assert!(
            remove(&client, &token, &key, "ours", Some(&known)).await.is_err(),
            "it may be there"
        );
        let deletes = log.of("DELETE");
        assert_eq!(deletes[0].body["preconditions"]["uid"], "1", "{deletes:?}");
        assert_eq!(deletes[0].body["preconditions"]["resourceVersion"], "7", "{deletes:?}");
    }

    #[tokio::test]
    async fn an_hpa_is_disabled_by_disabling_both_directions() {
        let mut spec = spec();
        let rules = json!({"scaleDown": {"stabilizationWindowSeconds": 60}});
        spec.behavior = serde_json::from_value(rules).unwrap();
        let behavior = json!(disabled(&spec).behavior);
        assert_eq!(behavior["scaleUp"]["selectPolicy"], "Disabled");
        assert_eq!(behavior["scaleDown"]["selectPolicy"], "Disabled");
        assert_eq!(behavior["scaleDown"]["stabilizationWindowSeconds"], 60);
        // A change of it alone is written.
        let (client, log) = fake::api(|request| (200, request.body.clone()));
        let (key, known) = (fake::autoscaler("web").key, record(&hpa("1", Some("ours"))));
        let token = fake::fencing_token(&client);
        let disabled = disabled(&spec);
        write(&client, &token, &key, "ours", &disabled, true, Some(&known)).await.unwrap();
        // A write that timed out here must not take effect later.
        assert!(log.of("PATCH")[0].query.contains("timeout=10s"), "{:?}", log.of("PATCH"));
        let disabled = &log.of("PATCH")[0].body;
        assert_eq!(disabled["metadata"]["resourceVersion"], "7");
        assert_eq!(disabled["spec"]["behavior"]["scaleUp"]["selectPolicy"], "Disabled");
        // Resuming removes it again.
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
