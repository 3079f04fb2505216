//! Why a request to Prometheus fails.

use reqwest::StatusCode;
use serde::Deserialize;
use std::time::Duration;

/// Why a request fails. No text has the user or password of the URL.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The settings are invalid.
    #[error("{0}")]
    Settings(String),
    /// Prometheus did not respond in time, or aborted the query itself.
    #[error("Prometheus did not answer within {0:?}")]
    Timeout(Duration),
    /// A proxy did not wait for Prometheus any longer.
    #[error("a proxy before Prometheus did not wait for its answer any longer, and answered 504")]
    GatewayTimeout,
    /// The request found no seat in time, or timed out with so many others in flight that the
    /// limit of seats was lowered.
    #[error("Prometheus did not answer within {0:?}, with many queries at once")]
    Overloaded(Duration),
    /// The connection failed.
    #[error("Prometheus can't be reached: {0}")]
    Unreachable(String),
    /// The connection failed while the response arrived.
    #[error("the response of Prometheus broke off: {0}")]
    BrokenOff(String),
    /// Prometheus can't serve now, but may later.
    #[error("Prometheus answered {status}: {message}")]
    Unavailable {
        /// The HTTP status.
        status: u16,
        /// The message of the response.
        message: String,
    },
    /// A proxy before Prometheus refused the request, for its path, text or length, and does not refuse others.
    #[error(
        "Prometheus, or a proxy before it, answered {status} to this request and passes others: {message}"
    )]
    Blocked {
        /// The HTTP status.
        status: u16,
        /// The message of the response.
        message: String,
    },
    /// Prometheus refused the query.
    #[error("Prometheus refused the query: {0}")]
    Refused(String),
    /// The request is too long for Prometheus, or for a proxy in front of it.
    #[error(
        "Prometheus, or a proxy before it, answered {status}: the query is too long: {message}"
    )]
    TooLong {
        /// The HTTP status: 413, 414 or 431.
        status: u16,
        /// The message of the response.
        message: String,
    },
    /// The response can't be used.
    #[error("invalid response of Prometheus: {0}")]
    InvalidResponse(String),
    /// The response is incomplete, such as that of Thanos without one of its stores.
    #[error("Prometheus returned only part of the result: {0}")]
    Partial(String),
    /// The memory budget has no room for the response.
    #[error(
        "no memory left for this response: responses of Prometheus may take {limit} bytes together, \
         and those to one namespace's own queries no more than are free"
    )]
    Memory {
        /// The bytes of the budget.
        limit: usize,
    },
}

impl Error {
    /// Whether it is that of the server, for all queries alike; not whether a query that is late is slow, or the server.
    pub fn is_about_server(&self) -> bool {
        match self {
            Self::Settings(_)
            | Self::Overloaded(_)
            | Self::Unreachable(_)
            | Self::BrokenOff(_)
            | Self::Unavailable { status: 429 | 502..=504, .. } => true,
            // Others too may be about one query: a store of Thanos that only one needs answers 422.
            Self::Unavailable { .. }
            | Self::Timeout(_)
            | Self::GatewayTimeout
            | Self::TooLong { .. }
            | Self::InvalidResponse(_)
            | Self::Partial(_)
            | Self::Refused(_)
            | Self::Blocked { .. }
            | Self::Memory { .. } => false,
        }
    }

    /// Whether only some queries of a batch may fail with this error, whatever their text: a store of Thanos that only some of them
    /// read is down, or has a limit.
    pub fn may_be_about_some(&self) -> bool {
        matches!(self, Self::Partial(_) | Self::Unavailable { status: 422, .. })
    }

    /// The same for the callers of several queries that were sent together: without the message of the response, which may quote
    /// them.
    #[must_use]
    pub fn without_query(&self) -> Self {
        let message =
            || "Plimsoll's log has the message, which may quote others' queries".to_owned();
        match self {
            Self::Unavailable { status, .. } => {
                Self::Unavailable { status: *status, message: message() }
            }
            Self::Blocked { status, .. } => Self::Blocked { status: *status, message: message() },
            Self::Partial(_) => Self::Partial(message()),
            error => error.clone(),
        }
    }

