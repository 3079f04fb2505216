//! Authentication: by the front proxy's request headers, a client certificate or a bearer token.
//! Source: `k8s.io/apiserver/pkg/authentication`.

use super::client_chain::{ClientChain, Subject};
use super::connections::Peer;
use super::token_review::TokenAuthenticator;
use super::trust::{TrustBundle, TrustStore};
use super::user::{AuthenticationError, UserInfo};
use axum::http::{HeaderMap, header};
use percent_encoding::percent_decode_str;
use std::collections::BTreeMap;

/// Authenticates requests.
#[derive(Clone)]
pub struct Authenticator {
    trust: TrustStore,
    tokens: TokenAuthenticator,
}

const AUTHENTICATED: &str = "system:authenticated";

impl Authenticator {
    /// An authenticator that trusts these CAs, and authenticates bearer tokens by `tokens`.
    pub fn new(trust: TrustStore, tokens: TokenAuthenticator) -> Self {
        Self { trust, tokens }
    }

    /// Whether a connection with this certificate chain is the front proxy's.
    pub fn is_front_proxy(&self, chain: &ClientChain) -> bool {
        is_front_proxy(&self.trust.load(), chain)
    }

    /// Authenticates a request by the connection's certificates and the request's headers.
    ///
    /// # Errors
    /// As `AuthenticationError` says.
    pub async fn authenticate(
        &self,
        peer: &Peer,
        headers: &HeaderMap,
    ) -> Result<UserInfo, AuthenticationError> {
        let (trust, chain) = (self.trust.load(), &*peer.chain);
        if let Some(user) = by_front_proxy(&trust, chain, headers) {
            return Ok(user);
        }
        if let Some(subject) = &chain.subject
            && trust.verify(chain).client
        {
            return Ok(by_certificate(subject));
        }
        let token = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim());
        match token {
            Some(token) if !token.is_empty() => self.tokens.authenticate(token, peer.source).await,
            _ => Err(AuthenticationError::InvalidCredentials),
        }
    }

    /// The reason why request headers are ignored that only a front proxy may set. None if there are no
    /// such headers, or if the connection is the front proxy's.
    pub fn untrusted_front_proxy(&self, peer: &Peer, headers: &HeaderMap) -> Option<String> {
        let trust = self.trust.load();
        let claims = trust.username_headers.iter().any(|name| headers.contains_key(name.as_str()));
        let Subject { name, .. } = peer.chain.subject.as_ref()?;
        if !claims || is_front_proxy(&trust, &peer.chain) {
            return None;
        }
        Some(match trust.verify(&peer.chain).front_proxy {
            true => format!("common name {name:?} is not among requestheader-allowed-names"),
            false => format!("the certificate of {name:?} is not signed by the front proxy's CA"),
        })
    }
}

/// The user of a front proxy's request headers. They are ignored unless the connection has the
/// front proxy's certificate.
fn by_front_proxy(
    trust: &TrustBundle,
    chain: &ClientChain,
    headers: &HeaderMap,
) -> Option<UserInfo> {
    is_front_proxy(trust, chain).then(|| by_headers(trust, headers))?
}

fn is_front_proxy(trust: &TrustBundle, chain: &ClientChain) -> bool {
    let allowed = |Subject { name, .. }: &Subject| {
        trust.allowed_names.is_empty() || trust.allowed_names.contains(name)
    };
    chain.subject.as_ref().is_some_and(allowed) && trust.verify(chain).front_proxy
}

fn by_headers(trust: &TrustBundle, headers: &HeaderMap) -> Option<UserInfo> {
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
    let uid = trust.uid_headers.iter().flat_map(texts).find(|uid| !uid.is_empty());
    let uid = uid.unwrap_or_default().to_owned();
    Some(UserInfo { name: name.to_owned(), uid, groups, extra })
}

/// A header key without its percent-encoding, or as it is if that is not UTF-8.
fn unescape(key: &str) -> String {
    percent_decode_str(key).decode_utf8().map_or_else(|_| key.to_owned(), |key| key.into_owned())
}

/// The user of a client certificate: its common name, with its organizations as groups.
fn by_certificate(subject: &Subject) -> UserInfo {
    let mut groups = subject.organizations.clone();
    groups.push(AUTHENTICATED.to_owned());
    UserInfo { name: subject.name.clone(), groups, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trust() -> TrustBundle {
        TrustBundle {
            username_headers: vec!["X-Remote-User".to_owned()],
            group_headers: vec!["X-Remote-Group".to_owned()],
            extra_header_prefixes: vec!["X-Remote-Extra-".to_owned()],
            uid_headers: vec!["X-Remote-Uid".to_owned()],
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
        headers.append("x-remote-uid", "42".parse().unwrap());
        let user = by_headers(&trust(), &headers).unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("alice", "42"));
        assert_eq!(user.groups, ["dev", "ops", AUTHENTICATED]);
        assert_eq!(user.extra["example.com/team"], ["blue"]);
        assert_eq!(by_headers(&trust(), &HeaderMap::new()), None);
    }

    #[test]
    fn headers_without_the_front_proxys_certificate_are_ignored() {
        let mut headers = HeaderMap::new();
        headers.append("x-remote-user", "system:admin".parse().unwrap());
        headers.append("x-remote-group", "system:masters".parse().unwrap());
        assert_eq!(by_front_proxy(&trust(), &ClientChain::new(Vec::new()), &headers), None);
        let key = rcgen::generate_simple_self_signed(vec!["front-proxy".to_owned()]).unwrap();
        let chain = ClientChain::new(vec![key.cert.der().clone()]);
        assert_eq!(by_front_proxy(&trust(), &chain, &headers), None);
    }
}
