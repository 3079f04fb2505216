//! The configuration in use, reloaded when its file changes.

use super::file::{Config, ConfigError};
use crate::promql::query::PodQueries;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// The configuration in force; the last good one where the file has none.
#[derive(Clone)]
pub struct LiveConfig(Arc<Inner>);

struct Inner {
    current: RwLock<Arc<Config>>,
    /// What is wrong with the file now.
    fault: Mutex<Option<String>>,
}

/// How often the file is looked at. The volume of a ConfigMap changes by a
/// symbolic link, which notifications of the file itself would miss.
const LOOK: Duration = Duration::from_millis(500);

impl LiveConfig {
    /// This configuration, for now.
    pub fn new(config: Config) -> Self {
        let current = RwLock::new(Arc::new(config));
        Self(Arc::new(Inner { current, fault: Mutex::default() }))
    }

    /// The configuration in force.
    pub fn now(&self) -> Arc<Config> {
        self.0.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How metrics of pods are asked for now.
    pub fn pod_queries(&self) -> Arc<PodQueries> {
        self.now().pod_queries.clone()
    }

    /// Why the file could not be reloaded.
    pub fn fault(&self) -> Option<String> {
        self.0.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Follows a file for ever; `changed` is told of each try to take it up.
    pub async fn follow(self, path: PathBuf, changed: impl Fn(Result<&Config, &ConfigError>)) {
        let mut seen = tokio::fs::read(&path).await.ok();
        loop {
            tokio::time::sleep(LOOK).await;
            let now = tokio::fs::read(&path).await.ok();
            if now == seen {
                continue;
            }
            seen = now;
            self.take_up(&path, &changed);
        }
    }

    fn take_up(&self, path: &Path, changed: &impl Fn(Result<&Config, &ConfigError>)) {
        let mut fault = self.0.fault.lock().unwrap_or_else(PoisonError::into_inner);
        match Config::read(path) {
            Ok(config) => {
                *fault = None;
                let config = Arc::new(config);
                let mut current = self.0.current.write().unwrap_or_else(PoisonError::into_inner);
                *current = config.clone();
                drop(current);
                tracing::info!(file = %path.display(), "Reloaded the configuration");
                changed(Ok(&config));
            }
            Err(error) => {
                *fault = Some(error.to_string());
                tracing::error!(%error, "Failed to reload the configuration; the last good one stays in use");
                changed(Err(&error));
            }
        }
    }
}
