//! The certificate chain of a connection's client: what requests need of it, read once.

use super::user::{AUTHENTICATED, UserInfo};
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The certificate chain of a client, not verified yet.
#[derive(Debug)]
pub struct ClientChain {
    /// The client's own certificate, and those that lead to a CA; empty if it has none.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The hash of all of them.
    pub hash: [u8; 32],
    /// The user that its certificate names; none if it has none, or no name.
    pub subject: Option<Arc<UserInfo>>,
}

impl ClientChain {
    /// Reads a chain.
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Self {
        let mut hash = Sha256::new();
        for certificate in &certificates {
            hash.update((certificate.len() as u64).to_be_bytes());
            hash.update(certificate);
        }
        let subject = certificates.first().and_then(subject).map(Arc::new);
        Self { hash: hash.finalize().into(), subject, certificates }
    }
}

/// The user that a certificate names: its common name, with its organizations as groups.
fn subject(certificate: &CertificateDer<'_>) -> Option<UserInfo> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let organization =
        |part: &x509_parser::x509::AttributeTypeAndValue<'_>| part.as_str().ok().map(str::to_owned);
    let organizations = subject.iter_organization().filter_map(organization);
    let groups = organizations.chain([AUTHENTICATED.to_owned()]).collect();
    Some(UserInfo { name, groups, ..UserInfo::default() })
}
