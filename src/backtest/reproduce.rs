//! Reproduces what was: the spec that was in force decides on the recorded load, beside the replicas that there were.

use super::candidate::Candidate;
use super::history::WasThere;
use super::recorded::{Change, Recorded, Replicas};
use super::run::{Run, Source};
use crate::time::UnixMillis;
use serde::Serialize;

/// How long after a decision its replicas may be seen at the earliest, in ms.
const WRITE_MS: i64 = 250;
/// The resolution at which the times of decisions are looked for, in ms.
const PHASE_STEP: i64 = 250;

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
    /// Of replicas that stay as they were at the beginning.
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

/// How far a backtest can be trusted, by what it reproduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// It is not what was.
    Low,
    /// It is near.
    Medium,
    /// It is what was, in nearly all decisions.
    High,
}

impl Trust {
    /// By an agreement and the better one of the simple guesses.
    pub fn of(agreement: &Agreement, guess: &Agreement) -> Self {
        if agreement.within_one >= 0.95 && agreement.equal >= 0.8 {
            return Self::High;
        }
        match agreement.within_one >= 0.8 && agreement.mean_difference <= guess.mean_difference {
            true => Self::Medium,
            false => Self::Low,
        }
    }
}

/// The number that was recorded after a decision: of the first sample that can have it, before the next decision.
pub fn after(replicas: &Replicas, decision: UnixMillis, period: i64) -> Option<i64> {
    replicas.within(decision + WRITE_MS.min(period / 2), decision + period)
}

/// When within a period the recorded decisions were made, in ms after a time: where most changes can have been
/// decided. Changes that are seen long after they were made say little; where none says more, it is the middle of the
/// times that are possible.
pub fn phase(changes: &[Change], start: UnixMillis, period: i64) -> i64 {
    let mut best = (f64::NEG_INFINITY, 0);
    let mut phase = 0;
    while phase < period {
        let score = changes.iter().map(|change| fit(change, start + phase, period)).sum();
        if score > best.0 {
            best = (score, phase);
        }
        phase += PHASE_STEP;
    }
    best.1
}

/// How well a change can have been decided at a time that is a whole number of periods from this one: 1 in the middle
/// of the possible times, and nothing outside of them.
fn fit(change: &Change, time: UnixMillis, period: i64) -> f64 {
    let (after, seen) = (change.after, change.seen - WRITE_MS.min(period / 2));
    let middle = i64::midpoint(after, seen);
    let distance = (middle - time).rem_euclid(period);
    let distance = distance.min(period - distance) as f64;
    let half = ((seen - after) as f64 / 2.0).max(PHASE_STEP as f64);
    (1.0 - distance / half).max(0.0)
}

/// Compares a run of the spec that was in force with what was; none if that is unknown.
pub fn reproduce(
    candidate: &Candidate,
    recorded: &Recorded,
    run: &Run,
    was_there: &WasThere,
    period: i64,
) -> Option<Reproduction> {
    let mut source = recorded.source();
    let mut loads = Vec::new();
    let (mut simulated, mut stay, mut needed) = <(Comparison, Comparison, Comparison)>::default();
    let (mut outside, mut not_ready) = (0_i64, 0_i64);
    let mut replicas: Vec<(f64, i64, i64)> = Vec::new();
    let mut at_start = None;
    let mut states = run.replicas.iter().peekable();
    let mut state = (0, 0);
    let mut now = recorded.first();
    while now <= run.last {
        while let Some((_, ready, wanted)) = states.next_if(|(time, ..)| *time <= now) {
            state = (*ready as i64, i64::from(*wanted));
        }
        source.load(now, &mut loads);
        if let Some(was) = after(&was_there.replicas, now, period) {
            // Pods that are counted by their samples are those that are ready.
            let number = if was_there.is_counted { state.0 } else { state.1 };
            simulated.count(number, was);
            stay.count(*at_start.get_or_insert(was), was);
            if let Some(load) = candidate.needed(&loads) {
                needed.count(load.clamp(0, candidate.spec.max_replicas.into()), was);
            }
            let spec = &candidate.spec;
            let bounds = i64::from(spec.min_replicas)..=i64::from(spec.max_replicas);
            outside += i64::from(!bounds.contains(&was));
            let ready = after(&was_there.ready, now, period);
            not_ready += i64::from(ready.is_some_and(|ready| ready < state.0));
            let row = (now as f64 / 1000.0, was, number);
            if replicas.last().is_none_or(|last| (last.1, last.2) != (row.1, row.2)) {
                replicas.push(row);
            }
        }
        now += period;
    }
    let agreement = simulated.agreement()?;
    let [stay, needed] = [stay, needed].map(|guess| guess.agreement());
    let (stay, needed) = (stay?, needed.unwrap_or(stay?));
    let better = if needed.mean_difference < stay.mean_difference { &needed } else { &stay };
    let trust = Trust::of(&agreement, better);
    let mut unknown = Vec::new();
    let minutes = |ticks: i64| ticks * period / 60_000;
    if outside > 0 && candidate.spec.schedules.is_empty() {
        unknown.push(format!(
            "who set the replicas outside of the bounds for {} minutes: a hand, another autoscaler, or a spec with other bounds",
            minutes(outside)
        ));
    }
    if not_ready > 0 && trust != Trust::High {
        unknown.push(format!(
            "why fewer pods were ready for {} minutes than are simulated: a rollout, pods that failed, or a slower start",
            minutes(not_ready)
        ));
    }
    if trust != Trust::High {
        unknown.push("whether the spec, the query or the replicas were changed by hand".to_owned());
    }
    Some(Reproduction {
        name: candidate.name.clone(),
        source: was_there.source.clone(),
        agreement,
        changes: was_there.replicas.changes().count(),
        stay,
        needed,
        trust,
        unknown,
        replicas,
    })
}
