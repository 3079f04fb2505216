//! Tells of one decision as an engineer tells a colleague.

use super::advice::advice;
use super::changes::{By, Change, constraint, short_name, used, why};
use super::words::{clock, counted, date, decimal, number, parsed, span};
use crate::ledger::api::{Decision, Metric, Turn};
use crate::ledger::parse_time;
use crate::time::UnixMillis;

/// The autoscaler that a story is about.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    /// `Autoscaler` or `HorizontalPodAutoscaler`.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its target as KIND/NAME, if known.
    pub target: Option<String>,
    /// How often it is decided for, in ms; 0 if not known.
    pub period: i64,
    /// Its conditions that say what is wrong, each as reason and message.
    pub faults: Vec<(String, String)>,
    /// What else is to be said of it, such as a warning.
    pub notes: Vec<String>,
}

/// What a story is made of.
#[derive(Clone, Debug)]
pub struct Account {
    /// Whom it is about.
    pub subject: Subject,
    /// The decision.
    pub decision: Decision,
    /// The last change of the replicas until then, if it is known.
    pub change: Option<Change>,
    /// Since when decisions are looked at or known.
    pub since: UnixMillis,
    /// The time that was asked for: now, or one in the past.
    pub at: UnixMillis,
    /// The time now.
    pub now: UnixMillis,
}

/// The most metrics that are told of one by one.
const MAX_METRICS: usize = 3;
/// How old the last decision may be in periods, and at least in ms, before that is said.
const STALE: (i64, i64) = (4, 300_000);

/// A story in lines, each with a label, or none where the line before continues.
struct Lines(String);

impl Lines {
    fn say(&mut self, label: &str, text: impl AsRef<str>) {
        let line = format!("{label:<9} {}", text.as_ref());
        self.0.push_str(line.trim_end());
        self.0.push('\n');
    }
}

/// The story: at most 24 lines.
pub fn story(account: &Account) -> String {
    let Account { subject, decision, .. } = account;
    let mut lines = Lines(format!("{}\n", headline(account)));
    if let Some(since) = since(account) {
        lines.say("Since", since);
    }
    lines.say(if is_past(account) { "Then" } else { "Now" }, now(decision));
    lines.say("", run(account));
    metrics(&mut lines, decision);
    steps(&mut lines, account);
    lines.say("Held by", held_by(account));
    turns(&mut lines, account);
    if let Some(query) = query(decision) {
        lines.say("Query", query);
    }
    let names = (&*subject.namespace, &*subject.name);
    if let Some(advice) = advice(Some(decision), &subject.faults, names) {
        lines.say("To do", advice);
    }
    for note in &subject.notes {
        lines.say("Note", note);
    }
    if let Some(stale) = stale(account) {
        lines.say("Note", stale);
    }
    lines.0
}

fn is_past(account: &Account) -> bool {
    account.at != account.now
}

/// The replicas after a decision.
fn replicas(decision: &Decision) -> Option<i32> {
    let written = decision.desired_replicas.filter(|_| decision.carried_out.written);
    written.or(decision.current_replicas)
}

