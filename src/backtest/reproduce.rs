//! Reproduces what was: the spec that was in force decides on the recorded load, beside the replicas that there were.

use super::agreement::{Agreement, Comparison, Trust, is_short};
use super::candidate::{Candidate, bounds};
use super::history::WasThere;
use super::observer::{Decided, Observer};
use super::recorded::{Change, Recorded, Replicas};
use super::run::{Options, Span, check_ticks, simulate};
use crate::hpa::{MetricTrace, Step, Trace};
use crate::time::UnixMillis;
use serde::Serialize;
use std::time::Duration;

/// How long after a decision its replicas may be seen at the earliest, in ms.
const WRITE_MS: i64 = 250;

/// How far a simulated run is what was, and how far the two simplest guesses are.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reproduction {
    /// The name of the autoscaler.
    pub name: String,
    /// Where the recorded replicas are from.
    pub source: String,
    /// Of the backtest.
    #[serde(flatten)]
    pub agreement: Agreement,
    /// How often the recorded replicas changed between the compared decisions.
    pub changes: usize,
    /// Of replicas that stay as they were at the beginning of the time.
    pub stay: Agreement,
    /// Of the pods that the load needs.
    pub needed: Agreement,
    /// How far the results below can be trusted.
    pub trust: Trust,
    /// What differs, and can't be known from the recorded load.
    pub unknown: Vec<String>,
    /// The recorded and the simulated replicas, where one of them changes.
    pub replicas: Vec<(f64, i64, i64)>,
}

impl Reproduction {
    /// Whether too little happened that tells a spec from others: replicas that stay as they were are as near, or few
    /// decisions or changes were compared.
    pub fn is_untested(&self) -> bool {
        !self.agreement.is_nearer_than(&self.stay) || is_short(&self.agreement, self.changes)
    }
}

/// The time and the number that was recorded after a decision: of the first sample that can have it, before the number
/// after the next decision can be seen. Between the times of one decision and of the next there is no hole: samples at any
/// phase are seen.
fn after(
    replicas: &Replicas,
    decision: UnixMillis,
    next: UnixMillis,
    period: i64,
) -> Option<(UnixMillis, i64)> {
    let write = WRITE_MS.min(period / 2);
    replicas.within(decision + write, next + write)
}

/// When decisions were made, by the changes that were recorded: each a period after the one before, but at a time at
/// which a change near it can have been decided. kube-controller-manager waits for a period after each decision, so
/// that its own are a little longer than that.
fn decision_times(
    changes: &[Change],
    first: UnixMillis,
    last: UnixMillis,
    period: i64,
) -> Vec<UnixMillis> {
    // The times at which each change can have been decided.
    let possible: Vec<(UnixMillis, UnixMillis)> = changes
        .iter()
        .map(|change| (change.after, (change.seen - WRITE_MS).max(change.after)))
        .filter(|(earliest, _)| *earliest >= first)
        .collect();
    let middle = possible.first().map_or(first, |(from, to)| i64::midpoint(*from, *to));
    let mut time = first + (middle - first) % period;
    let (mut times, mut next) = (Vec::new(), 0);
    while time <= last {
        times.push(time);
        time += period;
        while possible.get(next).is_some_and(|(_, latest)| *latest < time - period / 2) {
            next += 1;
        }
        if let Some((earliest, latest)) = possible.get(next)
            && *earliest <= time + period / 2
        {
            time = time.clamp(*earliest, *latest);
        }
    }
    times
}

/// Compares each decision of a run with what was.
struct Beside<'a> {
    was_there: &'a WasThere,
    /// The times of the decisions. Those before a time are seen, and not compared.
    times: &'a [UnixMillis],
    from: UnixMillis,
    seen: usize,
    /// How many there are from that time on.
    decisions: i64,
    /// The replicas that there were at the first of these.
    at_start: Option<i64>,
    simulated: Comparison,
    stay: Comparison,
    needed: Comparison,
    /// In how many the replicas were outside of the bounds, and fewer ready than are simulated.
    outside: i64,
    not_ready: i64,
    compared: Option<Compared>,
    replicas: Vec<(f64, i64, i64)>,
}

/// The time of the decisions that were compared.
#[derive(Clone, Copy, Debug)]
struct Compared {
    /// The first of them.
    first: UnixMillis,
    /// The sample that was found for the last of them, and the decision after it.
    last_sample: UnixMillis,
    end: UnixMillis,
}

impl Compared {
    /// Whether a change is one between them.
    fn has(&self, change: &Change) -> bool {
        change.seen > self.first && change.seen <= self.last_sample
    }
}

