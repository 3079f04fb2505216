//! Copies the leader's ledger, by a watch over the product's own port: so that whichever replica is
//! asked shows the same, and what was shown before a failover is shown after it.

use crate::config::ServeFlags;
use crate::connect;
use crate::kube_error::worded;
use crate::leader::{LeaderAddress, LeaderElector};
use crate::ledger::api::{Decision, GROUP, LEADERSHIP_ANNOTATION, SINCE_ANNOTATION, VERSION};
use crate::ledger::{CopyError, CopyId, Ledger, Versions, parse_time, position};
use crate::watch::{FailureLog, ResettableBackoff};
use futures::StreamExt;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::PostParams;
use kube::core::WatchEvent;
use kube::{Api, Client};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// What a copy needs.
pub struct LedgerCopy {
    /// The copy.
    pub ledger: Ledger,
    /// Says who leads.
    pub leader: LeaderElector,
    /// A client of kube-apiserver.
    pub api: Client,
    /// How to authenticate, and by which name to verify the leader.
    pub flags: ServeFlags,
    /// By which name kube-apiserver knows this replica, and so the others; it is found out.
    pub own_name: Arc<OnceLock<String>>,
}

/// How long the leader may take to accept a watch.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait where only an administrator, or another version, can help.
const HOPELESS_WAIT: Duration = Duration::from_secs(300);
/// How long a new replica is not ready for want of a leader that it could copy.
const LEADER_WAIT: Duration = Duration::from_secs(5);
/// How long it is not ready until it has copied the decisions of a leader whose certificate it can
/// verify. One that it can't, kube-apiserver can't either: the API is away until this replica is ready.
const COPY_WAIT: Duration = Duration::from_secs(120);

/// What was copied so far.
#[derive(Clone)]
struct Copied {
    leader: LeaderAddress,
    id: CopyId,
    /// Whether all that there was has come: after that, a watch continues where one has ended.
    is_complete: bool,
}

/// Why a watch of the leader has ended, other than that its time was over.
#[derive(Debug)]
enum Failed {
    /// What was copied is not known to the leader: it is to be copied again.
    Again,
    /// It may succeed in a moment.
    Retry(String),
    /// The leader's certificate is not signed by a CA of the APIService, as while another one is taken into use.
    Untrusted(String),
    /// The leader keeps no decisions: there is nothing to copy.
    NotKept(String),
    /// It will fail again.
    Hopeless(String),
}

impl Failed {
    /// Why a watch was refused.
    fn of(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 410 => Self::Again,
            kube::Error::Api(status) if status.code == 405 => Self::NotKept(worded(error)),
            error if is_untrusted(error) => Self::Untrusted(worded(error)),
            error => retry(worded(error)),
        }
    }
}

impl From<CopyError> for Failed {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::Superseded => Self::Again,
            CopyError::Unreadable(_) => Self::Hopeless(error.to_string()),
        }
    }
}

fn retry(error: impl std::fmt::Display) -> Failed {
    Failed::Retry(error.to_string())
}

