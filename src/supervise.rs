//! Tasks: those that must not end, those that nobody waits for, and the heartbeat of a loop that must not
//! stall.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, Weak};
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
#[error("the task {name:?} {how}: the process can't continue without it")]
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

/// The owner of tasks that nobody waits for, such as a query that outlives its caller. They are
/// aborted when it is dropped.
#[derive(Debug, Default)]
pub struct BackgroundTasks(Arc<Mutex<JoinSet<()>>>);

impl BackgroundTasks {
    /// Starts tasks of this owner.
    pub fn spawner(&self) -> Spawner {
        Spawner(Arc::downgrade(&self.0))
    }
}

/// Starts tasks that nobody waits for. It does not own them: a task may keep it. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Spawner(Weak<Mutex<JoinSet<()>>>);

impl Spawner {
    /// Starts a task. Does nothing once the owner of the tasks is gone.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Some(tasks) = self.0.upgrade() else { return };
        let mut tasks = tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // The set keeps tasks that have ended until they are joined.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// One whose tasks end with the runtime, for unit tests.
    #[cfg(test)]
    pub fn unowned() -> Self {
        Self(Arc::downgrade(&Box::leak(Box::new(BackgroundTasks::default())).0))
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
        tasks.spawn("broken", async { panic!("it can't continue") });
        let ended = tasks.first_end().await.to_string();
        assert!(
            ended.contains("\"broken\" failed") && ended.contains("it can't continue"),
            "{ended}"
        );
    }

    /// The tasks of the runtime that have not ended.
    fn alive() -> usize {
        tokio::runtime::Handle::current().metrics().num_alive_tasks()
    }

    #[tokio::test]
    async fn background_tasks_end_with_their_owner_even_if_they_can_start_others() {
        let owner = BackgroundTasks::default();
        let spawner = owner.spawner();
        for _ in 0..10 {
            let inner = spawner.clone();
            spawner.spawn(async move {
                inner.spawn(std::future::pending());
                std::future::pending::<()>().await;
            });
        }
        tokio::task::yield_now().await;
        assert_eq!(alive(), 20);
        drop(owner);
        spawner.spawn(std::future::pending());
        tokio::task::yield_now().await;
        assert_eq!(alive(), 0);
    }

    #[tokio::test]
    async fn background_tasks_that_have_ended_are_not_kept() {
        let owner = BackgroundTasks::default();
        for _ in 0..100 {
            owner.spawner().spawn(async {});
            tokio::task::yield_now().await;
        }
        assert!(owner.0.lock().unwrap().len() <= 2);
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
