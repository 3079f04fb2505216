//! Writes statuses beside the evaluations, at a limited rate.

use super::events::Events;
use super::fair_queue::FairQueue;
use super::requests::{backoff, is_transient, message};
use super::status::write;
use crate::crd::AutoscalerStatus;
use crate::hpa::{Event, EventKind, Reason};
use crate::kube_error::worded;
use crate::leader::FencingToken;
use crate::live::CompactStatus;
use crate::watch::AutoscalerRef;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kube::Client;
use prometheus_client::metrics::gauge::Gauge;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The queue of status writes. After a start thousands may be pending, and writes of scales must not
/// wait for them. Cheap to clone.
#[derive(Clone)]
pub struct StatusWriter(Arc<Inner>);

struct Inner {
    client: Client,
    events: Events,
    queue: Mutex<Queue>,
    added: Notify,
    waiting: Gauge,
}

/// The pending statuses: of each autoscaler only the newest.
struct Queue {
    /// The autoscalers to be written: their namespaces take turns.
    order: FairQueue<AutoscalerRef>,
    pending: HashMap<AutoscalerRef, PendingStatus>,
    /// The autoscalers whose status is being written, and in which lease term: one write at a time, so
    /// that the newest is written last.
    in_flight: HashMap<AutoscalerRef, u64>,
    /// How often in a row a status was rejected, and when it is retried: in `retries` until then.
    rejected: HashMap<AutoscalerRef, (u32, Instant)>,
    retries: BTreeSet<(Instant, AutoscalerRef)>,
    /// Since when statuses wait for evaluations, if they do.
    held_since: Option<Instant>,
    /// Since when the queue has not been empty.
    waiting_since: Option<Instant>,
}

/// A status to be written.
struct PendingStatus {
    token: FencingToken,
    uid: String,
    status: Arc<CompactStatus>,
}

/// How a write ended, for the rate of the next ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteOutcome {
    /// The API server responded.
    Responded,
    /// The API server is unavailable.
    Unavailable,
}

/// The maximum of writes in flight.
const MAX_WRITES_IN_FLIGHT: usize = 16;
/// The mean time between the starts of two writes, while many are pending: 250 per second.
const WRITE_INTERVAL: Duration = Duration::from_millis(4);
/// How late a write may start so that the next ones make up for it: where the API server is busy, many are late.
const MAX_CATCH_UP: Duration = Duration::from_secs(1);
/// How long statuses wait for evaluations at most: from when the first waits until all are written, and from when evaluations
/// wait until they don't.
const MAX_HOLD: Duration = Duration::from_secs(10);
/// The maximum backoff while the API server is unavailable.
const MAX_BACKOFF: Duration = Duration::from_secs(15);
/// The maximum backoff of a status that the API server rejects.
const MAX_REJECTED_BACKOFF: Duration = Duration::from_secs(300);
/// The maximum backoff if another decision was made since.
const MAX_CHANGED_BACKOFF: Duration = Duration::from_secs(15);
/// How long a graceful shutdown waits for pending statuses.
const STATUS_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

