//! `plimsoll recommend`: better specs of autoscalers, by recorded load.

mod found;
mod lint;
mod rewritten;
#[cfg(test)]
mod tests;
mod text;

use super::backtest::{self, Member, OfWorkload, POD_START, Subject, Subjects, carries};
use super::convert;
use super::story::{plain, plain_lines};
use crate::backtest::{Keep, Limits, Options, Reproduction, Trace, Trial, Trust, search};
use crate::config::{KeptField, RecommendFlags, RecommendFormat};
use found::Found;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What is said where nothing tells how near the simulation is.
const NOT_COMPARED: &str = "a backtest of the present spec could not be compared with what was (--allow-low-trust does without)";

/// Searches, and returns what is to be printed.
///
/// # Errors
/// If a file can't be read, or its only autoscaler can't be tried.
pub async fn run(flags: &RecommendFlags) -> Result<String, String> {
    searched(flags).await.map_err(|error| plain_lines(&error))
}

async fn searched(flags: &RecommendFlags) -> Result<String, String> {
    let recorded = &flags.recorded;
    let subjects = Subjects::read(&flags.files, recorded)?;
    subjects.notes.iter().for_each(|note| eprintln!("note: {}", plain(note)));
    let is_one = subjects.found.len() + subjects.failed.len() == 1;
    let (found, mut failed) = match is_one {
        true => (subjects.all()?, Vec::new()),
        false => (subjects.found, subjects.failed),
    };
    let members = match (&recorded.load, &recorded.prometheus_url) {
        (Some(path), _) => {
            let [subject] = &*found else {
                return Err(format!(
                    "{} autoscalers: one was expected, as the load is that of one workload",
                    found.len() + failed.len()
                ));
            };
            backtest::check_only(&subject.candidate)?;
            subject.candidate.refuse_feedback(&BTreeMap::new())?;
            let trace = Trace::File(backtest::load_of(path, recorded)?);
            let read = Read { trace, options: recorded.options(POD_START), reproduction: None };
            let result = found_for(flags, subject, read, String::new());
            vec![Member { subject: subject.clone(), result }]
        }
        (None, Some(url)) => {
            backtest::each(found, recorded, url, |subject, read| {
                let OfWorkload { recorded, about, options, .. } = read;
                let reproduced = backtest::reproduced(&about);
                let trace = Trace::Recorded(recorded);
                let read = Read { trace, options, reproduction: about.reproduction };
                let mut found = found_for(flags, subject, read, reproduced)?;
                if !is_one {
                    // Of thousands, what was rejected is not kept.
                    found.recommendation.others = Vec::new();
                }
                Ok(found)
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
    if found.is_empty() {
        return Err(backtest::none_tried(&failed));
    }
    Ok(match (flags.output, &*found) {
        (RecommendFormat::Text, [(subject, one)]) if is_one => text::of_one(subject, one),
        (RecommendFormat::Text, _) => text::of_many(found, &failed),
        (RecommendFormat::Json, [(subject, one)]) if is_one => {
            json(subject, one).to_string() + "\n"
        }
        (RecommendFormat::Json, _) => {
            let all: Vec<Value> = found.iter().map(|(subject, one)| json(subject, one)).collect();
            json!({"autoscalers": all, "failed": failed}).to_string() + "\n"
        }
        (RecommendFormat::Yaml, _) => {
            for (subject, one) in &found {
                if one.object.is_none() {
                    eprintln!("kept: {subject}: {}", one.recommendation.reason);
                }
                if one.reproduction.as_ref().is_some_and(|one| one.trust == Trust::Medium) {
                    eprintln!("note: {subject}: trust: medium: single decisions are not what was");
                }
                let warnings = one.warnings.iter().map(|warning| plain(warning));
                warnings.for_each(|warning| eprintln!("warning: {subject}: {warning}"));
            }
            failed.iter().for_each(|error| eprintln!("not tried: {}", plain_lines(error)));
            let objects = found.iter().filter_map(|(_, one)| one.object.as_ref());
            objects.map(convert::yaml).collect::<Vec<_>>().join("---\n")
        }
    })
}

/// What is known of a workload.
struct Read {
    trace: Trace,
    options: Options,
    reproduction: Option<Reproduction>,
}

fn found_for(
    flags: &RecommendFlags,
    subject: &Subject,
    read: Read,
    reproduced: String,
) -> Result<Found, String> {
    let Read { trace, options, reproduction } = read;
    let spec = &subject.object["spec"];
    let mut present = subject.candidate.clone();
    let is_assumed = carries::set(&mut present, &subject.written, flags.recorded.pod_carries)?;
    let keeps = |field: KeptField| flags.keep.contains(&field);
    let is_compared = reproduction.is_some() || matches!(trace, Trace::File(_));
    let limits = Limits {
        budget: flags.budget,
        under_minutes: flags.max_under_minutes,
        headroom: flags.min_headroom,
        keep: Keep {
            min: keeps(KeptField::Min),
            max: keeps(KeptField::Max),
            scale_down: keeps(KeptField::ScaleDown),
            scale_up: keeps(KeptField::ScaleUp),
            schedules: keeps(KeptField::Schedules),
        },
        doubt: (!is_compared && !flags.allow_low_trust).then_some(NOT_COMPARED),
    };
    let mut recommendation = search(&present, spec, &trace, &options, limits)?;
    let trust = reproduction.as_ref().map(|one| one.trust);
    if trust == Some(Trust::Low) && !flags.allow_low_trust {
        recommendation.withhold("a backtest of the present spec is not what was in the last day (trust: low): --allow-low-trust recommends all the same");
    }
    if let Some(doubt) = present.doubts.first().filter(|_| !flags.allow_low_trust) {
        recommendation
            .withhold(&format!("{doubt} (trust: low): --allow-low-trust recommends all the same"));
    }
    let mut warnings = lint::warnings(&recommendation, spec, &trace);
    warnings.extend(present.doubts.iter().cloned());
    if !is_compared && flags.allow_low_trust {
        warnings.push(NOT_COMPARED.to_owned());
    }
    let carries = carries::of(&present);
    if is_assumed {
        warnings.push(format!(
            "a pod is taken to carry its present target ({}): --pod-carries says what it really carries",
            carries::text(&carries)
        ));
    }
    let [first, split, last] =
        [trace.first(), recommendation.split, trace.last()].map(backtest::shown);
    let span = format!("Tuned on {first} to {split}, shown on the rest, until {last}");
    let chosen = recommendation.recommended.as_ref();
    if chosen.is_some_and(|chosen| !rewritten::is_kept(subject, &chosen.spec)) {
        warnings.push(match &*subject.kind {
            "HorizontalPodAutoscaler" => {
                format!("it becomes an Autoscaler: {}", convert::DELETE_HPA)
            }
            kind => format!("it becomes an Autoscaler: delete the {kind} when that is made"),
        });
    }
    let is_upstreams = |chosen: &Trial| match &*subject.kind {
        "HorizontalPodAutoscaler" => rewritten::is_kept(subject, &chosen.spec),
        _ => spec["executor"] == "NativeHPA",
    };
    let has_tolerance = |chosen: &Trial| {
        let tolerance = |spec: &Value| spec.pointer("/behavior/scaleUp/tolerance").cloned();
        tolerance(&chosen.spec) != tolerance(spec)
    };
    if chosen.is_some_and(|chosen| is_upstreams(chosen) && has_tolerance(chosen)) {
        warnings.push("a HorizontalPodAutoscaler has behavior.scaleUp.tolerance from Kubernetes 1.35 on (1.33 with the feature gate HPAConfigurableTolerance), and those before drop it: --keep scale-up does without".to_owned());
    }
    let object = chosen.map(|chosen| rewritten::object(subject, &chosen.spec, &carries));
    Ok(Found { recommendation, reproduction, reproduced, carries, span, warnings, object })
}

fn json(subject: &Subject, found: &Found) -> Value {
    let mut report = json!(found.recommendation);
    report["namespace"] = json!(subject.candidate.namespace);
    report["name"] = json!(subject.candidate.name);
    report["object"] = json!(found.object);
    report["podCarries"] = json!(found.carries);
    report["warnings"] = json!(found.warnings);
    let reproduction = found.reproduction.as_ref();
    report["trust"] = json!(reproduction.map(|one| one.trust));
    report["reproduced"] = json!(reproduction.map(|one| one.agreement));
    report
}
