//! Creates the clients of the API server and of Prometheus from flags.

mod error;
mod kubeconfig;
mod kubernetes;
mod prometheus;
mod proxy;

pub use error::ConnectError;
pub use kubernetes::{AsKubectl, api_server, as_kubectl, layered, peer, plain_api_server};
pub use prometheus::{prometheus, redact_url};
