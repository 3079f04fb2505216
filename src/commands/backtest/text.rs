//! The report for a person.

use super::report::{FromPrometheus, Tried};
use crate::backtest::{self, Agreement, Figures, LowConfidence, Run, Trust};
use crate::commands::story::{self, plain, plain_lines};
use crate::commands::table::{Align, table};
use crate::time::UnixMillis;
use std::fmt::Write;

/// What the columns of the table mean.
pub const TERMS: &str = "NEEDED: hours of the pods that the load needs. MIN SHORT: minutes with fewer pods ready than needed. POD-MIN SHORT, POD-MIN OVER: the pods that are short or too many, times minutes. REVERSALS: changes against the one before within 10 minutes.";

const DAY_MS: i64 = 86_400_000;
/// Where as great a share of the load is unknown, that is said of its figures.
const UNKNOWN: f64 = 0.1;
/// Where runs are counted for times that differ by as great a share, as their periods differ, their costs are compared
/// by the minute.
const UNEQUAL: f64 = 0.01;

/// For a person: the verdict, and a table below.
pub fn text(tried: &Tried) -> String {
    let Tried { runs, low_confidence, recorded, .. } = tried;
    let mut text = String::new();
    if let Some(recorded) = recorded {
        text += &reproduced(recorded);
        text.push('\n');
    }
    for line in verdicts(runs).iter().chain(&tried.basis()).chain(&tried.doubts()) {
        text += line;
        text.push('\n');
    }
    let _ = writeln!(text, "\n{}\n", span(tried));
    text += &table(&rows(runs), Align::Right);
    if !low_confidence.is_empty() {
        let minutes = backtest::minutes(low_confidence);
        let parts = low_confidence.len();
        let counted = [(minutes.round() as i64, "minute"), (parts as i64, "part")];
        let [minutes, in_parts] = counted.map(|(count, one)| story::counted(count, one));
        let _ = writeln!(text, "\nLow confidence: {minutes} in {in_parts}");
        const SHOWN: usize = 5;
        for one in low_confidence.iter().take(SHOWN) {
            let _ = writeln!(text, "  {}", part(one));
        }
        if parts > SHOWN {
            let _ = writeln!(text, "  and {} more (--output json)", parts - SHOWN);
        }
    }
    let loads: Vec<String> = tried.loads();
    if !loads.is_empty() {
        let _ = writeln!(text, "\nAssumed: {}", plain(&loads.join(" ")));
    }
    text
}

/// What each candidate costs and leaves short, and each against the first one.
pub fn verdicts(runs: &[Run]) -> Vec<String> {
    let mut lines: Vec<String> = runs.iter().map(verdict).collect();
    if let [first, others @ ..] = runs {
        lines.extend(others.iter().map(|other| comparison(first, other)));
    }
    lines
}

/// How many decisions were made, and when.
pub fn span(tried: &Tried) -> String {
    let (first, last) = tried.span();
    let decisions = story::counted(tried.ticks(), "decision");
    let length = match last - first {
        ms @ DAY_MS.. => format!("{:.1} days", ms as f64 / DAY_MS as f64),
        ms => story::span(ms),
    };
    format!("{decisions} in {length}, from {} to {}", shown(first), shown(last))
}

/// The table of figures, its header first.
pub fn rows(runs: &[Run]) -> Vec<Vec<String>> {
    let row = |run: &Run| row(plain(&run.figures.name).into_owned(), &run.figures);
    std::iter::once(header("NAME")).chain(runs.iter().map(row)).collect()
}

/// The header of a table of figures: the name of its first column, and those of the figures.
pub fn header(first: &str) -> Vec<String> {
    let columns = [
        first,
        "REPLICA-HOURS",
        "NEEDED",
        "MIN SHORT",
        "POD-MIN SHORT",
        "POD-MIN OVER",
        "CHANGES",
        "REVERSALS",
        "MIN AT MIN",
        "MIN AT MAX",
    ];
    columns.map(str::to_owned).to_vec()
}

/// A row below it.
pub fn row(first: String, figures: &Figures) -> Vec<String> {
    vec![
        first,
        number(figures.replica_hours),
        number(figures.needed_replica_hours),
        number(figures.under_minutes),
        number(figures.under_pod_minutes),
        number(figures.over_pod_minutes),
        figures.scale_events.to_string(),
        figures.reversals.to_string(),
        number(figures.minutes_at_min),
        number(figures.minutes_at_max),
    ]
}

/// A part of low confidence, and why.
pub fn part(part: &LowConfidence) -> String {
    let at = |seconds: f64| shown((seconds * 1000.0) as UnixMillis);
    format!("{} to {}: {}", at(part.from), at(part.to), part.reason)
}

/// A time to the second.
pub fn shown(time: UnixMillis) -> String {
    jiff::Timestamp::from_second(time.div_euclid(1000)).unwrap_or_default().to_string()
}

