//! `plimsoll recommend`: better specs of autoscalers, by recorded load.

mod lint;
mod text;

use super::backtest::{self, Member, OfWorkload, POD_START, Subject, Subjects};
use super::convert;
use crate::backtest::{Limits, Options, Recommendation, Trace, search};
use crate::config::{RecommendFlags, RecommendFormat};
use serde_json::{Value, json};

/// What was found for an autoscaler.
#[derive(Debug)]
struct Found {
    recommendation: Recommendation,
    /// How far a backtest of the present spec is what was, in words; empty if the load is from a file.
    reproduced: String,
    /// The span of the load, in words.
    span: String,
    /// What is probably a mistake in the present spec, or in the load.
    warnings: Vec<String>,
    /// The object with the recommended spec.
    object: Value,
}

/// Searches, and returns what is to be printed.
///
/// # Errors
/// If a file can't be read, or its only autoscaler can't be tried.
pub async fn run(flags: &RecommendFlags) -> Result<String, String> {
    let recorded = &flags.recorded;
    let subjects = Subjects::read(&flags.files, recorded.namespace.as_deref())?;
    let is_one = subjects.found.len() + subjects.failed.len() == 1;
    let subjects = match is_one {
        true => Subjects { found: subjects.all()?, failed: Vec::new() },
        false => subjects,
    };
    let Subjects { found, mut failed } = subjects;
    let members = match (&recorded.load, &recorded.prometheus_url) {
        (Some(path), _) => {
            let [subject] = &*found else {
                return Err(format!(
                    "{} autoscalers: one was expected, as the load is that of one workload",
                    found.len() + failed.len()
                ));
            };
            subject.candidate.only_metric()?;
            subject.candidate.refuse_feedback()?;
            let trace = Trace::File(backtest::load_of(path, recorded)?);
            let options = recorded.options(POD_START);
            let result = found_for(flags, subject, &trace, &options, String::new());
            vec![Member { subject: subject.clone(), result }]
        }
        (None, Some(url)) => {
            backtest::each(found, recorded, url, |subject, read| {
                let OfWorkload { recorded, about, options } = read;
                let trace = Trace::Recorded(recorded);
                found_for(flags, subject, &trace, &options, backtest::reproduced(&about))
            })
            .await?
        }
        (None, None) => return Err("--load or --prometheus-url was expected".to_owned()),
    };
    let mut found = Vec::new();
    for Member { subject, result } in members {
        match result {
            Ok(one) => found.push((subject, one)),
            Err(error) if is_one => return Err(format!("{subject}: {error}")),
            Err(error) => failed.push(format!("{subject}: {error}")),
        }
    }
    Ok(match (flags.output, &*found) {
        (RecommendFormat::Text, [(subject, one)]) if is_one => text::of_one(subject, one),
        (RecommendFormat::Text, _) => text::of_many(found, &failed),
        (RecommendFormat::Json, [(_, one)]) if is_one => json(one).to_string() + "\n",
        (RecommendFormat::Json, _) => {
            let of = |(subject, one): &(Subject, Found)| {
                let mut report = json(one);
                report["namespace"] = json!(subject.candidate.namespace);
                report["name"] = json!(subject.candidate.name);
                report["warnings"] = json!(one.warnings);
                report
            };
            let all: Vec<Value> = found.iter().map(of).collect();
            json!({"autoscalers": all, "failed": failed}).to_string() + "\n"
        }
        (RecommendFormat::Yaml, _) => {
            failed.iter().for_each(|error| eprintln!("not tried: {error}"));
            let objects = found.iter().map(|(_, one)| convert::yaml(&one.object));
            objects.collect::<Vec<_>>().join("---\n")
        }
    })
}

fn found_for(
    flags: &RecommendFlags,
    subject: &Subject,
    trace: &Trace,
    options: &Options,
    reproduced: String,
) -> Result<Found, String> {
    let Subject { object, candidate, .. } = subject;
    let mut present = candidate.clone();
    if let Some(carries) = flags.recorded.pod_carries {
        present.only_metric().map_err(|error| format!("--pod-carries: {error}"))?;
        present.metrics[0].pod_carries = Some(carries);
    }
    let limits = Limits {
        budget: flags.budget,
        under_minutes: flags.max_under_minutes,
        headroom: flags.min_headroom,
    };
    let recommendation = search(&present, &object["spec"], trace, options, limits)?;
    let warnings = lint::warnings(&recommendation, &object["spec"], trace);
    let chosen = recommendation.recommended.as_ref().unwrap_or(&recommendation.present);
    let mut better = object.clone();
    better["spec"] = chosen.spec.clone();
    let [first, split, last] =
        [trace.first(), recommendation.split, trace.last()].map(backtest::shown);
    let span = format!("Tuned on {first} to {split}, shown on the rest, until {last}");
    Ok(Found { recommendation, reproduced, span, warnings, object: better })
}

fn json(found: &Found) -> Value {
    let mut report = json!(found.recommendation);
    report["object"] = found.object.clone();
    report
}
