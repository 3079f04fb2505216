//! The query results that the API and the control loop share.

mod caller;
mod coalesce;
mod dispatch;
mod error;
mod estimator;
mod flight;
mod handle;
mod join;
mod known_queries;
mod metric_types;
mod objects;
mod recent_quota;
mod result;
mod shape_queries;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod total;

pub use caller::{Caller, Reader};
pub use coalesce::SHAPE_BYTES;
pub use error::MetricError;
pub use handle::QueryHandle;
pub use known_queries::KNOWN_QUERY_BYTES;
pub use metric_types::{METRIC_TYPE_BYTES, MetricTypes, TypeWarning, type_of_one};
pub use objects::{ByObject, ObjectQuery, ObjectSample, ObjectSamples, Origin, PodQuery};
pub use recent_quota::RECENT_QUERY_BYTES;
pub use result::{Lookup, QueryResult, SeriesRef};
pub use store::{GUARDED_QUERY_BYTES, SHAPED_QUERY_BYTES, Store};
pub use table::Table;
pub use total::Total;
