//! The workloads of the soak.

use crate::history::{Step, Timeline};
use std::time::{Duration, Instant};

/// The scale-up policy of some Autoscalers: pods per period.
pub const POLICY: (i64, Duration) = (1, Duration::from_secs(6));
/// The scale-down stabilization window of all Autoscalers.
pub const WINDOW: Duration = Duration::from_secs(10);

/// A workload and its Autoscaler.
pub struct Workload {
    pub name: String,
    pub made: Instant,
    pub max: Timeline<i64>,
    /// The metric of each of its pods; the target of its Autoscaler is 10.
    pub shows: Timeline<i64>,
    /// Whether its Autoscaler has the scale-up policy [`POLICY`].
    pub policy: bool,
    /// When its Autoscaler was deleted.
    pub removed: Option<Instant>,
    /// The changes of its replicas that Plimsoll made.
    pub steps: Vec<Step>,
}

impl Workload {
    /// The replicas that it settles at without further changes.
    pub fn settles_at(&self) -> i64 {
        if self.shows.now() > 10 { self.max.now() } else { 1 }
    }
}
