//! Talking to Prometheus.

mod client;
mod decode;
mod slots;

pub use client::{Client, Error, Options, Pem, Token};
pub use decode::{AnswerKind, Label, Series, SeriesShape, decode_shapes, read_answer};
