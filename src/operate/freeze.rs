//! `plimsoll freeze` and `plimsoll thaw`: they end when the leader has answered, or
//! when no leader of before can write any more, and say which.

use super::{OperateError, leases, of};
use crate::clock::Clock;
use crate::config::{ClusterFlags, FreezeFlags};
use crate::connect;
use crate::crd::Autoscaler;
use crate::leader::LABEL;
use crate::leader::freeze::{ACKNOWLEDGED, Freeze, REQUEST};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How a request about the freeze ended.
enum Answer {
    /// This leader has taken it up.
    Acknowledged(String),
    /// None has said so, but every term and request of before is over, and somebody
    /// renews the Lease, and so has seen it.
    Waited,
}

/// The longest time for one request of a leader. A write to a scale is three of them: a look
/// at the Lease, the write, and the API server's time for what the leader has given up; then
/// it answers. That is less than two of them and the duration of a Lease, at least
/// [`LEASE_DURATION`], after which no leader of before writes.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The duration of a Lease that names none.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// The time between two looks at the Lease.
const LOOK: Duration = Duration::from_millis(250);
/// How many native HPAs are named.
const NAMED: usize = 3;

/// Stops all writes to scales.
///
/// # Errors
/// As [`OperateError`] says: above all where nobody hears it.
pub async fn freeze(flags: &FreezeFlags) -> Result<String, OperateError> {
    let (client, clock) = client(&flags.cluster).await?;
    freeze_by(&client, &clock, flags).await
}

async fn freeze_by(
    client: &Client,
    clock: &Clock,
    flags: &FreezeFlags,
) -> Result<String, OperateError> {
    let leases = leases(client, &flags.cluster);
    let before = leases.get_opt(&flags.cluster.lease).await.map_err(of("the Lease"))?;
    let now = clock
        .server()
        .and_then(|now| Timestamp::from_millisecond(now).ok())
        .unwrap_or_else(Timestamp::now);
    let until = flags.until_after.map(|time| {
        now.saturating_add(SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX))
            .unwrap_or(Timestamp::MAX)
    });
    let freeze = Freeze {
        reason: Arc::from(flags.reason.as_str()),
        by: who(client).await,
        since: Some(now),
        until,
    };
    let create = before.is_none() && flags.create;
    let answer = match ask(client, &flags.cluster, Some(&freeze), create).await {
        Err(OperateError::Nobody { .. }) if create => {
            return Ok("frozen: nobody answers; whoever leads next writes no scale\n".to_owned());
        }
        answer => answer?,
    };
    let end = match until {
        Some(until) => format!("until {until}, or `plimsoll thaw`"),
        None => "until `plimsoll thaw`".to_owned(),
    };
    let mut text = match answer {
        Answer::Acknowledged(holder) => {
            format!("frozen, acknowledged by {holder}: no scale is written {end}\n")
        }
        Answer::Waited => format!(
            "frozen, not acknowledged (the leader is older than this command): every term and \
             request from before the freeze is over; no scale is written {end}\n"
        ),
    };
    text.push_str(&not_frozen(client).await);
    Ok(text)
}

/// Ends a freeze.
///
/// # Errors
/// As [`OperateError`] says.
pub async fn thaw(flags: &ClusterFlags) -> Result<String, OperateError> {
    let (client, _) = client(flags).await?;
    Ok(match ask(&client, flags, None, false).await? {
        Answer::Acknowledged(holder) => format!("thawed, acknowledged by {holder}\n"),
        Answer::Waited => {
            "thawed, not acknowledged: the leader is older than this command\n".to_owned()
        }
    })
}

async fn client(flags: &ClusterFlags) -> Result<(Client, Clock), OperateError> {
    let clock = Clock::default();
    let (config, context) = (flags.kubeconfig.as_deref(), flags.context.as_deref());
    let (client, _) = connect::as_kubectl(config, context, clock.clone()).await?;
    Ok((client, clock))
}

/// The user that the API server takes this command for, where it says so.
async fn who(client: &Client) -> Option<String> {
    let api: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = api.create(&PostParams::default(), &SelfSubjectReview::default()).await.ok()?;
    review.status?.user_info?.username
}

