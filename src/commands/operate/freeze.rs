//! `plimsoll freeze` and `plimsoll thaw`. They return when the leader has acknowledged, or when no
//! former leader can write any more, and say which.

use super::super::story::plain;
use super::cluster::{Cluster, lease_name, named_leases};
use super::error::{OperateError, error_before_write, write_error};
use crate::clock::WallClock;
use crate::config::{ClusterFlags, FreezeFlags};
use crate::kube_error::worded;
use crate::leader::freeze::{ACKNOWLEDGED, Freeze, REQUEST};
use crate::leader::{NAME_LABEL, REQUEST_TIMEOUT};
use crate::time::UnixMillis;
use crate::watch;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How a freeze or thaw ended.
enum FreezeOutcome {
    /// This leader has acknowledged it.
    Acknowledged(String),
    /// No leader has acknowledged it, but all former terms and requests are over, and a leader
    /// renews the Lease and so has seen it.
    TimedOut,
}

/// The duration of a Lease without one, and the least that counts. With two [`REQUEST_TIMEOUT`]s it is
/// longer than a write to a scale may take, after which a leader acknowledges: a read of the Lease,
/// the write, and the API server's time to apply a cancelled write.
const MIN_LEASE_DURATION: Duration = Duration::from_secs(15);
/// The time between two reads of the Lease.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The number of native HPAs that are listed by name.
const MAX_LISTED: usize = 3;

/// Stops all writes to scales.
///
/// # Errors
/// As [`OperateError`] says, in particular if no leader acknowledges, also where it is frozen all the same.
pub async fn freeze(flags: &FreezeFlags) -> Result<String, OperateError> {
    let cluster = Cluster::of(&flags.cluster.kubectl).await?;
    freeze_in(&cluster, flags).await.map_err(|error| cluster.told(error))
}

async fn freeze_in(cluster: &Cluster, flags: &FreezeFlags) -> Result<String, OperateError> {
    let Cluster { client, clock, place, .. } = cluster;
    let leases = cluster.leases(&flags.cluster);
    let read = leases.get_opt(&flags.cluster.lease).await;
    let before = read.map_err(error_before_write(lease_name(&flags.cluster)))?;
    let of_server = |time: Option<UnixMillis>| {
        time.and_then(|time| Timestamp::from_millisecond(time).ok())
            .unwrap_or_else(|| clock.wall_timestamp())
    };
    let now = of_server(clock.server());
    // Not too early: the leader thaws by the least that the time may be.
    let until = flags.until_after.map(|time| {
        of_server(clock.server_at_most())
            .saturating_add(SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX))
            .unwrap_or(Timestamp::MAX)
    });
    let freeze = Freeze {
        reason: Arc::from(flags.reason.as_str()),
        by: cluster.user_name().await?,
        since: Some(now),
        until,
    };
    let create = before.is_none() && flags.create;
    let outcome = match request(cluster, &flags.cluster, Some(&freeze), create).await {
        Err(OperateError::NotAcknowledged { .. }) if create => {
            let next = "no replica renews the Lease; the next leader writes no scale";
            return Ok(format!("frozen in {place}: {next}\n"));
        }
        outcome => outcome?,
    };
    let end = match until {
        Some(until) => format!("until {until}, or `plimsoll thaw`"),
        None => "until `plimsoll thaw`".to_owned(),
    };
    let others = not_frozen(client).await;
    match outcome {
        FreezeOutcome::Acknowledged(holder) => Ok(format!(
            "frozen in {place}, acknowledged by {}: no scale is written {end}\n{others}",
            plain(&holder)
        )),
        FreezeOutcome::TimedOut => {
            let text = format!(
                "frozen in {place}, not acknowledged (the leader is late, or older than this command): every \
                 term and request from before the freeze is over; no scale is written {end}. Freeze again \
                 before what needs the leader of this version\n{others}"
            );
            Err(OperateError::FrozenUnheard(text.trim_end().to_owned()))
        }
    }
}

/// Ends a freeze.
///
/// # Errors
/// As [`OperateError`] says.
pub async fn thaw(flags: &ClusterFlags) -> Result<String, OperateError> {
    let cluster = Cluster::of(&flags.kubectl).await?;
    let outcome = request(&cluster, flags, None, false).await;
    let (outcome, place) = (outcome.map_err(|error| cluster.told(error))?, &cluster.place);
    Ok(match outcome {
        FreezeOutcome::Acknowledged(holder) => {
            format!("thawed in {place}, acknowledged by {}\n", plain(&holder))
        }
        FreezeOutcome::TimedOut => format!(
            "thawed in {place}, not acknowledged: the leader is late, or older than this command\n"
        ),
    })
}

