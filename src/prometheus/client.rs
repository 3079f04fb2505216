//! The HTTP client of a Prometheus-compatible server.

use super::slots::Slots;
use crate::telemetry::Metrics;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{StatusCode, Url};
use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How to talk to Prometheus.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its address, with a path prefix where it has one.
    pub url: String,
    /// How long one request may take.
    pub timeout: Duration,
    /// Certificate authorities to trust instead of those of the system.
    pub roots: Option<Pem>,
    /// A client certificate and its key.
    pub identity: Option<Pem>,
    /// A bearer token.
    pub token: Option<Token>,
    /// Headers of every request, as `NAME=VALUE`.
    pub headers: Vec<String>,
    /// Whether queries are sent with GET instead of POST.
    pub get: bool,
    /// The largest answer taken.
    pub max_response_bytes: usize,
}

impl Options {
    /// Those of a server that asks for no credentials.
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            timeout: Duration::from_secs(30),
            roots: None,
            identity: None,
            token: None,
            headers: Vec::new(),
            get: false,
            max_response_bytes: 64 << 20,
        }
    }
}

/// Text in PEM, and where it comes from.
#[derive(Clone, Debug)]
pub struct Pem {
    /// The flag and file, for errors.
    pub origin: String,
    /// The text.
    pub text: Vec<u8>,
}

impl Pem {
    /// Reads a file that a flag names.
    ///
    /// # Errors
    /// Where it can't be read.
    pub fn read(flag: &str, path: &Path) -> Result<Self, Error> {
        let origin = format!("{flag}: {}", path.display());
        match std::fs::read(path) {
            Ok(text) => Ok(Self { origin, text }),
            Err(error) => Err(Error::Settings(format!("{origin}: {error}"))),
        }
    }

    /// Both in one, such as a certificate and its key.
    pub fn and(mut self, other: Self) -> Self {
        self.text.push(b'\n');
        self.text.extend(other.text);
        self
    }
}

/// Where a bearer token comes from.
#[derive(Clone)]
pub enum Token {
    /// A file, read at each request: tokens are renewed.
    File(PathBuf),
    /// This one.
    Text(String),
}

/// Without the token itself.
impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "File({})", path.display()),
            Self::Text(_) => f.write_str("Text"),
        }
    }
}

/// Why there is no answer. No text holds the address's user or password.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// It can't be talked to with these settings.
    #[error("{0}")]
    Settings(String),
    /// It did not answer in time.
    #[error("Prometheus did not answer within {0:?}")]
    Timeout(Duration),
    /// It did not answer in time while many queries ran; fewer will from now on.
    #[error("Prometheus did not answer within {0:?}, with many queries at once")]
    Crowded(Duration),
    /// It can't be reached.
    #[error("Prometheus can't be reached: {0}")]
    Unreachable(String),
    /// It can't serve now, but may later.
    #[error("Prometheus answered {status}: {message}")]
    Unavailable {
        /// The HTTP status.
        status: u16,
        /// What it said.
        message: String,
    },
    /// It refused the query.
    #[error("Prometheus refused the query: {0}")]
    Refused(String),
    /// Its answer can't be used.
    #[error("Prometheus's answer can't be used: {0}")]
    Answer(String),
}

/// A client of one Prometheus-compatible server.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<Token>,
    get: bool,
    timeout: Duration,
    max_response_bytes: usize,
    slots: Arc<Slots>,
    /// Since when it did not answer at all.
    failing: Arc<Mutex<Option<Instant>>>,
    metrics: Option<Arc<Metrics>>,
}

/// How long a query may be to be sent in an address; proxies refuse longer ones.
const LONGEST_ADDRESS: usize = 2048;

#[derive(Deserialize)]
struct Failure {
    error: String,
}

#[derive(Deserialize)]
struct Metadata {
    data: HashMap<String, Vec<MetadataEntry>>,
}

