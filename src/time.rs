//! Points in time, without a clock.

/// A point in time in milliseconds: by the wall clock since 1970-01-01T00:00:00Z, or, where the field
/// says so, by the clock of the process.
pub type UnixMillis = i64;
