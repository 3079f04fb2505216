//! Many autoscalers, each on the load of its own workload.

use super::recorded::{Backend, OfWorkload, check_queries};
use super::report::low_confidence;
use super::subjects::{Subject, Subjects};
use super::text;
use super::{carries, json};
use crate::backtest::{self, Agreement, Figures, Span, Trust};
use crate::blocking;
use crate::commands::progress::Progress;
use crate::commands::story::{counted, plain_lines};
use crate::commands::table::{Align, table};
use crate::config::{BacktestFlags, RecordedFlags, ReportFormat};
use crate::time::UnixMillis;
use serde::Serialize;
use serde_json::json;
use std::fmt::Write;
use std::sync::Arc;
use tokio::task::JoinSet;

/// How many are read at the same time.
const AT_ONCE: usize = 4;

/// What was made of an autoscaler, or why nothing was.
#[derive(Debug)]
pub struct Member<T> {
    /// The autoscaler.
    pub subject: Subject,
    /// What was made of it.
    pub result: Result<T, String>,
}

/// Reads the load of each autoscaler, a few at a time, and makes something of it. Only that is kept.
///
/// # Errors
/// If a flag is only for one workload, or Prometheus can't be asked.
pub async fn each<T>(
    subjects: Vec<Subject>,
    flags: &RecordedFlags,
    url: &str,
    make: impl Fn(&Subject, OfWorkload) -> Result<T, String>,
) -> Result<Vec<Member<T>>, String> {
    let count = subjects.len();
    check_of_one(flags, count)?;
    check_queries(flags, subjects.iter().map(|one| &one.candidate))?;
    let backend = Arc::new(Backend::open(flags, url)?);
    let mut progress = (count > 1).then(|| Progress::new("autoscalers", count));
    // Tasks of their own, so that responses are read while something is made of others.
    let mut reads = JoinSet::new();
    let mut waiting = subjects.into_iter().enumerate();
    let mut members: Vec<Option<Member<T>>> = (0..count).map(|_| None).collect();
    loop {
        while reads.len() < AT_ONCE
            && let Some((index, mut subject)) = waiting.next()
        {
            let backend = backend.clone();
            reads.spawn(async move {
                let read = backend.of_workload(&mut subject.candidate, count == 1).await;
                (index, subject, read)
            });
        }
        let Some(read) = reads.join_next().await else { break };
        let (index, subject, read) = read.map_err(|error| error.to_string())?;
        let result = read.and_then(|read| blocking::run(|| make(&subject, read)));
        members[index] = Some(Member { subject, result });
        progress.iter_mut().for_each(Progress::one);
    }
    Ok(members.into_iter().flatten().collect())
}

/// Refuses what is said of one workload where there are so many autoscalers.
fn check_of_one(flags: &RecordedFlags, count: usize) -> Result<(), String> {
    let of_one =
        [("--query", !flags.queries.is_empty()), ("--pod-carries", flags.pod_carries.is_some())];
    match of_one.into_iter().find(|(_, is_given)| count > 1 && *is_given) {
        Some((flag, _)) => {
            Err(format!("{flag}: it is for one workload, and there are {count} autoscalers"))
        }
        None => Ok(()),
    }
}

/// A backtest of one of many.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Tried {
    namespace: String,
    kind: String,
    #[serde(flatten)]
    figures: Figures,
    /// The first and the last decision, in Unix seconds: not all may have the whole time that was asked for.
    #[serde(serialize_with = "json::as_seconds")]
    from: UnixMillis,
    #[serde(serialize_with = "json::as_seconds")]
    to: UnixMillis,
    /// How many decisions were made.
    ticks: i64,
    /// In how many minutes of the time that was asked for the load can't be trusted, or is not known.
    low_confidence_minutes: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    doubts: Vec<String>,
    /// The simulated replicas beside those that there were; none if these are unknown.
    reproduced: Option<Agreement>,
    trust: Option<Trust>,
    pod_start_seconds: f64,
}

