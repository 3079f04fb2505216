//! One replica's part in the election: acquires the Lease, renews it, and releases it.

use super::backoff::LeaseBackoff;
use super::freeze::{self, Freeze};
use super::settings::{ElectionSettings, NAME_LABEL, REQUEST_TIMEOUT};
use super::state::{ADDRESS, LeaderState, locked, resource_version};
use crate::kube_error::worded;
use crate::prometheus;
use crate::watch::FailureLog;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use std::time::Duration;
use tokio::time::Instant;

/// The election fields of a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LeaseRecord {
    holder: String,
    transitions: i32,
    duration: Duration,
    renew_time: Option<MicroTime>,
    acquired: bool,
}

impl LeaseRecord {
    /// Whether its last holder has released it. One that was recreated, or whose holder was deleted
    /// by hand, was not released.
    fn is_released(&self) -> bool {
        self.holder.is_empty() && !self.acquired && self.transitions > 0
    }

    fn of(lease: &Lease) -> Self {
        let spec = lease.spec.clone().unwrap_or_default();
        let seconds = spec.lease_duration_seconds.unwrap_or(0).max(0).unsigned_abs();
        Self {
            holder: spec.holder_identity.unwrap_or_default(),
            transitions: spec.lease_transitions.unwrap_or(0),
            duration: Duration::from_secs(seconds.into()),
            renew_time: spec.renew_time,
            acquired: spec.acquire_time.is_some(),
        }
    }
}

/// Acquires and renews the Lease.
pub(super) struct Candidate<'a> {
    state: &'a LeaderState,
    prometheus: &'a prometheus::Client,
    /// The last Lease observed, its record, and when the record last changed.
    observed: Option<(Lease, LeaseRecord, Instant)>,
    /// Whether the watch has sent a Lease with a lower `resourceVersion` since.
    version_went_back: bool,
    /// The `leaseTransitions` of this replica's last acquisition, or attempt at one; none once another
    /// holds the Lease.
    acquisition: Option<i32>,
    /// When the Lease may be recreated after it was deleted.
    recreate_at: Instant,
    backoff: LeaseBackoff,
    failures: FailureLog,
    /// Whether the Lease was released because this replica can't reach Prometheus.
    handed_over: bool,
    /// How long a leader may fail to reach Prometheus before it releases the Lease.
    pub(super) prometheus_down_timeout: Duration,
}

/// The lease duration that is written on release: it must be positive. A longer one adds the time for
/// which the API server may yet apply an indeterminate write of previous leaders.
const RELEASED_LEASE_DURATION: Duration = Duration::from_secs(1);
/// The least time between two attempts.
const MIN_RETRY: Duration = Duration::from_millis(100);
/// The first and the longest backoff after 403. A starting API server allows nothing before
/// it has read the roles.
const FORBIDDEN_BACKOFF: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];
/// [`Candidate::prometheus_down_timeout`].
const PROMETHEUS_DOWN_TIMEOUT: Duration = Duration::from_secs(10);

impl<'a> Candidate<'a> {
    pub fn new(state: &'a LeaderState, prometheus: &'a prometheus::Client) -> Self {
        Self {
            state,
            prometheus,
            observed: None,
            version_went_back: false,
            acquisition: None,
            recreate_at: Instant::now(),
            backoff: LeaseBackoff::default(),
            failures: FailureLog::default(),
            handed_over: false,
            prometheus_down_timeout: PROMETHEUS_DOWN_TIMEOUT,
        }
    }

    fn settings(&self) -> &ElectionSettings {
        &self.state.settings
    }

    /// The Lease was deleted. Its holder may recreate it at once, others only when the holder's term must
    /// be over, in case it is gone.
    pub fn lease_deleted(&mut self) {
        if self.settings().elect && self.observed.is_some() {
            let term =
                if self.holds_lease() { Duration::ZERO } else { self.settings().lease_duration };
            self.recreate_at = Instant::now() + term;
        }
        self.state.end_term(None);
        (self.observed, self.version_went_back, self.acquisition) = (None, false, None);
    }

