//! Which connections are held, and which give way when there are too many.
//!
//! Where there are too many, one of whoever has most is ended in favour of a new one: of
//! an address whose clients have not shown who they are and had their time to, or, where
//! more than half are of known clients, of a tenant. So neither silent connections nor one
//! tenant's keep others out. Where none can be ended, a new one waits for a place in a reserve
//! in which only health is answered. The next place is for the address that has fewest of
//! them; where too many wait, the one that has waited longest of the address with most is
//! dropped. So a probe waits for no other address. Those of the front proxy have room of
//! their own.

use prometheus_client::metrics::gauge::Gauge;
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How many connections are held at once, those of the front proxy apart.
pub const CONNECTIONS: usize = 1024;
/// How many connections of the front proxy are held beside the others.
pub const FRONT_PROXY: usize = 256;
/// How many more are held that only health is told, so that a probe gets through a crowd.
pub const RESERVE: usize = 128;
/// How many of these one address may have, so that it can't hold up the others.
const RESERVE_PER_SOURCE: usize = 64;
/// How many connections wait for such a place.
pub const WAITING: usize = 1024;
/// How many of these may be of one address.
const WAITING_PER_SOURCE: usize = 64;

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

/// A connection's place, and what ends when it has to give way.
pub type Admitted = (Arc<Place>, oneshot::Receiver<()>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// By number, so that the oldest come first.
    held: BTreeMap<u64, Held>,
    /// Those that wait for a place in the reserve, and what tells them that they have it.
    waiting: BTreeMap<u64, (Held, oneshot::Sender<()>)>,
}

#[derive(Debug)]
struct Held {
    source: IpAddr,
    standing: Standing,
    /// Whose the last request was.
    tenant: Option<String>,
    accepted: Instant,
    /// When the last request began or ended.
    active: Option<Instant>,
    /// How many requests are under way.
    running: usize,
    /// Ends the connection when it is dropped.
    _end: oneshot::Sender<()>,
}

/// The place of one connection, or its turn among those that wait; it is given back when
/// this is dropped.
#[derive(Debug)]
pub struct Place {
    connections: Connections,
    number: u64,
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
        if !state.has_room(source, Instant::now()) {
            return None;
        }
        let (admitted, held) = self.place(&mut state, source, Standing::Unknown);
        state.held.insert(admitted.0.number, held);
        self.show(&state);
        Some(admitted)
    }

    /// Takes a new connection in where there is no room for it: at once it waits for a place
    /// in the reserve; none where too many wait.
    pub fn admit_in_crowd(
        &self,
        source: IpAddr,
    ) -> impl Future<Output = Option<Admitted>> + Send + use<> {
        let (turn, its_turn) = oneshot::channel();
        let mut state = self.state();
        let (admitted, held) = self.place(&mut state, source, Standing::Crowded);
        state.waiting.insert(admitted.0.number, (held, turn));
        state.drop_one_of_too_many();
        state.hand_out();
        self.show(&state);
        drop(state);
        async move { its_turn.await.ok().map(|()| admitted) }
    }

    fn place(&self, state: &mut State, source: IpAddr, standing: Standing) -> (Admitted, Held) {
        let (end, ended) = oneshot::channel();
        let number = state.next;
        state.next += 1;
        let accepted = Instant::now();
        let held =
            Held { source, standing, tenant: None, accepted, active: None, running: 0, _end: end };
        ((Arc::new(Place { connections: self.clone(), number }), ended), held)
    }

    fn show(&self, state: &State) {
        self.gauge.set(i64::try_from(state.held.len()).unwrap_or(i64::MAX));
    }
}

impl State {
    fn count(&self, which: impl Fn(&Held) -> bool) -> usize {
        self.held.values().filter(|held| which(held)).count()
    }

