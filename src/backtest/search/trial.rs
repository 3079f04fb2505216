//! Specs that were tried, and within which limits.

use super::super::figures::Figures;
use crate::time::UnixMillis;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// What a spec may cost and risk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// The replica-hours may be those of a target with this much headroom, in percent, at most. Without it, what the other
    /// limits ask for is within the budget.
    pub budget: Option<f64>,
    /// The minutes of a week in which fewer pods are ready than the load needs, at most.
    pub under_minutes: Option<f64>,
    /// The least headroom of the target, in percent.
    pub headroom: f64,
    /// What is not changed.
    pub keep: Keep,
    /// Why nothing becomes cheaper, besides what the load itself gives reason for.
    pub doubt: Option<&'static str>,
}

/// The budget where nothing says what it may cost, in percent of headroom.
const BUDGET: f64 = 8.0;

impl Limits {
    /// The budget in percent of headroom: of what keeps to a limit of minutes, the cheapest is chosen whatever it costs.
    pub(super) fn most_headroom(&self) -> f64 {
        match (self.budget, self.under_minutes) {
            (Some(budget), _) => budget,
            (None, Some(_)) => f64::INFINITY,
            (None, None) => self.headroom.max(BUDGET),
        }
    }
}

/// What of a spec is not changed.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the spec")]
pub struct Keep {
    /// `minReplicas`.
    pub min: bool,
    /// `maxReplicas`.
    pub max: bool,
    /// The rules of scale-down.
    pub scale_down: bool,
    /// The rules of scale-up.
    pub scale_up: bool,
    /// The schedules.
    pub schedules: bool,
}

/// A spec that was tried.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Trial {
    /// What it changes, in words.
    pub label: String,
    /// Its fields.
    pub spec: Value,
    /// How much more a pod carries than the target, in percent: of the metric of which it is least.
    pub headroom: f64,
    /// The same before the target was rounded.
    #[serde(skip)]
    pub nominal: f64,
    /// It changes nothing but targets.
    pub is_plain: bool,
    /// On the part that was tuned on.
    pub tuned: Figures,
    /// On the rest; none of one that is out of the question before.
    pub later: Option<Figures>,
    /// What ruled it out; none for the one that is recommended.
    pub ruled_out: Option<String>,
}

/// The result of a search.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Recommendation {
    /// The present spec.
    pub present: Trial,
    /// What is recommended in its place; none to keep it.
    pub recommended: Option<Trial>,
    /// Why.
    pub reason: String,
    /// Why nothing becomes cheaper by this load; none if something may.
    pub doubt: Option<String>,
    /// All others that were tried.
    pub others: Vec<Trial>,
    /// The end of the part that was tuned on; in JSON in Unix seconds, as all times are.
    #[serde(serialize_with = "seconds")]
    pub split: UnixMillis,
    /// The most pods that the load needs in that part.
    pub most_needed: i64,
}

fn seconds<S: Serializer>(time: &UnixMillis, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(*time as f64 / 1000.0)
}

/// A number of percent: `12 %`, `42.9 %`.
pub(super) fn percent(number: f64) -> String {
    match (number - number.round()).abs() < 0.05 {
        true => format!("{:.0} %", number.round() + 0.0),
        false => format!("{number:.1} %"),
    }
}

impl Recommendation {
    /// What is recommended, in words, with the present headroom where it changes; none to keep what there is.
    pub fn label(&self) -> Option<String> {
        const HEADROOM: &str = " of headroom";
        let label = &self.recommended.as_ref()?.label;
        let before = self.present.percent_of_headroom();
        Some(match label.split_once(HEADROOM) {
            Some((now, rest)) if now != before => {
                format!("{now}{HEADROOM} instead of {before}{rest}")
            }
            _ => label.clone(),
        })
    }

    /// Recommends nothing, for a reason.
    pub fn withhold(&mut self, reason: &str) {
        if let Some(mut chosen) = self.recommended.take() {
            self.reason = format!("{}: {reason}", chosen.label);
            chosen.ruled_out = Some(reason.to_owned());
            self.others.insert(0, chosen);
        }
    }
}

impl Trial {
    /// Its headroom: `12 %`, `42.9 %`.
    pub fn percent_of_headroom(&self) -> String {
        percent(self.headroom)
    }

    /// Pods are short while the maximum is reached.
    pub fn is_capped(&self) -> bool {
        self.tuned.minutes_at_max > 0.0 && self.tuned.under_minutes > 0.0
    }

    /// The figures on the rest, or else on the part that was tuned on.
    pub fn shown(&self) -> &Figures {
        self.later.as_ref().unwrap_or(&self.tuned)
    }
}
