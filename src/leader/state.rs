//! The state of leadership that the election, fencing tokens and the freeze share.

use super::freeze::Freeze;
use super::in_flight::InFlight;
use super::recorder::{EventRecorder, LeaseEvent};
use super::settings::{ElectionSettings, REQUEST_TIMEOUT};
use crate::clock::Clock;
use crate::supervise::Spawner;
use crate::telemetry::Metrics;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tokio::time::Instant;

/// Whether this replica leads, whether scales are frozen, and which writes are in flight.
pub struct LeaderState {
    /// The terms of this replica.
    pub terms: Mutex<Terms>,
    /// Counts changes of the leader and of the freeze.
    pub changes: watch::Sender<u64>,
    /// Where this replica is reached by the others, if that is known.
    pub address: OnceLock<String>,
    /// The leader as of the newest Lease seen, and where it is reached.
    pub leader: watch::Sender<Option<LeaderAddress>>,
    /// When another replica was last seen to hold, renew or release the Lease.
    pub led_by_others: Mutex<Option<Instant>>,
    /// Whether this replica lacks what those decided who led until then.
    pub lacks_history: OnceLock<LacksHistory>,
    /// The freeze, as of the newest Lease seen.
    pub observed_freeze: Mutex<ObservedFreeze>,
    /// Writes of any kind in flight.
    pub writes: InFlight,
    /// Writes to scales in flight.
    pub scale_writes: InFlight,
    /// The time until which the API server may apply an indeterminate write to a scale: one of this
    /// process without a conclusive response, or the last one of a previous leader.
    pub indeterminate_writes_until: Mutex<Instant>,
    /// The Leases of the settings' namespace.
    pub api: Api<Lease>,
    /// The settings of the election.
    pub settings: ElectionSettings,
    /// The clocks of this process and of kube-apiserver.
    pub clock: Clock,
    recorder: EventRecorder,
    metrics: Arc<Metrics>,
}

/// A function of the time until which others led.
pub type LacksHistory = Box<dyn Fn(Option<Instant>) -> bool + Send + Sync>;

/// The annotation of the Lease that says where its holder is reached.
pub const ADDRESS: &str = "plimsoll.dev/leader-address";

/// A replica that leads, and where it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderAddress {
    /// Its holder identity.
    pub identity: String,
    /// Its IP address and port.
    pub address: String,
}

/// The terms of this replica.
#[derive(Default)]
pub struct Terms {
    /// The last term; it counts only while it is valid.
    pub current: Option<Term>,
    /// How many terms this process has had. The Lease's own count restarts with a new Lease.
    pub count: u64,
}

/// A time for which this replica leads.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    /// The number of the term in this process, from 1.
    pub number: u64,
    /// The Lease's `leaseTransitions` when the term began.
    pub transitions: i32,
    /// The renew deadline, by the monotonic and by the wall clock: the former may stop while the
    /// machine sleeps, and the latter may be set.
    pub renew_deadline: (Instant, SystemTime),
    /// The time before which no other replica can acquire the Lease.
    pub lease_end: Instant,
}

impl Term {
    fn is_valid(&self, clock: &Clock) -> bool {
        Instant::now() < self.renew_deadline.0 && clock.wall() < self.renew_deadline.1
    }
}

/// The freeze, as of the newest Lease seen.
#[derive(Default)]
pub struct ObservedFreeze {
    /// The `resourceVersion` of that Lease.
    pub version: u64,
    /// The freeze, if any.
    pub freeze: Option<Freeze>,
}

/// Locks a mutex. A panic of another holder leaves no half state behind.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The `resourceVersion` of a Lease as a number; 0 if it has none.
pub fn resource_version(lease: &Lease) -> u64 {
    let version = lease.metadata.resource_version.as_ref();
    version.and_then(|version| version.parse().ok()).unwrap_or(0)
}

impl LeaderState {
    /// The state of a replica that does not lead yet.
    pub fn new(
        client: Client,
        settings: ElectionSettings,
        clock: Clock,
        metrics: Arc<Metrics>,
        spawner: Spawner,
    ) -> Self {
        Self {
            terms: Mutex::default(),
            changes: watch::Sender::new(0),
            address: OnceLock::new(),
            leader: watch::Sender::new(None),
            led_by_others: Mutex::default(),
            lacks_history: OnceLock::new(),
            observed_freeze: Mutex::default(),
            writes: InFlight::default(),
            scale_writes: InFlight::default(),
            // A previous process may have led without election, which leaves no trace.
            indeterminate_writes_until: Mutex::new(Instant::now() + REQUEST_TIMEOUT),
            api: Api::namespaced(client.clone(), &settings.namespace),
            recorder: EventRecorder::new(client, &settings, clock.clone(), spawner),
            settings,
            clock,
            metrics,
        }
    }