impl<'a> Beside<'a> {
    fn new(was_there: &'a WasThere, times: &'a [UnixMillis], from: UnixMillis) -> Self {
        Self {
            was_there,
            times,
            from,
            seen: 0,
            decisions: 0,
            at_start: None,
            simulated: Comparison::default(),
            stay: Comparison::default(),
            needed: Comparison::default(),
            outside: 0,
            not_ready: 0,
            compared: None,
            replicas: Vec::new(),
        }
    }

    /// So many of the compared decisions in words, as minutes. Those after which nothing was scraped are like the others.
    fn minutes(&self, decisions: i64, of: &Agreement) -> String {
        let length = self.compared.map_or(0, |compared| compared.end - compared.first);
        let share = decisions as f64 / of.ticks as f64;
        format!("{:.1} minutes", share * length as f64 / 60_000.0)
    }

    /// What differs, and can't be known from the recorded load.
    fn unknown(
        &self,
        of: &Agreement,
        stay: &Agreement,
        changes: usize,
        trust: Trust,
    ) -> Vec<String> {
        let mut unknown = Vec::new();
        if self.outside > 0 {
            unknown.push(format!(
                "who set the replicas outside of the bounds for {}: a hand, another autoscaler, or a spec with other bounds",
                self.minutes(self.outside, of)
            ));
        }
        if trust == Trust::High {
            return unknown;
        }
        if self.not_ready > 0 {
            unknown.push(format!(
                "why fewer pods were ready for {} than are simulated: a rollout, pods that failed, or a slower start",
                self.minutes(self.not_ready, of)
            ));
        }
        unknown.push(if !of.is_nearer_than(stay) {
            "what it does when the load changes: replicas that stay as they were are as near or nearer, so that this day proves little".to_owned()
        } else if is_short(of, changes) {
            format!(
                "what it does over a longer time: {} decisions of {} could be compared, and {changes} changes of the replicas",
                of.ticks, self.decisions
            )
        } else {
            "whether the spec, the query or the replicas were changed by hand".to_owned()
        });
        unknown
    }
}

impl Trace for Beside<'_> {
    fn metric(&mut self, _: usize, _: &MetricTrace) {}
    fn step(&mut self, _: Step) {}
}

impl Observer for Beside<'_> {
    fn decided(&mut self, decided: &Decided<'_>) {
        let (now, period) = (decided.context.now, decided.period);
        self.seen += 1;
        if now < self.from {
            return;
        }
        self.decisions += 1;
        let WasThere { replicas, ready, is_counted, .. } = self.was_there;
        self.at_start = self.at_start.or_else(|| replicas.at(now));
        let next = self.times.get(self.seen).copied().unwrap_or(now + period);
        let Some((last_sample, was)) = after(replicas, now, next, period) else { return };
        let first = self.compared.map_or(now, |compared| compared.first);
        self.compared = Some(Compared { first, last_sample, end: next });
        let simulated_ready = decided.ready as i64;
        // Pods that are counted by their samples are those that are ready.
        let number = if *is_counted { simulated_ready } else { decided.wanted.into() };
        self.simulated.count(number, was);
        self.stay.count(self.at_start.unwrap_or(was), was);
        let [least, most] = bounds(decided.context).map(i64::from);
        if let Some(needed) = decided.needed {
            self.needed.count(needed.max(least).min(most), was);
        }
        let is_inside = !decided.context.spec.schedules.is_empty() || (least..=most).contains(&was);
        self.outside += i64::from(!is_inside);
        let ready = after(ready, now, next, period);
        self.not_ready += i64::from(ready.is_some_and(|(_, ready)| ready < simulated_ready));
        let row = (now as f64 / 1000.0, was, number);
        if self.replicas.last().is_none_or(|last| (last.1, last.2) != (row.1, row.2)) {
            self.replicas.push(row);
        }
    }
}

