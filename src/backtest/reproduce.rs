//! Reproduces what was: the spec that was in force decides on the recorded load, beside the replicas that there were.

use super::candidate::Candidate;
use super::history::WasThere;
use super::recorded::{Change, Recorded, Replicas};
use super::run::{Options, Span, check_ticks, simulate};
use super::source::Source;
use crate::time::UnixMillis;
use serde::Serialize;
use std::time::Duration;

/// How long after a decision its replicas may be seen at the earliest, in ms.
const WRITE_MS: i64 = 250;

/// Fewer compared decisions, and fewer changes among them, may be met by luck.
const LEAST_DECISIONS: i64 = 30;
const LEAST_CHANGES: usize = 3;

/// How far simulated replicas are those that there were.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Agreement {
    /// The decisions after which the replicas are known.
    pub ticks: i64,
    /// The share of those with the same number.
    pub equal: f64,
    /// The share of those with a number that differs by 1 at most.
    pub within_one: f64,
    /// The mean of the absolute differences.
    pub mean_difference: f64,
}

/// Compares numbers over time with those that there were.
#[derive(Clone, Copy, Debug, Default)]
pub struct Comparison {
    ticks: i64,
    equal: i64,
    within_one: i64,
    difference: i64,
}

impl Comparison {
    /// A decision: the number after it, and the one that there was.
    pub fn count(&mut self, number: i64, recorded: i64) {
        let difference = (number - recorded).abs();
        self.ticks += 1;
        self.equal += i64::from(difference == 0);
        self.within_one += i64::from(difference <= 1);
        self.difference += difference;
    }

    /// The result; none of no decision.
    pub fn agreement(&self) -> Option<Agreement> {
        let share = |count: i64| count as f64 / self.ticks as f64;
        (self.ticks > 0).then(|| Agreement {
            ticks: self.ticks,
            equal: share(self.equal),
            within_one: share(self.within_one),
            mean_difference: share(self.difference),
        })
    }
}

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
    /// How often the recorded replicas changed.
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

impl Agreement {
    /// Whether it is nearer to what was than another one.
    fn is_nearer_than(&self, other: &Self) -> bool {
        self.mean_difference < other.mean_difference
    }
}

impl Reproduction {
    /// Whether too little happened that tells a spec from others: replicas that stay as they were are as near, or few
    /// decisions or changes were compared.
    pub fn is_untested(&self) -> bool {
        !self.agreement.is_nearer_than(&self.stay) || is_short(&self.agreement, self.changes)
    }
}

/// How far a backtest can be trusted, by what it reproduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// It is not what was.
    Low,
    /// It is near, or nothing changed.
    Medium,
    /// It is what was, in nearly all decisions, and the replicas changed.
    High,
}

impl Trust {
    /// By an agreement, how often the replicas changed, and what replicas that stay and those that the load needs agree
    /// in. Where replicas that stay are as near, nothing happened that tells a spec from others.
    fn of(agreement: &Agreement, changes: usize, stay: &Agreement, needed: &Agreement) -> Self {
        if agreement.within_one >= 0.95 && agreement.equal >= 0.8 {
            return match agreement.is_nearer_than(stay) && !is_short(agreement, changes) {
                true => Self::High,
                false => Self::Medium,
            };
        }
        let guess = stay.mean_difference.min(needed.mean_difference);
        match agreement.within_one >= 0.8 && agreement.mean_difference <= guess {
            true => Self::Medium,
            false => Self::Low,
        }
    }
}

fn is_short(agreement: &Agreement, changes: usize) -> bool {
    agreement.ticks < LEAST_DECISIONS || changes < LEAST_CHANGES
}

