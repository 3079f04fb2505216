//! The responses to requests for a metric's metadata.

use super::super::error::Error;
use super::envelope::{Success, Warnings};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// The types that targets give a metric. Those of different targets may differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetricKinds {
    /// Whether one says that it is a counter.
    pub counter: bool,
    /// Whether one says that it is something else: a gauge, histogram, ...
    pub other: bool,
    /// The entries of the response, those without a type included.
    pub entries: usize,
}

#[derive(Deserialize)]
struct Metadata<T> {
    #[serde(default, rename = "status")]
    _status: Success,
    data: T,
    #[serde(default)]
    warnings: Option<Warnings>,
}

#[derive(Deserialize)]
struct MetadataEntry {
    #[serde(default, rename = "type")]
    kind: String,
}

/// The entries of all metrics, of which one is asked for.
#[derive(Deserialize)]
#[serde(transparent)]
struct ByMetric(#[serde(deserialize_with = "kinds_by_metric")] MetricKinds);

/// The entries of all targets.
#[derive(Deserialize)]
#[serde(transparent)]
struct ByTarget(#[serde(deserialize_with = "kinds_of_targets")] MetricKinds);

/// Decodes entry by entry: there may be many, with long texts.
struct Entries(MetricKinds);

impl<'de> Visitor<'de> for Entries {
    type Value = MetricKinds;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("metadata")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<MetricKinds, A::Error> {
        while map.next_key::<IgnoredAny>()?.is_some() {
            let ByTarget(of_metric) = map.next_value()?;
            self.0 = MetricKinds {
                counter: self.0.counter || of_metric.counter,
                other: self.0.other || of_metric.other,
                entries: self.0.entries + of_metric.entries,
            };
        }
        Ok(self.0)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<MetricKinds, A::Error> {
        while let Some(MetadataEntry { kind }) = seq.next_element()? {
            self.0.entries += 1;
            match kind.as_str() {
                "counter" => self.0.counter = true,
                "unknown" | "" => {}
                _ => self.0.other = true,
            }
        }
        Ok(self.0)
    }
}

fn kinds_by_metric<'de, D: Deserializer<'de>>(deserializer: D) -> Result<MetricKinds, D::Error> {
    deserializer.deserialize_map(Entries(MetricKinds::default()))
}

fn kinds_of_targets<'de, D: Deserializer<'de>>(deserializer: D) -> Result<MetricKinds, D::Error> {
    deserializer.deserialize_seq(Entries(MetricKinds::default()))
}

/// Decodes the response to a request for one metric's metadata.
///
/// # Errors
/// [`Error::InvalidResponse`] if it is not JSON of that form; [`Error::Partial`] if it has no type, and a
/// source that failed may have one.
pub fn metric_kinds(body: &[u8]) -> Result<MetricKinds, Error> {
    read::<ByMetric>(body, |ByMetric(kinds)| kinds)
}

/// Decodes the response to a request for one metric's metadata of some targets.
///
/// # Errors
/// As of [`metric_kinds`].
pub fn target_kinds(body: &[u8]) -> Result<MetricKinds, Error> {
    read::<ByTarget>(body, |ByTarget(kinds)| kinds)
}

fn read<T: DeserializeOwned>(
    body: &[u8],
    kinds: impl FnOnce(T) -> MetricKinds,
) -> Result<MetricKinds, Error> {
    let metadata: Metadata<T> =
        serde_json::from_slice(body).map_err(|error| Error::InvalidResponse(error.to_string()))?;
    let kinds = kinds(metadata.data);
    match metadata.warnings.and_then(|warnings| warnings.partial) {
        Some(warning) if !kinds.counter && !kinds.other => Err(Error::Partial(warning)),
        _ => Ok(kinds),
    }
}
