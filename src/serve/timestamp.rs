//! Times as the metrics APIs write them.

use crate::time::UnixMillis;
use jiff::Timestamp;

/// A time to the second, which is written as RFC 3339.
pub fn timestamp(time: UnixMillis) -> Timestamp {
    Timestamp::from_second(time.div_euclid(1000)).unwrap_or_default()
}