impl StatusWriter {
    /// An empty queue; the gauge shows the number of pending statuses.
    pub fn new(client: Client, events: Events, waiting: Gauge) -> Self {
        let (queue, added) = (Mutex::default(), Notify::new());
        Self(Arc::new(Inner { client, events, queue, added, waiting }))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a status in place of the pending one of the same autoscaler. It is retried until it is
    /// written, the lease term ends or the autoscaler is forgotten. If the API server has rejected one, another decision
    /// is written within [`MAX_CHANGED_BACKOFF`], and other values when that is retried.
    pub fn put(
        &self,
        token: &FencingToken,
        autoscaler: &AutoscalerRef,
        uid: &str,
        (status, decides_otherwise): (Arc<CompactStatus>, bool),
    ) {
        let (mut queue, now) = (self.queue(), Instant::now());
        let status = PendingStatus { token: token.clone(), uid: uid.to_owned(), status };
        let waits = queue.pending.insert(autoscaler.clone(), status).is_some();
        let is_rejected = queue.rejected.get(autoscaler).is_some_and(|(_, retry)| *retry > now);
        if !waits && !is_rejected && !queue.in_flight.contains_key(autoscaler) {
            queue.push(autoscaler);
        }
        if decides_otherwise {
            queue.retry_by(autoscaler, now + MAX_CHANGED_BACKOFF);
        }
        self.0.waiting.set(queue.pending.len() as i64);
        drop(queue);
        self.0.added.notify_one();
    }

    /// Replaces the status of an autoscaler that is pending. Returns whether there is one of the same lease term.
    pub fn renew(
        &self,
        token: &FencingToken,
        autoscaler: &AutoscalerRef,
        status: Arc<CompactStatus>,
    ) -> bool {
        let mut queue = self.queue();
        let pending = queue.pending.get_mut(autoscaler);
        let pending = pending.filter(|of| of.token.term() == token.term());
        pending.map(|pending| pending.status = status).is_some()
    }

    /// Whether many evaluations wait for others to end, as after a start. Statuses wait meanwhile, for [`MAX_HOLD`] at
    /// most: the API server is to have time for scales.
    pub fn hold(&self, waiting: bool) {
        let mut queue = self.queue();
        let was_held = queue.held_since.is_some();
        queue.held_since = waiting.then(|| queue.held_since.unwrap_or_else(Instant::now));
        drop(queue);
        if was_held && !waiting {
            self.0.added.notify_one();
        }
    }

    /// Whether [`StatusWriter::hold`] was called for evaluations that wait.
    #[cfg(test)]
    pub fn is_held(&self) -> bool {
        self.queue().held_since.is_some()
    }

    /// Writes a status at once, before anything else of its autoscaler, and waits for the response.
    ///
    /// # Errors
    /// If it could not be written, or its object is gone; the text is for a condition.
    pub async fn record(
        &self,
        token: &FencingToken,
        autoscaler: &AutoscalerRef,
        uid: &str,
        status: &AutoscalerStatus,
    ) -> Result<(), String> {
        // A pending status is older. One in flight must not be written after this one.
        let begins = || {
            let mut queue = self.queue();
            queue.pending.remove(autoscaler);
            let is_free = !queue.in_flight.contains_key(autoscaler);
            queue.in_flight.entry(autoscaler.clone()).or_insert(token.term());
            is_free
        };
        while !begins() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let written = write(&self.0.client, token, autoscaler, uid, &status.to_json()).await;
        {
            let mut queue = self.queue();
            queue.in_flight.remove(autoscaler);
            queue.requeue(autoscaler);
        }
        self.0.added.notify_one();
        match written {
            Ok(true) => Ok(()),
            Ok(false) => Err("the object is gone".to_owned()),
            Err(error) => Err(message(&error)),
        }
    }

    /// Whether a status of an autoscaler is pending or in flight in a lease term: that of an earlier one is not written.
    pub fn has(&self, autoscaler: &AutoscalerRef, term: u64) -> bool {
        let queue = self.queue();
        let pending = queue.pending.get(autoscaler).map(|pending| pending.token.term());
        [pending, queue.in_flight.get(autoscaler).copied()].contains(&Some(term))
    }

    /// Writes pending statuses, forever.
    pub async fn run(&self) {
        let mut writes = FuturesUnordered::new();
        let (mut next, mut failures, mut was_ready) = (Instant::now(), 0, false);
        loop {
            // While the API server is unavailable, one write at a time probes it.
            let max_in_flight = if failures > 0 { 1 } else { MAX_WRITES_IN_FLIGHT };
            let (ready, retry) = self.queue().poll(Instant::now());
            let begin = ready && writes.len() < max_in_flight;
            if ready && !was_ready {
                // Nothing was late before.
                next = next.max(Instant::now());
            }
            was_ready = ready;
            let retry = retry.unwrap_or_else(|| Instant::now() + MAX_REJECTED_BACKOFF);
            tokio::select! {
                Some(outcome) = writes.next() => {
                    failures = if outcome == WriteOutcome::Unavailable { failures + 1 } else { 0 };
                    if failures > 0 {
                        next = Instant::now() + backoff(failures, MAX_BACKOFF);
                    }
                }
                () = tokio::time::sleep_until(next), if begin => {
                    next = (next + WRITE_INTERVAL).max(Instant::now() - MAX_CATCH_UP);
                    if let Some(pending) = self.take() {
                        writes.push(self.write(pending));
                    }
                }
                () = tokio::time::sleep_until(retry) => {}
                () = self.0.added.notified() => {}
            }
        }
    }

    fn take(&self) -> Option<(AutoscalerRef, PendingStatus)> {
        let mut queue = self.queue();
        while let Some(autoscaler) = queue.order.next() {
            queue.order.ended(&autoscaler.key.namespace);
            // It is queued again when that write has ended.
            if queue.in_flight.contains_key(&autoscaler) {
                continue;
            }
            // An autoscaler that was forgotten has no pending status.
            let Some(pending) = queue.pending.remove(&autoscaler) else { continue };
            queue.in_flight.insert(autoscaler.clone(), pending.token.term());
            if queue.order.is_empty() {
                // After a start they had all statuses.
                queue.pending.shrink_to_fit();
            }
            self.0.waiting.set(queue.pending.len() as i64);
            return Some((autoscaler, pending));
        }
        None
    }

    async fn write(&self, (autoscaler, pending): (AutoscalerRef, PendingStatus)) -> WriteOutcome {
        let PendingStatus { token, uid, status } = &pending;
        let written = write(&self.0.client, token, &autoscaler, uid, &status.to_json()).await;
        let mut queue = self.queue();
        queue.in_flight.remove(&autoscaler);
        let error = match written {
            Err(error) if token.is_valid() => error,
            _ => {
                queue.end_retries(&autoscaler);
                queue.requeue(&autoscaler);
                return WriteOutcome::Responded;
            }
        };
        let has_changed = queue.pending.contains_key(&autoscaler);
        queue.pending.entry(autoscaler.clone()).or_insert_with(|| PendingStatus {
            token: token.clone(),
            uid: uid.clone(),
            status: status.clone(),
        });
        self.0.waiting.set(queue.pending.len() as i64);
        if is_transient(&error) {
            queue.requeue(&autoscaler);
            drop(queue);
            tracing::warn!(error = worded(&error), "Failed to write a status, retrying");
            return WriteOutcome::Unavailable;
        }
        let times = queue.rejected.get(&autoscaler).map_or(1, |(times, _)| times + 1);
        let longest = if has_changed { MAX_CHANGED_BACKOFF } else { MAX_REJECTED_BACKOFF };
        let at = Instant::now() + backoff(times, longest);
        queue.end_retries(&autoscaler);
        queue.rejected.insert(autoscaler.clone(), (times, at));
        queue.retries.insert((at, autoscaler.clone()));
        drop(queue);
        let message = message(&error);
        if times == 1 {
            tracing::warn!(%autoscaler, error = message, "Failed to write a status");
        }
        let event = Event { kind: EventKind::Warning, reason: Reason::FailedUpdateStatus, message };
        self.0.events.publish(token, &autoscaler, uid, &[event]);
        WriteOutcome::Responded
    }

    /// Waits until all pending statuses are written, for at most [`STATUS_SHUTDOWN_TIMEOUT`].
    pub async fn finish(&self) {
        let start = Instant::now();
        let idle = |queue: &Queue| queue.order.is_empty() && queue.in_flight.is_empty();
        while !idle(&self.queue()) && start.elapsed() < STATUS_SHUTDOWN_TIMEOUT {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Drops the pending status of an autoscaler that is gone.
    pub fn forget(&self, autoscaler: &AutoscalerRef) {
        let mut queue = self.queue();
        queue.pending.remove(autoscaler);
        queue.end_retries(autoscaler);
        self.0.waiting.set(queue.pending.len() as i64);
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            // One at a time is taken: all may be.
            order: FairQueue::new(usize::MAX),
            pending: HashMap::new(),
            in_flight: HashMap::new(),
            rejected: HashMap::new(),
            retries: BTreeSet::new(),
            held_since: None,
            waiting_since: None,
        }
    }
}

impl Queue {
    /// True if a status may be written now, and when the next poll is due: at the retry of a rejected status, or after
    /// [`MAX_HOLD`].
    fn poll(&mut self, now: Instant) -> (bool, Option<Instant>) {
        while let Some((at, autoscaler)) = self.retries.pop_first() {
            if at > now {
                self.retries.insert((at, autoscaler));
                break;
            }
            self.requeue(&autoscaler);
        }
        let since = self.waiting_since.unwrap_or(now);
        self.waiting_since = (!self.order.is_empty()).then_some(since);
        // Evaluations of one tenant may wait for ever, and all may time and again.
        let since = self.waiting_since.zip(self.held_since).map(|(one, other)| one.min(other));
        let held_until = since.map(|since| since + MAX_HOLD).filter(|until| *until > now);
        let retry = self.retries.first().map(|(at, _)| *at);
        let again = held_until.into_iter().chain(retry).min();
        (!self.order.is_empty() && held_until.is_none(), again)
    }

    fn push(&mut self, autoscaler: &AutoscalerRef) {
        self.order.push(&autoscaler.key.namespace, autoscaler.clone());
    }

    /// Retries a status that was rejected by this time.
    fn retry_by(&mut self, autoscaler: &AutoscalerRef, at: Instant) {
        let retry = self.rejected.get_mut(autoscaler).filter(|(_, retry)| at < *retry);
        if let Some((_, retry)) = retry {
            self.retries.remove(&(*retry, autoscaler.clone()));
            *retry = at;
            self.retries.insert((at, autoscaler.clone()));
        }
    }

    /// What was rejected is written, replaced or gone.
    fn end_retries(&mut self, autoscaler: &AutoscalerRef) {
        if let Some((_, retry)) = self.rejected.remove(autoscaler) {
            self.retries.remove(&(retry, autoscaler.clone()));
        }
    }

    /// Queues an autoscaler again if a status of it is pending.
    fn requeue(&mut self, autoscaler: &AutoscalerRef) {
        if self.pending.contains_key(autoscaler) && !self.in_flight.contains_key(autoscaler) {
            self.push(autoscaler);
        }
    }
}

#[cfg(test)]
mod tests;
