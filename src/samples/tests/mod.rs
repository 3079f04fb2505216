//! Query results of a Prometheus that fails, lies or is slow.

mod ahead;
mod coalescer;
mod join;
mod join_failures;
mod join_too_much;
mod proxy;
mod quotas;
mod store;

use super::coalesce::SendQuery;
use super::flight::TableResult;
use coalescer::Sent;
use futures::FutureExt;
use std::sync::Arc;
use std::time::Duration;

/// The function for a server, which notes the queries.
fn sending(respond: impl Fn(&str) -> TableResult + Send + Sync + 'static, seen: Sent) -> SendQuery {
    let respond = Arc::new(respond);
    Arc::new(move |query, _| {
        let (seen, respond) = (seen.clone(), respond.clone());
        async move {
            seen.lock().unwrap().push(query.clone());
            // Long enough that callers at the same time share a flight.
            tokio::time::sleep(Duration::from_millis(5)).await;
            respond(&query)
        }
        .boxed()
    })
}
