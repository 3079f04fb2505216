//! The backoff of the election.

use std::time::Duration;

/// The backoff between attempts. It doubles with each failure of its kind, until an attempt
/// succeeds.
#[derive(Default)]
pub(super) struct LeaseBackoff {
    /// The present one.
    pub current: Option<Duration>,
    failed: Option<Duration>,
    forbidden: Option<Duration>,
}

impl LeaseBackoff {
    /// Grows after a failed attempt, from `first` to at most `longest`.
    pub fn grow(&mut self, forbidden: bool, [first, longest]: [Duration; 2]) {
        let last = if forbidden { &mut self.forbidden } else { &mut self.failed };
        *last = Some(last.map_or(first, |last| last * 2).min(longest));
        self.current = *last;
    }
}