/// Whether an error is that a certificate can't be verified.
fn is_untrusted(error: &(dyn std::error::Error + 'static)) -> bool {
    if let Some(error) = error.downcast_ref() {
        return matches!(error, rustls::Error::InvalidCertificate(_));
    }
    // The source of an I/O error is that of the error which it wraps.
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    match wrapped {
        Some(wrapped) => is_untrusted(wrapped),
        None => error.source().is_some_and(is_untrusted),
    }
}

impl LedgerCopy {
    /// Copies the ledger of whoever leads, unless that is this replica, for ever. Until it has done so, this replica is
    /// not ready, and lets others lead first: from now on.
    pub fn run(self) -> impl Future<Output = ()> + Send {
        let begun = Instant::now();
        self.ledger.await_copy(begun + LEADER_WAIT);
        let (ledger, not_kept) = (self.ledger.clone(), Arc::new(AtomicBool::new(false)));
        let has_nothing = not_kept.clone();
        self.leader.yield_while(move |led_until| {
            !has_nothing.load(Ordering::Relaxed) && ledger.lacks(led_until)
        });
        async move {
            tokio::join!(self.learn_own_name(), self.copy_leaders(begun, &not_kept));
        }
    }

    /// Asks kube-apiserver who this replica is, so that it knows the other replicas by it.
    async fn learn_own_name(&self) {
        let (mut backoff, _) = ResettableBackoff::new();
        let reviews: Api<SelfSubjectReview> = Api::all(self.api.clone());
        while self.own_name.get().is_none() {
            let (params, review) = (PostParams::default(), SelfSubjectReview::default());
            let reviewed = timeout(CONNECT_TIMEOUT, reviews.create(&params, &review)).await;
            let name = match reviewed {
                Ok(Ok(review)) => review.status.and_then(|status| status.user_info?.username),
                Ok(Err(kube::Error::Api(status))) if matches!(status.code, 403 | 404) => return,
                Ok(Err(_)) | Err(_) => None,
            };
            match name {
                Some(name) => drop(self.own_name.set(name)),
                None => sleep(backoff.next().unwrap_or(CONNECT_TIMEOUT)).await,
            }
        }
    }

    /// `not_kept` tells whether the leader keeps no decisions.
    async fn copy_leaders(&self, begun: Instant, not_kept: &AtomicBool) {
        let mut leaders = self.leader.leaders();
        let mut failures = FailureLog::default();
        let (mut backoff, progress) = ResettableBackoff::new();
        let mut copied: Option<Copied> = None;
        let mut awaited = begun + COPY_WAIT;
        loop {
            let leader = leaders.borrow_and_update().clone();
            let Some(leader) = leader.filter(|leader| !self.leader.is(leader)) else {
                copied = None;
                if leaders.changed().await.is_err() {
                    return std::future::pending().await;
                }
                continue;
            };
            not_kept.store(false, Ordering::Relaxed);
            if self.ledger.awaits_copy() {
                self.ledger.await_copy(awaited);
            }
            copied = copied.filter(|copied| copied.leader == leader && copied.is_complete);
            let ended = tokio::select! {
                ended = self.copy(&leader, &mut copied) => ended,
                changed = leaders.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return std::future::pending().await,
                },
            };
            not_kept.store(matches!(ended, Err(Failed::NotKept(_))), Ordering::Relaxed);
            let mut wait = backoff.next().unwrap_or(CONNECT_TIMEOUT);
            let error = match ended {
                Ok(()) => None,
                Err(Failed::Again) => {
                    copied = None;
                    None
                }
                Err(Failed::Retry(error)) => Some(error),
                Err(Failed::Untrusted(error)) => {
                    awaited = begun + LEADER_WAIT;
                    self.ledger.await_copy(awaited);
                    Some(error)
                }
                Err(Failed::NotKept(error) | Failed::Hopeless(error)) => {
                    self.ledger.await_copy(Instant::now());
                    wait = HOPELESS_WAIT;
                    Some(error)
                }
            };
            match error {
                None => {
                    progress.made();
                    failures.succeeded();
                }
                Some(error) => {
                    if let Some(failures) = failures.failed() {
                        let (leader, address) = (&leader.identity, &leader.address);
                        tracing::warn!(
                            error,
                            failures,
                            leader,
                            address,
                            "Failed to copy the leader's decisions"
                        );
                    }
                }
            }
            tokio::select! {
                () = sleep(wait) => {}
                changed = leaders.changed() => if changed.is_err() {
                    return std::future::pending().await;
                },
            }
        }
    }

    /// Watches a leader until that ends, from where the last watch has ended if that was complete.
    async fn copy(
        &self,
        leader: &LeaderAddress,
        copied: &mut Option<Copied>,
    ) -> Result<(), Failed> {
        let client = self.client(leader).await?;
        let path = format!("/apis/{GROUP}/{VERSION}/decisions?watch=1&allowWatchBookmarks=true");
        let path = match copied {
            Some(_) => format!("{path}&resourceVersion={}", self.ledger.version()),
            None => format!("{path}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"),
        };
        let request = http::Request::get(path).body(Vec::new()).map_err(retry)?;
        let events = client.request_events::<Value>(request);
        let events = match timeout(CONNECT_TIMEOUT, events).await {
            Ok(Ok(events)) => events,
            Ok(Err(error)) => return Err(Failed::of(&error)),
            Err(_) => return Err(retry(format!("no response within {CONNECT_TIMEOUT:?}"))),
        };
        if copied.is_none() {
            // Of one that leads since, nothing is copied; the watch of leaders will say so.
            let id = self.ledger.begin_copy().ok_or(Failed::Again)?;
            *copied = Some(Copied { leader: leader.clone(), id, is_complete: false });
        }
        let Some(Copied { id, is_complete, .. }) = copied else { return Err(Failed::Again) };
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            match event.map_err(|error| retry(worded(&error)))? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let name = object["metadata"]["name"].to_string();
                    let decision = serde_json::from_value(object);
                    let decision: Decision = decision.map_err(|_| CopyError::Unreadable(name))?;
                    self.ledger.copy(*id, decision)?;
                }
                WatchEvent::Deleted(object) => {
                    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
                    if let Some(position) = position(text("namespace"), text("name")) {
                        let version = text("resourceVersion").parse().unwrap_or(0);
                        self.ledger.copy_dropped(*id, &position, version)?;
                    }
                }
                WatchEvent::Bookmark(bookmark) => {
                    let of = |name: &str| bookmark.metadata.annotations.get(name);
                    let began = of(LEADERSHIP_ANNOTATION).and_then(|began| began.parse().ok());
                    let since = of(SINCE_ANNOTATION).and_then(|since| parse_time(since));
                    let last = bookmark.metadata.resource_version.parse().ok();
                    let (Some(began), Some(since), Some(last)) = (began, since, last) else {
                        return Err(retry("the leader's bookmarks do not say which leadership"));
                    };
                    self.ledger.copied(*id, Versions { last, began, since })?;
                    *is_complete = true;
                }
                WatchEvent::Error(status) if status.code == 410 => return Err(Failed::Again),
                WatchEvent::Error(status) => return Err(retry(status.message)),
            }
        }
        Ok(())
    }

    /// A client of the leader, which authenticates as at kube-apiserver and trusts the CAs of the APIService, or those
    /// of the system if it has none: those that kube-apiserver itself trusts.
    async fn client(&self, leader: &LeaderAddress) -> Result<Client, Failed> {
        let services: Api<APIService> = Api::all(self.api.clone());
        let name = format!("{VERSION}.{GROUP}");
        let service = match timeout(CONNECT_TIMEOUT, services.get(&name)).await {
            Ok(Ok(service)) => service,
            Ok(Err(error)) => {
                let text = format!("the APIService {name} can't be read: {}", worded(&error));
                return Err(match error {
                    kube::Error::Api(status) if matches!(status.code, 403 | 404) => {
                        Failed::Hopeless(text)
                    }
                    _ => Failed::Retry(text),
                });
            }
            Err(_) => return Err(retry(format!("no response within {CONNECT_TIMEOUT:?}"))),
        };
        let spec = service.spec.unwrap_or_default();
        if spec.insecure_skip_tls_verify == Some(true) {
            return Err(Failed::Hopeless(format!(
                "the APIService {name} has insecureSkipTLSVerify, so that the leader's certificate can't be verified: give it a caBundle"
            )));
        }
        let bundle = spec.ca_bundle.map(|bundle| bundle.0);
        let flags = &self.flags;
        let host = format!("{}.{}.svc", flags.service_name, flags.service_namespace());
        connect::peer(flags, &leader.address, host, bundle.as_deref()).await.map_err(retry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::config::{Cli, Command};
    use crate::fake;
    use crate::leader::ElectionSettings;
    use crate::supervise::Spawner;
    use clap::Parser;
    use serde_json::json;

    /// A copy of the leader `b` by a replica `a`, at an API server that responds with an error.
    fn copy(code: u16) -> (Ledger, LedgerCopy) {
        copy_of("127.0.0.1:1", move || fake::failure(code, "x", "x"), &["plimsoll", "serve"])
    }

    /// A copy of the leader at an address, at an API server with a response, by a replica with flags.
    fn copy_of(
        address: &str,
        respond: impl Fn() -> (u16, Value) + Send + 'static,
        flags: &[&str],
    ) -> (Ledger, LedgerCopy) {
        let (api, _) = fake::api(move |_| respond());
        let settings = ElectionSettings {
            elect: true,
            namespace: "plimsoll".to_owned(),
            name: "plimsoll".to_owned(),
            identity: "a".to_owned(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        };
        let (clock, spawner) = (Clock::default(), Spawner::unowned());
        let leader = LeaderElector::new(api.clone(), settings, clock, Arc::default(), spawner);
        let lease = json!({
            "metadata": {"annotations": {"plimsoll.dev/leader-address": address}},
            "spec": {"holderIdentity": "b"},
        });
        leader.observe_leader(&serde_json::from_value(lease).expect("a Lease"));
        let Ok(Cli { command: Command::Serve(flags) }) = Cli::try_parse_from(flags) else {
            panic!("flags of serve");
        };
        let ledger = Ledger::new(1 << 20, 0);
        let (own_name, flags) = (Arc::default(), *flags);
        (ledger.clone(), LedgerCopy { ledger, leader, api, flags, own_name })
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_replica_waits_for_a_leader_that_it_can_not_copy_yet() {
        let (ledger, copy) = copy(503);
        let running = tokio::spawn(copy.run());
        sleep(COPY_WAIT - Duration::from_secs(1)).await;
        assert!(ledger.awaits_copy());
        sleep(Duration::from_secs(2)).await;
        assert!(!ledger.awaits_copy());
        running.abort();
    }

    /// As while a certificate of another CA is taken into use: kube-apiserver refuses the leader, too, and all
    /// APIs are away until a new replica is ready.
    #[tokio::test]
    async fn it_does_not_wait_for_a_leader_whose_certificate_it_can_not_verify() {
        let address = fake::tls_server("plimsoll.plimsoll.svc").await;
        let other = rcgen::generate_simple_self_signed(["plimsoll.plimsoll.svc".to_owned()]);
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        let clusters = json!([{"name": "x", "cluster": {"server": "https://localhost:1"}}]);
        let contexts = json!([{"name": "x", "context": {"cluster": "x", "user": "x"}}]);
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": clusters, "contexts": contexts, "users": [{"name": "x", "user": {}}]});
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        let other = k8s_openapi::ByteString(other.unwrap().cert.pem().into_bytes());
        let service = move || {
            let spec = json!({"caBundle": other, "groupPriorityMinimum": 1, "versionPriority": 1});
            (200, json!({"metadata": {}, "spec": spec}))
        };
        let flags = ["plimsoll", "serve", "--kubeconfig", kubeconfig.to_str().unwrap()];
        let (ledger, copy) = copy_of(&address, service, &flags);
        let begun = Instant::now();
        let (lines, _guard) = fake::LogLines::keep();
        let running = tokio::spawn(copy.run());
        while ledger.awaits_copy() {
            assert!(begun.elapsed() < COPY_WAIT / 2, "it waits");
            sleep(Duration::from_millis(100)).await;
        }
        assert!(begun.elapsed() >= LEADER_WAIT - Duration::from_secs(1));
        assert!(lines.text().contains("invalid peer certificate: "), "{}", lines.text());
        running.abort();
    }

    #[test]
    fn a_leader_that_keeps_no_decisions_has_nothing_to_copy() {
        let of = |code: u16| {
            let status = serde_json::from_value(fake::failure(code, "x", "x").1).expect("a status");
            Failed::of(&kube::Error::Api(status))
        };
        assert!(matches!(of(405), Failed::NotKept(_)));
        assert!(matches!(of(410), Failed::Again));
        assert!(matches!(of(503), Failed::Retry(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn it_does_not_wait_where_only_an_administrator_can_help() {
        let (ledger, copy) = copy(403);
        let running = tokio::spawn(copy.run());
        sleep(Duration::from_secs(1)).await;
        assert!(!ledger.awaits_copy());
        running.abort();
    }
}
