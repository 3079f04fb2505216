//! The client of a Prometheus-compatible server.

use super::budget::{Budget, Held};
use super::error::{causes, failure};
use super::http::Http;
use super::queue::{Ended, Flow, Queue, Sign};
use super::{Error, Options, Token, decode};
use crate::telemetry::Metrics;
use futures::StreamExt;
use reqwest::{Method, StatusCode, Url};
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A client of one Prometheus-compatible server.
#[derive(Clone, Debug)]
pub struct Client {
    http: Http,
    base: Url,
    token: Option<Token>,
    get: bool,
    timeout: Duration,
    max_response_bytes: usize,
    queue: Queue,
    budget: Budget,
    /// Since when it did not answer at all.
    failing: Arc<Mutex<Option<Instant>>>,
    metrics: Option<Arc<Metrics>>,
}

/// How long a query may be to be sent in an address; proxies refuse longer ones.
const LONGEST_ADDRESS: usize = 2048;
/// The largest answer to users' own queries, in bytes.
const USER_RESPONSE: usize = 8 << 20;
/// The most series of an answer to users' own queries. Prometheus leaves out what
/// is beyond and warns of it.
const USER_SERIES: &str = "50000";

/// The body of an answer, which holds its part of the bytes for answers.
#[derive(Debug)]
pub struct Body {
    bytes: Vec<u8>,
    held: Held,
}

impl Body {
    /// The body, and what holds its part of the bytes.
    pub fn into_parts(self) -> (Vec<u8>, Held) {
        (self.bytes, self.held)
    }
}

impl Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A request, and the bounds it has.
struct Request<'a> {
    path: &'static str,
    form: &'a [(&'a str, &'a str)],
    flows: &'a [Flow],
    /// Whether it has no effect to send it with GET alone.
    get: bool,
}

