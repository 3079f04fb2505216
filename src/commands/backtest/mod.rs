//! `plimsoll backtest`: autoscalers on recorded load.

mod glyphs;
mod html;
mod json;
mod page_data;
mod picture;
mod png;
mod recorded;
mod report;
mod scene;
mod svg;
#[cfg(test)]
mod tests;
mod text;

pub(super) use text::shown;

use super::{convert, objects};
use crate::backtest::{self, Candidate, Load};
use crate::config::{BacktestFlags, Moment, ReportFormat};
use report::{Bounds, POD_START, Tried};
use serde_json::Value;
use std::fs::File;
use std::io::{BufReader, IsTerminal, Read};
use std::path::Path;

/// The most bytes of a file of load after it is decompressed.
const MAX_LOAD_BYTES: u64 = 512 << 20;
/// Tries the Autoscalers of files on a load, and returns what is to be printed.
///
/// # Errors
/// If a file can't be read, or has no autoscaler that can be tried, or a picture would go to a terminal.
pub async fn run(flags: &BacktestFlags) -> Result<Vec<u8>, String> {
    refuse(flags.output, std::io::stdout().is_terminal())?;
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
    let mut candidates: Vec<Candidate> = candidates.into_iter().map(|(_, one)| one).collect();
    if let Some(pod_carries) = flags.pod_carries {
        for candidate in &mut candidates {
            candidate.only_metric().map_err(|error| format!("--pod-carries: {error}"))?;
            candidate.metrics[0].pod_carries = Some(pod_carries);
        }
    }
    if let Some(bounds) = Bounds::of(flags.output) {
        bounds.check(candidates.len())?;
    }
    let tried = match (&flags.load, &flags.prometheus_url) {
        (Some(path), _) => on_file(flags, path, candidates)?,
        (None, Some(url)) => recorded::run(flags, url, candidates).await?,
        (None, None) => return Err("--load or --prometheus-url was expected".to_owned()),
    };
    Ok(match flags.output {
        ReportFormat::Text => text::text(&tried).into_bytes(),
        ReportFormat::Json => json::json(tried).into_bytes(),
        ReportFormat::Html => html::html(&tried).into_bytes(),
        ReportFormat::Svg => svg::svg(&picture::picture(&tried)).into_bytes(),
        ReportFormat::Png => png::png(&picture::picture(&tried)),
    })
}

/// Refuses what a terminal can't show.
fn refuse(format: ReportFormat, is_terminal: bool) -> Result<(), String> {
    match (format, is_terminal) {
        (ReportFormat::Png, true) => Err("--output png: the standard output is a terminal, and a PNG is binary; write it to a file: > report.png".to_owned()),
        _ => Ok(()),
    }
}

fn on_file(
    flags: &BacktestFlags,
    path: &Path,
    candidates: Vec<Candidate>,
) -> Result<Tried, String> {
    let in_file = |error: String| format!("{}: {error}", path.display());
    let load = load(path).map_err(in_file)?;
    let load = match (flags.from, flags.to) {
        (None, None) => load,
        (from, to) => {
            let time = |moment: Moment| moment.before(load.last());
            load.between(from.map(time), to.map(time)).map_err(in_file)?
        }
    };
    let options = flags.options(POD_START);
    let bounds = Bounds::of(flags.output);
    let (mut runs, mut recordings) = (Vec::new(), Vec::new());
    for candidate in &candidates {
        let span = (load.first(), load.last());
        let mut recording = bounds.map(|one| one.recording(candidate, &candidates, &options, span));
        let run = backtest::run_observed(candidate, &load, &options, &mut recording);
        runs.push(run.map_err(|error| format!("{}: {error}", candidate.name))?);
        recordings.extend(recording);
    }
    let low_confidence = backtest::low_confidence(&load);
    let was = Vec::new();
    Ok(Tried { runs, load, low_confidence, recorded: None, was, recordings, candidates, options })
}

/// The load of a file.
pub(super) fn load(path: &Path) -> Result<Load, String> {
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
    let mut candidates = Vec::new();
    for object in convert::convert_all(&text)? {
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
