//! How a request of several queries failed.

use crate::prometheus::Error;
use std::time::Duration;

/// After a request that took longer, its queries are measured by themselves again.
pub const SLOW: Duration = Duration::from_secs(1);

/// The error of a request of several queries.
pub struct RequestFailure {
    /// The error.
    pub error: Error,
    /// How long after it was to be sent.
    pub after: Duration,
}

impl RequestFailure {
    /// Whether it is that of each of its queries, as more requests would not help. What found no seat for users' own is one
    /// user's: others have seats of their own.
    pub fn is_of_all(&self, is_of_users: bool) -> bool {
        match self.error {
            Error::Overloaded(_) => !is_of_users,
            Error::Unavailable { status: 429, .. } | Error::Settings(_) => true,
            _ => false,
        }
    }

    /// Whether it was given up, rather than answered at once by a proxy that says so.
    pub fn is_late(&self) -> bool {
        matches!(self.error, Error::Timeout(_)) && self.after > SLOW
    }

    /// Whether it says that the server is down, or that a proxy has none.
    pub fn is_about_server(&self) -> bool {
        !self.is_late() && is_of_server(&self.error)
    }
}

/// Whether an error says that the server is down, or that a proxy has none. A request without a seat did not ask it.
pub fn is_of_server(error: &Error) -> bool {
    match error {
        Error::Timeout(_) => true,
        Error::Overloaded(_) => false,
        _ => error.is_about_server(),
    }
}
