//! The trusted CAs of clients and of front proxies: those that kube-apiserver publishes in
//! `kube-system/extension-apiserver-authentication`, and those of flags.

use super::client_chain::ClientChain;
use crate::cache::{self, Cache};
use crate::kube_error::worded_watch;
use crate::watch::{FailureLog, ResettableBackoff};
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";

/// The trusted CAs, which [`run_trust_reflector`] keeps up to date. Cheap to clone.
#[derive(Clone, Default)]
pub struct TrustStore(Arc<RwLock<Option<Arc<TrustBundle>>>>);

/// The trusted CAs and the request headers of front proxies, at one time.
#[derive(Debug, Default)]
pub struct TrustBundle {
    pub(super) client_ca: Option<Arc<dyn ClientCertVerifier>>,
    pub(super) requestheader_client_ca: Option<Arc<dyn ClientCertVerifier>>,
    pub(super) verified_chains: VerifiedChains,
    /// The allowed common names of front proxies; any, if empty.
    pub allowed_names: Vec<String>,
    /// The headers with the user's name.
    pub username_headers: Vec<String>,
    /// The headers with a group each.
    pub group_headers: Vec<String>,
    /// The prefixes of headers with extra information.
    pub extra_header_prefixes: Vec<String>,
    /// The headers with the user's UID.
    pub uid_headers: Vec<String>,
}

impl TrustStore {
    /// Whether trusted CAs were set.
    pub fn is_known(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The current trusted CAs; none before they were set.
    pub fn load(&self) -> Arc<TrustBundle> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
    }

    /// Replaces the trusted CAs.
    pub fn set(&self, bundle: TrustBundle) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(bundle));
    }
}

/// A cache of verified certificate chains, by hash. A connection sends many requests, and
/// verifying its chain costs more than most responses.
#[derive(Debug)]
pub(super) struct VerifiedChains(Cache<[u8; 32], ChainVerification>);

/// Which CAs a certificate chain leads to.
#[derive(Clone, Copy, Debug)]
pub struct ChainVerification {
    /// The request header CA.
    pub front_proxy: bool,
    /// The client CA.
    pub client: bool,
}

/// How long a verification is cached. An expired certificate is refused this much later.
const VERIFICATION_TTL: Duration = Duration::from_secs(10);
/// The size of the cache, in bytes.
const VERIFICATION_CACHE_BYTES: usize = 1 << 20;

impl Default for VerifiedChains {
    fn default() -> Self {
        let entry = size_of::<([u8; 32], ChainVerification)>();
        Self(cache::of_bytes(VERIFICATION_CACHE_BYTES, VERIFICATION_TTL, move |_, _| entry))
    }
}

impl TrustBundle {
    /// Which CAs a certificate chain leads to.
    pub fn verify(&self, chain: &ClientChain) -> ChainVerification {
        self.verified_chains.0.get(&chain.hash).unwrap_or_else(|| {
            let leads_to = |ca: &Option<_>| verifies(ca.as_ref(), &chain.certificates);
            let verified = ChainVerification {
                front_proxy: leads_to(&self.requestheader_client_ca),
                client: leads_to(&self.client_ca),
            };
            self.verified_chains.0.insert(chain.hash, verified);
            verified
        })
    }

    fn from_config_map(config_map: &ConfigMap) -> Result<Self, String> {
        let get = |key: &str| config_map.data.as_ref().and_then(|data| data.get(key));
        // An empty list allows any name, so a list that can't be parsed must be an error.
        let list = |key: &str| -> Result<Vec<String>, String> {
            let Some(text) = get(key) else { return Ok(Vec::new()) };
            serde_json::from_str(text)
                .map_err(|error| format!("{key}: not a JSON list of names: {error}"))
        };
        let ca = |key: &str| get(key).map(|pem| verifier(key, pem)).transpose();
        Ok(Self {
            client_ca: ca("client-ca-file")?,
            requestheader_client_ca: ca("requestheader-client-ca-file")?,
            verified_chains: VerifiedChains::default(),
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
            tracing::warn!(key, error = error.to_string(), "Ignored invalid CA certificate");
        }
    }
    WebPkiClientVerifier::builder(roots.into())
        .build()
        .map(|verifier| verifier as Arc<dyn ClientCertVerifier>)
        .map_err(|error| format!("{key}: no certificate can be used: {error}"))
}

/// The trusted CAs of flags.
#[derive(Clone, Debug, Default)]
pub struct TrustOptions {
    /// `--client-ca-file`: CAs of clients, as PEM, in addition to those of the cluster.
    pub client_ca_file: Option<PathBuf>,
    /// `--requestheader-client-ca-file`: CAs of front proxies, as PEM. With this file, the
    /// cluster's settings of front proxies are ignored.
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// The allowed common names of front proxies; any, if empty.
    pub allowed_names: Vec<String>,
    /// The headers with the user's name.
    pub username_headers: Vec<String>,
    /// The headers with a group each.
    pub group_headers: Vec<String>,
    /// The prefixes of headers with extra information.
    pub extra_header_prefixes: Vec<String>,
    /// The headers with the user's UID.
    pub uid_headers: Vec<String>,
}

const CLIENT_CA_FLAG: &str = "--client-ca-file";
const REQUESTHEADER_CA_FLAG: &str = "--requestheader-client-ca-file";

/// The contents of the CA files, as PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaFiles {
    client: Option<String>,
    requestheader_client: Option<String>,
}

