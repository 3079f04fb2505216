//! The answers of Prometheus's query API.

use super::error::{Error, shortened};
use crate::hpa::UnixMillis;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// One series of an instant vector, borrowed from the answer's body.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Series<'a> {
    /// Its labels, in the order of the answer.
    pub labels: &'a [Label<'a>],
    /// Its value, finite and within what a quantity's thousandths hold; else why
    /// it is no sample.
    pub value: Result<f64, NoSample>,
    /// When.
    pub time: UnixMillis,
}

/// Why a series has a value that is no sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSample {
    /// It is a native histogram.
    Histogram,
    /// It is beyond 64 bits of thousandths, about 9.2e15.
    TooLarge,
}

/// A label's name and value.
pub type Label<'a> = (Cow<'a, str>, Cow<'a, str>);

/// What an instant query gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// Series with labels.
    Vector,
    /// One number without labels.
    Scalar,
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    data: Vector<'a>,
    #[serde(default)]
    warnings: Option<Vec<String>>,
    /// VictoriaMetrics's.
    #[serde(default, rename = "isPartial")]
    is_partial: Option<bool>,
}

/// What Prometheus warns of where it left series out because of `limit`.
const TRUNCATED: &str = "results truncated due to limit";
/// How the annotations of a query begin, which speak of its words and of what its
/// samples are, not of samples that are missing. Source: `PromQLInfo` and
/// `PromQLWarning` of Prometheus's `util/annotations`. Infos come in a list of
/// their own, but in old versions and through some proxies.
const ANNOTATIONS: [&str; 2] = ["PromQL warning", "PromQL info"];

/// Whether an answer is the whole. Any warning but an annotation says that somebody
/// could not be asked: a store of Thanos, a remote read, or more warnings than are
/// shown.
fn check_whole(warnings: Option<Vec<String>>, is_partial: Option<bool>) -> Result<(), Error> {
    let warnings = warnings.unwrap_or_default();
    if warnings.iter().any(|warning| warning == TRUNCATED) {
        let error = "it has more series than the limit of a user's own query";
        return Err(Error::Answer(error.to_owned()));
    }
    let harmless = |warning: &String| ANNOTATIONS.iter().any(|word| warning.starts_with(word));
    match warnings.iter().find(|warning| !harmless(warning)) {
        Some(warning) => Err(Error::Partial(shortened(warning, 300))),
        None if is_partial == Some(true) => Err(Error::Partial("isPartial is true".to_owned())),
        None => Ok(()),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Vector<'a> {
    result_type: Cow<'a, str>,
    #[serde(borrow)]
    result: &'a serde_json::value::RawValue,
}

/// Borrowed where the JSON has no escapes in it.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Reads the series of a vector, one after the other into the same place.
struct EachSeries<'r, F>(&'r mut F);

impl<'de, F: FnMut(Series<'_>)> DeserializeSeed<'de> for EachSeries<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, F: FnMut(Series<'_>)> Visitor<'de> for EachSeries<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("series")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let mut labels = Vec::new();
        while let Some(sample) = seq.next_element_seed(OneSeries(&mut labels))? {
            if let Some((time, value)) = sample.and_then(checked) {
                (self.0)(Series { labels: &labels, value, time });
            }
        }
        Ok(())
    }
}

/// Reads one series: its labels into a place, and its sample.
struct OneSeries<'r, 'de>(&'r mut Vec<Label<'de>>);

