//! The certificate chain of a connection's client: what requests need of it, read once.

use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The certificate chain of a client, not verified yet.
#[derive(Debug)]
pub struct ClientChain {
    /// The client's own certificate, and those that lead to a CA; empty if it has none.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The hash of all of them.
    pub hash: [u8; 32],
    /// Whose certificate it is; none if it has none, or no name.
    pub subject: Option<Subject>,
}

/// The subject of a certificate.
#[derive(Debug)]
pub struct Subject {
    /// The common name.
    pub name: String,
    /// The organizations.
    pub organizations: Vec<String>,
}

impl ClientChain {
    /// Reads a chain.
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Self {
        let mut hash = Sha256::new();
        for certificate in &certificates {
            hash.update((certificate.len() as u64).to_be_bytes());
            hash.update(certificate);
        }
        let subject = certificates.first().and_then(Subject::of);
        Self { hash: hash.finalize().into(), subject, certificates }
    }
}

impl Subject {
    fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
        let organization = |part: &x509_parser::x509::AttributeTypeAndValue<'_>| {
            part.as_str().ok().map(str::to_owned)
        };
        let organizations = subject.iter_organization().filter_map(organization).collect();
        Some(Self { name, organizations })
    }
}
