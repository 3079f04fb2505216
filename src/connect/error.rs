//! Why a client could not be created.

use crate::prometheus;

/// Why a client could not be created.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A kubeconfig is of no use.
    #[error("{files}: {error}")]
    Kubeconfig {
        /// Its files, with the flag that names them.
        files: String,
        /// The cause.
        error: String,
    },
    /// No configuration of the API server was found.
    #[error("cannot connect to the Kubernetes API: {0} (set --kubeconfig or KUBECONFIG)")]
    NotConfigured(String),
    /// The client of the API server could not be created.
    #[error("cannot create a client of the Kubernetes API: {0}")]
    Client(String),
    /// The client of Prometheus could not be created.
    #[error(transparent)]
    Prometheus(#[from] prometheus::Error),
}
