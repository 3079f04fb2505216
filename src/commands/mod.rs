//! The commands of `plimsoll` other than `serve`.

pub mod check;
pub mod convert;
pub mod operate;
pub mod reference;