fn verdict(run: &Run) -> String {
    let Run { figures, minutes, .. } = run;
    let cost = format!("{}: {} replica-hours", plain(&figures.name), number(figures.replica_hours));
    // A gap needs nothing, so that it is never short.
    let of_known = match minutes.known <= minutes.counted * (1.0 - UNKNOWN) {
        true => {
            let [known, counted] = [minutes.known, minutes.counted].map(number);
            format!(" in the {known} of {counted} minutes in which the load is known")
        }
        false => String::new(),
    };
    match figures.worst_under {
        None => format!("{cost}, and never short of pods{of_known}"),
        Some(worst) => format!(
            "{cost}, and short of pods for {} minutes{of_known}: at worst {} of {} ready, at {}",
            number(figures.under_minutes),
            worst.ready,
            worst.needed,
            shown((worst.time * 1000.0) as UnixMillis)
        ),
    }
}

/// What a second run costs against the first in percent, and whether that is by the minute, as they are counted for
/// unequal times. None if it can't be compared.
pub fn cost_against(first: &Run, second: &Run) -> Option<(f64, bool)> {
    let [one, other] = [first, second].map(|run| run.minutes.counted);
    let is_by_minute = (one - other).abs() > UNEQUAL * one.max(other);
    let per_minute = if is_by_minute { one / other } else { 1.0 };
    let share = second.figures.replica_hours / first.figures.replica_hours * per_minute - 1.0;
    share.is_finite().then(|| (tidy(share * 100.0, 1), is_by_minute))
}

/// The second against the first.
fn comparison(first: &Run, second: &Run) -> String {
    let cost = match cost_against(first, second) {
        Some((share, false)) => format!("{share:+.1} % replica-hours"),
        Some((share, true)) => {
            let [one, other] = [first, second].map(|run| number(run.minutes.counted));
            format!(
                "{share:+.1} % replicas on average (they are counted for {other} and {one} minutes)"
            )
        }
        None => "replica-hours that can't be compared".to_owned(),
    };
    let [first, second] = [first, second].map(|run| &run.figures);
    let short = second.under_pod_minutes - first.under_pod_minutes;
    let digits = digits(short);
    format!(
        "{} against {}: {cost}, {:+.digits$} pod-minutes short, {:+} changes",
        plain(&second.name),
        plain(&first.name),
        tidy(short, digits as i32),
        second.scale_events as i64 - first.scale_events as i64
    )
}

/// A number with a digit after the point, and with two where it is below 0.1, so that little is not none.
pub fn number(number: f64) -> String {
    format!("{number:.*}", digits(number))
}

fn digits(number: f64) -> usize {
    if number.abs() < 0.1 && tidy(number, 2) != 0.0 { 2 } else { 1 }
}

/// A number rounded to so many digits after the point, which is no `-0`.
pub fn tidy(number: f64, digits: i32) -> f64 {
    let unit = 10_f64.powi(digits);
    (number * unit).round() / unit + 0.0
}

/// The error where none of several autoscalers could be tried.
pub fn none_tried(failed: &[String]) -> String {
    let count = failed.len();
    failed.iter().fold(format!("none of {count} autoscalers could be tried:"), |text, error| {
        text + "\n  " + &plain_lines(error)
    })
}

/// What of the past was reproduced, and how much the rest can be trusted.
pub fn reproduced(recorded: &FromPrometheus) -> String {
    let mut text = String::new();
    match &recorded.reproduction {
        None => {
            text += "Not compared with what was: in the last day of it, no sample of kube-state-metrics or of pods says how many replicas there were after a decision\n"
        }
        Some(reproduction) => {
            let share = |share: f64| format!("{:.1} %", share * 100.0);
            let of = |agreement: &Agreement| {
                format!(
                    "{} equal, {} within one",
                    share(agreement.equal),
                    share(agreement.within_one)
                )
            };
            let agreement = &reproduction.agreement;
            let _ = writeln!(
                text,
                "Reproduced by {}: of {} {}, {:.2} replicas apart on average ({}, {})",
                plain(&reproduction.name),
                story::counted(agreement.ticks, "decision"),
                of(agreement),
                agreement.mean_difference,
                plain(&reproduction.source),
                story::counted(reproduction.changes as i64, "change"),
            );
            let _ = writeln!(
                text,
                "  beside it, replicas as at the start: {}; as many as the load needs: {}",
                of(&reproduction.stay),
                of(&reproduction.needed)
            );
            text += match reproduction.trust {
                Trust::High => "  trust: high\n",
                Trust::Medium if reproduction.is_untested() => {
                    "  trust: medium: so little changed that this proves little\n"
                }
                Trust::Medium => {
                    "  trust: medium: figures below are near, single decisions are not\n"
                }
                Trust::Low => "  trust: low: what follows is not what would have been\n",
            };
            for unknown in &reproduction.unknown {
                let _ = writeln!(text, "  not known: {unknown}");
            }
        }
    }
    let start = &recorded.pod_start;
    let _ = write!(text, "Pods take {:.0} s to become ready", start.seconds);
    if let Some(p90) = start.p90 {
        let _ = write!(text, " (median; nine of ten at most {p90:.0} s)");
    }
    let _ = writeln!(text, ": {}", start.source);
    text
}