#[derive(Deserialize)]
struct MetadataEntry {
    #[serde(rename = "type")]
    kind: String,
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
        let mut builder = reqwest::Client::builder()
            .timeout(options.timeout)
            .connect_timeout(options.timeout)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("plimsoll/", env!("CARGO_PKG_VERSION")));
        let own_roots = match &options.roots {
            Some(pem) => Some(read_roots(pem)?),
            // Without TLS no roots are needed, not even those of the system.
            None => (base.scheme() == "http").then(Vec::new),
        };
        if let Some(roots) = own_roots {
            builder = builder.tls_certs_only(roots);
        }
        if let Some(pem) = &options.identity {
            let identity = reqwest::Identity::from_pem(&pem.text);
            builder =
                builder.identity(identity.map_err(|error| {
                    Error::Settings(format!("{}: {}", pem.origin, causes(&error)))
                })?);
        }
        builder = builder.default_headers(read_headers(&options.headers)?);
        let http = builder.build().map_err(|error| {
            let why = causes(&error);
            Error::Settings(format!(
                "no HTTPS to Prometheus: {why}; --prometheus-ca-file names whom to trust"
            ))
        })?;
        Ok(Self {
            http,
            base,
            token: options.token,
            get: options.get,
            timeout: options.timeout,
            max_response_bytes: options.max_response_bytes,
            slots: Arc::default(),
            failing: Arc::default(),
            metrics: None,
        })
    }

    /// The same, counting its requests.
    pub fn counted(self, metrics: Arc<Metrics>) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// Runs an instant query; the body is for [`super::decode_vector`].
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn query(&self, query: &str) -> Result<Bytes, Error> {
        let timeout = format!("{}ms", self.timeout.as_millis());
        let form = [("query", query), ("timeout", &timeout)];
        let (status, body) = self.ask("api/v1/query", &form).await?;
        match status {
            StatusCode::OK => Ok(body),
            _ => Err(failure(status, &body)),
        }
    }

    /// What Prometheus's own parser says is wrong with a query, with line and
    /// column; none where it finds nothing wrong.
    ///
    /// # Errors
    /// Where it can't be asked, as [`Error`] says.
    pub async fn parse_error(&self, query: &str) -> Result<Option<String>, Error> {
        let (status, body) = self.ask("api/v1/format_query", &[("query", query)]).await?;
        match status {
            StatusCode::OK => Ok(None),
            StatusCode::BAD_REQUEST => match failure(status, &body) {
                Error::Refused(message) => Ok(Some(message)),
                other => Err(other),
            },
            _ => Err(failure(status, &body)),
        }
    }

    /// The type of a metric by its targets' own word (`counter`, `gauge`, ...),
    /// where any of them said one.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn metric_type(&self, metric: &str) -> Result<Option<String>, Error> {
        let mut url = self.url("api/v1/metadata");
        url.query_pairs_mut().append_pair("metric", metric).append_pair("limit_per_metric", "1");
        let (status, body) = self.send(self.http.get(url)).await?;
        match status {
            StatusCode::OK => {}
            // Not every compatible server has metadata.
            StatusCode::NOT_FOUND => return Ok(None),
            _ => return Err(failure(status, &body)),
        }
        let metadata: Metadata =
            serde_json::from_slice(&body).map_err(|error| Error::Answer(error.to_string()))?;
        let entry = metadata.data.into_values().flatten().next();
        Ok(entry.map(|entry| entry.kind).filter(|kind| kind != "unknown"))
    }

    fn url(&self, path: &str) -> Url {
        self.base.join(path).expect("a relative path can be joined to a base address")
    }

    async fn ask(&self, path: &str, form: &[(&str, &str)]) -> Result<(StatusCode, Bytes), Error> {
        let url = self.url(path);
        let length: usize = form.iter().map(|(name, value)| name.len() + value.len()).sum();
        if self.get && length <= LONGEST_ADDRESS {
            let mut asked = url;
            asked.query_pairs_mut().extend_pairs(form);
            return self.send(self.http.get(asked)).await;
        }
        self.send(self.http.post(url).form(form)).await
    }

    /// The series that a selector selects and that had a sample since a time (in
    /// Unix seconds); the body is for [`super::decode_shapes`].
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn series(&self, selector: &str, since: f64) -> Result<Bytes, Error> {
        let since = format!("{since:.3}");
        let (status, body) =
            self.ask("api/v1/series", &[("match[]", selector), ("start", &since)]).await?;
        match status {
            StatusCode::OK => Ok(body),
            _ => Err(failure(status, &body)),
        }
    }

    /// For how long now every request has failed, where the last one did.
    pub fn failing_for(&self) -> Option<Duration> {
        let failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        failing.map(|since| since.elapsed())
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<(StatusCode, Bytes), Error> {
        let slot = tokio::time::timeout(self.timeout, self.slots.take()).await;
        let slot = slot.map_err(|_| Error::Crowded(self.timeout))?;
        let begun = Instant::now();
        let answer = self.exchange(request).await;
        if let Some(metrics) = &self.metrics {
            let bytes = answer.as_ref().ok().map(|(_, body)| body.len());
            metrics.queried(outcome(&answer), begun.elapsed(), bytes);
        }
        let overloaded = match &answer {
            Ok((status, _)) => matches!(
                *status,
                StatusCode::TOO_MANY_REQUESTS
                    | StatusCode::SERVICE_UNAVAILABLE
                    | StatusCode::GATEWAY_TIMEOUT
            ),
            Err(error) => matches!(error, Error::Timeout(_)),
        };
        let serves = matches!(&answer, Ok((status, _)) if !status.is_server_error());
        {
            let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
            *failing = if serves { None } else { failing.or(Some(Instant::now())) };
        }
        if !overloaded {
            slot.answered();
            return answer;
        }
        match (slot.overloaded(), answer) {
            (false, Err(Error::Timeout(timeout))) => Err(Error::Crowded(timeout)),
            (_, answer) => answer,
        }
    }

    async fn exchange(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<(StatusCode, Bytes), Error> {
        let request = match &self.token {
            Some(Token::File(path)) => {
                let token = tokio::fs::read_to_string(path).await.map_err(|error| {
                    Error::Settings(format!("--prometheus-token-file: {}: {error}", path.display()))
                })?;
                request.bearer_auth(token.trim())
            }
            Some(Token::Text(token)) => request.bearer_auth(token),
            None => request,
        };
        let response = request.send().await.map_err(|error| self.failed(error))?;
        let status = response.status();
        let mut body = BytesMut::new();
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| self.failed(error))?;
            if body.len() + chunk.len() > self.max_response_bytes {
                return Err(Error::Answer(format!(
                    "it is larger than {} bytes (--prometheus-max-response-bytes)",
                    self.max_response_bytes
                )));
            }
            body.extend_from_slice(&chunk);
        }
        Ok((status, body.freeze()))
    }

    fn failed(&self, error: reqwest::Error) -> Error {
        if error.is_timeout() {
            return Error::Timeout(self.timeout);
        }
        let error = error.without_url();
        Error::Unreachable(causes(&error))
    }
}

