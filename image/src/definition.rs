//! What an image is, beside the bytes of its files.

use serde::Deserialize;
use std::collections::BTreeMap;

/// What is set of an image, as `deploy/image.json` has it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Definition {
    /// Paths in the image, and what each has.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// User and group of the process, as `UID:GID`.
    #[serde(default)]
    pub user: String,
    /// The program and its first arguments.
    pub entrypoint: Vec<String>,
    /// Ports, such as `6443/tcp`.
    #[serde(default)]
    pub exposed_ports: Vec<String>,
    /// Labels of the image, and annotations of its manifest.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// Mozilla's root certificates as PEM. They are those of a crate, whose version Cargo.lock has, and
/// not those of the machine.
pub fn root_certificates() -> String {
    let certificates = webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter();
    let certificates = certificates.map(|der| pem::Pem::new("CERTIFICATE", der.to_vec()));
    let unix = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_many_config(&certificates.collect::<Vec<_>>(), unix)
}
