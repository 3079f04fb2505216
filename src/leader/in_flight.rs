//! Counts writes in flight.

use tokio::sync::watch;

/// The number of writes in flight.
#[derive(Default)]
pub struct InFlight(watch::Sender<usize>);

/// One write in flight, until this guard is dropped.
pub struct InFlightGuard<'a>(&'a InFlight);

impl InFlight {
    /// Counts one more write.
    pub fn begin(&self) -> InFlightGuard<'_> {
        self.0.send_modify(|count| *count += 1);
        InFlightGuard(self)
    }

    /// Whether no write is in flight.
    pub fn is_empty(&self) -> bool {
        *self.0.borrow() == 0
    }

    /// Waits until no write is in flight.
    pub async fn drained(&self) {
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}
