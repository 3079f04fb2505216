//! Which of the specs that were tried is the best within the limits.

use super::super::figures::Figures;
use super::{Limits, Recommendation, Trial};
use crate::time::UnixMillis;

/// A gain that is less than this share of what is short is none.
const GAIN: f64 = 0.05;
/// How much targets that are rounded to thousandths may change the headroom, in percent.
const ROUNDING: f64 = 0.1;

/// What decides between specs that were tried.
#[derive(Clone, Debug)]
pub struct Choice {
    present: Trial,
    limits: Limits,
    weeks: Weeks,
    /// The replica-hours that are allowed.
    budget: f64,
}

/// How many weeks the parts of the load are.
#[derive(Clone, Copy, Debug)]
pub struct Weeks {
    /// The part that is tuned on.
    pub tuned: f64,
    /// The rest.
    pub later: f64,
}

impl Choice {
    /// The replica-hours that are allowed are those of a plain target within the budget. Where the present maximum
    /// holds pods back, it is what the load needs with as much on top.
    pub fn new(present: Trial, trials: &[Trial], limits: Limits, weeks: Weeks) -> Self {
        let plain = trials.iter().filter(|trial| trial.is_plain && trial.nominal <= limits.budget);
        let of_need = match present.is_capped() {
            true => present.tuned.needed_replica_hours * (1.0 + limits.budget / 100.0),
            false => 0.0,
        };
        let costs = plain.map(|trial| trial.tuned.replica_hours);
        let budget = costs.fold(present.tuned.replica_hours.max(of_need), f64::max);
        Self { present, limits, weeks, budget }
    }

    /// The best of those that are within the limits and better than the present spec.
    pub fn best(&self, trials: &[Trial]) -> Option<usize> {
        let allowed = || {
            let allowed = trials.iter().enumerate();
            allowed.filter(|(_, trial)| self.limit(trial).is_none() && self.is_better(trial))
        };
        let least = self.least(trials);
        // Of those that are about as good, or as good as they shall be, the cheapest, and of these one that changes
        // the target only.
        let near = |trial: &Trial| self.limits.under_minutes.is_some() || is_near(trial, least);
        let cost =
            |trial: &Trial| trial.tuned.replica_hours * if trial.is_plain { 0.995 } else { 1.0 };
        allowed()
            .filter(|(_, trial)| near(trial))
            .min_by(|(_, one), (_, other)| cost(one).total_cmp(&cost(other)))
            .map(|(index, _)| index)
    }

    /// Recommends the best one, if it is better on the rest, too.
    pub fn recommend(
        self,
        mut trials: Vec<Trial>,
        split: UnixMillis,
        most_needed: i64,
    ) -> Recommendation {
        let best = self.best(&trials);
        let least = self.least(&trials);
        for (index, trial) in trials.iter_mut().enumerate() {
            trial.ruled_out = self.limit(trial);
            if Some(index) != best && trial.ruled_out.is_none() {
                trial.ruled_out = Some(match is_near(trial, least) {
                    false => format!("short of more pods: {:.0} pod-minutes", short(trial)),
                    true => "no better, or it costs or changes more".to_owned(),
                });
            }
        }
        let kept = |present: Trial, reason: &str, others: Vec<Trial>| Recommendation {
            present,
            recommended: None,
            reason: reason.to_owned(),
            others,
            split,
            most_needed,
        };
        let Some(best) = best else {
            let reason = "nothing that was tried, and is not ruled out, is better";
            return kept(self.present, reason, trials);
        };
        let mut chosen = trials.remove(best);
        if !self.gains(&self.present.later, &chosen.later, self.weeks.later) {
            let reason = "what is better where it was tuned on is not better on the rest";
            chosen.ruled_out = Some(reason.to_owned());
            trials.insert(0, chosen);
            return kept(self.present, reason, trials);
        }
        let reason = "it is better where it was tuned on, and on the rest".to_owned();
        let (present, recommended) = (self.present, Some(chosen));
        Recommendation { present, recommended, reason, others: trials, split, most_needed }
    }

    /// The least pod-minutes short of those that are within the limits and better.
    fn least(&self, trials: &[Trial]) -> f64 {
        let allowed = trials.iter().filter(|trial| self.limit(trial).is_none());
        let better = allowed.filter(|trial| self.is_better(trial));
        better.map(short).fold(f64::INFINITY, f64::min)
    }

    fn is_better(&self, trial: &Trial) -> bool {
        self.gains(&self.present.tuned, &trial.tuned, self.weeks.tuned)
    }

    /// Whether fewer pods are short, or as many are at less cost. Where a limit says how long they may be, it is
    /// whether that is kept, at less cost if it was kept before.
    fn gains(&self, present: &Figures, other: &Figures, weeks: f64) -> bool {
        let is_cheaper = other.replica_hours < present.replica_hours * 0.99;
        if let Some(most) = self.limits.under_minutes {
            let keeps = |figures: &Figures| minutes_a_week(figures, weeks) <= most;
            return keeps(other) && (is_cheaper || !keeps(present));
        }
        let (before, after) = (present.under_pod_minutes, other.under_pod_minutes);
        after < before * (1.0 - GAIN) - 1.0 || (after <= before && is_cheaper)
    }

    /// The limit that rules a trial out, if one does.
    fn limit(&self, trial: &Trial) -> Option<String> {
        let Self { limits, budget, weeks, .. } = self;
        let cost = trial.tuned.replica_hours;
        if cost > budget * 1.000_001 {
            let above = (cost / budget - 1.0) * 100.0;
            return Some(format!(
                "it costs {above:.1} % more than {} % of headroom: --budget",
                limits.budget
            ));
        }
        if trial.headroom < limits.headroom - ROUNDING {
            return Some(format!(
                "{:.1} % of headroom: --min-headroom {}",
                trial.headroom, limits.headroom
            ));
        }
        let minutes = minutes_a_week(&trial.tuned, weeks.tuned);
        let most = limits.under_minutes.filter(|most| minutes > *most)?;
        Some(format!("short of pods for {minutes:.0} minutes a week: --max-under-minutes {most}"))
    }
}

fn short(trial: &Trial) -> f64 {
    trial.tuned.under_pod_minutes
}

fn is_near(trial: &Trial, least: f64) -> bool {
    short(trial) <= least * (1.0 + GAIN) + 1.0
}

/// In how many minutes of a week pods are short.
fn minutes_a_week(figures: &Figures, weeks: f64) -> f64 {
    figures.under_minutes / weeks.max(f64::MIN_POSITIVE)
}