    /// The current term, while it is valid.
    pub fn term(&self) -> Option<Term> {
        locked(&self.terms).current.filter(|term| term.is_valid(&self.clock))
    }

    /// Whether this replica leads now.
    pub fn is_leading(&self) -> bool {
        !self.settings.elect || self.term().is_some()
    }

    /// The freeze, if scales are frozen.
    pub fn freeze(&self) -> Option<Freeze> {
        locked(&self.observed_freeze).freeze.clone()
    }

    /// Notes that for `duration` from now the API server may apply an indeterminate write to a scale.
    pub fn expect_indeterminate_writes(&self, duration: Duration) {
        let mut until = locked(&self.indeterminate_writes_until);
        *until = (Instant::now() + duration).max(*until);
    }

    /// For how much longer the API server may apply an indeterminate write to a scale.
    pub fn indeterminate_writes_left(&self) -> Duration {
        locked(&self.indeterminate_writes_until).saturating_duration_since(Instant::now())
    }

    /// Begins a term, or renews it. `renew_deadline` is given by the monotonic and by the wall clock.
    pub fn start_or_renew_term(
        &self,
        transitions: i32,
        renew_deadline: (Instant, SystemTime),
        lease_end: Instant,
        lease: &Lease,
    ) {
        let mut terms = locked(&self.terms);
        // An expired term is not revived: readers may have seen that there was none.
        let last = terms.current.filter(|term| term.is_valid(&self.clock));
        let same = last.filter(|term| term.transitions == transitions);
        let number = same.map_or(terms.count + 1, |term| term.number);
        terms.count = number;
        terms.current = Some(Term { number, transitions, renew_deadline, lease_end });
        drop(terms);
        self.metrics.renewed(self.clock.wall());
        if same.is_none() {
            tracing::info!(term = transitions, "Became leader");
            self.record(lease, LeaseEvent::LeaderElection, "became leader");
            self.metrics.became_leader();
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// Ends the term, if there is one.
    pub fn end_term(&self, lease: Option<&Lease>) {
        if locked(&self.terms).current.take().is_none() {
            return;
        }
        tracing::warn!("Stopped leading");
        if let Some(lease) = lease {
            self.record(lease, LeaseEvent::LeaderElection, "stopped leading");
        }
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Whether this replica lacks what other leaders decided.
    pub fn lacks_history(&self) -> bool {
        let led_until = *locked(&self.led_by_others);
        self.lacks_history.get().is_some_and(|lacks| lacks(led_until))
    }

    /// Takes the leader from a Lease.
    pub fn observe_leader(&self, lease: &Lease) {
        let of = |lease: &Lease| {
            let address = lease.metadata.annotations.as_ref()?.get(ADDRESS)?.clone();
            let identity = lease.spec.as_ref()?.holder_identity.clone()?;
            (!identity.is_empty()).then_some(LeaderAddress { identity, address })
        };
        let now = of(lease);
        self.leader.send_if_modified(|leader| {
            let is_new = *leader != now;
            *leader = now;
            is_new
        });
    }

    /// Takes the freeze from a Lease, unless a newer Lease was seen. `versions_restarted`
    /// says that resource versions restarted, so that a lower one is the newer one.
    pub fn observe_freeze(&self, lease: &Lease, versions_restarted: bool) {
        let version = resource_version(lease);
        let now = Freeze::of(lease);
        let mut observed = locked(&self.observed_freeze);
        if version < observed.version && !versions_restarted {
            return;
        }
        observed.version = version;
        let before = std::mem::replace(&mut observed.freeze, now.clone());
        drop(observed);
        if before == now {
            return;
        }
        match &now {
            Some(freeze) => tracing::warn!(%freeze, "Froze scales"),
            None => tracing::warn!("Thawed scales"),
        }
        if self.is_leading() {
            match &now {
                Some(freeze) => {
                    self.record(lease, LeaseEvent::Frozen, &format!("froze all scales: {freeze}"))
                }
                None => self.record(lease, LeaseEvent::Thawed, "scales are no longer frozen"),
            }
        }
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Records an event about the Lease.
    fn record(&self, lease: &Lease, reason: LeaseEvent, what: &str) {
        let message = format!("{} {what}", self.settings.identity);
        self.recorder.record(lease, reason, message);
    }
}