/// Freezes, or thaws, and waits for the answer. It may make the Lease: whoever leads
/// without one, or just lost it, hears of that as of any other change.
async fn ask(
    client: &Client,
    flags: &ClusterFlags,
    freeze: Option<&Freeze>,
    create: bool,
) -> Result<Answer, OperateError> {
    let (leases, name) = (leases(client, flags), flags.lease.as_str());
    let place = format!("{}/{name}", flags.plimsoll_namespace);
    let request = format!("{:x}-{:x}", Timestamp::now().as_nanosecond(), std::process::id());
    let written = if create {
        let mut annotations = freeze.map(Freeze::annotations).unwrap_or_default();
        annotations.insert(REQUEST.to_owned(), request.clone());
        let metadata = ObjectMeta {
            name: Some(flags.lease.clone()),
            labels: Some([(LABEL.0.to_owned(), LABEL.1.to_owned())].into()),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        };
        let lease = Lease { metadata, spec: Some(LeaseSpec::default()) };
        leases.create(&PostParams::default(), &lease).await
    } else {
        let patch = Patch::Merge(Freeze::patch(freeze, &request));
        leases.patch(name, &PatchParams::default(), &patch).await
    };
    let mut lease = match written {
        Ok(lease) => lease,
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let others = others(client).await;
            return Err(OperateError::NoLease { place, others });
        }
        Err(error) => return Err(of(format!("Lease {place}"))(error)),
    };
    let spec = lease.spec.clone().unwrap_or_default();
    let duration = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let duration = duration.map_or(LEASE_DURATION, Duration::from_secs).max(LEASE_DURATION);
    let (started, renewed) = (Instant::now(), spec.renew_time);
    loop {
        let annotation = |name| lease.annotations().get(name).map(String::as_str);
        if annotation(REQUEST) != Some(&request) {
            return Err(OperateError::Overtaken { place });
        }
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        if annotation(ACKNOWLEDGED) == Some(&request) {
            return Ok(Answer::Acknowledged(holder));
        }
        if started.elapsed() > duration + 2 * REQUEST_TIMEOUT {
            if spec.renew_time != renewed && !holder.is_empty() {
                return Ok(Answer::Waited);
            }
            return Err(OperateError::Nobody {
                place,
                done: if freeze.is_some() { "frozen" } else { "thawed" },
                renewed: renewed.map_or_else(|| "never".to_owned(), |time| time.0.to_string()),
            });
        }
        tokio::time::sleep(LOOK).await;
        // One look that fails is no reason to know less: the time goes on.
        if let Ok(Ok(now)) = tokio::time::timeout(REQUEST_TIMEOUT, leases.get(name)).await {
            lease = now;
        }
    }
}

/// The Leases of Plimsoll in the cluster, for one who named another; empty where they
/// may not be listed.
async fn others(client: &Client) -> String {
    let api: Api<Lease> = Api::all(client.clone());
    let ours = ListParams::default().labels(&format!("{}={}", LABEL.0, LABEL.1));
    let Ok(found) = api.list(&ours).await else { return String::new() };
    let place = |lease: &Lease| {
        let namespace = lease.namespace().unwrap_or_default();
        format!("--plimsoll-namespace={namespace} --lease={}", lease.name_any())
    };
    let found: Vec<_> = found.iter().map(place).collect();
    if found.is_empty() { String::new() } else { format!("; there is {}", found.join(" and ")) }
}

/// What goes on being scaled by others.
async fn not_frozen(client: &Client) -> String {
    let api: Api<HorizontalPodAutoscaler> = Api::all(client.clone());
    let all = match api.list(&ListParams::default()).await {
        Ok(all) => all,
        Err(error) => {
            return format!(
                "not frozen: HorizontalPodAutoscalers, which kube-controller-manager executes \
                 (they can't be listed: {error})\n"
            );
        }
    };
    let is_ours = |hpa: &&HorizontalPodAutoscaler| {
        hpa.owner_references().iter().any(|owner| {
            owner.kind == Autoscaler::kind(&()) && owner.api_version == Autoscaler::api_version(&())
        })
    };
    let (ours, others): (Vec<_>, Vec<_>) = all.iter().partition(is_ours);
    let mut text = String::new();
    if !others.is_empty() {
        let place = |hpa: &&HorizontalPodAutoscaler| {
            format!("{}/{}", hpa.namespace().unwrap_or_default(), hpa.name_any())
        };
        let named: Vec<_> = others.iter().take(NAMED).map(place).collect();
        let more = if others.len() > NAMED { ", ..." } else { "" };
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
    use http_body_util::BodyExt;
    use kube::client::Body;
    use serde_json::{Value, json};
    use std::sync::Mutex;

    /// An API server without a Lease; one that is made is acknowledged after this time
    /// where anybody is there.
    fn api(after: Option<Duration>) -> Client {
        let lease: Arc<Mutex<Option<Value>>> = Arc::default();
        let begun = Instant::now();
        let answer = move |method: &http::Method, path: &str, sent: Value| {
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
            }
            (200, lease.clone())
        };
        let answer = Arc::new(answer);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let answer = answer.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let sent = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let (code, body) = answer(&parts.method, parts.uri.path(), sent);
                let response = http::Response::builder().status(code);
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, kube::Error>(response.body(body).unwrap())
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn one_who_creates_the_lease_waits_for_an_answer_as_others_do() {
        let cluster = ClusterFlags {
            kubeconfig: None,
            context: None,
            plimsoll_namespace: "plimsoll".to_owned(),
            lease: "plimsoll".to_owned(),
        };
        let flags =
            FreezeFlags { reason: "x".to_owned(), until_after: None, create: true, cluster };
        // A replica that leads without election has no Lease, and writes until it hears: at
        // the latest after a look at the Lease, a write, and the API server's time for that.
        for after in [Duration::from_secs(1), 3 * REQUEST_TIMEOUT + LOOK] {
            let said = freeze_by(&api(Some(after)), &Clock::default(), &flags).await.unwrap();
            assert!(said.contains("acknowledged by a"), "{after:?}: {said}");
        }
        let said = freeze_by(&api(None), &Clock::default(), &flags).await.unwrap();
        assert!(said.contains("nobody"), "{said}");
    }
}