    /// Takes a deletion that the watch sent, unless another Lease was seen since.
    pub fn observe_deletion(&mut self, lease: &Lease) {
        let is_other = |(now, ..): &(Lease, _, _)| now.metadata.uid != lease.metadata.uid;
        if !self.observed.as_ref().is_some_and(is_other) {
            self.lease_deleted();
        }
    }

    /// Takes a Lease that the watch sent. A lower `resourceVersion` means that the watch is
    /// behind a read or write of this replica, or that etcd was restored and versions restarted.
    /// The next attempt reads the Lease to tell which.
    pub fn observe(&mut self, lease: Lease) {
        self.version_went_back = self.is_older(&lease);
        if !self.version_went_back {
            self.update(lease);
        }
    }

    /// Whether a Lease has a lower version than the last one observed. If that one was deleted,
    /// the freeze still has its version.
    fn is_older(&self, lease: &Lease) -> bool {
        let of_freeze = || locked(&self.state.observed_freeze).version;
        let known =
            self.observed.as_ref().map_or_else(of_freeze, |(known, ..)| resource_version(known));
        known > resource_version(lease)
    }

    /// Takes a Lease that was read or written by this replica: all Leases seen before are older.
    fn update(&mut self, lease: Lease) {
        let versions_restarted = self.is_older(&lease);
        if versions_restarted {
            tracing::warn!("Lease resourceVersion decreased, assuming a restored etcd");
        }
        self.version_went_back = false;
        self.state.observe_freeze(&lease, versions_restarted);
        self.state.observe_leader(&lease);
        let record = LeaseRecord::of(&lease);
        let is_holder = record.holder == self.settings().identity;
        if !is_holder {
            self.state.end_term(Some(&lease));
            self.acquisition = None;
        }
        let before = self.observed.as_ref().map(|(_, record, _)| record);
        let was_holder = before.is_some_and(|before| before.holder == self.settings().identity);
        // One that was released was held by whoever held it before; a new one by nobody.
        let is_of_others =
            !is_holder && (!record.holder.is_empty() || (record.transitions > 0 && !was_holder));
        if is_of_others && before != Some(&record) {
            *locked(&self.state.led_by_others) = Some(Instant::now());
        }
        let was_made_holder = is_holder && self.acquisition != Some(record.transitions);
        if was_made_holder {
            self.acquisition = Some(record.transitions);
        }
        if was_made_holder || versions_restarted {
            // An administrator, or a backup, says who leads: the term of another may last.
            self.state.expect_indeterminate_writes(self.longest_indeterminate_write());
        }
        // A changed annotation neither renews the Lease nor delays a renewal.
        let since = match &self.observed {
            Some((_, before, at)) if *before == record => *at,
            _ => Instant::now(),
        };
        self.observed = Some((lease, record, since));
    }

    /// Whether this replica holds the Lease, according to the last one observed.
    pub fn holds_lease(&self) -> bool {
        let identity = &self.settings().identity;
        self.observed.as_ref().is_some_and(|(_, record, _)| record.holder == *identity)
    }

    /// For how long the API server may apply an indeterminate write of another leader, if this replica
    /// acquires the Lease now.
    fn indeterminate_writes_of_others(&self) -> Duration {
        match &self.observed {
            // Its term is over, unless the Lease's duration was shortened by hand.
            Some((_, record, _)) if !record.holder.is_empty() => self
                .longest_indeterminate_write()
                .saturating_sub(record.duration)
                .max(REQUEST_TIMEOUT),
            Some((_, record, since)) if record.is_released() => {
                let left = record
                    .duration
                    .saturating_sub(RELEASED_LEASE_DURATION)
                    .min(3 * REQUEST_TIMEOUT);
                left.saturating_sub(since.elapsed())
            }
            // It was deleted, or its holder by hand.
            _ => self.longest_indeterminate_write(),
        }
    }

