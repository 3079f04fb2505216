//! The settings of leader election, as client-go names them, and what the commands that write the
//! Lease share with it: the label of the Lease and the timeout of a request.

use crate::clock::WallClock;
use std::time::{Duration, SystemTime};

/// The label of all objects that Plimsoll creates for itself, and its value.
pub const NAME_LABEL: (&str, &str) = ("app.kubernetes.io/name", "plimsoll");

/// The longest time for one request to the API server.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How leadership is acquired, renewed and lost.
#[derive(Clone, Debug)]
pub struct ElectionSettings {
    /// Whether replicas elect a leader. Without election, this replica leads as long as it runs.
    pub elect: bool,
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// The holder identity of this replica. No other replica may have the same.
    pub identity: String,
    /// How long other replicas wait after the last renewal before they try to acquire the
    /// Lease. Whole seconds.
    pub lease_duration: Duration,
    /// How long after the last renewal this replica still leads; less than `lease_duration`.
    pub renew_deadline: Duration,
    /// The time between two renewals; less than `renew_deadline`.
    pub retry_period: Duration,
}

impl ElectionSettings {
    /// A holder identity that no other process has: the name of the pod or machine, and the time.
    pub fn identity() -> String {
        let host = ["POD_NAME", "HOSTNAME"].iter().find_map(|name| std::env::var(name).ok());
        let host = host.or_else(|| std::fs::read_to_string("/etc/hostname").ok());
        let now =
            WallClock::default().now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let host = host.unwrap_or_else(|| "plimsoll".to_owned());
        format!("{}_{:x}{:x}", host.trim(), now.as_nanos(), std::process::id())
    }
}
