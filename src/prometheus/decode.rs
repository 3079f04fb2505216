//! The answers of Prometheus's query API.

use crate::hpa::UnixMillis;
use serde::Deserialize;
use std::borrow::Cow;

/// One series of an instant vector. NaN and the infinities are no samples, so
/// that a series has a finite value or none is there.
#[derive(Clone, Debug, PartialEq)]
pub struct Series<'a> {
    /// Its labels.
    pub labels: Vec<Label<'a>>,
    /// Its value.
    pub value: f64,
    /// When.
    pub time: UnixMillis,
    /// Whether it is a scalar, which has no labels at all.
    pub scalar: bool,
}

/// A label's name and value.
pub type Label<'a> = (Cow<'a, str>, Cow<'a, str>);

impl Series<'_> {
    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_ref())
    }
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    data: Vector<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Vector<'a> {
    result_type: Cow<'a, str>,
    #[serde(borrow)]
    result: &'a serde_json::value::RawValue,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow)]
    metric: LabelSet<'a>,
    #[serde(borrow)]
    value: Option<(f64, Text<'a>)>,
}

/// Labels in the order of the answer.
struct LabelSet<'a>(Vec<Label<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for LabelSet<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Vec<Label<'de>>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the labels of a series")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Self::Value, A::Error> {
                let mut labels = Vec::new();
                while let Some((Text(name), Text(value))) = map.next_entry()? {
                    labels.push((name, value));
                }
                Ok(labels)
            }
        }
        deserializer.deserialize_map(Visitor).map(LabelSet)
    }
}

/// Borrowed where the JSON has no escapes in it.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Decodes the answer to an instant query, as borrowed from its body.
///
/// # Errors
/// Where it is no JSON of that form, or neither vector nor scalar; the text says which.
pub fn decode_vector(body: &[u8]) -> Result<Vec<Series<'_>>, String> {
    let answer: Answer<'_> =
        serde_json::from_slice(body).map_err(|error| format!("not an answer: {error}"))?;
    match answer.data.result_type.as_ref() {
        "vector" => {}
        // A scalar is a series without labels.
        "scalar" => {
            let value = serde_json::from_str(answer.data.result.get())
                .map_err(|error| format!("not a scalar: {error}"))?;
            let item = Item { metric: LabelSet(Vec::new()), value: Some(value) };
            let scalar = finite(item).map(|series| Series { scalar: true, ..series });
            return Ok(scalar.into_iter().collect());
        }
        other => {
            return Err(format!("the query gives a {other}; an instant vector was expected"));
        }
    }
    let items: Vec<Item<'_>> = serde_json::from_str(answer.data.result.get())
        .map_err(|error| format!("not a vector: {error}"))?;
    Ok(items.into_iter().filter_map(finite).collect())
}

fn finite(item: Item<'_>) -> Option<Series<'_>> {
    let (time, Text(value)) = item.value?;
    let value: f64 = value.parse().ok()?;
    value.is_finite().then_some(Series {
        labels: item.metric.0,
        value,
        time: (time * 1000.0) as UnixMillis,
        scalar: false,
    })
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
}

/// Decodes the answer to a request for series, to the different shapes there
/// are, in the order of their first appearance.
///
/// # Errors
/// Where it is no JSON of that form.
pub fn decode_shapes(body: &[u8]) -> Result<Vec<SeriesShape>, String> {
    let answer: SeriesAnswer<'_> =
        serde_json::from_slice(body).map_err(|error| format!("not an answer: {error}"))?;
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

    #[test]
    fn a_vector_is_decoded_and_nan_is_no_sample() {
        let body = br#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"pod":"a","n\"x":"\u00e9"},"value":[1700000000.5,"12.5"]},
            {"metric":{"pod":"b"},"value":[1700000000,"NaN"]},
            {"metric":{"pod":"c"},"value":[1700000000,"+Inf"]},
            {"metric":{"pod":"d"},"histogram":[1700000000,{}]},
            {"metric":{},"value":[1700000000,"-1e3"]}]}}"#;
        let series = decode_vector(body).unwrap();
        assert_eq!(series.len(), 2);
        assert_eq!(series[0].label("pod"), Some("a"));
        assert_eq!(series[0].label("n\"x"), Some("é"));
        assert_eq!((series[0].value, series[0].time), (12.5, 1_700_000_000_500));
        assert_eq!(series[1].value, -1000.0);
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
        let series = decode_vector(scalar).unwrap();
        assert_eq!((series[0].value, series[0].time, series[0].labels.len()), (2.0, 1500, 0));
    }

    #[test]
    fn what_is_no_vector_is_refused() {
        let matrix = br#"{"data":{"resultType":"matrix","result":[]}}"#;
        assert!(decode_vector(matrix).unwrap_err().contains("a matrix"));
        assert!(decode_vector(b"<html>").is_err());
    }
}
