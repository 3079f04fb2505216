//! Which connections are held, and which give way when there are too many.
//!
//! A connection whose client has not shown who it is can be ended in favour of a
//! new one once it had its time, the oldest first, so that silent connections never
//! keep others out. Where none can be ended, a new one waits, by its source, for a
//! place in a reserve in which only health is answered. Those of the front proxy have
//! room of their own.

use super::admission::{Room, Shares};
use prometheus_client::metrics::gauge::Gauge;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// How many connections are held at once, those of the front proxy apart.
pub const CONNECTIONS: usize = 1024;
/// How many connections of one address are safe from giving way, once their clients have
/// shown who they are. It may have more as long as nobody else wants their places.
pub const PER_SOURCE: usize = 256;
/// How many connections of the front proxy are held beside the others.
pub const FRONT_PROXY: usize = 256;
/// How many more are held that only health is told, so that a probe gets through a crowd.
pub const RESERVE: usize = 128;
/// How many of these one address may have, so that it can't hold up the others.
const RESERVE_PER_SOURCE: usize = 64;
/// How many connections wait for such a place.
const WAITING: usize = 1024;

/// How long a client may take until the head of its first request is there, TLS included.
const FIRST_REQUEST: Duration = Duration::from_secs(10);
/// How long a connection may be silent whose client has not shown who it is.
const UNKNOWN_IDLE: Duration = Duration::from_secs(15);
/// How old such a connection may become, whatever is asked on it.
const UNKNOWN_AGE: Duration = Duration::from_secs(60);
/// How long any other may be silent; as long as with k8s.io/apiserver.
const IDLE: Duration = Duration::from_secs(90);
/// How long a connection that came in a crowd may last, and for how long any other has
/// time to show who its client is before it may have to give way.
const CROWDED: Duration = Duration::from_secs(2);

/// What is known of a connection's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It has not shown who it is, or others of its address have, and more than enough.
    Unknown,
    /// A request of it was authenticated.
    Known,
    /// It has shown the front proxy's certificate.
    FrontProxy,
    /// It came when there was no room: only health is answered.
    Crowded,
}

/// All connections that are held.
#[derive(Clone, Debug, Default)]
pub struct Connections {
    state: Arc<Mutex<State>>,
    reserve: Arc<Reserve>,
    /// Shows how many they are.
    gauge: Gauge,
}

/// Room for connections in a crowd.
#[derive(Debug)]
struct Reserve {
    by_source: Shares<IpAddr>,
    all: Room,
}

impl Default for Reserve {
    fn default() -> Self {
        Self {
            by_source: Shares::with_waiting(RESERVE_PER_SOURCE, WAITING),
            all: Room::with_waiting(RESERVE, WAITING),
        }
    }
}

/// A connection's place, and what ends when it has to give way.
pub type Admitted = (Place, oneshot::Receiver<()>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// By number, so that the oldest come first.
    held: BTreeMap<u64, Held>,
}

#[derive(Debug)]
struct Held {
    source: IpAddr,
    standing: Standing,
    accepted: Instant,
    /// When the last request began or ended.
    active: Option<Instant>,
    /// Ends the connection when it is dropped.
    _end: oneshot::Sender<()>,
}

/// The place of one connection; it is given back when this is dropped.
#[derive(Debug)]
pub struct Place {
    connections: Connections,
    number: u64,
    _permits: Vec<OwnedSemaphorePermit>,
}

