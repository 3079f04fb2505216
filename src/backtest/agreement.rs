//! How far numbers over time are those that there were, and how far a backtest can be trusted by that.

use serde::Serialize;

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

impl Agreement {
    /// Whether it is nearer to what was than another one.
    pub(super) fn is_nearer_than(&self, other: &Self) -> bool {
        self.mean_difference < other.mean_difference
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
    pub(super) fn of(
        agreement: &Agreement,
        changes: usize,
        stay: &Agreement,
        needed: &Agreement,
    ) -> Self {
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

/// Whether so few decisions or changes were compared that they may be met by luck.
pub(super) fn is_short(agreement: &Agreement, changes: usize) -> bool {
    agreement.ticks < LEAST_DECISIONS || changes < LEAST_CHANGES
}

#[cfg(test)]
mod tests {
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
}
