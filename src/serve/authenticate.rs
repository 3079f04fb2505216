//! Authentication: by the front proxy's request headers, a client certificate or a bearer token.
//! Source: `k8s.io/apiserver/pkg/authentication`.

use super::connections::Peer;
use super::token_review::TokenAuthenticator;
use super::trust::{ChainVerification, TrustBundle, TrustStore};
use super::user::{AUTHENTICATED, AuthenticationError, UserInfo};
use axum::http::{HeaderMap, header};
use percent_encoding::percent_decode_str;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Authenticates requests.
#[derive(Clone)]
pub struct Authenticator {
    trust: TrustStore,
    tokens: TokenAuthenticator,
}

/// The client of a connection, whose certificates were verified.
pub struct VerifiedPeer<'a> {
    peer: &'a Peer,
    tokens: &'a TokenAuthenticator,
    trust: Arc<TrustBundle>,
    /// None if no user is named by its certificate.
    chain: Option<ChainVerification>,
}

impl Authenticator {
    /// An authenticator that trusts these CAs, and authenticates bearer tokens by `tokens`.
    pub fn new(trust: TrustStore, tokens: TokenAuthenticator) -> Self {
        Self { trust, tokens }
    }

    /// Verifies the certificates of a connection.
    pub fn verify<'a>(&'a self, peer: &'a Peer) -> VerifiedPeer<'a> {
        let trust = self.trust.load();
        let chain = peer.chain.subject.is_some().then(|| trust.verify(&peer.chain));
        VerifiedPeer { peer, tokens: &self.tokens, trust, chain }
    }
}

impl VerifiedPeer<'_> {
    /// Whether the connection is the front proxy's.
    pub fn is_front_proxy(&self) -> bool {
        let allowed = &self.trust.allowed_names;
        let is_allowed = |user: &UserInfo| allowed.is_empty() || allowed.contains(&user.name);
        self.chain.is_some_and(|chain| chain.front_proxy)
            && self.peer.chain.subject.as_deref().is_some_and(is_allowed)
    }

    /// Authenticates a request by the connection's certificates and the request's headers.
    ///
    /// # Errors
    /// As `AuthenticationError` says.
    pub async fn authenticate(
        &self,
        headers: &HeaderMap,
    ) -> Result<Arc<UserInfo>, AuthenticationError> {
        if let Some(user) = self.by_front_proxy(headers) {
            return Ok(Arc::new(user));
        }
        if let Some(user) = &self.peer.chain.subject
            && self.chain.is_some_and(|chain| chain.client)
        {
            return Ok(user.clone());
        }
        let token = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim());
        match token {
            Some(token) if !token.is_empty() => {
                self.tokens.authenticate(token, self.peer.source).await
            }
            _ => Err(AuthenticationError::InvalidCredentials),
        }
    }

    /// The user of a front proxy's request headers. They are ignored unless the connection has the
    /// front proxy's certificate.
    fn by_front_proxy(&self, headers: &HeaderMap) -> Option<UserInfo> {
        self.is_front_proxy().then(|| by_headers(&self.trust, headers))?
    }

    /// The reason why request headers are ignored that only a front proxy may set. None if there are no
    /// such headers, or if the connection is the front proxy's.
    pub fn untrusted_front_proxy(&self, headers: &HeaderMap) -> Option<String> {
        let names = &self.trust.username_headers;
        let claims = names.iter().any(|name| headers.contains_key(name.as_str()));
        let UserInfo { name, .. } = &**self.peer.chain.subject.as_ref()?;
        if !claims || self.is_front_proxy() {
            return None;
        }
        Some(match self.chain.is_some_and(|chain| chain.front_proxy) {
            true => format!("common name {name:?} is not among requestheader-allowed-names"),
            false => format!("the certificate of {name:?} is not signed by the front proxy's CA"),
        })
    }
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

#[cfg(test)]
mod tests {
    use super::super::client_chain::ClientChain;
    use super::super::connections::ConnectionLimiter;
    use super::*;
    use crate::fake;
    use std::time::Duration;

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

    #[tokio::test]
    async fn headers_without_the_front_proxys_certificate_are_ignored() {
        let mut headers = HeaderMap::new();
        headers.append("x-remote-user", "system:admin".parse().unwrap());
        headers.append("x-remote-group", "system:masters".parse().unwrap());
        let client = fake::api(|_| (404, serde_json::Value::Null)).0;
        let tokens = TokenAuthenticator::new(client, Duration::ZERO, Arc::default());
        let store = TrustStore::default();
        store.set(trust());
        let authenticator = Authenticator::new(store, tokens);
        let key = rcgen::generate_simple_self_signed(vec!["front-proxy".to_owned()]).unwrap();
        for certificates in [Vec::new(), vec![key.cert.der().clone()]] {
            let source = [10, 0, 0, 1].into();
            let (connection, _) = ConnectionLimiter::default().admit(source).unwrap();
            let peer = Peer { chain: Arc::new(ClientChain::new(certificates)), connection, source };
            assert_eq!(authenticator.verify(&peer).by_front_proxy(&headers), None);
        }
    }
}
