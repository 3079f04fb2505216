//! What is done with the decisions of an `Autoscaler`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What is done with decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    /// The scale is written.
    #[default]
    Active,
    /// Decisions are made and shown, and the scale is left alone. Another autoscaler may size the
    /// same pods meanwhile: this one claims none. It needs the executor Embedded.
    Preview,
    /// The scale is left alone, and the metrics are not queried.
    Paused,
}

/// Until when and why a pause lasts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pause {
    /// until is the end of the pause. If not set, it lasts until mode is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// reason is shown in the condition `Paused`, such as an incident or a migration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub reason: Option<String>,
    /// by is the author of the pause, as written. It is not verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub by: Option<String>,
}

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { until, reason, by } = self;
        for (name, value) in [("by", by), ("reason", reason)] {
            if let Some(value) = value {
                write!(f, ", {name} {value:?}")?;
            }
        }
        until.as_ref().map_or(Ok(()), |until| write!(f, ", until {}", until.0))
    }
}
