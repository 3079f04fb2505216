//! Scaling policies, by their definition in the API and not by the product's code.

use crate::history::Step;
use std::time::{Duration, Instant};

/// What a policy counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Pods,
    Percent,
}

/// The policies of one direction, and whether the one that allows least counts (`Min`) or the one
/// that allows most (`Max`).
#[derive(Clone, Copy, Debug)]
pub struct Policies {
    /// The kind, its value, and its period in seconds.
    pub list: &'static [(Kind, i64, u64)],
    pub least: bool,
}

const fn most(list: &'static [(Kind, i64, u64)]) -> Policies {
    Policies { list, least: false }
}

const fn least(list: &'static [(Kind, i64, u64)]) -> Policies {
    Policies { list, least: true }
}

/// The policies upwards. The first two lead up from zero, of which no percentage does.
pub const UP: [Policies; 5] = [
    most(&[(Kind::Pods, 100, 1)]),
    most(&[(Kind::Pods, 1, 6)]),
    most(&[(Kind::Percent, 100, 8)]),
    least(&[(Kind::Pods, 2, 5), (Kind::Percent, 50, 10)]),
    most(&[(Kind::Pods, 1, 4), (Kind::Percent, 100, 9)]),
];

/// The policies downwards.
pub const DOWN: [Policies; 4] = [
    most(&[(Kind::Percent, 100, 1)]),
    most(&[(Kind::Pods, 1, 5)]),
    most(&[(Kind::Percent, 50, 6)]),
    least(&[(Kind::Pods, 1, 4), (Kind::Percent, 50, 8)]),
];

/// How much later than it was a change may be believed to be that was learned from another
/// replica's checkpoint, or earlier: its age is counted from kube-apiserver's `Date`, which has
/// whole seconds.
const DATE: Duration = Duration::from_secs(1);

impl Policies {
    /// As a field of `behavior`.
    pub fn manifest(&self) -> String {
        let one = |(kind, value, seconds): &(Kind, i64, u64)| {
            format!("{{type: {kind:?}, value: {value}, periodSeconds: {seconds}}}")
        };
        let list: Vec<String> = self.list.iter().map(one).collect();
        let select = if self.least { "Min" } else { "Max" };
        format!("selectPolicy: {select}, policies: [{}]", list.join(", "))
    }

    /// The furthest that these policies let a scale of `from` replicas go by a write that arrived at
    /// `at`, and whether an earlier change counted.
    ///
    /// A change counts for the period that begins when it is known to be done: no earlier than the
    /// answer to its write went out, and for a write by another process (`own` is false) no earlier
    /// than the write arrived at kube-apiserver. A decision is made before its write arrives. So
    /// there is nothing to allow for, except [`DATE`] with changes of another process.
    pub fn limit(
        &self,
        upwards: bool,
        from: i64,
        at: Instant,
        steps: &[Step],
        own: impl Fn(&Step) -> bool,
    ) -> (i64, bool) {
        let mut counted = false;
        let limits = self.list.iter().map(|(kind, value, seconds)| {
            let period = Duration::from_secs(*seconds);
            let counts = |step: &&Step| {
                let until = match step.answered.filter(|_| own(step)) {
                    Some(answered) => answered + period,
                    None => step.arrived + (period - DATE),
                };
                at < until
            };
            let start = from - steps.iter().filter(counts).map(|s| s.to - s.from).sum::<i64>();
            counted |= start != from;
            match (kind, upwards) {
                (Kind::Pods, true) => start + value,
                (Kind::Pods, false) => start - value,
                (Kind::Percent, true) => (start * (100 + value) + 99).div_euclid(100),
                (Kind::Percent, false) => (start * (100 - value)).div_euclid(100),
            }
        });
        let limits: Vec<i64> = limits.collect();
        let furthest =
            if upwards != self.least { limits.iter().max() } else { limits.iter().min() };
        let furthest = *furthest.expect("a policy");
        // Nothing is taken back.
        (if upwards { furthest.max(from) } else { furthest.min(from) }, counted)
    }
}
