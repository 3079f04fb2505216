//! Kubernetes' own value types, as the API machinery reads and writes them:
//! quantities and label selectors. No I/O.

mod label_syntax;
pub mod quantity;
pub mod selector;
mod selector_error;
mod selector_text;

pub use quantity::Quantity;
pub use selector::Selector;
