//! Response bodies that hold resources until they are sent, and keep their connection from being idle.

use super::connections::{ConnectionHandle, RequestInFlight};
use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A body that holds a guard until the connection has taken all of it. Data is sent in small
/// frames, so that a client that reads nothing holds no more than one frame besides the body.
pub struct GuardedBody<T> {
    body: Body,
    rest: Bytes,
    _guard: T,
}

/// Marks the response of a watch, which takes a seat of its own: it lasts, and would hold those of requests.
#[derive(Clone, Copy, Debug)]
pub struct LongRunning;

/// The size of a frame, in bytes.
const FRAME_BYTES: usize = 64 * 1024;

impl<T: Send + Unpin + 'static> GuardedBody<T> {
    /// A response that holds a guard until it is sent.
    pub fn guard(response: Response<Body>, guard: T) -> Response<Body> {
        response.map(|body| Body::new(Self { body, rest: Bytes::new(), _guard: guard }))
    }
}

impl<T: Unpin> http_body::Body for GuardedBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        if this.rest.is_empty() {
            match Pin::new(&mut this.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                other => return other,
            }
        }
        let frame = this.rest.split_to(this.rest.len().min(FRAME_BYTES));
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut whole = SizeHint::new();
        whole.set_lower(hint.lower() + rest);
        if let Some(upper) = hint.upper() {
            whole.set_upper(upper + rest);
        }
        whole
    }
}

/// A body whose connection is not idle while the client waits for more of it, as for the next event of a watch. While the
/// client has to take what there is, the connection is: one that reads nothing does not hold it.
pub struct AwaitedBody {
    body: Body,
    connection: Arc<ConnectionHandle>,
    /// While the client waits.
    waiting: Option<RequestInFlight>,
}

impl AwaitedBody {
    /// A response on this connection.
    pub fn of(response: Response<Body>, connection: Arc<ConnectionHandle>) -> Response<Body> {
        response.map(|body| Body::new(Self { body, connection, waiting: None }))
    }
}

impl http_body::Body for AwaitedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(context);
        match &polled {
            Poll::Pending if this.waiting.is_none() => {
                this.waiting = Some(this.connection.clone().begin_request());
            }
            Poll::Pending => {}
            // The client has taken all that there was, and is given more: its time begins anew.
            Poll::Ready(Some(Ok(_))) => {
                let taken = this.waiting.take();
                drop(taken.unwrap_or_else(|| this.connection.clone().begin_request()));
            }
            Poll::Ready(_) => this.waiting = None,
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::super::connections::ConnectionLimiter;
    use super::*;
    use futures::{FutureExt, StreamExt};
    use std::time::Duration;
    use tokio::time::{Instant, advance};

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_only_while_its_client_takes_nothing() {
        let limiter = ConnectionLimiter::default();
        let (connection, _evicted) = limiter.admit([10, 0, 0, 1].into()).expect("there is room");
        connection.mark_authenticated("shop");
        drop(connection.clone().begin_request());
        let (sender, events) = futures::channel::mpsc::unbounded::<Result<Bytes, axum::Error>>();
        let response = Response::new(Body::from_stream(events));
        let body = AwaitedBody::of(response, connection.clone()).into_body();
        let mut body = body.into_data_stream();
        let is_idle = || connection.deadline() <= Instant::now();
        // A client that waits for events does so for as long as it takes.
        assert!(body.next().now_or_never().is_none());
        advance(Duration::from_secs(600)).await;
        assert!(!is_idle());
        // One that takes what there is, is not idle. It has a while for the next.
        for _ in 0..3 {
            sender.unbounded_send(Ok(Bytes::from_static(b"event"))).expect("it is read");
            assert!(body.next().now_or_never().is_some());
            advance(Duration::from_secs(60)).await;
            assert!(!is_idle());
        }
        advance(Duration::from_secs(60)).await;
        assert!(is_idle(), "a client that takes nothing holds no connection");
    }
}
