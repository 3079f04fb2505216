//! The way between one client and the API server, and what goes wrong on it.

use super::failure::Failure;
use super::handle::Answer;
use super::watch::{BOOKMARK_INTERVAL, Watch};
use super::{ApiServer, Resource};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream;
use http::header::USER_AGENT;
use http::{HeaderValue, Method, Request, Response, Uri};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};
use tower::BoxError;

/// The body of a response.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// How long a client waits for bytes on a connection before it gives it up.
pub const READ_TIMEOUT: Duration = Duration::from_secs(90);

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is carried out `before` after it was sent, and answered `after` that. A request that is
    /// dropped before it is carried out never is.
    Done {
        /// Until it is carried out.
        before: Duration,
        /// Until the answer is there.
        after: Duration,
    },
    /// As [`Fate::Done`], but it is carried out even if the client drops it: it is on its way.
    Late {
        /// Until it is carried out.
        before: Duration,
        /// Until the answer is there.
        after: Duration,
    },
    /// The server refuses it, and carries nothing out.
    Refused {
        /// The HTTP status.
        code: u16,
        /// The reason.
        reason: &'static str,
        /// `Retry-After`, in seconds.
        retry_after: Option<u32>,
    },
    /// It is carried out, and then the connection breaks.
    AnswerLost {
        /// Until it is carried out.
        before: Duration,
    },
    /// There is no connection, at once.
    Unreachable,
    /// Nothing comes, until the client gives the connection up. It is not carried out.
    Silent,
}

impl Fate {
    /// What becomes of a request without a fault: it is carried out at once.
    pub const DONE: Self = Self::Done { before: Duration::ZERO, after: Duration::ZERO };
}

/// What becomes of an event or a bookmark of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The client gets it this long after it was made, and after those before it.
    After(Duration),
    /// From now on the client gets nothing, until it gives the connection up.
    Silent,
    /// The server ends the watch before it.
    End,
    /// The connection breaks before it.
    Broken,
    /// In its place comes an `ERROR` event of code 410.
    Expired,
}

/// A request, to decide what becomes of it.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The method.
    pub method: &'a Method,
    /// The path and the query.
    pub uri: &'a Uri,
    /// What is sent.
    pub body: &'a [u8],
}

/// Decides what goes wrong between one client and the API server.
pub trait Faults: Send + 'static {
    /// What becomes of this request. Of a watch: of its beginning.
    fn request(&mut self, asked: Asked<'_>) -> Fate;

    /// What becomes of the next event (or bookmark) of a watch of this resource, which began at this time. It
    /// is asked when the event was made.
    fn delivery(&mut self, resource: &'static Resource, begun: Instant) -> Delivery {
        let _ = (resource, begun);
        Delivery::After(Duration::ZERO)
    }
}

/// A network in which nothing goes wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faultless;

impl Faults for Faultless {
    fn request(&mut self, _: Asked<'_>) -> Fate {
        Fate::DONE
    }
}

/// The network of one client, a service below [`kube::Client`]. Cheap to clone.
#[derive(Clone)]
pub struct Network {
    server: ApiServer,
    who: HeaderValue,
    faults: Arc<Mutex<dyn Faults>>,
}

impl Network {
    /// The network between the server and a client of this name.
    ///
    /// # Panics
    /// If the name can't be a header.
    pub fn new(server: &ApiServer, who: &str, faults: impl Faults) -> Self {
        let header = HeaderValue::from_str(who).expect("a name is a valid header");
        Self { server: server.named(who), who: header, faults: Arc::new(Mutex::new(faults)) }
    }

    fn fate(&self, asked: Asked<'_>) -> Fate {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).request(asked)
    }

