//! Why nothing becomes cheaper by a load.

use super::super::candidate::Candidate;
use super::super::run::Options;
use super::super::saturation::LowConfidence;
use super::super::trace::Trace;
use super::variant::WEEK_MS;

/// The share of the load, or of one of its parts, that may be unknown or constant.
const MOST_UNKNOWN: f64 = 0.05;
/// The minutes of it that may be cut off: it is cut off at its peaks, which are what pods are needed for.
const MOST_CUT_OFF: f64 = 10.0;
/// What a week may lack, in ms: a week of rows ends before it is over.
const LACK_MS: i64 = 3_600_000;

/// Why nothing becomes cheaper by a load: an hour of the night says nothing of the day, and what is unknown, cut off or near
/// nothing in the rest would only seem to confirm what is cheaper.
pub fn doubts(
    present: &Candidate,
    trace: &Trace,
    [tuned, later]: [&Trace; 2],
    options: &Options,
) -> Result<Vec<String>, String> {
    let mut doubts = Vec::new();
    if trace.known_ms() < WEEK_MS - LACK_MS {
        doubts.push("less than a week of the load is known".to_owned());
    }
    let unchanged = trace.unchanged();
    let (mut is_unknown, mut is_cut_off) = (false, false);
    for part in [tuned, later, trace] {
        present.stop.check()?;
        let untrusted: Vec<LowConfidence> = [part.unknown(), unchanged.clone()].concat();
        let most = MOST_UNKNOWN * (part.last() - part.first()) as f64 / 60_000.0;
        is_unknown |= part.minutes(&untrusted) > most;
        is_cut_off |= part.minutes(&part.cut_off()) > MOST_CUT_OFF;
    }
    if is_unknown {
        doubts.push("more than 5 % of the load can't be trusted".to_owned());
    }
    if is_cut_off {
        doubts
            .push("the load is cut off: more may have been asked for than was carried".to_owned());
    }
    doubts.extend(trace.coarse(options));
    let most = |part: &Trace| part.needs(present, options).last().copied().unwrap_or_default();
    let least = present.min().into();
    if most(later) <= least && most(tuned) > least {
        doubts.push("the rest never needs more than minReplicas".to_owned());
    }
    Ok(doubts)
}
