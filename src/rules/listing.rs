//! When series are listed because a metric is asked for that no listing had: once
//! for each name and some minutes, and never more often than a floor for all.
//! Listing series is among the most expensive things to ask of a large Prometheus,
//! and everybody may ask for names that do not exist.

use crate::cache::{self, Cache};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The least time between two such listings.
const FLOOR: Duration = Duration::from_secs(20);
/// How long it is believed that a name that was not listed does not exist; a
/// listing at the interval finds it sooner.
const UNKNOWN: Duration = Duration::from_secs(180);
/// How long a request for a name waits for the listing.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// The bytes of names that are known not to exist.
pub const NAMES: usize = 2 << 20;
/// The most names that wait for one listing.
const WAITING: usize = 1_000;

/// A listing that runs or will; it goes on whether somebody waits for it or not.
pub type Listed = Shared<BoxFuture<'static, ()>>;

/// The listings that unknown names bring on.
pub struct Listings {
    /// The names that were not listed.
    unknown: Cache<String, ()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: Option<Instant>,
    /// The one that has not begun.
    next: Option<Next>,
}

struct Next {
    listed: Listed,
    begins: Instant,
    names: Vec<String>,
}

impl Default for Listings {
    fn default() -> Self {
        let unknown = cache::of_bytes(NAMES, UNKNOWN, |name: &String, ()| name.len());
        Self { unknown, state: Mutex::default() }
    }
}

impl Listings {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has series listed for a name that is not known. `list` tells whether all were
    /// listed. None where it was listed lately without that name, or will not be
    /// listed soon enough to wait for.
    pub fn list_for(
        self: &Arc<Self>,
        name: &str,
        list: impl Future<Output = bool> + Send + 'static,
    ) -> Option<Listed> {
        if self.unknown.contains_key(name) {
            return None;
        }
        let (mut state, now) = (self.state(), Instant::now());
        if state.next.is_none() {
            let begins = state.last.map_or(now, |last| now.max(last + FLOOR));
            let listed = self.clone().list(begins, list).boxed().shared();
            // Its own task: whoever asked may stop waiting.
            tokio::spawn(listed.clone());
            state.next = Some(Next { listed, begins, names: Vec::new() });
        }
        let next = state.next.as_mut()?;
        if next.names.len() < WAITING && !next.names.iter().any(|known| known == name) {
            next.names.push(name.to_owned());
        }
        (next.begins <= now + PATIENCE).then(|| next.listed.clone())
    }

    async fn list(self: Arc<Self>, begins: Instant, list: impl Future<Output = bool>) {
        tokio::time::sleep_until(begins).await;
        let names = {
            let mut state = self.state();
            state.last = Some(Instant::now());
            state.next.take().map(|next| next.names).unwrap_or_default()
        };
        if list.await {
            // Those that are known by now are not looked up here.
            names.into_iter().for_each(|name| self.unknown.insert(name, ()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test(start_paused = true)]
    async fn names_that_do_not_exist_have_series_listed_seldom() {
        let (listings, count) = (Arc::new(Listings::default()), Arc::new(AtomicUsize::new(0)));
        let ask = async |name: &str| {
            let count = count.clone();
            let list = async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                count.fetch_add(1, Ordering::Relaxed);
                true
            };
            let listed = listings.list_for(name, list);
            if let Some(listed) = listed {
                // Who asks does not wait for the end of it.
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
