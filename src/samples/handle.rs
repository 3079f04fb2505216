//! A handle to repeat a query.

use super::caller::Caller;
use super::coalesce::Coalescer;
use crate::promql::shape::{QueryShape, ShapedQuery};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::time::Instant;

/// A handle to repeat a query.
#[derive(Clone)]
pub struct QueryHandle {
    coalescer: Arc<Coalescer>,
    caller: Caller,
    pub(super) query: Arc<ShapedQuery>,
}

impl QueryHandle {
    pub(super) fn new(coalescer: Arc<Coalescer>, caller: Caller, query: Arc<ShapedQuery>) -> Self {
        Self { coalescer, caller, query }
    }

    /// Starts the queries of all handles, those of one shape together. The results are
    /// cached, for the callers that need them soon. Queries of an uncached shape are not started.
    pub fn prefetch<'a>(all: impl IntoIterator<Item = &'a Self>) {
        let now = Instant::now();
        let mut by_shape: HashMap<(*const Coalescer, &QueryShape), Vec<&Self>> = HashMap::new();
        for handle in all {
            let key = (Arc::as_ptr(&handle.coalescer), &*handle.query.shape);
            by_shape.entry(key).or_default().push(handle);
        }
        for handles in by_shape.into_values() {
            let Some(Self { coalescer, query, .. }) = handles.first() else { continue };
            let queries = handles.iter().map(|handle| (&handle.query.arguments, &handle.caller));
            coalescer.prefetch(&query.shape, queries, now);
        }
    }

    /// The shape of the query.
    pub fn shape(&self) -> &QueryShape {
        &self.query.shape
    }
}