    /// Makes room for one more of a source, where it can be made: of those that may give
    /// way, one of whoever has most of them is ended. It is the oldest; those on which a
    /// request is under way are the last.
    fn has_room(&mut self, new: IpAddr, now: Instant) -> bool {
        let known = self.count(|held| held.standing == Standing::Known);
        let unknown = self.count(|held| held.standing == Standing::Unknown);
        if known + unknown < CONNECTIONS {
            return true;
        }
        let mut of_source: HashMap<IpAddr, usize> = HashMap::new();
        for held in self.held.values().filter(|held| held.standing == Standing::Unknown) {
            *of_source.entry(held.source).or_default() += 1;
        }
        let yields = |held: &Held| match held.standing {
            // A burst of one source does not keep out the others.
            Standing::Unknown => {
                held.accepted + CROWDED <= now
                    || (held.source != new && of_source[&held.source] > CONNECTIONS / 4)
            }
            // Who is unknown takes no more than half from those who are known.
            Standing::Known => known > CONNECTIONS / 2,
            Standing::FrontProxy | Standing::Crowded => false,
        };
        let mut by_holder: HashMap<Holder<'_>, (usize, (bool, u64))> = HashMap::new();
        for (number, held) in self.held.iter().filter(|(_, held)| yields(held)) {
            let holder = held.tenant.as_deref().map_or(Holder::Source(held.source), Holder::Tenant);
            let place = (held.running > 0, *number);
            let (count, first) = by_holder.entry(holder).or_insert((0, place));
            (*count, *first) = (*count + 1, place.min(*first));
        }
        let most = by_holder.into_values().max_by_key(|(count, _)| *count);
        most.is_some_and(|(_, (_, number))| self.held.remove(&number).is_some())
    }

    /// Drops one of those that wait, where they are too many: of the source with most of them
    /// the one that has waited longest.
    fn drop_one_of_too_many(&mut self) {
        let mut of_source: HashMap<IpAddr, (usize, u64)> = HashMap::new();
        for (number, (held, _)) in &self.waiting {
            of_source.entry(held.source).or_insert((0, *number)).0 += 1;
        }
        let most = of_source.into_values().max_by_key(|(count, _)| *count);
        if let Some((count, oldest)) = most
            && (count > WAITING_PER_SOURCE || self.waiting.len() > WAITING)
        {
            self.waiting.remove(&oldest);
        }
    }

    /// Hands out the places of the reserve that are free: the next one is for the source that
    /// has fewest of them, and there for the connection that has waited longest.
    fn hand_out(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let mut taken: HashMap<IpAddr, usize> = HashMap::new();
        for held in self.held.values().filter(|held| held.standing == Standing::Crowded) {
            *taken.entry(held.source).or_default() += 1;
        }
        while taken.values().sum::<usize>() < RESERVE {
            let has = |held: &Held| taken.get(&held.source).copied().unwrap_or(0);
            let waiting = self.waiting.iter().map(|(number, (held, _))| (has(held), *number));
            let next = waiting.filter(|(has, _)| *has < RESERVE_PER_SOURCE).min();
            let next = next.and_then(|(_, number)| self.waiting.remove_entry(&number));
            let Some((number, (mut held, turn))) = next else { return };
            *taken.entry(held.source).or_default() += 1;
            held.accepted = Instant::now();
            self.held.insert(number, held);
            // Who no longer waits gives it back.
            let _ = turn.send(());
        }
    }
}

