//! Whether a server passes any query at all: a proxy before Prometheus answers 403 to some queries, as a web application
//! firewall does, or to all of them, as with an expired token.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The least time between two probes: queries that are refused one after the other need one each.
const PROBE_INTERVAL: Duration = Duration::from_millis(10);
/// For how long a failed probe is believed.
const FAILED_FOR: Duration = Duration::from_secs(1);

/// What a server has served lately.
#[derive(Debug, Default)]
pub struct Serving {
    /// When the query was sent that succeeded, the latest of all.
    last_success: Mutex<Option<Instant>>,
    /// The last probe. Held while one is in flight, whose result is for all who wait.
    probe: tokio::sync::Mutex<Option<Probe>>,
}

#[derive(Debug)]
struct Probe {
    sent: Instant,
    succeeded: bool,
}

impl Serving {
    /// Records the success of a query that was sent then.
    pub fn served(&self, sent: Instant) {
        let mut last = self.last_success.lock().unwrap_or_else(PoisonError::into_inner);
        *last = (*last).max(Some(sent));
    }

    fn served_since(&self, since: Instant) -> bool {
        let last = self.last_success.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last >= since)
    }

    /// Whether a query succeeds that is sent at this time or later; if none has, this probe tells.
    pub async fn serves(&self, since: Instant, probe: impl Future<Output = bool>) -> bool {
        if self.served_since(since) {
            return true;
        }
        let mut last = self.probe.lock().await;
        if let Some(last) = &*last {
            if !last.succeeded && last.sent + FAILED_FOR >= since {
                return self.served_since(since);
            }
            if !self.served_since(since) {
                sleep_until(last.sent + PROBE_INTERVAL).await;
            }
        }
        if !self.served_since(since) {
            let sent = Instant::now();
            let succeeded = probe.await;
            if succeeded {
                self.served(sent);
            }
            *last = Some(Probe { sent, succeeded });
        }
        self.served_since(since)
    }
}
