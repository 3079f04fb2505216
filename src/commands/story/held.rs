//! What changed the number on the way to a decision, what holds the replicas, and what would change them.

use super::account::{Account, Lines, replicas};
use super::changes::{constraint, deciding, limit, name_of, used};
use super::words::{clock, decimal, like, parsed, span};
use crate::ledger::api::{ApiConstraint, Decision, Metric, Turn};
use crate::ledger::parse_time;

/// Each step that changed the number.
pub fn steps(lines: &mut Lines, account: &Account) {
    let decision = &account.decision;
    if decision.constraints.is_empty() {
        return;
    }
    let mut label = "Steps";
    if let (Some(from), Some(to)) = (decision.current_replicas, decision.recommended_replicas)
        && from != to
    {
        let by = deciding(decision);
        let by = by.map_or("the metrics".into(), |metric| name_of(metric, decision));
        lines.say(label, format!("{from} -> {to}  {by}"));
        label = "";
    }
    for step in &decision.constraints {
        let until = until_text(step.until.as_deref(), account);
        let why = constraint(step, decision);
        lines.say(
            label,
            format!(
                "{} -> {}  {}: {why}{until}",
                step.replicas_before, step.replicas_after, step.kind
            ),
        );
        label = "";
    }
}

/// The end of a window. Of a run that continues after the time that was asked for, that of then is not known.
fn until_text(until: Option<&str>, account: &Account) -> String {
    let at = account.at;
    match until.and_then(parse_time).filter(|_| !account.ends_later()) {
        None => String::new(),
        Some(time) if time > at => {
            format!(", until {} (in {})", clock(time, at), span(time - at))
        }
        Some(time) => format!(", until {}", clock(time, at)),
    }
}

/// What holds the replicas, and until when.
pub fn held_by(account: &Account) -> String {
    let decision = &account.decision;
    let of_bounds = decision.basis.bounds_until.as_deref();
    let bounds = of_bounds.map(|until| {
        format!(
            "; the schedules change the bounds next{}",
            until_text(Some(until), account).replace(", until", " at")
        )
    });
    let bounds = bounds.filter(|_| !account.ends_later()).unwrap_or_default();
    let held = match (&*decision.carried_out.reason, decision.constraints.last()) {
        ("Paused", _) => "the pause".to_owned(),
        ("Frozen", _) => "the freeze, for all autoscalers".to_owned(),
        ("Preview", _) => "mode: Preview, which writes no scale".to_owned(),
        ("Observed", _) => "kube-controller-manager, which decides".to_owned(),
        ("WriteFailed", _) => "the write that fails".to_owned(),
        ("NoDecision", None) if decision.reason == "InvalidMetrics" => {
            "the metrics that fail: no pod is removed on a guess".to_owned()
        }
        ("NoDecision", None) => "the failure: there is no decision until it is resolved".to_owned(),
        (_, Some(step)) => {
            let until = until_text(step.until.as_deref(), account);
            let also = also_held(decision, step).unwrap_or_default();
            format!("{}{until}{also}", limit(decision).unwrap_or_default())
        }
        (_, None) => of_metrics(decision),
    };
    format!("{held}{bounds}")
}

/// What holds the replicas after a window or policy, as `One fewer` has it.
fn also_held(decision: &Decision, step: &ApiConstraint) -> Option<&'static str> {
    if !matches!(&*step.kind, "ScaleDownStabilized" | "ScaleDownLimit") {
        return None;
    }
    match decision.would_change.as_ref()?.fewer.prevented_by.as_deref()? {
        "MetricsWereAway" => {
            Some("; also: not until the metrics have been available for as long as they were not")
        }
        "PodsNotKnown" => Some("; also: not while the pods are not known yet"),
        _ => None,
    }
}

/// How the metrics hold the replicas.
fn of_metrics(decision: &Decision) -> String {
    if let Some(band) = used(decision).and_then(|metric| band(decision, metric)) {
        return band;
    }
    if decision.reason == "Paused" {
        return "its owner, who has set zero".to_owned();
    }
    match deciding(decision) {
        Some(metric) if metric.value.is_none() && decision.desired_replicas > Some(0) => {
            let name = name_of(metric, decision);
            let option = match &*metric.status {
                "Invalid" if super::measured::is_held(metric, decision) => "onError: Hold",
                "Invalid" => "the fallback",
                _ => "onEmpty: Hold",
            };
            format!("{option} of {name}, until it has a value")
        }
        None if decision.reason == "InvalidMetrics" => {
            "the metrics that fail, until they are read again".to_owned()
        }
        _ => "nothing: the metrics decide".to_owned(),
    }
}

/// The values within the tolerance, in which nothing changes.
fn band(decision: &Decision, metric: &Metric) -> Option<String> {
    let basis = &decision.basis;
    let (down, up) = (1.0 - basis.scale_down_tolerance, 1.0 + basis.scale_up_tolerance);
    let is_whole = metric.weighted_ratio.is_none();
    let ratio = metric.ratio.filter(|ratio| (down..=up).contains(ratio) && is_whole)?;
    let text = metric.target.as_deref()?;
    let target = parsed(text).filter(|_| ratio.is_finite())?;
    let [least, most] = [target * down, target * up].map(|number| match text.ends_with('%') {
        true => format!("{}%", decimal(number)),
        false => like(&decimal(number), Some(text)),
    });
    let name = name_of(metric, decision);
    Some(format!("the tolerance: nothing changes while {name} is {least} to {most}"))
}

