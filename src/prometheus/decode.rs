//! The answers of Prometheus's query API.

use super::error::{Error, shortened};
use crate::hpa::UnixMillis;
use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use std::borrow::Cow;
use std::collections::HashMap;
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

/// The `status` of an answer that is one. A proxy may give the code 200 to a failure.
#[derive(Default)]
struct Success;

impl<'de> Deserialize<'de> for Success {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Text(status) = Text::deserialize(deserializer)?;
        let other = || D::Error::custom(format!("its status is {:?}", shortened(&status, 100)));
        (status == "success").then_some(Self).ok_or_else(other)
    }
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(default, rename = "status")]
    _status: Success,
    #[serde(borrow)]
    data: Vector<'a>,
    #[serde(default)]
    warnings: Option<Warnings>,
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

/// What the warnings of an answer say of it. They are read one by one: there may be millions.
#[derive(Default)]
struct Warnings {
    /// Whether series were left out because of `limit`.
    truncated: bool,
    /// The first that is no annotation.
    partial: Option<String>,
}

impl<'de> Deserialize<'de> for Warnings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Warnings;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("warnings")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Warnings, A::Error> {
                let mut warnings = Warnings::default();
                while let Some(Text(warning)) = seq.next_element()? {
                    warnings.truncated |= warning == TRUNCATED;
                    let harmless = ANNOTATIONS.iter().any(|word| warning.starts_with(word));
                    if !harmless && warnings.partial.is_none() {
                        warnings.partial = Some(shortened(&warning, 300));
                    }
                }
                Ok(warnings)
            }
        }
        deserializer.deserialize_seq(Each)
    }
}

/// Whether an answer is the whole. Any warning but an annotation says that somebody
/// could not be asked: a store of Thanos, a remote read, or more warnings than are
/// shown.
fn check_whole(warnings: Option<Warnings>, is_partial: Option<bool>) -> Result<(), Error> {
    let warnings = warnings.unwrap_or_default();
    if warnings.truncated {
        let error = "it has more series than the limit of a user's own query";
        return Err(Error::Answer(error.to_owned()));
    }
    match warnings.partial {
        Some(warning) => Err(Error::Partial(warning)),
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

/// The most labels that a series may have. Prometheus has tens.
const LABELS: usize = 1_000;
/// The most bytes of names that a listing of series may give.
const LISTED: usize = 64 << 20;

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
            if self.0.len() == LABELS {
                return Err(A::Error::custom(format!("a series has more than {LABELS} labels")));
            }
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

/// The name of a series and the names of its labels: all that rules look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeriesShape {
    /// Its name.
    pub name: String,
    /// The names of its other labels.
    pub labels: Vec<String>,
}

#[derive(Deserialize)]
struct SeriesAnswer {
    #[serde(default, rename = "status")]
    _status: Success,
    data: Shapes,
    #[serde(default)]
    warnings: Option<Warnings>,
    /// VictoriaMetrics's.
    #[serde(default, rename = "isPartial")]
    is_partial: Option<bool>,
}

/// The different shapes of a listing, each with its place. Series are read one by one.
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
                while seq.next_element_seed(LabelSet(&mut labels))?.is_some() {
                    let shape = SeriesShape::of(&labels);
                    let (place, size) = (shapes.len(), shape.bytes());
                    shapes.entry(shape).or_insert_with(|| {
                        bytes += size;
                        place
                    });
                    if bytes > LISTED {
                        let error =
                            format!("the names of its series take more than {LISTED} bytes");
                        return Err(A::Error::custom(error));
                    }
                }
                Ok(Shapes(shapes))
            }
        }
        deserializer.deserialize_seq(Each)
    }
}

/// Reads the labels of one series in place of those of the one before.
struct LabelSet<'r, 'de>(&'r mut Vec<Label<'de>>);

impl<'de> DeserializeSeed<'de> for LabelSet<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.0.clear();
        Labels(self.0).deserialize(deserializer)
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

    /// About how many bytes of memory it takes.
    fn bytes(&self) -> usize {
        // An allocation takes 32 bytes at least.
        let text = |text: &String| size_of::<String>() + text.len().max(32);
        size_of::<Self>() + text(&self.name) + self.labels.iter().map(text).sum::<usize>()
    }
}

