//! Reloads the configuration file when it changes.

use super::file::{Config, ConfigError, text_hash};
use super::window::{self, counter_query};
use crate::prometheus::Client as Prometheus;
use crate::promql::query::PodQueries;
use crate::reload::Reloadable;
use crate::serve::ForwardTargets;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The current configuration, part by part: the last valid one of the file. Cheap to clone.
#[derive(Clone)]
pub struct LiveConfig {
    /// The queries of pod metrics.
    pub pod_queries: Reloadable<PodQueries>,
    /// Those of the file, before their window follows Prometheus.
    read_queries: Arc<PodQueries>,
    /// Whether the window of counters' rates follows Prometheus.
    auto_window: Reloadable<bool>,
    /// The window by Prometheus's scrape intervals, if it tells.
    window: Reloadable<Option<Duration>>,
    /// The adapters that requests for unknown metrics are forwarded to.
    pub forward: Reloadable<ForwardTargets>,
    /// Why the file can't be reloaded, if it can't.
    pub error: Reloadable<Option<String>>,
    /// The hash of the text that was read at the start.
    text_hash: u64,
    /// Whether no field of the configuration has a value.
    is_empty: bool,
}

/// The time between two reads of the file. The volume of a ConfigMap changes by a symbolic link,
/// of which notifications of the file itself say nothing.
const RELOAD_INTERVAL: Duration = Duration::from_millis(500);
/// The time between two reads of Prometheus's scrape intervals.
const WINDOW_INTERVAL: Duration = Duration::from_secs(60);
/// How long a changed file must stay as it is: a part of one that is being written may be valid.
const SETTLE_TIME: Duration = Duration::from_millis(200);

impl LiveConfig {
    /// A configuration that was not reloaded yet.
    pub fn new(config: &Config) -> Self {
        Self {
            pod_queries: Reloadable::new(config.pod_queries.clone()),
            read_queries: config.pod_queries.clone(),
            auto_window: Reloadable::new(config.auto_window),
            window: Reloadable::default(),
            forward: Reloadable::new(config.forward.clone()),
            error: Reloadable::default(),
            text_hash: config.text_hash,
            is_empty: config.is_empty,
        }
    }

    /// Reloads a file when it changes, for ever. `reloaded` is called after each attempt.
    pub async fn run_reloader(
        mut self,
        path: PathBuf,
        reloaded: impl Fn(Result<&Config, &ConfigError>),
    ) {
        // Not what the file has by now: it may have changed since.
        let mut seen = Some(self.text_hash);
        let hash = async || tokio::fs::read(&path).await.ok().map(|text| text_hash(&text));
        loop {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            self.follow_window();
            let now = hash().await;
            if now == seen {
                continue;
            }
            tokio::time::sleep(SETTLE_TIME).await;
            if hash().await == now {
                seen = now;
                self.reload(&path, &reloaded);
            }
        }
    }

    /// Asks Prometheus for its scrape intervals from time to time, for ever, where the window of counters follows
    /// them.
    pub async fn run_window(self, prometheus: Prometheus) {
        loop {
            if *self.auto_window.load() {
                match window::of(&prometheus).await {
                    Ok(window) => self.window.replace(window),
                    Err(error) => {
                        tracing::debug!(
                            error = error.to_string(),
                            "Failed to read Prometheus's scrape intervals"
                        )
                    }
                }
            }
            tokio::time::sleep(WINDOW_INTERVAL).await;
        }
    }

    /// Changes the query of counters to the window that Prometheus's scrape intervals ask for.
    fn follow_window(&self) {
        let counter = match (*self.auto_window.load(), *self.window.load()) {
            (true, Some(window)) => counter_query(window),
            _ => self.read_queries.counter.clone(),
        };
        if self.pod_queries.load().counter != counter {
            tracing::info!(window = ?self.window.load(), "Changed the window of counters");
            self.pod_queries
                .replace(PodQueries { counter, ..PodQueries::clone(&self.read_queries) });
        }
    }

