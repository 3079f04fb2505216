//! The control loop: evaluates each Autoscaler and native HPA once per sync period, and applies
//! the decision.
//!
//! One evaluation is a pipeline: `reconcile` finds the object and its executor; `evaluate` has
//! `observe` read the scale and the metrics, and decides; the decision is applied by `embedded`
//! (this replica leads and writes the scale), `follower` (another replica leads) or `shadow`
//! (kube-controller-manager decides, Plimsoll only compares). With the executor `NativeHPA`
//! kube-controller-manager decides on an HPA that `native_hpa` writes.

mod account;
mod api_metrics;
mod checkpoint;
mod checkpointer;
mod comparison;
mod context;
mod control_loop;
mod correlate;
mod decision_time;
mod embedded;
mod evaluate;
mod events;
mod failures;
mod fair_queue;
#[cfg(test)]
mod fake;
mod fallback;
mod fetched;
mod follower;
mod foreign_writes;
mod gather;
mod hpa_counts;
mod metric_rule_statuses;
mod native_hpa;
mod noted;
mod observe;
mod owners;
mod pause;
mod reconcile;
mod requests;
mod rescales;
mod rule_metrics;
mod schedule;
mod schedules;
mod selectors;
mod shadow;
mod state;
mod status;
mod status_writer;
mod targets;
mod update_status;
mod warnings;
mod zero;

pub use checkpoint::{Checkpoint, read_checkpoints};
pub use context::{ControllerSettings, Dependencies, NativeHpas};
pub use control_loop::ControlLoop;
pub use metric_rule_statuses::MetricRuleStatuses;
pub use owners::Owners;
pub use requests::{message, within};
pub use targets::Targets;
