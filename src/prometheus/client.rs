//! The client of a Prometheus-compatible server.

use super::body::{Body, Content, LargeBodies};
use super::budget::{Budget, Reservation};
use super::decode;
use super::error::{failure, is_of_proxy};
use super::http::Http;
use super::queue::{Completion, Flow, RequestQueue};
use super::serving::{Probed, Serving};
use super::transport::{Transport, TransportError};
use super::{Error, Names, Options, Token};
use crate::telemetry::Metrics;
use bytes::Bytes;
use futures::StreamExt;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, StatusCode, Url, Version};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A client of one Prometheus-compatible server.
#[derive(Clone, Debug)]
pub struct Client {
    transport: Arc<dyn Transport>,
    base: Url,
    token: Option<Token>,
    pub(super) get: bool,
    pub(super) timeout: Duration,
    max_response_bytes: usize,
    names: &'static Names,
    /// What errors call the server, if they name it.
    address: Option<Arc<str>>,
    queue: RequestQueue,
    budget: Budget,
    large: LargeBodies,
    large_of_users: LargeBodies,
    /// Since when all requests have failed.
    failing_since: Arc<Mutex<Option<Instant>>>,
    serving: Arc<Serving>,
    metrics: Option<Arc<Metrics>>,
}

/// The longest query in a URL, in bytes. Proxies refuse longer ones.
const MAX_URL_QUERY: usize = 2048;
/// What metrics are read by. A server without it has a wrong address.
const QUERY: &str = "api/v1/query";
const SERIES: &str = "api/v1/series";
const REQUIRED: [&str; 2] = [QUERY, SERIES];
/// A query of no series, how long its answer may take, and its most bytes.
const PROBE: &str = "vector(1)";
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_PROBE_RESPONSE: usize = 64 << 10;
/// How long before its answer a proxy has refused a query, at most.
const REFUSAL: Duration = Duration::from_millis(20);
/// The largest response to users' own queries, in bytes.
const MAX_USER_RESPONSE: usize = 8 << 20;
/// The most series of a response to users' own queries. Prometheus leaves out the
/// others, with a warning.
const MAX_USER_SERIES: &str = "50000";

/// What the responses to shared requests of several users are charged to, until they are read, in the place of a namespace:
/// one with a full part would fail the others' with its own.
const SEVERAL_USERS: &str = "*";

/// A 504 after this time is that of a proxy whose server was late; before it, of one that has none.
const GIVEN_UP: Duration = Duration::from_secs(1);

/// A request.
pub(super) struct Request<'a> {
    pub(super) path: &'static str,
    pub(super) form: &'a [(&'a str, &'a str)],
    pub(super) flows: &'a [Flow],
    /// Whether it may be sent with GET.
    pub(super) get: bool,
}

/// The limits of one request, below those of all.
#[derive(Clone, Copy, Debug)]
pub struct Within {
    /// How long after it was sent it is given up.
    pub time: Duration,
    /// The most bytes of its response.
    pub bytes: usize,
}

impl Client {
    /// A client with these options; connects on the first request.
    ///
    /// # Errors
    /// If an option is invalid.
    pub fn new(options: Options) -> Result<Self, Error> {
        let transport = Arc::new(Http::new(options.base_url()?, &options)?);
        Self::over(transport, options)
    }

    /// A client that sends its requests over a transport. Options that the transport is made of
    /// (certificates and headers) are not read.
    ///
    /// # Errors
    /// If an option is invalid.
    pub fn over(transport: Arc<dyn Transport>, options: Options) -> Result<Self, Error> {
        Ok(Self {
            transport,
            base: options.base_url()?,
            token: options.token,
            get: options.get,
            timeout: options.timeout,
            max_response_bytes: options.max_response_bytes,
            names: options.names,
            address: None,
            queue: RequestQueue::default(),
            budget: Budget::for_responses_of(options.max_response_bytes),
            large: LargeBodies::default(),
            large_of_users: LargeBodies::default(),
            failing_since: Arc::default(),
            serving: Arc::default(),
            metrics: None,
        })
    }

    /// The same client, whose errors of connections say this address. It is in statuses, which tenants read, otherwise.
    pub fn at_address(self, address: &str) -> Self {
        Self { address: Some(address.into()), ..self }
    }

    /// The same client, with metrics of its requests.
    pub fn counted(self, metrics: Arc<Metrics>) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// Counts a listing of series by its reason.
    pub fn count_listing(&self, reason: &'static str) {
        if let Some(metrics) = &self.metrics {
            metrics.listed(reason);
        }
    }