    fn reload(&mut self, path: &Path, reloaded: &impl Fn(Result<&Config, &ConfigError>)) {
        let read = Config::read(path).and_then(|config| match config.is_empty && !self.is_empty {
            true => Err(ConfigError::Emptied { path: path.to_owned() }),
            false => Ok(config),
        });
        match read {
            Ok(config) => {
                self.is_empty = config.is_empty;
                self.read_queries = config.pod_queries.clone();
                self.auto_window.replace(config.auto_window);
                self.pod_queries.replace(config.pod_queries.clone());
                self.follow_window();
                self.forward.replace(config.forward.clone());
                reloaded(Ok(&config));
                // Health reports the error until every part has the new configuration.
                self.error.replace(None);
                tracing::info!(file = %path.display(), "Reloaded configuration");
            }
            Err(error) => {
                self.error.replace(Some(error.to_string()));
                tracing::error!(
                    error = error.to_string(),
                    "Failed to reload configuration, keeping the previous one"
                );
                reloaded(Err(&error));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a file with rules, has its reloader see each of these texts for 3 s, and returns the pod label of then.
    async fn label_after(texts: &[&str]) -> (String, Option<String>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "podMetrics: {podLabel: before}\n").unwrap();
        let live = LiveConfig::new(&Config::read(file.path()).unwrap());
        let reloader = live.clone().run_reloader(file.path().to_owned(), |_| {});
        let written = async {
            for text in texts {
                std::fs::write(file.path(), text).unwrap();
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
        };
        tokio::select! {
            () = reloader => unreachable!("it runs for ever"),
            () = written => {}
        }
        (live.pod_queries.load().pod_label.clone(), (*live.error.load()).clone())
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_has_become_empty_does_not_replace_a_configuration() {
        for empty in ["", "# nothing\n", "{}\n"] {
            let (label, error) = label_after(&[empty]).await;
            assert_eq!(label, "before", "{empty:?}");
            assert!(error.is_some_and(|error| error.contains("nothing in it")), "{empty:?}");
            let (label, error) = label_after(&[empty, "podMetrics: {podLabel: after}\n"]).await;
            assert_eq!((&*label, error), ("after", None));
        }
        // The defaults, in so many words.
        assert_eq!(label_after(&["podMetrics: {}\n"]).await, ("pod".to_owned(), None));
    }

    #[tokio::test(start_paused = true)]
    async fn the_window_of_counters_follows_prometheus_where_the_file_says_so() {
        let minute = Duration::from_secs(60);
        for (text, follows) in [
            ("podMetrics: {counterWindow: auto}\n", true),
            ("podMetrics: {counterWindow: 2m}\n", false),
            ("podMetrics: {}\n", false),
        ] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), text).unwrap();
            let live = LiveConfig::new(&Config::read(file.path()).unwrap());
            live.window.replace(Some(minute));
            let reloader = live.clone().run_reloader(file.path().to_owned(), |_| {});
            let later = tokio::time::sleep(2 * RELOAD_INTERVAL);
            tokio::select! {
                () = reloader => unreachable!("it runs for ever"),
                () = later => {}
            }
            let queries = live.pod_queries.load();
            assert_eq!(queries.counter == counter_query(minute), follows, "{text}");
            assert_eq!(queries.gauge, Config::default().pod_queries.gauge);
        }
        let reloaded = "podMetrics: {counterWindow: auto, podLabel: after}\n";
        assert_eq!(label_after(&[reloaded]).await, ("after".to_owned(), None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_being_written_is_reloaded_once_it_is_complete() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "podMetrics: {podLabel: before}\n").unwrap();
        let live = LiveConfig::new(&Config::read(file.path()).unwrap());
        let (sent, mut reloads) = tokio::sync::mpsc::unbounded_channel();
        let reloaded = move |taken: Result<&Config, &ConfigError>| {
            sent.send(taken.unwrap().pod_queries.pod_label.clone()).unwrap();
        };
        let written = async {
            // Between the reads of the reloader. Each is valid.
            tokio::time::sleep(RELOAD_INTERVAL / 10).await;
            for lines in 1..40 {
                let text = format!("podMetrics:\n  podLabel: after-{lines}\n");
                std::fs::write(file.path(), text).unwrap();
                tokio::time::sleep(RELOAD_INTERVAL / 5).await;
            }
        };
        let reloader = live.run_reloader(file.path().to_owned(), reloaded);
        tokio::select! {
            () = reloader => unreachable!("it runs for ever"),
            () = async { written.await; tokio::time::sleep(4 * RELOAD_INTERVAL).await } => {}
        }
        assert_eq!(reloads.recv().await.as_deref(), Some("after-39"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_between_the_first_read_and_the_start_of_the_reloader_is_not_lost() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "podMetrics: {podLabel: before}\n").unwrap();
        let live = LiveConfig::new(&Config::read(file.path()).unwrap());
        std::fs::write(file.path(), "podMetrics: {podLabel: after}\n").unwrap();
        let (sent, mut reloads) = tokio::sync::mpsc::unbounded_channel();
        let reloaded =
            move |taken: Result<&Config, &ConfigError>| sent.send(taken.is_ok()).unwrap();
        let reloader = live.clone().run_reloader(file.path().to_owned(), reloaded);
        tokio::select! {
            () = reloader => unreachable!("it runs for ever"),
            reload = tokio::time::timeout(10 * RELOAD_INTERVAL, reloads.recv()) => {
                assert_eq!(reload, Ok(Some(true)));
            }
        }
        assert_eq!(live.pod_queries.load().pod_label, "after");
    }
}
