//! The connection limit, and which connections are evicted when it is reached.
//!
//! At the limit, a new connection evicts one of the owner with the most connections. That owner
//! is an address whose clients are anonymous and had the time to authenticate or, if more than
//! half of all connections are authenticated, a tenant. So neither idle connections nor those of
//! one tenant lock others out.
//!
//! If no connection can be evicted, the new one is an overflow connection: it queues for one of a
//! few reserved slots, in which only health endpoints are served. The next slot goes to the
//! address that has the fewest of them. If the queue is full, the oldest connection of the
//! address with the most is dropped. So a kubelet's probe never waits for a flood from other
//! addresses.
//!
//! Connections of the front proxy have a limit of their own.

mod limiter;
mod limits;
mod table;

pub use limiter::{ConnectionHandle, ConnectionLimiter, Peer, RequestInFlight};
pub use limits::{MAX_CONNECTIONS, MAX_FRONT_PROXY_CONNECTIONS, MAX_QUEUED, OVERFLOW_SLOTS};
