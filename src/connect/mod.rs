//! Creates the clients of the API server and of Prometheus from flags.

mod error;
mod kubernetes;
mod prometheus;
mod proxy;
mod retry;

pub use error::ConnectError;
pub use kubernetes::{api_server, as_kubectl, plain_api_server};
pub use prometheus::{prometheus, redact_url};
pub use retry::HandledOnce;
#[cfg(test)]
pub use retry::Retries;
