//! How a MetricRule stands: what it serves, or why not.

use crate::api_names::api_names;
use crate::crd::MetricRuleStatus;
use crate::prometheus::shortened;
use crate::time::UnixMillis;
use crate::watch::ObjectKey;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The most bytes of a message.
const MAX_MESSAGE_BYTES: usize = 1024;

api_names! {
    /// Why a rule serves all of its metrics, or not.
    pub enum Reason {
        /// All of its metrics are served.
        Served,
        /// The spec is invalid.
        Invalid,
        /// The namespace has too many rules.
        TooManyRules,
        /// Its series could not be listed.
        ListingFailed,
        /// It selects no series.
        NoSeries,
        /// None of its series is a metric of an object.
        NoMetrics,
        /// It has too many metrics.
        TooManyMetrics,
        /// Another rule serves one of its metrics.
        Conflict,
    }
}

/// How a MetricRule stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its namespace and name.
    pub key: ObjectKey,
    /// Its UID.
    pub uid: String,
    /// The generation of its spec.
    pub generation: Option<i64>,
    /// The reason.
    pub reason: Reason,
    /// The reason in words.
    pub message: String,
    /// The metrics that it serves, sorted.
    pub metrics: Vec<String>,
}

impl Standing {
    /// The status that says so, at a time. Where the condition has not changed, it is as old as in `before`.
    pub fn status(&self, before: &MetricRuleStatus, now: UnixMillis) -> MetricRuleStatus {
        let (ready, reason) = (self.reason == Reason::Served, self.reason.as_str().to_owned());
        let status = if ready { "True" } else { "False" };
        let known = before.conditions.iter().flatten().find(|known| known.type_ == "Ready");
        let since = known.filter(|known| known.status == status);
        // The API has whole seconds.
        let now = jiff::Timestamp::from_second(now.div_euclid(1000)).unwrap_or_default();
        let last_transition_time =
            since.map_or(Time(now), |known| known.last_transition_time.clone());
        MetricRuleStatus {
            observed_generation: self.generation,
            metric_count: Some(i32::try_from(self.metrics.len()).unwrap_or(i32::MAX)),
            metrics: self.metrics.clone(),
            conditions: Some(vec![Condition {
                type_: "Ready".to_owned(),
                status: status.to_owned(),
                reason,
                message: shortened(&self.message, MAX_MESSAGE_BYTES),
                observed_generation: self.generation,
                last_transition_time,
            }]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_as_old_as_its_status() {
        let standing = |reason, generation| Standing {
            key: ObjectKey { namespace: "shop".to_owned(), name: "rule".to_owned() },
            uid: String::new(),
            generation: Some(generation),
            reason,
            message: "m".repeat(5_000),
            metrics: vec!["pods/hits".to_owned()],
        };
        let first = standing(Reason::Conflict, 1).status(&MetricRuleStatus::default(), 1_999);
        let ready = |status: &MetricRuleStatus| status.conditions.clone().unwrap().remove(0);
        assert_eq!(ready(&first).last_transition_time.0.as_millisecond(), 1_000);
        assert!(ready(&first).message.len() < 1_100);
        assert_eq!((ready(&first).reason.as_str(), first.metric_count), ("Conflict", Some(1)));
        assert_eq!(standing(Reason::Conflict, 1).status(&first, 9_000), first);
        let second = standing(Reason::NoSeries, 2).status(&first, 9_000);
        assert_eq!(ready(&second).last_transition_time, ready(&first).last_transition_time);
        let third = standing(Reason::Served, 3).status(&second, 9_000);
        assert_eq!(ready(&third).last_transition_time.0.as_millisecond(), 9_000);
    }
}
