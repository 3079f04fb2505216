//! The connection settings of a Prometheus server.

use super::Error;
use http::header::HeaderValue;
use reqwest::Url;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The connection settings of a Prometheus server.
#[derive(Clone, Debug)]
pub struct Options {
    /// The URL, with a path prefix if it has one.
    pub url: String,
    /// The timeout of a request; a user's own query has half of it.
    pub timeout: Duration,
    /// The certificate authorities to trust instead of those of the system.
    pub roots: Option<Pem>,
    /// A client certificate and its key.
    pub identity: Option<Pem>,
    /// A bearer token.
    pub token: Option<Token>,
    /// Headers of every request, as `NAME=VALUE`.
    pub headers: Vec<String>,
    /// Whether queries are sent with GET instead of POST.
    pub get: bool,
    /// The largest accepted response, in bytes.
    pub max_response_bytes: usize,
    /// What these settings are called where they are given.
    pub names: &'static Names,
}

/// What settings are called in errors, which begin with the name of theirs.
#[derive(Debug)]
pub struct Names {
    /// The URL.
    pub url: &'static str,
    /// The headers.
    pub header: &'static str,
    /// The file of certificate authorities.
    pub ca_file: &'static str,
    /// The largest accepted response; none where it can't be set.
    pub max_response_bytes: Option<&'static str>,
}

impl Names {
    /// Flags.
    pub const FLAGS: Self = Self {
        url: "--prometheus-url",
        header: "--prometheus-header",
        ca_file: "--prometheus-ca-file",
        max_response_bytes: Some("--prometheus-max-response-bytes"),
    };
    /// Fields of a backend in the configuration file.
    pub const BACKEND: Self =
        Self { url: "url", header: "headers", ca_file: "caFile", max_response_bytes: None };
}

impl Options {
    /// The settings of a server that requires no credentials.
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
            names: &Names::FLAGS,
        }
    }

    /// The URL of the server, which ends with a slash.
    pub(super) fn base_url(&self) -> Result<Url, Error> {
        let url = &self.url;
        let invalid = |error: String| Error::Settings(format!("{}: {error}", self.names.url));
        let mut base = match Url::parse(url) {
            Ok(base) if matches!(base.scheme(), "http" | "https") => base,
            // The text is not repeated: it may be or contain a secret.
            _ if !url.contains("://") => {
                let expected = "http:// or https:// is missing: http://HOST:PORT was expected";
                return Err(invalid(expected.to_owned()));
            }
            Ok(_) => return Err(invalid("http:// or https:// was expected".to_owned())),
            Err(error) => {
                return Err(invalid(format!("{error}; http://HOST:PORT was expected")));
            }
        };
        if !base.path().ends_with('/') {
            let path = format!("{}/", base.path());
            base.set_path(&path);
        }
        Ok(base)
    }
}

/// A PEM text, and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pem {
    /// The flag and file, for errors.
    pub origin: String,
    /// The text.
    pub text: Vec<u8>,
    /// The files it was read from, in their order; none if it was given as text.
    files: Vec<PathBuf>,
}

impl Pem {
    /// A text that was not read from a file of its own.
    pub fn new(origin: String, text: Vec<u8>) -> Self {
        Self { origin, text, files: Vec::new() }
    }

    /// Reads the file that a flag names.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn read(flag: &str, path: &Path) -> Result<Self, Error> {
        let origin = format!("{flag}: {}", path.display());
        match std::fs::read(path) {
            Ok(text) => Ok(Self { origin, text, files: vec![path.to_owned()] }),
            Err(error) => Err(Error::Settings(format!("{origin}: {error}"))),
        }
    }

    /// Both texts in one, such as a certificate and its key.
    pub fn and(mut self, other: Self) -> Self {
        self.text.push(b'\n');
        self.text.extend(other.text);
        self.files.extend(other.files);
        self
    }

    /// The current text of its files; the same text if it was not read from files.
    ///
    /// # Errors
    /// If a file can't be read.
    pub async fn reload(&self) -> Result<Self, Error> {
        let mut texts = Vec::with_capacity(self.files.len());
        for file in &self.files {
            let text = tokio::fs::read(file).await;
            texts.push(text.map_err(|error| {
                Error::Settings(format!("{}: {}: {error}", self.origin, file.display()))
            })?);
        }
        let text = if texts.is_empty() { self.text.clone() } else { texts.join(&b'\n') };
        Ok(Self { text, ..self.clone() })
    }
}

/// The source of a bearer token.
#[derive(Clone)]
pub enum Token {
    /// A file. It is read for each request, as tokens are renewed.
    File(PathBuf),
    /// The token itself, from `--prometheus-auth-config`.
    Text(String),
}

impl Token {
    /// The value of the header `Authorization`.
    ///
    /// # Errors
    /// If the file can't be read, or a header can't have the token.
    pub(super) async fn bearer(&self) -> Result<HeaderValue, Error> {
        let (origin, bearer) = match self {
            Self::File(path) => {
                let origin = format!("the file of the token: {}", path.display());
                let token = tokio::fs::read_to_string(path).await;
                let token = token.map_err(|error| Error::Settings(format!("{origin}: {error}")))?;
                (origin, format!("Bearer {}", token.trim()))
            }
            Self::Text(token) => ("--prometheus-auth-config".to_owned(), format!("Bearer {token}")),
        };
        let mut value = HeaderValue::try_from(bearer).map_err(|_| {
            let fault = "the token has control characters, such as a line break";
            Error::Settings(format!("{origin}: {fault}"))
        })?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// Leaves out the token itself.
impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "File({})", path.display()),
            Self::Text(_) => f.write_str("Text"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_scheme_is_answered_with_what_is_missing_and_no_url_is_repeated() {
        let error = |url| Options::new(url).base_url().unwrap_err().to_string();
        for address in ["127.0.0.1:9090", "thanos:9090", "prometheus", "[::1]:9090"] {
            let missing = "http:// or https:// is missing: http://HOST:PORT was expected";
            assert_eq!(error(address), format!("--prometheus-url: {missing}"));
        }
        for url in [
            "ann:s3cr3t@host:9090",
            "host:9090/?token=s3cr3t",
            "ftp://host/s3cr3t",
            "s3cr3t",
            "ann:s3cr3t",
            "",
        ] {
            let error = error(url);
            assert!(error.ends_with(" was expected") && !error.contains("s3cr3t"), "{error}");
        }
        let base = Options::new("http://host/prometheus").base_url().unwrap();
        assert_eq!(base.as_str(), "http://host/prometheus/");
    }

    #[tokio::test]
    async fn a_token_that_no_header_can_have_is_named_by_its_file_and_not_shown() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "first\nsecond\n").unwrap();
        let error = Token::File(file.path().to_owned()).bearer().await.unwrap_err().to_string();
        let expected = format!("the file of the token: {}: ", file.path().display());
        assert!(error.starts_with(&expected), "{error}");
        assert!(error.contains("such as a line break"), "{error}");
        assert!(!error.contains("first") && !error.contains("second"), "{error}");
        let error = Token::Text("first\nsecond".to_owned()).bearer().await.unwrap_err().to_string();
        assert!(error.contains("such as a line break") && !error.contains("first"), "{error}");
    }
}
