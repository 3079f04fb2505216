//! Which of the specs that were tried is the best within the limits.

use super::super::figures::Figures;
use super::trial::{Limits, Recommendation, Trial};
use super::variant::is_paced;
use crate::time::UnixMillis;

/// A gain that is less than this share of what is short is none.
const GAIN: f64 = 0.05;
/// What floating point may add to a sum.
const SAME: f64 = 1.000_001;
/// How much targets that are rounded to thousandths may change the headroom, in percent.
const ROUNDING: f64 = 0.1;

/// What decides between specs that were tried.
#[derive(Clone, Debug)]
pub struct Choice {
    present: Trial,
    limits: Limits,
    weeks: Weeks,
    /// The replica-hours that are allowed on the part that is tuned on, and on the rest.
    budget: Budget,
    /// Why nothing becomes cheaper by this load.
    pub doubt: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Budget {
    tuned: f64,
    later: f64,
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
    /// The replica-hours that are allowed are those of a plain target within the budget, with the defaults of all else that is
    /// tried. Where the present maximum or rules of scale-up may hold pods back, it is what the load needs with as much on
    /// top, if that is more.
    pub fn new(
        present: Trial,
        references: &[Trial],
        limits: Limits,
        weeks: Weeks,
        doubts: &[String],
    ) -> Self {
        let is_held = present.is_capped() || is_paced(&present.spec);
        let most = limits.most_headroom();
        let budget = |of: fn(&Trial) -> &Figures| {
            let plain = references.iter().filter(|trial| trial.nominal <= most);
            let of_need = match is_held || most.is_infinite() {
                true => of(&present).needed_replica_hours.max(1.0) * (1.0 + most / 100.0),
                false => 0.0,
            };
            let costs = plain.map(|trial| of(trial).replica_hours);
            costs.fold(of(&present).replica_hours.max(of_need), f64::max)
        };
        let budget = Budget { tuned: budget(|trial| &trial.tuned), later: budget(Trial::shown) };
        let doubt = (!doubts.is_empty()).then(|| doubts.join(", and "));
        Self { present, limits, weeks, budget, doubt }
    }

    /// Whether a trial is within the budget.
    fn is_affordable(&self, trial: &Trial) -> bool {
        trial.tuned.replica_hours <= self.budget.tuned * SAME
    }

    /// Whether a shorter window of scale-down may bring a trial into the budget.
    pub fn is_nearly_affordable(&self, trial: &Trial) -> bool {
        trial.tuned.replica_hours <= self.budget.tuned * (1.0 + GAIN)
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

    /// Recommends the best one, if it is no worse on the rest; where it only costs too much there, the best plain headroom
    /// that does not and is better than the present spec there, too.
    pub fn recommend(
        self,
        mut trials: Vec<Trial>,
        split: UnixMillis,
        most_needed: i64,
    ) -> Recommendation {
        let best = self.best(&trials);
        let least = self.least(&trials);
        let chosen_cost = best.map_or(0.0, |best| trials[best].tuned.replica_hours);
        for (index, trial) in trials.iter_mut().enumerate() {
            trial.ruled_out = self.limit(trial);
            if Some(index) == best || trial.ruled_out.is_some() {
                continue;
            }
            let more = trial.tuned.replica_hours - chosen_cost;
            trial.ruled_out = Some(if self.only_saves(trial) {
                "no fewer pods are short, and it is cheaper: --max-under-minutes asks for that"
                    .to_owned()
            } else if !self.is_better(trial) {
                "no better than the present spec".to_owned()
            } else if !is_near(trial, least) {
                format!("short of more pods: {:.0} pod-minutes", short(trial))
            } else if more > 0.05 {
                format!("as good for {more:.1} replica-hours more")
            } else {
                "as good, and it changes more".to_owned()
            });
        }
        let mut present = self.present.clone();
        present.ruled_out = self.limit(&present);
        let doubt = self.doubt.clone();
        let found = |present, recommended, reason, others| Recommendation {
            present,
            recommended,
            reason,
            doubt,
            others,
            split,
            most_needed,
        };
        let Some(best) = best else {
            let mut reason = match &present.ruled_out {
                Some(why) => format!(
                    "no spec that was tried is better within the limits, and the present one is not within them, either: {why}"
                ),
                None => "nothing that was tried is better within the limits".to_owned(),
            };
            if let Some(one) = self.too_expensive(&trials) {
                let (label, cost) = (&one.label, one.tuned.replica_hours);
                let most = self.limits.most_headroom();
                reason += &format!(
                    "; {label} would be better for {cost:.1} replica-hours instead of {:.1}, which --budget {most} rules out",
                    present.tuned.replica_hours
                );
            }
            if trials.iter().any(|trial| self.limit(trial).is_none() && self.only_saves(trial)) {
                reason += &format!(
                    "; it has {} of headroom: --max-under-minutes 30 looks for what costs less",
                    present.percent_of_headroom()
                );
            }
            return found(present, None, reason, trials);
        };
        let mut chosen = trials.remove(best);
        if let Some(over) = self.over_budget_later(&chosen) {
            let reason = format!("{} {over}", chosen.label);
            chosen.ruled_out = Some(format!("it {over}"));
            trials.insert(0, chosen);
            let Some(plain) = self.plain_within_budget(&trials) else {
                return found(present, None, reason, trials);
            };
            let mut plain = trials.remove(plain);
            plain.ruled_out = None;
            let reason = reason + "; plain headroom does not, and is better on both parts";
            return found(present, Some(plain), reason, trials);
        }
        if let Some(why) = self.worse_later(&chosen) {
            let reason = format!(
                "what is better where it was tuned on ({}) is worse on the rest: {why}",
                chosen.label
            );
            chosen.ruled_out = Some(format!("worse on the rest: {why}"));
            trials.insert(0, chosen);
            return found(present, None, reason, trials);
        }
        let reason = match self.gains(present.shown(), chosen.shown(), self.weeks.later) {
            true => "it is better where it was tuned on, and on the rest".to_owned(),
            false => match self.misses(chosen.shown()) {
                Some([minutes, most]) => format!(
                    "it is better where it was tuned on, and on the rest, where it is short of pods for {minutes:.0} minutes a week: more than --max-under-minutes {most}, and less than the present spec with {:.0}",
                    minutes_a_week(present.shown(), self.weeks.later)
                ),
                None => "it is better where it was tuned on, and the rest has nothing to gain"
                    .to_owned(),
            },
        };
        found(present, Some(chosen), reason, trials)
    }

    /// The best plain headroom of those that are within the limits and better than the present spec on both parts.
    fn plain_within_budget(&self, trials: &[Trial]) -> Option<usize> {
        let is_good = |trial: &&Trial| {
            trial.is_plain
                && trial.later.is_some()
                && self.over_budget_later(trial).is_none()
                && self.worse_later(trial).is_none()
                && self.gains(self.present.shown(), trial.shown(), self.weeks.later)
        };
        let good: Vec<Trial> = trials.iter().filter(is_good).cloned().collect();
        let best = self.best(&good)?;
        trials.iter().position(|trial| trial.label == good[best].label)
    }

    /// How far a trial is over the budget on the rest, if it is.
    fn over_budget_later(&self, trial: &Trial) -> Option<String> {
        let (cost, budget) = (trial.shown().replica_hours, self.budget.later);
        (cost > budget * SAME).then(|| {
            format!(
                "would cost {:.1} % more than the budget on the rest ({cost:.1} replica-hours instead of {budget:.1})",
                (cost / budget - 1.0) * 100.0
            )
        })
    }

    /// The cheapest of those that only the budget rules out.
    fn too_expensive<'a>(&self, trials: &'a [Trial]) -> Option<&'a Trial> {
        let only_by_budget = |trial: &&Trial| {
            !self.is_affordable(trial) && self.other_limit(trial).is_none() && self.is_better(trial)
        };
        let cost = |trial: &Trial| trial.tuned.replica_hours;
        let trials = trials.iter().filter(only_by_budget);
        trials.min_by(|one, other| cost(one).total_cmp(&cost(other)))
    }