fn last(decision: &Decision) -> UnixMillis {
    parse_time(&decision.last_time).unwrap_or_default()
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
    // A run may go on after the time that was asked for.
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
            "before {}: {replicas} in all decisions that are known",
            clock(*since, *at)
        ));
    };
    // Then it is what happens now.
    if change.by == By::Plimsoll && change.decision.metadata.name == decision.metadata.name {
        return None;
    }
    Some(format!(
        "{} ({}), when {} scaled it from {} to {}: {}",
        clock(change.at, *at),
        span(at - change.at),
        change.by.as_str(),
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
    let (Some(current), Some(desired)) = (current, desired) else {
        let is_failed = decision.reason == "InvalidMetrics" || decision.reason == "Fallback";
        let what = if is_failed { "metrics fail, so nothing is changed" } else { "no decision" };
        return format!("{what} ({}): {message}", decision.reason);
    };
    let change = |verb: &str| match desired == current {
        true => format!("{verb} stay at {current}"),
        false => format!("{verb} scale it from {current} to {desired}"),
    };
    match carried {
        "Paused" => format!("it is left alone (Paused): {message}"),
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
        _ if desired == 0 => "it stays at zero: no metric is above its activation".to_owned(),
        _ => format!("it stays at {current} ({}): {}", decision.reason, hold(decision, current)),
    }
}

fn change_of(decision: &Decision, current: i32, desired: i32) -> String {
    let reason = &decision.reason;
    match (current, desired) {
        (0, _) => format!("it is woken to {desired} ({reason}): {}", why(decision)),
        (_, 0) => format!("it is scaled from {current} to zero ({reason}): {}", why(decision)),
        _ => format!("it is scaled from {current} to {desired} ({reason}): {}", why(decision)),
    }
}

/// Why the replicas stay as they are.
fn hold(decision: &Decision, current: i32) -> String {
    let last = decision.constraints.last().map(|last| constraint(last, decision));
    match (&*decision.reason, last, used(decision)) {
        ("WithinTolerance", _, Some(metric)) => within_tolerance(decision, metric, current),
        (_, Some(constraint), _) => match decision.recommended_replicas {
            Some(proposed) if proposed != current => {
                format!("the metrics ask for {proposed}, but {constraint}")
            }
            _ => constraint,
        },
        ("InvalidMetrics", ..) => "metrics fail, and no pod is removed on a guess".to_owned(),
        _ => why(decision),
    }
}

fn within_tolerance(decision: &Decision, metric: &Metric, current: i32) -> String {
    let name = short_name(metric, decision);
    let basis = &decision.basis;
    let (down, up) = (1.0 - basis.scale_down_tolerance, 1.0 + basis.scale_up_tolerance);
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

fn run(account: &Account) -> String {
    let Account { decision, at, .. } = account;
    let first = parse_time(&decision.first_time).unwrap_or_default();
    match decision.count {
        0 | 1 => format!("decision {}", decision.metadata.name),
        count => format!(
            "{count} such decisions since {} ({})",
            clock(first, *at),
            span(last(decision) - first)
        ),
    }
}

fn metrics(lines: &mut Lines, decision: &Decision) {
    let all = &decision.metrics;
    let is_used = |metric: &&Metric| metric.status == "Used";
    if all.len() <= MAX_METRICS {
        for metric in all {
            one_metric(lines, decision, metric);
        }
        return;
    }
    let deciding = all.iter().find(is_used).or_else(|| all.iter().find(|m| m.status == "Invalid"));
    let Some(deciding) = deciding.or_else(|| all.first()) else { return };
    one_metric(lines, decision, deciding);
    let others = all.iter().filter(|metric| metric.metric_index != deciding.metric_index);
    let failed = others.clone().filter(|metric| metric.status == "Invalid").count();
    let most = others.filter_map(|metric| metric.proposed_replicas).max();
    let most = most.map(|most| format!(", which ask for {most} at most")).unwrap_or_default();
    let failed = if failed > 0 { format!("; {failed} of them fail") } else { String::new() };
    lines.say("", format!("and {} others{most}{failed}: -o json has them", all.len() - 1));
}

fn one_metric(lines: &mut Lines, decision: &Decision, metric: &Metric) {
    let name = short_name(metric, decision);
    let target = metric.target.as_deref().map_or_else(|| "invalid".to_owned(), number);
    if metric.status == "Invalid" {
        let reason = metric.reason.as_deref().unwrap_or("Invalid");
        let message = metric.message.as_deref().unwrap_or_default();
        lines.say("Metric", format!("{name} (target {target}) failed: {reason}: {message}"));
        return;
    }
    let value = metric.value.as_deref().map_or_else(|| "no value".to_owned(), number);
    let average = match metric.target_type.as_deref() {
        Some("AverageValue") => " on average",
        Some("Utilization") => " of the requests on average",
        _ => "",
    };
    let asks = match metric.proposed_replicas {
        Some(proposed) => format!("asks for {proposed}"),
        None => "asks for nothing".to_owned(),
    };
    let decides = if metric.status == "Used" { ", and decides" } else { "" };
    lines.say(
        "Metric",
        format!("{name}: {value}{average}{}; target {target}: {asks}{decides}", pods(metric)),
    );
    let mut more = Vec::new();
    if let Some(age) = metric.newest_sample_age.as_deref().and_then(age) {
        more.push(format!("{} old", span(age)));
    }
    if let Some(ratio) = metric.ratio.filter(|_| metric.target_type.is_some()) {
        more.push(format!("{} % of the target", decimal((ratio * 1000.0).round() / 10.0)));
    }
    if let (Some(least), Some(most)) = (&metric.min_value, &metric.max_value)
        && least != most
    {
        let since = parse_time(&decision.first_time).unwrap_or_default();
        let since = clock(since, last(decision));
        more.push(format!("{} to {} since {since}", number(least), number(most)));
    }
    if !more.is_empty() && (metric.status == "Used" || decision.metrics.len() == 1) {
        lines.say("", more.join(", "));
    }
}

fn age(text: &str) -> Option<i64> {
    let seconds: f64 = text.strip_suffix('s')?.parse().ok()?;
    Some((seconds * 1000.0) as i64)
}

fn pods(metric: &Metric) -> String {
    let pods = metric.pods;
    let others = [
        (pods.unready, "not ready"),
        (pods.missing, "without a sample"),
        (pods.ignored, "ignored"),
    ];
    let others = others.iter().filter(|(count, _)| *count > 0);
    let others: String = others.map(|(count, what)| format!(", {count} {what}")).collect();
    match pods.ready {
        0 if others.is_empty() => String::new(),
        ready => format!(" of {}{others}", counted(ready, "ready pod")),
    }
}

/// Each step that changed the number.
fn steps(lines: &mut Lines, account: &Account) {
    let Account { decision, at, .. } = account;
    if decision.constraints.is_empty() {
        return;
    }
    let mut label = "Steps";
    if let (Some(from), Some(to)) = (decision.current_replicas, decision.recommended_replicas)
        && from != to
    {
        let by = used(decision).map_or("the metrics", |metric| short_name(metric, decision));
        lines.say(label, format!("{from} -> {to}  {by}"));
        label = "";
    }
    for step in &decision.constraints {
        let until = step.until.as_deref().map(|until| until_text(until, *at)).unwrap_or_default();
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

fn until_text(until: &str, at: UnixMillis) -> String {
    let Some(time) = parse_time(until) else { return String::new() };
    match time > at {
        true => format!(", until {} (in {})", clock(time, at), span(time - at)),
        false => format!(", until {}", clock(time, at)),
    }
}

/// What holds the replicas, and until when.
fn held_by(account: &Account) -> String {
    let Account { decision, at, .. } = account;
    let of_bounds = decision.basis.bounds_until.as_deref();
    let bounds = of_bounds.map(|until| {
        format!(
            "; the schedules change the bounds next{}",
            until_text(until, *at).replace(", until", " at")
        )
    });
    let bounds = bounds.unwrap_or_default();
    let held = match (&*decision.carried_out.reason, decision.constraints.last()) {
        ("Paused", _) => "the pause".to_owned(),
        ("Frozen", _) => "the freeze, for all autoscalers".to_owned(),
        ("Preview", _) => "mode: Preview, which writes no scale".to_owned(),
        ("Observed", _) => "kube-controller-manager, which decides".to_owned(),
        ("WriteFailed", _) => "the write that fails".to_owned(),
        ("NoDecision", None) if decision.reason == "InvalidMetrics" => {
            "the metrics that fail: no pod is removed on a guess".to_owned()
        }
        ("NoDecision", None) => "the fault: nothing is decided until it is over".to_owned(),
        (_, Some(step)) => {
            let until = step.until.as_deref().map(|until| until_text(until, *at));
            format!("{}{}", constraint(step, decision), until.unwrap_or_default())
        }
        (_, None) => match used(decision).and_then(|metric| band(decision, metric)) {
            Some(band) => band,
            None if decision.reason == "InvalidMetrics" => {
                "the metrics that fail, until they are read again".to_owned()
            }
            None if decision.reason == "Paused" => "its owner, who has set zero".to_owned(),
            None => "nothing: the metrics decide".to_owned(),
        },
    };
    format!("{held}{bounds}")
}

/// The values within the tolerance, in which nothing changes.
fn band(decision: &Decision, metric: &Metric) -> Option<String> {
    let basis = &decision.basis;
    let (down, up) = (1.0 - basis.scale_down_tolerance, 1.0 + basis.scale_up_tolerance);
    let ratio = metric.ratio.filter(|ratio| (down..=up).contains(ratio))?;
    let text = metric.target.as_deref()?;
    let target = parsed(text).filter(|_| ratio.is_finite())?;
    let unit = if text.ends_with('%') { "%" } else { "" };
    let [least, most] = [target * down, target * up].map(decimal);
    let name = short_name(metric, decision);
    Some(format!("the tolerance: nothing changes while {name} is {least}{unit} to {most}{unit}"))
}

/// What the metric has to be for other replicas.
fn turns(lines: &mut Lines, account: &Account) {
    let Account { decision, at, .. } = account;
    let Some(would) = &decision.would_change else {
        if replicas(decision) == Some(0) && decision.reason != "Paused" {
            lines.say("One more", "as soon as a metric is above its activation");
        }
        return;
    };
    let named = decision.metrics.iter().find(|metric| metric.metric_index == would.metric_index);
    let name = named.map_or("the metric", |metric| short_name(metric, decision));
    let max = format!("maxReplicas is {}", decision.basis.max_replicas);
    lines.say("One more", turn(&would.more, *at, (name, "at least", &max)));
    let others = decision.metrics.iter().filter(|metric| metric.status != "Invalid").count() > 1;
    let others = if others && would.fewer.value.is_some() {
        ", and no other metric asks for more"
    } else {
        ""
    };
    let min = format!("minReplicas is {}", decision.basis.min_replicas);
    let fewer = turn(&would.fewer, *at, (name, "at most", &min));
    lines.say("One fewer", format!("{fewer}{others}"));
}

fn turn(turn: &Turn, at: UnixMillis, (name, than, bound): (&str, &str, &str)) -> String {
    let (Some(replicas), Some(value)) = (turn.replicas, turn.value.as_deref()) else {
        return format!("no: {bound}");
    };
    let when = match turn.earliest.as_deref().and_then(parse_time) {
        Some(earliest) if earliest > at => {
            format!("from {} on (in {})", clock(earliest, at), span(earliest - at))
        }
        _ => "at once".to_owned(),
    };
    format!("({replicas}) {when}, if {name} is {} {than}", number(value))
}

/// The query of the metric that decided, or else of one that failed.
fn query(decision: &Decision) -> Option<&str> {
    let of = |is: fn(&Metric) -> bool| {
        decision.metrics.iter().find(|one| is(one) && one.query.is_some())
    };
    let found = of(|metric| metric.status == "Used").or_else(|| of(|m| m.status == "Invalid"));
    found.or_else(|| of(|_| true))?.query.as_deref()
}

fn stale(account: &Account) -> Option<String> {
    let Account { subject, decision, at, .. } = account;
    let age = at - last(decision);
    let (periods, least) = STALE;
    (age > (subject.period.saturating_mul(periods)).max(least))
        .then(|| format!("no decision for {}: kubectl plimsoll status says who leads", span(age)))
}
