//! The commands of `plimsoll` other than `serve`; `crd` and `completions` are a line of `main.rs` each.

pub mod check;
pub mod convert;
pub mod operate;
pub mod reference;
