//! Whom to believe: what kube-apiserver publishes of its own certificates in
//! `kube-system/extension-apiserver-authentication`.

use crate::cache::{self, Cache};
use crate::watch::{Failures, Growing};
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use sha2::{Digest, Sha256};
use std::path::PathBuf;
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
    /// Headers that have the user's UID.
    pub uid_headers: Vec<String>,
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

    fn from_config_map(config_map: &ConfigMap) -> Result<Self, String> {
        let get = |key: &str| config_map.data.as_ref().and_then(|data| data.get(key));
        // An empty list of names allows any: what can't be read must not count as one.
        let list = |key: &str| -> Result<Vec<String>, String> {
            let Some(text) = get(key) else { return Ok(Vec::new()) };
            serde_json::from_str(text).map_err(|error| format!("{key}: no list of names: {error}"))
        };
        let ca = |key: &str| get(key).map(|pem| verifier(key, pem)).transpose();
        Ok(Self {
            client_ca: ca("client-ca-file")?,
            front_proxy_ca: ca("requestheader-client-ca-file")?,
            verdicts: Verdicts::default(),
            allowed_names: list("requestheader-allowed-names")?,
            username_headers: list("requestheader-username-headers")?,
            group_headers: list("requestheader-group-headers")?,
            extra_header_prefixes: list("requestheader-extra-headers-prefix")?,
            uid_headers: list("requestheader-uid-headers")?,
        })
    }
}

fn verifies(verifier: Option<&Arc<dyn ClientCertVerifier>>, chain: &[CertificateDer<'_>]) -> bool {
    let (Some(verifier), [certificate, intermediates @ ..]) = (verifier, chain) else {
        return false;
    };
    verifier.verify_client_cert(certificate, intermediates, UnixTime::now()).is_ok()
}

fn verifier(key: &str, pem: &str) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|error| format!("{key}: not PEM: {error}"))?;
        if let Err(error) = roots.add(certificate) {
            tracing::warn!(key, %error, "a CA certificate can't be used");
        }
    }
    WebPkiClientVerifier::builder(roots.into())
        .build()
        .map(|verifier| verifier as Arc<dyn ClientCertVerifier>)
        .map_err(|error| format!("{key}: no certificate can be used: {error}"))
}

/// Whom to believe by flags, before or instead of what the API server says.
#[derive(Clone, Debug, Default)]
pub struct OwnTrust {
    /// A file with CAs of clients, as PEM, believed besides those of the API server.
    pub client_ca: Option<PathBuf>,
    /// A file with CAs of front proxies, as PEM; with one the API server's word on front
    /// proxies does not count.
    pub front_proxy_ca: Option<PathBuf>,
    /// The common names a front proxy may have; any, if empty.
    pub allowed_names: Vec<String>,
    /// Headers that name the user.
    pub username_headers: Vec<String>,
    /// Headers that name a group each.
    pub group_headers: Vec<String>,
    /// What headers with more of the user start with.
    pub extra_header_prefixes: Vec<String>,
    /// Headers that have the user's UID.
    pub uid_headers: Vec<String>,
}

const CLIENT_CA: &str = "--client-ca-file";
const FRONT_PROXY_CA: &str = "--requestheader-client-ca-file";

/// The CAs of the files, as PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnCas {
    client: Option<String>,
    front_proxy: Option<String>,
}

impl OwnTrust {
    /// Reads the files.
    ///
    /// # Errors
    /// Where one can't be read; the text names flag and file.
    pub fn read(&self) -> Result<OwnCas, String> {
        let read = |flag: &str, path: &Option<PathBuf>| -> Result<Option<String>, String> {
            let read = |path: &PathBuf| {
                let text = std::fs::read_to_string(path);
                text.map_err(|error| format!("{flag}: {}: {error}", path.display()))
            };
            path.as_ref().map(read).transpose()
        };
        Ok(OwnCas {
            client: read(CLIENT_CA, &self.client_ca)?,
            front_proxy: read(FRONT_PROXY_CA, &self.front_proxy_ca)?,
        })
    }

    /// What is to be believed, with what the API server says where it was read.
    ///
    /// # Errors
    /// Where any of it can't be used; the text says what.
    pub fn bundle(
        &self,
        published: Option<&ConfigMap>,
        cas: &OwnCas,
    ) -> Result<TrustBundle, String> {
        let get = |key: &str| published?.data.as_ref()?.get(key).map(String::as_str);
        let front_proxy = cas.front_proxy.as_deref();
        let mut bundle = match (published, front_proxy) {
            (Some(published), None) => TrustBundle::from_config_map(published)?,
            (_, front_proxy) => TrustBundle {
                client_ca: None,
                front_proxy_ca: front_proxy.map(|pem| verifier(FRONT_PROXY_CA, pem)).transpose()?,
                allowed_names: self.allowed_names.clone(),
                username_headers: self.username_headers.clone(),
                group_headers: self.group_headers.clone(),
                extra_header_prefixes: self.extra_header_prefixes.clone(),
                uid_headers: self.uid_headers.clone(),
                verdicts: Verdicts::default(),
            },
        };
        let pems = [cas.client.as_deref(), get("client-ca-file")];
        let pem = pems.into_iter().flatten().collect::<Vec<_>>().join("\n");
        if !pem.is_empty() {
            bundle.client_ca = Some(verifier(CLIENT_CA, &pem)?);
        }
        Ok(bundle)
    }
}

