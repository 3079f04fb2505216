//! The response to a request for a metric's metadata.

use super::super::error::Error;
use super::envelope::{Success, Warnings};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

#[derive(Deserialize)]
struct Metadata {
    #[serde(default, rename = "status")]
    _status: Success,
    data: FirstType,
    #[serde(default)]
    warnings: Option<Warnings>,
}

/// The type of the first entry of the first metric that has any.
struct FirstType(Option<String>);

#[derive(Deserialize)]
struct MetadataEntry {
    #[serde(rename = "type")]
    kind: String,
}

impl<'de> Deserialize<'de> for FirstType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct First(Option<MetadataEntry>);
        impl<'de> Visitor<'de> for First {
            type Value = Option<MetadataEntry>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("metadata by metric")
            }

            fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
                while map.next_key::<IgnoredAny>()?.is_some() {
                    self = map.next_value_seed(self)?;
                }
                Ok(self.0)
            }

            fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<Self::Value, A::Error> {
                if self.0.is_none() {
                    self.0 = seq.next_element()?;
                }
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(self.0)
            }
        }
        impl<'de> DeserializeSeed<'de> for First {
            type Value = Self;

            fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_seq(self).map(Self)
            }
        }
        let first = deserializer.deserialize_map(First(None))?;
        Ok(Self(first.map(|entry| entry.kind)))
    }
}

/// Decodes the response to a request for one metric's metadata to the metric's type.
///
/// # Errors
/// [`Error::InvalidResponse`] if it is not JSON of that form; [`Error::Partial`] if it has no type, and a
/// source that failed may have one.
pub fn metric_type(body: &[u8]) -> Result<Option<String>, Error> {
    let metadata: Metadata =
        serde_json::from_slice(body).map_err(|error| Error::InvalidResponse(error.to_string()))?;
    let kind = metadata.data.0.filter(|kind| kind != "unknown");
    match (kind, metadata.warnings.and_then(|warnings| warnings.partial)) {
        (None, Some(warning)) => Err(Error::Partial(warning)),
        (kind, _) => Ok(kind),
    }
}