/// Whose a connection is: a tenant's, where it is known, or an address's.
#[derive(PartialEq, Eq, Hash)]
enum Holder<'a> {
    Source(IpAddr),
    Tenant(&'a str),
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
            state.hand_out();
        }
    }

    /// A request on it was authenticated as a tenant's.
    pub fn is_known(&self, tenant: &str) {
        self.change(|held| {
            if held.standing == Standing::Unknown {
                held.standing = Standing::Known;
            }
            if held.tenant.as_deref() != Some(tenant) {
                held.tenant = Some(tenant.to_owned());
            }
        });
    }

    /// A request on it has begun; it is answered, or given up, when what is
    /// returned is dropped.
    pub fn begin(self: Arc<Self>) -> UnderWay {
        self.change(|held| {
            held.running += 1;
            held.active = Some(Instant::now());
        });
        UnderWay(self)
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
        self.0.change(|held| {
            held.running = held.running.saturating_sub(1);
            held.active = Some(Instant::now());
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.connections.state();
        state.held.remove(&self.number);
        state.waiting.remove(&self.number);
        state.hand_out();
        self.connections.show(&state);
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
        let earlier = |at: Instant| at.checked_sub(CROWDED).expect("the clock runs for so long");
        for held in connections.state().held.values_mut() {
            held.accepted = earlier(held.accepted);
            held.active = held.active.map(earlier);
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

    /// A request of a tenant is answered on each.
    fn ask(admitted: &[Admitted], tenant: &str) -> Vec<UnderWay> {
        let begin = |(place, _): &Admitted| {
            place.is_known(tenant);
            place.clone().begin()
        };
        admitted.iter().map(begin).collect()
    }

    #[test]
    fn the_tenant_with_most_connections_gives_way_however_busy_they_are() {
        let connections = Connections::default();
        let mut scraper = admit(&connections, 1, 9);
        drop(ask(&scraper, "monitoring"));
        let mut held: Vec<Admitted> =
            (0..4).flat_map(|n| admit(&connections, CONNECTIONS / 4, n)).collect();
        assert_eq!(held.len(), CONNECTIONS - 1);
        // None of them is idle for long, and some are being answered.
        let mut under_way = ask(&held, "mallory");
        under_way.truncate(100);
        let mut new = admit(&connections, 50, 8);
        drop(ask(&new, "shop"));
        new.extend(admit(&connections, 50, 7));
        assert_eq!((new.len(), ended(&mut new), ended(&mut scraper)), (100, 0, 0));
        assert_eq!((ended(&mut held[..100]), ended(&mut held)), (0, 100));
    }

    #[test]
    fn who_shows_nothing_ends_no_connection_of_a_client_that_is_known() {
        let connections = Connections::default();
        let mut known = admit(&connections, 20, 1);
        drop(ask(&known, "monitoring"));
        grow_old(&connections);
        let mut flood = admit(&connections, 2 * CONNECTIONS, 2);
        assert_eq!(flood.len(), CONNECTIONS - 20);
        // All of them are new; another address has its place nevertheless.
        let mut new = admit(&connections, 10, 3);
        assert_eq!((new.len(), ended(&mut new), ended(&mut known)), (10, 0, 0));
        assert_eq!(ended(&mut flood), 10);
    }

    #[test]
    fn a_probe_that_is_slow_to_ask_is_not_ended_for_a_tenant_that_has_most() {
        let connections = Connections::default();
        let mut probe = admit(&connections, 1, 1);
        let mut storm = admit(&connections, CONNECTIONS - 1, 1);
        drop(ask(&storm, "shop"));
        grow_old(&connections);
        let new = admit(&connections, 100, 1);
        assert_eq!((new.len(), ended(&mut storm), ended(&mut probe)), (100, 100, 0));
    }

    #[tokio::test]
    async fn in_a_burst_health_waits_for_its_turn_and_the_front_proxy_has_room() {
        let connections = Connections::default();
        let mut held = admit(&connections, CONNECTIONS, 8);
        assert!(connections.admit(source(8)).is_none());
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
    fn a_probe_waits_for_no_flood_of_other_addresses() {
        let connections = Connections::default();
        let _held = admit(&connections, CONNECTIONS, 1);
        let wait = |n: usize| Box::pin(connections.admit_in_crowd(source(n as u8)));
        let mut flood: Vec<_> = (0..RESERVE).map(|n| wait(n % 5 + 1).now_or_never()).collect();
        assert!(flood.iter().flatten().all(Option::is_some));
        let mut waiting: Vec<_> = (0..5_000).map(|n| wait(n % 5 + 1)).collect();
        let mut probe = wait(9);
        // The first that waited gave way to those that came later.
        let gone = waiting.iter_mut().filter_map(|one| one.as_mut().now_or_never());
        assert_eq!(gone.filter(Option::is_none).count(), 5_000 - 5 * WAITING_PER_SOURCE);
        flood.pop();
        let probe = probe.as_mut().now_or_never().flatten();
        assert!(probe.is_some(), "the next place is the probe's");
    }

    #[test]
    fn those_that_wait_are_bounded_and_the_address_with_most_gives_way() {
        let connections = Connections::default();
        let _held = admit(&connections, CONNECTIONS, 1);
        let wait = |n: u8| connections.admit_in_crowd(source(n));
        let mut waiting: Vec<_> = (0..RESERVE).map(|n| wait(n as u8 % 2)).collect();
        waiting.extend((0..WAITING).map(|n| wait(10 + n as u8 % 32)));
        waiting.push(wait(9));
        let state = connections.state();
        let of = |n: u8| state.waiting.values().filter(move |(held, _)| held.source == source(n));
        assert_eq!((state.waiting.len(), of(9).count()), (WAITING, 1));
        drop(state);
        drop(waiting);
        assert_eq!((connections.state().waiting.len(), connections.gauge.get()), (0, 1024));
    }

    #[test]
    fn who_has_shown_nothing_is_given_less_time() {
        let connections = Connections::default();
        let (place, _ended) = connections.admit(source(1)).expect("there is room");
        let left = || place.deadline().saturating_duration_since(Instant::now());
        assert!(left() <= FIRST_REQUEST);
        drop(place.clone().begin());
        assert!(left() > FIRST_REQUEST && left() <= UNKNOWN_IDLE);
        place.is_known("shop");
        assert!(left() > UNKNOWN_AGE && left() <= IDLE);
    }
}
