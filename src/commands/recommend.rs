//! `plimsoll recommend`: a better spec for an Autoscaler, by recorded load.

use super::convert;
use super::table::{Align, table};
use super::{backtest, objects};
use crate::backtest::{
    Figures, Limits, Load, Options, Recommendation, Trial, low_confidence, search,
};
use crate::config::{Moment, RecommendFlags, RecommendFormat};
use serde_json::{Value, json};
use std::fmt::Write;

/// The rejected ones that a person is shown.
const SHOWN: usize = 6;

/// Searches, and returns what is to be printed.
///
/// # Errors
/// If a file can't be read, or has no Autoscaler that can be tried.
pub fn run(flags: &RecommendFlags) -> Result<String, String> {
    let in_load = |error: String| format!("{}: {error}", flags.load.display());
    let load = backtest::load(&flags.load).map_err(in_load)?;
    let time = |moment: Moment| moment.before(load.last());
    let load = match (flags.from, flags.to) {
        (None, None) => load,
        (from, to) => load.between(from.map(time), to.map(time)).map_err(in_load)?,
    };
    let in_file = |error: String| format!("{}: {error}", flags.file.display());
    let text = objects::read(&flags.file).map_err(in_file)?;
    let converted = convert::convert_all(&text).map_err(in_file)?;
    let [object] = &*converted else {
        let count = converted.len();
        return Err(in_file(format!("{count} autoscalers: one was expected")));
    };
    let written = objects::parse(&text).unwrap_or_default();
    let kind = written.first().and_then(|written| written["kind"].as_str()).unwrap_or_default();
    let options = Options {
        pod_start: flags.pod_start,
        window: flags.window,
        scrape_interval: flags.scrape_interval,
        warm_up: std::time::Duration::ZERO,
        period: flags.period,
    };
    let limits = Limits {
        budget: flags.budget,
        under_minutes: flags.max_under_minutes,
        headroom: flags.min_headroom,
    };
    let part = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let (name, namespace) = (part("/metadata/name"), part("/metadata/namespace"));
    let spec = &object["spec"];
    let found = search((name, namespace), spec, flags.pod_carries, &load, &options, limits);
    let found = found.map_err(|error| format!("{}: {error}", name.escape_debug()))?;
    let chosen = found.recommended.as_ref().unwrap_or(&found.present);
    let mut better = object.clone();
    better["spec"] = chosen.spec.clone();
    Ok(match flags.output {
        RecommendFormat::Text => text_of(name, &found, &load, (spec, kind), &better),
        RecommendFormat::Json => {
            let mut report = json!(found);
            report["object"] = better;
            report.to_string() + "\n"
        }
        RecommendFormat::Yaml => convert::yaml(&better),
    })
}

fn text_of(
    name: &str,
    found: &Recommendation,
    load: &Load,
    (spec, kind): (&Value, &str),
    object: &Value,
) -> String {
    let mut text = String::new();
    let name = name.escape_debug();
    let present = &found.present;
    match &found.recommended {
        Some(chosen) => {
            let _ = writeln!(
                text,
                "{name}: {}: {} short and {} on the part that was not tuned on",
                chosen.label,
                change(
                    present.later.under_pod_minutes,
                    chosen.later.under_pod_minutes,
                    "pod-minutes"
                ),
                change(present.later.replica_hours, chosen.later.replica_hours, "replica-hours"),
            );
        }
        None => {
            let _ = writeln!(text, "{name}: keep the present spec: {}", found.reason);
        }
    }
    let tuned_minutes = (found.split - load.first()) as f64 / 60_000.0;
    for warning in lint(present, spec, tuned_minutes) {
        let _ = writeln!(text, "warning: {warning}");
    }
    if tuned_minutes < 2.0 * 1_440.0 {
        let hours = tuned_minutes / 60.0;
        let _ = writeln!(text, "warning: tuned on {hours:.0} hours: a day is no week");
    }
    let untrusted: f64 = low_confidence(load).iter().map(|part| (part.to - part.from) / 60.0).sum();
    if untrusted > 0.0 {
        let _ = writeln!(
            text,
            "warning: {untrusted:.0} minutes of the load can't be trusted: gaps, or more was asked for than pods could carry (plimsoll backtest lists them)"
        );
    }
    let shown = backtest::shown;
    let _ = writeln!(
        text,
        "\nTuned on {} to {}, shown on the rest, until {}\n",
        shown(load.first()),
        shown(found.split),
        shown(load.last())
    );
    let header = [
        "SPEC",
        "REPLICA-HOURS",
        "POD-MIN SHORT",
        "CHANGES",
        "REST: REPLICA-HOURS",
        "POD-MIN SHORT",
    ];
    let mut rows = vec![header.map(str::to_owned)];
    let plain = found.others.iter().filter(|trial| trial.is_plain);
    let plain = plain.filter(|trial| [5.0, 8.0, 20.0].contains(&trial.nominal));
    let recommended = found.recommended.iter().map(|trial| (trial, "recommended: "));
    let trials = std::iter::once((present, "")).chain(recommended);
    for (trial, mark) in trials.chain(plain.map(|trial| (trial, ""))) {
        let [tuned, later] = [&trial.tuned, &trial.later].map(|figures: &Figures| {
            [figures.replica_hours, figures.under_pod_minutes].map(|figure| format!("{figure:.1}"))
        });
        let [hours, short] = tuned;
        let [later_hours, later_short] = later;
        let changes = trial.tuned.scale_events.to_string();
        rows.push([
            format!("{mark}{}", trial.label),
            hours,
            short,
            changes,
            later_hours,
            later_short,
        ]);
    }
    text += &table(&rows, Align::Right);
    let mut rejected: Vec<&Trial> = found.others.iter().collect();
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
    if found.recommended.is_some() {
        if spec != &object["spec"] && kind != "Autoscaler" {
            let _ =
                writeln!(text, "\nIt was a {}, and becomes an Autoscaler:", kind.escape_debug());
        }
        let _ = write!(text, "\n{}", convert::yaml(object));
    }
    text
}

/// A change in percent of what is there now.
fn change(before: f64, after: f64, what: &str) -> String {
    match before > 0.0 {
        true => format!("{:+.1} % {what}", (after / before - 1.0) * 100.0),
        false => format!("{after:.1} {what} instead of none"),
    }
}

/// What is probably a mistake in the present spec.
fn lint(present: &Trial, spec: &Value, minutes: f64) -> Vec<String> {
    let mut warnings = Vec::new();
    let figures = &present.tuned;
    let most = spec["maxReplicas"].as_i64().unwrap_or_default();
    let hours = |minutes: f64| minutes / 60.0;
    if figures.minutes_at_max > 0.0 && figures.under_minutes > 0.0 {
        warnings.push(format!(
            "at maxReplicas ({most}) for {:.1} hours: while it is there, load that grows is not followed",
            hours(figures.minutes_at_max)
        ));
    }
    if figures.minutes_at_min > 0.95 * minutes {
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
    warnings
}