    /// In what a trial is worse than the present spec on the rest, if it is.
    fn worse_later(&self, trial: &Trial) -> Option<String> {
        let (before, after) = (self.present.shown(), trial.shown());
        if let Some(why) = self.too_cheap(before, after) {
            return Some(why);
        }
        if let Some([minutes, most]) = self.misses(after) {
            // It may be nearer to the limit than the present spec.
            let before = minutes_a_week(before, self.weeks.later);
            return (minutes >= before).then(|| {
                format!(
                    "short of pods for {minutes:.0} minutes a week instead of {before:.0}: --max-under-minutes {most}"
                )
            });
        }
        if self.limits.under_minutes.is_some() {
            return None;
        }
        let (before, after) = (before.under_pod_minutes, after.under_pod_minutes);
        (after > before * (1.0 + GAIN) + 1.0)
            .then(|| format!("{after:.0} pod-minutes short instead of {before:.0}"))
    }

    /// For how many minutes of a week pods are short on the rest, and how many they may be, if these are fewer.
    fn misses(&self, later: &Figures) -> Option<[f64; 2]> {
        let minutes = minutes_a_week(later, self.weeks.later);
        let most = self.limits.under_minutes.filter(|most| minutes > *most)?;
        Some([minutes, most])
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

    /// Whether a trial only costs less, at no more pods short, where that is not asked for.
    fn only_saves(&self, trial: &Trial) -> bool {
        let (present, tuned) = (&self.present.tuned, &trial.tuned);
        self.limits.under_minutes.is_none()
            && !self.is_better(trial)
            && tuned.under_pod_minutes <= present.under_pod_minutes
            && self.is_cheaper(present, tuned)
    }

    fn is_cheaper(&self, present: &Figures, other: &Figures) -> bool {
        self.doubt.is_none() && other.replica_hours < present.replica_hours * 0.99
    }

    /// Whether fewer pods are short. Where a limit says how long they may be, it is whether that is kept, at less cost if it
    /// was kept before.
    fn gains(&self, present: &Figures, other: &Figures, weeks: f64) -> bool {
        if let Some(most) = self.limits.under_minutes {
            let keeps = |figures: &Figures| minutes_a_week(figures, weeks) <= most;
            return keeps(other) && (self.is_cheaper(present, other) || !keeps(present));
        }
        other.under_pod_minutes < present.under_pod_minutes * (1.0 - GAIN) - 1.0
    }

    /// Why a trial is cheaper than the load gives reason for, if it is.
    fn too_cheap(&self, present: &Figures, other: &Figures) -> Option<String> {
        let [before, after] = [present.replica_hours, other.replica_hours];
        let doubt = self.doubt.as_ref().filter(|_| after * SAME < before)?;
        Some(format!(
            "{after:.1} replica-hours instead of {before:.1}: nothing becomes cheaper, as {doubt}"
        ))
    }

    /// The limit that rules a trial out, if one does.
    fn limit(&self, trial: &Trial) -> Option<String> {
        if !self.is_affordable(trial) {
            return Some(format!(
                "{:.1} replica-hours, where {:.1} are what the present spec or {} % of headroom cost: --budget",
                trial.tuned.replica_hours,
                self.budget.tuned,
                self.limits.most_headroom()
            ));
        }
        self.other_limit(trial)
    }

    /// The limit that rules a trial out besides the budget, if one does.
    fn other_limit(&self, trial: &Trial) -> Option<String> {
        let Self { limits, weeks, .. } = self;
        let present = &self.present.tuned;
        if let Some(why) = self.too_cheap(present, &trial.tuned) {
            return Some(why);
        }
        let calm = present.reversals * 2 + (weeks.tuned * 7.0) as u64;
        if trial.tuned.reversals > calm {
            return Some(format!(
                "it flaps: {} changes against the one before, where the present spec has {}",
                trial.tuned.reversals, present.reversals
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A trial by its replica-hours and pod-minutes short, where it was tuned on and on the rest.
    fn trial(label: &str, nominal: f64, tuned: [f64; 2], later: [f64; 2]) -> Trial {
        let figures = |[replica_hours, under_pod_minutes]: [f64; 2]| Figures {
            name: "web".to_owned(),
            replica_hours,
            needed_replica_hours: 900.0,
            under_minutes: under_pod_minutes,
            under_pod_minutes,
            worst_under: None,
            over_pod_minutes: 0.0,
            scale_events: 40,
            reversals: 2,
            minutes_at_min: 0.0,
            minutes_at_max: 0.0,
        };
        Trial {
            label: label.to_owned(),
            spec: json!({}),
            headroom: nominal,
            nominal,
            is_plain: nominal > 0.0 && !label.contains(','),
            tuned: figures(tuned),
            later: Some(figures(later)),
            ruled_out: None,
        }
    }

    #[test]
    fn where_the_best_costs_too_much_on_the_rest_plain_headroom_that_does_not_is_recommended() {
        let limits = Limits::default();
        let present = || trial("present", 0.0, [1_000.0, 3_000.0], [500.0, 1_300.0]);
        let plain = |later: [f64; 2]| {
            vec![
                trial("5 % of headroom", 5.0, [1_050.0, 900.0], [520.0, 400.0]),
                trial("8 % of headroom", 8.0, [1_080.0, 500.0], later),
            ]
        };
        let recommended = |later: [f64; 2], best: [f64; 2]| {
            let weeks = Weeks { tuned: 2.0, later: 1.0 };
            let mut trials = plain(later);
            let choice = Choice::new(present(), &trials, limits, weeks, &[]);
            trials.push(trial("5 % of headroom, window 600 s", 5.0, [1_060.0, 9.0], best));
            choice.recommend(trials, 0, 20)
        };
        let found = recommended([540.0, 200.0], [544.0, 1.0]);
        assert_eq!(found.recommended.as_ref().map(|one| &*one.label), Some("8 % of headroom"));
        let expected = "5 % of headroom, window 600 s would cost 0.7 % more than the budget on the rest (544.0 replica-hours instead of 540.0)";
        assert!(found.reason.starts_with(expected), "{}", found.reason);
        let best = found.others.iter().find(|one| one.label.contains("window")).expect("the best");
        assert!(best.ruled_out.as_ref().is_some_and(|why| why.contains("0.7 % more")));
        // No other one is looked for where the best is worse there, or headroom is not better.
        for (later, best) in [([540.0, 200.0], [530.0, 2_000.0]), ([540.0, 1_300.0], [544.0, 1.0])]
        {
            let found = recommended(later, best);
            let chosen = found.recommended.as_ref().map(|one| &*one.label);
            assert!(chosen.is_none_or(|label| label == "5 % of headroom"), "{chosen:?}");
            assert_eq!(chosen.is_none(), best[1] > 1.0, "{}", found.reason);
        }
    }
}
