//! The health of the watches.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A kind that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WatchedKind {
    /// Pods.
    Pods,
    /// Native HorizontalPodAutoscalers.
    HorizontalPodAutoscalers,
    /// Autoscalers.
    Autoscalers,
    /// MetricRules.
    MetricRules,
    /// Deployments.
    Deployments,
    /// StatefulSets.
    StatefulSets,
}

impl WatchedKind {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Pods,
        Self::HorizontalPodAutoscalers,
        Self::Autoscalers,
        Self::MetricRules,
        Self::Deployments,
        Self::StatefulSets,
    ];

    /// The plural name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::HorizontalPodAutoscalers => "horizontalpodautoscalers",
            Self::Autoscalers => "autoscalers",
            Self::MetricRules => "metricrules",
            Self::Deployments => "deployments",
            Self::StatefulSets => "statefulsets",
        }
    }

    /// Whether it is defined by our CRD. If the CRD is deleted, there are no objects.
    pub const fn is_our_crd(self) -> bool {
        matches!(self, Self::Autoscalers | Self::MetricRules)
    }
}

/// The statuses of the watches: whether they have synced, and their health. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct WatchStatuses(Arc<Mutex<[WatchState; WatchedKind::ALL.len()]>>);

#[derive(Clone, Debug, Default)]
struct WatchState {
    /// Whether all objects were listed at least once, or there are none to be listed.
    synced: bool,
    lists: u64,
    failures: u64,
    /// The number of objects in the last list.
    objects: usize,
    /// When the last event was received.
    last_event: Option<Instant>,
    failing: Option<Failing>,
}

#[derive(Clone, Debug)]
struct Failing {
    since: Instant,
    last: Instant,
    error: String,
}

/// How long a failure counts. A failing watch fails more often than this; a resumed watch sends
/// nothing until an object changes.
const FAILURE_TTL: Duration = Duration::from_secs(60);

impl Failing {
    fn is_now(&self) -> bool {
        self.last.elapsed() < FAILURE_TTL
    }
}

/// The health of one watch.
#[derive(Clone, Debug)]
pub struct WatchHealth {
    /// The kind that is watched.
    pub kind: WatchedKind,
    /// Whether all objects were listed at least once.
    pub synced: bool,
    /// The number of complete lists.
    pub lists: u64,
    /// The number of failures.
    pub failures: u64,
    /// The number of objects in the last list.
    pub objects: usize,
    /// The time since the last event; none before the first one.
    pub age: Option<Duration>,
    /// If the watch is failing: since how long, and the last error.
    pub failing: Option<(Duration, String)>,
}

impl WatchStatuses {
    fn states(&self) -> MutexGuard<'_, [WatchState; WatchedKind::ALL.len()]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, kind: WatchedKind, change: impl FnOnce(&mut WatchState)) {
        let at = WatchedKind::ALL.iter().position(|one| *one == kind).expect("all kinds are there");
        change(&mut self.states()[at]);
    }

    /// The watches that have not synced yet.
    pub fn missing(&self) -> Vec<&'static str> {
        let states = self.states();
        let states = WatchedKind::ALL.iter().zip(states.iter());
        states.filter(|(_, state)| !state.synced).map(|(kind, _)| kind.as_str()).collect()
    }

    /// The health of each watch.
    pub fn watches(&self) -> Vec<WatchHealth> {
        let health = |(kind, state): (&WatchedKind, &WatchState)| WatchHealth {
            kind: *kind,
            synced: state.synced,
            lists: state.lists,
            failures: state.failures,
            objects: state.objects,
            age: state.last_event.map(|at| at.elapsed()),
            failing: state
                .failing
                .as_ref()
                .filter(|failing| failing.is_now())
                .map(|failing| (failing.since.elapsed(), failing.error.clone())),
        };
        WatchedKind::ALL.iter().zip(self.states().iter()).map(health).collect()
    }

    /// Marks a kind as synced that can't be listed, so that readiness does not wait for it.
    pub(super) fn mark_synced_without_list(&self, kind: WatchedKind) {
        self.change(kind, |state| state.synced = true);
    }

    /// All objects were listed.
    pub(super) fn listed(&self, kind: WatchedKind, objects: usize) {
        self.change(kind, |state| {
            state.synced = true;
            state.lists += 1;
            state.objects = objects;
        });
    }

    /// An event was received.
    pub(super) fn event_received(&self, kind: WatchedKind) {
        self.change(kind, |state| {
            state.last_event = Some(Instant::now());
            state.failing = None;
        });
    }

    /// The watch failed with this error.
    pub(super) fn failed(&self, kind: WatchedKind, error: String) {
        self.change(kind, |state| {
            state.failures += 1;
            let last = Instant::now();
            let before = state.failing.as_ref().filter(|failing| failing.is_now());
            let since = before.map_or(last, |failing| failing.since);
            state.failing = Some(Failing { since, last, error });
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
