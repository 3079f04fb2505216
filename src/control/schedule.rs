//! When each autoscaler is evaluated next.

use crate::time::UnixMillis;
use crate::watch::AutoscalerRef;
use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;
use tokio::time::Instant;

/// The times of the next evaluations, one per autoscaler.
#[derive(Debug, Default)]
pub struct Schedule {
    due: HashMap<AutoscalerRef, Instant>,
    /// The same, ordered by time.
    order: BTreeSet<(Instant, AutoscalerRef)>,
}

impl Schedule {
    /// Sets the time of an autoscaler's next evaluation.
    pub fn set(&mut self, key: AutoscalerRef, at: Instant) {
        self.remove(&key);
        self.due.insert(key.clone(), at);
        self.order.insert((at, key));
    }

    /// Sets the time of an autoscaler's next evaluation if none is set. Returns whether it did.
    pub fn set_if_none(&mut self, key: AutoscalerRef, at: Instant) -> bool {
        let is_free = !self.due.contains_key(&key);
        if is_free {
            self.set(key, at);
        }
        is_free
    }

    /// Makes all due soon: at once, or within [`COMMON_PERIOD`] if they are more than
    /// [`MAX_TOGETHER`], most of them at their own times. If thousands were due at once, the batched
    /// query result would expire before each of them is evaluated.
    pub fn bring_forward(&mut self, now: Instant) {
        let many = self.due.len() > MAX_TOGETHER;
        for (key, due) in &mut self.due {
            *due = match many {
                false => now,
                true if *due <= now + COMMON_PERIOD => *due,
                true => now + fraction_of(COMMON_PERIOD, hash(&key.key.namespace)),
            };
        }
        self.order = self.due.iter().map(|(key, due)| (*due, key.clone())).collect();
    }

    /// Forgets an autoscaler.
    pub fn remove(&mut self, key: &AutoscalerRef) {
        if let Some((key, at)) = self.due.remove_entry(key) {
            self.order.remove(&(at, key));
        }
    }

    /// The number of autoscalers.
    pub fn len(&self) -> usize {
        self.due.len()
    }

    /// When the next one is due.
    pub fn next(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Takes one that is due, with the time at which it was due.
    pub fn take_due(&mut self, now: Instant) -> Option<(AutoscalerRef, Instant)> {
        self.next().filter(|at| *at <= now)?;
        let (at, key) = self.order.pop_first()?;
        self.due.remove(&key);
        Some((key, at))
    }
}

/// At which phase of their sync period autoscalers are evaluated.
///
/// Autoscalers whose queries have the same shape are a cohort: they are evaluated together, so that
/// their queries are batched. A cohort of more than [`MAX_TOGETHER`] is divided among several phases
/// by namespace, and a larger namespace by name. Cohorts begin at whole [`SLOT`]s, so that queries of different shapes
/// are sent at the same time, and joined. Other autoscalers keep the phase of their first
/// evaluation. Many that are evaluated at once, as after a start, are spread from then on.
#[derive(Debug)]
pub struct Phases {
    /// The begin of a slot.
    origin: Instant,
    cohorts: HashMap<u64, Cohort>,
    shapes: HashMap<AutoscalerRef, u64>,
}

impl Default for Phases {
    fn default() -> Self {
        Self { origin: Instant::now(), cohorts: HashMap::new(), shapes: HashMap::new() }
    }
}

/// The autoscalers of one query shape.
#[derive(Debug)]
struct Cohort {
    size: usize,
    /// The number per namespace.
    namespaces: HashMap<String, usize>,
    /// A time at which they are evaluated.
    anchor: Instant,
}

impl Cohort {
    fn join(&mut self, namespace: &str) {
        self.size += 1;
        match self.namespaces.get_mut(namespace) {
            Some(size) => *size += 1,
            None => {
                self.namespaces.insert(namespace.to_owned(), 1);
            }
        }
    }

    fn leave(&mut self, namespace: &str) {
        self.size = self.size.saturating_sub(1);
        if let Some(size) = self.namespaces.get_mut(namespace) {
            *size -= 1;
            if *size == 0 {
                self.namespaces.remove(namespace);
            }
        }
    }