/// Freezes or thaws, and waits for the leader to acknowledge. May create the Lease: a replica that
/// leads without election, or whose Lease was deleted, sees that as any other change.
async fn request(
    cluster: &Cluster,
    flags: &ClusterFlags,
    freeze: Option<&Freeze>,
    create: bool,
) -> Result<FreezeOutcome, OperateError> {
    let (leases, name) = (cluster.leases(flags), flags.lease.as_str());
    let object = format!("{}/{name}", flags.plimsoll_namespace);
    let request =
        format!("{:x}-{:x}", WallClock::default().timestamp().as_nanosecond(), std::process::id());
    let patch = Patch::Merge(Freeze::patch(freeze, &request));
    let patched = async || leases.patch(name, &PatchParams::default(), &patch).await;
    let written = if create {
        let mut annotations = freeze.map(Freeze::annotations).unwrap_or_default();
        annotations.insert(REQUEST.to_owned(), request.clone());
        let metadata = ObjectMeta {
            name: Some(flags.lease.clone()),
            labels: Some([(NAME_LABEL.0.to_owned(), NAME_LABEL.1.to_owned())].into()),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        };
        let lease = Lease { metadata, spec: Some(LeaseSpec::default()) };
        match leases.create(&PostParams::default(), &lease).await {
            // Made meanwhile: by a replica, or by an attempt whose answer was lost.
            Err(kube::Error::Api(status)) if status.code == 409 => patched().await,
            created => created,
        }
    } else {
        patched().await
    };
    let mut lease = match written {
        Ok(lease) => lease,
        Err(kube::Error::Api(status)) if status.code == 404 && status.reason == "NotFound" => {
            let others = named_leases(&cluster.other_leases().await);
            return Err(OperateError::NoLease { lease: object, others });
        }
        Err(error) => return Err(write_error(lease_name(flags))(error)),
    };
    let spec = lease.spec.clone().unwrap_or_default();
    let duration = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let duration = duration.map_or(MIN_LEASE_DURATION, Duration::from_secs).max(MIN_LEASE_DURATION);
    let (started, renewed) = (Instant::now(), spec.renew_time);
    loop {
        let annotation = |name| lease.annotations().get(name).map(String::as_str);
        // Annotations by hand leave the request, which is then acknowledged as they are.
        let is_as_requested = Freeze::of(&lease).as_ref() == freeze;
        if annotation(REQUEST) != Some(&request) || !is_as_requested {
            return Err(OperateError::Superseded { lease: object });
        }
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        if annotation(ACKNOWLEDGED) == Some(&request) {
            return Ok(FreezeOutcome::Acknowledged(holder));
        }
        if started.elapsed() > duration + 2 * REQUEST_TIMEOUT {
            if spec.renew_time != renewed && !holder.is_empty() {
                return Ok(FreezeOutcome::TimedOut);
            }
            return Err(OperateError::NotAcknowledged {
                lease: object,
                done: if freeze.is_some() { "frozen" } else { "thawed" },
                renewed: renewed.map_or_else(|| "never".to_owned(), |time| time.0.to_string()),
            });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        // A failed read changes nothing: the last Lease stays.
        if let Ok(Ok(now)) = tokio::time::timeout(REQUEST_TIMEOUT, leases.get(name)).await {
            lease = now;
        }
    }
}

/// The autoscalers that continue to scale, as others execute them.
async fn not_frozen(client: &Client) -> String {
    let api: Api<HorizontalPodAutoscaler> = Api::all(client.clone());
    let all = match api.list(&ListParams::default()).await {
        Ok(all) => all,
        Err(error) => {
            return format!(
                "not frozen: HorizontalPodAutoscalers, which kube-controller-manager executes \
                 (they can't be listed: {})\n",
                plain(&worded(&error))
            );
        }
    };
    let (ours, others): (Vec<_>, Vec<_>) =
        all.iter().partition(|hpa| watch::owner(&hpa.metadata).is_some());
    let mut text = String::new();
    if !others.is_empty() {
        let name = |hpa: &&HorizontalPodAutoscaler| {
            let name = format!("{}/{}", hpa.namespace().unwrap_or_default(), hpa.name_any());
            plain(&name).into_owned()
        };
        let named: Vec<_> = others.iter().take(MAX_LISTED).map(name).collect();
        let more = if others.len() > MAX_LISTED { ", ..." } else { "" };
        let _ = writeln!(
            text,
            "not frozen: {} HorizontalPodAutoscalers, which kube-controller-manager executes unless \
             Plimsoll runs with --native-hpas=manage ({}{more})",
            others.len(),
            named.join(", ")
        );
    }
    if !ours.is_empty() {
        let _ = writeln!(
            text,
            "{} Autoscalers have `executor: NativeHPA`: their condition Frozen says when \
             kube-controller-manager has been told",
            ours.len()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader::freeze::{FREEZE, UNTIL};
    use http_body_util::BodyExt;
    use kube::client::Body;
    use serde_json::{Value, json};
    use std::sync::Mutex;

    /// An API server without a Lease. A leader, if there is one, acknowledges after this time; by then
    /// another user may have edited the Lease.
    fn api(after: Option<Duration>, edit: fn(&mut Value)) -> Client {
        let lease: Arc<Mutex<Option<Value>>> = Arc::default();
        let begun = Instant::now();
        let respond = move |method: &http::Method, path: &str, sent: Value| {
            let lease = &mut *lease.lock().unwrap();
            if !path.ends_with("/leases") && !path.ends_with("/leases/plimsoll") {
                return (200, json!({"items": [], "metadata": {}}));
            }
            if *method == http::Method::POST {
                *lease = Some(sent);
            }
            let Some(lease) = lease else {
                let gone = json!({"kind": "Status", "status": "Failure", "code": 404,
                                  "reason": "NotFound", "message": "not found"});
                return (404, gone);
            };
            if after.is_some_and(|after| begun.elapsed() >= after) {
                let annotations = &mut lease["metadata"]["annotations"];
                annotations[ACKNOWLEDGED] = annotations[REQUEST].clone();
                lease["spec"]["holderIdentity"] = "a".into();
                edit(lease);
            }
            (200, lease.clone())
        };
        let respond = Arc::new(respond);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let respond = respond.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let sent = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let (code, body) = respond(&parts.method, parts.uri.path(), sent);
                let response = http::Response::builder().status(code);
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, kube::Error>(response.body(body).unwrap())
            }
        });
        Client::new(service, "default")
    }

    fn annotations(lease: &mut Value) -> &mut serde_json::Map<String, Value> {
        lease["metadata"]["annotations"].as_object_mut().unwrap()
    }

    fn flags() -> FreezeFlags {
        let cluster = ClusterFlags {
            kubectl: crate::config::KubectlFlags::default(),
            plimsoll_namespace: "plimsoll".to_owned(),
            lease: "plimsoll".to_owned(),
        };
        FreezeFlags { reason: "x".to_owned(), until_after: None, create: true, cluster }
    }

    #[tokio::test(start_paused = true)]
    async fn a_freeze_that_was_edited_before_it_was_acknowledged_is_not_reported_as_frozen() {
        let edits: [fn(&mut Value); 3] = [
            |lease| drop(annotations(lease).remove(FREEZE)),
            |lease| drop(annotations(lease).insert(FREEZE.to_owned(), "that of another".into())),
            |lease| {
                drop(annotations(lease).insert(UNTIL.to_owned(), "2026-11-21T22:30:00Z".into()))
            },
        ];
        for edit in edits {
            let cluster = Cluster::fake(api(Some(Duration::from_secs(1)), edit));
            let said = freeze_in(&cluster, &flags()).await;
            assert!(matches!(said, Err(OperateError::Superseded { .. })), "{said:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_freeze_that_creates_the_lease_waits_for_the_leader_to_acknowledge() {
        let flags = flags();
        // A replica that leads without election has no Lease, and writes until it sees the freeze: at
        // the latest after a read of the Lease, a write, and the API server's time to apply it.
        for after in [Duration::from_secs(1), 3 * REQUEST_TIMEOUT + POLL_INTERVAL] {
            let cluster = Cluster::fake(api(Some(after), |_| {}));
            let said = freeze_in(&cluster, &flags).await.unwrap();
            let expected = "frozen in context test, acknowledged by a: ";
            assert!(said.starts_with(expected), "{after:?}: {said}");
        }
        let said = freeze_in(&Cluster::fake(api(None, |_| {})), &flags).await.unwrap();
        assert!(said.contains("no replica renews"), "{said}");
    }

    #[tokio::test(start_paused = true)]
    async fn no_name_of_a_leader_controls_the_terminal() {
        let evil = |lease: &mut Value| lease["spec"]["holderIdentity"] = "a\u{1b}[2J\nb".into();
        let cluster = Cluster::fake(api(Some(Duration::ZERO), evil));
        let said = freeze_in(&cluster, &flags()).await.unwrap();
        assert!(said.contains("acknowledged by a\\u{1b}[2J b: "), "{said}");
    }

    /// `freeze upgrade && thaw` must not thaw while a leader of before decides.
    #[tokio::test(start_paused = true)]
    async fn a_freeze_that_the_leader_does_not_acknowledge_fails() {
        let silent = |lease: &mut Value| {
            annotations(lease).remove(ACKNOWLEDGED);
            lease["spec"]["renewTime"] = "2026-11-25T10:00:00.000000Z".into();
        };
        let cluster = Cluster::fake(api(Some(Duration::from_secs(1)), silent));
        let said = freeze_in(&cluster, &flags()).await.unwrap_err();
        assert!(matches!(said, OperateError::FrozenUnheard(_)), "{said:?}");
        let expected = "frozen in context test, not acknowledged (the leader is late";
        assert!(said.to_string().starts_with(expected), "{said}");
    }
}
