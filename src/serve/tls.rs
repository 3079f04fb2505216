//! The serving certificate, and the TLS configuration of the server.

use crate::causes::causes;
use crate::clock::WallClock;
use crate::reload::Reloadable;
use prometheus_client::metrics::gauge::Gauge;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Why there is no serving certificate.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is invalid or can't be read.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: String,
    },
    /// A self-signed certificate could not be generated.
    #[error("failed to generate a self-signed certificate: {0}")]
    Generate(#[from] rcgen::Error),
    /// TLS can't be set up with the certificate; for one, because the key is not that of the certificate.
    #[error("the certificate can't be served: {0}")]
    Config(#[from] rustls::Error),
}

/// A serving certificate.
pub struct ServingCertificate {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    /// The files of certificate and key, if it is from files.
    files: Option<[PathBuf; 2]>,
    /// The CA of a self-signed certificate, as PEM.
    pub self_signed_ca: Option<String>,
}

/// The protocols of the server.
#[derive(Clone, Copy, Debug, Default)]
pub struct TlsOptions {
    /// Only TLS 1.3, instead of 1.2 and 1.3.
    pub tls13_only: bool,
    /// Only HTTP/1.1, instead of HTTP/2 and HTTP/1.1.
    pub http1_only: bool,
}

/// The validity of a self-signed certificate. Each start generates a new one.
const VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

impl ServingCertificate {
    /// A certificate from files.
    ///
    /// # Errors
    /// If a file can't be read or is not PEM.
    pub fn from_files(certificate: &Path, key_file: &Path) -> Result<Self, TlsError> {
        let file = |path: &Path, error: String| TlsError::File { path: path.to_owned(), error };
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
        let chain = chain.map_err(|error| file(certificate, causes(&error)))?;
        if chain.is_empty() {
            return Err(file(certificate, "a PEM certificate was expected".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_file(key_file).map_err(|e| file(key_file, causes(&e)))?;
        let files = Some([certificate.to_owned(), key_file.to_owned()]);
        Ok(Self { chain, key, files, self_signed_ca: None })
    }

    /// A self-signed certificate of a Service, with a new CA whose key is dropped.
    ///
    /// # Errors
    /// If it can't be generated.
    pub fn self_signed(service: &str, namespace: &str) -> Result<Self, TlsError> {
        let start = WallClock::default().now() - Duration::from_secs(3600);
        let mut ca = CertificateParams::new(Vec::new())?;
        ca.distinguished_name.push(DnType::CommonName, format!("{service}-ca"));
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        ca.not_before = start.into();
        ca.not_after = (start + VALIDITY).into();
        let ca_key = KeyPair::generate()?;
        let ca_certificate = ca.self_signed(&ca_key)?;
        let ca_pem = ca_certificate.pem();
        let issuer = Issuer::new(ca, ca_key);

        let names = [
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}.svc.cluster.local"),
            format!("{service}.{namespace}"),
            "localhost".to_owned(),
        ];
        let mut params = CertificateParams::new(names.to_vec())?;
        for address in [[127, 0, 0, 1].into(), std::net::Ipv6Addr::LOCALHOST.into()] {
            params.subject_alt_names.push(SanType::IpAddress(address));
        }
        params.distinguished_name.push(DnType::CommonName, names[0].clone());
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.not_before = start.into();
        params.not_after = (start + VALIDITY).into();
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;
        Ok(Self {
            chain: vec![certificate.der().clone()],
            key: PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            files: None,
            self_signed_ca: Some(ca_pem),
        })
    }

    /// The TLS configuration with this certificate, and the handle that reloads it. Client
    /// certificates are optional.
    ///
    /// # Errors
    /// If TLS can't be set up with the certificate, as [`TlsError::Config`] says.
    pub(super) fn server_config(
        self,
        options: TlsOptions,
    ) -> Result<(ServerConfig, Arc<ReloadedCertificate>), TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions: &[_] = match options.tls13_only {
            true => &[&rustls::version::TLS13],
            false => rustls::ALL_VERSIONS,
        };
        let certificate = Arc::new(ReloadedCertificate::new(self, provider.clone())?);
        let mut config = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)?
            .with_client_cert_verifier(Arc::new(AcceptAnyCertificate(provider)))
            .with_cert_resolver(certificate.clone());
        config.alpn_protocols = match options.http1_only {
            true => vec![b"http/1.1".to_vec()],
            false => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        };
        Ok((config, certificate))
    }
}

/// The current serving certificate. Its files are reloaded, as certificates are renewed.
#[derive(Debug)]
pub(super) struct ReloadedCertificate {
    key: Reloadable<CertifiedKey>,
    /// The files of certificate and key, if it is from files.
    files: Option<[PathBuf; 2]>,
    provider: Arc<CryptoProvider>,
}

/// The time between two reads of the certificate's files.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

impl ReloadedCertificate {
    fn new(
        certificate: ServingCertificate,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, TlsError> {
        let key = CertifiedKey::from_der(certificate.chain, certificate.key, &provider)?;
        Ok(Self { key: Reloadable::new(key), files: certificate.files, provider })
    }

    /// The time until which it is valid, in Unix seconds.
    fn not_after(&self) -> Option<i64> {
        let key = self.key.load();
        let (_, certificate) = X509Certificate::from_der(key.cert.first()?).ok()?;
        Some(certificate.validity().not_after.timestamp())
    }

    /// Reloads the files when they change, for ever. Invalid files do not replace the current
    /// certificate. The gauge shows the time until which it is valid.
    pub(super) async fn run_reloader(self: Arc<Self>, not_after: Gauge) {
        not_after.set(self.not_after().unwrap_or_default());
        let Some(files) = &self.files else { return std::future::pending().await };
        let read = async || {
            let [certificate, key] = files;
            (tokio::fs::read(certificate).await.ok(), tokio::fs::read(key).await.ok())
        };
        // The files may have changed since the start: they are reloaded once in any case.
        let mut seen = (None, None);
        loop {
            let now = read().await;
            if now != seen {
                seen = now;
                self.reload(files);
                not_after.set(self.not_after().unwrap_or_default());
            }
            tokio::time::sleep(RELOAD_INTERVAL).await;
        }
    }

    fn reload(&self, files: &[PathBuf; 2]) {
        let loaded = ServingCertificate::from_files(&files[0], &files[1])
            .and_then(|new| Ok(CertifiedKey::from_der(new.chain, new.key, &self.provider)?));
        match loaded {
            Ok(key) if key.cert == self.key.load().cert => {}
            Ok(key) => {
                self.key.replace(key);
                tracing::info!(file = %files[0].display(), "Reloaded serving certificate");
            }
            Err(error) => {
                tracing::error!(
                    error = error.to_string(),
                    "Failed to reload serving certificate, keeping the previous one"
                );
            }
        }
    }
}

impl ResolvesServerCert for ReloadedCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.key.load())
    }
}

