//! The aggregated API server.

mod apiservice;
mod authorize;
mod custom;
mod discovery;
mod health;
mod identity;
mod listen;
mod request;
mod response;
mod router;
mod tls;
mod trust;

pub use apiservice::keep_ca_bundles;
pub use authorize::Authorizer;
pub use health::Health;
pub use identity::Authenticator;
pub use listen::{Listener, listen};
pub use router::{Server, router};
pub use tls::{ServingCertificate, TlsError};
pub use trust::{Trust, TrustBundle, follow_trust};

/// The API group of metrics of objects in the cluster.
pub const CUSTOM_METRICS: &str = "custom.metrics.k8s.io";
