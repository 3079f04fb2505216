//! The metrics of a decision: what was measured of each, and what it asks for.

use super::account::{Account, Lines, last};
use super::changes::{deciding, name_of};
use super::words::{clock, counted, date, decimal, like, span};
use crate::ledger::api::{Decision, Metric};
use crate::ledger::parse_time;

/// The most metrics that are told of one by one.
const MAX_METRICS: usize = 3;

/// Tells of each metric, or of the one that decides where there are many.
pub fn metrics(lines: &mut Lines, account: &Account) {
    let decision = &account.decision;
    let all = &decision.metrics;
    if all.len() <= MAX_METRICS {
        for metric in all {
            one_metric(lines, account, metric);
        }
        return;
    }
    let decides = deciding(decision).or_else(|| all.iter().find(|m| m.status == "Invalid"));
    let Some(decides) = decides.or_else(|| all.first()) else { return };
    one_metric(lines, account, decides);
    let others = all.iter().filter(|metric| metric.metric_index != decides.metric_index);
    let failed = others.clone().filter(|metric| metric.status == "Invalid").count();
    let most = others.filter_map(|metric| metric.proposed_replicas).max();
    let most = most.map(|most| format!(", which ask for {most} at most")).unwrap_or_default();
    let failed = if failed > 0 { format!("; {failed} of them fail") } else { String::new() };
    lines.say("", format!("and {} others{most}{failed}: -o json has them", all.len() - 1));
}

fn one_metric(lines: &mut Lines, account: &Account, metric: &Metric) {
    let decision = &account.decision;
    let name = name_of(metric, decision);
    let target = metric.target.as_deref();
    let target = target.map_or_else(|| "invalid".to_owned(), |text| like(text, target));
    let is_deciding = deciding(decision).is_some_and(|of| of.metric_index == metric.metric_index);
    let decides = if is_deciding { ", and decides" } else { "" };
    let asks = asks(metric, decision);
    if metric.status == "Invalid" {
        let reason = metric.reason.as_deref().unwrap_or("Invalid");
        let message = metric.message.as_deref().unwrap_or_default();
        lines.note("Metric", &format!("{name} (target {target}) failed: {reason}: {message}"));
        if let Some(asks) = asks {
            lines.say("", format!("{asks}{decides}"));
        }
        return;
    }
    let value = metric
        .value
        .as_deref()
        .map_or_else(|| "no value".to_owned(), |value| like(value, metric.target.as_deref()));
    let average = match metric.target_type.as_deref() {
        _ if metric.value.is_none() => "",
        _ if metric.is_total() => " in all",
        Some("AverageValue") => " on average",
        Some("Utilization") => " of the requests on average",
        _ => "",
    };
    let asks = asks.unwrap_or_else(|| "asks for nothing".to_owned());
    let target = if metric.is_total() { format!("{target} per pod") } else { target };
    lines.say(
        "Metric",
        format!("{name}: {value}{average}{}; target {target}: {asks}{decides}", pods(metric)),
    );
    let more = more(account, metric);
    if !more.is_empty() && (is_deciding || decision.metrics.len() == 1) {
        lines.say("", more.join(", "));
    }
}

/// What a metric asks for, and by which option of the spec, if it has no value.
fn asks(metric: &Metric, decision: &Decision) -> Option<String> {
    let proposed = metric.proposed_replicas?;
    let is_failed = metric.status == "Invalid";
    Some(match is_failed {
        true if is_held(metric, decision) => format!("onError: Hold asks for {proposed}"),
        true => format!("its fallback asks for {proposed}"),
        false if metric.value.is_none() => format!("onEmpty: Hold asks for {proposed}"),
        false => format!("asks for {proposed}"),
    })
}

/// Whether a metric that failed only holds the replicas.
pub fn is_held(metric: &Metric, decision: &Decision) -> bool {
    metric.on_error.as_deref() == Some("Hold")
        && metric.proposed_replicas == decision.current_replicas
}

/// What else is known of a value: its age, its share of the target and its range.
fn more(account: &Account, metric: &Metric) -> Vec<String> {
    let decision = &account.decision;
    let mut more = Vec::new();
    if metric.value.is_none() {
        return more;
    }
    if account.ends_later() {
        more.push(format!("measured at {}, the end of the run", date(last(decision))));
    } else if let Some(age) = metric.newest_sample_age.as_deref().and_then(age) {
        // The decision may be of a minute ago.
        more.push(format!("{} old at the decision", span(age)));
    }
    if let Some(ratio) = metric.ratio.filter(|_| metric.target_type.is_some()) {
        more.push(format!("{} % of the target", percent(ratio)));
    }
    if let Some(ratio) = metric.weighted_ratio {
        more.push(format!("{} % with the other pods", percent(ratio)));
    }
    if let (Some(least), Some(most)) = (&metric.min_value, &metric.max_value)
        && least != most
    {
        let since = parse_time(&decision.first_time).unwrap_or_default();
        let since = clock(since, last(decision));
        let [least, most] = [least, most].map(|value| like(value, metric.target.as_deref()));
        more.push(format!("{least} to {most} since {since}"));
    }
    more
}

fn percent(ratio: f64) -> String {
    decimal((ratio * 1000.0).round() / 10.0)
}

fn age(text: &str) -> Option<i64> {
    let seconds: f64 = text.strip_suffix('s')?.parse().ok()?;
    Some((seconds * 1000.0) as i64)
}

fn pods(metric: &Metric) -> String {
    // A value of the whole workload is of no pods.
    if metric.target_type.as_deref() == Some("Value") {
        return String::new();
    }
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
