//! What all parts of the soak share.

use std::time::Duration;

/// The namespace of all workloads.
pub const NAMESPACE: &str = "soak";
/// The replicas, by the names of their processes.
pub const NAMES: [&str; 2] = ["plimsoll", "other"];
/// The scale-down stabilization window of all Autoscalers.
pub const WINDOW: Duration = Duration::from_secs(10);
/// The target of all metrics, per pod.
pub const TARGET: i64 = 10;
