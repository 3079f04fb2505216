//! When checkpoints of the scaling history are loaded and saved: loaded at the start and when a
//! lease term begins, saved while this replica leads.

use super::checkpoint::{Checkpoint, CheckpointStore};
use super::state::AutoscalerState;
use crate::leader::FencingToken;
use crate::time::UnixMillis;
use crate::watch::AutoscalerRef;
use std::collections::HashMap;
use std::time::Duration;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

/// The checkpoints that were read, or why they could not be.
pub type Loaded = Result<Vec<(AutoscalerRef, Checkpoint)>, String>;

/// The state of loading and saving.
pub struct Checkpointer {
    /// None if checkpoints are disabled.
    store: Option<CheckpointStore>,
    /// The time between two saves.
    interval: Duration,
    /// The checkpoints that were saved last.
    saved: HashMap<AutoscalerRef, Checkpoint>,
    /// When to save next, and when the last save began.
    due: Instant,
    saved_at: Instant,
    /// The save in flight, if any, which returns the size in bytes if it succeeds.
    saving: JoinSet<Option<usize>>,
    /// The size of the last save in bytes, and whether it failed.
    bytes: usize,
    failed: bool,
    /// The load in flight, if any.
    loading: JoinSet<Loaded>,
    /// Whether the checkpoints of the previous terms have been loaded. They are not overwritten before.
    loaded: bool,
}

/// How soon checkpoints are saved after a change of a scale.
const SAVE_SOON: Duration = Duration::from_secs(2);
/// The size in bytes above which they are saved less often, and how soon then: each save writes all
/// of them, and every watcher of ConfigMaps receives them.
const LARGE: usize = 64 << 10;
const SAVE_LARGE: Duration = Duration::from_secs(30);
/// How long loading may take at the start, and when a term begins, before evaluations begin without
/// the scaling history.
const LOAD_AT_START: Duration = Duration::from_secs(15);
const LOAD: Duration = Duration::from_secs(3);

impl Checkpointer {
    /// Nothing is loaded yet.
    pub fn new(store: Option<CheckpointStore>, interval: Duration) -> Self {
        Self {
            store,
            interval,
            saved: HashMap::new(),
            due: Instant::now() + SAVE_SOON,
            saved_at: Instant::now(),
            saving: JoinSet::new(),
            bytes: 0,
            failed: false,
            loading: JoinSet::new(),
            loaded: false,
        }
    }

    /// Loads at the start, with retries for at most [`LOAD_AT_START`]. None if that failed, or
    /// checkpoints are disabled.
    pub async fn load_at_start(&self) -> Option<Vec<(AutoscalerRef, Checkpoint)>> {
        let store = self.store.clone()?;
        let (start, mut wait) = (Instant::now(), Duration::from_millis(100));
        loop {
            match store.load().await {
                Ok(all) => return Some(all),
                Err(error) if start.elapsed() > LOAD_AT_START => {
                    tracing::warn!(
                        error,
                        "Failed to read the scaling history, starting without it"
                    );
                    return None;
                }
                Err(_) => tokio::time::sleep(wait).await,
            }
            wait = (wait * 2).min(Duration::from_secs(2));
        }
    }

    /// Begins to load. Returns whether there is anything to load.
    pub fn start_loading(&mut self) -> bool {
        let Some(store) = self.store.clone() else { return false };
        // Only the result of the newest is of interest.
        self.loading = JoinSet::new();
        self.loading.spawn(async move {
            let late = |_| Err(format!("it took longer than {LOAD:?}"));
            tokio::time::timeout(LOAD, store.load()).await.unwrap_or_else(late)
        });
        true
    }

    /// Waits for the load in flight. Waits forever if there is none.
    pub async fn loading(&mut self) -> Loaded {
        let Some(loaded) = self.loading.join_next().await else {
            return std::future::pending().await;
        };
        loaded.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// Notes which checkpoints were loaded; none if that failed.
    pub fn set_loaded(&mut self, all: Option<HashMap<AutoscalerRef, Checkpoint>>) {
        self.loaded = all.is_some();
        if let Some(all) = all {
            self.saved = all;
        }
    }

    /// When [`save`](Self::save) is due.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Schedules the next save soon, because a scale was changed.
    pub fn bring_forward(&mut self) {
        let soon = (self.saved_at + self.save_soon()).max(Instant::now() + SAVE_SOON);
        self.due = self.due.min(soon);
    }

    /// Saves the checkpoints if this replica leads and they differ from those saved last. Those of
    /// the previous terms are loaded first.
    pub fn save(
        &mut self,
        token: Option<FencingToken>,
        current: impl FnOnce() -> HashMap<AutoscalerRef, Checkpoint>,
    ) {
        self.due = Instant::now() + self.interval.max(self.save_soon());
        let (Some(store), Some(token)) = (self.store.clone(), token) else { return };
        if !self.loaded {
            if self.loading.is_empty() {
                self.start_loading();
            }
            return;
        }
        if let Some(saved) = self.saving.try_join_next() {
            self.note_saved(saved);
        }
        if !self.saving.is_empty() {
            self.due = Instant::now() + SAVE_SOON;
            return;
        }
        let current = current();
        if current == self.saved && !self.failed {
            store.note_nothing_to_write();
            return;
        }
        let all =
            current.iter().map(|(autoscaler, one)| (autoscaler.clone(), one.clone())).collect();
        self.saved = current;
        self.saved_at = Instant::now();
        self.saving.spawn(async move { store.save(&token, all).await });
    }

    /// Waits for the save in flight.
    pub async fn finish_saving(&mut self) {
        if let Some(saved) = self.saving.join_next().await {
            self.note_saved(saved);
        }
    }

    /// How soon they are saved after a change of a scale.
    fn save_soon(&self) -> Duration {
        if self.bytes > LARGE { SAVE_LARGE } else { SAVE_SOON }
    }

    fn note_saved(&mut self, saved: Result<Option<usize>, JoinError>) {
        let bytes = saved.unwrap_or_else(|error| {
            tracing::error!(error = error.to_string(), "Failed to save the scaling history");
            None
        });
        self.failed = bytes.is_none();
        self.bytes = bytes.unwrap_or(self.bytes);
    }
}

/// The checkpoints of all autoscalers: those that are being evaluated, the others, and of what is not known yet.
pub fn all_checkpoints(
    running: &HashMap<AutoscalerRef, Option<Box<Checkpoint>>>,
    states: &HashMap<AutoscalerRef, Box<AutoscalerState>>,
    unknown: &HashMap<AutoscalerRef, (Checkpoint, Instant)>,
    now: UnixMillis,
    longest: i64,
) -> HashMap<AutoscalerRef, Checkpoint> {
    let unknown = unknown.iter().map(|(autoscaler, (one, _))| (autoscaler.clone(), one.clone()));
    let running = running.iter().filter_map(|(autoscaler, checkpoint)| {
        Some((autoscaler.clone(), (**checkpoint.as_ref()?).clone()))
    });
    let idle = states.iter().filter_map(|(autoscaler, state)| {
        Some((autoscaler.clone(), state.checkpoint(now, longest)?))
    });
    unknown.chain(running).chain(idle).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_history_is_saved_less_often() {
        let mut checkpointer = Checkpointer::new(None, Duration::ZERO);
        for (bytes, soon) in [(LARGE, SAVE_SOON), (LARGE + 1, SAVE_LARGE)] {
            checkpointer.note_saved(Ok(Some(bytes)));
            assert_eq!(checkpointer.save_soon(), soon);
        }
    }
}
