//! The schedules of an autoscaler, which move the bounds of its replicas in time windows.
//!
//! [`parse`] reads `spec.schedules`; [`Schedules::at`] says which bounds hold at a time,
//! why, and until when. The time zone database is built in, so the same specification gives the
//! same windows on every host.
//!
//! A recurring window lasts from a start, inclusive, to the next end, exclusive. Starts and ends
//! are local times in the order of the calendar:
//!
//! - A start within a window does not begin another. At the same minute as an end it does, at once
//!   after that.
//! - A local time that a clock change skips happens at the instant of the change. If both ends of
//!   a window are skipped, there is no such window that day.
//! - A local time that occurs twice happens the first time only, with any expression. During the
//!   repeated hour, `*/30 * * * *` does not occur, and a window that is open then stays open.

mod bounds;
mod cron;
mod schedules;
mod spec;
mod window;
mod zone;

#[cfg(test)]
mod tests;

pub use bounds::Bounds;
pub use schedules::{Moment, Schedules};
pub use spec::{MAX_SCHEDULES, ScheduleError, ScheduleSpec, parse};
pub use window::ActiveWindow;
