//! Backoff and logging of failures in a row.

use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// An exponential backoff with jitter that resets when [`Progress`] is made. kube's own also
/// resets on the `Init` that precedes each list, even a list that fails.
pub struct ResettableBackoff {
    inner: DefaultBackoff,
    progress: Progress,
}

/// Tells a [`ResettableBackoff`] that objects were received.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicBool>);

/// The longest backoff, so that the recovery of a server is noticed soon.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

impl ResettableBackoff {
    /// A backoff, and the handle that resets it.
    pub fn new() -> (Self, Progress) {
        let progress = Progress::default();
        (Self { inner: DefaultBackoff::default(), progress: progress.clone() }, progress)
    }
}

impl Progress {
    /// Objects were received: the next failure is the first in a row.
    pub fn made(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Iterator for ResettableBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        if self.progress.0.swap(false, Ordering::AcqRel) {
            self.inner.reset();
        }
        self.inner.next().map(|wait| wait.min(MAX_BACKOFF))
    }
}

impl Backoff for ResettableBackoff {
    fn reset(&mut self) {}
}

/// Counts failures in a row, to log each doubling of their number instead of every failure.
#[derive(Debug, Default)]
pub struct FailureLog(u64);

impl FailureLog {
    /// Counts a failure. Returns the count if it should be logged.
    pub fn failed(&mut self) -> Option<u64> {
        self.0 += 1;
        self.0.is_power_of_two().then_some(self.0)
    }

    /// Resets the count after a success.
    pub fn succeeded(&mut self) {
        self.0 = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_grows_until_progress_is_made() {
        let (mut backoff, progress) = ResettableBackoff::new();
        let mut last = Duration::ZERO;
        for _ in 0..10 {
            // As the stream does for the `Init` of each list.
            backoff.reset();
            last = backoff.next().unwrap();
        }
        assert!(last > Duration::from_secs(5) && last <= MAX_BACKOFF, "{last:?}");
        progress.made();
        let first = backoff.next().unwrap();
        assert!(first < Duration::from_secs(2), "{first:?}");
    }

    #[test]
    fn each_doubling_of_failures_is_logged() {
        let mut failures = FailureLog::default();
        let logged: Vec<u64> = (0..100).filter_map(|_| failures.failed()).collect();
        assert_eq!(logged, [1, 2, 4, 8, 16, 32, 64]);
        failures.succeeded();
        assert_eq!(failures.failed(), Some(1));
    }
}
