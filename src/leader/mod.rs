//! Which replica writes: the one that holds the Lease. All of them serve, watch
//! and decide, so that the next is warm when it takes over.
//!
//! The protocol is that of client-go's leader election. Beyond it every write is
//! fenced: it needs a [`Permit`] of the term in which it was decided, which ends
//! by this process's own clocks before another replica may take the Lease; and a
//! write to a scale is preceded by a look at the Lease itself.
//!
//! The Lease carries the freeze, too ([`freeze`]): every replica watches it anyway.

mod announce;
mod election;
pub mod freeze;
mod permit;
#[cfg(test)]
mod tests;

pub use freeze::Freeze;
pub use permit::{Permit, REQUEST, Refused, may_be_done};

use crate::clock::Clock;
use crate::telemetry::Metrics;
use announce::Announcer;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use permit::InFlight;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;

/// The label of all objects that Plimsoll makes for itself, and its value.
pub const LABEL: (&str, &str) = ("app.kubernetes.io/name", "plimsoll");

/// How leadership is taken, kept and lost.
#[derive(Clone, Debug)]
pub struct ElectionSettings {
    /// Whether it is taken; without, this replica leads as long as it lives.
    pub elect: bool,
    /// The namespace of the Lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who this is; no other replica may have the same name.
    pub identity: String,
    /// How long others leave the Lease alone after it was renewed.
    pub lease: Duration,
    /// How long after the last renewal this replica believes that it leads; less
    /// than `lease`.
    pub renew_deadline: Duration,
    /// The time between two renewals; less than `renew_deadline`.
    pub retry: Duration,
}

impl ElectionSettings {
    /// A name that no other process has: that of the pod or machine, and the time.
    pub fn identity() -> String {
        let host = ["POD_NAME", "HOSTNAME"].iter().find_map(|name| std::env::var(name).ok());
        let host = host.or_else(|| std::fs::read_to_string("/etc/hostname").ok());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let host = host.unwrap_or_else(|| "plimsoll".to_owned());
        format!("{}_{:x}{:x}", host.trim(), now.as_nanos(), std::process::id())
    }
}

/// Tells whether this replica leads. Cheap to clone.
#[derive(Clone)]
pub struct Leader(Arc<Inner>);

struct Inner {
    terms: Mutex<Terms>,
    /// Counts changes of who leads and of what is frozen.
    changes: watch::Sender<u64>,
    frozen: Mutex<Frozen>,
    /// Writes under way, of any kind and to scales.
    writes: InFlight,
    scales: InFlight,
    api: Api<Lease>,
    settings: ElectionSettings,
    clock: Clock,
    announcer: Announcer,
    metrics: Arc<Metrics>,
}

/// The terms of this replica.
#[derive(Default)]
struct Terms {
    /// The present one; it counts only while it is valid.
    now: Option<Term>,
    /// How many it has had. The Lease's own count begins anew with a new Lease.
    count: u64,
}

/// A time for which one replica leads.
#[derive(Clone, Copy, Debug)]
struct Term {
    /// Which one of this process.
    number: u64,
    /// How often the Lease had changed hands.
    transitions: i32,
    /// Until when it holds, by either clock: one may stand still while a machine
    /// does, the other may be set.
    until: (Instant, SystemTime),
    /// Until when no other can have taken the Lease.
    ended: Instant,
}

impl Term {
    fn is_valid(&self) -> bool {
        Instant::now() < self.until.0 && SystemTime::now() < self.until.1
    }
}

