//! How long a watch waits after a failure.

use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A wait that grows with each failure in a row, with jitter. kube's own begins
/// anew with the `Init` that precedes each list, also of a list that fails; this
/// one only when [`Progress`] was made.
pub struct Growing {
    inner: DefaultBackoff,
    progress: Progress,
}

/// Tells a [`Growing`] wait that objects came.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicBool>);

/// The longest wait, so that a server that returns is heard of soon.
const LONGEST: Duration = Duration::from_secs(10);

impl Growing {
    /// One, and what tells it of progress.
    pub fn new() -> (Self, Progress) {
        let progress = Progress::default();
        (Self { inner: DefaultBackoff::default(), progress: progress.clone() }, progress)
    }
}

impl Progress {
    /// Objects came: the next failure is the first in a row.
    pub fn made(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Iterator for Growing {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        if self.progress.0.swap(false, Ordering::AcqRel) {
            self.inner.reset();
        }
        self.inner.next().map(|wait| wait.min(LONGEST))
    }
}

impl Backoff for Growing {
    fn reset(&mut self) {}
}

/// Counts failures in a row, so that each doubling of their number is told, and not each failure.
#[derive(Debug, Default)]
pub struct Failures(u64);

impl Failures {
    /// One more; how many it are, where that is worth a line in the log.
    pub fn one_more(&mut self) -> Option<u64> {
        self.0 += 1;
        self.0.is_power_of_two().then_some(self.0)
    }

    /// It went well.
    pub fn end(&mut self) {
        self.0 = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_grows_until_progress_is_made() {
        let (mut waits, progress) = Growing::new();
        let mut last = Duration::ZERO;
        for _ in 0..10 {
            // As the stream does for the `Init` of each list.
            waits.reset();
            last = waits.next().unwrap();
        }
        assert!(last > Duration::from_secs(5) && last <= LONGEST, "{last:?}");
        progress.made();
        let first = waits.next().unwrap();
        assert!(first < Duration::from_secs(2), "{first:?}");
    }

    #[test]
    fn each_doubling_of_failures_is_told() {
        let mut failures = Failures::default();
        let told: Vec<u64> = (0..100).filter_map(|_| failures.one_more()).collect();
        assert_eq!(told, [1, 2, 4, 8, 16, 32, 64]);
        failures.end();
        assert_eq!(failures.one_more(), Some(1));
    }
}
