//! The workloads of the soak.

use crate::history::Step;
use crate::policy::Policies;
use crate::settings::{NAMESPACE, TARGET, WINDOW};
use crate::view::ScaleRead;
use std::time::Instant;

/// The backlog of a queue that needs workers: as many as there may be, and more.
const BACKLOG: i64 = 45;

/// A workload and its Autoscaler.
pub struct Workload {
    pub name: String,
    /// Whether it goes to zero: by the backlog of its queue (External), and not by its pods.
    pub to_zero: bool,
    pub max: i64,
    /// The least that its maximum has ever been.
    pub least_max: i64,
    /// Whether its metric is far above its target, or far below.
    pub busy: bool,
    /// Since when its metric is what it is.
    pub shown_since: Instant,
    pub up: Policies,
    pub down: Policies,
    /// When its Autoscaler was deleted.
    pub removed: Option<Instant>,
    /// When its Deployment was deleted.
    pub target_gone: Option<Instant>,
    /// The changes of its replicas that Plimsoll made, the oldest first.
    pub steps: Vec<Step>,
    /// Its writes that got no answer: they may have been done.
    pub unanswered: Vec<Step>,
}

impl Workload {
    pub fn new(
        name: String,
        to_zero: bool,
        max: i64,
        busy: bool,
        up: Policies,
        down: Policies,
    ) -> Self {
        let (steps, unanswered, shown_since) = (Vec::new(), Vec::new(), Instant::now());
        let (least_max, removed, target_gone) = (max, None, None);
        Self {
            name,
            to_zero,
            max,
            least_max,
            busy,
            shown_since,
            up,
            down,
            removed,
            target_gone,
            steps,
            unanswered,
        }
    }

    pub fn min(&self) -> i64 {
        i64::from(!self.to_zero)
    }

    /// The replicas that it settles at without further changes.
    pub fn settles_at(&self) -> i64 {
        if self.busy { self.max } else { self.min() }
    }

    /// Whether both its Autoscaler and its Deployment are there.
    pub fn lives(&self) -> bool {
        self.removed.is_none() && self.target_gone.is_none()
    }

    /// Counts the writes without an answer that have been done: the next read shows their number. So
    /// does Plimsoll.
    pub fn note_unanswered(&mut self, read: &ScaleRead) {
        let (earlier, later) = std::mem::take(&mut self.unanswered)
            .into_iter()
            .partition(|step| step.arrived < read.arrived);
        self.unanswered = later;
        let earlier: Vec<Step> = earlier;
        self.steps.extend(earlier.into_iter().rfind(|step| step.to == read.replicas));
        self.steps.sort_by_key(|step| step.arrived);
    }

    /// What its pods expose.
    pub fn shown(&self) -> String {
        match self.to_zero {
            true => String::new(),
            false => format!("depth {}", if self.busy { 2 * TARGET } else { 1 }),
        }
    }

    /// The line of its queue in what the pod `meter` exposes.
    pub fn backlog(&self) -> Option<String> {
        let length = if self.busy { BACKLOG } else { 0 };
        self.to_zero.then(|| format!("backlog{{queue=\"{}\"}} {length}", self.name))
    }

    /// Its Deployment and its Autoscaler.
    pub fn manifest(&self) -> String {
        let Self { name, max, .. } = self;
        let (min, shown, window) = (self.min(), self.shown(), WINDOW.as_secs());
        let metric = match self.to_zero {
            true => format!(
                "metrics: [{{type: External, external: {{metric: {{name: backlog, selector: {{matchLabels: {{queue: {name}}}}}}}, target: {{type: AverageValue, averageValue: {TARGET}}}}}}}]"
            ),
            false => format!("customMetrics: [{{metricName: depth, averageValue: {TARGET}}}]"),
        };
        let (up, down) = (self.up.manifest(), self.down.manifest());
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\n\
             spec:\n  replicas: 1\n  selector: {{matchLabels: {{app: {name}}}}}\n\
             \x20 template:\n    metadata:\n      labels: {{app: {name}}}\n\
             \x20     annotations: {{bed.plimsoll.dev/metrics: '{shown}'}}\n\
             \x20   spec:\n      terminationGracePeriodSeconds: 0\n\
             \x20     containers: [{{name: app, image: fleet}}]\n\
             ---\napiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\n\
             metadata: {{name: {name}, namespace: {NAMESPACE}}}\n\
             spec:\n  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {name}}}\n\
             \x20 minReplicas: {min}\n  maxReplicas: {max}\n  syncPeriodSeconds: 1\n\
             \x20 {metric}\n\
             \x20 behavior: {{scaleDown: {{stabilizationWindowSeconds: {window}, {down}}}, scaleUp: {{{up}}}}}\n"
        )
    }
}
