//! Whether a server passes any query at all: a proxy before Prometheus answers 403 to some queries, as a web application
//! firewall does, or to all of them, as with an expired token.

use super::Error;
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep_until, timeout};

/// The least time between two probes: queries that are refused one after the other need one each.
const PROBE_INTERVAL: Duration = Duration::from_millis(10);
/// How long a probe may take. What refuses all queries does so at once.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// For how long a refused probe is believed, unless a query succeeds that is sent later.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// What a server has served lately.
#[derive(Debug, Default)]
pub struct Serving {
    /// When the query was sent that succeeded, the latest of all.
    last_success: watch::Sender<Option<Instant>>,
    /// The last probes. Held while one is in flight, whose result is for all who wait.
    probes: Mutex<Probes>,
}

#[derive(Debug, Default)]
struct Probes {
    /// When the last one was sent.
    sent: Option<Instant>,
    /// When the last one was sent that was refused.
    refused: Option<Instant>,
}

impl Serving {
    /// Records the success of a query that was sent then.
    pub fn served(&self, sent: Instant) {
        self.last_success.send_if_modified(|last| {
            let is_later = *last < Some(sent);
            if is_later {
                *last = Some(sent);
            }
            is_later
        });
    }

    /// Whether a query succeeds that is sent at this time or later; if none has, this probe tells.
    pub async fn serves(
        &self,
        since: Instant,
        probe: impl Future<Output = Result<(), Error>>,
    ) -> bool {
        let mut last_success = self.last_success.subscribe();
        let is_served = last_success.wait_for(|last| last.is_some_and(|last| last >= since));
        tokio::select! {
            biased;
            _ = is_served => true,
            passes = self.probed(since, probe) => passes,
        }
    }

    async fn probed(&self, since: Instant, probe: impl Future<Output = Result<(), Error>>) -> bool {
        let mut probes = self.probes.lock().await;
        let is_refused =
            |sent: Instant| sent + REFUSED_FOR >= since && *self.last_success.borrow() < Some(sent);
        if probes.refused.is_some_and(is_refused) {
            return false;
        }
        if let Some(sent) = probes.sent {
            sleep_until(sent + PROBE_INTERVAL).await;
        }
        let sent = Instant::now();
        probes.sent = Some(sent);
        match timeout(PROBE_TIMEOUT, probe).await {
            Ok(Ok(())) => self.served(sent),
            Ok(Err(error)) if error.may_be_of_proxy() => probes.refused = Some(sent),
            Ok(Err(_)) | Err(_) => {}
        }
        self.last_success.borrow().is_some_and(|last| last >= since)
    }
}
