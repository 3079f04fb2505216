//! The HTTP client, made anew where the files it was made of have changed:
//! certificates live for a day in many clusters.

use super::error::causes;
use super::{Error, Options, Pem};
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How often the files are looked at, at most.
const LOOKED_AT: Duration = Duration::from_secs(5);

/// The client of one server.
#[derive(Clone, Debug)]
pub struct Http(Arc<Inner>);

struct Inner {
    /// Whose client it is, for the log.
    of: String,
    build: Box<Build>,
    current: Mutex<Current>,
}

/// Makes a client of certificate authorities and a client certificate.
type Build = dyn Fn(Option<&Pem>, Option<&Pem>) -> Result<reqwest::Client, Error> + Send + Sync;

#[derive(Debug)]
struct Current {
    client: reqwest::Client,
    roots: Option<Pem>,
    identity: Option<Pem>,
    looked: Instant,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http").field("of", &self.of).finish_non_exhaustive()
    }
}

impl Http {
    /// A client of Prometheus at a base address.
    ///
    /// # Errors
    /// Where an option can't be used.
    pub fn new(base: Url, options: &Options) -> Result<Self, Error> {
        let (timeout, headers) = (options.timeout, read_headers(&options.headers)?);
        Self::with(
            "Prometheus".to_owned(),
            (options.roots.clone(), options.identity.clone()),
            move |roots, identity| client(&base, timeout, headers.clone(), roots, identity),
        )
    }

    /// A client that is made like this of certificate authorities and a client certificate.
    ///
    /// # Errors
    /// Where it can't be made of those that are given.
    pub fn with(
        of: String,
        (roots, identity): (Option<Pem>, Option<Pem>),
        build: impl Fn(Option<&Pem>, Option<&Pem>) -> Result<reqwest::Client, Error>
        + Send
        + Sync
        + 'static,
    ) -> Result<Self, Error> {
        let client = build(roots.as_ref(), identity.as_ref())?;
        let current = Current { client, roots, identity, looked: Instant::now() };
        Ok(Self(Arc::new(Inner { of, build: Box::new(build), current: Mutex::new(current) })))
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.0.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client, with what the files say now. Where that can't be used, such as a
    /// certificate whose key is not written yet, the client of before.
    pub async fn client(&self) -> reqwest::Client {
        let (roots, identity) = {
            let mut current = self.current();
            if current.looked.elapsed() < LOOKED_AT {
                return current.client.clone();
            }
            // Whoever else comes meanwhile takes the client of before.
            current.looked = Instant::now();
            (current.roots.clone(), current.identity.clone())
        };
        let of = &self.0.of;
        match self.renewed(roots, identity).await {
            Ok(None) => {}
            Ok(Some(renewed)) => {
                tracing::info!(server = of, "Reloaded certificates");
                *self.current() = renewed;
            }
            Err(error) => {
                tracing::warn!(server = of, %error, "Failed to reload certificates; keeping those of before");
            }
        }
        self.current().client.clone()
    }

    /// A client of what the files say, where that is something new.
    async fn renewed(
        &self,
        roots: Option<Pem>,
        identity: Option<Pem>,
    ) -> Result<Option<Current>, Error> {
        let again = async |pem: &Option<Pem>| match pem {
            Some(pem) => pem.again().await.map(Some),
            None => Ok(None),
        };
        let now = (again(&roots).await?, again(&identity).await?);
        if now == (roots, identity) {
            return Ok(None);
        }
        let (roots, identity) = now;
        let client = (self.0.build)(roots.as_ref(), identity.as_ref())?;
        Ok(Some(Current { client, roots, identity, looked: Instant::now() }))
    }
}

fn client(
    base: &Url,
    timeout: Duration,
    headers: HeaderMap,
    roots: Option<&Pem>,
    identity: Option<&Pem>,
) -> Result<reqwest::Client, Error> {
    let mut builder = reqwest::Client::builder()
        .timeout(timeout)
        .connect_timeout(timeout)
        .redirect(reqwest::redirect::Policy::none())
        .default_headers(headers)
        .user_agent(concat!("plimsoll/", env!("CARGO_PKG_VERSION")));
    let own_roots = match roots {
        Some(pem) => Some(read_roots(pem)?),
        // Without TLS no roots are needed, not even those of the system.
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
            "no HTTPS to Prometheus: {why}; --prometheus-ca-file names the certificate authorities to trust"
        ))
    })
}

fn read_headers(headers: &[String]) -> Result<HeaderMap, Error> {
    let mut all = HeaderMap::new();
    for header in headers {
        // Without the sign all of it may be a secret, but for the word it begins with.
        let word = || header.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next();
        let (name, value) = header
            .split_once('=')
            .or_else(|| header.contains([':', ' ']).then(|| (word().unwrap_or_default(), "\n")))
            .unwrap_or((header, ""));
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

/// The certificates of authorities.
///
/// # Errors
/// Where there is none, or one can't be read.
pub fn read_roots(pem: &Pem) -> Result<Vec<reqwest::Certificate>, Error> {
    let roots = reqwest::Certificate::from_pem_bundle(&pem.text)
        .map_err(|error| Error::Settings(format!("{}: {error}", pem.origin)))?;
    // A file that is not written yet; to trust nobody is never meant.
    if roots.is_empty() {
        return Err(Error::Settings(format!("{}: there is no certificate in it", pem.origin)));
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prometheus::Client;
    use crate::serve::{Other, OtherOptions, ServingCertificate, TlsOptions, listen};

    #[tokio::test]
    async fn a_renewed_ca_is_taken_up_without_a_restart() {
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
        let other = Other::new(OtherOptions {
            url: url.clone(),
            roots: Some(pem.clone()),
            any_certificate: false,
            token_file: None,
        });
        let other = other.unwrap();
        let client = Client::new(Options { roots: Some(pem), ..Options::new(&url) }).unwrap();
        let error = client.query("up", &[]).await.err().unwrap().to_string();
        assert!(error.contains("certificate"), "{error}");
        assert!(other.get("/", None).await.is_err());
        // As it is while it is being written: what can't be used changes nothing.
        std::fs::write(&roots, "").unwrap();
        tokio::time::sleep(LOOKED_AT).await;
        assert!(client.query("up", &[]).await.is_err());
        assert!(other.get("/", None).await.is_err());
        std::fs::copy(&certificate, &roots).unwrap();
        let began = std::time::Instant::now();
        while let Err(error) = client.query("up", &[]).await {
            assert!(began.elapsed() < 10 * LOOKED_AT, "{error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // The adapter that requests are passed on to is trusted by the same rule.
        while let Err(error) = other.get("/", None).await {
            assert!(began.elapsed() < 10 * LOOKED_AT, "{}", error.message);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