    /// For how long the API server may apply an indeterminate write of a leader whose term may last. A
    /// write that it has begun is sent within two timeouts, one to read the Lease and one to write.
    fn longest_indeterminate_write(&self) -> Duration {
        self.settings().lease_duration.min(2 * REQUEST_TIMEOUT) + REQUEST_TIMEOUT
    }

    /// Whether this replica has to acknowledge a freeze or thaw.
    fn must_acknowledge(&self) -> bool {
        let leads = self.holds_lease() || !self.settings().elect;
        let pending = |(lease, ..): &(Lease, _, _)| freeze::pending_request(lease).is_some();
        leads && self.observed.as_ref().is_some_and(pending)
    }

    /// Whether no write to a scale that began before now is in flight, of this process or of the
    /// previous leader.
    fn is_drained(&self) -> bool {
        self.state.scale_writes.is_empty() && self.state.indeterminate_writes_left().is_zero()
    }

    /// When to write or read the Lease.
    pub fn next_attempt(&self) -> Instant {
        if !self.version_went_back && !self.must_acknowledge() {
            return self.due();
        }
        let ElectionSettings { elect, retry_period, .. } = *self.settings();
        let has_to_wait = self.state.freeze().is_some() && !self.is_drained();
        let wait = if elect || self.version_went_back || !has_to_wait {
            MIN_RETRY
        } else {
            // Without election each attempt reads the Lease.
            self.state.indeterminate_writes_left().min(retry_period).max(retry_period / 4)
        };
        Instant::now() + wait
    }

    /// When to renew the Lease, or to try to acquire it.
    fn due(&self) -> Instant {
        let retry = self.settings().retry_period;
        if !self.settings().elect {
            // A freeze whose Lease was deleted needs another one.
            let needs_lease = self.observed.is_none() && self.state.freeze().is_some();
            return Instant::now() + if needs_lease { MIN_RETRY } else { retry };
        }
        match &self.observed {
            Some((_, record, at)) if record.holder == self.settings().identity => *at + retry,
            Some((_, record, at)) => {
                let expiry = if record.holder.is_empty() { *at } else { *at + record.duration };
                expiry + self.prometheus_outage_delay().max(self.history_delay(record))
            }
            None => self.recreate_at.max(Instant::now() + MIN_RETRY),
        }
    }

    /// The least time from one attempt to the next.
    pub fn backoff(&self) -> Duration {
        self.backoff.current.unwrap_or(MIN_RETRY)
    }

    /// How much longer this replica waits while it can't reach Prometheus.
    fn prometheus_outage_delay(&self) -> Duration {
        match self.prometheus.failing_for() {
            Some(_) => self.settings().lease_duration,
            None => Duration::ZERO,
        }
    }

    /// How much longer this replica waits while it lacks what was decided before: the others copy that from the leader,
    /// and would lose it. One that has it tries within a retry period.
    fn history_delay(&self, record: &LeaseRecord) -> Duration {
        let was_led = record.transitions > 0;
        match was_led && self.state.lacks_history() {
            true => 2 * self.settings().retry_period,
            false => Duration::ZERO,
        }
    }

    /// Renews the Lease, or tries to acquire it, if it is time to.
    pub async fn attempt(&mut self) {
        let failing = self.prometheus.failing_for();
        if failing.is_none() {
            self.handed_over = false;
        } else if self.holds_lease()
            && !self.handed_over
            && failing > Some(self.prometheus_down_timeout)
        {
            if self.state.term().is_some() {
                tracing::warn!(?failing, "Prometheus unreachable, releasing leadership");
            }
            self.try_release().await;
            self.handed_over = !self.holds_lease();
            return;
        }
        let limit = self.settings().renew_deadline / 2;
        let written = tokio::time::timeout(limit, self.write()).await;
        self.note_attempt(written.ok());
        if self.state.term().is_none() {
            self.state.end_term(self.observed.as_ref().map(|(lease, ..)| lease));
        }
    }

