//! Listings of series for unknown metrics: at most once per name and some minutes, and
//! rate-limited for all names together.
//!
//! Listing series is among the most expensive requests to a large Prometheus,
//! and any client may request names that do not exist.

use crate::cache::{self, Cache};
use crate::supervise::Spawner;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The least time between two such listings.
const MIN_INTERVAL: Duration = Duration::from_secs(20);
/// The TTL of a name that was not listed. A
/// listing at the regular interval finds it sooner.
const UNKNOWN_TTL: Duration = Duration::from_secs(180);
/// How long a request for a name waits for the listing.
pub const LISTING_TIMEOUT: Duration = Duration::from_secs(3);
/// The bytes of the cache of unknown names.
pub const UNKNOWN_NAME_BYTES: usize = 2 << 20;
/// The most names that wait for one listing.
const MAX_WAITING: usize = 1_000;

/// A pending or running listing. It completes even if no request waits for it.
pub type Listed = Shared<BoxFuture<'static, ()>>;

/// The listings for unknown names.
pub struct Listings {
    /// The names that were not listed.
    unknown: Cache<String, ()>,
    state: Mutex<ListingState>,
    spawner: Spawner,
}

#[derive(Default)]
struct ListingState {
    last: Option<Instant>,
    /// The listing that has not begun.
    next: Option<PendingListing>,
}

struct PendingListing {
    listed: Listed,
    begins: Instant,
    names: Vec<String>,
}

impl Listings {
    /// No listing yet.
    pub fn new(spawner: Spawner) -> Self {
        let unknown =
            cache::of_bytes(UNKNOWN_NAME_BYTES, UNKNOWN_TTL, |name: &String, ()| name.len());
        Self { unknown, state: Mutex::default(), spawner }
    }

    fn state(&self) -> MutexGuard<'_, ListingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a listing for an unknown name; `list` returns whether all series were
    /// listed. None if a recent listing did not have the name, or the next one comes too late
    /// to wait for.
    pub fn list_for(
        self: &Arc<Self>,
        name: &str,
        list: impl Future<Output = bool> + Send + 'static,
    ) -> Option<Listed> {
        if self.unknown.get(name).is_some() {
            return None;
        }
        let (mut state, now) = (self.state(), Instant::now());
        if state.next.is_none() {
            let begins = state.last.map_or(now, |last| now.max(last + MIN_INTERVAL));
            let listed = self.clone().list(begins, list).boxed().shared();
            // A task of its own: the request may stop waiting.
            self.spawner.spawn(listed.clone());
            state.next = Some(PendingListing { listed, begins, names: Vec::new() });
        }
        let next = state.next.as_mut()?;
        if next.names.len() < MAX_WAITING && !next.names.iter().any(|known| known == name) {
            next.names.push(name.to_owned());
        }
        (next.begins <= now + LISTING_TIMEOUT).then(|| next.listed.clone())
    }

    async fn list(self: Arc<Self>, begins: Instant, list: impl Future<Output = bool>) {
        tokio::time::sleep_until(begins).await;
        let names = {
            let mut state = self.state();
            state.last = Some(Instant::now());
            state.next.take().map(|next| next.names).unwrap_or_default()
        };
        if list.await {
            // Names that are known by now are found before they get here.
            names.into_iter().for_each(|name| self.unknown.insert(name, ()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test(start_paused = true)]
    async fn names_that_do_not_exist_cause_few_listings() {
        let (listings, count) =
            (Arc::new(Listings::new(Spawner::unowned())), Arc::new(AtomicUsize::new(0)));
        let ask = async |name: &str| {
            let count = count.clone();
            let list = async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                count.fetch_add(1, Ordering::Relaxed);
                true
            };
            let listed = listings.list_for(name, list);
            if let Some(listed) = listed {
                // The request does not wait for the end of it.
                let _ = tokio::time::timeout(Duration::from_millis(100), listed).await;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        for _ in 0..60 {
            ask("typo").await;
        }
        assert_eq!(count.swap(0, Ordering::Relaxed), 1);
        for n in 0..60 {
            ask(&format!("name-{n}")).await;
        }
        let listed = count.load(Ordering::Relaxed);
        assert!((2..=5).contains(&listed), "{listed}");
    }
}
