//! Tells of one decision as an engineer tells a colleague.

use super::account::{Account, Lines, Subject, last, replicas};
use super::advice::advice;
use super::changes::{By, deciding, limit, name_of, set_back, used, why};
use super::held::{held_by, steps, turns};
use super::measured::metrics;
use super::words::{clock, counted, date, decimal, parsed, span};
use crate::ledger::api::{Decision, Metric};
use crate::ledger::{MAX_QUERY, parse_time};

/// The story: at most 24 lines.
pub fn story(account: &Account) -> String {
    let Account { subject, decision, .. } = account;
    let mut lines = Lines(format!("{}\n", headline(account)));
    if let Some(since) = since(account) {
        lines.say("Since", since);
    }
    let label = match account.stale_for() {
        Some(_) => "Last",
        None if account.is_past() => "Then",
        None => "Now",
    };
    lines.note(label, &now(decision));
    lines.say("", run(account));
    metrics(&mut lines, account);
    steps(&mut lines, account);
    lines.say("Held by", held_by(account));
    turns(&mut lines, account);
    if let Some(query) = query(decision) {
        lines.say("Query", query);
        if query.len() > MAX_QUERY && query.ends_with("...") {
            lines.say("", format!("It is cut after {MAX_QUERY} bytes, and can't be pasted: the spec has the whole one."));
        }
    }
    let names = (&*subject.namespace, &*subject.name);
    // What is over needs no repair.
    let to_do = (!account.is_past()).then(|| advice(Some(decision), &subject.faults, names));
    if let Some(advice) = to_do.flatten() {
        lines.say("To do", advice);
    }
    for note in &subject.notes {
        lines.note("Note", note);
    }
    if let Some(age) = account.stale_for() {
        let age = span(age);
        lines.say("Note", format!("no decision for {age}: kubectl plimsoll status says who leads"));
    }
    lines.0
}

fn headline(account: &Account) -> String {
    let Account { subject, decision, at, now, .. } = account;
    let replicas = match replicas(decision) {
        Some(count) => counted(count.into(), "replica"),
        None => "unknown replicas".to_owned(),
    };
    let of = subject.target.as_ref().map(|target| format!(" of {target}")).unwrap_or_default();
    let basis = &decision.basis;
    let bounds = match basis.max_replicas {
        0 => String::new(),
        max => format!(" ({} to {max} allowed)", basis.min_replicas),
    };
    // A run may continue after the time that was asked for.
    let time = last(decision).min(*at);
    let Subject { kind, namespace, name, .. } = subject;
    format!(
        "{kind} {namespace}/{name}: {replicas}{of}{bounds}, at {} ({} ago)",
        date(time),
        span(now - time)
    )
}

fn since(account: &Account) -> Option<String> {
    let Account { decision, change, since, at, .. } = account;
    let Some(change) = change else {
        let replicas = replicas(decision)?;
        return Some(format!(
            "before {}: {replicas} in all decisions of the last 24h that are known",
            clock(*since, *at)
        ));
    };
    // Then it is what happens now.
    if change.by == By::Plimsoll && change.decision.metadata.name == decision.metadata.name {
        return None;
    }
    let what = match change.by {
        By::Unknown(_) => "it was changed".to_owned(),
        by => format!("{} scaled it", by.as_str()),
    };
    Some(format!(
        "{} ({}), when {what} from {} to {}: {}",
        clock(change.at, *at),
        span(at - change.at),
        change.from,
        change.to,
        change.why()
    ))
}

/// What is decided, and why.
fn now(decision: &Decision) -> String {
    let message = decision.message.as_deref().unwrap_or("the decision does not say why");
    let (current, desired) = (decision.current_replicas, decision.desired_replicas);
    let carried = decision.carried_out.reason.as_str();
    if carried == "Paused" {
        return format!("it is left alone (Paused): {message}");
    }
    let (Some(current), Some(desired)) = (current, desired) else {
        if carried == "Observed" {
            let kcm = decision.observed.as_ref().and_then(|observed| observed.desired_replicas);
            let kcm = kcm.map_or("can't decide".to_owned(), |kcm| format!("decides on {kcm}"));
            return format!(
                "kube-controller-manager {kcm}; Plimsoll can't ({}): {message}",
                decision.reason
            );
        }
        let is_failed = decision.reason == "InvalidMetrics" || decision.reason == "Fallback";
        let what = if is_failed { "metrics fail, so nothing is changed" } else { "no decision" };
        return format!("{what} ({}): {message}", decision.reason);
    };
    let change = |verb: &str| match desired == current {
        true => format!("{verb} stay at {current}"),
        false => format!("{verb} scale it from {current} to {desired}"),
    };
    match carried {
        "Preview" => format!("a preview: {}, as {}", change("Plimsoll would"), why(decision)),
        "Frozen" => {
            let what = change("Plimsoll would");
            format!("all scales are frozen: {what}, as {}", why(decision))
        }
        "Observed" => {
            let what = change("kube-controller-manager decides; Plimsoll would");
            format!("{what}, as {}", why(decision))
        }
        "WriteFailed" => {
            format!("the scale from {current} to {desired} could not be written: {message}")
        }
        _ if desired != current => change_of(decision, current, desired),
        _ if decision.reason == "Paused" => {
            "it stays at zero: only its owner scales it up from there".to_owned()
        }
        _ if desired == 0 => at_zero(decision),
        _ => format!("it stays at {current} ({}): {}", decision.reason, hold(decision, current)),
    }
}

