//! The rows of a query, by itself and as the store has them.

use plimsoll::k8s::Quantity;
use plimsoll::prometheus::{Client, Series, read_query_response};
use plimsoll::samples::{QueryResult, SeriesRef};
use std::sync::Arc;

/// A query, with what it gave by itself.
pub type Asked = (Arc<str>, Result<Vec<Row>, String>);

/// A series with its labels sorted, and its value.
pub type Row = (Vec<(String, String)>, Quantity);

/// The result of a query by itself, without the planner and the store.
pub async fn single(prometheus: &Client, query: &str) -> Result<Vec<Row>, String> {
    let body = prometheus.query(query, &[]).await.map_err(|error| error.to_string())?;
    let mut rows: Vec<Row> = Vec::new();
    let each = |series: Series<'_>| {
        let labels = series.labels.iter().map(|(n, v)| (n.to_string(), v.to_string()));
        // A number that does not fit is an invalid sample (`x * y` may be 1e18).
        let Ok(value) = series.value else { return };
        rows.push(row(labels, Quantity::from_f64(value).expect("finite")));
    };
    body.read(|body| read_query_response(body, each)).map_err(|error| error.to_string())?;
    rows.sort();
    Ok(rows)
}

fn row(labels: impl Iterator<Item = (String, String)>, value: Quantity) -> Row {
    let mut labels: Vec<_> = labels.collect();
    labels.sort();
    (labels, value)
}

pub fn rows_of(samples: &QueryResult) -> Vec<Row> {
    let own = |sampled: SeriesRef<'_>| {
        row(sampled.labels().map(|(n, v)| (n.to_owned(), v.to_owned())), sampled.value())
    };
    let mut rows: Vec<Row> = samples.iter().map(own).collect();
    rows.sort();
    rows
}
