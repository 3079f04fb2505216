//! What an Autoscaler may say of a metric beyond `autoscaling/v2`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What an Autoscaler may say of a metric beyond `autoscaling/v2`. The default is upstream's decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetricOptions {
    /// At zero replicas a total is active when it is greater, in milli-units.
    pub activation_milli: Option<i64>,
    /// What an empty result means.
    pub on_empty: OnEmpty,
}

/// What the empty result of a metric means: no series at all, not one that is no number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnEmpty {
    /// The metric is missing: it has failed, as in a HorizontalPodAutoscaler, and no replica is
    /// removed.
    #[default]
    Missing,
    /// The value is 0, of each pod if the metric is one of pods.
    Zero,
    /// The metric asks for the present number of replicas.
    Hold,
}