    /// Notes how an attempt has ended; none without a response.
    fn note_attempt(&mut self, written: Option<Result<(), kube::Error>>) {
        match written {
            Some(Ok(())) => (self.backoff, self.failures) = Default::default(),
            other => self.failed(other.and_then(Result::err)),
        }
    }

    /// Backs off after an attempt that failed with this error, or without a response.
    fn failed(&mut self, error: Option<kube::Error>) {
        let forbidden = matches!(&error, Some(kube::Error::Api(status)) if status.code == 403);
        // A leader retries as often as it renews, so that it can succeed before its term ends.
        let other = [MIN_RETRY, self.settings().retry_period.max(MIN_RETRY)];
        self.backoff.grow(forbidden, if forbidden { FORBIDDEN_BACKOFF } else { other });
        let Some(failures) = self.failures.failed() else { return };
        match error {
            Some(error) => {
                tracing::warn!(error = worded(&error), failures, "Failed to read or write Lease");
            }
            None => tracing::warn!(failures, "Timed out reading or writing Lease"),
        }
    }

    /// Writes the Lease if it is time to.
    async fn write(&mut self) -> Result<(), kube::Error> {
        let LeaderState { api, settings, .. } = self.state;
        // Without election no renewal tells what the watch has missed.
        let known = self.observed.as_ref().filter(|_| settings.elect && !self.version_went_back);
        let mut lease = match known {
            Some((lease, ..)) => lease.clone(),
            None => match api.get_opt(&settings.name).await? {
                Some(lease) => {
                    self.update(lease.clone());
                    lease
                }
                None => {
                    self.lease_deleted();
                    // A freeze needs a Lease without election too: to be thawed, and to end by itself.
                    let needs_lease = settings.elect || self.state.freeze().is_some();
                    let may_create = needs_lease && self.recreate_at <= Instant::now();
                    return if may_create { self.create().await } else { Ok(()) };
                }
            },
        };
        // A freeze is in effect when no write to a scale that began before it is in flight. A thaw is in
        // effect as soon as it was observed.
        let freeze = Freeze::of(&lease);
        let in_effect = freeze.is_none() || self.is_drained();
        let is_observed = self.state.freeze() == freeze;
        let acknowledges = self.must_acknowledge() && in_effect && is_observed;
        if acknowledges {
            freeze::acknowledge(&mut lease);
        }
        let server = self.state.clock.server();
        let now = server.and_then(|now| Timestamp::from_millisecond(now).ok());
        let may_thaw = self.holds_lease() || !settings.elect;
        let thaws = may_thaw && now.is_some_and(|now| freeze::expire(&mut lease, now));
        let must_write = acknowledges || thaws;
        if !settings.elect {
            return if must_write { self.annotate(lease).await } else { Ok(()) };
        }
        if must_write || self.due() <= Instant::now() {
            return self.acquire_or_renew(lease).await;
        }
        Ok(())
    }

    /// Acquires the Lease, or renews it.
    async fn acquire_or_renew(&mut self, mut lease: Lease) -> Result<(), kube::Error> {
        let (begun, wall) = (Instant::now(), self.state.clock.wall());
        let now = Some(MicroTime(self.state.clock.wall_timestamp()));
        let seconds = i32::try_from(self.settings().lease_duration.as_secs()).unwrap_or(i32::MAX);
        let labels = lease.metadata.labels.get_or_insert_default();
        labels.entry(NAME_LABEL.0.to_owned()).or_insert_with(|| NAME_LABEL.1.to_owned());
        if let Some(address) = self.state.address.get() {
            let annotations = lease.metadata.annotations.get_or_insert_default();
            annotations.insert(ADDRESS.to_owned(), address.clone());
        }
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(self.settings().identity.clone());
        spec.lease_duration_seconds = Some(seconds);
        spec.renew_time = now.clone();
        if !self.holds_lease() {
            spec.acquire_time = now;
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
            // Noted before the request, because its response may be lost.
            self.acquisition = spec.lease_transitions;
            self.state.expect_indeterminate_writes(self.indeterminate_writes_of_others());
        }
        let Some(lease) = self.update_lease(&lease).await? else { return Ok(()) };
        let ElectionSettings { renew_deadline, lease_duration, .. } = *self.settings();
        let deadline = (begun + renew_deadline, wall + renew_deadline);
        self.update(lease.clone());
        let transitions = LeaseRecord::of(&lease).transitions;
        self.state.start_or_renew_term(transitions, deadline, begun + lease_duration, &lease);
        Ok(())
    }

