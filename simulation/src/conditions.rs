//! What fails now: the faults set it, and the network between the replicas and the cluster asks for it.

use crate::plan::{Fault, Lie, Millis, REPLICAS, WORKLOADS, Written};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A condition that holds until a time.
#[derive(Clone, Copy, Debug)]
pub struct Timed<T> {
    value: Option<T>,
    until: Millis,
}

impl<T> Default for Timed<T> {
    fn default() -> Self {
        Self { value: None, until: 0 }
    }
}

impl<T: Copy> Timed<T> {
    /// Sets the condition.
    pub fn set(&mut self, value: T, until: Millis) {
        *self = Self { value: Some(value), until: until.max(self.until) };
    }

    /// The condition, while it holds.
    pub fn at(&self, now: Millis) -> Option<T> {
        self.value.filter(|_| now < self.until)
    }
}

/// What fails for one replica.
#[derive(Clone, Debug, Default)]
pub struct Condition {
    /// It can't reach the API server.
    pub api_lost: Timed<()>,
    /// The API server refuses its requests with this code.
    pub refused: Timed<u16>,
    /// Its requests to the API server take so much longer.
    pub api_latency: Timed<Millis>,
    /// Its watches are silent.
    pub watch_silent: Timed<()>,
    /// Its watches are refused.
    pub watch_refused: Timed<()>,
    /// It can't reach Prometheus.
    pub prometheus_lost: Timed<()>,
    /// How far its wall clock is off.
    pub offset: i64,
}

/// How a single write fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// It is handled, and its response is lost.
    ResponseLost,
    /// It arrives when its sender has given up.
    Late,
    /// Another writer is faster.
    Conflict,
}

/// What fails for all.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    /// By replica.
    pub replicas: [Condition; REPLICAS],
    /// Prometheus is away.
    pub prometheus_away: Timed<()>,
    /// Prometheus takes so much longer.
    pub prometheus_latency: Timed<Millis>,
    /// Prometheus responds with this.
    pub prometheus_lies: Timed<Lie>,
    /// Whether somebody else takes the Lease when the next scale is read.
    pub lease_is_taken: bool,
    /// The writes whose maker dies.
    pub crash_after: Vec<Written>,
    /// The next writes that fail.
    pub armed: Vec<(Written, Mishap)>,
    /// How many faults of each kind that waits for a request have struck.
    pub struck: BTreeMap<&'static str, u64>,
    /// By workload: other writers edit its object before each first try to scale it.
    pub busy: [Timed<()>; WORKLOADS],
}

/// What fails for a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trouble {
    /// Its watches.
    pub watches: bool,
    /// Its requests to the API server.
    pub requests: bool,
    /// Its queries to Prometheus.
    pub queries: bool,
    /// A single write of it.
    pub writes: bool,
}

impl Trouble {
    /// Whether anything fails.
    pub fn is_any(self) -> bool {
        self != Self::default()
    }

    /// Whether what it knows of the cluster may be old.
    pub fn is_of_views(self) -> bool {
        self.watches || self.requests
    }

    /// Whether anything fails on the way to the API server.
    pub fn is_of_api(self) -> bool {
        self.is_of_views() || self.writes
    }

    /// Whether an evaluation may take long.
    pub fn is_of_evaluations(self) -> bool {
        self.requests || self.queries || self.writes
    }

    /// What fails at one of two times.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            watches: self.watches || other.watches,
            requests: self.requests || other.requests,
            queries: self.queries || other.queries,
            writes: self.writes || other.writes,
        }
    }
}

impl Conditions {
    /// Takes the mishap of the next write of a kind.
    pub fn take(&mut self, written: Written) -> Option<Mishap> {
        let of = |(armed, _): &(Written, Mishap)| written.is_one(*armed);
        let place = self.armed.iter().position(of)?;
        let (_, mishap) = self.armed.remove(place);
        self.strike(&match mishap {
            Mishap::ResponseLost => Fault::ResponseLost(written),
            Mishap::Late => Fault::Late(written),
            Mishap::Conflict => Fault::Conflict(written),
        });
        Some(mishap)
    }

    /// Whether the maker of this write dies: takes the fault.
    pub fn take_crash(&mut self, written: Written) -> bool {
        let Some(place) = self.crash_after.iter().position(|armed| written.is_one(*armed)) else {
            return false;
        };
        self.crash_after.remove(place);
        self.strike(&Fault::CrashAfter(written));
        true
    }

    /// Whether somebody else takes the Lease now: takes the fault.
    pub fn take_lease(&mut self) -> bool {
        let is_taken = std::mem::take(&mut self.lease_is_taken);
        if is_taken {
            self.strike(&Fault::LeaseTaken);
        }
        is_taken
    }

    fn strike(&mut self, fault: &Fault) {
        *self.struck.entry(fault.name()).or_default() += 1;
    }

    /// Whether Prometheus gives a replica no whole answer.
    pub fn is_unanswered(&self, replica: usize, now: Millis) -> bool {
        self.replicas[replica].prometheus_lost.at(now).is_some()
            || self.prometheus_away.at(now).is_some()
            || self.prometheus_lies.at(now).is_some()
    }

    /// What fails for a replica.
    pub fn trouble(&self, replica: usize, now: Millis) -> Trouble {
        let one = &self.replicas[replica];
        Trouble {
            watches: one.watch_silent.at(now).is_some()
                || one.watch_refused.at(now).is_some()
                || one.api_lost.at(now).is_some()
                || one.refused.at(now).is_some(),
            requests: one.api_lost.at(now).is_some()
                || one.refused.at(now).is_some()
                || one.api_latency.at(now).is_some(),
            queries: self.is_unanswered(replica, now) || self.prometheus_latency.at(now).is_some(),
            writes: false,
        }
    }
}

/// The conditions, as all share them.
pub type Shared<T> = Arc<Mutex<T>>;

/// Locks what is shared.
pub fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
