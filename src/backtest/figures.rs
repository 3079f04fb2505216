//! What a run costs, and what it leaves short.

use super::candidate::bounds;
use super::reversal::Reversals;
use crate::hpa::Context;
use serde::Serialize;

/// The figures of a candidate: sums over decisions, with the state after each, times the period.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    /// The candidate's name.
    pub name: String,
    /// The hours of the pods that exist.
    pub replica_hours: f64,
    /// The hours of the pods that the load needs.
    pub needed_replica_hours: f64,
    /// The minutes in which fewer pods are ready than the load needs.
    pub under_minutes: f64,
    /// How many pods are short, times minutes.
    pub under_pod_minutes: f64,
    /// When the most pods are short; none if there never are any.
    pub worst_under: Option<WorstUnder>,
    /// How many more pods are ready than the load needs, times minutes.
    pub over_pod_minutes: f64,
    /// The changes of the replicas.
    pub scale_events: u64,
    /// Those against the direction of the one before, within 10 minutes.
    pub reversals: u64,
    /// The minutes at the lower bound.
    pub minutes_at_min: f64,
    /// The minutes at the upper bound.
    pub minutes_at_max: f64,
}

/// When the most pods are short.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WorstUnder {
    /// The time, in Unix seconds.
    pub time: f64,
    /// How many pods the load needs.
    pub needed: i64,
    /// How many are ready.
    pub ready: usize,
}

/// How long a run is counted, in minutes: its decisions times the period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Minutes {
    /// All of it.
    pub counted: f64,
    /// While the load is known. Else nothing is needed, short or too much.
    pub known: f64,
}

/// Sums up a run. All sums are whole numbers, so that their order does not matter.
pub(super) struct Tally {
    period: i64,
    wanted: i32,
    turns: Reversals,
    ticks: i64,
    known_ticks: i64,
    replicas: i64,
    needed: i64,
    under_ticks: i64,
    under: i64,
    over: i64,
    worst: Option<(i64, WorstUnder)>,
    events: u64,
    reversals: u64,
    at_min: i64,
    at_max: i64,
}

impl Tally {
    /// Of a run with a period in ms that begins with so many replicas.
    pub(super) fn new(period: i64, wanted: i32) -> Self {
        Self {
            period,
            wanted,
            turns: Reversals::default(),
            ticks: 0,
            known_ticks: 0,
            replicas: 0,
            needed: 0,
            under_ticks: 0,
            under: 0,
            over: 0,
            worst: None,
            events: 0,
            reversals: 0,
            at_min: 0,
            at_max: 0,
        }
    }

    /// The state after a decision. Of a load that is unknown, nothing is needed, short or too much. What is not counted
    /// only says from where the next change is.
    pub(super) fn count(
        &mut self,
        context: Context<'_>,
        needed: Option<i64>,
        ready: usize,
        wanted: i32,
        is_counted: bool,
    ) {
        let now = context.now;
        let before = std::mem::replace(&mut self.wanted, wanted);
        let change = (wanted != before).then_some(wanted > before);
        let is_reversal = change.is_some_and(|is_up| self.turns.changed(now, is_up));
        if !is_counted {
            return;
        }
        self.ticks += 1;
        self.events += u64::from(change.is_some());
        self.reversals += u64::from(is_reversal);
        self.replicas += i64::from(wanted);
        let bounds = bounds(context);
        self.at_min += i64::from(wanted == bounds[0]);
        self.at_max += i64::from(wanted == bounds[1]);
        let Some(needed) = needed else { return };
        self.known_ticks += 1;
        self.needed += needed;
        let short = needed - ready as i64;
        self.over += (-short).max(0);
        if short > 0 {
            self.under_ticks += 1;
            self.under += short;
            if self.worst.is_none_or(|(worst, _)| short > worst) {
                let worst = WorstUnder { time: now as f64 / 1000.0, needed, ready };
                self.worst = Some((short, worst));
            }
        }
    }

    fn minutes_of(&self, ticks: i64) -> f64 {
        ticks as f64 * self.period as f64 / 60_000.0
    }

    /// How long is counted.
    pub(super) fn minutes(&self) -> Minutes {
        let [counted, known] = [self.ticks, self.known_ticks].map(|ticks| self.minutes_of(ticks));
        Minutes { counted, known }
    }

    /// The figures of a candidate of this name.
    pub(super) fn figures(&self, name: &str) -> Figures {
        let minutes = |ticks: i64| self.minutes_of(ticks);
        Figures {
            name: name.to_owned(),
            replica_hours: minutes(self.replicas) / 60.0,
            needed_replica_hours: minutes(self.needed) / 60.0,
            under_minutes: minutes(self.under_ticks),
            under_pod_minutes: minutes(self.under),
            worst_under: self.worst.map(|(_, worst)| worst),
            over_pod_minutes: minutes(self.over),
            scale_events: self.events,
            reversals: self.reversals,
            minutes_at_min: minutes(self.at_min),
            minutes_at_max: minutes(self.at_max),
        }
    }
}
