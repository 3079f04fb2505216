//! Whom to believe: what kube-apiserver publishes of its own certificates in
//! `kube-system/extension-apiserver-authentication`.

use crate::cache::{self, Cache};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use sha2::{Digest, Sha256};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";

/// Whom to believe, kept up to date by [`follow_trust`].
#[derive(Clone, Default)]
pub struct Trust(Arc<RwLock<Option<Arc<TrustBundle>>>>);

/// What the API server's configuration says at one time.
#[derive(Debug, Default)]
pub struct TrustBundle {
    pub(super) client_ca: Option<Arc<dyn ClientCertVerifier>>,
    pub(super) front_proxy_ca: Option<Arc<dyn ClientCertVerifier>>,
    pub(super) verdicts: Verdicts,
    /// The common names a front proxy may have; any, if empty.
    pub allowed_names: Vec<String>,
    /// Headers that name the user.
    pub username_headers: Vec<String>,
    /// Headers that name a group each.
    pub group_headers: Vec<String>,
    /// What headers with more of the user start with.
    pub extra_header_prefixes: Vec<String>,
}

impl Trust {
    /// Whether anything is known yet.
    pub fn is_known(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// What is known now.
    pub fn now(&self) -> Arc<TrustBundle> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
    }

    /// Takes what is to be believed from now on.
    pub fn set(&self, bundle: TrustBundle) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(bundle));
    }
}

/// What was found of certificate chains lately, by the hash of each: a
/// connection sends many requests, and to check its certificate costs more than
/// most answers.
#[derive(Debug)]
pub(super) struct Verdicts(Cache<[u8; 32], Verdict>);

/// Whose a certificate chain is.
#[derive(Clone, Copy, Debug)]
struct Verdict {
    front_proxy: bool,
    client: bool,
}

/// How long it is believed: one that expires is refused so much later.
const VERDICT_AGE: Duration = Duration::from_secs(10);
/// How many bytes of them are kept.
const VERDICTS: usize = 1 << 20;

impl Default for Verdicts {
    fn default() -> Self {
        Self(cache::of_bytes(VERDICTS, VERDICT_AGE, |_, _| size_of::<([u8; 32], Verdict)>()))
    }
}

impl TrustBundle {
    /// Whether a certificate chain is that of a front proxy: signed by its CA.
    pub fn is_front_proxy(&self, chain: &[CertificateDer<'_>]) -> bool {
        self.verdict(chain).front_proxy
    }

    /// Whether a certificate chain is that of a client of the cluster.
    pub fn is_client(&self, chain: &[CertificateDer<'_>]) -> bool {
        self.verdict(chain).client
    }

    fn verdict(&self, chain: &[CertificateDer<'_>]) -> Verdict {
        let mut hash = Sha256::new();
        for certificate in chain {
            hash.update((certificate.len() as u64).to_be_bytes());
            hash.update(certificate);
        }
        let hash: [u8; 32] = hash.finalize().into();
        self.verdicts.0.get(&hash).unwrap_or_else(|| {
            let verdict = Verdict {
                front_proxy: verifies(self.front_proxy_ca.as_ref(), chain),
                client: verifies(self.client_ca.as_ref(), chain),
            };
            self.verdicts.0.insert(hash, verdict);
            verdict
        })
    }

    fn from_config_map(config_map: &ConfigMap) -> Self {
        let get = |key: &str| config_map.data.as_ref().and_then(|data| data.get(key));
        let list = |key: &str| -> Vec<String> {
            let Some(text) = get(key) else { return Vec::new() };
            serde_json::from_str(text).unwrap_or_else(|error| {
                tracing::warn!(key, %error, "{NAME}: not a list of names; it counts as empty");
                Vec::new()
            })
        };
        Self {
            client_ca: get("client-ca-file").and_then(|pem| verifier("client-ca-file", pem)),
            front_proxy_ca: get("requestheader-client-ca-file")
                .and_then(|pem| verifier("requestheader-client-ca-file", pem)),
            verdicts: Verdicts::default(),
            allowed_names: list("requestheader-allowed-names"),
            username_headers: list("requestheader-username-headers"),
            group_headers: list("requestheader-group-headers"),
            extra_header_prefixes: list("requestheader-extra-headers-prefix"),
        }
    }
}

fn verifies(verifier: Option<&Arc<dyn ClientCertVerifier>>, chain: &[CertificateDer<'_>]) -> bool {
    let (Some(verifier), [certificate, intermediates @ ..]) = (verifier, chain) else {
        return false;
    };
    verifier.verify_client_cert(certificate, intermediates, UnixTime::now()).is_ok()
}

fn verifier(key: &str, pem: &str) -> Option<Arc<dyn ClientCertVerifier>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()).flatten() {
        if let Err(error) = roots.add(certificate) {
            tracing::warn!(key, %error, "{NAME}: a certificate can't be used");
        }
    }
    match WebPkiClientVerifier::builder(roots.into()).build() {
        Ok(verifier) => Some(verifier),
        Err(error) => {
            tracing::warn!(key, %error, "{NAME}: no certificate can be used");
            None
        }
    }
}

/// Whom to believe by flags, before or instead of what the API server says.
#[derive(Clone, Debug, Default)]
pub struct OwnTrust {
    /// CAs of clients, as PEM, believed besides those of the API server.
    pub client_ca: Option<String>,
    /// CAs of front proxies, as PEM; with one the API server's word on front
    /// proxies does not count.
    pub front_proxy_ca: Option<String>,
    /// The common names a front proxy may have; any, if empty.
    pub allowed_names: Vec<String>,
    /// Headers that name the user.
    pub username_headers: Vec<String>,
    /// Headers that name a group each.
    pub group_headers: Vec<String>,
    /// What headers with more of the user start with.
    pub extra_header_prefixes: Vec<String>,
}

impl OwnTrust {
    /// What is to be believed, with what the API server says where it was read.
    pub fn bundle(&self, published: Option<&ConfigMap>) -> TrustBundle {
        let get = |key: &str| published?.data.as_ref()?.get(key).map(String::as_str);
        let mut bundle = match (published, &self.front_proxy_ca) {
            (Some(published), None) => TrustBundle::from_config_map(published),
            (_, front_proxy_ca) => TrustBundle {
                client_ca: None,
                front_proxy_ca: front_proxy_ca
                    .as_deref()
                    .and_then(|pem| verifier("--requestheader-client-ca-file", pem)),
                allowed_names: self.allowed_names.clone(),
                username_headers: self.username_headers.clone(),
                group_headers: self.group_headers.clone(),
                extra_header_prefixes: self.extra_header_prefixes.clone(),
                verdicts: Verdicts::default(),
            },
        };
        let pems = [self.client_ca.as_deref(), get("client-ca-file")];
        let pem = pems.into_iter().flatten().collect::<Vec<_>>().join("\n");
        if !pem.is_empty() {
            bundle.client_ca = verifier("client-ca-file", &pem);
        }
        bundle
    }
}

/// Follows the API server's configuration for ever.
pub async fn follow_trust(client: Client, trust: Trust, own: OwnTrust) {
    let api: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
    let config = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
    let mut objects = watcher(api, config).default_backoff().applied_objects().boxed();
    loop {
        match objects.try_next().await {
            Ok(Some(config_map)) => {
                trust.set(own.bundle(Some(&config_map)));
                tracing::debug!("read {NAMESPACE}/{NAME}");
            }
            Ok(None) => return,
            Err(error) => tracing::warn!(%error, "can't follow {NAMESPACE}/{NAME}"),
        }
    }
}
