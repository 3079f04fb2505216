//! Prometheus's text format, which is older than OpenMetrics.

use std::collections::HashMap;

/// OpenMetrics as the older text format. There, the metadata of a counter has the name of its
/// samples, and there is no UNIT, no type `info` and no EOF.
pub fn as_prometheus_text(text: &str) -> String {
    // HELP comes before TYPE, which tells the suffix of both.
    let suffixes: HashMap<&str, &str> = text.lines().filter_map(suffix).collect();
    let mut written = String::with_capacity(text.len());
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF" | "UNIT"), ..) => {}
            (Some("#"), Some(word), Some(name), Some(rest)) => {
                let suffix = suffixes.get(name).copied().unwrap_or_default();
                let rest = if rest == "info" { "gauge" } else { rest };
                written.extend(["# ", word, " ", name, suffix, " ", rest, "\n"]);
            }
            _ => written.extend([line, "\n"]),
        }
    }
    written
}

/// The metric of a TYPE line, and the suffix of its samples if they have one.
fn suffix(line: &str) -> Option<(&str, &'static str)> {
    let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
    match kind {
        "counter" => Some((name, "_total")),
        "info" => Some((name, "_info")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::as_prometheus_text;
    use crate::telemetry::Metrics;
    use std::time::Duration;
    use tokio::time::Instant;

    #[test]
    fn the_older_text_names_metrics_by_their_samples_and_has_nothing_new() {
        let metrics = Metrics::default();
        metrics.responded(200);
        let text = metrics.prometheus_text();
        assert!(text.contains("# TYPE plimsoll_http_requests_total counter\nplimsoll_http_requests_total{code=\"200\"} 1\n"), "{text}");
        assert!(text.contains("# TYPE plimsoll_build_info gauge\nplimsoll_build_info{"), "{text}");
        assert!(!text.contains("# EOF") && !text.contains("# UNIT"), "{text}");
    }

    /// An alert compares the time of the last write: nothing is later or earlier than NaN.
    #[test]
    fn a_scaling_history_that_is_never_written_has_no_time() {
        let metrics = Metrics::default();
        let name = "plimsoll_scaling_history_last_write_timestamp_seconds";
        assert!(metrics.prometheus_text().contains(&format!("\n{name} 0")));
        metrics.history_is_not_written();
        assert!(metrics.prometheus_text().contains(&format!("\n{name} NaN\n")));
    }

    #[test]
    fn the_older_text_takes_no_longer_per_line_where_there_are_many() {
        let family = |at: usize| {
            format!("# HELP m{at} Some.\n# TYPE m{at} gauge\nm{at}{{name=\"some\"}} 1\n")
        };
        let text: String = (0..10_000).map(family).collect();
        let started = Instant::now();
        assert_eq!(as_prometheus_text(&text), text);
        // A search of the whole text for each line takes more than ten seconds, one pass milliseconds.
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    }
}
