//! All schedules of an autoscaler.

use super::bounds::{self, Bounds};
use super::window::{ActiveWindow, Schedule};
use crate::time::UnixMillis;

/// The steps of ramps to look through for one that changes the bounds.
const STEPS: usize = 1_000;

/// The schedules of an autoscaler, read and validated: at most [`MAX_SCHEDULES`](super::MAX_SCHEDULES).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedules(Vec<Schedule>);

/// What the schedules say at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The bounds of the replicas.
    pub bounds: Bounds,
    /// The active windows, in the order of the schedules.
    pub active: Vec<ActiveWindow>,
    /// When a window begins or ends next, if ever.
    pub next_window_ms: Option<UnixMillis>,
    /// When `bounds` or `active` change next, if ever; until then this moment holds. It is exact,
    /// except that a ramp of more than 1,000 steps without an effect asks for another look sooner.
    pub next_change_ms: Option<UnixMillis>,
}

impl Schedules {
    /// Schedules in their order.
    pub(super) fn new(all: Vec<Schedule>) -> Self {
        Self(all)
    }

    /// The name of a schedule, by its place in the list.
    pub fn name(&self, index: usize) -> Option<&str> {
        self.0.get(index).map(|schedule| &*schedule.name)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same, with lower bounds of at least this many replicas.
    pub fn with_floor(mut self, least: i32) -> Self {
        for schedule in &mut self.0 {
            schedule.min = schedule.min.map(|min| min.max(least));
        }
        self
    }

    /// The window of a schedule, by its place in the list, that is active at a time, or else its next one; none if
    /// there are no more.
    pub fn window(&self, index: usize, now: UnixMillis) -> Option<ActiveWindow> {
        let window = self.0.get(index)?.timing.window(now)?;
        Some(ActiveWindow { index, begin_ms: window.begin, end_ms: window.end })
    }

    /// Whether the starts and ends of a recurring schedule, by its place in the list, take turns within a year from a time
    /// on.
    pub fn takes_turns(&self, index: usize, now: UnixMillis) -> bool {
        self.0.get(index).is_none_or(|schedule| schedule.timing.takes_turns(now))
    }

    /// How long the bounds move from the begin of a schedule's window on, by its place in the list, in ms.
    pub fn ramp_ms(&self, index: usize) -> i64 {
        self.0.get(index).map_or(0, |schedule| schedule.ramp_ms)
    }

    /// Whether any has an upper bound.
    pub fn moves_max(&self) -> bool {
        self.0.iter().any(|schedule| schedule.max.is_some())
    }

    /// Whether any has a lower bound of 0.
    pub fn may_be_zero(&self) -> bool {
        self.0.iter().any(|schedule| schedule.min == Some(0))
    }

    /// The bounds that hold at a time, given those of the specification.
    ///
    /// An active schedule replaces the bounds that it gives, be it by a lower one. Of several the
    /// largest minReplicas and the smallest maxReplicas hold. During a ramp, a bound is on the line
    /// from what it is by the schedules whose windows began earlier to the schedule's own. Those of them that end meanwhile
    /// count for the line until it ends: it has no steps back.
    pub fn at(&self, now: UnixMillis, spec_min: i32, spec_max: i32) -> Moment {
        let mut active = Vec::new();
        let mut next: Option<UnixMillis> = None;
        for (index, schedule) in self.0.iter().enumerate() {
            let Some(window) = schedule.timing.window(now) else { continue };
            let is_active = window.begin <= now;
            if is_active {
                let (begin_ms, end_ms) = (window.begin, window.end);
                active.push(ActiveWindow { index, begin_ms, end_ms });
            }
            let change = if is_active { window.end } else { Some(window.begin) };
            next = [next, change].into_iter().flatten().min();
        }
        let mut by_begin = active.clone();
        by_begin.extend(self.ended_during_ramps(now, &active));
        by_begin.sort_by_key(|window| window.begin_ms);
        let at = |time| bounds::at(&self.0, time, &by_begin, spec_min, spec_max);
        let (bounds, mut step) = at(now);
        for _ in 0..STEPS {
            let Some(time) = step.filter(|&time| next.is_none_or(|next| time < next)) else {
                break;
            };
            let (changed, following) = at(time);
            if changed != bounds {
                break;
            }
            step = following;
        }
        let next_change_ms = [next, step].into_iter().flatten().min();
        Moment { bounds, active, next_window_ms: next, next_change_ms }
    }

    /// The windows that have ended by now, and held when one began whose ramp is not over: an active one, or one of these
    /// itself, which ended on its ramp.
    fn ended_during_ramps(&self, now: UnixMillis, active: &[ActiveWindow]) -> Vec<ActiveWindow> {
        let mut ended: Vec<ActiveWindow> = Vec::new();
        let is_on_ramp = |window: &ActiveWindow| {
            let until = window.end_ms.map_or(now, |end| end.min(now));
            let schedule = self.0.get(window.index);
            schedule.is_some_and(|schedule| until - window.begin_ms < schedule.ramp_ms)
        };
        let mut ramps: Vec<ActiveWindow> = active.iter().copied().filter(is_on_ramp).collect();
        while let Some(ramp) = ramps.pop() {
            for (index, schedule) in self.0.iter().enumerate() {
                let Some(window) = schedule.timing.window(ramp.begin_ms - 1) else { continue };
                let one = ActiveWindow { index, begin_ms: window.begin, end_ms: window.end };
                let held = window.begin < ramp.begin_ms
                    && window.end.is_some_and(|end| end > ramp.begin_ms && end <= now);
                if held && !ended.contains(&one) {
                    ended.push(one);
                    ramps.extend(Some(one).filter(is_on_ramp));
                }
            }
        }
        ended
    }

    /// The windows that overlap `[from, until)`, schedule by schedule, each in the order of time.
    pub fn windows(
        &self,
        from: UnixMillis,
        until: UnixMillis,
    ) -> impl Iterator<Item = ActiveWindow> {
        self.0.iter().enumerate().flat_map(move |(index, schedule)| {
            let timing = &schedule.timing;
            std::iter::successors(timing.window(from), |window| timing.window(window.end?))
                .take_while(move |window| window.begin < until)
                .map(move |window| ActiveWindow {
                    index,
                    begin_ms: window.begin,
                    end_ms: window.end,
                })
        })
    }
}
