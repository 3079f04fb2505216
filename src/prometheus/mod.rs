//! The client of Prometheus: requests, their queue, and decoding of responses.

mod body;
mod budget;
mod client;
#[cfg(test)]
mod client_tests;
mod decode;
mod error;
mod history;
mod http;
mod metadata;
mod options;
mod queue;
mod serving;
mod status;
mod transport;

pub use body::Body;
pub use budget::{RESPONSE_BYTES, Reservation};
pub use client::{Client, Within};
pub use decode::{
    InvalidSample, Label, MetricKinds, RangeSeries, ResultType, Series, SeriesSchema,
    decode_matrix, decode_series_schemas, read_query_response,
};
pub use error::{Error, shortened};
pub use http::{Http, read_roots};
pub use metadata::{metric_kinds, target_kinds};
pub use options::{Names, Options, Pem, Token};
pub use queue::Flow;
pub use status::{configuration, receives};
pub use transport::{BodyStream, Transport, TransportError};
