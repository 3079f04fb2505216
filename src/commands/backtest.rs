//! `plimsoll backtest`: autoscalers on recorded load.

use super::table::{Align, table};
use super::{convert, objects};
use crate::backtest::{self, Candidate, Figures, Load, LowConfidence, Options, Run};
use crate::config::{BacktestFlags, Moment, OutputFormat};
use crate::time::UnixMillis;
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// The most bytes of a file of load after it is decompressed.
const MAX_LOAD_BYTES: u64 = 512 << 20;

/// The result for all candidates, as `--output json` has it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    candidates: Vec<Tried>,
    from: Value,
    to: Value,
    ticks: i64,
    low_confidence: Vec<LowConfidence>,
}

#[derive(Serialize)]
struct Tried {
    #[serde(flatten)]
    figures: Figures,
    replicas: Vec<(Value, usize, i32)>,
}

/// Tries the Autoscalers of files on a load, and returns what is to be printed.
///
/// # Errors
/// If a file can't be read, or has no autoscaler that can be tried.
pub fn run(flags: &BacktestFlags) -> Result<String, String> {
    let in_file = |error: String| format!("{}: {error}", flags.load.display());
    let load = load(&flags.load).map_err(in_file)?;
    let load = match (flags.from, flags.to) {
        (None, None) => load,
        (from, to) => {
            let time = |moment: Moment| moment.before(load.last());
            load.between(from.map(time), to.map(time)).map_err(in_file)?
        }
    };
    let mut candidates = Vec::new();
    for path in &flags.files {
        let found = read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        candidates.extend(found.into_iter().map(|candidate| (path, candidate)));
    }
    // Of the same name, the file tells them apart.
    let names: Vec<String> = candidates.iter().map(|(_, one)| one.name.clone()).collect();
    for (path, candidate) in &mut candidates {
        if names.iter().filter(|name| **name == candidate.name).count() > 1 {
            candidate.name = format!("{} ({})", candidate.name, path.display());
        }
    }
    let options = Options {
        pod_start: flags.pod_start,
        window: flags.window,
        scrape_interval: flags.scrape_interval,
        warm_up: flags.warm_up,
        period: flags.period,
    };
    let mut runs = Vec::new();
    for (_, candidate) in &candidates {
        let run = backtest::run(candidate, &load, &options);
        runs.push(run.map_err(|error| format!("{}: {error}", candidate.name))?);
    }
    let low_confidence = backtest::low_confidence(&load);
    Ok(match flags.output {
        OutputFormat::Text => text(&runs, &load, &low_confidence),
        OutputFormat::Json => {
            let report = report(runs, &load, low_confidence);
            let text = serde_json::to_string(&report).expect("numbers and texts are JSON");
            text + "\n"
        }
    })
}

fn load(path: &Path) -> Result<Load, String> {
    let file: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(File::open(path).map_err(|error| error.to_string())?),
    };
    let is_gzip = path.extension().is_some_and(|extension| extension == "gz");
    let bytes: Box<dyn Read> = match is_gzip {
        true => Box::new(flate2::read::MultiGzDecoder::new(file)),
        false => file,
    };
    Load::read(BufReader::new(bytes.take(MAX_LOAD_BYTES))).map_err(|error| error.to_string())
}

/// The candidates of a file: Autoscalers, and what becomes one.
fn read(path: &Path) -> Result<Vec<Candidate>, String> {
    let text = objects::read(path)?;
    let mut converted = convert::Converted::default();
    convert::convert(&text, &mut converted)?;
    if let Some(error) = converted.errors.first() {
        return Err(error.clone());
    }
    let mut candidates = Vec::new();
    for object in converted.objects {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let (name, namespace) = (text("/metadata/name"), text("/metadata/namespace"));
        let candidate = Candidate::new(name, namespace, object["spec"].clone());
        candidates.push(candidate.map_err(|error| format!("{name}: {error}"))?);
    }
    if candidates.is_empty() {
        return Err("there is no Autoscaler, HorizontalPodAutoscaler or ScaledObject in it".into());
    }
    Ok(candidates)
}

