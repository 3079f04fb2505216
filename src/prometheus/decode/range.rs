//! Decoding of the responses to range queries, and to queries for the samples of a range.

use super::super::error::Error;
use super::envelope::{Success, Warnings, check_complete};
use crate::time::UnixMillis;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A series of a range: its labels, and its values by time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RangeSeries {
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The points: time and value. NaN is one.
    pub points: Vec<(UnixMillis, f64)>,
}

#[derive(Deserialize)]
struct Response {
    #[serde(default, rename = "status")]
    _status: Success,
    data: Data,
    #[serde(default)]
    warnings: Option<Warnings>,
    #[serde(default, rename = "isPartial")]
    is_partial: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    result_type: String,
    result: Vec<Series>,
}

#[derive(Deserialize)]
struct Series {
    #[serde(default)]
    metric: BTreeMap<String, String>,
    #[serde(default)]
    values: Vec<(f64, Number)>,
}

/// A number in a string.
struct Number(f64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = Number;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number in a string")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Number, E> {
                text.parse().map(Number).map_err(|_| E::custom(format!("the value {text:?}")))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// Decodes a matrix.
///
/// # Errors
/// [`Error::InvalidResponse`] if it is not JSON of that form; [`Error::Partial`] if it is incomplete.
pub fn decode_matrix(body: &[u8]) -> Result<Vec<RangeSeries>, Error> {
    let invalid = |why: String| Error::InvalidResponse(why);
    let response: Response =
        serde_json::from_slice(body).map_err(|error| invalid(format!("not an answer: {error}")))?;
    check_complete(response.warnings, response.is_partial)?;
    if response.data.result_type != "matrix" {
        let kind = response.data.result_type.escape_debug();
        return Err(invalid(format!("a matrix was expected, not {kind}")));
    }
    let series = response.data.result.into_iter().map(|series| {
        let points = series
            .values
            .into_iter()
            .map(|(time, Number(value))| ((time * 1000.0).round() as UnixMillis, value));
        RangeSeries { labels: series.metric, points: points.collect() }
    });
    Ok(series.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_is_read_and_nothing_else() {
        let body = br#"{"status":"success","data":{"resultType":"matrix","result":[
            {"metric":{"a":"b"},"values":[[1.5,"2"],[2,"NaN"]]}]}}"#;
        let series = decode_matrix(body).unwrap();
        assert_eq!(series[0].labels["a"], "b");
        assert_eq!(series[0].points[0], (1_500, 2.0));
        assert!(series[0].points[1].1.is_nan());
        for body in [
            r#"{"data":{"resultType":"vector","result":[]}}"#,
            r#"{"data":{"resultType":"matrix","result":[{"values":[[1,"x"]]}]}}"#,
            r#"{"status":"error","data":{"resultType":"matrix","result":[]}}"#,
            "{}",
        ] {
            assert!(decode_matrix(body.as_bytes()).is_err(), "{body}");
        }
    }

    #[test]
    fn a_part_of_the_history_is_not_taken_for_all_of_it() {
        let of = |more: &str| {
            format!(r#"{{{more}"data":{{"resultType":"matrix","result":[]}}}}"#).into_bytes()
        };
        let failed = decode_matrix(&of(r#""warnings":["remote_read: server returned 500"],"#));
        assert!(matches!(failed, Err(Error::Partial(why)) if why.contains("remote_read")));
        assert!(matches!(decode_matrix(&of(r#""isPartial":true,"#)), Err(Error::Partial(_))));
        let annotated = of(r#""warnings":["PromQL warning: bucket label"],"#);
        assert_eq!(decode_matrix(&annotated), Ok(Vec::new()));
    }
}
