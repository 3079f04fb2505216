//! Computations of milliseconds, which would keep a thread of the runtime from its other tasks.

use std::io;
use std::time::Duration;
use tokio::runtime::{Handle, Runtime, RuntimeFlavor};

/// How long the end of a runtime waits for its threads.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs a future to its end. A thread that is blocked then, by a pipe that nobody reads or a file server that is away,
/// is left.
///
/// # Errors
/// If no runtime can be started.
pub fn run_to_end<T>(future: impl Future<Output = T>) -> io::Result<T> {
    let runtime = Runtime::new()?;
    let output = runtime.block_on(future);
    runtime.shutdown_timeout(LEAVE_TIMEOUT);
    Ok(output)
}

/// Computes on this thread while another takes over its other tasks. A runtime of a single thread has
/// no other, and computes at once: under tokio's paused time no time passes.
pub fn run<T>(compute: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    #[expect(clippy::disallowed_methods, reason = "its only caller, on a runtime that has it")]
    match flavor {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(compute),
        _ => compute(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_blocked_is_left() {
        let (_sender, receiver) = std::sync::mpsc::channel::<()>();
        let (blocking, blocked) = std::sync::mpsc::channel();
        let done = run_to_end(async {
            tokio::spawn(async move {
                run(move || {
                    let _ = blocking.send(());
                    receiver.recv()
                })
            });
            tokio::task::spawn_blocking(move || blocked.recv()).await
        });
        assert!(done.is_ok());
    }

    #[test]
    fn it_computes_without_a_runtime() {
        assert_eq!(run(|| 7), 7);
    }

    #[tokio::test]
    async fn it_computes_on_one_thread() {
        assert_eq!(run(|| 7), 7);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_tasks_run_meanwhile() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let task = tokio::spawn(async move {
            let other = tokio::spawn(async move { sender.send(7) });
            let received = run(|| receiver.recv());
            (received, other.await)
        });
        assert_eq!(task.await.unwrap().0, Ok(7));
    }
}