/// Accepts any client certificate whose key the client has. `Authenticator` verifies the chain
/// per request, as the trusted CAs change while connections are open. A chain that leads to none
/// of them counts as no certificate: the client may still have a token.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ClientCertVerifier for AcceptAnyCertificate {
    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_self_signed_certificate_can_be_served() {
        let certificate = ServingCertificate::self_signed("plimsoll", "plimsoll").unwrap();
        assert!(certificate.self_signed_ca.as_ref().unwrap().contains("BEGIN CERTIFICATE"));
        certificate.server_config(TlsOptions::default()).unwrap();
    }

    #[test]
    fn a_missing_file_is_named() {
        let path = Path::new("/nowhere/tls.crt");
        let error = ServingCertificate::from_files(path, path).err().unwrap().to_string();
        assert!(error.contains("/nowhere/tls.crt"), "{error}");
    }

    /// Its line breaks were lost, so that it is all in the line that is wrong.
    #[test]
    fn no_error_has_a_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tls.key");
        std::fs::write(&path, "-----BEGIN PRIVATE KEY-----s3cret-----END PRIVATE KEY\n").unwrap();
        let own = ServingCertificate::self_signed("plimsoll", "plimsoll").unwrap();
        let certificate = folder.path().join("tls.crt");
        std::fs::write(&certificate, own.self_signed_ca.unwrap()).unwrap();
        for certificate in [&certificate, &path] {
            let error = ServingCertificate::from_files(certificate, &path).err().unwrap();
            let error = error.to_string();
            assert!(error.ends_with(": it is not PEM"), "{error}");
        }
    }
}
