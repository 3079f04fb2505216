//! An HTTP client that is rebuilt when its certificate files change: in many clusters,
//! certificates live for a day.

use super::transport::{BodyStream, Transport, TransportError};
use super::{Error, Names, Options, Pem};
use crate::causes::causes;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How often the files are checked at most.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The client of one server.
#[derive(Clone, Debug)]
pub struct Http(Arc<Inner>);

struct Inner {
    /// The name of the server, for the log.
    server: String,
    build: Box<Build>,
    current: Mutex<Current>,
}

/// Builds a client with certificate authorities and a client certificate.
type Build = dyn Fn(Option<&Pem>, Option<&Pem>) -> Result<reqwest::Client, Error> + Send + Sync;

#[derive(Debug)]
struct Current {
    client: reqwest::Client,
    roots: Option<Pem>,
    identity: Option<Pem>,
    checked: Instant,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Http {
    /// A client of Prometheus at a base URL.
    ///
    /// # Errors
    /// If an option is invalid.
    pub fn new(base: Url, options: &Options) -> Result<Self, Error> {
        let (timeout, names) = (options.timeout, options.names);
        let headers = read_headers(&options.headers, names)?;
        Self::with(
            "Prometheus".to_owned(),
            (options.roots.clone(), options.identity.clone()),
            move |roots, identity| {
                client(&base, timeout, headers.clone(), (roots, identity), names)
            },
        )
    }

    /// A client that `build` builds with certificate authorities and a client certificate.
    ///
    /// # Errors
    /// If it can't be built with the given ones.
    pub fn with(
        server: String,
        (roots, identity): (Option<Pem>, Option<Pem>),
        build: impl Fn(Option<&Pem>, Option<&Pem>) -> Result<reqwest::Client, Error>
        + Send
        + Sync
        + 'static,
    ) -> Result<Self, Error> {
        let client = build(roots.as_ref(), identity.as_ref())?;
        let current = Current { client, roots, identity, checked: Instant::now() };
        Ok(Self(Arc::new(Inner { server, build: Box::new(build), current: Mutex::new(current) })))
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.0.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client with the current files. If these are invalid, such as a
    /// certificate whose key is not written yet, the previous client.
    pub async fn client(&self) -> reqwest::Client {
        let (roots, identity) = {
            let mut current = self.current();
            if current.checked.elapsed() < CHECK_INTERVAL {
                return current.client.clone();
            }
            // Callers in the meantime get the previous client.
            current.checked = Instant::now();
            (current.roots.clone(), current.identity.clone())
        };
        let server = &self.0.server;
        match self.reload(roots, identity).await {
            Ok(None) => {}
            Ok(Some(renewed)) => {
                tracing::info!(server, "Reloaded certificates");
                *self.current() = renewed;
            }
            Err(error) => {
                tracing::warn!(
                    server,
                    error = error.to_string(),
                    "Failed to reload certificates, keeping the previous ones"
                );
            }
        }
        self.current().client.clone()
    }

    /// A client with the current files, if these have changed.
    async fn reload(
        &self,
        roots: Option<Pem>,
        identity: Option<Pem>,
    ) -> Result<Option<Current>, Error> {
        let reloaded = async |pem: &Option<Pem>| match pem {
            Some(pem) => pem.reload().await.map(Some),
            None => Ok(None),
        };
        let now = (reloaded(&roots).await?, reloaded(&identity).await?);
        if now == (roots, identity) {
            return Ok(None);
        }
        let (roots, identity) = now;
        let client = (self.0.build)(roots.as_ref(), identity.as_ref())?;
        Ok(Some(Current { client, roots, identity, checked: Instant::now() }))
    }
}

impl Transport for Http {
    fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'static, Result<http::Response<BodyStream>, TransportError>> {
        let http = self.clone();
        async move {
            let client = http.client().await;
            let (head, body) = request.into_parts();
            // By the text of the address, as reqwest takes user and password out of it.
            let request = client.request(head.method, head.uri.to_string());
            let sent = request.headers(head.headers).body(body).send();
            let received = sent.await.map_err(failed)?;
            let mut response = http::Response::new(());
            (*response.status_mut(), *response.version_mut()) =
                (received.status(), received.version());
            *response.headers_mut() = received.headers().clone();
            let body = received.bytes_stream().map_err(failed).boxed();
            Ok(response.map(|()| body))
        }
        .boxed()
    }
}

fn failed(error: reqwest::Error) -> TransportError {
    // A query may be slow, a connection may not.
    match error.is_timeout() && !error.is_connect() {
        true => TransportError::Timeout,
        false => TransportError::Unreachable(causes(&error.without_url())),
    }
}

fn client(
    base: &Url,
    timeout: Duration,
    headers: HeaderMap,
    (roots, identity): (Option<&Pem>, Option<&Pem>),
    names: &Names,
) -> Result<reqwest::Client, Error> {
    let mut builder = reqwest::Client::builder()
        // Before half of it, when a user's own query is late.
        .connect_timeout(timeout * 2 / 5)
        .redirect(reqwest::redirect::Policy::none())
        .default_headers(headers)
        .user_agent(concat!("plimsoll/", env!("CARGO_PKG_VERSION")));
    let own_roots = match roots {
        Some(pem) => Some(read_roots(pem)?),
        // Without TLS, not even the roots of the system are needed.
        None => (base.scheme() == "http").then(Vec::new),
    };
    if let Some(roots) = own_roots {
        builder = builder.tls_certs_only(roots);
    }
    if let Some(pem) = identity {
        let identity = reqwest::Identity::from_pem(&pem.text);
        builder = builder.identity(
            identity
                .map_err(|error| Error::Settings(format!("{}: {}", pem.origin, causes(&error))))?,
        );
    }
    builder.build().map_err(|error| {
        let why = causes(&error);
        Error::Settings(format!(
            "{}: cannot set up TLS for Prometheus: {why}; set it to a file with the trusted CAs",
            names.ca_file
        ))
    })
}

fn read_headers(headers: &[String], names: &Names) -> Result<HeaderMap, Error> {
    let mut all = HeaderMap::new();
    for header in headers {
        // Without `=`, everything but the first word may be a secret.
        let word = || header.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next();
        let (name, value) = header
            .split_once('=')
            .or_else(|| header.contains([':', ' ']).then(|| (word().unwrap_or_default(), "\n")))
            .unwrap_or((header, ""));
        let wrong = |what: &str| {
            // The value may be a secret.
            let field = names.header;
            Error::Settings(format!("{field}: {name:?}: {what}; NAME=VALUE was expected"))
        };
        let key = HeaderName::try_from(name).map_err(|_| wrong("invalid header name"))?;
        let mut value = HeaderValue::try_from(value).map_err(|_| wrong("invalid header value"))?;
        value.set_sensitive(true);
        all.append(key, value);
    }
    Ok(all)
}

/// The certificates of certificate authorities.
///
/// # Errors
/// If there is none, or one can't be read.
pub fn read_roots(pem: &Pem) -> Result<Vec<reqwest::Certificate>, Error> {
    let roots = reqwest::Certificate::from_pem_bundle(&pem.text)
        .map_err(|error| Error::Settings(format!("{}: {error}", pem.origin)))?;
    // The file may not be written yet. Trusting no CA is never meant.
    if roots.is_empty() {
        return Err(Error::Settings(format!("{}: there is no certificate in it", pem.origin)));
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prometheus::Client;
    use crate::serve::{ForwardOptions, ForwardTarget, ServingCertificate, TlsOptions, listen};

    /// What is not read yet is another matter over HTTP/2.
    #[tokio::test]
    async fn a_response_says_over_which_version_of_http_it_came() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 1_000];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            let response = b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(response).await.unwrap();
        });
        let http = Http::new(Url::parse(&url).unwrap(), &Options::new(&url)).unwrap();
        let request = http::Request::get(&url).body(Bytes::new()).unwrap();
        let response = http.send(request).await.unwrap_or_else(|_| panic!("a response"));
        assert_eq!(response.version(), http::Version::HTTP_10);
    }

    #[tokio::test]
    async fn a_renewed_ca_is_reloaded_without_a_restart() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let signed = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
            let [certificate, key] =
                ["pem", "key"].map(|end| folder.path().join(name).with_extension(end));
            std::fs::write(&certificate, signed.cert.pem()).unwrap();
            std::fs::write(&key, signed.signing_key.serialize_pem()).unwrap();
            (certificate, key)
        };
        let (certificate, key) = write("server");
        let (roots, _) = write("roots");
        let serving = ServingCertificate::from_files(&certificate, &key).unwrap();
        let listener =
            listen(([127, 0, 0, 1], 0).into(), serving, TlsOptions::default(), 0).await.unwrap();
        let url = format!("https://{}", listener.address().unwrap());
        let router = axum::Router::new().fallback(async || "answered");
        tokio::spawn(listener.serve(router, std::future::pending()));
        let pem = Pem::read("--prometheus-ca-file", &roots).unwrap();
        let other = ForwardTarget::new(ForwardOptions {
            url: url.clone(),
            roots: Some(pem.clone()),
            insecure_skip_tls_verify: false,
            token_file: None,
        });
        let other = other.unwrap();
        let client = Client::new(Options { roots: Some(pem), ..Options::new(&url) }).unwrap();
        let error = client.query("up", &[]).await.err().unwrap().to_string();
        assert!(error.contains("certificate"), "{error}");
        assert!(other.get("/", None).await.is_err());
        // The file while it is being written: an invalid one changes nothing.
        std::fs::write(&roots, "").unwrap();
        tokio::time::sleep(CHECK_INTERVAL).await;
        assert!(client.query("up", &[]).await.is_err());
        assert!(other.get("/", None).await.is_err());
        std::fs::copy(&certificate, &roots).unwrap();
        let began = Instant::now();
        while let Err(error) = client.query("up", &[]).await {
            assert!(began.elapsed() < 10 * CHECK_INTERVAL, "{error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // The adapter that requests are forwarded to is trusted by the same rule.
        while let Err(error) = other.get("/", None).await {
            assert!(began.elapsed() < 10 * CHECK_INTERVAL, "{}", error.message);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
