//! Whether a server passes any query at all: a proxy before Prometheus answers 403 to some queries, as a web application
//! firewall does, or to all of them, as with an expired token.

use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep_until};

/// The least time between two probes: queries that are refused one after the other need one each.
const PROBE_INTERVAL: Duration = Duration::from_millis(5);

/// What a server has served lately.
#[derive(Debug, Default)]
pub struct Serving {
    /// When the query was sent that succeeded, the latest of all.
    last_success: watch::Sender<Option<Instant>>,
    /// Held while a probe is in flight.
    last_probe: Mutex<Option<Probe>>,
}

/// Whether a probe passed. It tells of queries that were refused until it was sent; one without an answer in time, which
/// tells nothing of a token that expires meanwhile, until it ended.
#[derive(Debug)]
struct Probe {
    tells_until: Instant,
    passed: bool,
}

/// How a probe ends.
pub enum Probed {
    /// It was answered, with whatever a proxy does not say to all queries.
    Passed,
    /// It was not answered in time. What refuses all queries does so at once.
    Late,
    /// It was refused.
    Refused,
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

    /// Whether a query passes that is sent at this time or later; if none has succeeded, a probe tells.
    pub async fn passes(&self, since: Instant, probe: impl Future<Output = Probed>) -> bool {
        let mut last_success = self.last_success.subscribe();
        let is_served = last_success.wait_for(|last| last.is_some_and(|last| last >= since));
        tokio::select! {
            biased;
            _ = is_served => true,
            passed = self.probed(since, probe) => passed,
        }
    }

    async fn probed(&self, since: Instant, probe: impl Future<Output = Probed>) -> bool {
        let mut last = self.last_probe.lock().await;
        if let Some(last) = &*last {
            if last.tells_until >= since {
                return last.passed;
            }
            sleep_until(last.tells_until + PROBE_INTERVAL).await;
        }
        let sent = Instant::now();
        let (tells_until, passed) = match probe.await {
            Probed::Passed => (sent, true),
            Probed::Late => (Instant::now(), true),
            Probed::Refused => (sent, false),
        };
        *last = Some(Probe { tells_until, passed });
        passed
    }
}