/// Tries each autoscaler on the load of its workload.
///
/// # Errors
/// If Prometheus can't be asked, or the report would be a chart.
pub async fn backtest(
    flags: &BacktestFlags,
    url: &str,
    subjects: Subjects,
) -> Result<String, String> {
    if !matches!(flags.output, ReportFormat::Text | ReportFormat::Json) {
        return Err("--output: text or json was expected, as the autoscalers size several workloads: a chart is of one".to_owned());
    }
    if flags.feedback.is_some() {
        return Err("--feedback: it is for one workload".to_owned());
    }
    let Subjects { found, mut failed, .. } = subjects;
    check_of_one(&flags.recorded, found.len() + failed.len())?;
    let carries_of = |mut subject: Subject| {
        carries::set(&mut subject.candidate, &subject.written, None)?;
        Ok(subject)
    };
    let found = found.into_iter().map(carries_of).collect::<Result<_, String>>()?;
    let members = each(found, &flags.recorded, url, |subject, read| {
        let recorded = &read.recorded;
        let (first, end) = (recorded.first(), recorded.last());
        let window_ms = subject.candidate.sample_window_ms(recorded.step);
        let span = Span { first, end, window_ms, start: None, times: None };
        let options = flags.modeled(read.options);
        let run = backtest::simulate(
            &subject.candidate,
            &mut recorded.source(),
            span,
            &options,
            &mut (),
        )?;
        let reproduction = read.about.reproduction;
        let cut_off = recorded.cut_off.clone();
        let doubtful = [low_confidence(&recorded.loads), cut_off, read.not_tried].concat();
        Ok(Tried {
            namespace: subject.candidate.namespace.clone(),
            kind: subject.kind.clone(),
            figures: run.figures,
            from: first,
            to: run.last,
            ticks: run.ticks,
            low_confidence_minutes: backtest::minutes(&doubtful),
            doubts: subject.candidate.doubts.clone(),
            trust: reproduction.as_ref().map(|one| one.trust),
            reproduced: reproduction.map(|one| one.agreement),
            pod_start_seconds: read.about.pod_start.seconds,
        })
    })
    .await?;
    let mut tried = Vec::new();
    for Member { subject, result } in members {
        match result {
            Ok(one) => tried.push(one),
            Err(error) => failed.push(format!("{subject}: {error}")),
        }
    }
    if tried.is_empty() {
        return Err(text::none_tried(&failed));
    }
    tried.sort_by(|one, other| {
        other.figures.under_pod_minutes.total_cmp(&one.figures.under_pod_minutes)
    });
    Ok(match flags.output {
        ReportFormat::Json => {
            json!({"autoscalers": tried, "failed": failed, "judged": judged()}).to_string() + "\n"
        }
        _ => summary(&tried, &failed),
    })
}

/// By which numbers they are judged.
fn judged() -> String {
    format!(
        "Each is judged by what one of its pods carries: by its annotation {}, or else its target.",
        carries::ANNOTATION
    )
}

fn summary(tried: &[Tried], failed: &[String]) -> String {
    let mut report = String::new();
    let sum = |of: fn(&Figures) -> f64| tried.iter().map(|one| of(&one.figures)).sum::<f64>();
    let short = tried.iter().filter(|one| one.figures.under_minutes > 0.0).count();
    let _ = writeln!(
        report,
        "{}: {:.0} replica-hours where the load needs {:.0}; {short} of them short of pods, for {:.0} pod-minutes",
        counted(tried.len() as i64, "autoscaler"),
        sum(|figures| figures.replica_hours),
        sum(|figures| figures.needed_replica_hours),
        sum(|figures| figures.under_pod_minutes),
    );
    let is_apart = |one: &&Tried| one.trust == Some(Trust::Low) && one.doubts.is_empty();
    let doubtful = tried.iter().filter(is_apart).count();
    if doubtful > 0 {
        let _ = writeln!(
            report,
            "{doubtful} of them did otherwise in the last day than is simulated (trust: low): another spec, scaling by hand, or a start that takes longer"
        );
    }
    let _ = writeln!(report, "{}", judged());
    let mut rows = vec![text::header("AUTOSCALER")];
    rows[0].extend(["DAYS", "LOW CONF MIN", "REPRODUCED", "TRUST"].map(str::to_owned));
    for one in tried {
        let Tried { namespace, figures, reproduced, trust, .. } = one;
        let name = format!("{}/{}", namespace.escape_debug(), figures.name.escape_debug());
        let reproduced = reproduced.map(|of| format!("{:.0} %", of.within_one * 100.0));
        let trust = trust.map(|trust| format!("{trust:?}").to_ascii_lowercase());
        let mut row = text::row(name, figures);
        let days = (one.to - one.from) as f64 / 86_400_000.0;
        row.extend([text::number(days), format!("{:.0}", one.low_confidence_minutes)]);
        row.extend([reproduced, trust].map(|cell| cell.unwrap_or_else(|| "-".to_owned())));
        rows.push(row);
    }
    let _ = write!(report, "\n{}", table(&rows, Align::Right));
    let doubts = tried.iter().flat_map(|one| one.doubts.iter().map(move |doubt| (one, doubt)));
    for (index, (one, doubt)) in doubts.enumerate() {
        let begin = if index == 0 { "\nLow trust:\n" } else { "" };
        let name = format!("{}/{}", one.namespace.escape_debug(), one.figures.name.escape_debug());
        let _ = writeln!(report, "{begin}  {name}: {}", plain_lines(doubt));
    }
    report + &not_tried(failed)
}

/// Which could not be tried, and why.
pub fn not_tried(failed: &[String]) -> String {
    let mut text = String::new();
    if !failed.is_empty() {
        let _ = writeln!(text, "\nNot tried:");
        failed.iter().for_each(|error| {
            let _ = writeln!(text, "  {}", plain_lines(error));
        });
    }
    text
}
