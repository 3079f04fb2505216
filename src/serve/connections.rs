//! Which connections are held, and which give way when there are too many.
//!
//! A connection whose client has not shown who it is can be ended in favour of a
//! new one, the oldest first, so that silent connections never keep others out.
//! Those of the front proxy have room of their own.

use prometheus_client::metrics::gauge::Gauge;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How many connections are held at once, those of the front proxy apart.
pub const CONNECTIONS: usize = 1024;
/// How many of them one address may have.
pub const PER_SOURCE: usize = 256;
/// How many connections of the front proxy are held beside the others.
pub const FRONT_PROXY: usize = 256;
/// How many more are held that only health is told, so that a probe gets through a crowd.
pub const RESERVE: usize = 128;

/// How long a client may take until the head of its first request is there, TLS included.
const FIRST_REQUEST: Duration = Duration::from_secs(10);
/// How long a connection may be silent whose client has not shown who it is.
const UNKNOWN_IDLE: Duration = Duration::from_secs(15);
/// How old such a connection may become, whatever is asked on it.
const UNKNOWN_AGE: Duration = Duration::from_secs(60);
/// How long any other may be silent; as long as with k8s.io/apiserver.
const IDLE: Duration = Duration::from_secs(90);
/// How long a connection that came in a crowd may last.
const CROWDED: Duration = Duration::from_secs(2);

/// What is known of a connection's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It has not shown who it is.
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
    /// Shows how many they are.
    gauge: Gauge,
}

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
}

impl Connections {
    /// None yet; the gauge shows how many there are.
    pub fn shown_by(gauge: Gauge) -> Self {
        Self { state: Arc::default(), gauge }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a new connection in. What is returned beside its place ends when
    /// the connection has to give way.
    pub fn admit(&self, source: SocketAddr) -> (Place, oneshot::Receiver<()>) {
        let source = source.ip().to_canonical();
        let mut state = self.state();
        let crowded = !state.has_room(source);
        if crowded && state.count(|held| held.standing == Standing::Crowded) >= RESERVE {
            state.end_oldest(|held| held.standing == Standing::Crowded);
        }
        let (end, ended) = oneshot::channel();
        let number = state.next;
        state.next += 1;
        let standing = if crowded { Standing::Crowded } else { Standing::Unknown };
        let accepted = Instant::now();
        state.held.insert(number, Held { source, standing, accepted, active: None, _end: end });
        self.gauge.inc();
        (Place { connections: self.clone(), number }, ended)
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

    /// Makes room for one more of a source, where it can be made.
    fn has_room(&mut self, source: IpAddr) -> bool {
        let ordinary = |held: &Held| matches!(held.standing, Standing::Unknown | Standing::Known);
        if self.count(|held| ordinary(held) && held.source == source) >= PER_SOURCE {
            return self.end_oldest(|h| h.standing == Standing::Unknown && h.source == source);
        }
        if self.count(ordinary) < CONNECTIONS {
            return true;
        }
        // The source that holds most without having shown who it is gives way.
        let mut unknown: HashMap<IpAddr, usize> = HashMap::new();
        for held in self.held.values().filter(|held| held.standing == Standing::Unknown) {
            *unknown.entry(held.source).or_default() += 1;
        }
        let Some((most, _)) = unknown.into_iter().max_by_key(|(_, count)| *count) else {
            return false;
        };
        self.end_oldest(|held| held.standing == Standing::Unknown && held.source == most)
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
        self.change(|held| {
            if held.standing == Standing::Unknown {
                held.standing = Standing::Known;
            }
        });
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

    fn source(n: u8) -> SocketAddr {
        ([10, 0, 0, n], 40_000).into()
    }

    type Admitted = (Place, oneshot::Receiver<()>);

    fn is_ended(admitted: &mut Admitted) -> bool {
        admitted.1.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn an_address_that_shows_nothing_only_ends_its_own_connections() {
        let connections = Connections::default();
        let mut other = connections.admit(source(1));
        let mut flood: Vec<Admitted> =
            (0..PER_SOURCE + 10).map(|_| connections.admit(source(2))).collect();
        assert!(!is_ended(&mut other));
        assert_eq!(flood.iter_mut().filter_map(|one| is_ended(one).then_some(())).count(), 10);
        assert!(is_ended(&mut flood[9]) && !is_ended(&mut flood[10]));
        assert!(flood[10..].iter().all(|(place, _)| !place.is_crowded()));
        drop(flood);
        assert_eq!((connections.state().held.len(), connections.gauge.get()), (1, 1));
    }

    #[test]
    fn when_all_is_full_the_largest_holder_gives_way() {
        let connections = Connections::default();
        let mut held: Vec<Admitted> = Vec::new();
        for n in 0..4 {
            held.extend((0..PER_SOURCE).map(|_| connections.admit(source(n))));
        }
        held[0].0.is_known();
        let mut probe = connections.admit(source(9));
        assert!(!probe.0.is_crowded());
        assert_eq!(held.iter_mut().filter_map(|one| is_ended(one).then_some(())).count(), 1);
        assert!(!is_ended(&mut held[0]) && !is_ended(&mut probe));
    }

    #[test]
    fn where_all_are_known_new_ones_are_for_health_alone_and_the_front_proxy_has_room() {
        let connections = Connections::default();
        let mut held: Vec<Admitted> = Vec::new();
        for n in 0..4 {
            held.extend((0..PER_SOURCE).map(|_| connections.admit(source(n))));
        }
        held.iter().for_each(|(place, _)| place.is_known());
        let mut crowd: Vec<Admitted> =
            (0..RESERVE + 1).map(|_| connections.admit(source(9))).collect();
        assert!(held.iter_mut().all(|one| !is_ended(one)));
        assert!(crowd[1..].iter().all(|(place, _)| place.is_crowded()));
        assert!(is_ended(&mut crowd[0]) && !is_ended(&mut crowd[1]));
        crowd[1].0.is_of_front_proxy();
        assert!(!crowd[1].0.is_crowded());
    }

    #[test]
    fn who_has_shown_nothing_is_given_less_time() {
        let connections = Connections::default();
        let (place, _ended) = connections.admit(source(1));
        let left = || place.deadline().saturating_duration_since(Instant::now());
        assert!(left() <= FIRST_REQUEST);
        place.is_active();
        assert!(left() > FIRST_REQUEST && left() <= UNKNOWN_IDLE);
        place.is_known();
        assert!(left() > UNKNOWN_AGE && left() <= IDLE);
    }
}