impl Connections {
    /// None yet; the gauge shows how many there are.
    pub fn shown_by(gauge: Gauge) -> Self {
        Self { gauge, ..Self::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a new connection in; none where there is no room for it.
    pub fn admit(&self, source: IpAddr) -> Option<Admitted> {
        let mut state = self.state();
        let room = state.has_room(Instant::now());
        room.then(|| self.hold(&mut state, source, Standing::Unknown, Vec::new()))
    }

    /// Takes a new connection in where there is no room for it: it waits for a place in
    /// the reserve; none where too many wait.
    pub async fn admit_in_crowd(&self, source: IpAddr) -> Option<Admitted> {
        let own = self.reserve.by_source.of(source).take().await?;
        let permits = vec![own, self.reserve.all.take().await?];
        Some(self.hold(&mut self.state(), source, Standing::Crowded, permits))
    }

    fn hold(
        &self,
        state: &mut State,
        source: IpAddr,
        standing: Standing,
        permits: Vec<OwnedSemaphorePermit>,
    ) -> Admitted {
        let (end, ended) = oneshot::channel();
        let number = state.next;
        state.next += 1;
        let accepted = Instant::now();
        state.held.insert(number, Held { source, standing, accepted, active: None, _end: end });
        self.gauge.inc();
        (Place { connections: self.clone(), number, _permits: permits }, ended)
    }
}

impl State {
    fn count(&self, which: impl Fn(&Held) -> bool) -> usize {
        self.held.values().filter(|held| which(held)).count()
    }

    /// Ends the oldest connection of some; false where there is none.
    fn end_oldest(&mut self, which: impl Fn(&Held) -> bool) -> bool {
        let oldest = self.held.iter().find(|(_, held)| which(held)).map(|(number, _)| *number);
        oldest.is_some_and(|number| self.held.remove(&number).is_some())
    }

    /// Makes room for one more, where it can be made.
    fn has_room(&mut self, now: Instant) -> bool {
        let ordinary = |held: &Held| matches!(held.standing, Standing::Unknown | Standing::Known);
        let yields =
            |held: &Held| held.standing == Standing::Unknown && held.accepted + CROWDED <= now;
        if self.count(ordinary) < CONNECTIONS {
            return true;
        }
        // The source that holds most of those that may give way does.
        let mut unknown: HashMap<IpAddr, usize> = HashMap::new();
        for held in self.held.values().filter(|held| yields(held)) {
            *unknown.entry(held.source).or_default() += 1;
        }
        let Some((most, _)) = unknown.into_iter().max_by_key(|(_, count)| *count) else {
            return false;
        };
        self.end_oldest(|held| yields(held) && held.source == most)
    }
}

impl Place {
    fn change(&self, change: impl FnOnce(&mut Held)) {
        if let Some(held) = self.connections.state().held.get_mut(&self.number) {
            change(held);
        }
    }

    /// Whether it came when there were too many.
    pub fn is_crowded(&self) -> bool {
        let state = self.connections.state();
        state.held.get(&self.number).is_none_or(|held| held.standing == Standing::Crowded)
    }

    /// Its client has shown the front proxy's certificate.
    pub fn is_of_front_proxy(&self) {
        let mut state = self.connections.state();
        let room = state.count(|held| held.standing == Standing::FrontProxy) < FRONT_PROXY;
        if let Some(held) = state.held.get_mut(&self.number).filter(|_| room) {
            held.standing = Standing::FrontProxy;
        }
    }

    /// A request on it was authenticated.
    pub fn is_known(&self) {
        let mut state = self.connections.state();
        let Some(source) = state.held.get(&self.number).map(|held| held.source) else { return };
        let known = |held: &Held| held.standing == Standing::Known && held.source == source;
        let room = state.count(known) < PER_SOURCE;
        if let Some(held) = state.held.get_mut(&self.number).filter(|_| room)
            && held.standing == Standing::Unknown
        {
            held.standing = Standing::Known;
        }
    }

    /// A request on it has begun; it is answered, or given up, when what is
    /// returned is dropped.
    pub fn begin(self: Arc<Self>) -> UnderWay {
        self.is_active();
        UnderWay(self)
    }

    fn is_active(&self) {
        self.change(|held| held.active = Some(Instant::now()));
    }

    /// Until when it may last, where nothing more happens on it.
    pub fn deadline(&self) -> Instant {
        let state = self.connections.state();
        let Some(held) = state.held.get(&self.number) else { return Instant::now() };
        match (held.standing, held.active) {
            (Standing::Crowded, _) => held.accepted + CROWDED,
            (_, None) => held.accepted + FIRST_REQUEST,
            (Standing::Unknown, Some(active)) => {
                (active + UNKNOWN_IDLE).min(held.accepted + UNKNOWN_AGE)
            }
            (Standing::Known | Standing::FrontProxy, Some(active)) => active + IDLE,
        }
    }
}

/// A request that is under way on a connection.
#[derive(Debug)]
pub struct UnderWay(Arc<Place>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.is_active();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.state().held.remove(&self.number);
        self.connections.gauge.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn source(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    fn is_ended(admitted: &mut Admitted) -> bool {
        admitted.1.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    fn ended(admitted: &mut [Admitted]) -> usize {
        admitted.iter_mut().map(|one| usize::from(is_ended(one))).sum()
    }

    fn admit(connections: &Connections, count: usize, n: u8) -> Vec<Admitted> {
        (0..count).map_while(|_| connections.admit(source(n))).collect()
    }

    /// All that are held had their time.
    fn grow_old(connections: &Connections) {
        for held in connections.state().held.values_mut() {
            held.accepted = held.accepted.checked_sub(CROWDED).expect("the clock runs for so long");
        }
    }

    #[test]
    fn an_address_that_shows_nothing_only_ends_its_own_connections() {
        let connections = Connections::default();
        let mut other = admit(&connections, 1, 1);
        let mut flood = admit(&connections, CONNECTIONS + 10, 2);
        // Each has its time.
        assert_eq!((flood.len(), ended(&mut flood)), (CONNECTIONS - 1, 0));
        grow_old(&connections);
        let (new, probe) = (admit(&connections, 10, 2), admit(&connections, 1, 3));
        assert_eq!((new.len(), probe.len()), (10, 1));
        assert_eq!((ended(&mut flood), ended(&mut other)), (11, 0));
        assert!(is_ended(&mut flood[10]) && !is_ended(&mut flood[11]));
        drop((flood, new, probe));
        assert_eq!((connections.state().held.len(), connections.gauge.get()), (1, 1));
    }

    #[test]
    fn an_address_that_shows_who_it_is_keeps_its_part_and_no_more() {
        let connections = Connections::default();
        let mut held = admit(&connections, CONNECTIONS, 1);
        held.iter().for_each(|(place, _)| place.is_known());
        assert!(connections.admit(source(9)).is_none());
        grow_old(&connections);
        let new = admit(&connections, CONNECTIONS, 9);
        assert_eq!(
            (new.len(), ended(&mut held)),
            (CONNECTIONS - PER_SOURCE, CONNECTIONS - PER_SOURCE)
        );
        assert_eq!(ended(&mut held[..PER_SOURCE]), 0);
        assert!(new.iter().all(|(place, _)| !place.is_crowded()));
    }

    #[tokio::test]
    async fn where_all_are_known_health_waits_for_its_turn_and_the_front_proxy_has_room() {
        let connections = Connections::default();
        let mut held: Vec<Admitted> =
            (0..4).flat_map(|n| admit(&connections, PER_SOURCE, n)).collect();
        held.iter().for_each(|(place, _)| place.is_known());
        grow_old(&connections);
        assert!(connections.admit(source(9)).is_none());
        let crowd = |n: u8| connections.admit_in_crowd(source(n)).now_or_never().flatten();
        let mut crowded: Vec<Admitted> = std::iter::from_fn(|| crowd(8)).collect();
        assert_eq!(crowded.len(), RESERVE_PER_SOURCE);
        // An address that fills its part does not hold up others.
        let probe = crowd(9).expect("there is room");
        assert!(probe.0.is_crowded() && crowd(8).is_none());
        // One that waits has the next place.
        let waiting = tokio::spawn({
            let connections = connections.clone();
            async move { connections.admit_in_crowd(source(8)).await.is_some() }
        });
        tokio::task::yield_now().await;
        drop(crowded.pop());
        assert!(waiting.await.expect("no panic"));
        crowded[1].0.is_of_front_proxy();
        assert!(!crowded[1].0.is_crowded());
        assert_eq!(ended(&mut held), 0);
    }

    #[test]
    fn who_has_shown_nothing_is_given_less_time() {
        let connections = Connections::default();
        let (place, _ended) = connections.admit(source(1)).expect("there is room");
        let left = || place.deadline().saturating_duration_since(Instant::now());
        assert!(left() <= FIRST_REQUEST);
        place.is_active();
        assert!(left() > FIRST_REQUEST && left() <= UNKNOWN_IDLE);
        place.is_known();
        assert!(left() > UNKNOWN_AGE && left() <= IDLE);
    }
}
