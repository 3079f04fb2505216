//! The windows of one schedule.

use super::cron::Cron;
use super::zone::Zone;
use crate::time::UnixMillis;
use jiff::ToSpan;

/// How many clock changes in a row may skip windows, both ends of each: such windows have no length.
const SKIPPED: usize = 16;

/// A schedule. At least one of `min` and `max` is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    pub name: String,
    pub timing: Timing,
    pub min: Option<i32>,
    pub max: Option<i32>,
    /// How long the bounds move from the begin of a window on; 0 if they do at once.
    pub ramp_ms: i64,
}

/// A window of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveWindow {
    /// The schedule in the list, from 0 on.
    pub index: usize,
    /// The first millisecond within it.
    pub begin_ms: UnixMillis,
    /// The first millisecond after it; nothing beyond the year 9999.
    pub end_ms: Option<UnixMillis>,
}

/// When a schedule is active.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Timing {
    /// From each start to the next end.
    Recurring { start: Cron, end: Cron, zone: Zone },
    /// Once.
    Once(Window),
}

/// A window: `begin` is in it, `end` is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub begin: UnixMillis,
    /// Nothing beyond the years of the calendar.
    pub end: Option<UnixMillis>,
}

impl Timing {
    /// The window that is active, or else the next one.
    pub(super) fn window(&self, now: UnixMillis) -> Option<Window> {
        let (start, end, zone) = match self {
            Self::Recurring { start, end, zone } => (start, end, zone),
            Self::Once(window) => {
                return Some(*window).filter(|window| window.end.is_none_or(|end| now < end));
            }
        };
        let local = zone.local(now);
        // The first start since the last end: a start within a window does not begin another, and
        // one at the very minute of an end does.
        let mut from = end.at_or_before(local).unwrap_or(jiff::civil::DateTime::MIN);
        let mut next = None;
        for _ in 0..SKIPPED {
            let first = start.at_or_after(from)?;
            let last = end.after(first);
            let begin = zone.instant(first)?;
            let window = Window { begin, end: last.and_then(|last| zone.instant(last)) };
            next = Some(window);
            if window.end != Some(begin) {
                break;
            }
            // All that are skipped with it are passed at once.
            from = end.at_or_before(zone.local(begin))?;
        }
        next
    }

    /// Whether its starts and ends take turns within a year: each start is followed by an end, and each end by a start,
    /// before there is another of the same.
    pub(super) fn takes_turns(&self, now: UnixMillis) -> bool {
        let Self::Recurring { start, end, zone } = self else { return true };
        let mut at = zone.local(now);
        let until = at.saturating_add(1.year());
        let is_end_first = end.after(at) < start.after(at);
        let (mut next, mut other) = if is_end_first { (end, start) } else { (start, end) };
        while at < until {
            let (Some(turn), Some(same)) = (next.after(at), other.after(at)) else { return true };
            if same <= turn {
                return false;
            }
            at = turn;
            std::mem::swap(&mut next, &mut other);
        }
        true
    }
}
