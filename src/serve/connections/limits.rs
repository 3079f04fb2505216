//! Limits of the number of connections, and their timeouts.

use std::time::Duration;

/// The connection limit, besides the front proxy's.
pub const MAX_CONNECTIONS: usize = 1024;
/// The connection limit of the front proxy.
pub const MAX_FRONT_PROXY_CONNECTIONS: usize = 256;
/// The number of reserved slots for overflow connections, so that probes are served at the limit.
pub const OVERFLOW_SLOTS: usize = 128;
/// The number of them per address.
pub const OVERFLOW_SLOTS_PER_SOURCE: usize = 64;
/// The length of the queue for these slots.
pub const MAX_QUEUED: usize = 1024;
/// The number of queued connections per address.
pub const MAX_QUEUED_PER_SOURCE: usize = 64;

/// How long a client may take until the head of its first request, TLS included.
pub const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an anonymous connection may be idle.
pub const ANONYMOUS_IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// How long an anonymous connection may last, idle or not.
pub const ANONYMOUS_MAX_AGE: Duration = Duration::from_secs(60);
/// How long any other connection may be idle, as in k8s.io/apiserver.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// How long an overflow connection may last, and how long a new one has to authenticate before it
/// may be evicted.
pub const GRACE_PERIOD: Duration = Duration::from_secs(2);
