//! `plimsoll backtest`: autoscalers on recorded load.

pub(super) mod carries;
mod fleet;
mod glyphs;
mod html;
mod json;
mod judged;
mod names;
mod page_data;
mod picture;
mod png;
mod recorded;
mod report;
mod scene;
mod subjects;
mod svg;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_files;
#[cfg(test)]
mod tests_of_fleets;
mod text;

pub(super) use fleet::{Member, each, not_tried};
pub(super) use html::sources;
pub(super) use recorded::{OfWorkload, check, check_queries};
pub(super) use report::POD_START;
pub(super) use subjects::{Subject, Subjects, written};
pub(super) use text::{none_tried, reproduced, shown, tidy};

use crate::backtest::{self, Candidate, Load};
use crate::blocking;
use crate::commands::story::{plain, plain_lines};
use crate::config::{BacktestFlags, Feedback, Moment, RecordedFlags, ReportFormat};
use report::{Bounds, Tried};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};

/// The most bytes of a file of load after it is decompressed.
const MAX_LOAD_BYTES: u64 = 512 << 20;
/// What a gzip file begins with.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Tries the autoscalers of files on a load, and returns what is to be printed.
///
/// # Errors
/// If a file can't be read, or has no autoscaler that can be tried, or a picture would go to a terminal.
pub async fn run(flags: &BacktestFlags) -> Result<Vec<u8>, String> {
    tried(flags).await.map_err(|error| plain_lines(&error))
}

async fn tried(flags: &BacktestFlags) -> Result<Vec<u8>, String> {
    refuse(flags.output, std::io::stdout().is_terminal())?;
    let recorded = &flags.recorded;
    let is_stdin = |path: &PathBuf| path.as_os_str() == "-";
    if flags.files.iter().chain(&recorded.load).filter(|path| is_stdin(path)).count() > 1 {
        return Err("-: the standard input was given twice".to_owned());
    }
    let subjects = Subjects::read(&flags.files, recorded)?;
    subjects.notes.iter().for_each(|note| eprintln!("note: {}", plain(note)));
    report_on(flags, subjects).await
}

/// Tries autoscalers by the flags, whose files are not read again, and returns the report.
///
/// # Errors
/// If one can't be tried, or what Prometheus recorded can't be read.
pub(super) async fn report_on(
    flags: &BacktestFlags,
    subjects: Subjects,
) -> Result<Vec<u8>, String> {
    let recorded = &flags.recorded;
    let url = recorded.prometheus_url.as_deref();
    if let Some(url) = url.filter(|_| subjects.are_of_several_workloads()) {
        return fleet::backtest(flags, url, subjects).await.map(String::into_bytes);
    }
    let mut subjects = subjects.all()?;
    check_queries(recorded, subjects.iter().map(|one| &one.candidate))?;
    let totals = recorded.queries.iter().cloned().collect();
    for Subject { candidate, .. } in &subjects {
        match flags.feedback {
            None => candidate.refuse_feedback(&totals)?,
            Some(Feedback::Queue) => check_queue(flags, candidate, &totals)?,
        }
    }
    let judged = match flags.feedback {
        // It is the rate: the target is a length of the queue.
        Some(Feedback::Queue) => None,
        None => {
            let is_one_load = recorded.load.is_some();
            Some(judged::judge(&mut subjects, recorded.pod_carries, is_one_load)?)
        }
    };
    let candidates: Vec<Candidate> = subjects.into_iter().map(|one| one.candidate).collect();
    if let Some(bounds) = Bounds::of(flags.output) {
        bounds.check(candidates.len())?;
    }
    let tried = match (&recorded.load, url) {
        (Some(path), _) => on_file(flags, path, candidates)?,
        (None, Some(url)) => recorded::run(flags, url, candidates).await?,
        (None, None) => return Err("--load or --prometheus-url was expected".to_owned()),
    };
    let tried = Tried { judged, ..tried };
    Ok(blocking::run(|| match flags.output {
        ReportFormat::Text => text::text(&tried).into_bytes(),
        ReportFormat::Json => json::json(tried).into_bytes(),
        ReportFormat::Html => html::html(&tried).into_bytes(),
        ReportFormat::Svg => svg::svg(&picture::picture(&tried)).into_bytes(),
        ReportFormat::Png => png::png(&picture::picture(&tried)),
    }))
}

