//! The response to an instant query.

use super::super::error::Error;
use super::envelope::{Label, LabelsSeed, Success, Text, Warnings, check_complete};
use crate::time::UnixMillis;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// One series of an instant vector, borrowed from the body of the response.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Series<'a> {
    /// The labels, in the order of the response.
    pub labels: &'a [Label<'a>],
    /// The value, finite and within 64 bits of thousandths, or why it is
    /// invalid.
    pub value: Result<f64, InvalidSample>,
    /// The time of the sample.
    pub time: UnixMillis,
}

/// Why a sample is invalid; what the author of the query can do something about is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InvalidSample {
    /// It is NaN or infinite, as after a division by zero.
    NotFinite,
    /// It is beyond 64 bits of thousandths, about 9.2e15.
    TooLarge,
    /// It is a native histogram.
    Histogram,
}

/// The type of an instant query's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultType {
    /// Series with labels.
    Vector,
    /// One number without labels.
    Scalar,
}

#[derive(Deserialize)]
#[serde(rename = "response")]
struct QueryResponse<'a> {
    #[serde(default, rename = "status")]
    _status: Success,
    #[serde(borrow)]
    data: Vector<'a>,
    #[serde(default)]
    warnings: Option<Warnings>,
    /// VictoriaMetrics has it.
    #[serde(default, rename = "isPartial")]
    is_partial: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Vector<'a> {
    result_type: Cow<'a, str>,
    #[serde(borrow)]
    result: &'a serde_json::value::RawValue,
}

/// Reads the series of a vector one by one, with one list of labels for all.
struct AllSeries<'r, F>(&'r mut F);

impl<'de, F: FnMut(Series<'_>)> DeserializeSeed<'de> for AllSeries<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, F: FnMut(Series<'_>)> Visitor<'de> for AllSeries<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("series")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let mut labels = Vec::new();
        while let Some(sample) = seq.next_element_seed(SeriesSeed(&mut labels))? {
            if let Some((time, value)) = sample.map(checked) {
                (self.0)(Series { labels: &labels, value, time });
            }
        }
        Ok(())
    }
}

/// Reads one series: its labels into a list, and its sample.
struct SeriesSeed<'r, 'de>(&'r mut Vec<Label<'de>>);

impl<'de> DeserializeSeed<'de> for SeriesSeed<'_, 'de> {
    type Value = Option<(UnixMillis, Result<f64, InvalidSample>)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for SeriesSeed<'_, 'de> {
    type Value = Option<(UnixMillis, Result<f64, InvalidSample>)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a series")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        self.0.clear();
        let mut sample = None;
        while let Some(Text(key)) = map.next_key()? {
            match key.as_ref() {
                "metric" => map.next_value_seed(LabelsSeed(self.0))?,
                "value" => sample = map.next_value::<Option<(f64, Text<'_>)>>()?.and_then(read),
                "histogram" => {
                    let (time, _) = map.next_value::<(f64, IgnoredAny)>()?;
                    sample = Some((millis(time), Err(InvalidSample::Histogram)));
                }
                _ => map.next_value::<IgnoredAny>().map(|_| ())?,
            }
        }
        Ok(sample)
    }
}

type Sample = (UnixMillis, Result<f64, InvalidSample>);

fn read((time, Text(value)): (f64, Text<'_>)) -> Option<Sample> {
    Some((millis(time), Ok(value.parse().ok()?)))
}

fn millis(seconds: f64) -> UnixMillis {
    (seconds * 1000.0) as UnixMillis
}

/// Checks a sample.
fn checked((time, value): Sample) -> Sample {
    // Decisions calculate in thousandths, with 64 bits.
    const LARGEST: f64 = (i64::MAX / 1000) as f64;
    match value {
        Ok(value) if !value.is_finite() => (time, Err(InvalidSample::NotFinite)),
        Ok(value) if value.abs() >= LARGEST => (time, Err(InvalidSample::TooLarge)),
        value => (time, value),
    }
}

/// Reads the response to an instant query, series by series.
///
/// # Errors
/// [`Error::InvalidResponse`] if it is not JSON of that form, or neither vector nor
/// scalar; [`Error::Partial`] if it is incomplete.
pub fn read_query_response(body: &[u8], each: impl FnMut(Series<'_>)) -> Result<ResultType, Error> {
    let response: QueryResponse<'_> = serde_json::from_slice(body)
        .map_err(|error| Error::InvalidResponse(format!("not an answer: {error}")))?;
    check_complete(response.warnings, response.is_partial)?;
    read_vector(&response.data, each).map_err(Error::InvalidResponse)
}

fn read_vector(data: &Vector<'_>, mut each: impl FnMut(Series<'_>)) -> Result<ResultType, String> {
    let result = data.result.get();
    match data.result_type.as_ref() {
        "vector" => {
            let mut deserializer = serde_json::Deserializer::from_str(result);
            AllSeries(&mut each)
                .deserialize(&mut deserializer)
                .map_err(|error| format!("not a vector: {error}"))?;
            Ok(ResultType::Vector)
        }
        "scalar" => {
            let sample: (f64, Text<'_>) =
                serde_json::from_str(result).map_err(|error| format!("not a scalar: {error}"))?;
            if let Some((time, value)) = read(sample).map(checked) {
                each(Series { labels: &[], value, time });
            }
            Ok(ResultType::Scalar)
        }
        other => Err(format!("the query gives a {other}; an instant vector was expected")),
    }
}
