//! Tasks that must not end, and a loop that must not stand still.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::{Id, JoinSet};

/// Tasks that run as long as the process. When one ends or panics, the process ends: without one of
/// its parts it would be wrong in ways that nobody sees.
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

    /// Waits until a task ends, and gives which and how; forever where there is none.
    pub async fn first_end(&mut self) -> TaskEnded {
        let Some(ended) = self.tasks.join_next_with_id().await else {
            return std::future::pending().await;
        };
        let (id, how) = match ended {
            Ok((id, ())) => (id, "ended".to_owned()),
            Err(error) => (error.id(), format!("broke off: {error}")),
        };
        TaskEnded { name: self.names.get(&id).copied().unwrap_or_default(), how }
    }
}

/// Tells whether a loop turns. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat(Arc<Mutex<Option<Beat>>>);

#[derive(Clone, Copy, Debug)]
struct Beat {
    at: Instant,
    limit: Duration,
}

impl Heartbeat {
    /// The loop turns now, and will again within a limit.
    pub fn beat(&self, limit: Duration) {
        let beat = Beat { at: Instant::now(), limit };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(beat);
    }

    /// How long the loop has been standing still, where that is longer than it said.
    /// One that has not begun to turn does not stand still.
    pub fn stands_still_for(&self) -> Option<Duration> {
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
        assert!(
            ended.contains("\"broken\" broke off") && ended.contains("it can't go on"),
            "{ended}"
        );
    }

    #[test]
    fn a_loop_that_stands_still_is_noticed() {
        let heartbeat = Heartbeat::default();
        assert_eq!(heartbeat.stands_still_for(), None);
        heartbeat.beat(Duration::from_secs(60));
        assert_eq!(heartbeat.stands_still_for(), None);
        heartbeat.beat(Duration::ZERO);
        std::thread::yield_now();
        assert!(heartbeat.stands_still_for().is_some());
    }
}
