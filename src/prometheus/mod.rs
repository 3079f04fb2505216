//! Talking to Prometheus.

mod budget;
mod client;
mod decode;
mod error;
mod http;
mod options;
mod queue;

pub use budget::{ANSWERS, Held, USER_ANSWERS};
pub use client::{Body, Client};
pub use decode::{AnswerKind, Label, NoSample, Series, SeriesShape, decode_shapes, read_answer};
pub use error::{Error, shortened};
pub use http::{Http, read_roots};
pub use options::{Options, Pem, Token};
pub use queue::Flow;
