//! How Prometheus is reached.

use super::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How to talk to Prometheus.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its address, with a path prefix where it has one.
    pub url: String,
    /// How long one request may take; a user's own query may take half of it.
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
    /// The largest answer taken, in bytes.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pem {
    /// The flag and file, for errors.
    pub origin: String,
    /// The text.
    pub text: Vec<u8>,
    /// The files it was read from, in their order; none where it was given as text.
    files: Vec<PathBuf>,
}

impl Pem {
    /// Text that was not read from a file of its own.
    pub fn new(origin: String, text: Vec<u8>) -> Self {
        Self { origin, text, files: Vec::new() }
    }

    /// Reads a file that a flag names.
    ///
    /// # Errors
    /// Where it can't be read.
    pub fn read(flag: &str, path: &Path) -> Result<Self, Error> {
        let origin = format!("{flag}: {}", path.display());
        match std::fs::read(path) {
            Ok(text) => Ok(Self { origin, text, files: vec![path.to_owned()] }),
            Err(error) => Err(Error::Settings(format!("{origin}: {error}"))),
        }
    }

    /// Both in one, such as a certificate and its key.
    pub fn and(mut self, other: Self) -> Self {
        self.text.push(b'\n');
        self.text.extend(other.text);
        self.files.extend(other.files);
        self
    }

    /// What its files say now; itself where it was not read from files.
    ///
    /// # Errors
    /// Where one can't be read.
    pub async fn again(&self) -> Result<Self, Error> {
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
