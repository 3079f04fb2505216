//! Fencing tokens: no write without one, and none after its term.

use super::freeze::Freeze;
use super::settings::REQUEST_TIMEOUT;
use super::state::LeaderState;
use crate::kube_error::message;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Allows writes as long as the term lasts in which the token was issued. Cheap to clone.
#[derive(Clone)]
pub struct FencingToken {
    state: Arc<LeaderState>,
    /// The number of the term; none if this replica leads without election.
    term: Option<u64>,
}

/// Why a write was not begun.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum WriteRefused {
    /// The term is over.
    #[error("this replica no longer leads")]
    NotLeading,
    /// Scales are frozen.
    #[error("writes to scales are frozen: {0}")]
    Frozen(String),
    /// The Lease can't be read, so that nobody knows who leads and whether scales are frozen.
    #[error("the Lease can't be read: {0}")]
    Unconfirmed(String),
}

impl From<WriteRefused> for kube::Error {
    fn from(refused: WriteRefused) -> Self {
        Self::Service(refused.into())
    }
}

/// Whether a write to a scale that failed with this error is indeterminate: it may have been applied,
/// or may yet be, because it was sent and no response rules that out. A 4xx rules it out: the request
/// was retried only after 429, and the API server does not process a request that it rejects with 429.
pub fn is_indeterminate(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code >= 500,
        kube::Error::Service(cause) => !cause.is::<WriteRefused>(),
        _ => true,
    }
}

/// The refusal of a write whose Lease could not be read: this error must not pass for one of the write,
/// which was not sent.
fn unconfirmed(error: kube::Error) -> kube::Error {
    let why = match &error {
        kube::Error::Service(cause) if cause.is::<WriteRefused>() => return error,
        other => message(other),
    };
    WriteRefused::Unconfirmed(why).into()
}

impl FencingToken {
    /// A token of a term, or of a replica that leads without election.
    pub(super) const fn new(state: Arc<LeaderState>, term: Option<u64>) -> Self {
        Self { state, term }
    }

    /// The number of its term in this process, from 1; 0 without election.
    pub fn term(&self) -> u64 {
        self.term.unwrap_or(0)
    }

    /// Whether its term still lasts.
    pub fn is_valid(&self) -> bool {
        self.time_left().is_some()
    }

    /// How long a write that begins now may take; none if the term is over.
    fn time_left(&self) -> Option<Duration> {
        let Some(number) = self.term else { return Some(REQUEST_TIMEOUT) };
        let term = self.state.term().filter(|term| term.number == number)?;
        Some(term.lease_end.saturating_duration_since(Instant::now()).min(REQUEST_TIMEOUT))
    }

    /// Runs a write if the term still lasts. The write, with all its retries, is cancelled
    /// before another replica may lead.
    ///
    /// # Errors
    /// Those of the write, and [`WriteRefused`] as the cause of a service error.
    pub async fn write<T>(
        &self,
        write: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, kube::Error> {
        // Counted before the term is checked: the end of a term either stops this write
        // from beginning, or waits for it.
        let _in_flight = self.state.writes.begin();
        let time_left = self.time_left().ok_or(WriteRefused::NotLeading)?;
        match tokio::time::timeout(time_left, write).await {
            Ok(result) => result,
            Err(elapsed) => Err(kube::Error::Service(elapsed.into())),
        }
    }

    /// Runs a write to a scale, if the Lease itself says that no other replica has acquired
    /// it and that scales are not frozen. The request must tell the API server to apply it
    /// within [`REQUEST_TIMEOUT`] or not at all, and may be retried only after 429.
    ///
    /// # Errors
    /// As [`FencingToken::write`].
    pub async fn write_scale<T>(
        &self,
        write: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, kube::Error> {
        // Counted before the check, as above: a freeze is acknowledged when no write to a
        // scale is in flight.
        let _in_flight = self.state.scale_writes.begin();
        self.confirm().await?;
        let mut sent = SentWrite { state: &self.state, is_indeterminate: true };
        let written = self.write(write).await;
        sent.is_indeterminate = written.as_ref().is_err_and(is_indeterminate);
        written
    }

    /// Reads the Lease, and fails if scales are frozen, or if replicas elect a leader and this one does
    /// not hold it.
    async fn confirm(&self) -> Result<(), kube::Error> {
        let LeaderState { api, settings, .. } = &*self.state;
        let refuse_if = |freeze: Option<Freeze>| {
            freeze.map_or(Ok(()), |Freeze { reason, .. }| {
                Err(WriteRefused::Frozen(reason.to_string()))
            })
        };
        refuse_if(self.state.freeze())?;
        let read = self.write(api.get_opt(&settings.name)).await;
        let lease = read.map_err(unconfirmed)?.unwrap_or_default();
        self.state.observe_freeze(&lease, false);
        refuse_if(self.state.freeze().or_else(|| Freeze::of(&lease)))?;
        let Some(number) = self.term else { return Ok(()) };
        let spec = lease.spec.unwrap_or_default();
        let term = self.state.term().filter(|term| term.number == number);
        let is_held = spec.holder_identity.as_ref() == Some(&settings.identity)
            && term.is_some_and(|term| Some(term.transitions) == spec.lease_transitions);
        if is_held { Ok(()) } else { Err(WriteRefused::NotLeading.into()) }
    }
}

/// A write to a scale that may have been sent. It is indeterminate if its response does not tell
/// whether it was applied, or if it is cancelled before the response.
struct SentWrite<'a> {
    state: &'a LeaderState,
    is_indeterminate: bool,
}

impl Drop for SentWrite<'_> {
    fn drop(&mut self) {
        if self.is_indeterminate {
            self.state.expect_indeterminate_writes(REQUEST_TIMEOUT);
        }
    }
}
