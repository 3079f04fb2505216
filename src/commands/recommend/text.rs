//! Recommendations for a person.

use super::found::Found;
use super::rewritten;
use crate::backtest::{Figures, Recommendation, Trial};
use crate::commands::backtest::{Subject, not_tried, tidy};
use crate::commands::convert;
use crate::commands::story::{counted, plain};
use crate::commands::table::{Align, table};
use std::fmt::Write;

/// The rejected ones that a person is shown.
const SHOWN: usize = 6;

/// The recommendation for one autoscaler.
pub fn of_one(subject: &Subject, one: &Found) -> String {
    let mut text = String::new();
    let Found { recommendation: found, reproduced, span, warnings, object, .. } = one;
    let Recommendation { present, recommended, reason, others, .. } = found;
    let name = subject.candidate.name.escape_debug();
    match recommended {
        Some(chosen) => {
            let (before, after) = (present.shown(), chosen.shown());
            let short = change(before.under_pod_minutes, after.under_pod_minutes, "pod-minutes");
            let cost = change(before.replica_hours, after.replica_hours, "replica-hours");
            let label = found.label().unwrap_or_default();
            let _ = writeln!(
                text,
                "{name}: {label}: {short} short and {cost} on the part that was not tuned on"
            );
            let _ = writeln!(text, "reason: {reason}");
        }
        None => {
            let _ = writeln!(text, "{name}: keep the present spec: {reason}");
        }
    }
    for warning in warnings {
        let _ = writeln!(text, "warning: {}", plain(warning));
    }
    let _ = writeln!(text, "\n{reproduced}{span}\n");
    let header = [
        "SPEC",
        "HEADROOM",
        "REPLICA-HOURS",
        "POD-MIN SHORT",
        "CHANGES",
        "REVERSALS",
        "REST: REPLICA-HOURS",
        "POD-MIN SHORT",
    ];
    let mut rows = vec![header.map(str::to_owned)];
    let plain = others.iter().filter(|trial| trial.is_plain);
    let plain = plain.filter(|trial| [5.0, 8.0, 20.0].contains(&trial.nominal));
    let recommended = recommended.iter().map(|trial| (trial, "recommended: "));
    let trials = std::iter::once((present, "")).chain(recommended);
    for (trial, mark) in trials.chain(plain.map(|trial| (trial, ""))) {
        let [tuned, later] = [&trial.tuned, trial.shown()].map(|figures: &Figures| {
            [figures.replica_hours, figures.under_pod_minutes].map(|figure| format!("{figure:.1}"))
        });
        let [hours, short] = tuned;
        let [later_hours, later_short] = later;
        rows.push([
            format!("{mark}{}", trial.label),
            trial.percent_of_headroom(),
            hours,
            short,
            trial.tuned.scale_events.to_string(),
            trial.tuned.reversals.to_string(),
            later_hours,
            later_short,
        ]);
    }
    text += &table(&rows, Align::Right);
    let mut rejected: Vec<&Trial> = others.iter().collect();
    rejected.sort_by(|one, other| {
        one.tuned.under_pod_minutes.total_cmp(&other.tuned.under_pod_minutes)
    });
    let _ = writeln!(text, "\nNot recommended:");
    for trial in rejected.iter().take(SHOWN) {
        let why = trial.ruled_out.as_deref().unwrap_or_default();
        let _ = writeln!(text, "  {}: {why}", trial.label);
    }
    if rejected.len() > SHOWN {
        let _ = writeln!(text, "  and {} more (--output json)", rejected.len() - SHOWN);
    }
    if let (Some(object), Some(chosen)) = (object, &found.recommended) {
        if !rewritten::is_kept(subject, &chosen.spec) {
            let kind = subject.kind.escape_debug();
            let _ = writeln!(text, "\nIt was a {kind}, and becomes an Autoscaler:");
        }
        let _ = write!(text, "\n{}", convert::yaml(object));
    }
    text
}

/// The recommendations for many, by what is gained on the part that was not tuned on: first those that are short of
/// fewer pods, then those that cost less.
pub fn of_many(mut found: Vec<(Subject, Found)>, failed: &[String]) -> String {
    let gain = |(_, one): &(Subject, Found)| -> (f64, f64) {
        let Recommendation { present, recommended, .. } = &one.recommendation;
        recommended.as_ref().map_or((0.0, 0.0), |chosen| {
            let (before, after) = (present.shown(), chosen.shown());
            (
                before.under_pod_minutes - after.under_pod_minutes,
                before.replica_hours - after.replica_hours,
            )
        })
    };
    found.sort_by(|one, other| {
        let ((short, cost), (other_short, other_cost)) = (gain(one), gain(other));
        other_short.total_cmp(&short).then(other_cost.total_cmp(&cost))
    });
    let better = found.iter().filter(|(_, one)| one.recommendation.recommended.is_some()).count();
    let (short, cost) =
        found.iter().map(gain).fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let mut text = format!(
        "{better} of {} {}: {:.0} pod-minutes less short and {:+.0} replica-hours, on the parts that were not tuned on, which decide whether one is recommended\n\n",
        counted(found.len() as i64, "autoscaler"),
        if found.len() == 1 { "has a better spec" } else { "have a better spec" },
        tidy(short, 0),
        tidy(-cost, 0)
    );
    let header = [
        "AUTOSCALER",
        "RECOMMENDED",
        "POD-MIN SHORT",
        "THEN",
        "REPLICA-HOURS",
        "THEN",
        "TRUST",
        "WARNINGS",
    ];
    let mut rows = vec![header.map(str::to_owned)];
    for (subject, one) in &found {
        let Recommendation { present, recommended, .. } = &one.recommendation;
        let then = |of: fn(&Figures) -> f64| {
            let chosen = recommended.as_ref().map(|chosen| format!("{:.1}", of(chosen.shown())));
            chosen.unwrap_or_else(|| "-".to_owned())
        };
        let label = one.recommendation.label().unwrap_or_else(|| "keep it".to_owned());
        rows.push([
            subject.to_string(),
            label,
            format!("{:.1}", present.shown().under_pod_minutes),
            then(|figures| figures.under_pod_minutes),
            format!("{:.1}", present.shown().replica_hours),
            then(|figures| figures.replica_hours),
            one.reproduction
                .as_ref()
                .map_or("-".to_owned(), |one| format!("{:?}", one.trust).to_ascii_lowercase()),
            one.warnings.len().to_string(),
        ]);
    }
    text += &table(&rows, Align::Right);
    if found.iter().any(|(_, one)| !one.warnings.is_empty()) {
        text += "\nWarnings:\n";
    }
    for (subject, one) in &found {
        for warning in &one.warnings {
            let _ = writeln!(text, "  {subject}: {}", plain(warning));
        }
    }
    text += &not_tried(failed);
    if better > 0 {
        text += "\n--output yaml writes the objects, -f of one file shows why.\n";
    }
    text
}

/// A change in percent of what is there now.
fn change(before: f64, after: f64, what: &str) -> String {
    match before > 0.0 {
        true => format!("{:+.1} % {what}", tidy((after / before - 1.0) * 100.0, 1)),
        false if after > 0.0 => format!("{after:.1} {what} instead of none"),
        false => format!("as before, no {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_by_what_was() {
        for (before, after, expected) in [
            (10.0, 5.0, "-50.0 % pod-minutes"),
            (0.0, 5.0, "5.0 pod-minutes instead of none"),
            (0.0, 0.0, "as before, no pod-minutes"),
        ] {
            assert_eq!(change(before, after, "pod-minutes"), expected);
        }
    }
}
