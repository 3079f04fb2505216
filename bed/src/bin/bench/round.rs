//! The period of all measurements, and their progress.

use std::time::Duration;

/// The sync period of all autoscalers: the default of kube-controller-manager.
pub const ROUND: Duration = Duration::from_secs(15);

/// Prints the step that begins.
pub fn show_progress(what: &str) {
    eprintln!("  {what} ...");
}
