//! The certificates of a cluster, and how clients treat them.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A CA that writes the certificates that it signs into a folder.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: PathBuf,
    /// The file of its certificate.
    pub certificate: PathBuf,
    /// What else than loopback its certificates are valid for.
    pub addresses: Vec<Ipv4Addr>,
    /// The names that its certificates are valid for.
    pub names: Vec<String>,
}

/// A certificate and its key, as files.
pub struct Signed {
    /// The file of the certificate.
    pub certificate: PathBuf,
    /// The file of its key.
    pub key: PathBuf,
}

impl Authority {
    /// A new CA; its certificate is NAME.crt.
    pub fn new(folder: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().expect("a key");
        let signed = params.self_signed(&key).expect("a certificate");
        let certificate = folder.join(format!("{name}.crt"));
        write(&certificate, &signed.pem());
        let issuer = Issuer::new(params, key);
        let names = ["localhost", "kubernetes.default.svc"].map(str::to_owned).into();
        Self { issuer, folder: folder.to_owned(), certificate, addresses: Vec::new(), names }
    }

    /// Signs a certificate for a user with groups, or a server on loopback.
    pub fn sign(&self, name: &str, groups: &[&str]) -> Signed {
        self.sign_until(name, groups, None)
    }

    /// The same, valid for `days` from now; negative: it has expired.
    pub fn sign_until(&self, name: &str, groups: &[&str], days: Option<i64>) -> Signed {
        let mut params = CertificateParams::new(self.names.clone()).expect("good names");
        for address in self.addresses.iter().copied().chain([Ipv4Addr::LOCALHOST]) {
            params.subject_alt_names.push(SanType::IpAddress(address.into()));
        }
        params.distinguished_name.push(DnType::CommonName, name);
        for group in groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        if let Some(days) = days {
            let day = std::time::Duration::from_secs(24 * 3600);
            let now = std::time::SystemTime::now();
            let end = if days < 0 { now - day } else { now + day * days.unsigned_abs() as u32 };
            params.not_before = (now - 30 * day).into();
            params.not_after = end.into();
        }
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.issuer).expect("a certificate");
        // A new file each time: another certificate of this name may be in use.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let file = format!("{}-{}", name.replace(':', "-"), NEXT.fetch_add(1, Ordering::Relaxed));
        let files = Signed {
            certificate: self.folder.join(format!("{file}.crt")),
            key: self.folder.join(format!("{file}.key")),
        };
        write(&files.certificate, &signed.pem());
        write(&files.key, &key.serialize_pem());
        files
    }
}

/// A key pair for service account tokens: the files of the public and the private key.
pub fn token_keys(folder: &Path) -> (PathBuf, PathBuf) {
    let key = KeyPair::generate().expect("a key");
    let (public, private) = (folder.join("sa.pub"), folder.join("sa.key"));
    write(&public, &key.public_key_pem());
    write(&private, &key.serialize_pem());
    (public, private)
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Accepts any certificate of a server.
#[derive(Debug)]
pub struct AcceptAny;

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}
