//! The responses to requests that ask for no series: a status of the server (its configuration or its flags), or a
//! formatted query.

use super::super::error::Error;
use super::envelope::Success;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Status {
    #[serde(default, rename = "status")]
    _status: Success,
    data: BTreeMap<String, String>,
}

/// Decodes a status to its fields.
///
/// # Errors
/// [`Error::InvalidResponse`] if it is not JSON of that form.
pub fn status(body: &[u8]) -> Result<BTreeMap<String, String>, Error> {
    let status: Result<Status, _> = serde_json::from_slice(body);
    status.map(|status| status.data).map_err(|error| Error::InvalidResponse(error.to_string()))
}

/// Checks the response to a request to format a query.
///
/// # Errors
/// [`Error::InvalidResponse`] if it is not JSON of that form.
pub fn formatted(body: &[u8]) -> Result<(), Error> {
    #[derive(Deserialize)]
    struct Formatted {
        #[serde(rename = "status")]
        _status: Success,
    }
    let formatted: Result<Formatted, _> = serde_json::from_slice(body);
    formatted.map(drop).map_err(|error| Error::InvalidResponse(error.to_string()))
}
