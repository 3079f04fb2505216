//! Who is due when.

use crate::watch::Subject;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};

/// The times of the next decisions, one for each autoscaler.
#[derive(Debug, Default)]
pub struct Schedule {
    /// The times that count.
    due: HashMap<Subject, Instant>,
    /// The same in their order, and entries that no longer count.
    order: BinaryHeap<Reverse<(Instant, Subject)>>,
}

impl Schedule {
    /// Sets the time of an autoscaler's next decision.
    pub fn set(&mut self, key: Subject, at: Instant) {
        self.due.insert(key.clone(), at);
        self.order.push(Reverse((at, key)));
    }

    /// Forgets an autoscaler.
    pub fn remove(&mut self, key: &Subject) {
        self.due.remove(key);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.due.len()
    }

    /// When the next one is due.
    pub fn next(&mut self) -> Option<Instant> {
        while let Some(Reverse((at, key))) = self.order.peek() {
            if self.due.get(key) == Some(at) {
                return Some(*at);
            }
            self.order.pop();
        }
        None
    }

    /// Takes one that is due, with the time it was due at.
    pub fn take_due(&mut self, now: Instant) -> Option<(Subject, Instant)> {
        self.next().filter(|at| *at <= now)?;
        let Reverse((at, key)) = self.order.pop()?;
        self.due.remove(&key);
        Some((key, at))
    }
}

/// The time after one that was due, a period later; from now on where that has
/// passed, so that a late one does not make up for what it missed.
pub fn after(due: Instant, period: Duration, now: Instant) -> Instant {
    let next = due + period;
    if next > now { next } else { now + period }
}

/// How many may be due at the same moment without being spread.
const CROWD: usize = 16;

/// By how much the next decision of one of a crowd is taken sooner, once, so that
/// the crowd does not come back each period but evenly over it.
pub fn spread(place: usize, crowd: usize, period: Duration) -> Duration {
    if crowd <= CROWD {
        return Duration::ZERO;
    }
    period.mul_f64(place as f64 / crowd as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::ObjectKey;

    fn key(name: &str) -> Subject {
        Subject::hpa(ObjectKey { namespace: "shop".to_owned(), name: name.to_owned() })
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

    #[test]
    fn a_crowd_is_spread_over_its_period() {
        let period = Duration::from_secs(15);
        assert_eq!(spread(7, CROWD, period), Duration::ZERO);
        assert_eq!(spread(0, 1000, period), Duration::ZERO);
        assert_eq!(spread(500, 1000, period), period / 2);
        assert!(spread(999, 1000, period) < period);
    }

    #[test]
    fn what_was_missed_is_not_made_up_for() {
        let (start, period) = (Instant::now(), Duration::from_secs(15));
        assert_eq!(after(start, period, start + Duration::from_secs(1)), start + period);
        let late = start + Duration::from_secs(60);
        assert_eq!(after(start, period, late), late + period);
    }
}