/// Decodes the answer to a request for series, to the different shapes there
/// are, in the order of their first appearance.
///
/// # Errors
/// [`Error::Answer`] where it is no JSON of that form; [`Error::Partial`] where it
/// is only a part of the answer.
pub fn decode_shapes(body: &[u8]) -> Result<Vec<SeriesShape>, Error> {
    let answer: SeriesAnswer = serde_json::from_slice(body)
        .map_err(|error| Error::Answer(format!("not an answer: {error}")))?;
    check_whole(answer.warnings, answer.is_partial)?;
    let mut shapes: Vec<_> = answer.data.0.into_iter().collect();
    shapes.sort_unstable_by_key(|(_, place)| *place);
    Ok(shapes.into_iter().map(|(shape, _)| shape).collect())
}

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

/// Decodes the answer to a request for one metric's metadata, to its type.
///
/// # Errors
/// [`Error::Answer`] where it is no JSON of that form; [`Error::Partial`] where nobody
/// said a type, and somebody who could not be asked may know it.
pub fn metric_type(body: &[u8]) -> Result<Option<String>, Error> {
    let metadata: Metadata =
        serde_json::from_slice(body).map_err(|error| Error::Answer(error.to_string()))?;
    let kind = metadata.data.0.filter(|kind| kind != "unknown");
    match (kind, metadata.warnings.and_then(|warnings| warnings.partial)) {
        (None, Some(warning)) => Err(Error::Partial(warning)),
        (kind, _) => Ok(kind),
    }
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
    fn what_is_small_in_an_answer_is_not_kept_by_the_million() {
        let many = |item: &str, count: usize| vec![item; count].join(",");
        let vector = |more: &str| {
            format!(r#"{{{more}"data":{{"resultType":"vector","result":[]}}}}"#).into_bytes()
        };
        let warnings = format!(r#""warnings":[{},"No Store"],"#, many(r#""PromQL info""#, 9));
        let error = super::read_answer(&vector(&warnings), |_| ()).unwrap_err();
        assert_eq!(error, Error::Partial("No Store".to_owned()));
        assert!(super::read_answer(&vector(r#""warnings":null,"#), |_| ()).is_ok());
        let labels = |count| format!(r#"{{"data":[{{{}}}]}}"#, many(r#""":"""#, count));
        assert!(decode_shapes(labels(LABELS).as_bytes()).is_ok());
        let error = decode_shapes(labels(LABELS + 1).as_bytes()).unwrap_err().to_string();
        assert!(error.contains("more than 1000 labels"), "{error}");
        let series: Vec<String> = (0..1_000_000).map(|n| format!(r#"{{"{n}":""}}"#)).collect();
        let listing = format!(r#"{{"data":[{}]}}"#, series.join(","));
        let error = decode_shapes(listing.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("the names of its series take more than"), "{error}");
    }

    #[test]
    fn a_type_is_that_of_the_first_who_says_one() {
        for (data, expected) in [
            (
                r#"{"x":[],"y":[{"type":"gauge","help":""},{"type":"counter"}],"z":[]}"#,
                Some("gauge"),
            ),
            (r#"{"x":[{"type":"unknown"}]}"#, None),
            ("{}", None),
        ] {
            let body = format!(r#"{{"status":"success","data":{data}}}"#);
            assert_eq!(metric_type(body.as_bytes()), Ok(expected.map(str::to_owned)), "{data}");
        }
        let partial = metric_type(br#"{"data":{},"warnings":["a store is down"]}"#);
        assert_eq!(partial, Err(Error::Partial("a store is down".to_owned())));
        assert!(metric_type(br#"{"data":[]}"#).is_err());
    }

    #[test]
    fn an_answer_that_says_it_failed_is_none() {
        let queried = r#"{"resultType":"vector","result":[]}"#;
        for (status, succeeded) in
            [(r#""success""#, true), (r#""error""#, false), (r#""""#, false), ("null", false)]
        {
            let of = |data: &str| {
                let error = r#""errorType":"timeout","error":"query timed out""#;
                format!(r#"{{"data":{data},"status":{status},{error}}}"#).into_bytes()
            };
            let answers = [
                read(&of(queried)).err(),
                decode_shapes(&of("[]")).err(),
                metric_type(&of("{}")).err(),
            ];
            for error in answers {
                let failed = matches!(error, Some(Error::Answer(_)));
                assert_eq!(failed, !succeeded, "{status}: {error:?}");
            }
        }
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
