//! The limiter, and the handles of the connections that it admits.

use super::super::client_chain::ClientChain;
use super::limits::{
    ANONYMOUS_IDLE_TIMEOUT, ANONYMOUS_MAX_AGE, FIRST_REQUEST_TIMEOUT, GRACE_PERIOD, IDLE_TIMEOUT,
    MAX_FRONT_PROXY_CONNECTIONS,
};
use super::table::{Class, ConnectionState, ConnectionTable, Registration};
use prometheus_client::metrics::gauge::Gauge;
use std::future::Future;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Limits the number of connections. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ConnectionLimiter {
    state: Arc<Mutex<ConnectionTable>>,
    /// Shows the number of open connections.
    gauge: Gauge,
}

/// An admitted connection, and the channel that closes when it is evicted.
pub type Admitted = (Arc<ConnectionHandle>, oneshot::Receiver<()>);

/// The connection of a request, and what is known of its client.
#[derive(Clone)]
pub struct Peer {
    /// The client's certificate chain.
    pub chain: Arc<ClientChain>,
    /// The connection, as the limiter knows it.
    pub connection: Arc<ConnectionHandle>,
    /// The address of the client.
    pub source: IpAddr,
}

/// One connection, open or queued. It is removed when this is dropped.
#[derive(Debug)]
pub struct ConnectionHandle {
    limiter: ConnectionLimiter,
    number: u64,
}

impl ConnectionLimiter {
    /// A limiter without connections. The gauge shows the number of open connections.
    pub fn new(gauge: Gauge) -> Self {
        Self { gauge, ..Self::default() }
    }

    fn state(&self) -> MutexGuard<'_, ConnectionTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a new connection. Returns none if the limit is reached and no connection can be evicted.
    pub fn admit(&self, source: IpAddr) -> Option<Admitted> {
        let mut state = self.state();
        if !state.make_room(source, Instant::now()) {
            return None;
        }
        let registered = state.open(source);
        self.update_gauge(&state);
        Some(self.handle(registered))
    }

    /// Queues a new overflow connection at once, and waits for its slot; none if it is dropped
    /// because the queue is full.
    pub fn admit_overflow(
        &self,
        source: IpAddr,
    ) -> impl Future<Output = Option<Admitted>> + Send + use<> {
        let mut state = self.state();
        let (registered, granted) = state.enqueue(source);
        let admitted = self.handle(registered);
        state.shed_queued();
        state.grant_slots();
        self.update_gauge(&state);
        drop(state);
        async move { granted.await.ok().map(|()| admitted) }
    }

    fn handle(&self, (number, evicted): Registration) -> Admitted {
        (Arc::new(ConnectionHandle { limiter: self.clone(), number }), evicted)
    }

    fn update_gauge(&self, state: &ConnectionTable) {
        self.gauge.set(i64::try_from(state.open.len()).unwrap_or(i64::MAX));
    }
}

impl ConnectionHandle {
    fn change(&self, change: impl FnOnce(&mut ConnectionState)) {
        if let Some(connection) = self.limiter.state().open.get_mut(&self.number) {
            change(connection);
        }
    }

    /// Whether it is an overflow connection.
    pub fn is_overflow(&self) -> bool {
        let state = self.limiter.state();
        state.open.get(&self.number).is_none_or(|one| one.class == Class::Overflow)
    }

    /// Counts it as the front proxy's, if the front proxy's limit is not reached.
    pub fn mark_front_proxy(&self) {
        let mut state = self.limiter.state();
        let has_room = state.count(Class::FrontProxy) < MAX_FRONT_PROXY_CONNECTIONS;
        if let Some(connection) = state.open.get_mut(&self.number).filter(|_| has_room) {
            connection.class = Class::FrontProxy;
            state.grant_slots();
        }
    }

    /// Counts it as authenticated, and as this tenant's.
    pub fn mark_authenticated(&self, tenant: &str) {
        self.change(|connection| {
            if connection.class == Class::Anonymous {
                connection.class = Class::Authenticated;
            }
            if connection.tenant.as_deref() != Some(tenant) {
                connection.tenant = Some(tenant.to_owned());
            }
        });
    }

    /// Counts a request as in flight, until the guard is dropped.
    pub fn begin_request(self: Arc<Self>) -> RequestInFlight {
        self.change(|connection| {
            connection.in_flight += 1;
            connection.last_active = Some(Instant::now());
        });
        RequestInFlight(self)
    }

