//! The window of counters' rates, by how often Prometheus scrapes.

use super::rules::prometheus_duration;
use crate::blocking;
use crate::prometheus::{Client as Prometheus, Error, configuration, receives};
use crate::promql::template::Template;
use serde::Deserialize;
use std::time::Duration;

/// The default, and the longest that follows from scrape intervals: other than that of the default, a window
/// only gets shorter.
pub const LONGEST: Duration = Duration::from_secs(120);
/// The scrapes that a window holds: a rate is there while one is missing and another late.
const SCRAPES: u32 = 4;

/// The query of counters: their rate per second over a window.
pub fn counter_query(window: Duration) -> Template {
    let window = match window.as_millis() {
        millis if millis.is_multiple_of(60_000) => format!("{}m", millis / 60_000),
        millis if millis.is_multiple_of(1_000) => format!("{}s", millis / 1_000),
        millis => format!("{millis}ms"),
    };
    let text = format!("sum by (<<.GroupBy>>) (rate(<<.Series>>{{<<.LabelMatchers>>}}[{window}]))");
    Template::parse(&text).expect("the default is a template")
}

/// The parts of Prometheus's configuration that say how often it scrapes.
#[derive(Deserialize)]
struct Scraping {
    #[serde(default)]
    scrape_configs: Vec<Job>,
    /// Files with more jobs, which the API does not show.
    #[serde(default)]
    scrape_config_files: Vec<String>,
}

#[derive(Deserialize)]
struct Job {
    /// Prometheus shows it where it is the global one, too.
    scrape_interval: Option<String>,
    #[serde(default)]
    metrics_path: String,
}

impl Job {
    /// How often its series have samples; none for those that another server has scraped.
    fn interval(&self) -> Option<Duration> {
        if self.metrics_path.ends_with("/federate") {
            return None;
        }
        let interval = prometheus_duration(self.scrape_interval.as_deref()?)?;
        (!interval.is_zero()).then_some(interval)
    }
}

/// The window that holds four scrapes of each job; none where the server does not tell, or takes series that it
/// did not scrape.
///
/// # Errors
/// If the server can't be asked.
pub async fn of(prometheus: &Prometheus) -> Result<Option<Duration>, Error> {
    let Some(text) = configuration(prometheus).await? else { return Ok(None) };
    match receives(prometheus).await? {
        // That of an operator may have megabytes.
        false => Ok(blocking::run(|| of_configuration(&text))),
        true => Ok(None),
    }
}

fn of_configuration(text: &str) -> Option<Duration> {
    // Relabelling may give a target an interval of its own.
    if text.contains("__scrape_interval__") {
        return None;
    }
    let scraping: Scraping = serde_saphyr::from_str(text).ok()?;
    if !scraping.scrape_config_files.is_empty() {
        return None;
    }
    let intervals: Option<Vec<Duration>> =
        scraping.scrape_configs.iter().map(Job::interval).collect();
    let longest = intervals?.into_iter().max()?;
    Some(LONGEST.min(longest * SCRAPES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    #[test]
    fn the_window_holds_four_scrapes_of_the_slowest_job_and_is_at_most_the_default() {
        let jobs = |intervals: &[&str]| {
            let job = |interval: &&str| {
                format!("- job_name: a\n  scrape_interval: {interval}\n  scheme: http\n")
            };
            let jobs: String = intervals.iter().map(job).collect();
            format!("global:\n  scrape_interval: 1m\nscrape_configs:\n{jobs}")
        };
        for (intervals, seconds) in [
            (vec!["15s"], Some(60)),
            (vec!["15s", "5s"], Some(60)),
            (vec!["1s"], Some(4)),
            (vec!["30s", "5s"], Some(120)),
            (vec!["15s", "5m"], Some(120)),
            (vec!["soon"], None),
            (vec![], None),
        ] {
            let window = of_configuration(&jobs(&intervals));
            assert_eq!(window, seconds.map(Duration::from_secs), "{intervals:?}");
        }
        let more = jobs(&["5s"]) + "scrape_config_files: [more.yaml]\n";
        assert_eq!(of_configuration(&more), None);
        let federated = jobs(&["5s"]) + "  metrics_path: /federate\n";
        assert_eq!(of_configuration(&federated), None);
        assert_eq!(of_configuration("scrape_configs:\n- job_name: a\n"), None);
        assert_eq!(of_configuration(""), None);
    }

    #[tokio::test]
    async fn a_server_that_does_not_tell_or_takes_other_series_gives_no_window() {
        const YAML: &str = "scrape_configs:\\n- scrape_interval: 15s\\n";
        for (yaml, flag, seconds) in [
            (YAML, r#""web.enable-remote-write-receiver":"false""#, Some(60)),
            (YAML, r#""web.enable-remote-write-receiver":"true""#, None),
            (YAML, r#""web.enable-otlp-receiver":"true""#, None),
            (YAML, r#""enable-feature":"remote-write-receiver""#, None),
            ("", "", None),
        ] {
            let configuration = format!(r#"{{"status":"success","data":{{"yaml":"{yaml}"}}}}"#);
            let flags = format!(r#"{{"status":"success","data":{{{flag}}}}}"#);
            let answer = move |request: &str| match request.contains("status/config") {
                true => configuration.clone(),
                false => flags.clone(),
            };
            let (server, _) = fake::prometheus(answer).await;
            let window = of(&server).await.expect("an answer");
            assert_eq!(window, seconds.map(Duration::from_secs), "{yaml} {flag}");
        }
    }
}
