//! The response to a request for series.

use super::super::error::Error;
use super::envelope::{Label, LabelsSeed, Success, Warnings, check_complete};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};
use std::collections::HashMap;
use std::fmt;

/// The name of a series and the names of its labels, which is all that rules look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeriesShape {
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
    data: Shapes,
    #[serde(default)]
    warnings: Option<Warnings>,
    /// VictoriaMetrics has it.
    #[serde(default, rename = "isPartial")]
    is_partial: Option<bool>,
}

/// The distinct shapes of a listing, each with its position. Series are read one by one.
struct Shapes(HashMap<SeriesShape, usize>);

impl<'de> Deserialize<'de> for Shapes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Shapes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("series")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shapes, A::Error> {
                let (mut shapes, mut bytes) = (HashMap::new(), 0);
                let mut labels: Vec<Label<'de>> = Vec::new();
                while seq.next_element_seed(NextLabelsSeed(&mut labels))?.is_some() {
                    let shape = SeriesShape::of(&labels);
                    let (position, size) = (shapes.len(), shape.bytes());
                    shapes.entry(shape).or_insert_with(|| {
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
                Ok(Shapes(shapes))
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

impl SeriesShape {
    fn of(labels: &[Label<'_>]) -> Self {
        let mut shape = Self { name: String::new(), labels: Vec::with_capacity(labels.len()) };
        for (label, value) in labels {
            match label.as_ref() {
                "__name__" => shape.name = value.to_string(),
                other => shape.labels.push(other.to_owned()),
            }
        }
        shape
    }

    /// The approximate memory in bytes.
    fn bytes(&self) -> usize {
        // An allocation takes at least 32 bytes.
        let text = |text: &String| size_of::<String>() + text.len().max(32);
        size_of::<Self>() + text(&self.name) + self.labels.iter().map(text).sum::<usize>()
    }
}

/// Decodes the response to a request for series to the distinct shapes of the series,
/// in the order of their first appearance.
///
/// # Errors
/// [`Error::InvalidResponse`] if it is not JSON of that form; [`Error::Partial`] if it
/// is incomplete.
pub fn decode_shapes(body: &[u8]) -> Result<Vec<SeriesShape>, Error> {
    let response: SeriesResponse = serde_json::from_slice(body)
        .map_err(|error| Error::InvalidResponse(format!("not an answer: {error}")))?;
    check_complete(response.warnings, response.is_partial)?;
    let mut shapes: Vec<_> = response.data.0.into_iter().collect();
    shapes.sort_unstable_by_key(|(_, position)| *position);
    Ok(shapes.into_iter().map(|(shape, _)| shape).collect())
}
