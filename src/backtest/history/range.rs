//! Range queries, in pieces below the limits of Prometheus.

use crate::prometheus::{Client, Error};
use crate::time::UnixMillis;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The most points of a piece. Prometheus refuses more than 11,000.
const MAX_POINTS: i64 = 10_000;
/// The least points of a piece of a query that is too much for Prometheus in larger ones.
const MIN_POINTS: i64 = 50;
/// The length of a piece of raw samples, in ms.
const RAW_PIECE: i64 = 6 * 3_600_000;

/// The times of a range query: from the first to the last, both included.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// The first time.
    pub first: UnixMillis,
    /// No time is later.
    pub last: UnixMillis,
    /// Their distance, in ms.
    pub step: i64,
}

/// A series of a range: its labels, and its values by time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RangeSeries {
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The points: time and value. NaN is one.
    pub points: Vec<(UnixMillis, f64)>,
}

/// The series of a query at the times of a grid.
///
/// # Errors
/// As [`Error`] says; a piece that is too much for the server is asked for in smaller ones first.
pub async fn range(client: &Client, query: &str, grid: Grid) -> Result<Vec<RangeSeries>, Error> {
    let mut all: Vec<RangeSeries> = Vec::new();
    let (mut at, mut points) = (grid.first, MAX_POINTS);
    while at <= grid.last {
        let last = grid.last.min(at + (points - 1) * grid.step);
        match client.query_range(query, at, last, grid.step).await {
            Ok(body) => {
                decode(&body)?.into_iter().for_each(|series| add(&mut all, series));
                at = last + grid.step;
            }
            Err(error) if is_too_much(&error) && points > MIN_POINTS => points = points / 4 + 1,
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// The samples of a selector as they were scraped, in the order of time, of all its series.
///
/// # Errors
/// As [`Error`] says.
pub async fn raw(
    client: &Client,
    selector: &str,
    first: UnixMillis,
    last: UnixMillis,
) -> Result<Vec<(UnixMillis, f64)>, Error> {
    let mut samples = Vec::new();
    let mut from = first;
    while from < last {
        let to = last.min(from + RAW_PIECE);
        let length = to - from;
        let body = client.query_at(&format!("{selector}[{length}ms]"), to).await?;
        samples.extend(decode(&body)?.into_iter().flat_map(|series| series.points));
        from = to;
    }
    samples.sort_by_key(|(time, _)| *time);
    samples.dedup_by_key(|(time, _)| *time);
    Ok(samples)
}

/// Whether a query may succeed over less time.
fn is_too_much(error: &Error) -> bool {
    match error {
        Error::Timeout(_) | Error::Overloaded(_) | Error::Memory { .. } => true,
        Error::Refused(why) => why.contains("too many samples") || why.contains("resolution"),
        Error::InvalidResponse(why) => why.contains("larger than"),
        Error::Unavailable { status, .. } => matches!(status, 413 | 422 | 503),
        _ => false,
    }
}

fn add(all: &mut Vec<RangeSeries>, series: RangeSeries) {
    match all.iter_mut().find(|other| other.labels == series.labels) {
        Some(other) => other.points.extend(series.points),
        None => all.push(series),
    }
}

#[derive(Deserialize)]
struct Response {
    data: Data,
    #[serde(default, rename = "isPartial")]
    is_partial: bool,
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
    values: Vec<(f64, String)>,
}

fn decode(body: &[u8]) -> Result<Vec<RangeSeries>, Error> {
    let invalid = |why: String| Error::InvalidResponse(why);
    let response: Response =
        serde_json::from_slice(body).map_err(|error| invalid(error.to_string()))?;
    if response.is_partial {
        return Err(Error::Partial("isPartial".to_owned()));
    }
    if response.data.result_type != "matrix" {
        let kind = response.data.result_type.escape_debug();
        return Err(invalid(format!("a matrix was expected, not {kind}")));
    }
    let series = response.data.result.into_iter().map(|series| {
        let points = series.values.into_iter().map(|(time, value)| {
            let value = value.parse().map_err(|_| invalid(format!("the value {value:?}")))?;
            Ok(((time * 1000.0).round() as UnixMillis, value))
        });
        Ok(RangeSeries { labels: series.metric, points: points.collect::<Result<_, Error>>()? })
    });
    series.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_is_read_and_nothing_else() {
        let body = br#"{"status":"success","data":{"resultType":"matrix","result":[
            {"metric":{"a":"b"},"values":[[1.5,"2"],[2,"NaN"]]}]}}"#;
        let series = decode(body).unwrap();
        assert_eq!(series[0].labels["a"], "b");
        assert_eq!(series[0].points[0], (1_500, 2.0));
        assert!(series[0].points[1].1.is_nan());
        for body in [
            r#"{"data":{"resultType":"vector","result":[]}}"#,
            r#"{"data":{"resultType":"matrix","result":[]},"isPartial":true}"#,
            r#"{"data":{"resultType":"matrix","result":[{"values":[[1,"x"]]}]}}"#,
            "{}",
        ] {
            assert!(decode(body.as_bytes()).is_err(), "{body}");
        }
    }
}
