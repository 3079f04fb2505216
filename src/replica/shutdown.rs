//! The end of a replica: at a signal, or because a task has ended that must not. The API, the control
//! loop and the election end in order then.

use crate::supervise::{TaskEnded, Tasks};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, select};
use std::time::Duration;
use tokio::sync::oneshot;

/// Ends when the tasks that end in order are to stop.
pub type Stop = Shared<BoxFuture<'static, ()>>;

/// When a replica is to stop.
pub struct Shutdown {
    /// The signal from outside.
    signal: Stop,
    failing: oneshot::Sender<()>,
    /// At the signal, or when a task has ended without one.
    pub stop: Stop,
}

/// How long the other tasks may take to stop after one has failed.
const FAILED_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(15);

impl Shutdown {
    /// A shutdown at a signal, or after a failure.
    pub fn at(signal: impl Future<Output = ()> + Send + 'static) -> Self {
        let signal = signal.boxed().shared();
        let (failing, failed) = oneshot::channel();
        let stop = select(signal.clone(), failed).map(drop);
        Self { signal, failing, stop: stop.boxed().shared() }
    }

    /// Waits for the signal, or until a task ends without one, and then until the orderly ones have
    /// ended.
    ///
    /// # Errors
    /// The task that has ended without a signal.
    pub async fn run(self, mut tasks: Tasks, mut orderly: Tasks) -> Result<(), TaskEnded> {
        let ended = tokio::select! {
            // A task that ends after the stop signal has not failed.
            biased;
            () = self.signal => None,
            ended = tasks.first_end() => Some(ended),
            ended = orderly.first_end() => Some(ended),
        };
        if let Some(ended) = &ended {
            tracing::error!(error = ended.to_string(), "Stopping: a task ended");
        }
        let _ = self.failing.send(());
        // After a failure another task may never end.
        let timeout = if ended.is_some() { FAILED_SHUTDOWN_TIMEOUT } else { Duration::MAX };
        let _ = tokio::time::timeout(timeout, orderly.all_ended()).await;
        tracing::info!("Stopped");
        ended.map_or(Ok(()), Err)
    }
}

/// Starts the tasks that end in order. They are separate, so that none delays another. The election is
/// given the end of the control loop: the Lease is released after the last evaluation.
pub fn spawn_orderly<E: Future<Output = ()> + Send + 'static>(
    api: impl Future<Output = ()> + Send + 'static,
    control: impl Future<Output = ()> + Send + 'static,
    election: impl FnOnce(Stop) -> E,
) -> Tasks {
    let mut orderly = Tasks::default();
    let (ended, end) = oneshot::channel::<()>();
    orderly.spawn("API", api);
    orderly.spawn("control loop", async move {
        control.await;
        drop(ended);
    });
    orderly.spawn("election", election(end.map(drop).boxed().shared()));
    orderly
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::watch;

    /// The end of a stop that another has sent.
    async fn sent(mut stop: watch::Receiver<bool>) {
        let _ = stop.wait_for(|stop| *stop).await;
    }

    /// A task that stops in order, and whether it has.
    fn orderly(stop: &Stop) -> (Tasks, watch::Receiver<bool>) {
        let (stopping, stopped) = watch::channel(false);
        let (mut tasks, stop) = (Tasks::default(), stop.clone());
        tasks.spawn("orderly", async move {
            stop.await;
            tokio::time::sleep(FAILED_SHUTDOWN_TIMEOUT / 2).await;
            let _ = stopping.send(true);
        });
        (tasks, stopped)
    }

    fn steady() -> Tasks {
        let mut tasks = Tasks::default();
        tasks.spawn("steady", std::future::pending());
        tasks
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_signal_waits_for_all_orderly_tasks() {
        let (send, signal) = watch::channel(false);
        let shutdown = Shutdown::at(sent(signal));
        let (tasks, stopped) = orderly(&shutdown.stop);
        let run = tokio::spawn(shutdown.run(steady(), tasks));
        tokio::time::sleep(FAILED_SHUTDOWN_TIMEOUT).await;
        assert!(!run.is_finished() && !*stopped.borrow());
        send.send(true).unwrap();
        assert_eq!(run.await.unwrap(), Ok(()));
        assert!(*stopped.borrow());
    }

    #[tokio::test(start_paused = true)]
    async fn when_a_task_fails_the_others_stop_in_order_and_a_hanging_one_is_abandoned() {
        let shutdown = Shutdown::at(std::future::pending());
        let (mut hanging, stopped) = orderly(&shutdown.stop);
        hanging.spawn("hanging", std::future::pending());
        let mut tasks = steady();
        tasks.spawn("broken", async { panic!("it can't continue") });
        let begun = tokio::time::Instant::now();
        let ended = shutdown.run(tasks, hanging).await.unwrap_err();
        assert!(ended.to_string().contains("\"broken\" failed"), "{ended}");
        assert!(*stopped.borrow());
        assert_eq!(begun.elapsed().as_secs(), FAILED_SHUTDOWN_TIMEOUT.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn the_lease_is_released_only_after_the_control_loop_has_ended() {
        let (finish, finished) = oneshot::channel::<()>();
        let (releasing, released) = watch::channel(false);
        let control = async { finished.await.unwrap() };
        let mut tasks = spawn_orderly(async {}, control, |end| async move {
            end.await;
            let _ = releasing.send(true);
        });
        tokio::time::sleep(FAILED_SHUTDOWN_TIMEOUT).await;
        assert!(!*released.borrow());
        finish.send(()).unwrap();
        tasks.all_ended().await;
        assert!(*released.borrow());
    }
}
