//! Creates the clients of the API server and of Prometheus from flags.

mod error;
mod kubeconfig;
mod kubernetes;
mod prometheus;
mod proxy;

pub use error::ConnectError;
pub use kubernetes::{
    ANSWER_TIMEOUT, AsKubectl, READ_TIMEOUT, api_server, as_kubectl, contexts, layered, peer,
};
pub use prometheus::{prometheus, prometheus_of_command, redact_url};
