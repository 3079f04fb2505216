//! The response to a request for series.

use super::super::error::Error;
use super::envelope::{Label, LabelsSeed, Success, Warnings, check_complete};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};
use std::collections::HashMap;
use std::fmt;

/// The name of a series and the names of its labels, which is all that rules look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeriesSchema {
    /// The name.
    pub name: String,
    /// The names of its other labels.
    pub labels: Vec<String>,
}

/// The most bytes of names that a listing of series may have.
const MAX_NAME_BYTES: usize = 64 << 20;

#[derive(Deserialize)]
#[serde(rename = "response")]
struct SeriesResponse {
    #[serde(default, rename = "status")]
    _status: Success,
    data: Schemas,
    #[serde(default)]
    warnings: Option<Warnings>,
    /// VictoriaMetrics has it.
    #[serde(default, rename = "isPartial")]
    is_partial: Option<bool>,
}

/// The distinct schemas of a listing, each with its position. Series are read one by one.
struct Schemas(HashMap<SeriesSchema, usize>);

impl<'de> Deserialize<'de> for Schemas {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Schemas;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("series")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Schemas, A::Error> {
                let (mut schemas, mut bytes) = (HashMap::new(), 0);
                let mut labels: Vec<Label<'de>> = Vec::new();
                while seq.next_element_seed(NextLabelsSeed(&mut labels))?.is_some() {
                    let schema = SeriesSchema::of(&labels);
                    let (position, size) = (schemas.len(), schema.bytes());
                    schemas.entry(schema).or_insert_with(|| {
                        bytes += size;
                        position
                    });
                    if bytes > MAX_NAME_BYTES {
                        let error = format!(
                            "the names of its series take more than {MAX_NAME_BYTES} bytes"
                        );
                        return Err(A::Error::custom(error));
                    }
                }
                Ok(Schemas(schemas))
            }
        }
        deserializer.deserialize_seq(Each)
    }
}

/// Reads the labels of one series in place of those of the previous one.
struct NextLabelsSeed<'r, 'de>(&'r mut Vec<Label<'de>>);

impl<'de> DeserializeSeed<'de> for NextLabelsSeed<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.0.clear();
        LabelsSeed(self.0).deserialize(deserializer)
    }
}

impl SeriesSchema {
    fn of(labels: &[Label<'_>]) -> Self {
        let mut schema = Self { name: String::new(), labels: Vec::with_capacity(labels.len()) };
        for (label, value) in labels {
            match label.as_ref() {
                "__name__" => schema.name = value.to_string(),
                other => schema.labels.push(other.to_owned()),
            }
        }
        schema
    }

    /// The approximate memory in bytes.
    fn bytes(&self) -> usize {
        // An allocation takes at least 32 bytes.
        let text = |text: &String| size_of::<String>() + text.len().max(32);
        size_of::<Self>() + text(&self.name) + self.labels.iter().map(text).sum::<usize>()
    }
}

/// Decodes the response to a request for series to the distinct schemas of the series,
/// in the order of their first appearance.
///
/// # Errors
/// [`Error::InvalidResponse`] if it is not JSON of that form; [`Error::Partial`] if it
/// is incomplete.
pub fn decode_series_schemas(body: &[u8]) -> Result<Vec<SeriesSchema>, Error> {
    let response: SeriesResponse = serde_json::from_slice(body)
        .map_err(|error| Error::InvalidResponse(format!("not an answer: {error}")))?;
    check_complete(response.warnings, response.is_partial)?;
    let mut schemas: Vec<_> = response.data.0.into_iter().collect();
    schemas.sort_unstable_by_key(|(_, position)| *position);
    Ok(schemas.into_iter().map(|(schema, _)| schema).collect())
}
