//! Kubernetes' own value types, as the API machinery reads and writes them:
//! quantities and label selectors. No I/O.

pub mod quantity;
pub mod selector;

pub use quantity::Quantity;
pub use selector::Selector;
