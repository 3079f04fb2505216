//! Talking to Prometheus.

mod client;
mod decode;

pub use client::{Client, Error, Options, Pem, Token};
pub use decode::{Label, Series, SeriesShape, decode_shapes, decode_vector};
