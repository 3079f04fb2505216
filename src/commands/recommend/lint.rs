//! What is probably a mistake in a spec, by the load that it had.

use crate::backtest::{Recommendation, Trace};
use crate::commands::story::counted;
use serde_json::Value;

/// A maximum that is more than this many times what the load needs at most bounds nothing.
const LOOSE: i64 = 5;
/// So long at the maximum is worth a word, in minutes.
const LONG_MINUTES: f64 = 60.0;
/// The share of the time that is nearly always.
const NEARLY: f64 = 0.95;

/// What is probably a mistake in the present spec, and what of the load can't be trusted.
pub fn warnings(found: &Recommendation, spec: &Value, trace: &Trace) -> Vec<String> {
    let Recommendation { present, most_needed, split, .. } = found;
    let minutes = (split - trace.first()) as f64 / 60_000.0;
    let mut warnings = Vec::new();
    let figures = &present.tuned;
    let most = spec["maxReplicas"].as_i64().unwrap_or_default();
    let least = spec["minReplicas"].as_i64().unwrap_or(1);
    let untrusted = trace.doubtful_minutes();
    let doubtful = untrusted > 0.0;
    let peak = match doubtful {
        true => format!("{most_needed} or more, as more may have been asked for than was carried"),
        false => format!("{most_needed} at most"),
    };
    if least == most {
        warnings.push(format!("minReplicas is maxReplicas ({most}): nothing is scaled"));
    } else if figures.minutes_at_max > NEARLY * minutes {
        warnings.push(format!("always at maxReplicas ({most}): the load can't be followed"));
    } else if present.is_capped() || figures.minutes_at_max > LONG_MINUTES {
        warnings.push(format!(
            "at maxReplicas ({most}) for {:.1} hours: while it is there, load that grows is not followed; it needs {peak}",
            figures.minutes_at_max / 60.0
        ));
    } else if most > LOOSE * most_needed.max(&1) {
        warnings.push(format!(
            "never near maxReplicas ({most}): the load needs {peak}, so that a mistake in the metric may cost {most}"
        ));
    }
    if least < most && figures.minutes_at_min > NEARLY * minutes {
        warnings.push("always at minReplicas: nothing is scaled by this load".to_owned());
    }
    if present.headroom < -0.1 {
        warnings.push(format!(
            "its target is {:.1} % above what a pod carries: all pods are overloaded before it scales up",
            (1.0 / (1.0 + present.headroom / 100.0) - 1.0) * 100.0
        ));
    }
    if figures.scale_events > 0 && figures.reversals * 4 > figures.scale_events {
        warnings.push(format!(
            "it flaps: {} of {} changes are against the one before, within 10 minutes",
            figures.reversals, figures.scale_events
        ));
    }
    if let Some(chosen) = &found.recommended
        && let Some(lower) = chosen.spec["minReplicas"].as_i64().filter(|lower| *lower < least)
    {
        warnings.push(format!(
            "minReplicas becomes {lower} instead of {least}: the load says nothing of nodes, zones and disruption budgets that need more (--keep min)"
        ));
    }
    if minutes < 2.0 * 1_440.0 {
        let hours = counted((minutes / 60.0).round() as i64, "hour");
        warnings.push(format!("tuned on {hours}: a day is no week"));
    }
    if doubtful {
        warnings.push(format!(
            "{} of the load can't be trusted: gaps, or more was asked for than pods could carry (plimsoll backtest lists them)",
            counted(untrusted.round() as i64, "minute")
        ));
    }
    warnings
}
