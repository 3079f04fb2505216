//! The report for a person.

use super::report::{FromPrometheus, Tried, queue};
use crate::backtest::{self, Agreement, Figures, LowConfidence, Run, Trust};
use crate::commands::story::{self, plain, plain_lines};
use crate::commands::table::{Align, table};
use crate::time::UnixMillis;
use std::fmt::Write;

/// What the columns of the table mean.
pub const TERMS: &str = "NEEDED: hours of the pods that the load needs. MIN SHORT: minutes with fewer pods ready than needed. POD-MIN SHORT, POD-MIN OVER: the pods that are short or too many, times minutes. REVERSALS: changes against the one before within 10 minutes.";

/// For a person: the verdict, and a table below.
pub fn text(tried: &Tried) -> String {
    let Tried { runs, low_confidence, recorded, judged, .. } = tried;
    let mut text = String::new();
    if let Some(recorded) = recorded {
        text += &reproduced(recorded);
        text.push('\n');
    }
    for line in verdicts(runs).iter().chain(judged) {
        text += line;
        text.push('\n');
    }
    if let Some(rate) = tried.options.service_rate {
        let _ = writeln!(text, "{}", queue(rate));
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
    text
}

/// What each candidate costs and leaves short, and each against the first one.
pub fn verdicts(runs: &[Run]) -> Vec<String> {
    let mut lines: Vec<String> = runs.iter().map(|run| verdict(&run.figures)).collect();
    if let [first, others @ ..] = runs {
        lines.extend(others.iter().map(|other| comparison(&first.figures, &other.figures)));
    }
    lines
}

/// How many decisions were made, and when.
pub fn span(tried: &Tried) -> String {
    let Tried { runs, .. } = tried;
    let (first, last) = tried.span();
    let days = (last - first) as f64 / 86_400_000.0;
    let ticks = runs.first().map_or(0, |run| run.ticks);
    let decisions = story::counted(ticks, "decision");
    format!("{decisions} in {days:.1} days, from {} to {}", shown(first), shown(last))
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
    let number = |number: f64| format!("{number:.1}");
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

fn verdict(figures: &Figures) -> String {
    let name = plain(&figures.name);
    let cost = figures.replica_hours;
    match figures.worst_under {
        None => format!("{name}: {cost:.1} replica-hours, and never short of pods"),
        Some(worst) => format!(
            "{name}: {cost:.1} replica-hours, and short of pods for {:.1} minutes: at worst {} of {} ready, at {}",
            figures.under_minutes,
            worst.ready,
            worst.needed,
            shown((worst.time * 1000.0) as UnixMillis)
        ),
    }
}

/// The second against the first.
fn comparison(first: &Figures, second: &Figures) -> String {
    let share = tidy((second.replica_hours / first.replica_hours - 1.0) * 100.0, 1);
    let cost = match share.is_finite() {
        true => format!("{share:+.1} % replica-hours"),
        false => "replica-hours that can't be compared".to_owned(),
    };
    format!(
        "{} against {}: {cost}, {:+.1} pod-minutes short, {:+} changes",
        plain(&second.name),
        plain(&first.name),
        tidy(second.under_pod_minutes - first.under_pod_minutes, 1),
        second.scale_events as i64 - first.scale_events as i64
    )
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
            text += "Not compared with what was: no sample of kube-state-metrics, and none of pods, says how many replicas there were after a decision\n"
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
