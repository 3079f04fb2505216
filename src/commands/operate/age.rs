//! Ages as kubectl shows them.

use super::super::story::span;
use crate::clock::WallClock;
use jiff::Timestamp;

/// The time since, as kubectl shows it: `90s`, `5m`, `3h`.
pub fn age(time: Timestamp) -> String {
    span((WallClock::default().timestamp() - time).get_seconds().saturating_mul(1000))
}
