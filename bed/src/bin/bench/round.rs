//! The period of all measurements, and their progress.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The sync period of all autoscalers: the default of kube-controller-manager.
pub const ROUND: Duration = Duration::from_secs(15);

/// Prints the step that begins, and when.
pub fn show_progress(what: &str) {
    eprintln!("  {} {what} ...", passed());
}

/// The minutes and seconds since this was first asked.
pub fn passed() -> String {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    let seconds = BEGUN.get_or_init(Instant::now).elapsed().as_secs();
    format!("{:>2}:{:02}", seconds / 60, seconds % 60)
}
