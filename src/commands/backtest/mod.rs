//! `plimsoll backtest`: autoscalers on recorded load.

mod glyphs;
mod html;
mod json;
mod page_data;
mod picture;
mod png;
mod report;
mod scene;
mod svg;
mod text;

use super::{convert, objects};
use crate::backtest::{self, Candidate, Load, Options, Run};
use crate::config::{BacktestFlags, Moment, ReportFormat};
use report::{Bounds, Report};
use serde_json::Value;
use std::fs::File;
use std::io::{BufReader, IsTerminal, Read};
use std::path::Path;

/// The most bytes of a file of load after it is decompressed.
const MAX_LOAD_BYTES: u64 = 512 << 20;

/// What the page keeps. The file is below 5 MB: at most 2.2 MB for the slots (of four candidates or more 16,384 with
/// four numbers of each candidate, and two of the load), and 2.4 MB for decisions of 60 bytes.
const PAGE: Bounds = Bounds { slots: 16_384, decisions: 20_000 };
/// What a picture keeps: it has no accounts.
const PICTURE: Bounds = Bounds { slots: picture::SLOTS, decisions: 1 };

/// Tries the Autoscalers of files on a load, and returns what is to be printed.
///
/// # Errors
/// If a file can't be read, or has no autoscaler that can be tried, or a picture would go to a terminal.
pub fn run(flags: &BacktestFlags) -> Result<Vec<u8>, String> {
    if flags.output == ReportFormat::Png && std::io::stdout().is_terminal() {
        return Err("--output png: the standard output is a terminal, and a PNG is binary; write it to a file: > report.png".to_owned());
    }
    let in_file = |error: String| format!("{}: {error}", flags.load.display());
    let load = load(&flags.load).map_err(in_file)?;
    let load = match (flags.from, flags.to) {
        (None, None) => load,
        (from, to) => {
            let time = |moment: Moment| moment.before(load.last());
            load.between(from.map(time), to.map(time)).map_err(in_file)?
        }
    };
    let mut named = Vec::new();
    for path in &flags.files {
        let found = read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        named.extend(found.into_iter().map(|candidate| (path, candidate)));
    }
    if let Some(pod_carries) = flags.pod_carries {
        for (_, candidate) in &mut named {
            candidate.pod_carries = pod_carries;
        }
    }
    // Of the same name, the file tells them apart.
    let names: Vec<String> = named.iter().map(|(_, one)| one.name.clone()).collect();
    for (path, candidate) in &mut named {
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
    let candidates: Vec<Candidate> = named.into_iter().map(|(_, candidate)| candidate).collect();
    let low_confidence = backtest::low_confidence(&load);
    let runs = || -> Result<Vec<Run>, String> {
        let run = |candidate: &Candidate| {
            let run = backtest::run(candidate, &load, &options);
            run.map_err(|error| format!("{}: {error}", candidate.name))
        };
        candidates.iter().map(run).collect()
    };
    let report = |bounds| Report::new(&candidates, &load, &options, low_confidence.clone(), bounds);
    Ok(match flags.output {
        ReportFormat::Text => text::text(&runs()?, &load, &low_confidence).into_bytes(),
        ReportFormat::Json => json::json(runs()?, &load, low_confidence.clone()).into_bytes(),
        ReportFormat::Html => html::html(&report(PAGE)?).into_bytes(),
        ReportFormat::Svg => svg::svg(&picture::picture(&report(PICTURE)?)).into_bytes(),
        ReportFormat::Png => png::png(&picture::picture(&report(PICTURE)?)),
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
