//! Ages as kubectl shows them.

use crate::clock::WallClock;
use jiff::Timestamp;

/// The time since, as kubectl shows it: `90s`, `5m`, `3h`.
pub fn age(time: Timestamp) -> String {
    let seconds = (WallClock::default().timestamp() - time).get_seconds().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}