impl TrustOptions {
    /// Reads the CA files.
    ///
    /// # Errors
    /// If a file can't be read; the text names flag and file.
    pub fn read(&self) -> Result<CaFiles, String> {
        let read = |flag: &str, path: &Option<PathBuf>| -> Result<Option<String>, String> {
            let read = |path: &PathBuf| {
                let text = std::fs::read_to_string(path);
                text.map_err(|error| format!("{flag}: {}: {error}", path.display()))
            };
            path.as_ref().map(read).transpose()
        };
        let requestheader = &self.requestheader_client_ca_file;
        Ok(CaFiles {
            client: read(CLIENT_CA_FLAG, &self.client_ca_file)?,
            requestheader_client: read(REQUESTHEADER_CA_FLAG, requestheader)?,
        })
    }

    /// The trusted CAs of the files and of the cluster's ConfigMap, if it was read.
    ///
    /// # Errors
    /// If any of them is invalid; the text says which.
    pub fn bundle(
        &self,
        published: Option<&ConfigMap>,
        files: &CaFiles,
    ) -> Result<TrustBundle, String> {
        let get = |key: &str| published?.data.as_ref()?.get(key).map(String::as_str);
        let requestheader_ca = files.requestheader_client.as_deref();
        let mut bundle = match (published, requestheader_ca) {
            (Some(published), None) => TrustBundle::from_config_map(published)?,
            (_, requestheader_ca) => TrustBundle {
                client_ca: None,
                requestheader_client_ca: requestheader_ca
                    .map(|pem| verifier(REQUESTHEADER_CA_FLAG, pem))
                    .transpose()?,
                allowed_names: self.allowed_names.clone(),
                username_headers: self.username_headers.clone(),
                group_headers: self.group_headers.clone(),
                extra_header_prefixes: self.extra_header_prefixes.clone(),
                uid_headers: self.uid_headers.clone(),
                verified_chains: VerifiedChains::default(),
            },
        };
        let pems = [files.client.as_deref(), get("client-ca-file")];
        let pem = pems.into_iter().flatten().collect::<Vec<_>>().join("\n");
        if !pem.is_empty() {
            bundle.client_ca = Some(verifier(CLIENT_CA_FLAG, &pem)?);
        }
        Ok(bundle)
    }
}

/// The time between two reads of the CA files.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// Keeps the trusted CAs up to date with the CA files and, if there is a client, with the
/// cluster's ConfigMap, for ever. Invalid CAs do not replace the current ones. `files` are the
/// contents that the files had when the trusted CAs were set.
pub async fn run_trust_reflector(
    client: Option<Client>,
    trust: TrustStore,
    options: TrustOptions,
    mut files: CaFiles,
) {
    let configmap = format!("{NAMESPACE}/{NAME}");
    let has_lookup = client.is_some();
    let mut published = None;
    let (backoff, progress) = ResettableBackoff::new();
    let mut objects = match client {
        Some(client) => {
            let api: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
            let config = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
            watcher(api, config).backoff(backoff).applied_objects().boxed()
        }
        None => futures::stream::pending().boxed(),
    };
    let mut failures = FailureLog::default();
    loop {
        tokio::select! {
            object = objects.next() => match object {
                Some(Ok(config_map)) => {
                    progress.made();
                    failures.succeeded();
                    published = Some(config_map);
                    tracing::debug!(configmap, "Read trusted CAs");
                }
                Some(Err(error)) => {
                    if let Some(failures) = failures.failed() {
                        let error = worded_watch(&error);
                        tracing::warn!(error, failures, configmap, "Failed to watch trusted CAs");
                    }
                    continue;
                }
                None => return,
            },
            () = tokio::time::sleep(RELOAD_INTERVAL) => match options.read() {
                Ok(now) if now != files => files = now,
                _ => continue,
            },
        }
        if has_lookup && published.is_none() {
            continue;
        }
        match options.bundle(published.as_ref(), &files) {
            Ok(bundle) => trust.set(bundle),
            Err(error) => {
                tracing::error!(
                    error,
                    configmap,
                    "Failed to reload trusted CAs, keeping the previous ones"
                );
            }
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
    fn invalid_settings_never_count_as_any_name() {
        let (options, files, ca) = (TrustOptions::default(), CaFiles::default(), ca());
        let good = options.bundle(Some(&published(r#"["front"]"#, &ca)), &files).unwrap();
        assert_eq!(
            (good.allowed_names, good.uid_headers),
            (vec!["front".to_owned()], vec!["X-Remote-Uid".to_owned()])
        );
        assert!(good.requestheader_client_ca.is_some() && good.client_ca.is_some());
        let broken = "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----";
        for (allowed, ca) in
            [("[front]", ca.as_str()), ("\"front\"", &ca), ("[]", ""), ("[]", broken)]
        {
            assert!(
                options.bundle(Some(&published(allowed, ca)), &files).is_err(),
                "{allowed} {ca}"
            );
        }
    }

    #[tokio::test]
    async fn a_changed_ca_file_is_reloaded_and_an_invalid_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.crt");
        std::fs::write(&file, ca()).unwrap();
        let options =
            TrustOptions { client_ca_file: Some(file.clone()), ..TrustOptions::default() };
        let trust = TrustStore::default();
        let files = options.read().unwrap();
        trust.set(options.bundle(None, &files).unwrap());
        let first = trust.load();
        let reflector = tokio::spawn(run_trust_reflector(None, trust.clone(), options, files));
        let changed = async |text: &str| {
            let from = trust.load();
            std::fs::write(&file, text).unwrap();
            let waited = tokio::time::timeout(Duration::from_secs(60), async {
                while Arc::ptr_eq(&from, &trust.load()) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
            waited.await.expect("it is reloaded");
        };
        changed(&ca()).await;
        assert!(!Arc::ptr_eq(&first, &trust.load()));
        std::fs::write(&file, "nonsense").unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(trust.load().client_ca.is_some());
        changed(&ca()).await;
        reflector.abort();
    }
}
