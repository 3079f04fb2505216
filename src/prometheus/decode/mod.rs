//! Decoding of the responses of Prometheus's HTTP API.

mod envelope;
mod metadata;
mod query;
mod range;
mod series;
mod status;

pub use envelope::Label;
pub use metadata::{MetricKinds, metric_kinds, target_kinds};
pub use query::{InvalidSample, ResultType, Series, read_query_response};
pub use range::{RangeSeries, decode_matrix};
pub use series::{SeriesSchema, decode_series_schemas};
pub use status::{formatted, status};

#[cfg(test)]
mod tests {
    use super::envelope::MAX_LABELS;
    use super::*;
    use crate::prometheus::Error;
    use crate::time::UnixMillis;

    type Read = (Vec<(String, String)>, Result<f64, InvalidSample>, UnixMillis);

    fn read(body: &[u8]) -> Result<(ResultType, Vec<Read>), Error> {
        let mut all = Vec::new();
        let own = |(name, value): &Label<'_>| (name.to_string(), value.to_string());
        let kind = read_query_response(body, |series| {
            all.push((series.labels.iter().map(own).collect(), series.value, series.time));
        })?;
        Ok((kind, all))
    }

    #[test]
    fn a_vector_is_decoded_and_nan_is_no_valid_sample() {
        let body = br#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"pod":"a","n\"x":"\u00e9"},"value":[1700000000.5,"12.5"]},
            {"metric":{"pod":"b"},"value":[1700000000,"NaN"]},
            {"metric":{"pod":"c"},"value":[1700000000,"+Inf"]},
            {"metric":{"pod":"d"},"histogram":[1700000000,{"count":"1"}]},
            {"metric":{},"value":[1700000000,"-1e3"]}]}}"#;
        let (kind, series) = read(body).unwrap();
        assert_eq!((kind, series.len()), (ResultType::Vector, 5));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let labels = vec![pair("pod", "a"), pair("n\"x", "\u{e9}")];
        assert_eq!(series[0], (labels, Ok(12.5), 1_700_000_000_500));
        assert_eq!(series[1].1, Err(InvalidSample::NotFinite));
        assert_eq!(series[2].1, Err(InvalidSample::NotFinite));
        assert_eq!(series[3].1, Err(InvalidSample::Histogram));
        assert_eq!(series[4], (Vec::new(), Ok(-1000.0), 1_700_000_000_000));
    }

    #[test]
    fn series_with_the_same_label_names_have_one_schema() {
        let body = br#"{"status":"success","data":[
            {"__name__":"up","job":"a","pod":"x"},{"__name__":"up","job":"b","pod":"y"},
            {"__name__":"up","job":"c"}]}"#;
        let schemas = decode_series_schemas(body).unwrap();
        assert_eq!(schemas.len(), 2);
        assert_eq!(
            (schemas[0].name.as_str(), schemas[0].labels.join(",")),
            ("up", "job,pod".to_owned())
        );
    }

    #[test]
    fn small_items_of_a_response_are_not_kept_by_the_million() {
        let many = |item: &str, count: usize| vec![item; count].join(",");
        let vector = |more: &str| {
            format!(r#"{{{more}"data":{{"resultType":"vector","result":[]}}}}"#).into_bytes()
        };
        let warnings = format!(r#""warnings":[{},"No Store"],"#, many(r#""PromQL info""#, 9));
        let error = read_query_response(&vector(&warnings), |_| ()).unwrap_err();
        assert_eq!(error, Error::Partial("No Store".to_owned()));
        assert!(read_query_response(&vector(r#""warnings":null,"#), |_| ()).is_ok());
        let labels = |count| format!(r#"{{"data":[{{{}}}]}}"#, many(r#""":"""#, count));
        assert!(decode_series_schemas(labels(MAX_LABELS).as_bytes()).is_ok());
        let error =
            decode_series_schemas(labels(MAX_LABELS + 1).as_bytes()).unwrap_err().to_string();
        assert!(error.contains("more than 1000 labels"), "{error}");
        let series: Vec<String> = (0..1_000_000).map(|n| format!(r#"{{"{n}":""}}"#)).collect();
        let listing = format!(r#"{{"data":[{}]}}"#, series.join(","));
        let error = decode_series_schemas(listing.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("the names of its series take more than"), "{error}");
    }

    #[test]
    fn the_types_are_those_of_all_targets() {
        let kinds = |counter, other, entries| MetricKinds { counter, other, entries };
        for (data, expected) in [
            (
                r#"{"x":[],"y":[{"type":"gauge","help":""},{"type":"counter"}],"z":[]}"#,
                kinds(true, true, 2),
            ),
            (r#"{"x":[{"type":"unknown"},{"type":"counter"},{}]}"#, kinds(true, false, 3)),
            (r#"{"x":[{"type":"histogram"}]}"#, kinds(false, true, 1)),
            ("{}", kinds(false, false, 0)),
        ] {
            let body = format!(r#"{{"status":"success","data":{data}}}"#);
            assert_eq!(metric_kinds(body.as_bytes()), Ok(expected), "{data}");
        }
        let body = br#"{"data":[{"target":{"pod":"a"},"type":"gauge","help":"h","unit":""}]}"#;
        assert_eq!(target_kinds(body), Ok(kinds(false, true, 1)));
        let partial = metric_kinds(br#"{"data":{},"warnings":["a store is down"]}"#);
        assert_eq!(partial, Err(Error::Partial("a store is down".to_owned())));
        assert!(metric_kinds(br#"{"data":[]}"#).is_err());
        assert!(target_kinds(br#"{"data":{}}"#).is_err());
    }

    #[test]
    fn a_response_whose_status_is_an_error_is_an_error() {
        let queried = r#"{"resultType":"vector","result":[]}"#;
        for (status, succeeded) in
            [(r#""success""#, true), (r#""error""#, false), (r#""""#, false), ("null", false)]
        {
            let of = |data: &str| {
                let error = r#""errorType":"timeout","error":"query timed out""#;
                format!(r#"{{"data":{data},"status":{status},{error}}}"#).into_bytes()
            };
            let results = [
                read(&of(queried)).err(),
                decode_series_schemas(&of("[]")).err(),
                metric_kinds(&of("{}")).err(),
            ];
            for error in results {
                let failed = matches!(error, Some(Error::InvalidResponse(_)));
                assert_eq!(failed, !succeeded, "{status}: {error:?}");
            }
        }
    }

    #[test]
    fn a_scalar_is_a_series_without_labels() {
        let scalar = br#"{"data":{"resultType":"scalar","result":[1.5,"2"]}}"#;
        assert_eq!(read(scalar), Ok((ResultType::Scalar, vec![(Vec::new(), Ok(2.0), 1500)])));
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
