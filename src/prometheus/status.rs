//! What a server says of itself.

use super::client::{Client, Request};
use super::decode;
use super::error::Error;
use crate::blocking;
use std::collections::BTreeMap;

/// The configuration of a server as YAML; none if it does not show one, as Thanos and Mimir.
///
/// # Errors
/// As [`Error`] says.
pub async fn configuration(server: &Client) -> Result<Option<String>, Error> {
    let status = status(server, "api/v1/status/config").await?;
    Ok(status.and_then(|mut data| data.remove("yaml")))
}

/// Whether a server takes series that it did not scrape, by remote write or OTLP, or may do so.
///
/// # Errors
/// As [`Error`] says.
pub async fn receives(server: &Client) -> Result<bool, Error> {
    let Some(flags) = status(server, "api/v1/status/flags").await? else { return Ok(true) };
    let is = |flag: &str| flags.get(flag).is_some_and(|value| value == "true");
    // Of Prometheus 2.
    let features = flags.get("enable-feature").map_or("", String::as_str);
    Ok(is("web.enable-remote-write-receiver")
        || is("web.enable-otlp-receiver")
        || features.contains("write-receiver"))
}

/// A status of a server by its fields; none if it does not have that.
async fn status(
    server: &Client,
    path: &'static str,
) -> Result<Option<BTreeMap<String, String>>, Error> {
    match server.body(Request { path, form: &[], flows: &[], get: true }).await {
        Ok(body) => blocking::run(|| body.read(decode::status)).map(Some),
        Err(Error::Unavailable { status: 404, .. } | Error::Refused(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
