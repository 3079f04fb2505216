//! The HTTP client of a Prometheus-compatible server.

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use reqwest::{StatusCode, Url};
use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How to talk to Prometheus.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its address, with a path prefix where it has one.
    pub url: String,
    /// How long one request may take.
    pub timeout: Duration,
    /// Certificate authorities to trust instead of those of the system.
    pub ca_file: Option<PathBuf>,
    /// A file with a bearer token.
    pub token_file: Option<PathBuf>,
    /// The largest answer taken.
    pub max_response_bytes: usize,
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
    token_file: Option<PathBuf>,
    timeout: Duration,
    max_response_bytes: usize,
}

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
        let own_roots = match &options.ca_file {
            Some(path) => Some(read_roots(path)?),
            // Without TLS no roots are needed, not even those of the system.
            None => (base.scheme() == "http").then(Vec::new),
        };
        if let Some(roots) = own_roots {
            builder = builder.tls_certs_only(roots);
        }
        let http = builder.build().map_err(|error| {
            let why = causes(&error);
            Error::Settings(format!(
                "no HTTPS to Prometheus: {why}; --prometheus-ca-file names whom to trust"
            ))
        })?;
        Ok(Self {
            http,
            base,
            token_file: options.token_file,
            timeout: options.timeout,
            max_response_bytes: options.max_response_bytes,
        })
    }

    /// Runs an instant query; the body is for [`super::decode_vector`].
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn query(&self, query: &str) -> Result<Bytes, Error> {
        let timeout = format!("{}ms", self.timeout.as_millis());
        let form = [("query", query), ("timeout", &timeout)];
        let (status, body) = self.post("api/v1/query", &form).await?;
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
        let (status, body) = self.post("api/v1/format_query", &[("query", query)]).await?;
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

    async fn post(&self, path: &str, form: &[(&str, &str)]) -> Result<(StatusCode, Bytes), Error> {
        self.send(self.http.post(self.url(path)).form(form)).await
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<(StatusCode, Bytes), Error> {
        let request = match &self.token_file {
            Some(path) => {
                let token = tokio::fs::read_to_string(path).await.map_err(|error| {
                    Error::Settings(format!("--prometheus-token-file: {}: {error}", path.display()))
                })?;
                request.bearer_auth(token.trim())
            }
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

fn read_roots(path: &Path) -> Result<Vec<reqwest::Certificate>, Error> {
    let wrong = |error: String| {
        Error::Settings(format!("--prometheus-ca-file: {}: {error}", path.display()))
    };
    let pem = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| wrong(error.to_string()))
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
