//! YAML as users write it: what is wrong with a text, and where its fields stand.

mod error;
mod places;

pub use error::{described, described_in, excerpt, expected, position, utf8, without_values};
pub use places::{Place, Places, options};
