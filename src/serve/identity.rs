//! Who asks: the front proxy's headers, a client certificate or a bearer token.
//! Source: `k8s.io/apiserver/pkg/authentication`.

use super::trust::{Trust, TrustBundle};
use crate::cache::{self, Cache};
use axum::http::{HeaderMap, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use kube::api::PostParams;
use kube::{Api, Client};
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::time::Duration;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// The user's name.
    pub name: String,
    /// The user's UID, where one is known.
    pub uid: String,
    /// The user's groups.
    pub groups: Vec<String>,
    /// What else is known of the user.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Why it can't be told who asks.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Unidentified {
    /// There is nothing to tell it by, or it is not valid.
    #[error("no valid credentials")]
    Unknown,
    /// The API server could not be asked.
    #[error("the token could not be reviewed: {0}")]
    Unavailable(String),
}

/// Tells who asks. Tokens are kept as hashes, for a short time.
#[derive(Clone)]
pub struct Authenticator {
    client: Client,
    trust: Trust,
    tokens: Cache<[u8; 32], Option<Identity>>,
}

/// How many bytes of answers are kept.
const TOKENS: usize = 8 << 20;
/// How long a review may take.
const REVIEW: Duration = Duration::from_secs(10);

const AUTHENTICATED: &str = "system:authenticated";

impl Authenticator {
    /// One that believes whom the API server believes.
    /// Answers about tokens are believed for so long.
    pub fn new(client: Client, trust: Trust, token_age: Duration) -> Self {
        let bytes = |_: &[u8; 32], identity: &Option<Identity>| {
            size_of::<([u8; 32], Identity)>() + identity.as_ref().map_or(0, Identity::bytes)
        };
        Self { client, trust, tokens: cache::of_bytes(TOKENS, token_age, bytes) }
    }

    /// Who asks, by the connection's certificates and the request's headers.
    ///
    /// # Errors
    /// As [`Unidentified`] says.
    pub async fn identify(
        &self,
        chain: &[CertificateDer<'static>],
        headers: &HeaderMap,
    ) -> Result<Identity, Unidentified> {
        let trust = self.trust.now();
        if let Some(identity) = by_front_proxy(&trust, chain, headers) {
            return Ok(identity);
        }
        if trust.is_client(chain)
            && let Some(identity) = by_certificate(chain)
        {
            return Ok(identity);
        }
        let token = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim());
        match token {
            Some(token) if !token.is_empty() => self.by_token(token).await,
            _ => Err(Unidentified::Unknown),
        }
    }

    async fn by_token(&self, token: &str) -> Result<Identity, Unidentified> {
        let hash: [u8; 32] = Sha256::digest(token).into();
        if let Some(identity) = self.tokens.get(&hash) {
            return identity.ok_or(Unidentified::Unknown);
        }
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), audiences: None },
            ..Default::default()
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let parameters = PostParams::default();
        let asked = api.create(&parameters, &review);
        let review = match tokio::time::timeout(REVIEW, asked).await {
            Ok(Ok(review)) => review,
            Ok(Err(error)) => return Err(Unidentified::Unavailable(error.to_string())),
            Err(_) => return Err(Unidentified::Unavailable("no answer in time".to_owned())),
        };
        let status = review.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true));
        let identity = user.map(Identity::from);
        self.tokens.insert(hash, identity.clone());
        identity.ok_or(Unidentified::Unknown)
    }
}

impl Identity {
    /// What its texts take in memory.
    pub(super) fn bytes(&self) -> usize {
        let of = |texts: &[String]| -> usize {
            texts.iter().map(|text| size_of::<String>() + text.len()).sum()
        };
        let extra = self.extra.iter().map(|(key, values)| 64 + key.len() + of(values));
        self.name.len() + self.uid.len() + of(&self.groups) + extra.sum::<usize>()
    }
}

impl From<UserInfo> for Identity {
    fn from(user: UserInfo) -> Self {
        Self {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        }
    }
}