/// The number that was recorded after a decision: of the first sample that can have it, before the number after the next
/// decision can be seen. Between the times of one decision and of the next there is no hole: samples at any phase are seen.
fn after(replicas: &Replicas, decision: UnixMillis, next: UnixMillis, period: i64) -> Option<i64> {
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
    let mut candidate = candidate.clone();
    if let Some(rate) = options.service_rate {
        candidate.set_service_rate(rate)?;
    }
    let candidate = &candidate;
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
    let run = simulate(candidate, &mut recorded.source(), span, &options, &mut ())?;
    let mut source = recorded.source();
    let mut loads = Vec::new();
    let (mut simulated, mut stay, mut needed) = <(Comparison, Comparison, Comparison)>::default();
    let (mut decisions, mut outside, mut not_ready) = (0_i64, 0_i64, 0_i64);
    let mut replicas: Vec<(f64, i64, i64)> = Vec::new();
    let mut at_start = None;
    let mut states = run.replicas.iter().peekable();
    let mut state = (0, 0);
    for (index, now) in times.iter().copied().enumerate() {
        while let Some((_, ready, wanted)) = states.next_if(|(time, ..)| *time <= now) {
            state = (*ready as i64, i64::from(*wanted));
        }
        source.load(now, &mut loads);
        if now < from {
            continue;
        }
        decisions += 1;
        if at_start.is_none() {
            at_start = was_there.replicas.at(now);
        }
        let next = times.get(index + 1).copied().unwrap_or(now + period);
        let Some(was) = after(&was_there.replicas, now, next, period) else { continue };
        // Pods that are counted by their samples are those that are ready.
        let number = if was_there.is_counted { state.0 } else { state.1 };
        simulated.count(number, was);
        stay.count(at_start.unwrap_or(was), was);
        let [least, most] = candidate.bounds_at(now);
        if let Some(load) = candidate.needed(&loads, least) {
            needed.count(load.clamp(0, most.into()), was);
        }
        outside += i64::from(!(i64::from(least)..=i64::from(most)).contains(&was));
        let ready = after(&was_there.ready, now, next, period);
        not_ready += i64::from(ready.is_some_and(|ready| ready < state.0));
        let row = (now as f64 / 1000.0, was, number);
        if replicas.last().is_none_or(|last| (last.1, last.2) != (row.1, row.2)) {
            replicas.push(row);
        }
    }
    let Some((agreement, stay)) = simulated.agreement().zip(stay.agreement()) else {
        return Ok(None);
    };
    let needed = needed.agreement().unwrap_or(stay);
    let changes = changes.iter().filter(|change| change.seen >= from).count();
    let trust = Trust::of(&agreement, changes, &stay, &needed);
    // Decisions after which nothing was scraped are like the others.
    let minutes = |ticks: i64| {
        let share = ticks as f64 / agreement.ticks as f64;
        share * (recorded.last() - from) as f64 / 60_000.0
    };
    let mut unknown = Vec::new();
    if outside > 0 && candidate.spec.schedules.is_empty() {
        unknown.push(format!(
            "who set the replicas outside of the bounds for {:.1} minutes: a hand, another autoscaler, or a spec with other bounds",
            minutes(outside)
        ));
    }
    if trust != Trust::High {
        if not_ready > 0 {
            unknown.push(format!(
                "why fewer pods were ready for {:.1} minutes than are simulated: a rollout, pods that failed, or a slower start",
                minutes(not_ready)
            ));
        }
        unknown.push(if !agreement.is_nearer_than(&stay) {
            "what it does when the load changes: replicas that stay as they were are as near or nearer, so that this day proves little".to_owned()
        } else if is_short(&agreement, changes) {
            format!(
                "what it does over a longer time: {} decisions of {decisions} could be compared, and {changes} changes of the replicas",
                agreement.ticks
            )
        } else {
            "whether the spec, the query or the replicas were changed by hand".to_owned()
        });
    }
    let (name, source) = (candidate.name.clone(), was_there.source.clone());
    Ok(Some(Reproduction {
        name,
        source,
        agreement,
        changes,
        stay,
        needed,
        trust,
        unknown,
        replicas,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::load::Load;
    use super::*;

    #[test]
    fn a_day_without_a_change_proves_little() {
        let of = |numbers: &[i64], was: &[i64]| {
            let mut comparison = Comparison::default();
            numbers.iter().zip(was).for_each(|(number, was)| comparison.count(*number, *was));
            comparison.agreement().unwrap()
        };
        let trust = |numbers: &[i64], was: &[i64]| {
            let (numbers, was) = (numbers.repeat(20), was.repeat(20));
            let stay = of(&vec![was[0]; was.len()], &was);
            let changes = was.windows(2).filter(|pair| pair[0] != pair[1]).count();
            Trust::of(&of(&numbers, &was), changes, &stay, &stay)
        };
        assert_eq!(trust(&[2, 2, 2, 2, 2], &[2, 2, 2, 2, 2]), Trust::Medium);
        assert_eq!(trust(&[2, 2, 4, 4, 2], &[2, 2, 4, 4, 2]), Trust::High);
        assert_eq!(trust(&[9, 2, 9, 4, 2], &[2, 2, 4, 4, 2]), Trust::Low);
    }

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
        (candidate, Recorded { loads: vec![Load::of(points)], step: period })
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