impl Client {
    /// A client with these options; connects on the first request.
    ///
    /// # Errors
    /// Where an option can't be used.
    pub fn new(options: Options) -> Result<Self, Error> {
        let settings = |error: String| Error::Settings(format!("--prometheus-url: {error}"));
        let mut base = Url::parse(&options.url)
            .map_err(|error| settings(format!("{error}; http://HOST:PORT was expected")))?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(settings("http:// or https:// was expected".to_owned()));
        }
        if !base.path().ends_with('/') {
            let path = format!("{}/", base.path());
            base.set_path(&path);
        }
        Ok(Self {
            http: Http::new(base.clone(), &options)?,
            base,
            token: options.token,
            get: options.get,
            timeout: options.timeout,
            max_response_bytes: options.max_response_bytes,
            queue: Queue::default(),
            budget: Budget::for_answers_of(options.max_response_bytes),
            failing: Arc::default(),
            metrics: None,
        })
    }

    /// The same, counting its requests.
    pub fn counted(self, metrics: Arc<Metrics>) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// Counts a listing of series, and what brought it on.
    pub fn count_listing(&self, reason: &'static str) {
        if let Some(metrics) = &self.metrics {
            metrics.listed(reason);
        }
    }

    /// The same, holding its answers in the bytes of another.
    pub fn sharing(self, other: &Self) -> Self {
        Self { budget: other.budget.clone(), ..self }
    }

    /// Runs an instant query for these flows; the body is for
    /// [`Table::read`](crate::samples::Table::read). A query for users alone has
    /// half of the time, and at most 8 MiB and 50,000 series of an answer.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn query(&self, query: &str, flows: &[Flow]) -> Result<Body, Error> {
        let timeout = format!("{}ms", self.time_of(flows).as_millis());
        let form = [
            ("query", query),
            ("timeout", &timeout),
            // Thanos; others don't look at it.
            ("partial_response", "false"),
            ("limit", USER_SERIES),
        ];
        let form = if is_user(flows) { &form[..] } else { &form[..3] };
        self.body(Request { path: "api/v1/query", form, flows, get: self.get }).await
    }

    /// What Prometheus's own parser says is wrong with a query, with line and
    /// column; none where it finds nothing wrong.
    ///
    /// # Errors
    /// Where it can't be asked, as [`Error`] says.
    pub async fn parse_error(&self, query: &str, flows: &[Flow]) -> Result<Option<String>, Error> {
        let form = [("query", query)];
        let request = Request { path: "api/v1/format_query", form: &form, flows, get: self.get };
        match self.body(request).await {
            Ok(_) => Ok(None),
            Err(Error::Refused(message)) => Ok(Some(message)),
            Err(other) => Err(other),
        }
    }

    /// The type of a metric by its targets' own word (`counter`, `gauge`, ...),
    /// where any of them said one.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn metric_type(&self, metric: &str) -> Result<Option<String>, Error> {
        let form = [("metric", metric), ("limit_per_metric", "1")];
        let request = Request { path: "api/v1/metadata", form: &form, flows: &[], get: true };
        let body = match self.body(request).await {
            Ok(body) => body,
            // Not every compatible server has metadata.
            Err(Error::Unavailable { status: 404, .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        decode::metric_type(&body)
    }

    /// The series that a selector selects and that had a sample since a time (in
    /// Unix seconds); the body is for [`decode_shapes`](super::decode_shapes).
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn series(&self, selector: &str, since: f64) -> Result<Body, Error> {
        let since = format!("{since:.3}");
        let form = [("match[]", selector), ("start", &since), ("partial_response", "false")];
        let request = Request { path: "api/v1/series", form: &form, flows: &[], get: self.get };
        self.body(request).await
    }

    /// For how long now every request has failed, where the last one did.
    pub fn failing_for(&self) -> Option<Duration> {
        let failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        failing.map(|since| since.elapsed())
    }

    /// How long a request for these may take.
    fn time_of(&self, flows: &[Flow]) -> Duration {
        if is_user(flows) { self.timeout / 2 } else { self.timeout }
    }

    /// Sends a request when it is its turn; the body of an answer of 200.
    async fn body(&self, request: Request<'_>) -> Result<Body, Error> {
        let time = self.time_of(request.flows);
        let slot = tokio::time::timeout(time, self.queue.take(request.flows)).await;
        let slot = slot.ok().flatten().ok_or(Error::Crowded(time))?;
        let begun = Instant::now();
        let answer = self.exchange(request, time, slot.flow()).await;
        self.note(&answer, begun);
        let ended = match &answer {
            Err(Error::Timeout(_) | Error::Unavailable { status: 429 | 503, .. }) => Ended::Late,
            Err(Error::Unreachable(_) | Error::Settings(_)) => Ended::Unknown,
            _ => Ended::InTime,
        };
        match (slot.ended(ended), answer) {
            (Sign::TooMany, Err(Error::Timeout(time))) => Err(Error::Crowded(time)),
            (_, answer) => answer,
        }
    }

    /// Counts a request, and remembers whether the server serves.
    fn note(&self, answer: &Result<Body, Error>, begun: Instant) {
        if let Some(metrics) = &self.metrics {
            let bytes = answer.as_ref().ok().map(|body| body.len());
            metrics.queried(outcome(answer), begun.elapsed(), bytes);
        }
        let serves = match answer {
            Ok(_) => true,
            Err(error) => match error {
                // Of the query or its answer alone, or it is for one flow to wait.
                Error::Refused(_)
                | Error::TooLong { .. }
                | Error::Answer(_)
                | Error::Partial(_)
                | Error::Memory { .. } => true,
                // Another replica's credentials may still be good.
                Error::Unavailable { status, .. } => {
                    !matches!(status, 300..=399 | 401 | 403 | 407 | 500..)
                }
                Error::Settings(_)
                | Error::Timeout(_)
                | Error::Crowded(_)
                | Error::Unreachable(_) => false,
            },
        };
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        *failing = if serves { None } else { failing.or(Some(Instant::now())) };
    }

    async fn exchange(
        &self,
        request: Request<'_>,
        time: Duration,
        flow: &Flow,
    ) -> Result<Body, Error> {
        let mut url =
            self.base.join(request.path).expect("a relative path can be joined to a base address");
        let http = self.http.client().await;
        let form = request.form;
        let length: usize = form.iter().map(|(name, value)| name.len() + value.len()).sum();
        let asked = if request.get && length <= LONGEST_ADDRESS {
            url.query_pairs_mut().extend_pairs(form);
            http.request(Method::GET, url)
        } else {
            http.request(Method::POST, url).form(form)
        };
        let asked = match &self.token {
            Some(Token::File(path)) => {
                let token = tokio::fs::read_to_string(path).await.map_err(|error| {
                    Error::Settings(format!("--prometheus-token-file: {}: {error}", path.display()))
                })?;
                asked.bearer_auth(token.trim())
            }
            Some(Token::Text(token)) => asked.bearer_auth(token),
            None => asked,
        };
        let failed = |error: reqwest::Error| match error.is_timeout() {
            true => Error::Timeout(time),
            false => Error::Unreachable(causes(&error.without_url())),
        };
        let response = asked.timeout(time).send().await.map_err(failed)?;
        let status = response.status();
        let user = is_user(request.flows);
        let most = if user { USER_RESPONSE } else { usize::MAX }.min(self.max_response_bytes);
        let mut held = self.budget.begin(flow);
        let mut bytes: Vec<u8> = Vec::new();
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(failed)?;
            if bytes.len() + chunk.len() > most {
                return Err(Error::Answer(match user && most == USER_RESPONSE {
                    true => {
                        format!("it is larger than {most} bytes, the most of a user's own query")
                    }
                    false => {
                        format!("it is larger than {most} bytes (--prometheus-max-response-bytes)")
                    }
                }));
            }
            held.take(chunk.len())?;
            // By a quarter each time: what is held counts the body but once more.
            if bytes.capacity() - bytes.len() < chunk.len() {
                bytes.reserve_exact(chunk.len().max(bytes.len() / 4));
            }
            bytes.extend_from_slice(&chunk);
        }
        match status {
            StatusCode::OK => Ok(Body { bytes, held }),
            _ => Err(failure(status, &bytes, time)),
        }
    }
}

/// Whether a request is for users' own queries alone.
fn is_user(flows: &[Flow]) -> bool {
    !flows.is_empty() && flows.iter().all(|flow| matches!(flow, Flow::User(_)))
}

/// How a request went, for the metrics.
fn outcome(answer: &Result<Body, Error>) -> &'static str {
    let Err(error) = answer else { return "answered" };
    match error {
        Error::Unavailable { status: 404, .. } => "answered",
        Error::Refused(_) => "refused",
        Error::Unavailable { .. } => "unavailable",
        Error::Timeout(_) | Error::Crowded(_) => "timeout",
        Error::Unreachable(_) | Error::Settings(_) => "unreachable",
        Error::Answer(_) | Error::TooLong { .. } | Error::Partial(_) | Error::Memory { .. } => {
            "unusable"
        }
    }
}
