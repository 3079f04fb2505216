//! Response bodies that hold resources until they are sent.

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

/// A body that holds a guard until the connection has taken all of it. Data is sent in small
/// frames, so that a client that reads nothing holds no more than one frame besides the body.
pub struct GuardedBody<T> {
    body: Body,
    rest: Bytes,
    _guard: T,
}

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