fn at_zero(decision: &Decision) -> String {
    let failed: Vec<String> = { decision.metrics.iter() }
        .filter(|metric| metric.status == "Invalid")
        .map(|metric| format!("{} fails", name_of(metric, decision)))
        .collect();
    match decision.recommended_replicas {
        Some(1..) => format!("it stays at zero ({}): {}", decision.reason, hold(decision, 0)),
        _ if failed.is_empty() => "it stays at zero: no metric is above its activation".to_owned(),
        _ => format!(
            "it stays at zero: {}, and no other metric is above its activation",
            failed.join(", ")
        ),
    }
}

fn change_of(decision: &Decision, current: i32, desired: i32) -> String {
    let reason = &decision.reason;
    let again = set_back(decision.count);
    let why = why(decision);
    match (current, desired) {
        (0, _) => format!("it is woken to {desired} ({reason}): {why}{again}"),
        (_, 0) => format!("it is scaled from {current} to zero ({reason}): {why}{again}"),
        _ => format!("it is scaled from {current} to {desired} ({reason}): {why}{again}"),
    }
}

/// Why the replicas stay as they are.
fn hold(decision: &Decision, current: i32) -> String {
    match (&*decision.reason, limit(decision), used(decision)) {
        ("WithinTolerance", _, Some(metric)) => within_tolerance(decision, metric, current),
        (_, Some(constraint), _) => match decision.recommended_replicas {
            Some(proposed) if proposed != current => {
                format!("the metrics ask for {proposed}, but {constraint}")
            }
            _ => constraint,
        },
        (_, None, None) if deciding(decision).is_some() => why(decision),
        ("InvalidMetrics", ..) => "metrics fail, and no pod is removed on a guess".to_owned(),
        _ => why(decision),
    }
}

fn within_tolerance(decision: &Decision, metric: &Metric, current: i32) -> String {
    let name = name_of(metric, decision);
    if metric.value.is_none() {
        return format!("{name} has no value, and onEmpty: Hold asks for the present {current}");
    }
    let basis = &decision.basis;
    let (down, up) = (1.0 - basis.scale_down_tolerance, 1.0 + basis.scale_up_tolerance);
    if let Some(weighted) = metric.weighted_ratio {
        return with_others(&name, metric, weighted, (down..=up).contains(&weighted));
    }
    match metric.ratio {
        Some(ratio) if (down..=up).contains(&ratio) => {
            let percent = if ratio < 1.0 { down } else { up };
            let percent = decimal((percent - 1.0).abs() * 100.0);
            format!("{name} is within {percent} % of its target")
        }
        Some(ratio) if metric.pods.ready > 0 => {
            let exact = ratio * metric.pods.ready as f64;
            format!("{name} asks for {}, which is rounded up to {current}", decimal(exact))
        }
        _ => format!("{name} asks for {current}"),
    }
}

/// How pods that are not ready or have no sample keep the replicas: upstream counts them so that nothing is changed
/// because of them.
fn with_others(name: &str, metric: &Metric, weighted: f64, is_within: bool) -> String {
    let is_above = metric.ratio > Some(1.0);
    let missing = match metric.target.as_deref().and_then(|target| target.strip_suffix('%')) {
        _ if is_above => "0".to_owned(),
        // Their requests, unless the target is more than those.
        Some(percent) if parsed(percent) > Some(100.0) => "on target".to_owned(),
        Some(_) => "100 % of their requests".to_owned(),
        None => "on target".to_owned(),
    };
    let mut others = Vec::new();
    if metric.pods.unready > 0 && is_above {
        others.push(format!("{} not ready as 0", metric.pods.unready));
    }
    if metric.pods.missing > 0 {
        others.push(format!("{} without a sample as {missing}", metric.pods.missing));
    }
    let percent = decimal((weighted * 1000.0).round() / 10.0);
    let so = match is_within {
        true => "which is within the tolerance",
        false => "which asks for no change in that direction",
    };
    format!(
        "{name} is {percent} % of its target if pods count that are {}, {so}",
        others.join(" and ")
    )
}

fn run(account: &Account) -> String {
    let Account { decision, at, .. } = account;
    let first = parse_time(&decision.first_time).unwrap_or_default();
    let run = match decision.count {
        0 | 1 => format!("decision {}", decision.metadata.name),
        count => format!(
            "{count} such decisions since {} ({}){}",
            clock(first, *at),
            span(last(decision) - first),
            match account.ends_later() {
                true => format!(", until {}", clock(last(decision), *at)),
                false => String::new(),
            }
        ),
    };
    match account.unwritten_for() {
        Some(age) => format!(
            "{run}; equal ones are written once a minute: those of the last {} may be missing",
            span(age)
        ),
        None => run,
    }
}

/// The query of the metric that decided, or else of one that failed.
fn query(decision: &Decision) -> Option<&str> {
    let of = |is: fn(&Metric) -> bool| {
        decision.metrics.iter().find(|one| is(one) && one.query.is_some())
    };
    let found = of(|metric| metric.status == "Used").or_else(|| of(|m| m.status == "Invalid"));
    found.or_else(|| of(|_| true))?.query.as_deref()
}
