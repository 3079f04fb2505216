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
    if spec["behavior"]["scaleUp"]["selectPolicy"] == "Disabled" {
        warnings.push("it never scales up: behavior.scaleUp.selectPolicy is Disabled".to_owned());
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
    if let Some(chosen) =
        found.recommended.as_ref().filter(|one| one.headroom < present.headroom - 0.1)
    {
        warnings.push(format!(
            "its headroom becomes {} instead of {}",
            chosen.percent_of_headroom(),
            present.percent_of_headroom()
        ));
    }
    if let Some(doubt) = &found.doubt {
        warnings.push(format!("nothing becomes cheaper, as {doubt}"));
    }
    if doubtful {
        warnings.push(format!(
            "{} of the load can't be trusted: gaps, the same value for hours, or more was asked for than pods could carry (plimsoll backtest lists them)",
            counted(untrusted.round() as i64, "minute")
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backtest::{Figures, Load, Trial};
    use serde_json::json;

    const DAY_MS: i64 = 86_400_000;
    const DAY: f64 = 1_440.0;

    fn spec(least: i64, most: i64) -> Value {
        json!({"minReplicas": least, "maxReplicas": most})
    }

    /// A spec that was tried on three days, with nothing to say of it.
    fn trial(spec: Value) -> Trial {
        let tuned = Figures {
            name: "web".to_owned(),
            replica_hours: 300.0,
            needed_replica_hours: 250.0,
            under_minutes: 0.0,
            under_pod_minutes: 0.0,
            worst_under: None,
            over_pod_minutes: 0.0,
            scale_events: 40,
            reversals: 2,
            minutes_at_min: DAY,
            minutes_at_max: 0.0,
        };
        Trial {
            label: "present".to_owned(),
            spec,
            headroom: 10.0,
            nominal: 10.0,
            is_plain: true,
            tuned,
            later: None,
            ruled_out: None,
        }
    }

    /// What is said of a spec, of which the load needs eight pods at most, after a change of what was found.
    fn said_of(spec: Value, load: &Load, change: impl Fn(&mut Recommendation)) -> Vec<String> {
        let mut found = Recommendation {
            present: trial(spec.clone()),
            recommended: None,
            reason: String::new(),
            doubt: None,
            others: Vec::new(),
            split: 3 * DAY_MS,
            most_needed: 8,
        };
        change(&mut found);
        warnings(&found, &spec, &Trace::File(load.clone()))
    }

    /// Five days of a load that varies, with a point each ten minutes, without those of a time.
    fn load(gap: std::ops::Range<i64>) -> Load {
        let known = (0..720_i64).filter(|row| !gap.contains(row));
        Load::of(known.map(|row| (row * 600_000, (row * 7_919 % 101) as f64, row == gap.end)))
    }

    #[test]
    fn a_spec_without_a_mistake_has_no_warning() {
        assert_eq!(said_of(spec(1, 20), &load(0..0), |_| {}), [""; 0]);
    }

    #[test]
    fn probable_mistakes_of_a_spec_are_told() {
        type Change = fn(&mut Recommendation);
        let mut still = spec(1, 20);
        still["behavior"] = json!({"scaleUp": {"selectPolicy": "Disabled"}});
        let cases: [(Value, Change, &str); 11] = [
            (still, |_| {}, "it never scales up: behavior.scaleUp.selectPolicy is Disabled"),
            (spec(5, 5), |_| {}, "minReplicas is maxReplicas (5): nothing is scaled"),
            (
                spec(1, 10),
                |found| found.present.tuned.minutes_at_max = 2.9 * DAY,
                "always at maxReplicas (10): the load can't be followed",
            ),
            (
                spec(1, 10),
                |found| found.present.tuned.minutes_at_max = 90.0,
                "at maxReplicas (10) for 1.5 hours: while it is there, load that grows is not followed; it needs 8 at most",
            ),
            (
                spec(1, 10),
                |found| {
                    found.present.tuned.minutes_at_max = 6.0;
                    found.present.tuned.under_minutes = 6.0;
                },
                "at maxReplicas (10) for 0.1 hours",
            ),
            (spec(1, 41), |_| {}, "never near maxReplicas (41): the load needs 8 at most, so that"),
            (
                spec(1, 20),
                |found| found.present.tuned.minutes_at_min = 2.9 * DAY,
                "always at minReplicas: nothing is scaled by this load",
            ),
            (
                spec(1, 20),
                |found| found.present.headroom = -20.0,
                "its target is 25.0 % above what a pod carries",
            ),
            (
                spec(1, 20),
                |found| found.present.tuned.reversals = 11,
                "it flaps: 11 of 40 changes are against the one before",
            ),
            (
                spec(1, 20),
                |found| {
                    let lower = Trial { headroom: 4.96, ..trial(spec(1, 20)) };
                    found.recommended = Some(lower);
                },
                "its headroom becomes 5 % instead of 10 %",
            ),
            (
                spec(3, 20),
                |found| found.recommended = Some(trial(spec(2, 20))),
                "minReplicas becomes 2 instead of 3: the load says nothing of nodes",
            ),
        ];
        for (spec, change, expected) in cases {
            let said = said_of(spec, &load(0..0), change);
            assert!(said.len() == 1 && said[0].starts_with(expected), "{expected}: {said:?}");
        }
    }

    #[test]
    fn load_that_says_little_is_told() {
        let short = said_of(spec(1, 20), &load(0..0), |found| {
            found.doubt = Some("less than a week of the load is known".to_owned());
        });
        assert_eq!(short, ["nothing becomes cheaper, as less than a week of the load is known"]);
        // A gap of two hours is between rows that are ten minutes before and after it.
        let gap = load(100..111);
        let said = said_of(spec(1, 20), &gap, |_| {});
        assert!(
            said.len() == 1 && said[0].starts_with("120 minutes of the load can't"),
            "{said:?}"
        );
        let said = said_of(spec(1, 41), &gap, |_| {});
        assert!(said[0].contains("the load needs 8 or more, as more may have been"), "{said:?}");
    }
}