/// Refuses what is no queue, or of which Prometheus is not asked what arrives.
fn check_queue(
    flags: &BacktestFlags,
    candidate: &Candidate,
    totals: &BTreeMap<String, String>,
) -> Result<(), String> {
    let metric = candidate.only_metric().map_err(|error| format!("--feedback queue: {error}"))?;
    candidate.refuse_no_queue().map_err(|error| format!("--feedback queue: {error}"))?;
    let is_asked = totals.keys().any(|name| names::check([candidate], name).is_ok());
    match flags.recorded.load.is_some() || is_asked {
        true => Ok(()),
        false => Err(format!(
            "--feedback queue: the query for what arrives in a second was expected: --query {}=PROMQL",
            names::short(candidate, metric)
        )),
    }
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
    for candidate in &candidates {
        check_only(candidate)?;
    }
    let load = load_of(path, &flags.recorded)?;
    let options = flags.modeled(flags.recorded.options(POD_START));
    let bounds = Bounds::of(flags.output);
    let (mut runs, mut recordings) = (Vec::new(), Vec::new());
    for candidate in &candidates {
        let span = (load.first(), load.last());
        let mut recording = bounds.map(|one| one.recording(candidate, &candidates, &options, span));
        let run = backtest::run_observed(candidate, &load, &options, &mut recording);
        runs.push(run.map_err(|error| format!("{}: {error}", candidate.name))?);
        recordings.extend(recording);
    }
    let was = Vec::new();
    Ok(Tried {
        runs,
        begin: load.first(),
        low_confidence: report::low_confidence([&load]),
        coarse: backtest::coarse(&load, &options),
        judged: None,
        recorded: None,
        was,
        recordings,
        candidates,
        options,
    })
}

/// Refuses a candidate of which a file does not have the load.
///
/// # Errors
/// If it has several metrics, or one of CPU or memory.
pub(super) fn check_only(candidate: &Candidate) -> Result<(), String> {
    let only = candidate.only_metric().map(|_| ());
    only.map_err(|error| {
        let name = &candidate.name;
        format!("{name}: {error}; --prometheus-url reads the load of each metric")
    })
}

/// The part of the load of a file that flags choose.
///
/// # Errors
/// If it can't be read, or has no load in that part.
pub(super) fn load_of(path: &Path, flags: &RecordedFlags) -> Result<Load, String> {
    let in_file = |error: String| format!("{}: {error}", path.display());
    let load = load(path).map_err(in_file)?;
    let time = |moment: Moment| moment.before(load.last());
    let [from, to] = [flags.from, flags.to].map(|moment| moment.map(time));
    let given = [("--from", from), ("--to", to)].into_iter();
    let given = given.filter_map(|(flag, time)| Some(format!("{flag} {}", shown(time?))));
    let given: Vec<String> = given.collect();
    match given.is_empty() {
        true => Ok(load),
        false => {
            let part = load.between(from, to);
            part.map_err(|error| in_file(format!("{}: {error}", given.join(" "))))
        }
    }
}

fn load(path: &Path) -> Result<Load, String> {
    let file: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(File::open(path).map_err(|error| error.to_string())?),
    };
    let mut file = BufReader::new(file);
    let begin = file.fill_buf().map_err(|error| error.to_string())?;
    let bytes: Box<dyn Read> = match begin.starts_with(&GZIP) {
        true => Box::new(flate2::read::MultiGzDecoder::new(file)),
        false => Box::new(file),
    };
    let mut text = BufReader::new(bytes.take(MAX_LOAD_BYTES));
    let load = Load::read(&mut text);
    match text.get_ref().limit() {
        0 => Err(format!("at most {MAX_LOAD_BYTES} bytes were expected; choose a part of it")),
        _ => load.map_err(|error| error.to_string()),
    }
}