/// The user that a front proxy vouches for. Its headers mean nothing unless
/// the connection shows its certificate.
fn by_front_proxy(
    trust: &TrustBundle,
    chain: &[CertificateDer<'static>],
    headers: &HeaderMap,
) -> Option<Identity> {
    if !trust.is_front_proxy(chain) {
        return None;
    }
    let (name, _) = subject(chain.first()?)?;
    if !trust.allowed_names.is_empty() && !trust.allowed_names.contains(&name) {
        return None;
    }
    by_headers(trust, headers)
}

fn by_headers(trust: &TrustBundle, headers: &HeaderMap) -> Option<Identity> {
    let texts = |name: &String| {
        headers.get_all(name.as_str()).into_iter().filter_map(|value| value.to_str().ok())
    };
    let name = trust.username_headers.iter().flat_map(texts).find(|name| !name.is_empty())?;
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for prefix in &trust.extra_header_prefixes {
        let prefix = prefix.to_ascii_lowercase();
        for (header, value) in headers {
            if let (Some(key), Ok(value)) = (header.as_str().strip_prefix(&prefix), value.to_str())
            {
                extra.entry(unescape(key)).or_default().push(value.to_owned());
            }
        }
    }
    let mut groups: Vec<String> =
        trust.group_headers.iter().flat_map(texts).map(str::to_owned).collect();
    if name != "system:anonymous" && !groups.iter().any(|group| group == AUTHENTICATED) {
        groups.push(AUTHENTICATED.to_owned());
    }
    Some(Identity { name: name.to_owned(), uid: String::new(), groups, extra })
}

/// A header key without its percent-encoding; as it is where that is broken.
fn unescape(key: &str) -> String {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || char::from(rest.next()?).to_digit(16);
        match byte {
            b'%' => match digit().zip(digit()) {
                Some((high, low)) => bytes.push((high * 16 + low) as u8),
                None => return key.to_owned(),
            },
            _ => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| key.to_owned())
}

/// The user that a client certificate names: common name and organizations.
fn by_certificate(chain: &[CertificateDer<'static>]) -> Option<Identity> {
    let (name, mut groups) = subject(chain.first()?)?;
    groups.push(AUTHENTICATED.to_owned());
    Some(Identity { name, groups, ..Default::default() })
}

fn subject(certificate: &CertificateDer<'_>) -> Option<(String, Vec<String>)> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let organization =
        |part: &x509_parser::x509::AttributeTypeAndValue<'_>| part.as_str().ok().map(str::to_owned);
    Some((name, subject.iter_organization().filter_map(organization).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trust() -> TrustBundle {
        TrustBundle {
            username_headers: vec!["X-Remote-User".to_owned()],
            group_headers: vec!["X-Remote-Group".to_owned()],
            extra_header_prefixes: vec!["X-Remote-Extra-".to_owned()],
            ..Default::default()
        }
    }

    #[test]
    fn the_front_proxys_headers_name_the_user() {
        let mut headers = HeaderMap::new();
        headers.append("x-remote-user", "alice".parse().unwrap());
        headers.append("x-remote-group", "dev".parse().unwrap());
        headers.append("x-remote-group", "ops".parse().unwrap());
        headers.append("x-remote-extra-example.com%2fteam", "blue".parse().unwrap());
        let identity = by_headers(&trust(), &headers).unwrap();
        assert_eq!(identity.name, "alice");
        assert_eq!(identity.groups, ["dev", "ops", AUTHENTICATED]);
        assert_eq!(identity.extra["example.com/team"], ["blue"]);
        assert_eq!(by_headers(&trust(), &HeaderMap::new()), None);
    }

    #[test]
    fn headers_without_the_front_proxys_certificate_mean_nothing() {
        let mut headers = HeaderMap::new();
        headers.append("x-remote-user", "system:admin".parse().unwrap());
        headers.append("x-remote-group", "system:masters".parse().unwrap());
        assert_eq!(by_front_proxy(&trust(), &[], &headers), None);
        let key = rcgen::generate_simple_self_signed(vec!["front-proxy".to_owned()]).unwrap();
        assert_eq!(by_front_proxy(&trust(), &[key.cert.der().clone()], &headers), None);
    }
}