    /// The time at which it is closed, unless there is a request before. While one is in flight, an authenticated client
    /// waits.
    pub fn deadline(&self) -> Instant {
        let state = self.limiter.state();
        let Some(connection) = state.open.get(&self.number) else { return Instant::now() };
        let accepted = connection.accepted;
        match (connection.class, connection.last_active) {
            (Class::Overflow, _) => accepted + GRACE_PERIOD,
            (_, None) => accepted + FIRST_REQUEST_TIMEOUT,
            (Class::Anonymous, Some(active)) => {
                (active + ANONYMOUS_IDLE_TIMEOUT).min(accepted + ANONYMOUS_MAX_AGE)
            }
            (Class::Authenticated | Class::FrontProxy, Some(active)) => {
                let waits = connection.in_flight > 0;
                (if waits { Instant::now() } else { active }) + IDLE_TIMEOUT
            }
        }
    }
}

/// A request in flight on a connection.
#[derive(Debug)]
pub struct RequestInFlight(Arc<ConnectionHandle>);

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.0.change(|connection| {
            connection.in_flight = connection.in_flight.saturating_sub(1);
            connection.last_active = Some(Instant::now());
        });
    }
}

impl Drop for ConnectionHandle {
    fn drop(&mut self) {
        let mut state = self.limiter.state();
        state.open.remove(&self.number);
        state.queue.remove(&self.number);
        state.grant_slots();
        self.limiter.update_gauge(&state);
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::{
        MAX_CONNECTIONS, MAX_QUEUED, MAX_QUEUED_PER_SOURCE, OVERFLOW_SLOTS,
        OVERFLOW_SLOTS_PER_SOURCE,
    };
    use super::*;
    use futures::FutureExt;

    fn source(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    fn is_evicted(admitted: &mut Admitted) -> bool {
        admitted.1.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    fn evicted(admitted: &mut [Admitted]) -> usize {
        admitted.iter_mut().map(|one| usize::from(is_evicted(one))).sum()
    }

    fn admit(limiter: &ConnectionLimiter, count: usize, n: u8) -> Vec<Admitted> {
        (0..count).map_while(|_| limiter.admit(source(n))).collect()
    }

    /// Ends the grace period of all open connections.
    fn end_grace_period(limiter: &ConnectionLimiter) {
        let earlier =
            |at: Instant| at.checked_sub(GRACE_PERIOD).expect("the clock runs for so long");
        for connection in limiter.state().open.values_mut() {
            connection.accepted = earlier(connection.accepted);
            connection.last_active = connection.last_active.map(earlier);
        }
    }

    #[test]
    fn an_anonymous_address_only_evicts_its_own_connections() {
        let limiter = ConnectionLimiter::default();
        let mut other = admit(&limiter, 1, 1);
        let mut flood = admit(&limiter, MAX_CONNECTIONS + 10, 2);
        // All of them are within their grace period.
        assert_eq!((flood.len(), evicted(&mut flood)), (MAX_CONNECTIONS - 1, 0));
        end_grace_period(&limiter);
        let (new, probe) = (admit(&limiter, 10, 2), admit(&limiter, 1, 3));
        assert_eq!((new.len(), probe.len()), (10, 1));
        assert_eq!((evicted(&mut flood), evicted(&mut other)), (11, 0));
        assert!(is_evicted(&mut flood[10]) && !is_evicted(&mut flood[11]));
        drop((flood, new, probe));
        assert_eq!((limiter.state().open.len(), limiter.gauge.get()), (1, 1));
    }

    /// Begins a request of a tenant on each connection.
    fn request(admitted: &[Admitted], tenant: &str) -> Vec<RequestInFlight> {
        let begin = |(connection, _): &Admitted| {
            connection.mark_authenticated(tenant);
            connection.clone().begin_request()
        };
        admitted.iter().map(begin).collect()
    }

    #[test]
    fn the_tenant_with_most_connections_is_evicted_however_busy_they_are() {
        let limiter = ConnectionLimiter::default();
        let mut scraper = admit(&limiter, 1, 9);
        drop(request(&scraper, "monitoring"));
        let mut held: Vec<Admitted> =
            (0..4).flat_map(|n| admit(&limiter, MAX_CONNECTIONS / 4, n)).collect();
        assert_eq!(held.len(), MAX_CONNECTIONS - 1);
        // None of them is idle for long, and some have a request in flight.
        let mut in_flight = request(&held, "mallory");
        in_flight.truncate(100);
        let mut new = admit(&limiter, 50, 8);
        drop(request(&new, "shop"));
        new.extend(admit(&limiter, 50, 7));
        assert_eq!((new.len(), evicted(&mut new), evicted(&mut scraper)), (100, 0, 0));
        assert_eq!((evicted(&mut held[..100]), evicted(&mut held)), (0, 100));
    }

    #[test]
    fn anonymous_clients_evict_no_authenticated_connection() {
        let limiter = ConnectionLimiter::default();
        let mut known = admit(&limiter, 20, 1);
        drop(request(&known, "monitoring"));
        end_grace_period(&limiter);
        let mut flood = admit(&limiter, 2 * MAX_CONNECTIONS, 2);
        assert_eq!(flood.len(), MAX_CONNECTIONS - 20);
        // All of them are new; another address is admitted nevertheless.
        let mut new = admit(&limiter, 10, 3);
        assert_eq!((new.len(), evicted(&mut new), evicted(&mut known)), (10, 0, 0));
        assert_eq!(evicted(&mut flood), 10);
    }

    #[test]
    fn a_slow_probe_is_not_evicted_for_a_tenant_that_has_most() {
        let limiter = ConnectionLimiter::default();
        let mut probe = admit(&limiter, 1, 1);
        let mut storm = admit(&limiter, MAX_CONNECTIONS - 1, 1);
        drop(request(&storm, "shop"));
        end_grace_period(&limiter);
        let new = admit(&limiter, 100, 1);
        assert_eq!((new.len(), evicted(&mut storm), evicted(&mut probe)), (100, 100, 0));
    }

    #[tokio::test]
    async fn in_a_burst_probes_queue_and_the_front_proxy_has_slots() {
        let limiter = ConnectionLimiter::default();
        let mut held = admit(&limiter, MAX_CONNECTIONS, 8);
        assert!(limiter.admit(source(8)).is_none());
        let admit_now = |n: u8| limiter.admit_overflow(source(n)).now_or_never().flatten();
        let mut overflow: Vec<Admitted> = std::iter::from_fn(|| admit_now(8)).collect();
        assert_eq!(overflow.len(), OVERFLOW_SLOTS_PER_SOURCE);
        // An address that has used its slots does not block others.
        let probe = admit_now(9).expect("there is a slot");
        assert!(probe.0.is_overflow() && admit_now(8).is_none());
        // A queued connection gets the next slot.
        let queued = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.admit_overflow(source(8)).await.is_some() }
        });
        tokio::task::yield_now().await;
        drop(overflow.pop());
        assert!(queued.await.expect("no panic"));
        overflow[1].0.mark_front_proxy();
        assert!(!overflow[1].0.is_overflow());
        assert_eq!(evicted(&mut held), 0);
    }

