//! What is known of the watches themselves.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A kind that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Pods.
    Pods,
    /// Native HorizontalPodAutoscalers.
    HorizontalPodAutoscalers,
    /// Autoscalers.
    Autoscalers,
    /// Deployments.
    Deployments,
    /// StatefulSets.
    StatefulSets,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Pods,
        Self::HorizontalPodAutoscalers,
        Self::Autoscalers,
        Self::Deployments,
        Self::StatefulSets,
    ];

    /// Its plural name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::HorizontalPodAutoscalers => "horizontalpodautoscalers",
            Self::Autoscalers => "autoscalers",
            Self::Deployments => "deployments",
            Self::StatefulSets => "statefulsets",
        }
    }

    /// Whether its definition is ours, and may go: then there are no objects either.
    pub const fn is_defined_by_us(self) -> bool {
        matches!(self, Self::Autoscalers)
    }
}

/// How the watches are doing. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Synced(Arc<Mutex<[State; Kind::ALL.len()]>>);

#[derive(Clone, Debug, Default)]
struct State {
    /// Whether all there is was seen, at least once, or nothing is there to be seen.
    synced: bool,
    lists: u64,
    failures: u64,
    /// How many objects the last list had.
    objects: usize,
    /// When it was last heard of.
    heard: Option<Instant>,
    failing: Option<Failing>,
}

#[derive(Clone, Debug)]
struct Failing {
    since: Instant,
    last: Instant,
    error: String,
}

/// For how long a failure counts. A watch that fails fails more often than this, and one
/// that was taken up again says nothing until something changes.
const FAILING: Duration = Duration::from_secs(60);

impl Failing {
    fn is_now(&self) -> bool {
        self.last.elapsed() < FAILING
    }
}

/// How one watch is doing.
#[derive(Clone, Debug)]
pub struct WatchHealth {
    /// Of which kind.
    pub kind: Kind,
    /// Whether all there is was seen, at least once.
    pub synced: bool,
    /// How often all was listed.
    pub lists: u64,
    /// How often it failed.
    pub failures: u64,
    /// How many objects the last list had.
    pub objects: usize,
    /// How long ago the last event came; none where none came yet.
    pub age: Option<Duration>,
    /// For how long it has been failing, and why, where it is.
    pub failing: Option<(Duration, String)>,
}

impl Synced {
    fn states(&self) -> MutexGuard<'_, [State; Kind::ALL.len()]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, kind: Kind, change: impl FnOnce(&mut State)) {
        let at = Kind::ALL.iter().position(|one| *one == kind).expect("all kinds are there");
        change(&mut self.states()[at]);
    }

    /// The watches that have not listed all there is yet.
    pub fn missing(&self) -> Vec<&'static str> {
        let states = self.states();
        let states = Kind::ALL.iter().zip(states.iter());
        states.filter(|(_, state)| !state.synced).map(|(kind, _)| kind.as_str()).collect()
    }

    /// How each watch is doing.
    pub fn watches(&self) -> Vec<WatchHealth> {
        let health = |(kind, state): (&Kind, &State)| WatchHealth {
            kind: *kind,
            synced: state.synced,
            lists: state.lists,
            failures: state.failures,
            objects: state.objects,
            age: state.heard.map(|heard| heard.elapsed()),
            failing: state
                .failing
                .as_ref()
                .filter(|failing| failing.is_now())
                .map(|failing| (failing.since.elapsed(), failing.error.clone())),
        };
        Kind::ALL.iter().zip(self.states().iter()).map(health).collect()
    }

    /// There is nothing to wait for.
    pub(super) fn set(&self, kind: Kind) {
        self.change(kind, |state| state.synced = true);
    }

    /// All there is was listed.
    pub(super) fn listed(&self, kind: Kind, objects: usize) {
        self.change(kind, |state| {
            state.synced = true;
            state.lists += 1;
            state.objects = objects;
        });
    }

    /// An event came.
    pub(super) fn heard(&self, kind: Kind) {
        self.change(kind, |state| {
            state.heard = Some(Instant::now());
            state.failing = None;
        });
    }

    /// It failed.
    pub(super) fn failed(&self, kind: Kind, error: &kube::runtime::watcher::Error) {
        self.change(kind, |state| {
            state.failures += 1;
            let last = Instant::now();
            let before = state.failing.as_ref().filter(|failing| failing.is_now());
            let since = before.map_or(last, |failing| failing.since);
            state.failing = Some(Failing { since, last, error: error.to_string() });
        });
    }
}

impl fmt::Display for WatchHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.as_str();
        if let Some((since, error)) = &self.failing {
            return write!(f, "[!]watch {kind} fails for {}s: {error}", since.as_secs());
        }
        match self.age {
            None => write!(f, "[!]watch {kind} has not listed anything yet"),
            Some(age) => {
                let (objects, age) = (self.objects, age.as_secs());
                write!(f, "[+]watch {kind} ok: {objects} listed, last event {age}s ago")
            }
        }
    }
}