/// The freeze, as of the newest state of the Lease that was seen.
#[derive(Default)]
struct Frozen {
    version: u64,
    freeze: Option<Freeze>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The version of an object; 0 where it has none.
fn version(lease: &Lease) -> u64 {
    let version = lease.metadata.resource_version.as_ref();
    version.and_then(|version| version.parse().ok()).unwrap_or(0)
}

impl Leader {
    /// One that leads once [`Leader::run`] has taken the Lease, or at once where
    /// there is no election.
    pub fn new(
        client: Client,
        settings: ElectionSettings,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self(Arc::new(Inner {
            terms: Mutex::default(),
            changes: watch::Sender::new(0),
            frozen: Mutex::default(),
            writes: InFlight::default(),
            scales: InFlight::default(),
            api: Api::namespaced(client.clone(), &settings.namespace),
            announcer: Announcer::new(client, &settings),
            settings,
            clock,
            metrics,
        }))
    }

    /// The namespace and name of the Lease.
    pub fn lease(&self) -> (&str, &str) {
        (&self.0.settings.namespace, &self.0.settings.name)
    }

    /// Leave to write, where this replica leads now.
    pub fn permit(&self) -> Option<Permit> {
        let term = match self.0.settings.elect {
            false => None,
            true => Some(self.term()?.number),
        };
        Some(Permit::new(self.clone(), term))
    }

    /// Why all writes to scales are stopped, where they are.
    pub fn frozen(&self) -> Option<Arc<str>> {
        locked(&self.0.frozen).freeze.as_ref().map(|freeze| freeze.reason.clone())
    }

    /// Follows the changes of who leads, and of what is frozen.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// The present term, while it is valid.
    fn term(&self) -> Option<Term> {
        locked(&self.0.terms).now.filter(Term::is_valid)
    }

    /// The term has begun, or was renewed: until then by either clock, and until then
    /// no other can have the Lease.
    fn lead(&self, transitions: i32, until: (Instant, SystemTime), ended: Instant, lease: &Lease) {
        let mut terms = locked(&self.0.terms);
        // An expired term is not revived: whoever looked meanwhile saw none.
        let same = terms.now.filter(|term| term.transitions == transitions && term.is_valid());
        let number = same.map_or(terms.count + 1, |term| term.number);
        terms.count = number;
        terms.now = Some(Term { number, transitions, until, ended });
        drop(terms);
        self.0.metrics.renewed();
        if same.is_none() {
            tracing::info!(term = transitions, "this replica leads");
            self.announce(lease, "LeaderElection", "became leader");
            self.0.metrics.became_leader();
            self.0.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// The term is over, if there is one.
    fn lead_no_more(&self, lease: Option<&Lease>) {
        if locked(&self.0.terms).now.take().is_none() {
            return;
        }
        tracing::warn!("this replica no longer leads");
        if let Some(lease) = lease {
            self.announce(lease, "LeaderElection", "stopped leading");
        }
        self.0.changes.send_modify(|changes| *changes += 1);
    }

    /// Sets the freeze as a Lease has it, unless something newer is known; where its
    /// versions have begun anew, nothing is.
    pub(crate) fn see_freeze(&self, lease: &Lease, anew: bool) {
        let version = version(lease);
        let now = Freeze::of(lease);
        let mut frozen = locked(&self.0.frozen);
        if version < frozen.version && !anew {
            return;
        }
        frozen.version = version;
        let before = std::mem::replace(&mut frozen.freeze, now.clone());
        drop(frozen);
        if before == now {
            return;
        }
        match &now {
            Some(freeze) => tracing::warn!(%freeze, "writes to scales are frozen"),
            None => tracing::warn!("writes to scales are no longer frozen"),
        }
        if self.permit().is_some() {
            match &now {
                Some(freeze) => {
                    self.announce(lease, "Frozen", &format!("froze all scales: {freeze}"))
                }
                None => self.announce(lease, "Thawed", "scales are no longer frozen"),
            }
        }
        self.0.changes.send_modify(|changes| *changes += 1);
    }

    /// Publishes an event about the Lease.
    fn announce(&self, lease: &Lease, reason: &'static str, what: &str) {
        let message = format!("{} {what}", self.0.settings.identity);
        self.0.announcer.publish(lease, reason, message);
    }
}