impl<'de> DeserializeSeed<'de> for OneSeries<'_, 'de> {
    type Value = Option<(UnixMillis, Result<f64, NoSample>)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for OneSeries<'_, 'de> {
    type Value = Option<(UnixMillis, Result<f64, NoSample>)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a series")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        self.0.clear();
        let mut sample = None;
        while let Some(Text(key)) = map.next_key()? {
            match key.as_ref() {
                "metric" => map.next_value_seed(Labels(self.0))?,
                "value" => sample = map.next_value::<Option<(f64, Text<'_>)>>()?.and_then(read),
                "histogram" => {
                    let (time, _) = map.next_value::<(f64, IgnoredAny)>()?;
                    sample = Some((millis(time), Err(NoSample::Histogram)));
                }
                _ => map.next_value::<IgnoredAny>().map(|_| ())?,
            }
        }
        Ok(sample)
    }
}

type Sample = (UnixMillis, Result<f64, NoSample>);

fn read((time, Text(value)): (f64, Text<'_>)) -> Option<Sample> {
    Some((millis(time), Ok(value.parse().ok()?)))
}

fn millis(seconds: f64) -> UnixMillis {
    (seconds * 1000.0) as UnixMillis
}

/// A sample as it can be used; none where there is none: NaN and the infinities.
fn checked((time, value): Sample) -> Option<Sample> {
    // Decisions count in thousandths, in 64 bits.
    const LARGEST: f64 = (i64::MAX / 1000) as f64;
    match value {
        Ok(value) if !value.is_finite() => None,
        Ok(value) if value.abs() >= LARGEST => Some((time, Err(NoSample::TooLarge))),
        value => Some((time, value)),
    }
}

/// Reads labels into a place.
struct Labels<'r, 'de>(&'r mut Vec<Label<'de>>);

impl<'de> DeserializeSeed<'de> for Labels<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Labels<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the labels of a series")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((Text(name), Text(value))) = map.next_entry()? {
            self.0.push((name, value));
        }
        Ok(())
    }
}

/// Reads the answer to an instant query, series by series.
///
/// # Errors
/// [`Error::Answer`] where it is no JSON of that form, or neither vector nor
/// scalar; [`Error::Partial`] where it is only a part of the answer.
pub fn read_answer(body: &[u8], each: impl FnMut(Series<'_>)) -> Result<AnswerKind, Error> {
    let answer: Answer<'_> = serde_json::from_slice(body)
        .map_err(|error| Error::Answer(format!("not an answer: {error}")))?;
    check_whole(answer.warnings, answer.is_partial)?;
    read_vector(&answer.data, each).map_err(Error::Answer)
}

fn read_vector(data: &Vector<'_>, mut each: impl FnMut(Series<'_>)) -> Result<AnswerKind, String> {
    let result = data.result.get();
    match data.result_type.as_ref() {
        "vector" => {
            let mut deserializer = serde_json::Deserializer::from_str(result);
            EachSeries(&mut each)
                .deserialize(&mut deserializer)
                .map_err(|error| format!("not a vector: {error}"))?;
            Ok(AnswerKind::Vector)
        }
        "scalar" => {
            let sample: (f64, Text<'_>) =
                serde_json::from_str(result).map_err(|error| format!("not a scalar: {error}"))?;
            if let Some((time, value)) = read(sample).and_then(checked) {
                each(Series { labels: &[], value, time });
            }
            Ok(AnswerKind::Scalar)
        }
        other => Err(format!("the query gives a {other}; an instant vector was expected")),
    }
}

/// Labels in the order of the answer.
struct LabelSet<'a>(Vec<Label<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for LabelSet<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut labels = Vec::new();
        Labels(&mut labels).deserialize(deserializer)?;
        Ok(Self(labels))
    }
}

/// The name of a series and the names of its labels: all that rules look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeriesShape {
    /// Its name.
    pub name: String,
    /// The names of its other labels.
    pub labels: Vec<String>,
}

#[derive(Deserialize)]
struct SeriesAnswer<'a> {
    #[serde(borrow)]
    data: Vec<LabelSet<'a>>,
    #[serde(default)]
    warnings: Option<Vec<String>>,
    /// VictoriaMetrics's.
    #[serde(default, rename = "isPartial")]
    is_partial: Option<bool>,
}

