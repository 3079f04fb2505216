//! The types of metrics, by the metadata that targets give them.

use super::client::{Client, Request};
use super::{Error, Flow, MetricKinds, decode};

/// The most entries of a metric's metadata.
const MAX_METADATA: usize = 100;

/// The types that the metadata of all targets gives a metric; none if no target has one.
///
/// # Errors
/// As [`Error`] says.
pub async fn metric_kinds(
    client: &Client,
    metric: &str,
    flows: &[Flow],
) -> Result<MetricKinds, Error> {
    let most = MAX_METADATA.to_string();
    let form = [("metric", metric), ("limit_per_metric", most.as_str())];
    let kinds = metadata(client, "api/v1/metadata", &form, flows, decode::metric_kinds).await?;
    // There may be more, of the other type.
    let is_cut = kinds.entries == MAX_METADATA;
    Ok(MetricKinds { counter: kinds.counter || is_cut, other: kinds.other || is_cut, ..kinds })
}

/// The same of the targets that a selector of their labels matches. Of many, those of some.
///
/// # Errors
/// As [`Error`] says.
pub async fn target_kinds(
    client: &Client,
    metric: &str,
    targets: &str,
    flows: &[Flow],
) -> Result<MetricKinds, Error> {
    let most = MAX_METADATA.to_string();
    let form = [("match_target", targets), ("metric", metric), ("limit", most.as_str())];
    metadata(client, "api/v1/targets/metadata", &form, flows, decode::target_kinds).await
}

async fn metadata(
    client: &Client,
    path: &'static str,
    form: &[(&'static str, &str)],
    flows: &[Flow],
    read: fn(&[u8]) -> Result<MetricKinds, Error>,
) -> Result<MetricKinds, Error> {
    match client.body(Request { path, form, flows, get: true }).await {
        Ok(body) => body.read(read),
        // Not every compatible server has metadata.
        Err(Error::Unavailable { status: 404, .. }) => Ok(MetricKinds::default()),
        Err(error) => Err(error),
    }
}
