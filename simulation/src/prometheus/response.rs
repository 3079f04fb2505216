//! The HTTP API.

use super::error::EvaluateError;
use super::eval::Sample;
use super::labels::Labels;
use super::storage::Storage;
use super::{Prometheus, Value, compile, number};
use promql_parser::parser::Expr;
use serde_json::json;
use std::collections::BTreeSet;
use std::fmt::Write;

/// What a request that succeeds is answered with.
struct Answer {
    /// JSON.
    data: String,
    /// The member that stands beside the data, with a comma in front; or nothing.
    warnings: &'static str,
}

impl Answer {
    fn complete(data: String) -> Self {
        Self { data, warnings: "" }
    }
}

/// Answers a request.
pub(super) fn handle(
    prometheus: &mut Prometheus,
    path: &str,
    form: &[(String, String)],
    now: i64,
) -> (u16, String) {
    let answer = match path.trim_start_matches('/') {
        "api/v1/query" => query(prometheus, form, now),
        "api/v1/series" => series(prometheus, form).map(Answer::complete),
        "api/v1/metadata" => Ok(Answer::complete(metadata(prometheus, form))),
        "api/v1/format_query" => format_query(form).map(Answer::complete),
        _ => return (404, "404 page not found\n".to_owned()),
    };
    match answer {
        Ok(Answer { data, warnings }) => {
            (200, format!(r#"{{"status":"success","data":{data}{warnings}}}"#))
        }
        Err(error) => {
            let (status, kind) = match error {
                EvaluateError::Refused(_) => (400, "bad_data"),
                EvaluateError::Failed(_) | EvaluateError::Unsupported(_) => (422, "execution"),
            };
            let body = json!({"status": "error", "errorType": kind, "error": error.to_string()});
            (status, body.to_string())
        }
    }
}

/// The first value of a parameter, if it is not empty.
fn parameter<'a>(form: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let found = form.iter().find(|(own, _)| own == name);
    found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
}

fn query(
    prometheus: &mut Prometheus,
    form: &[(String, String)],
    now: i64,
) -> Result<Answer, EvaluateError> {
    let at = time(form, "time")?.unwrap_or(now);
    let limit: usize = match parameter(form, "limit") {
        None => 0,
        Some(limit) => limit.parse().map_err(|_| refused("limit", limit))?,
    };
    let stamp = number::seconds(at);
    match prometheus.value(parameter(form, "query").unwrap_or_default(), at)? {
        Value::Scalar(value) => {
            // Of another form than those of series.
            let value = number::decimal(value);
            let data = format!(r#"{{"resultType":"scalar","result":[{stamp},"{value}"]}}"#);
            Ok(Answer::complete(data))
        }
        Value::Vector(mut samples) => {
            let truncated = limit > 0 && samples.len() > limit;
            if truncated {
                samples.truncate(limit);
            }
            let mut data = r#"{"resultType":"vector","result":["#.to_owned();
            for (n, Sample { labels, value }) in samples.iter().enumerate() {
                data.push_str(if n == 0 { r#"{"metric":"# } else { r#",{"metric":"# });
                write_labels(&mut data, labels);
                let value = number::value(*value);
                write!(data, r#","value":[{stamp},"{value}"]}}"#).expect("a String takes all");
            }
            data.push_str("]}");
            let truncation = r#","warnings":["results truncated due to limit"]"#;
            Ok(Answer { data, warnings: if truncated { truncation } else { "" } })
        }
    }
}

fn write_labels(text: &mut String, labels: &Labels) {
    text.push('{');
    for (n, (name, value)) in labels.iter().enumerate() {
        let comma = if n == 0 { "" } else { "," };
        let (name, value) = (json!(name), json!(value));
        write!(text, "{comma}{name}:{value}").expect("a String takes all");
    }
    text.push('}');
}

/// A time in Unix ms: seconds, or RFC 3339.
fn time(form: &[(String, String)], name: &str) -> Result<Option<i64>, EvaluateError> {
    let Some(text) = parameter(form, name) else { return Ok(None) };
    if let Ok(seconds) = text.parse::<f64>()
        && seconds.is_finite()
    {
        // Rounded, then cut, as Prometheus does it.
        let fraction = (seconds.fract() * 1000.0).round() / 1000.0;
        #[expect(clippy::cast_possible_truncation, reason = "as Go converts it")]
        return Ok(Some(seconds.trunc() as i64 * 1000 + (fraction * 1e9) as i64 / 1_000_000));
    }
    let parsed: Result<jiff::Timestamp, _> = text.parse();
    parsed.map(|time| Some(time.as_millisecond())).map_err(|_| refused(name, text))
}

fn refused(name: &str, value: &str) -> EvaluateError {
    EvaluateError::Refused(format!("invalid parameter {name:?}: cannot parse {value:?}"))
}

fn series(prometheus: &Prometheus, form: &[(String, String)]) -> Result<String, EvaluateError> {
    let start = time(form, "start")?.unwrap_or(i64::MIN);
    let end = time(form, "end")?.unwrap_or(i64::MAX);
    let selectors: Vec<&str> =
        form.iter().filter(|(name, _)| name == "match[]").map(|(_, value)| &**value).collect();
    if selectors.is_empty() {
        return Err(EvaluateError::Refused("no match[] parameter provided".to_owned()));
    }
    let mut found: Vec<Labels> = Vec::new();
    for selector in &selectors {
        let Expr::VectorSelector(selector) = compile::parse(selector)? else {
            return Err(EvaluateError::Refused("expected a selector of series".to_owned()));
        };
        let selected = prometheus.storage.select(&compile::matchers(&selector)?);
        let there = selected.into_iter().filter(|series| Storage::spans(series, start, end));
        found.extend(there.map(|series| series.labels.clone()));
    }
    if selectors.len() > 1 {
        found = found.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
    }
    let mut data = "[".to_owned();
    for (n, labels) in found.iter().enumerate() {
        if n > 0 {
            data.push(',');
        }
        write_labels(&mut data, labels);
    }
    data.push(']');
    Ok(data)
}

fn metadata(prometheus: &Prometheus, form: &[(String, String)]) -> String {
    let wanted = parameter(form, "metric");
    let all = prometheus.types.iter();
    let found = all.filter(|(metric, _)| wanted.is_none_or(|wanted| wanted == *metric));
    let entry = |(metric, of): (&String, &String)| {
        (metric.clone(), json!([{"type": of, "unit": "", "help": ""}]))
    };
    serde_json::Value::Object(found.map(entry).collect()).to_string()
}

fn format_query(form: &[(String, String)]) -> Result<String, EvaluateError> {
    let expr = compile::parse(parameter(form, "query").unwrap_or_default())?;
    Ok(json!(expr.prettify()).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn form(parameters: &[(&str, &str)]) -> Vec<(String, String)> {
        parameters.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect()
    }

    fn prometheus() -> Prometheus {
        let mut prometheus = Prometheus::new(Duration::from_secs(900));
        for (pod, value) in [("p-1", 1.5), ("p-2", 2.0), ("q\"r", 1e-9)] {
            let labels =
                Labels::new([("__name__", "x_total"), ("pod", pod), ("namespace", "shop")]);
            for scrape in 0..30 {
                prometheus.append(&labels, 1_000_000 + scrape * 5_000, value * scrape as f64);
            }
        }
        prometheus.set_type("x_total", "counter");
        prometheus
    }

    #[test]
    fn responses_are_those_of_a_real_prometheus() {
        let mut prometheus = prometheus();
        let mut ask = |path: &str, parameters: &[(&str, &str)]| {
            prometheus.handle(path, &form(parameters), 1_145_250)
        };
        let query = r#"sum by (namespace,pod) (rate(x_total{namespace=~"shop|bank",pod!=""}[1m]))"#;
        let rows = |from: &str| {
            let row = |pod: &str, value: &str| {
                format!(
                    r#"{{"metric":{{"namespace":"shop","pod":"{pod}"}},"value":[{from},"{value}"]}}"#
                )
            };
            [
                row("p-1", "0.3"),
                row("p-2", "0.39999999999999997"),
                row("q\\\"r", "1.9999999999999998e-10"),
            ]
            .join(",")
        };
        let expected = format!(
            r#"{{"status":"success","data":{{"resultType":"vector","result":[{}]}}}}"#,
            rows("1145")
        );
        let (status, body) = ask("/api/v1/query", &[("query", query), ("time", "1145")]);
        assert_eq!((status, body), (200, expected));
        let (_, now) = ask("api/v1/query", &[("query", "vector(1)")]);
        assert!(now.contains(r#"[{"metric":{},"value":[1145.250,"1"]}]"#), "{now}");
        let (_, limited) = ask("api/v1/query", &[("query", "x_total"), ("limit", "2")]);
        assert!(
            limited.ends_with(r#"]},"warnings":["results truncated due to limit"]}"#),
            "{limited}"
        );
        let (_, series) = ask("api/v1/series", &[("match[]", r#"{pod="p-1"}"#), ("start", "1145")]);
        let one = r#"{"__name__":"x_total","namespace":"shop","pod":"p-1"}"#;
        assert_eq!(series, format!(r#"{{"status":"success","data":[{one}]}}"#));
        let (_, none) = ask("api/v1/series", &[("match[]", "x_total"), ("start", "1146")]);
        assert_eq!(none, r#"{"status":"success","data":[]}"#);
        let (_, types) =
            ask("api/v1/metadata", &[("metric", "x_total"), ("limit_per_metric", "1")]);
        assert!(types.contains(r#""x_total":[{"#) && types.contains(r#""type":"counter""#));
        for (query, status) in
            [("sum(", 400), ("x_total * on (namespace) x_total", 422), ("sort(x_total)", 422)]
        {
            let (code, body) = ask("api/v1/query", &[("query", query)]);
            assert_eq!(code, status, "{body}");
        }
        let (_, loud) = ask("api/v1/query", &[("query", "info(x_total)")]);
        assert!(loud.contains(r#""error":"#), "{loud}");
        let (_, loud) = ask("api/v1/query", &[("query", "sort(x_total)")]);
        assert!(loud.contains(r#""the simulation does not evaluate"#), "{loud}");
        assert_eq!(ask("api/v1/labels", &[]).0, 404);
    }
}
