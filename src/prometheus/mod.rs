//! Talking to Prometheus.

mod client;
mod decode;

pub use client::{Client, Error, Options};
pub use decode::{Label, Series, decode_vector};
