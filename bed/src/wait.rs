//! Waiting for a condition.

use std::time::{Duration, Instant};

/// How long a check that was begun in time may still take: long on a busy machine.
const GRACE: Duration = Duration::from_secs(10);

/// Retries a check until it succeeds; panics with its last error after `within`, or where it does not return soon after.
pub async fn eventually<T>(
    what: &str,
    within: Duration,
    mut check: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let start = Instant::now();
    let mut last = String::new();
    loop {
        let left = within.saturating_sub(start.elapsed());
        match tokio::time::timeout(left + GRACE, check()).await {
            Ok(Ok(value)) => return value,
            Ok(Err(reason)) if start.elapsed() < within => last = reason,
            Ok(Err(reason)) => panic!("not within {within:?}: {what}: {reason}"),
            Err(_) => {
                panic!("not within {within:?}: {what}: the check does not return; before: {last}")
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
