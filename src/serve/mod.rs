//! The aggregated API server.

mod admission;
mod apiservice;
mod authorize;
mod connections;
mod custom;
mod discovery;
mod external;
mod health;
mod identity;
mod layers;
mod listen;
mod negotiate;
mod openapi;
mod parameters;
mod pass_on;
mod protobuf;
mod request;
mod resource_metrics;
mod response;
mod router;
mod tls;
mod tokens;
mod trust;

pub use apiservice::{Bundled, OwnCa, keep_ca_bundles};
pub use authorize::{Authorizer, AuthorizerOptions};
pub use health::Health;
pub use identity::Authenticator;
pub use listen::{INCOMING, Listener, listen};
pub use pass_on::{Other, OtherOptions, Others};
pub use request::{ApiGroup, NoTarget, ObjectTarget, Target, Version};
pub use router::{Server, router};
pub use tls::{ServingCertificate, TlsError, TlsOptions};
pub use tokens::Tokens;
pub use trust::{OwnCas, OwnTrust, Trust, TrustBundle, follow_trust};