    /// Writes only annotations, if there is no election.
    async fn annotate(&mut self, lease: Lease) -> Result<(), kube::Error> {
        if let Some(lease) = self.update_lease(&lease).await? {
            self.update(lease);
        }
        Ok(())
    }

    /// Creates the Lease.
    async fn create(&mut self) -> Result<(), kube::Error> {
        let freeze = self.state.freeze();
        let metadata = ObjectMeta {
            name: Some(self.settings().name.clone()),
            labels: Some([(NAME_LABEL.0.to_owned(), NAME_LABEL.1.to_owned())].into()),
            // Deleting the Lease does not end a freeze.
            annotations: freeze.as_ref().map(Freeze::annotations),
            ..ObjectMeta::default()
        };
        let free = Lease { metadata, spec: Some(LeaseSpec::default()) };
        match self.state.api.create(&PostParams::default(), &free).await {
            Ok(lease) => self.update(lease),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Updates the Lease as it was observed. On a conflict with another writer, returns none
    /// and reads the Lease.
    async fn update_lease(&mut self, lease: &Lease) -> Result<Option<Lease>, kube::Error> {
        let LeaderState { api, settings, .. } = self.state;
        match api.replace(&settings.name, &PostParams::default(), lease).await {
            Ok(lease) => Ok(Some(lease)),
            Err(kube::Error::Api(status)) if status.code == 404 => {
                self.lease_deleted();
                Ok(None)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                if let Some(lease) = api.get_opt(&settings.name).await? {
                    self.update(lease);
                } else {
                    self.lease_deleted();
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Releases the Lease, and tries again until this replica holds it no more.
    pub async fn release(&mut self) {
        loop {
            self.try_release().await;
            if !self.holds_lease() {
                return;
            }
            tokio::time::sleep(self.backoff()).await;
        }
    }

    /// Ends the term, and tries to release the Lease, so that the next leader need not wait for it to
    /// expire: once no write of this replica is in flight.
    async fn try_release(&mut self) {
        let lease = self.observed.as_ref().map(|(lease, ..)| lease.clone());
        self.state.end_term(lease.as_ref());
        if !self.holds_lease() {
            return;
        }
        // Each write is cancelled before the Lease expires.
        let LeaderState { writes, scale_writes, .. } = self.state;
        let drained = async { tokio::join!(writes.drained(), scale_writes.drained()) };
        if tokio::time::timeout(self.settings().lease_duration, drained).await.is_err() {
            tracing::warn!("Failed to release Lease: writes in flight");
            return;
        }
        let limit = self.settings().renew_deadline / 2;
        let released = tokio::time::timeout(limit, self.write_release()).await;
        self.note_attempt(released.ok());
    }

    /// Releases the Lease, and again after a conflict: `plimsoll freeze`, for one, writes it, too.
    async fn write_release(&mut self) -> Result<(), kube::Error> {
        while let Some((mut lease, ..)) = self.observed.clone().filter(|_| self.holds_lease()) {
            let spec = lease.spec.get_or_insert_default();
            (spec.holder_identity, spec.acquire_time) = (None, None);
            // Otherwise the next leader could acknowledge a freeze before the API server has applied an
            // indeterminate write.
            let duration = RELEASED_LEASE_DURATION + self.state.indeterminate_writes_left();
            spec.lease_duration_seconds = i32::try_from(duration.as_millis().div_ceil(1000)).ok();
            spec.renew_time = Some(MicroTime(self.state.clock.wall_timestamp()));
            if let Some(lease) = self.update_lease(&lease).await? {
                self.update(lease);
            }
        }
        Ok(())
    }
}