/// Decodes the answer to a request for series, to the different shapes there
/// are, in the order of their first appearance.
///
/// # Errors
/// [`Error::Answer`] where it is no JSON of that form; [`Error::Partial`] where it
/// is only a part of the answer.
pub fn decode_shapes(body: &[u8]) -> Result<Vec<SeriesShape>, Error> {
    let answer: SeriesAnswer<'_> = serde_json::from_slice(body)
        .map_err(|error| Error::Answer(format!("not an answer: {error}")))?;
    check_whole(answer.warnings, answer.is_partial)?;
    let mut seen = std::collections::HashSet::new();
    let mut shapes = Vec::new();
    for LabelSet(labels) in answer.data {
        let mut name = "";
        let mut others: Vec<&str> = Vec::with_capacity(labels.len());
        for (label, value) in &labels {
            match label.as_ref() {
                "__name__" => name = value,
                other => others.push(other),
            }
        }
        let shape = SeriesShape {
            name: name.to_owned(),
            labels: others.into_iter().map(str::to_owned).collect(),
        };
        if seen.insert(shape.clone()) {
            shapes.push(shape);
        }
    }
    Ok(shapes)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read = (Vec<(String, String)>, Result<f64, NoSample>, UnixMillis);

    fn read(body: &[u8]) -> Result<(AnswerKind, Vec<Read>), Error> {
        let mut all = Vec::new();
        let own = |(name, value): &Label<'_>| (name.to_string(), value.to_string());
        let kind = read_answer(body, |series| {
            all.push((series.labels.iter().map(own).collect(), series.value, series.time));
        })?;
        Ok((kind, all))
    }

    #[test]
    fn a_vector_is_decoded_and_nan_is_no_sample() {
        let body = br#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"pod":"a","n\"x":"\u00e9"},"value":[1700000000.5,"12.5"]},
            {"metric":{"pod":"b"},"value":[1700000000,"NaN"]},
            {"metric":{"pod":"c"},"value":[1700000000,"+Inf"]},
            {"metric":{"pod":"d"},"histogram":[1700000000,{"count":"1"}]},
            {"metric":{},"value":[1700000000,"-1e3"]}]}}"#;
        let (kind, series) = read(body).unwrap();
        assert_eq!((kind, series.len()), (AnswerKind::Vector, 3));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let labels = vec![pair("pod", "a"), pair("n\"x", "\u{e9}")];
        assert_eq!(series[0], (labels, Ok(12.5), 1_700_000_000_500));
        assert_eq!(series[1].1, Err(NoSample::Histogram));
        assert_eq!(series[2], (Vec::new(), Ok(-1000.0), 1_700_000_000_000));
    }

    #[test]
    fn series_are_kept_by_their_shape() {
        let body = br#"{"status":"success","data":[
            {"__name__":"up","job":"a","pod":"x"},{"__name__":"up","job":"b","pod":"y"},
            {"__name__":"up","job":"c"}]}"#;
        let shapes = decode_shapes(body).unwrap();
        assert_eq!(shapes.len(), 2);
        assert_eq!(
            (shapes[0].name.as_str(), shapes[0].labels.join(",")),
            ("up", "job,pod".to_owned())
        );
    }

    #[test]
    fn a_scalar_is_a_series_without_labels() {
        let scalar = br#"{"data":{"resultType":"scalar","result":[1.5,"2"]}}"#;
        assert_eq!(read(scalar), Ok((AnswerKind::Scalar, vec![(Vec::new(), Ok(2.0), 1500)])));
    }

    #[test]
    fn what_is_no_vector_is_refused() {
        let matrix = br#"{"data":{"resultType":"matrix","result":[]}}"#;
        assert!(read(matrix).unwrap_err().to_string().contains("a matrix"));
        assert!(read(b"<html>").is_err());
        let cut = br#"{"data":{"resultType":"vector","result":[{"metric":{"a":1}}]}}"#;
        assert!(read(cut).unwrap_err().to_string().contains("not a vector"));
    }
}
