//! The way of a request to Prometheus. Below it are connections, TLS and encodings; above it are the
//! queue, timeouts, limits and decoding.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use std::fmt::Debug;

/// Sends requests to one server.
pub trait Transport: Send + Sync + Debug {
    /// Sends a request. The response comes with its headers; its body follows. It has no timeout:
    /// the client drops the future, or the body, of a request that takes too long.
    fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'static, Result<http::Response<BodyStream>, TransportError>>;
}

/// The body of a response, as it is received.
pub type BodyStream = BoxStream<'static, Result<Bytes, TransportError>>;

/// Why there is no response, or not all of its body.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum TransportError {
    /// The connection was made, and timed out.
    #[error("the connection timed out")]
    Timeout,
    /// The connection failed, or was not made in time. The text says why, without the user or password of the URL.
    #[error("{0}")]
    Unreachable(String),
}