/// How a request went, for the metrics.
fn outcome(answer: &Result<(StatusCode, Bytes), Error>) -> &'static str {
    match answer {
        Ok((StatusCode::OK | StatusCode::NOT_FOUND, _)) => "answered",
        Ok((StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY, _)) => "refused",
        Ok(_) | Err(Error::Unavailable { .. }) => "unavailable",
        Err(Error::Timeout(_) | Error::Crowded(_)) => "timeout",
        Err(Error::Unreachable(_) | Error::Settings(_)) => "unreachable",
        Err(Error::Answer(_) | Error::Refused(_)) => "unusable",
    }
}

/// An error with all that led to it.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

fn read_headers(headers: &[String]) -> Result<HeaderMap, Error> {
    let mut all = HeaderMap::new();
    for header in headers {
        let (name, value) = header.split_once('=').unwrap_or((header, ""));
        let wrong = |what: &str| {
            // The value may be a secret.
            Error::Settings(format!(
                "--prometheus-header {name:?}: {what}; NAME=VALUE was expected"
            ))
        };
        let key = HeaderName::try_from(name).map_err(|_| wrong("no name of a header"))?;
        let mut value = HeaderValue::try_from(value).map_err(|_| wrong("no value of a header"))?;
        value.set_sensitive(true);
        all.append(key, value);
    }
    Ok(all)
}

fn read_roots(pem: &Pem) -> Result<Vec<reqwest::Certificate>, Error> {
    reqwest::Certificate::from_pem_bundle(&pem.text)
        .map_err(|error| Error::Settings(format!("{}: {error}", pem.origin)))
}

/// What an answer other than 200 means.
fn failure(status: StatusCode, body: &[u8]) -> Error {
    let message = match serde_json::from_slice::<Failure>(body) {
        Ok(failure) => failure.error,
        Err(_) => String::from_utf8_lossy(&body[..body.len().min(200)]).trim().to_owned(),
    };
    match status {
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => Error::Refused(message),
        _ => Error::Unavailable { status: status.as_u16(), message },
    }
}