fn report(runs: Vec<Run>, load: &Load, low_confidence: Vec<LowConfidence>) -> Report {
    let last = runs.iter().map(|run| run.last).max().unwrap_or(load.last());
    let ticks = runs.iter().map(|run| run.ticks).max().unwrap_or_default();
    let tried = |run: Run| Tried {
        figures: run.figures,
        replicas: run
            .replicas
            .into_iter()
            .map(|(time, ready, wanted)| (seconds(time), ready, wanted))
            .collect(),
    };
    Report {
        candidates: runs.into_iter().map(tried).collect(),
        from: seconds(load.first()),
        to: seconds(last),
        ticks,
        low_confidence,
    }
}

/// Unix seconds: a whole number where it is one.
fn seconds(time: UnixMillis) -> Value {
    match time % 1000 {
        0 => json!(time / 1000),
        _ => json!(time as f64 / 1000.0),
    }
}

fn shown(time: UnixMillis) -> String {
    jiff::Timestamp::from_second(time.div_euclid(1000)).unwrap_or_default().to_string()
}

/// For a person: the verdict, and a table below.
fn text(runs: &[Run], load: &Load, low_confidence: &[LowConfidence]) -> String {
    let mut text = String::new();
    for run in runs {
        text += &verdict(&run.figures);
    }
    if let [first, others @ ..] = runs {
        for other in others {
            text += &comparison(&first.figures, &other.figures);
        }
    }
    let last = runs.iter().map(|run| run.last).max().unwrap_or(load.last());
    let days = (last - load.first()) as f64 / 86_400_000.0;
    let ticks = runs.first().map_or(0, |run| run.ticks);
    let (from, to) = (shown(load.first()), shown(last));
    let _ = writeln!(text, "\n{ticks} decisions in {days:.1} days, from {from} to {to}\n");
    let header = [
        "NAME",
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
    let mut rows = vec![header.map(str::to_owned)];
    for Run { figures, .. } in runs {
        rows.push([
            figures.name.clone(),
            format!("{:.1}", figures.replica_hours),
            format!("{:.1}", figures.needed_replica_hours),
            format!("{:.1}", figures.under_minutes),
            format!("{:.1}", figures.under_pod_minutes),
            format!("{:.1}", figures.over_pod_minutes),
            figures.scale_events.to_string(),
            figures.reversals.to_string(),
            format!("{:.1}", figures.minutes_at_min),
            format!("{:.1}", figures.minutes_at_max),
        ]);
    }
    text += &table(&rows, Align::Right);
    if !low_confidence.is_empty() {
        let minutes: f64 = low_confidence.iter().map(|part| (part.to - part.from) / 60.0).sum();
        let parts = low_confidence.len();
        let _ = writeln!(text, "\nLow confidence: {minutes:.0} minutes in {parts} parts");
        const SHOWN: usize = 5;
        for part in low_confidence.iter().take(SHOWN) {
            let at = |seconds: f64| shown((seconds * 1000.0) as UnixMillis);
            let _ = writeln!(text, "  {} to {}: {}", at(part.from), at(part.to), part.reason);
        }
        if parts > SHOWN {
            let _ = writeln!(text, "  and {} more (--output json)", parts - SHOWN);
        }
    }
    text
}

fn verdict(figures: &Figures) -> String {
    let name = figures.name.escape_debug();
    let cost = figures.replica_hours;
    match figures.worst_under {
        None => format!("{name}: {cost:.1} replica-hours, and never short of pods\n"),
        Some(worst) => format!(
            "{name}: {cost:.1} replica-hours, and short of pods for {:.1} minutes: at worst {} of {} ready, at {}\n",
            figures.under_minutes,
            worst.ready,
            worst.needed,
            shown((worst.time * 1000.0) as UnixMillis)
        ),
    }
}

/// The second against the first.
fn comparison(first: &Figures, second: &Figures) -> String {
    let share = (second.replica_hours / first.replica_hours - 1.0) * 100.0;
    let cost = match share.is_finite() {
        true => format!("{share:+.1} % replica-hours"),
        false => "replica-hours that can't be compared".to_owned(),
    };
    format!(
        "{} against {}: {cost}, {:+.1} pod-minutes short, {:+} changes\n",
        second.name.escape_debug(),
        first.name.escape_debug(),
        second.under_pod_minutes - first.under_pod_minutes,
        second.scale_events as i64 - first.scale_events as i64
    )
}