    /// The phase of one of its autoscalers in the common period, from 0 to 1.
    fn phase_of(&self, autoscaler: &AutoscalerRef) -> f64 {
        let phases = |size: usize| size.div_ceil(MAX_TOGETHER).next_power_of_two() as u64;
        let in_namespace = self.namespaces.get(&autoscaler.key.namespace).copied().unwrap_or(0);
        let (all, in_namespace) = (phases(self.size), phases(in_namespace));
        let (namespace, name) = (hash(&autoscaler.key.namespace), hash(&autoscaler.key.name));
        // The phases of a namespace are spread over those of the cohort.
        let phase = (namespace % all + name % in_namespace * (all / in_namespace)) % all;
        phase as f64 / all as f64
    }
}

/// The maximum of autoscalers at one phase, if their names hash differently.
const MAX_TOGETHER: usize = 1_000;
/// How many may be due at one time without being spread.
const MAX_UNSPREAD: usize = 16;
/// The time over which the phases of a cohort, and cohorts that are due together, are spread,
/// regardless of the period of each autoscaler.
const COMMON_PERIOD: Duration = Duration::from_secs(15);
/// How far apart the phases of different cohorts are.
const SLOT: Duration = Duration::from_secs(1);

impl Phases {
    /// Sets the query shape of an autoscaler, or none. `due` is the time of the evaluation that made
    /// the query, one of `due_together`.
    pub fn set(
        &mut self,
        autoscaler: &AutoscalerRef,
        shape: Option<u64>,
        due: Instant,
        due_together: usize,
    ) {
        if self.shapes.get(autoscaler) == shape.as_ref() {
            return;
        }
        let before = match shape {
            Some(shape) => self.shapes.insert(autoscaler.clone(), shape),
            None => self.shapes.remove(autoscaler),
        };
        if let Some(before) = before
            && let Some(cohort) = self.cohorts.get_mut(&before)
        {
            cohort.leave(&autoscaler.key.namespace);
            if cohort.size == 0 {
                self.cohorts.remove(&before);
            }
        }
        if let Some(shape) = shape {
            let spread = if due_together > MAX_UNSPREAD {
                fraction_of(COMMON_PERIOD, hash(&shape))
            } else {
                Duration::ZERO
            };
            let (namespaces, anchor) = (HashMap::new(), self.slot_of(due + spread));
            let new = || Cohort { size: 0, namespaces, anchor };
            self.cohorts.entry(shape).or_insert_with(new).join(&autoscaler.key.namespace);
        }
    }

    /// The begin of the slot of a time.
    fn slot_of(&self, time: Instant) -> Instant {
        let passed = time.saturating_duration_since(self.origin);
        time - Duration::from_nanos((passed.as_nanos() % SLOT.as_nanos()) as u64)
    }

    /// The time of the evaluation after one that was due. Periods that were overrun are skipped.
    pub fn next(
        &self,
        autoscaler: &AutoscalerRef,
        period: Duration,
        due: Instant,
        now: Instant,
        due_together: usize,
    ) -> Instant {
        let cohort = self.shapes.get(autoscaler).and_then(|shape| self.cohorts.get(shape));
        let anchor = match cohort {
            Some(cohort) => cohort.anchor + COMMON_PERIOD.mul_f64(cohort.phase_of(autoscaler)),
            None if due_together > MAX_UNSPREAD => due + fraction_of(period, hash(autoscaler)),
            None => due,
        };
        // The first such time after now; the anchor may be in the future.
        let nanos = |time: Duration| time.as_nanos();
        let wait = match now.checked_duration_since(anchor) {
            Some(passed) => nanos(period) - nanos(passed) % nanos(period),
            None => match nanos(anchor - now) % nanos(period) {
                0 => nanos(period),
                wait => wait,
            },
        };
        now + Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX))
    }
}

/// In one of how many periods a replica that does not lead asks for metrics.
const FOLLOWED: u32 = 6;
/// How long such periods are together at most.
const MAX_TURN: Duration = Duration::from_secs(90);

