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
        // Shapes in the order of their first handles.
        let mut by_shape: Vec<Vec<&Self>> = Vec::new();
        let mut positions: HashMap<(*const Coalescer, &QueryShape), usize> = HashMap::new();
        for handle in all {
            let key = (Arc::as_ptr(&handle.coalescer), &*handle.query.shape);
            let position = *positions.entry(key).or_insert(by_shape.len());
            match by_shape.get_mut(position) {
                Some(handles) => handles.push(handle),
                None => by_shape.push(vec![handle]),
            }
        }
        for handles in by_shape {
            let Some(Self { coalescer, query, .. }) = handles.first() else { continue };
            let queries = handles.iter().map(|handle| (&handle.query.arguments, &handle.caller));
            coalescer.prefetch(&query.shape, queries, now);
        }
    }

    /// Whether it repeats the same query as another.
    pub fn is_of(&self, query: &Arc<ShapedQuery>) -> bool {
        Arc::ptr_eq(&self.query, query) || self.query == *query
    }

    /// The query.
    pub fn query(&self) -> &Arc<ShapedQuery> {
        &self.query
    }

    /// The shape of the query.
    pub fn shape(&self) -> &QueryShape {
        &self.query.shape
    }
}
