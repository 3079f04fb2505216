//! What was in force when.

use crate::plan::Millis;
use std::collections::VecDeque;

/// Values with the times since when they have been in force.
#[derive(Debug)]
pub struct Timeline<T>(VecDeque<(Millis, T)>);

impl<T> Default for Timeline<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Timeline<T> {
    /// Sets the value from now on.
    pub fn set(&mut self, at: Millis, value: T) {
        self.0.push_back((at, value));
    }

    /// The value that is in force.
    pub fn now(&self) -> Option<&T> {
        self.0.back().map(|(_, value)| value)
    }

    /// Since when the present value has been in force.
    pub fn since(&self) -> Option<Millis> {
        self.0.back().map(|(at, _)| *at)
    }

    /// The values that were in force at any time from `from` to `to`, both included.
    pub fn during(&self, from: Millis, to: Millis) -> impl Iterator<Item = &T> {
        let first = self.0.partition_point(|(at, _)| *at <= from).saturating_sub(1);
        let values = self.0.iter().skip(first).take_while(move |(at, _)| *at <= to);
        values.map(|(_, value)| value)
    }

    /// When a condition that held at any time since `from` began to hold; the earliest, if it held several
    /// times.
    pub fn since_when(&self, from: Millis, holds: impl Fn(&T) -> bool) -> Option<Millis> {
        let first = self.0.partition_point(|(at, _)| *at <= from).saturating_sub(1);
        self.0.iter().skip(first).find(|(_, value)| holds(value)).map(|(at, _)| *at)
    }

    /// Forgets what was no longer in force at a time.
    pub fn forget(&mut self, before: Millis) {
        while self.0.get(1).is_some_and(|(at, _)| *at <= before) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_in_force_until_the_next_one() {
        let mut line = Timeline::default();
        for (at, value) in [(0, 'a'), (10, 'b'), (20, 'c')] {
            line.set(at, value);
        }
        let during = |from, to| line.during(from, to).collect::<String>();
        assert_eq!(
            (during(3, 5), during(5, 10), during(10, 30)),
            ("a".into(), "ab".into(), "bc".into())
        );
        line.forget(15);
        assert_eq!(line.during(0, 30).collect::<String>(), "bc");
    }
}
