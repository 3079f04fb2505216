//! Runs the election, and issues fencing tokens while this replica leads.

use super::candidate::Candidate;
use super::fencing::FencingToken;
use super::settings::ElectionSettings;
use super::state::{LeaderAddress, LeaderState, locked};
use crate::clock::Clock;
use crate::kube_error::worded_watch;
use crate::prometheus;
use crate::supervise::Spawner;
use crate::telemetry::Metrics;
use crate::watch::{FailureLog, ResettableBackoff};
use futures::{FutureExt, StreamExt};
use kube::Client;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long a stop may wait for an attempt under way and for the release. A Lease that is not released
/// expires, but a replica that takes longer is killed.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(15);

/// Elects a leader, and says whether it is this replica. Cheap to clone.
#[derive(Clone)]
pub struct LeaderElector(pub(super) Arc<LeaderState>);

impl LeaderElector {
    /// An elector that leads once [`LeaderElector::run`] has acquired the Lease, or at once
    /// without election.
    pub fn new(
        client: Client,
        settings: ElectionSettings,
        clock: Clock,
        metrics: Arc<Metrics>,
        spawner: Spawner,
    ) -> Self {
        Self(Arc::new(LeaderState::new(client, settings, clock, metrics, spawner)))
    }

    /// The namespace and name of the Lease.
    pub fn lease(&self) -> (&str, &str) {
        (&self.0.settings.namespace, &self.0.settings.name)
    }

    /// A token for writes, if this replica leads now.
    pub fn fencing_token(&self) -> Option<FencingToken> {
        let term = match self.0.settings.elect {
            false => None,
            true => Some(self.0.term()?.number),
        };
        Some(FencingToken::new(self.0.clone(), term))
    }

    /// The reason of the freeze, if scales are frozen.
    pub fn frozen(&self) -> Option<Arc<str>> {
        locked(&self.0.observed_freeze).freeze.as_ref().map(|freeze| freeze.reason.clone())
    }

    /// Takes the freeze from a Lease, as the watch does.
    #[cfg(test)]
    pub(crate) fn observe_freeze(&self, lease: &k8s_openapi::api::coordination::v1::Lease) {
        self.0.observe_freeze(lease, false);
    }

    /// Takes the leader from a Lease, as the watch does.
    #[cfg(test)]
    pub(crate) fn observe_leader(&self, lease: &k8s_openapi::api::coordination::v1::Lease) {
        self.0.observe_leader(lease);
    }

    /// Tells the other replicas where this one is reached when it leads: an IP address and port.
    pub fn set_address(&self, address: String) {
        let _ = self.0.address.set(address);
    }

    /// Lets others lead first while this replica lacks what leaders before it decided, of whom one led until the time
    /// that is given.
    pub fn yield_while(&self, lacks: impl Fn(Option<Instant>) -> bool + Send + Sync + 'static) {
        let _ = self.0.lacks_history.set(Box::new(lacks));
    }

    /// When another replica was last seen to lead, if ever.
    pub fn led_by_others(&self) -> Option<Instant> {
        *locked(&self.0.led_by_others)
    }

    /// Who leads and where it is reached, as of the newest Lease seen.
    pub fn leaders(&self) -> watch::Receiver<Option<LeaderAddress>> {
        self.0.leader.subscribe()
    }

    /// Whether a leader is this replica.
    pub fn is(&self, leader: &LeaderAddress) -> bool {
        leader.identity == self.0.settings.identity
    }

    /// Counts the changes of the leader and of the freeze.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Acquires and renews the Lease until `stop`, and releases it then. Also follows the
    /// freeze.
    ///
    /// A leader that can't reach Prometheus hands over once. A candidate that can't reach
    /// Prometheus waits twice as long as others, so that a replica leads that can decide. One that lacks what was
    /// decided before waits a little, so that one leads that does not.
    pub async fn run(&self, prometheus: &prometheus::Client, stop: impl Future<Output = ()>) {
        let stop = stop.shared();
        let limit = async {
            stop.clone().await;
            tokio::time::sleep(RELEASE_TIMEOUT).await;
        };
        tokio::select! {
            () = self.run_and_release(prometheus, stop.clone()) => {}
            () = limit => tracing::warn!("Timed out releasing Lease"),
        }
    }

    async fn run_and_release(
        &self,
        prometheus: &prometheus::Client,
        stop: impl Future<Output = ()>,
    ) {
        let LeaderState { api, settings, .. } = &*self.0;
        let only = watcher::Config::default().fields(&format!("metadata.name={}", settings.name));
        let (backoff, progress) = ResettableBackoff::new();
        let mut leases = watcher(api.clone(), only).backoff(backoff).boxed();
        let mut failures = FailureLog::default();
        let mut candidate = Candidate::new(&self.0, prometheus);
        let mut next = Instant::now();
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                Some(event) = leases.next() => {
                    if !matches!(event, Ok(Event::Init) | Err(_)) {
                        progress.made();
                        failures.succeeded();
                    }
                    match event {
                        Ok(Event::Apply(lease) | Event::InitApply(lease)) => candidate.observe(lease),
                        Ok(Event::Delete(lease)) => candidate.observe_deletion(&lease),
                        Ok(Event::Init | Event::InitDone) => continue,
                        Err(error) => {
                            if let Some(failures) = failures.failed() {
                                let error = worded_watch(&error);
                                tracing::warn!(error, failures, "Failed to watch Lease");
                            }
                            continue;
                        }
                    }
                    next = next.min(candidate.next_attempt());
                }
                () = tokio::time::sleep_until(next) => {
                    candidate.attempt().await;
                    next = candidate.next_attempt().max(Instant::now() + candidate.backoff());
                }
            }
        }
        candidate.release().await;
    }
}
