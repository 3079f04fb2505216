//! Times as the metrics APIs write them.

use crate::time::UnixMillis;
use jiff::Timestamp;

/// A time in RFC 3339, to the second.
pub fn timestamp(time: UnixMillis) -> String {
    Timestamp::from_second(time.div_euclid(1000)).unwrap_or_default().to_string()
}
