//! Prometheus's text format, which is older than OpenMetrics.

use std::fmt::{self, Write};

/// OpenMetrics as the older text format, written line by line: of a thousand Autoscalers the text has more than a MiB.
/// In the older one, the metadata of a counter has the name of its samples, and there is no UNIT, no type `info` and no
/// EOF.
#[derive(Default)]
pub struct PrometheusText {
    text: String,
    /// The line that is not complete.
    line: String,
    /// The HELP of a metric, until its TYPE tells the suffix of both.
    help: String,
}

impl PrometheusText {
    /// The text of all complete lines.
    pub fn into_text(self) -> String {
        self.text
    }

    fn end_line(&mut self) {
        let Self { text, line, help } = self;
        let words = line.strip_prefix("# ").map(|words| words.splitn(3, ' '));
        let [word, name, rest] =
            words.map_or([""; 3], |mut words| [(); 3].map(|()| words.next().unwrap_or_default()));
        match word {
            "EOF" | "UNIT" => {}
            "HELP" => std::mem::swap(line, help),
            "TYPE" => {
                let (suffix, kind) = match rest {
                    "counter" => ("_total", rest),
                    "info" => ("_info", "gauge"),
                    _ => ("", rest),
                };
                let of_name = help.strip_prefix("# HELP ").and_then(|of| of.strip_prefix(name));
                if let Some(what) = of_name.filter(|what| what.starts_with(' ')) {
                    text.extend(["# HELP ", name, suffix, what, "\n"]);
                }
                text.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
                help.clear();
            }
            _ => text.extend([line.as_str(), "\n"]),
        }
        line.clear();
    }
}

impl Write for PrometheusText {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        for part in part.split_inclusive('\n') {
            match part.strip_suffix('\n') {
                Some(end) => {
                    self.line.push_str(end);
                    self.end_line();
                }
                None => self.line.push_str(part),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::PrometheusText;
    use crate::telemetry::Metrics;
    use std::fmt::Write;

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
    fn a_text_is_the_same_in_whatever_parts_it_is_written() {
        let openmetrics = "# HELP a What is 1.\n# TYPE a counter\na_total{b=\"# TYPE\"} 1\n\
                           # HELP c Of info.\n# TYPE c info\n# UNIT c seconds\nc_info 1\n\
                           # TYPE d gauge\nd 1\n# EOF\n";
        let older = "# HELP a_total What is 1.\n# TYPE a_total counter\na_total{b=\"# TYPE\"} 1\n\
                     # HELP c_info Of info.\n# TYPE c_info gauge\nc_info 1\n\
                     # TYPE d gauge\nd 1\n";
        for length in [1, 7, openmetrics.len()] {
            let mut text = PrometheusText::default();
            for part in openmetrics.as_bytes().chunks(length) {
                text.write_str(std::str::from_utf8(part).unwrap()).unwrap();
            }
            assert_eq!(text.into_text(), older, "{length}");
        }
    }
}
