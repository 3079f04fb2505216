//! Waiting for a condition.

use std::time::{Duration, Instant};

/// Retries a check until it succeeds; panics with its last error after `within`.
pub async fn eventually<T>(
    what: &str,
    within: Duration,
    mut check: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let start = Instant::now();
    loop {
        match check().await {
            Ok(value) => return value,
            Err(_) if start.elapsed() < within => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(reason) => panic!("not within {within:?}: {what}: {reason}"),
        }
    }
}