/// The number of the turn that an evaluation belongs to, which was due at a time of this process's clock: a replica that
/// does not lead asks for metrics once in each. Those of one period have common turns, so that their queries stay one
/// batch. None if each evaluation asks.
pub fn turn(period: Duration, due: UnixMillis) -> Option<i64> {
    let turn = (period * FOLLOWED).min(MAX_TURN);
    (turn > period).then(|| due.div_euclid(turn.as_millis() as i64))
}

/// The fraction of a duration that a hash stands for.
fn fraction_of(time: Duration, hash: u64) -> Duration {
    time.mul_f64(hash as f64 / 2_f64.powi(64))
}

/// A hash that is the same in every process of one build, so that replicas evaluate at similar times.
pub fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::ObjectKey;

    fn key(name: &str) -> AutoscalerRef {
        AutoscalerRef::hpa(ObjectKey { namespace: "shop".to_owned(), name: name.to_owned() })
    }

    #[test]
    fn each_is_taken_once_in_the_order_of_its_time() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        let second = Duration::from_secs(1);
        schedule.set(key("b"), start + second);
        schedule.set(key("a"), start + 2 * second);
        schedule.set(key("a"), start);
        schedule.set(key("c"), start);
        schedule.remove(&key("c"));
        assert_eq!(schedule.take_due(start), Some((key("a"), start)));
        assert_eq!(schedule.take_due(start), None);
        assert_eq!(schedule.next(), Some(start + second));
        assert_eq!(schedule.take_due(start + 5 * second), Some((key("b"), start + second)));
        assert_eq!(schedule.take_due(start + 5 * second), None);
        assert_eq!(schedule.len(), 0);
    }

    const PERIOD: Duration = Duration::from_secs(15);

    #[test]
    fn each_keeps_its_phase_and_missed_periods_are_skipped() {
        let (start, phases) = (Instant::now(), Phases::default());
        let next = |now| phases.next(&key("a"), PERIOD, start, now, 1);
        assert_eq!(next(start + Duration::from_secs(1)), start + PERIOD);
        assert_eq!(next(start + Duration::from_secs(61)), start + 5 * PERIOD);
    }

    #[test]
    fn autoscalers_of_one_query_shape_are_evaluated_together() {
        let start = Instant::now();
        let mut phases = Phases::default();
        let autoscalers: Vec<AutoscalerRef> = (0..100).map(|n| key(&n.to_string())).collect();
        let second = Duration::from_secs(1);
        for (n, autoscaler) in autoscalers.iter().enumerate() {
            phases.set(autoscaler, Some(7), start + second * n as u32, 1);
        }
        let times = |period| -> BTreeSet<Instant> {
            let due = start + 100 * second;
            autoscalers.iter().map(|s| phases.next(s, period, due, due, 1)).collect()
        };
        // Three periods of 5 s are one of 15 s.
        assert_eq!(times(PERIOD), BTreeSet::from([start + 7 * PERIOD]));
        assert_eq!(times(5 * second), BTreeSet::from([start + 7 * PERIOD]));
        for autoscaler in &autoscalers {
            phases.set(autoscaler, None, start, 1);
        }
        assert!(phases.cohorts.is_empty() && phases.shapes.is_empty());
    }

    #[test]
    fn many_are_spread_except_autoscalers_of_one_query_shape() {
        let start = Instant::now();
        let mut phases = Phases::default();
        let autoscalers: Vec<AutoscalerRef> = (0..100).map(|n| key(&n.to_string())).collect();
        let times = |phases: &Phases| -> BTreeSet<Instant> {
            let times = autoscalers.iter().map(|s| phases.next(s, PERIOD, start, start, 100));
            times.inspect(|at| assert!(*at > start && *at <= start + PERIOD)).collect()
        };
        let spread = |times: &BTreeSet<Instant>| {
            *times.last().unwrap() - *times.first().unwrap() > PERIOD / 2
        };
        assert!(spread(&times(&phases)));
        for (n, autoscaler) in autoscalers.iter().enumerate() {
            phases.set(autoscaler, Some(n as u64 % 20), start, 100);
        }
        let grouped = times(&phases);
        assert!((10..=15).contains(&grouped.len()) && spread(&grouped), "{}", grouped.len());
    }

    #[test]
    fn autoscalers_of_different_query_shapes_are_evaluated_in_few_slots() {
        let mut phases = Phases::default();
        let start = phases.origin;
        let autoscalers: Vec<AutoscalerRef> = (0..1_000).map(|n| key(&n.to_string())).collect();
        for (n, autoscaler) in autoscalers.iter().enumerate() {
            // Created one after the other, and not at whole seconds.
            let due = start + Duration::from_millis(37 * n as u64);
            phases.set(autoscaler, Some(n as u64), due, 1);
        }
        let now = start + 4 * PERIOD;
        let next = autoscalers.iter().map(|one| phases.next(one, PERIOD, now, now, 1));
        let times: BTreeSet<Instant> = next.collect();
        assert_eq!(times.len(), 15);
    }

    #[test]
    fn a_large_cohort_is_divided_by_namespace() {
        let start = Instant::now();
        let mut phases = Phases::default();
        let autoscaler = |n: usize| {
            let namespace = format!("ns-{}", n % 100);
            AutoscalerRef::hpa(ObjectKey { namespace, name: n.to_string() })
        };
        for n in 0..10 * MAX_TOGETHER {
            phases.set(&autoscaler(n), Some(7), start, 10 * MAX_TOGETHER);
        }
        let next = |n| phases.next(&autoscaler(n), PERIOD, start, start, 1);
        let times: BTreeSet<Instant> = (0..100).map(next).collect();
        assert!((8..=16).contains(&times.len()), "{}", times.len());
        assert!((0..100).all(|n| next(n) == next(n + 100)));
    }

    #[test]
    fn a_large_namespace_is_divided_too() {
        let start = Instant::now();
        let mut phases = Phases::default();
        for n in 0..10 * MAX_TOGETHER {
            phases.set(&key(&n.to_string()), Some(7), start, 10 * MAX_TOGETHER);
        }
        let next = |n: usize| phases.next(&key(&n.to_string()), PERIOD, start, start, 1);
        let times: BTreeSet<Instant> = (0..10 * MAX_TOGETHER).map(next).collect();
        assert!((8..=16).contains(&times.len()), "{}", times.len());
    }

    #[test]
    fn few_are_brought_forward_at_once_and_many_within_a_common_period() {
        let start = Instant::now();
        for (count, at_once) in [(MAX_TOGETHER, true), (MAX_TOGETHER + 1, false)] {
            let mut schedule = Schedule::default();
            let time = |n: usize| start + Duration::from_secs(n as u64);
            (0..count).for_each(|n| schedule.set(key(&n.to_string()), time(n)));
            schedule.bring_forward(start);
            let at = |n: usize| schedule.due[&key(&n.to_string())];
            assert!((0..count).all(|n| at(n) <= start + COMMON_PERIOD));
            assert_eq!((0..10).all(|n| at(n) == time(n)), !at_once);
            assert_eq!(schedule.order.len(), count);
            assert_eq!(schedule.next(), Some(start));
        }
    }

    #[test]
    fn a_replaced_time_is_removed() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        for second in 0..3_600 {
            schedule.set(key("a"), start + Duration::from_secs(3_600 + second));
        }
        assert_eq!((schedule.len(), schedule.order.len()), (1, 1));
    }

    #[test]
    fn a_turn_is_some_periods_and_90_seconds_at_most() {
        let turns = |period: u64| -> Vec<Option<i64>> {
            let due = |n: u64| i64::try_from(n * period * 1000).unwrap();
            (0..8).map(|n| turn(Duration::from_secs(period), due(n))).collect()
        };
        assert_eq!(turns(15), [0, 0, 0, 0, 0, 0, 1, 1].map(Some));
        assert_eq!(turns(1), turns(15));
        assert_eq!(turns(30), [0, 0, 0, 1, 1, 1, 2, 2].map(Some));
        assert_eq!(turns(60), [0, 0, 1, 2, 2, 3, 4, 4].map(Some));
        assert_eq!((turns(90), turns(3_600)), (vec![None; 8], vec![None; 8]));
    }
}
