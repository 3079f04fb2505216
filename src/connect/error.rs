//! Why a client could not be created.

use crate::kube_error::worded;
use crate::prometheus;
use std::path::PathBuf;

/// Why a client could not be created.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A kubeconfig is invalid.
    #[error("{flag}: {}: {error}", path.display())]
    Kubeconfig {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        error: String,
    },
    /// No configuration of the API server was found.
    #[error("no way to the API server: {0}; --kubeconfig FILE names one")]
    NotConfigured(String),
    /// The client of the API server could not be created.
    #[error("no client of the API server: {}", worded(.0))]
    Client(#[from] kube::Error),
    /// The client of Prometheus could not be created.
    #[error(transparent)]
    Prometheus(#[from] prometheus::Error),
}
