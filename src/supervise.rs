//! Tasks that must not end, and the heartbeat of a loop that must not stall.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;

/// Tasks that run as long as the process. When one ends or panics, the process ends: without one of
/// its tasks it would fail silently.
#[derive(Default)]
pub struct Tasks {
    tasks: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

/// A task that should still run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the task {name:?} {how}: the process can't go on without it")]
pub struct TaskEnded {
    name: &'static str,
    how: String,
}

impl Tasks {
    /// Starts a task.
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let started = self.tasks.spawn(task);
        self.names.insert(started.id(), name);
    }

    /// Waits until all tasks have ended.
    pub async fn all_ended(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    /// Waits until a task ends, and returns which and how. Waits forever if there is none.
    pub async fn first_end(&mut self) -> TaskEnded {
        let Some(ended) = self.tasks.join_next_with_id().await else {
            return std::future::pending().await;
        };
        let (id, how) = match ended {
            Ok((id, ())) => (id, "ended".to_owned()),
            Err(error) => (error.id(), format!("failed: {error}")),
        };
        TaskEnded { name: self.names.get(&id).copied().unwrap_or_default(), how }
    }
}

/// The heartbeat of a loop, which tells whether it has stalled. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat(Arc<Mutex<Option<Beat>>>);

#[derive(Clone, Copy, Debug)]
struct Beat {
    at: Instant,
    limit: Duration,
}

impl Heartbeat {
    /// Records a heartbeat; without another one within the limit the loop counts as stalled.
    pub fn beat(&self, limit: Duration) {
        let beat = Beat { at: Instant::now(), limit };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(beat);
    }

    /// How long ago the last heartbeat was, if that is longer than its limit. None before the
    /// first heartbeat.
    pub fn stalled_for(&self) -> Option<Duration> {
        let beat = (*self.0.lock().unwrap_or_else(PoisonError::into_inner))?;
        Some(beat.at.elapsed()).filter(|since| *since > beat.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_ends_or_panics_is_named() {
        let mut tasks = Tasks::default();
        tasks.spawn("steady", std::future::pending());
        tasks.spawn("short", async {});
        assert_eq!(tasks.first_end().await, TaskEnded { name: "short", how: "ended".to_owned() });
        tasks.spawn("broken", async { panic!("it can't go on") });
        let ended = tasks.first_end().await.to_string();
        assert!(ended.contains("\"broken\" failed") && ended.contains("it can't go on"), "{ended}");
    }

    #[test]
    fn a_stalled_loop_is_detected() {
        let heartbeat = Heartbeat::default();
        assert_eq!(heartbeat.stalled_for(), None);
        heartbeat.beat(Duration::from_secs(60));
        assert_eq!(heartbeat.stalled_for(), None);
        heartbeat.beat(Duration::ZERO);
        std::thread::yield_now();
        assert!(heartbeat.stalled_for().is_some());
    }
}