    /// Whether the query was late, which may be its own fault.
    pub fn is_late(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::GatewayTimeout)
    }

    /// Whether the server may be at fault rather than the query: 401 of a proxy with an expired token, for example. 422 is
    /// about the query, or about some stores. A request without a seat never reached the server.
    pub fn may_be_about_server(&self) -> bool {
        match self {
            Self::Timeout(_) | Self::GatewayTimeout | Self::Unreachable(_) | Self::BrokenOff(_) => {
                true
            }
            Self::Unavailable { status, .. } => *status != 422,
            Self::Settings(_)
            | Self::Overloaded(_)
            | Self::TooLong { .. }
            | Self::InvalidResponse(_)
            | Self::Partial(_)
            | Self::Refused(_)
            | Self::Blocked { .. }
            | Self::Memory { .. } => false,
        }
    }

    /// Whether a proxy refuses any query, as with an expired token. What it refuses of some is [`Blocked`](Self::Blocked).
    pub fn is_of_all_queries(&self) -> bool {
        matches!(self, Self::Unavailable { status, .. } if is_of_proxy(*status))
    }

    /// The outcome of a request that fails so, for the metrics.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Refused(_) | Self::Blocked { .. } => "refused",
            Self::Unavailable { .. } => "unavailable",
            Self::Timeout(_) | Self::GatewayTimeout | Self::Overloaded(_) => "timeout",
            Self::Unreachable(_) | Self::Settings(_) => "unreachable",
            Self::BrokenOff(_)
            | Self::InvalidResponse(_)
            | Self::TooLong { .. }
            | Self::Partial(_)
            | Self::Memory { .. } => "unusable",
        }
    }
}

/// Whether a proxy before Prometheus may answer with this status to one request, for its path, text or length, as a web
/// application firewall does with 403. With an expired token it answers 403 to every one. 400, 413, 414 and 431 are
/// errors of their own.
pub(super) fn is_of_proxy(status: u16) -> bool {
    matches!(status, 400..=499) && !matches!(status, 401 | 404 | 407 | 422 | 429)
}

#[derive(Default, Deserialize)]
struct Failure {
    error: String,
    #[serde(default, rename = "errorType")]
    error_type: String,
}

/// The longest message of a server that is kept, in bytes; and what is kept of a body in another form.
const MAX_MESSAGE: usize = 1_000;
const MAX_UNREAD: usize = 200;

/// The error of a response with a status other than 200.
pub(super) fn failure(status: StatusCode, body: &[u8], timeout: Duration) -> Error {
    let response: Failure = serde_json::from_slice(body).unwrap_or_else(|_| {
        let error = String::from_utf8_lossy(&body[..body.len().min(MAX_UNREAD)]).trim().to_owned();
        Failure { error, ..Failure::default() }
    });
    let message = shortened(&response.error, MAX_MESSAGE);
    match status {
        // A store of Thanos failed; the query is valid.
        StatusCode::UNPROCESSABLE_ENTITY if message.starts_with("expanding series") => {
            Error::Unavailable { status: status.as_u16(), message }
        }
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => Error::Refused(message),
        // The timeout of Prometheus (`--query.timeout`).
        StatusCode::SERVICE_UNAVAILABLE if response.error_type == "timeout" => {
            Error::Timeout(timeout)
        }
        StatusCode::PAYLOAD_TOO_LARGE
        | StatusCode::URI_TOO_LONG
        | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            Error::TooLong { status: status.as_u16(), message }
        }
        _ => Error::Unavailable { status: status.as_u16(), message },
    }
}

/// The beginning of a text, followed by `...` and the length if the rest is left out.
pub fn shortened(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let mut end = bytes;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}... ({} bytes)", &text[..end], text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_and_too_long_queries_are_told_from_a_server_that_is_out_of_order() {
        let second = Duration::from_secs(1);
        let of = |status: u16, body: &str| {
            failure(StatusCode::from_u16(status).unwrap(), body.as_bytes(), second)
        };
        let own = r#"{"status":"error","errorType":"timeout","error":"query timed out in expression evaluation"}"#;
        assert_eq!(of(503, own), Error::Timeout(second));
        assert!(matches!(of(504, "<html>"), Error::Unavailable { status: 504, .. }));
        for status in [413, 414, 431] {
            assert!(matches!(of(status, "<html>"), Error::TooLong { .. }), "{status}");
        }
        assert!(matches!(of(503, "starting"), Error::Unavailable { status: 503, .. }));
        assert!(matches!(of(422, r#"{"error":"no"}"#), Error::Refused(_)));
        // The response of Thanos with `partial_response=false`.
        let store = r#"{"status":"error","errorType":"execution","error":"expanding series: proxy Series(): No StoreAPIs available"}"#;
        assert!(matches!(of(422, store), Error::Unavailable { status: 422, .. }));
    }

    /// A query may be a bare name, and a message of any length may be cut.
    #[test]
    fn no_message_of_what_was_sent_together_is_shown() {
        let message = || "metric hits might be no counter".to_owned();
        let errors = [
            Error::Partial(message()),
            Error::Unavailable { status: 422, message: message() },
            Error::Unavailable { status: 503, message: "x".repeat(MAX_UNREAD - 1) },
        ];
        for error in errors {
            let shown = error.without_query();
            assert_eq!(std::mem::discriminant(&shown), std::mem::discriminant(&error));
            let text = shown.to_string();
            assert!(!text.contains("hits") && !text.contains("xx"), "{text}");
        }
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(shortened("abc", 3), "abc");
        assert_eq!(shortened("aéb", 2), "a... (4 bytes)");
    }
}
