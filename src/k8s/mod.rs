//! Kubernetes' own value types, as the API machinery reads and writes them:
//! quantities, labels and their selectors, managed fields. No I/O.

mod label_set;
mod label_syntax;
pub mod managed_fields;
pub mod quantity;
pub mod selector;
mod selector_error;
mod selector_text;

/// The folder of the files of a pod's service account.
pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

pub use label_set::LabelSet;
pub use label_syntax::is_subdomain;
pub use quantity::Quantity;
pub use selector::{Selector, WrittenSelector};