/// What the metric has to be for other replicas.
pub fn turns(lines: &mut Lines, account: &Account) {
    let decision = &account.decision;
    // What would have changed it then is not what would now.
    if account.ends_later() || account.stale_for().is_some() {
        return;
    }
    let Some(would) = &decision.would_change else {
        if replicas(decision) == Some(0) && decision.reason != "Paused" {
            lines.say("One more", waking(account));
        }
        return;
    };
    lines.say("One more", turn(&would.more, account, would.metric_index, true));
    let others = decision
        .metrics
        .iter()
        .filter(|metric| metric.metric_index != would.metric_index && metric.status != "Invalid");
    let others = match would.fewer.value.is_some() && others.count() > 0 {
        true => ", and no other metric asks for more",
        false => "",
    };
    let fewer = turn(&would.fewer, account, would.metric_index, false);
    lines.say("One fewer", format!("{fewer}{others}"));
}

/// What wakes a workload at zero.
fn waking(account: &Account) -> String {
    let decision = &account.decision;
    let Some(asked) = decision.recommended_replicas.filter(|asked| *asked > 0) else {
        return "as soon as a metric is above its activation".to_owned();
    };
    match decision.constraints.last().filter(|_| decision.desired_replicas == Some(0)) {
        Some(step) => {
            let until = until_text(step.until.as_deref(), account);
            format!("the metrics ask for {asked} already: {}{until}", constraint(step, decision))
        }
        None => format!("the metrics ask for {asked} already"),
    }
}

fn turn(turn: &Turn, account: &Account, index: usize, up: bool) -> String {
    let Account { decision, at, .. } = account;
    if let Some((desired, present)) = open(decision).filter(|(to, from)| (to > from) == up) {
        let asked = decision.recommended_replicas;
        let asked = asked.filter(|asked| *asked != present && (*asked > present) == up);
        return match (asked, decision.constraints.last()) {
            (Some(asked), _) => format!("the metrics ask for {asked} already"),
            (None, Some(step)) => {
                format!("{desired} are desired already: {}", constraint(step, decision))
            }
            (None, None) => format!("{desired} are desired already"),
        };
    }
    let of = |index: usize| decision.metrics.iter().find(|metric| metric.metric_index == index);
    let (Some(replicas), Some(value)) = (turn.replicas, turn.value.as_deref()) else {
        return format!("no: {}", prevented(turn, decision, up));
    };
    let when = match turn.earliest.as_deref().and_then(parse_time) {
        Some(earliest) if earliest > *at => {
            format!("from {} on (in {})", clock(earliest, *at), span(earliest - at))
        }
        _ => "at once".to_owned(),
    };
    let metric = of(index);
    let name = metric.map_or("the metric".into(), |metric| name_of(metric, decision));
    let value = like(value, metric.and_then(|metric| metric.target.as_deref()));
    let than = if up { "at least" } else { "at most" };
    let if_so = format!("if {name} is {value} {than}");
    match metric.is_some_and(|metric| metric.pods.unready + metric.pods.missing > 0) {
        true => format!("({replicas}) {if_so}, once all pods are ready and have a sample"),
        false => format!("({replicas}) {when}, {if_so}"),
    }
}

/// The replicas that are decided on and those that there are, where the decision is not carried out.
fn open(decision: &Decision) -> Option<(i32, i32)> {
    let is_open = matches!(&*decision.carried_out.reason, "Preview" | "WriteFailed" | "Observed");
    let both = decision.desired_replicas.zip(decision.current_replicas);
    both.filter(|(desired, current)| is_open && desired != current)
}

/// A bound, of the spec or of a schedule.
fn bound(name: &str, replicas: i32, schedule: Option<&str>) -> String {
    match schedule {
        Some(schedule) => format!("{name} of the schedule {schedule} is {replicas}"),
        None => format!("{name} is {replicas}"),
    }
}

/// What prevents other replicas.
fn prevented(turn: &Turn, decision: &Decision, up: bool) -> String {
    let basis = &decision.basis;
    let direction = if up { "scaleUp" } else { "scaleDown" };
    let by = turn.prevented_by_metric;
    let metric = by.and_then(|by| decision.metrics.iter().find(|one| one.metric_index == by));
    match turn.prevented_by.as_deref().unwrap_or_default() {
        "maxReplicas" => {
            bound("maxReplicas", basis.max_replicas, basis.max_replicas_schedule.as_deref())
        }
        "minReplicas" => {
            bound("minReplicas", basis.min_replicas, basis.min_replicas_schedule.as_deref())
        }
        "selectPolicy" => format!("selectPolicy of {direction} is Disabled"),
        "tolerance" => format!("no value leaves the tolerance of {direction}"),
        "metric" => match metric {
            Some(metric) => {
                let name = name_of(metric, decision);
                match metric.proposed_replicas {
                    Some(proposed) => format!("{name} asks for {proposed}"),
                    None => format!("{name} fails, and no pod is removed on a guess"),
                }
            }
            None => "another metric asks for as many".to_owned(),
        },
        "RollingOut" => "not during a rollout (spec.rollouts)".to_owned(),
        "PodsNotKnown" => "not while the pods are not known yet".to_owned(),
        "MetricsWereAway" => {
            "not until the metrics have been available for as long as they were not".to_owned()
        }
        "ScaleUpLimit" | "ScaleDownLimit" => {
            format!("not while the policies of {direction} allow none")
        }
        "Frozen" => "not while all scales are frozen".to_owned(),
        other => other.to_owned(),
    }
}
