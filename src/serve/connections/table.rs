//! The table of connections: which one is evicted at the limit, and which queued one is next.

use super::limits::{
    GRACE_PERIOD, MAX_CONNECTIONS, MAX_QUEUED, MAX_QUEUED_PER_SOURCE, OVERFLOW_SLOTS,
    OVERFLOW_SLOTS_PER_SOURCE,
};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The class of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// No request on it was authenticated yet.
    Anonymous,
    /// A request on it was authenticated.
    Authenticated,
    /// It has the certificate of the front proxy.
    FrontProxy,
    /// It was accepted at the limit: only health endpoints are served.
    Overflow,
}

/// The connections, open and queued.
#[derive(Debug, Default)]
pub struct ConnectionTable {
    next_number: u64,
    /// The open connections by number, the oldest first.
    pub open: BTreeMap<u64, ConnectionState>,
    /// The overflow connections that queue for a slot, and the channel that grants it.
    pub queue: BTreeMap<u64, (ConnectionState, oneshot::Sender<()>)>,
}

/// One connection.
#[derive(Debug)]
pub struct ConnectionState {
    /// The address of the client.
    pub source: IpAddr,
    /// The class.
    pub class: Class,
    /// The tenant of the last authenticated request.
    pub tenant: Option<String>,
    /// When it was accepted or, for an overflow connection, got its slot.
    pub accepted: Instant,
    /// When the last request began or ended.
    pub last_active: Option<Instant>,
    /// The number of requests in flight.
    pub in_flight: usize,
    /// Evicts the connection when it is dropped.
    _evict: oneshot::Sender<()>,
}

/// The number of a connection, and the channel that closes when it is evicted.
pub type Registration = (u64, oneshot::Receiver<()>);

impl ConnectionTable {
    /// Adds an open connection of an anonymous client.
    pub fn open(&mut self, source: IpAddr) -> Registration {
        let ((number, evicted), connection) = self.create(source, Class::Anonymous);
        self.open.insert(number, connection);
        (number, evicted)
    }

    /// Adds a queued overflow connection. The second channel grants its slot.
    pub fn enqueue(&mut self, source: IpAddr) -> (Registration, oneshot::Receiver<()>) {
        let (grant, granted) = oneshot::channel();
        let ((number, evicted), connection) = self.create(source, Class::Overflow);
        self.queue.insert(number, (connection, grant));
        ((number, evicted), granted)
    }

    fn create(&mut self, source: IpAddr, class: Class) -> (Registration, ConnectionState) {
        let (evict, evicted) = oneshot::channel();
        let number = self.next_number;
        self.next_number += 1;
        let connection = ConnectionState {
            source,
            class,
            tenant: None,
            accepted: Instant::now(),
            last_active: None,
            in_flight: 0,
            _evict: evict,
        };
        ((number, evicted), connection)
    }

    /// The number of open connections of a class.
    pub fn count(&self, class: Class) -> usize {
        self.open.values().filter(|connection| connection.class == class).count()
    }

    /// Makes room for a new connection of an address. At the limit, it evicts a connection of the
    /// owner that has the most evictable ones: the oldest, but idle ones first. Returns whether
    /// there is room.
    pub fn make_room(&mut self, new: IpAddr, now: Instant) -> bool {
        let authenticated = self.count(Class::Authenticated);
        if authenticated + self.count(Class::Anonymous) < MAX_CONNECTIONS {
            return true;
        }
        let mut anonymous: HashMap<IpAddr, usize> = HashMap::new();
        for connection in self.open.values().filter(|one| one.class == Class::Anonymous) {
            *anonymous.entry(connection.source).or_default() += 1;
        }
        let is_evictable = |connection: &ConnectionState| match connection.class {
            // A burst of one address does not lock out the others.
            Class::Anonymous => {
                let source = connection.source;
                connection.accepted + GRACE_PERIOD <= now
                    || (source != new && anonymous[&source] > MAX_CONNECTIONS / 4)
            }
            // Anonymous clients leave at least half of the limit to authenticated ones.
            Class::Authenticated => authenticated > MAX_CONNECTIONS / 2,
            Class::FrontProxy | Class::Overflow => false,
        };
        let mut by_owner: HashMap<Owner<'_>, (usize, (bool, u64))> = HashMap::new();
        for (number, connection) in self.open.iter().filter(|(_, one)| is_evictable(one)) {
            let tenant = connection.tenant.as_deref();
            let owner = tenant.map_or(Owner::Source(connection.source), Owner::Tenant);
            let rank = (connection.in_flight > 0, *number);
            let (count, first) = by_owner.entry(owner).or_insert((0, rank));
            (*count, *first) = (*count + 1, rank.min(*first));
        }
        let largest = by_owner.into_values().max_by_key(|(count, _)| *count);
        largest.is_some_and(|(_, (_, number))| self.open.remove(&number).is_some())
    }

    /// If the queue is too long, drops the oldest connection of the address with the most.
    pub fn shed_queued(&mut self) {
        let mut of_source: HashMap<IpAddr, (usize, u64)> = HashMap::new();
        for (number, (connection, _)) in &self.queue {
            of_source.entry(connection.source).or_insert((0, *number)).0 += 1;
        }
        let largest = of_source.into_values().max_by_key(|(count, _)| *count);
        if let Some((count, oldest)) = largest
            && (count > MAX_QUEUED_PER_SOURCE || self.queue.len() > MAX_QUEUED)
        {
            self.queue.remove(&oldest);
        }
    }

    /// Grants the free overflow slots: the next one to the address that has the fewest, and there
    /// to the connection that is queued longest.
    pub fn grant_slots(&mut self) {
        if self.queue.is_empty() {
            return;
        }
        let mut taken: HashMap<IpAddr, usize> = HashMap::new();
        for connection in self.open.values().filter(|one| one.class == Class::Overflow) {
            *taken.entry(connection.source).or_default() += 1;
        }
        while taken.values().sum::<usize>() < OVERFLOW_SLOTS {
            let has = |one: &ConnectionState| taken.get(&one.source).copied().unwrap_or(0);
            let queued = self.queue.iter().map(|(number, (one, _))| (has(one), *number));
            let next = queued.filter(|(has, _)| *has < OVERFLOW_SLOTS_PER_SOURCE).min();
            let next = next.and_then(|(_, number)| self.queue.remove_entry(&number));
            let Some((number, (mut connection, grant))) = next else { return };
            *taken.entry(connection.source).or_default() += 1;
            connection.accepted = Instant::now();
            self.open.insert(number, connection);
            // A connection that is no longer waited for is removed by its handle.
            let _ = grant.send(());
        }
    }
}

/// The owner of a connection: its tenant if it is authenticated, else its address.
#[derive(PartialEq, Eq, Hash)]
enum Owner<'a> {
    Source(IpAddr),
    Tenant(&'a str),
}
