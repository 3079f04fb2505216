//! Leave to write.

use super::{Freeze, Leader, locked};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Leave to write, as long as the term lasts in which it was given.
#[derive(Clone)]
pub struct Permit {
    leader: Leader,
    /// None where this replica leads without election.
    term: Option<u64>,
}

/// Why a write was not done.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Refused {
    /// The term is over.
    #[error("this replica no longer leads")]
    NotLeading,
    /// Writes to scales are stopped.
    #[error("writes to scales are frozen: {0}")]
    Frozen(String),
}

impl From<Refused> for kube::Error {
    fn from(refused: Refused) -> Self {
        Self::Service(refused.into())
    }
}

/// Whether a write that failed with this may have been carried out, or may be yet: it was
/// begun, and no answer to it says otherwise. A retry that is turned away (429) says nothing
/// of the try before it.
pub fn may_be_done(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 429 | 500..),
        kube::Error::Service(cause) => !cause.is::<Refused>(),
        _ => true,
    }
}

/// The longest time for one request to the API server.
pub const REQUEST: Duration = Duration::from_secs(10);

impl Permit {
    pub(super) const fn new(leader: Leader, term: Option<u64>) -> Self {
        Self { leader, term }
    }

    /// The term it is of: each of this process has a number of its own, from 1 on;
    /// 0 without election.
    pub fn term(&self) -> u64 {
        self.term.unwrap_or(0)
    }

    /// Whether the term still lasts.
    pub fn holds(&self) -> bool {
        self.deadline().is_some()
    }

    /// How long a write may take that begins now; none where the term is over.
    fn deadline(&self) -> Option<Duration> {
        let Some(number) = self.term else { return Some(REQUEST) };
        let term = self.leader.term().filter(|term| term.number == number)?;
        Some(term.ended.saturating_duration_since(Instant::now()).min(REQUEST))
    }

    /// Does a write, if the term still lasts; it is given up, with all its retries,
    /// before another replica may lead.
    ///
    /// # Errors
    /// Those of the write, and [`Refused`] as the cause of a service error.
    pub async fn write<T>(
        &self,
        write: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, kube::Error> {
        // Counted before the term is looked at, so that whoever ends the term either
        // keeps this from beginning or waits for it.
        let _counted = self.leader.0.writes.begin();
        let deadline = self.deadline().ok_or(Refused::NotLeading)?;
        match tokio::time::timeout(deadline, write).await {
            Ok(result) => result,
            Err(elapsed) => Err(kube::Error::Service(elapsed.into())),
        }
    }

    /// Writes a scale, if the Lease itself says that no other replica has taken it
    /// and that nothing is frozen. The request must tell the API server to carry it out
    /// within [`REQUEST`] or not at all.
    ///
    /// # Errors
    /// As [`Permit::write`], and where the Lease can't be read.
    pub async fn write_scale<T>(
        &self,
        write: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, kube::Error> {
        // As above: a freeze is acknowledged when none of these is under way.
        let _counted = self.leader.0.scales.begin();
        self.confirm().await?;
        let written = self.write(write).await;
        if written.as_ref().is_err_and(may_be_done) {
            let mut rest = Box::pin(rest(self.leader.clone()));
            // It is counted before the first count ends.
            let _ = futures::poll!(&mut rest);
            tokio::spawn(rest);
        }
        written
    }

    async fn confirm(&self) -> Result<(), kube::Error> {
        let super::Inner { api, settings, frozen, .. } = &*self.leader.0;
        let unless = |freeze: Option<Freeze>| {
            freeze.map_or(Ok(()), |Freeze { reason, .. }| Err(Refused::Frozen(reason.to_string())))
        };
        let known = || locked(frozen).freeze.clone();
        unless(known())?;
        let Some(number) = self.term else { return Ok(()) };
        let lease = self.write(api.get(&settings.name)).await?;
        self.leader.see_freeze(&lease, false);
        unless(known().or_else(|| Freeze::of(&lease)))?;
        let spec = lease.spec.unwrap_or_default();
        let term = self.leader.term().filter(|term| term.number == number);
        let holds = spec.holder_identity.as_ref() == Some(&settings.identity)
            && term.is_some_and(|term| Some(term.transitions) == spec.lease_transitions);
        if holds { Ok(()) } else { Err(Refused::NotLeading.into()) }
    }
}

/// Counts a write to a scale for as long as the API server may carry it out.
async fn rest(leader: Leader) {
    let _counted = leader.0.scales.begin();
    tokio::time::sleep(REQUEST).await;
}

/// Counts what is under way.
#[derive(Default)]
pub(super) struct InFlight(watch::Sender<usize>);

/// One that is under way, until it is dropped.
pub(super) struct Counted<'a>(&'a InFlight);

impl InFlight {
    pub fn begin(&self) -> Counted<'_> {
        self.0.send_modify(|count| *count += 1);
        Counted(self)
    }

    pub fn is_none(&self) -> bool {
        *self.0.borrow() == 0
    }

    /// Waits until none is under way.
    pub async fn none(&self) {
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}