    async fn respond(
        self,
        request: Request<kube::client::Body>,
    ) -> Result<Response<Body>, BoxError> {
        let (mut parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let fate = self.fate(Asked { method: &parts.method, uri: &parts.uri, body: &body });
        parts.headers.entry(USER_AGENT).or_insert_with(|| self.who.clone());
        let request = Request::from_parts(parts, body);
        match fate {
            Fate::Done { before, after } => {
                pause(before).await;
                let answer = self.server.handle(request);
                pause(after).await;
                Ok(self.receive(answer))
            }
            Fate::Late { before, after } => {
                let server = self.server.clone();
                #[expect(clippy::disallowed_methods, reason = "it is on its way, whoever sent it")]
                let handled = tokio::spawn(async move {
                    pause(before).await;
                    server.handle(request)
                });
                let answer = handled.await?;
                pause(after).await;
                Ok(self.receive(answer))
            }
            Fate::AnswerLost { before } => {
                pause(before).await;
                drop(self.server.handle(request));
                Err(broken(io::ErrorKind::ConnectionReset))
            }
            Fate::Refused { code, reason, retry_after } => {
                let failure = Failure::new(code, reason, format!("a fault: {reason}"));
                let refusal = self.server.refusal(&failure, retry_after);
                Ok(self.receive(Answer::Response(refusal)))
            }
            Fate::Unreachable => Err(broken(io::ErrorKind::ConnectionRefused)),
            Fate::Silent => {
                sleep(READ_TIMEOUT).await;
                Err(broken(io::ErrorKind::TimedOut))
            }
        }
    }

    fn receive(self, answer: Answer) -> Response<Body> {
        match answer {
            Answer::Response(response) => {
                let full =
                    |text: Bytes| Full::new(text).map_err(|never: Infallible| match never {});
                response.map(|text| full(text).boxed_unsync())
            }
            Answer::Watch { head, watch } => {
                let stream = Stream::new(self.faults, *watch);
                let events = stream::unfold(stream, |mut stream| async move {
                    let frame = stream.next().await?.map(Frame::data);
                    Some((frame, stream))
                });
                head.map(|()| StreamBody::new(events).boxed_unsync())
            }
        }
    }
}

impl tower::Service<Request<kube::client::Body>> for Network {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        Box::pin(self.clone().respond(request))
    }
}

async fn pause(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
    }
}

fn broken(kind: io::ErrorKind) -> BoxError {
    io::Error::from(kind).into()
}

/// The events of a watch, on their way to the client.
struct Stream {
    faults: Arc<Mutex<dyn Faults>>,
    watch: Watch,
    begun: Instant,
    /// When the server ends it.
    end: Option<Instant>,
    next_bookmark: Instant,
    /// When the client got the last bytes.
    received: Instant,
    is_over: bool,
}

impl Stream {
    fn new(faults: Arc<Mutex<dyn Faults>>, watch: Watch) -> Self {
        let now = Instant::now();
        Self {
            faults,
            end: watch.timeout().map(|timeout| now + timeout),
            watch,
            begun: now,
            next_bookmark: now + BOOKMARK_INTERVAL,
            received: now,
            is_over: false,
        }
    }

    /// The next line, or an error, or none at the end.
    async fn next(&mut self) -> Option<Result<Bytes, BoxError>> {
        if self.is_over {
            return None;
        }
        let (line, at) = self.made().await?;
        let delivery = {
            let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
            faults.delivery(self.watch.resource(), self.begun)
        };
        match delivery {
            Delivery::After(delay) => {
                if at + delay > Instant::now() {
                    sleep_until(at + delay).await;
                }
                self.received = Instant::now();
                Some(Ok(line))
            }
            Delivery::Silent => {
                self.is_over = true;
                sleep_until(self.received + READ_TIMEOUT).await;
                Some(Err(broken(io::ErrorKind::TimedOut)))
            }
            Delivery::End => None,
            Delivery::Broken => {
                self.is_over = true;
                Some(Err(broken(io::ErrorKind::ConnectionReset)))
            }
            Delivery::Expired => {
                self.is_over = true;
                Some(Ok(self.watch.expired().line))
            }
        }
    }

    /// The next event or bookmark that the server makes, and when it did; none when it ends the watch.
    async fn made(&mut self) -> Option<(Bytes, Instant)> {
        let changed = self.watch.changed();
        loop {
            let notified = changed.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if let Some(event) = self.watch.next_event() {
                self.is_over = event.is_last;
                if event.line.is_empty() {
                    return None;
                }
                return Some((event.line, event.at));
            }
            let forever = async |until: Option<Instant>| match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            };
            let bookmark = self.watch.has_bookmarks().then_some(self.next_bookmark);
            tokio::select! {
                biased;
                () = notified => {}
                () = forever(self.end) => return None,
                () = forever(bookmark) => {
                    self.next_bookmark += BOOKMARK_INTERVAL;
                    return Some((self.watch.bookmark(), Instant::now()));
                }
            }
        }
    }
}
