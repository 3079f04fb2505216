//! The aggregated API server.

mod admission;
mod authenticate;
mod authorize;
mod body;
mod ca_injector;
mod connections;
mod custom;
mod discovery;
mod encode;
mod error;
mod external;
mod forward;
mod generated;
mod handle;
mod health;
mod layers;
mod listen;
mod negotiate;
mod openapi;
mod options;
mod protobuf;
mod request;
mod resource_metrics;
mod router;
mod seats;
mod server;
#[cfg(test)]
mod tests;
mod timestamp;
mod tls;
mod token_review;
mod trust;
mod user;

pub use authenticate::Authenticator;
pub use authorize::{Authorizer, AuthorizerOptions};
pub use ca_injector::{CaBundleStatus, ServingCa, run_ca_injector};
pub use forward::{ForwardOptions, ForwardTarget, ForwardTargets};
pub use health::Health;
pub use listen::{Listener, MAX_REQUEST_BYTES, listen};
pub use request::{ApiGroup, ObjectMetricRequest, PathError, RequestInfo, Version};
pub use router::router;
pub use server::Server;
pub use tls::{ServingCertificate, TlsError, TlsOptions};
pub use token_review::TokenAuthenticator;
pub use trust::{CaFiles, TrustBundle, TrustOptions, TrustStore, run_trust_reflector};
