//! The body of a response.

use super::budget::Reservation;
use super::error::Error;
use crate::telemetry::Metrics;
use serde::de::DeserializeOwned;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// The bytes above which a body is large.
const LARGE: usize = 1 << 20;
/// The large bodies that are in memory at a time, of templates and again of users' own queries. Each takes Prometheus
/// longer to answer than to arrive and be read.
const MAX_LARGE: usize = 1;
/// How long a body waits for others, which may stall.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The body of a response, with its part of the memory budget.
#[derive(Debug)]
pub struct Body {
    content: Content,
    reservation: Reservation,
    took: Duration,
    counted: CountedRequest,
}

/// A request that was answered. It is counted once the response has been read: whether that can be used is not known before.
#[derive(Debug)]
struct CountedRequest {
    metrics: Option<Arc<Metrics>>,
    outcome: &'static str,
    took: Duration,
    bytes: usize,
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        if let Some(metrics) = &self.metrics {
            metrics.queried(self.outcome, self.took, Some(self.bytes));
        }
    }
}

/// The bytes of a body.
#[derive(Debug, Default)]
pub struct Content {
    bytes: Vec<u8>,
    /// Its place among those that are large.
    place: Option<OwnedSemaphorePermit>,
    /// How long it waited for that, if it did.
    waited: Option<Duration>,
}

/// The places of large bodies. In a round all of them would arrive at once, to be read one after the other. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LargeBodies(Arc<Semaphore>);

impl Default for LargeBodies {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_LARGE)))
    }
}

impl Content {
    /// Appends a part as it arrives. One that makes the body large waits for a place, if given, but not for long.
    pub(super) async fn push(&mut self, part: &[u8], large: Option<&LargeBodies>) {
        if let Some(large) = large
            && self.bytes.len() + part.len() > LARGE
            && self.waited.is_none()
        {
            let asked = Instant::now();
            let place = tokio::time::timeout(MAX_WAIT, large.0.clone().acquire_owned()).await;
            self.place = place.ok().and_then(Result::ok);
            self.waited = Some(asked.elapsed());
        }
        // It grows by doubling, which the reservation allows for: less is copied, and what is not written takes no memory.
        self.bytes.extend_from_slice(part);
    }
}

impl Body {
    /// A body that was received so long after its request had a seat, which is counted in the metrics.
    pub(super) fn new(
        content: Content,
        reservation: Reservation,
        after: Duration,
        metrics: Option<Arc<Metrics>>,
    ) -> Self {
        let took = after.saturating_sub(content.waited.unwrap_or_default());
        let bytes = content.len();
        let counted = CountedRequest { metrics, outcome: "answered", took: after, bytes };
        Self { content, reservation, took, counted }
    }

    /// How long the request took since it had a seat, without the time it waited for other bodies.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// The same, which makes no other body wait: it may be read much later.
    pub(super) fn without_place(mut self) -> Self {
        self.content.place = None;
        self
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.content.len()
    }

    /// Reads it.
    ///
    /// # Errors
    /// As `read` says: the response counts as one that can't be used.
    pub fn read<T>(self, read: impl FnOnce(&[u8]) -> Result<T, Error>) -> Result<T, Error> {
        self.read_owned(|content, _reservation| read(&content))
    }

    /// Reads it as JSON.
    ///
    /// # Errors
    /// [`Error::InvalidResponse`] if it is not of that form.
    pub fn json<T: DeserializeOwned>(self) -> Result<T, Error> {
        let invalid = |error: serde_json::Error| Error::InvalidResponse(error.to_string());
        self.read(|body| serde_json::from_slice(body).map_err(invalid))
    }

    /// Reads it, with the reservation in the budget.
    ///
    /// # Errors
    /// As `read` says: the response counts as one that can't be used.
    pub fn read_owned<T>(
        mut self,
        read: impl FnOnce(Content, Reservation) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let result = read(self.content, self.reservation);
        if result.is_err() {
            self.counted.outcome = "unusable";
        }
        result
    }
}

impl Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that is large, and how long it took.
    async fn received(large: &LargeBodies) -> (Content, Duration) {
        let (begun, mut content) = (Instant::now(), Content::default());
        for _ in 0..3 {
            content.push(&[0; LARGE / 2], Some(large)).await;
        }
        (content, begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn large_bodies_wait_for_one_another_but_not_for_ever() {
        let large = LargeBodies::default();
        let mut held = Vec::new();
        for _ in 0..MAX_LARGE {
            held.push(received(&large).await);
        }
        assert!(held.iter().all(|(_, took)| took.is_zero()), "{held:?}");
        let (stalled, took) = received(&large).await;
        assert_eq!((stalled.len(), took), (LARGE / 2 * 3, MAX_WAIT));
        let next = tokio::spawn(async move { received(&large).await.1 });
        tokio::time::sleep(MAX_WAIT / 2).await;
        // It has been read.
        held.pop();
        assert_eq!(next.await.unwrap(), MAX_WAIT / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_small_body_waits_for_none() {
        let large = LargeBodies::default();
        let _held = received(&large).await;
        let (begun, mut content) = (Instant::now(), Content::default());
        content.push(&[0; LARGE], Some(&large)).await;
        assert!(begun.elapsed().is_zero() && content.place.is_none());
    }
}