    #[test]
    fn a_probe_does_not_wait_for_a_flood_of_other_addresses() {
        let limiter = ConnectionLimiter::default();
        let _held = admit(&limiter, MAX_CONNECTIONS, 1);
        let wait = |n: usize| Box::pin(limiter.admit_overflow(source(n as u8)));
        let mut flood: Vec<_> =
            (0..OVERFLOW_SLOTS).map(|n| wait(n % 5 + 1).now_or_never()).collect();
        assert!(flood.iter().flatten().all(Option::is_some));
        let mut queued: Vec<_> = (0..5_000).map(|n| wait(n % 5 + 1)).collect();
        let mut probe = wait(9);
        // The first in the queue were dropped for later ones.
        let dropped = queued.iter_mut().filter_map(|one| one.as_mut().now_or_never());
        assert_eq!(dropped.filter(Option::is_none).count(), 5_000 - 5 * MAX_QUEUED_PER_SOURCE);
        flood.pop();
        let probe = probe.as_mut().now_or_never().flatten();
        assert!(probe.is_some(), "the probe gets the next slot");
    }

    #[test]
    fn the_queue_is_bounded_and_drops_connections_of_the_address_with_most() {
        let limiter = ConnectionLimiter::default();
        let _held = admit(&limiter, MAX_CONNECTIONS, 1);
        let wait = |n: u8| limiter.admit_overflow(source(n));
        let mut queued: Vec<_> = (0..OVERFLOW_SLOTS).map(|n| wait(n as u8 % 2)).collect();
        queued.extend((0..MAX_QUEUED).map(|n| wait(10 + n as u8 % 32)));
        queued.push(wait(9));
        let state = limiter.state();
        let of = |n: u8| state.queue.values().filter(move |(one, _)| one.source == source(n));
        assert_eq!((state.queue.len(), of(9).count()), (MAX_QUEUED, 1));
        drop(state);
        drop(queued);
        assert_eq!((limiter.state().queue.len(), limiter.gauge.get()), (0, 1024));
    }

    #[test]
    fn an_anonymous_connection_has_shorter_timeouts() {
        let limiter = ConnectionLimiter::default();
        let (connection, _evicted) = limiter.admit(source(1)).expect("there is room");
        let left = || connection.deadline().saturating_duration_since(Instant::now());
        assert!(left() <= FIRST_REQUEST_TIMEOUT);
        drop(connection.clone().begin_request());
        assert!(left() > FIRST_REQUEST_TIMEOUT && left() <= ANONYMOUS_IDLE_TIMEOUT);
        connection.mark_authenticated("shop");
        assert!(left() > ANONYMOUS_MAX_AGE && left() <= IDLE_TIMEOUT);
    }
}