/// Runs the spec that was in force, and compares it with what was from a time on; none if that is unknown. What was
/// recorded before that is decided on, so that stabilization windows know of it, and not compared.
///
/// # Errors
/// As [`simulate`].
pub fn reproduce(
    candidate: &Candidate,
    recorded: &Recorded,
    was_there: &WasThere,
    from: UnixMillis,
    options: &Options,
) -> Result<Option<Reproduction>, String> {
    let period = candidate.period_ms(options.period);
    // Before there is a list of them.
    check_ticks(recorded.last().saturating_sub(recorded.first()) / period)?;
    let changes: Vec<Change> = was_there.replicas.changes().collect();
    let times = decision_times(&changes, recorded.first(), recorded.last(), period);
    let Some(first) = times.first().copied() else { return Ok(None) };
    let start = was_there.replicas.at(first);
    let window_ms = candidate.sample_window_ms(period);
    let span = Span { first, end: recorded.last(), window_ms, start, times: Some(&times) };
    // What is not counted elsewhere is compared here as well.
    let options = Options { warm_up: Duration::ZERO, ..*options };
    let mut beside = Beside::new(was_there, &times, from);
    simulate(candidate, &mut recorded.source(), span, &options, &mut beside)?;
    let agreements = beside.simulated.agreement().zip(beside.stay.agreement());
    let (Some((agreement, stay)), Some(compared)) = (agreements, beside.compared) else {
        return Ok(None);
    };
    let needed = beside.needed.agreement().unwrap_or(stay);
    let changes = changes.iter().filter(|change| compared.has(change)).count();
    let trust = match candidate.doubts.is_empty() {
        true => Trust::of(&agreement, changes, &stay, &needed),
        false => Trust::Low,
    };
    Ok(Some(Reproduction {
        name: candidate.name.clone(),
        source: was_there.source.clone(),
        agreement,
        changes,
        stay,
        needed,
        trust,
        unknown: beside.unknown(&agreement, &stay, changes, trust),
        replicas: beside.replicas,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::load::Load;
    use super::*;

    #[test]
    fn decisions_are_at_the_times_at_which_changes_can_have_been_decided() {
        // Each decision is 15.1 s after the one before; replicas are scraped every second.
        let decided: Vec<i64> = (0..400).map(|k| 7_300 + k * 15_100).collect();
        let change = |time: &i64| {
            let seen = (time + WRITE_MS).div_euclid(1_000) * 1_000 + 1_000;
            Change { after: seen - 1_000, seen, from: 1, to: 2 }
        };
        let changes: Vec<Change> = decided.iter().step_by(6).map(change).collect();
        let times = decision_times(&changes, 0, 400 * 15_100, 15_000);
        let near = times.iter().zip(&decided).filter(|(one, other)| (*one - *other).abs() <= 1_250);
        assert_eq!(near.count(), 400, "{times:?}");
        // Scrapes that are as long as a period say nothing of the time within it.
        let rare = [Change { after: 15_000, seen: 30_000, from: 1, to: 2 }];
        let times = decision_times(&rare, 0, 60_000, 15_000);
        assert_eq!(times, [7_375, 22_375, 37_375, 52_375]);
        assert_eq!(decision_times(&[], 5, 40_000, 15_000), [5, 15_005, 30_005]);
    }

    /// An autoscaler of one metric of pods that carry 10 each, and the load of each period.
    fn in_force(replicas: &[i64], period: i64) -> (Candidate, Recorded) {
        let spec = serde_json::json!({
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 1, "maxReplicas": 100,
            "customMetrics": [{"metricName": "requests", "averageValue": "10"}],
        });
        let candidate = Candidate::new("web", "shop", spec).unwrap();
        let points = replicas.iter().zip(0..);
        let points = points.map(|(replicas, tick)| (tick * period, *replicas as f64 * 10.0, false));
        (candidate, Recorded { loads: vec![Load::of(points)], step: period, ..Recorded::default() })
    }

    fn options() -> Options {
        Options {
            pod_start: Duration::ZERO,
            window: Duration::from_secs(60),
            scrape_interval: Duration::from_secs(15),
            warm_up: Duration::ZERO,
            period: None,
            service_rate: None,
        }
    }

    fn scraped(samples: impl Iterator<Item = (UnixMillis, i64)>, is_counted: bool) -> WasThere {
        let replicas = Replicas::new(samples.collect());
        let ready = replicas.clone();
        WasThere { replicas, is_counted, ready, source: "samples".to_owned() }
    }

    #[test]
    fn samples_at_any_time_within_a_period_are_compared() {
        let period = 15_000;
        let (candidate, recorded) = in_force(&[4; 240], period);
        for phase in (0..period).step_by(125) {
            let samples = (0..240).map(|tick| (tick * period + phase, 4));
            let was = scraped(samples, phase == 0);
            let found = reproduce(&candidate, &recorded, &was, 0, &options()).unwrap();
            let found = found.unwrap_or_else(|| panic!("none at {phase}"));
            assert!(found.agreement.ticks >= 239, "{phase}: {}", found.agreement.ticks);
            assert_eq!((found.agreement.equal, found.trust), (1.0, Trust::Medium), "{phase}");
        }
    }

    #[test]
    fn one_change_in_a_few_decisions_may_be_met_by_luck() {
        let period = 15_000;
        let reproduced = |levels: &[i64], each: usize| {
            let load: Vec<i64> = levels.iter().flat_map(|level| vec![*level; each]).collect();
            let (candidate, recorded) = in_force(&load, period);
            // Each second, and seen in the second after the decision.
            let seconds = 0..load.len() * 15;
            let sample =
                |second: usize| (second as i64 * 1_000, load[second.saturating_sub(1) / 15]);
            let was = scraped(seconds.map(sample), false);
            reproduce(&candidate, &recorded, &was, 0, &options()).unwrap().unwrap()
        };
        let few = reproduced(&[2, 4], 5);
        assert_eq!((few.trust, few.is_untested()), (Trust::Medium, true), "{few:?}");
        assert!(few.unknown.iter().any(|why| why.contains("longer time")), "{:?}", few.unknown);
        let once = reproduced(&[2, 4], 50);
        assert_eq!((once.trust, once.is_untested()), (Trust::Medium, true), "{once:?}");
        let often = reproduced(&[2, 4, 8, 16, 32], 20);
        assert_eq!((often.trust, often.is_untested()), (Trust::High, false), "{often:?}");
    }

    #[test]
    fn what_a_queue_needs_goes_by_what_a_pod_completes() {
        let (candidate, recorded) = in_force(&[10; 240], 15_000);
        let was = scraped((0..240).map(|tick| (tick * 15_000 + 1_000, 20)), false);
        let options = Options { service_rate: Some(5.0), ..options() };
        let found = reproduce(&candidate, &recorded, &was, 0, &options).unwrap().unwrap();
        assert!(found.needed.equal > 0.99, "100 in a second need 20 pods: {:?}", found.needed);
    }

    #[test]
    fn no_part_of_a_day_drops_out_where_scrapes_are_rare() {
        let period = 15_000;
        let load: Vec<i64> = (0..2_000).map(|tick| if tick < 1_000 { 4 } else { 8 }).collect();
        let (candidate, recorded) = in_force(&load, period);
        for scrapes in [30_000, 60_000] {
            let samples = (0..2_000 * period / scrapes).map(|scrape| scrape * scrapes);
            let samples = samples.map(|time| (time, if time <= 1_000 * period { 4 } else { 8 }));
            let was = scraped(samples, false);
            let found = reproduce(&candidate, &recorded, &was, 0, &options()).unwrap().unwrap();
            let all = 2_000 * period / scrapes;
            assert!(found.agreement.ticks >= all - 2, "{scrapes}: {}", found.agreement.ticks);
            assert!((0.4..0.6).contains(&found.stay.equal), "{scrapes}: {:?}", found.stay);
            assert!(found.agreement.within_one > 0.99, "{scrapes}: {:?}", found.agreement);
        }
    }
    #[test]
    fn only_changes_between_compared_decisions_tell_a_spec_from_others() {
        // A day of replicas with 24 changes, and an hour of load with one.
        let (period, day, hour) = (15_000, 5_760, 240);
        let mut load: Vec<i64> = (0..day).map(|tick| 3 + tick / hour % 2).collect();
        for (tick, level) in load.iter_mut().enumerate().skip((day - hour) as usize) {
            *level = if (tick as i64) < day - hour / 2 { 4 } else { 8 };
        }
        let (candidate, recorded) = in_force(&load, period);
        let from = (day - hour) * period;
        let recorded = recorded.between(Some(from), None).unwrap();
        let was = (0..day).zip(&load).map(|(tick, was)| (tick * period + 1_000, *was));
        let was = scraped(was, false);
        let found = reproduce(&candidate, &recorded, &was, 0, &options()).unwrap().unwrap();
        assert!(found.agreement.within_one > 0.95, "{:?}", found.agreement);
        assert_eq!((found.changes, found.trust), (1, Trust::Medium), "{found:?}");
        assert!(found.is_untested());
    }

    #[test]
    fn what_is_outside_of_the_bounds_counts_while_it_is_compared() {
        let (period, hour) = (15_000, 240);
        let (candidate, recorded) = in_force(&vec![2; 2 * hour as usize], period);
        let recorded = recorded.between(Some(hour * period), None).unwrap();
        // The metric is known for an hour, and the replicas for two hours or for half an hour.
        for (first, minutes) in [(0, "60.0 minutes"), (hour + hour / 2, "30.0 minutes")] {
            let samples = (first..2 * hour).map(|tick| (tick * period + 1_000, 120));
            let was = scraped(samples, false);
            let found = reproduce(&candidate, &recorded, &was, 0, &options()).unwrap().unwrap();
            let outside = format!("outside of the bounds for {minutes}");
            assert!(found.unknown[0].contains(&outside), "{:?}", found.unknown);
        }
    }
}