    /// Shows the number of series queries, and of those whose last listing failed.
    pub fn show_series_queries(&self, count: usize, failing: usize) {
        if let Some(metrics) = &self.metrics {
            metrics.series_queries(count, failing);
        }
    }

    /// Counts queries for metrics by the error of their result.
    pub fn count_queries(&self, queries: usize, error: Option<&Error>) {
        let outcome = error.map_or("answered", Error::outcome);
        if let Some(metrics) = &self.metrics {
            metrics.count_queries(queries, outcome);
        }
    }

    /// The same client, with the memory budget of another.
    pub fn sharing_budget(self, other: &Self) -> Self {
        Self { budget: other.budget.clone(), ..self }
    }

    /// Bytes of its budget.
    #[cfg(test)]
    pub fn reserve(&self, flow: &Flow) -> Reservation {
        self.budget.reserve(flow)
    }

    /// Sends an instant query for these flows; the body is for
    /// [`Table::read`](crate::samples::Table::read). A user's own query has
    /// half of the timeout, and a response of at most 8 MiB and 50,000 series.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn query(&self, query: &str, flows: &[Flow]) -> Result<Body, Error> {
        self.query_within(query, flows, None).await
    }

    /// As [`query`](Self::query), but given up so long after it was sent, if that is before its timeout, and with a response
    /// of at most so many bytes.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn query_within(
        &self,
        query: &str,
        flows: &[Flow],
        within: Option<Within>,
    ) -> Result<Body, Error> {
        let timeout = self.timeout_of(flows);
        let time = within.map_or(timeout, |within| within.time.min(timeout));
        let timeout = format!("{}ms", time.as_millis());
        let form = [
            ("query", query),
            ("timeout", &timeout),
            // For Thanos; other servers ignore it.
            ("partial_response", "false"),
            ("limit", MAX_USER_SERIES),
        ];
        let form = if Flow::are_users(flows) { &form[..] } else { &form[..3] };
        let request = Request { path: QUERY, form, flows, get: self.get };
        self.body_within(request, within).await
    }

    /// The error of Prometheus's own parser for a query, with line and
    /// column; none if it accepts the query.
    ///
    /// # Errors
    /// If the request fails, as [`Error`] says.
    pub async fn parse_error(&self, query: &str, flows: &[Flow]) -> Result<Option<String>, Error> {
        let form = [("query", query)];
        let request = Request { path: "api/v1/format_query", form: &form, flows, get: self.get };
        match self.body(request).await.and_then(|body| body.read(decode::formatted)) {
            Ok(()) => Ok(None),
            Err(Error::Refused(message)) => Ok(Some(message)),
            Err(other) => Err(other),
        }
    }

    /// The series of a selector that have had a sample since a time (in
    /// Unix seconds), for these flows; the body is for [`decode_series_schemas`](super::decode_series_schemas). Those
    /// that users list have the limits of their queries: of more than 50,000 series the listing fails.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn series(&self, selector: &str, since: f64, flows: &[Flow]) -> Result<Body, Error> {
        let since = format!("{since:.3}");
        let form = [
            ("match[]", selector),
            ("start", &since),
            ("partial_response", "false"),
            ("limit", MAX_USER_SERIES),
        ];
        let form = if Flow::are_users(flows) { &form[..] } else { &form[..3] };
        let request = Request { path: SERIES, form, flows, get: self.get };
        self.body(request).await.map(Body::without_place)
    }

    /// For how long all requests have failed; none if the last one succeeded. Users' own queries that were late don't
    /// count, nor does what a proxy refuses that passes others.
    pub fn failing_for(&self) -> Option<Duration> {
        self.failing_since().map(|since| since.elapsed())
    }

    /// The timeout of a request for these flows.
    fn timeout_of(&self, flows: &[Flow]) -> Duration {
        if Flow::are_users(flows) { self.timeout / 2 } else { self.timeout }
    }

    /// Sends a request once it has a seat. Returns the body of a response with status 200.
    pub(super) async fn body(&self, request: Request<'_>) -> Result<Body, Error> {
        self.body_within(request, None).await
    }

    /// The same, given up so long after it was sent, if that is before its timeout: it says nothing about the server.
    async fn body_within(
        &self,
        request: Request<'_>,
        within: Option<Within>,
    ) -> Result<Body, Error> {
        let timeout = self.timeout_of(request.flows);
        let bytes = within.map_or(usize::MAX, |within| within.bytes);
        let seat = tokio::time::timeout(timeout, self.queue.acquire(request.flows)).await;
        let seat = seat.ok().flatten().ok_or(Error::Overloaded(timeout))?;
        let (started, flows, path) = (Instant::now(), request.flows, request.path);
        let within = within.map(|within| within.time).filter(|time| *time < timeout);
        let timeout = within.unwrap_or(timeout);
        let exchange = self.exchange(request, (timeout, bytes), seat.flow());
        let result = tokio::time::timeout(timeout, exchange).await;
        let took = started.elapsed();
        let result = match result.unwrap_or(Err(Error::Timeout(timeout))) {
            Err(Error::Unavailable { status: 504, .. }) if took >= GIVEN_UP => {
                Err(Error::GatewayTimeout)
            }
            result => result,
        };
        let completion = match &result {
            Err(error) if error.is_late() && within.is_some() => Completion::Unknown,
            Err(error) if error.is_late() => Completion::Late,
            Err(Error::Unavailable { status: 429 | 503, .. }) => Completion::Late,
            Err(Error::Unreachable(_) | Error::BrokenOff(_) | Error::Settings(_)) => {
                Completion::Unknown
            }
            _ => Completion::InTime,
        };
        let was_crowded = seat.complete(completion);
        let body =
            |(content, reservation)| Body::new(content, reservation, took, self.metrics.clone());
        // A proxy refuses a query when it comes, and may have sent the answer later.
        let refused = started.max(Instant::now().checked_sub(REFUSAL).unwrap_or(started));
        let result = match result.map(body) {
            Err(Error::Unavailable { status, message })
                if is_of_proxy(status) && Box::pin(self.passes_queries(refused)).await =>
            {
                Err(Error::Blocked { status, message })
            }
            result => result,
        };
        if result.is_ok() && path == QUERY {
            self.serving.served(started);
        }
        let given_up =
            within.is_some() && took >= timeout && matches!(result, Err(Error::Timeout(_)));
        if let (Err(error), Some(metrics)) = (&result, &self.metrics) {
            let outcome = match error {
                _ if given_up => "given_up",
                // Not every compatible server has metadata, say.
                Error::Unavailable { status: 404, .. } if !REQUIRED.contains(&path) => "answered",
                error => error.outcome(),
            };
            metrics.queried(outcome, took, None);
        }
        // A query that is given up, or of a user, may just be slow.
        self.record(&result, given_up || Flow::are_users(flows));
        match result {
            Err(error) if was_crowded && error.is_late() => Err(Error::Overloaded(timeout)),
            result => result.map_err(|error| self.with_address(error)),
        }
    }

    /// Whether the server passes any query that is sent at this time or later. If none has succeeded, a query of no series
    /// tells: a proxy may refuse others for what they are. Its future is large, and rarely needed.
    async fn passes_queries(&self, since: Instant) -> bool {
        self.serving.passes(since, self.probe()).await
    }

    /// Sends a query of no series. It has no seat, as there is one at a time.
    async fn probe(&self) -> Probed {
        let request = Request { path: QUERY, form: &[("query", PROBE)], flows: &[], get: self.get };
        let started = Instant::now();
        let exchange = self.exchange(request, (PROBE_TIMEOUT, MAX_PROBE_RESPONSE), &Flow::Shared);
        let result = tokio::time::timeout(PROBE_TIMEOUT, exchange).await;
        let answer = result.unwrap_or(Err(Error::Timeout(PROBE_TIMEOUT)));
        let bytes = answer.as_ref().map_or(0, |(content, _)| content.len());
        let answer =
            answer.and_then(|(content, _)| decode::read_query_response(&content, |_| ()).map(drop));
        if let Some(metrics) = &self.metrics {
            let outcome = answer.as_ref().map_or_else(Error::outcome, |()| "answered");
            metrics.queried(outcome, started.elapsed(), Some(bytes));
        }
        match answer {
            Ok(()) => {
                *self.failing_since() = None;
                Probed::Passed
            }
            Err(Error::Unavailable { status: 300..=399 | 401 | 407, .. }) => Probed::Refused,
            Err(error) if error.is_of_all_queries() => Probed::Refused,
            Err(error) if error.is_late() => Probed::Late,
            Err(_) => Probed::Passed,
        }
    }

    fn with_address(&self, error: Error) -> Error {
        let Some(address) = &self.address else { return error };
        match error {
            Error::Unreachable(why) => Error::Unreachable(format!("{address}: {why}")),
            Error::BrokenOff(why) => Error::BrokenOff(format!("{address}: {why}")),
            Error::Unavailable { status, message } => {
                Error::Unavailable { status, message: format!("{address}: {message}") }
            }
            Error::Blocked { status, message } => {
                Error::Blocked { status, message: format!("{address}: {message}") }
            }
            other => other,
        }
    }

    /// Records whether the server serves.
    fn record(&self, result: &Result<Body, Error>, may_be_slow: bool) {
        let serves = match result {
            Ok(_) => true,
            Err(error) => match error {
                // The fault is the query's or the response's, or the budget of one flow is used up.
                Error::Refused(_)
                | Error::TooLong { .. }
                | Error::InvalidResponse(_)
                | Error::Partial(_)
                | Error::Memory { .. } => true,
                // Another replica's credentials may still be good.
                Error::Unavailable { status, .. } => {
                    !matches!(status, 300..=399 | 401 | 407 | 500..) && !is_of_proxy(*status)
                }
                // A server that takes connections and answers nothing is noticed by other requests: those of templates
                // and rules, and the listings of series.
                error if error.is_late() && may_be_slow => return,
                // The proxy's, whatever is behind it.
                Error::Blocked { .. } => return,
                Error::Settings(_)
                | Error::Timeout(_)
                | Error::GatewayTimeout
                | Error::Overloaded(_)
                | Error::Unreachable(_)
                | Error::BrokenOff(_) => false,
            },
        };
        let mut since = self.failing_since();
        *since = if serves { None } else { since.or(Some(Instant::now())) };
    }

    fn failing_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.failing_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The request as it is sent.
    async fn http_request(&self, request: &Request<'_>) -> Result<http::Request<Bytes>, Error> {
        let mut url =
            self.base.join(request.path).expect("a relative path can be joined to a base address");
        url.query_pairs_mut().extend_pairs(request.form);
        let form = request.form;
        let length: usize = form.iter().map(|(name, value)| name.len() + value.len()).sum();
        let get = request.get && length <= MAX_URL_QUERY;
        let mut body = Bytes::new();
        if !get {
            body = url.query().unwrap_or_default().to_owned().into();
            url.set_query(None);
        }
        let method = if get { Method::GET } else { Method::POST };
        let sent = http::Request::builder().method(method).uri(url.as_str()).body(body);
        let url = self.names.url;
        let mut sent = sent.map_err(|error| Error::Settings(format!("{url}: {error}")))?;
        let headers = sent.headers_mut();
        if !get {
            let form = HeaderValue::from_static("application/x-www-form-urlencoded");
            headers.insert(CONTENT_TYPE, form);
        }
        if let Some(token) = &self.token {
            headers.insert(AUTHORIZATION, token.bearer().await?);
        }
        Ok(sent)
    }

    async fn exchange(
        &self,
        request: Request<'_>,
        (timeout, most): (Duration, usize),
        flow: &Flow,
    ) -> Result<(Content, Reservation), Error> {
        let failed = |error: TransportError| match error {
            TransportError::Timeout => Error::Timeout(timeout),
            TransportError::Unreachable(why) => Error::Unreachable(why),
        };
        let sent = self.http_request(&request).await?;
        let response = self.transport.send(sent).await.map_err(failed)?;
        let broken_off = |error: TransportError| match failed(error) {
            Error::Unreachable(why) => Error::BrokenOff(why),
            other => other,
        };
        let status = response.status();
        let user = Flow::are_users(request.flows);
        let limit = if user { MAX_USER_RESPONSE } else { usize::MAX }.min(self.max_response_bytes);
        let limit = limit.min(most);
        let is_of_several = user && request.flows.len() > 1 && most != usize::MAX;
        let several = is_of_several.then(|| Flow::User(SEVERAL_USERS.into()));
        let mut reservation = self.budget.reserve(several.as_ref().unwrap_or(flow));
        let large = if user { &self.large_of_users } else { &self.large };
        // Over HTTP/2, what is not read yet holds up the other responses of the connection. What has a limit of its own is
        // small, and its time is short.
        let waits = response.version() < Version::HTTP_2 && most == usize::MAX;
        let large = waits.then_some(large);
        let mut content = Content::default();
        let mut chunks = response.into_body();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(broken_off)?;
            if content.len() + chunk.len() > limit {
                return Err(Error::InvalidResponse(match user && limit == MAX_USER_RESPONSE {
                    true => {
                        format!("it is larger than {limit} bytes, the most of a user's own query")
                    }
                    false if limit == most => format!("it is larger than {limit} bytes"),
                    false => {
                        let flag = self.names.max_response_bytes;
                        let flag = flag.map(|flag| format!(" ({flag})")).unwrap_or_default();
                        format!("it is larger than {limit} bytes{flag}")
                    }
                }));
            }
            reservation.add_body(chunk.len())?;
            content.push(&chunk, large).await;
        }
        match status {
            StatusCode::OK => Ok((content, reservation)),
            _ => Err(failure(status, &content, timeout)),
        }
    }
}
