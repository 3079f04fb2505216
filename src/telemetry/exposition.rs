//! The exposition formats: OpenMetrics, and the older text format of Prometheus.

use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};

/// A response with metrics in OpenMetrics, or in the older text format for a client that accepts
/// only that.
pub fn respond(openmetrics: String, headers: &HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let (kind, text) = match accept.is_some_and(accepts_only_text) {
        false => ("application/openmetrics-text; version=1.0.0; charset=utf-8", openmetrics),
        true => ("text/plain; version=0.0.4; charset=utf-8", as_prometheus_text(&openmetrics)),
    };
    ([(header::CONTENT_TYPE, HeaderValue::from_static(kind))], text).into_response()
}

/// Whether a client accepts plain text, and not OpenMetrics.
fn accepts_only_text(accept: &str) -> bool {
    let accepts = |kind: &str| accept.split(',').any(|one| one.trim().starts_with(kind));
    accepts("text/") && !accepts("application/") && !accepts("*/*")
}

/// OpenMetrics as the older text format. There, the metadata of a counter has the name of its
/// samples, and there is no UNIT, no type `info` and no EOF.
fn as_prometheus_text(text: &str) -> String {
    let suffix = |name: &str| {
        let with = |suffix: &str| text.contains(&format!("# TYPE {name} {suffix}\n"));
        if with("counter") {
            "_total"
        } else if with("info") {
            "_info"
        } else {
            ""
        }
    };
    let mut written = String::with_capacity(text.len());
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF" | "UNIT"), ..) => {}
            (Some("#"), Some(word), Some(name), Some(rest)) => {
                let (suffix, rest) = (suffix(name), if rest == "info" { "gauge" } else { rest });
                written.extend(["# ", word, " ", name, suffix, " ", rest, "\n"]);
            }
            _ => written.extend([line, "\n"]),
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Metrics;

    #[test]
    fn only_a_client_without_openmetrics_is_given_the_older_text() {
        assert!(accepts_only_text("text/plain;version=0.0.4"));
        assert!(!accepts_only_text("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"));
        assert!(!accepts_only_text("*/*") && !accepts_only_text("text/plain, */*"));
        let metrics = Metrics::default();
        metrics.answered(200);
        let text = as_prometheus_text(&metrics.openmetrics());
        assert!(text.contains("# TYPE plimsoll_http_requests_total counter\nplimsoll_http_requests_total{code=\"200\"} 1\n"), "{text}");
        assert!(text.contains("# TYPE plimsoll_build_info gauge\nplimsoll_build_info{"), "{text}");
        assert!(!text.contains("# EOF") && !text.contains("# UNIT"), "{text}");
    }
}
