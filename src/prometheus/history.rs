//! Queries for what was.

use super::body::Body;
use super::client::{Client, Request};
use super::error::Error;
use crate::time::UnixMillis;

impl Client {
    /// Sends an instant query for a time.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn query_at(&self, query: &str, time: UnixMillis) -> Result<Body, Error> {
        let timeout = format!("{}ms", self.timeout.as_millis());
        let time = seconds(time);
        let form = [
            ("query", query),
            ("timeout", &timeout),
            ("partial_response", "false"),
            ("time", &time),
        ];
        self.body(Request { path: "api/v1/query", form: &form, flows: &[], get: self.get }).await
    }

    /// Sends a range query: for the times from one to another, both included, with a step in ms.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn query_range(
        &self,
        query: &str,
        start: UnixMillis,
        end: UnixMillis,
        step: i64,
    ) -> Result<Body, Error> {
        let timeout = format!("{}ms", self.timeout.as_millis());
        let [start, end, step] = [start, end, step].map(seconds);
        let form = [
            ("query", query),
            ("timeout", &timeout),
            ("partial_response", "false"),
            ("start", &start),
            ("end", &end),
            ("step", &step),
        ];
        let path = "api/v1/query_range";
        self.body(Request { path, form: &form, flows: &[], get: self.get }).await
    }
}

/// Milliseconds in seconds, as Prometheus reads times and steps.
fn seconds(millis: i64) -> String {
    format!("{}.{:03}", millis.div_euclid(1000), millis.rem_euclid(1000))
}