/// How often the files of CAs are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Follows the files of the flags, and the API server's configuration where there
/// is a client to read it with, for ever. What can't be used does not replace what
/// is believed already. `cas` is what the files held when they were read last.
pub async fn follow_trust(client: Option<Client>, trust: Trust, own: OwnTrust, mut cas: OwnCas) {
    let looked_up = client.is_some();
    let mut published = None;
    let (waits, progress) = Growing::new();
    let mut objects = match client {
        Some(client) => {
            let api: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
            let config = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
            watcher(api, config).backoff(waits).applied_objects().boxed()
        }
        None => futures::stream::pending().boxed(),
    };
    let mut failures = Failures::default();
    loop {
        tokio::select! {
            object = objects.next() => match object {
                Some(Ok(config_map)) => {
                    progress.made();
                    failures.end();
                    published = Some(config_map);
                    tracing::debug!("read {NAMESPACE}/{NAME}");
                }
                Some(Err(error)) => {
                    if let Some(failures) = failures.one_more() {
                        tracing::warn!(%error, failures, "can't follow {NAMESPACE}/{NAME}");
                    }
                    continue;
                }
                None => return,
            },
            () = tokio::time::sleep(LOOK) => match own.read() {
                Ok(now) if now != cas => cas = now,
                _ => continue,
            },
        }
        if looked_up && published.is_none() {
            continue;
        }
        match own.bundle(published.as_ref(), &cas) {
            Ok(bundle) => trust.set(bundle),
            Err(error) => tracing::error!(
                error,
                "Failed to reload the trusted CAs from {NAMESPACE}/{NAME} or the flags; the last ones stay in use"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ca() -> String {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.self_signed(&key).unwrap().pem()
    }

    fn published(allowed: &str, ca: &str) -> ConfigMap {
        let data = [
            ("requestheader-allowed-names", allowed),
            ("requestheader-client-ca-file", ca),
            ("client-ca-file", ca),
            ("requestheader-uid-headers", r#"["X-Remote-Uid"]"#),
        ];
        let data = data.map(|(key, text)| (key.to_owned(), text.to_owned())).into();
        ConfigMap { data: Some(data), ..ConfigMap::default() }
    }

    #[test]
    fn what_cannot_be_read_is_never_taken_for_anybody() {
        let (own, cas, ca) = (OwnTrust::default(), OwnCas::default(), ca());
        let good = own.bundle(Some(&published(r#"["front"]"#, &ca)), &cas).unwrap();
        assert_eq!(
            (good.allowed_names, good.uid_headers),
            (vec!["front".to_owned()], vec!["X-Remote-Uid".to_owned()])
        );
        assert!(good.front_proxy_ca.is_some() && good.client_ca.is_some());
        let broken = "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----";
        for (allowed, ca) in
            [("[front]", ca.as_str()), ("\"front\"", &ca), ("[]", ""), ("[]", broken)]
        {
            assert!(own.bundle(Some(&published(allowed, ca)), &cas).is_err(), "{allowed} {ca}");
        }
    }

    #[tokio::test]
    async fn a_changed_ca_of_the_flags_is_taken_up_and_a_broken_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.crt");
        std::fs::write(&file, ca()).unwrap();
        let own = OwnTrust { client_ca: Some(file.clone()), ..OwnTrust::default() };
        let trust = Trust::default();
        let cas = own.read().unwrap();
        trust.set(own.bundle(None, &cas).unwrap());
        let first = trust.now();
        let following = tokio::spawn(follow_trust(None, trust.clone(), own, cas));
        let changed = async |text: &str| {
            let from = trust.now();
            std::fs::write(&file, text).unwrap();
            let waited = tokio::time::timeout(Duration::from_secs(60), async {
                while Arc::ptr_eq(&from, &trust.now()) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
            waited.await.expect("it is taken up");
        };
        changed(&ca()).await;
        assert!(!Arc::ptr_eq(&first, &trust.now()));
        std::fs::write(&file, "nonsense").unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(trust.now().client_ca.is_some());
        changed(&ca()).await;
        following.abort();
    }
}
