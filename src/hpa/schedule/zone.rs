//! Local times as instants, as cron counts them.

use crate::time::UnixMillis;
use jiff::Timestamp;
use jiff::ToSpan;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};

/// A time zone of the built-in database, so that a window does not depend on the host.
///
/// Each local time happens once: one that a clock change skips, at the instant of the change; one
/// that occurs twice, the first time. So a later local time never happens before an earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Zone(TimeZone);

impl Zone {
    /// Looks up an IANA name.
    pub(super) fn parse(name: &str) -> Result<Self, String> {
        let zone = TimeZoneDatabase::bundled().get(name);
        // `Etc/Unknown` is a name of that database for a zone that could not be found out.
        zone.ok().filter(|zone| !zone.is_unknown()).map(Self).ok_or_else(|| {
            "no such time zone, expected an IANA name such as Europe/Berlin or Etc/UTC".to_owned()
        })
    }

    /// The last local time that has happened at an instant.
    ///
    /// It is the local time, except when that occurs for the second time: then it is the end of
    /// what is repeated.
    pub(super) fn local(&self, now: UnixMillis) -> DateTime {
        let nearest = if now < 0 { Timestamp::MIN } else { Timestamp::MAX };
        let now = Timestamp::from_millisecond(now).unwrap_or(nearest);
        let local = self.0.to_datetime(now);
        let AmbiguousOffset::Fold { before, after } = self.0.to_ambiguous_timestamp(local).offset()
        else {
            return local;
        };
        let first = before.to_timestamp(local);
        let Some(first) = first.ok().filter(|_| self.0.to_offset(now) == after) else {
            return local;
        };
        let mut changes = self.0.following(first).take_while(|change| change.timestamp() <= now);
        changes.find(|change| change.offset() == after).map_or(local, |change| {
            before.to_datetime(change.timestamp()).saturating_sub(1.nanosecond())
        })
    }

    /// When a local time happens; nothing beyond the years of the calendar.
    pub(super) fn instant(&self, local: DateTime) -> Option<UnixMillis> {
        let instant = match self.0.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset }
            | AmbiguousOffset::Fold { before: offset, .. } => offset.to_timestamp(local).ok()?,
            AmbiguousOffset::Gap { after, .. } => {
                let mut changes = self.0.following(after.to_timestamp(local).ok()?);
                let is_past = |change: Timestamp, offset: jiff::tz::Offset| {
                    offset.to_datetime(change) > local
                };
                changes.find(|change| is_past(change.timestamp(), change.offset()))?.timestamp()
            }
        };
        Some(instant.as_millisecond())
    }
}
