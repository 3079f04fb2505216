//! Reads decisions, as the user of the kubeconfig may.

use super::super::story::{clean, plain};
use super::error::OperateError;
use crate::kube_error::worded;
use crate::ledger::api::{
    AUTOSCALER_LABEL, Decision, GROUP, KIND_LABEL, SINCE_ANNOTATION, VERSION,
};
use crate::ledger::{autoscaler_label, parse_time, time};
use crate::time::UnixMillis;
use crate::watch::AutoscalerKind;
use kube::Client;
use kube::api::ListParams;
use kube::core::Request;
use serde_json::Value;

/// Which decisions are read.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Those of one namespace; all, if none.
    pub namespace: Option<&'a str>,
    /// A label selector.
    pub labels: &'a str,
    /// Those since a time, if given.
    pub since: Option<UnixMillis>,
    /// How many thousand at most, the oldest first.
    pub thousands: usize,
}

/// The label selector of an autoscaler's decisions.
pub fn labels(name: &str, kind: AutoscalerKind) -> String {
    format!("{AUTOSCALER_LABEL}={},{KIND_LABEL}={}", autoscaler_label(name), kind.as_str())
}

/// Why no decisions can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The API is not there.
    #[error("the API of decisions is not there: apply the APIService v1alpha1.{GROUP}")]
    NotInstalled,
    /// The user may not.
    #[error("you may not read decisions in {0}: the ClusterRole view may")]
    Forbidden(String),
    /// None are kept; the text of the server says why.
    #[error("there are none: {0}")]
    NotKept(String),
    /// Nobody serves it now, or a request failed.
    #[error("decisions can't be read now: {0}")]
    Failed(String),
}

/// The decisions of a request.
const PAGE: u32 = 1_000;

/// Gives `take` all decisions that are wanted, in their order, until it returns false. Returns false if there are more
/// than that.
///
/// # Errors
/// If they can't be read.
pub async fn read(
    client: &Client,
    wanted: Wanted<'_>,
    mut take: impl FnMut(Decision) -> bool,
) -> Result<bool, Unreadable> {
    let path = match wanted.namespace {
        Some(namespace) => format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/decisions"),
        None => format!("/apis/{GROUP}/{VERSION}/decisions"),
    };
    let mut params = ListParams::default().labels(wanted.labels).limit(PAGE);
    let mut left = wanted.thousands * 1_000;
    // A page has fewer than were asked for where they are large.
    while left > 0 {
        let failed = |error: &dyn std::fmt::Display| Unreadable::Failed(error.to_string());
        let mut request = Request::new(&*path).list(&params).map_err(|error| failed(&error))?;
        if let Some(since) = wanted.since {
            let uri = format!("{}&sinceTime={}", request.uri(), time(since));
            *request.uri_mut() = uri.parse().map_err(|error| failed(&error))?;
        }
        let list = client.request::<Value>(request).await;
        let mut list = list.map_err(|error| unreadable(error, wanted.namespace))?;
        clean(&mut list);
        let more = list["metadata"]["continue"].as_str().map(str::to_owned);
        let Value::Array(items) = list["items"].take() else { return Ok(true) };
        left = left.saturating_sub(items.len().max(1));
        for item in items {
            let decision = serde_json::from_value(item).map_err(|error| {
                let error = format!("a decision is of another version than this command: {error}");
                Unreadable::Failed(error)
            })?;
            if !take(decision) {
                return Ok(true);
            }
        }
        match more.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(true),
        }
    }
    Ok(false)
}

fn unreadable(error: kube::Error, namespace: Option<&str>) -> Unreadable {
    match error {
        kube::Error::Api(status) if status.code == 404 => Unreadable::NotInstalled,
        kube::Error::Api(status) if status.code == 405 => {
            Unreadable::NotKept(plain(&status.message).into_owned())
        }
        kube::Error::Api(status) if status.code == 403 => {
            let of = namespace
                .map_or_else(|| "all namespaces".to_owned(), |of| format!("namespace {of}"));
            Unreadable::Forbidden(of)
        }
        other => Unreadable::Failed(plain(&worded(&other)).into_owned()),
    }
}

impl From<Unreadable> for OperateError {
    fn from(error: Unreadable) -> Self {
        Self::Refused(error.to_string())
    }
}

/// The begin of the first decision that is known, and since when there are decisions, as it says.
///
/// # Errors
/// If they can't be read.
pub async fn known_since(
    client: &Client,
    namespace: &str,
    labels: &str,
) -> Result<(Option<UnixMillis>, Option<UnixMillis>), Unreadable> {
    let mut first = None;
    let wanted = Wanted { namespace: Some(namespace), labels, since: None, thousands: 1 };
    read(client, wanted, |decision| {
        first = Some(decision);
        false
    })
    .await?;
    let Some(first) = first else { return Ok((None, None)) };
    let since = first.metadata.annotations.get(SINCE_ANNOTATION);
    Ok((parse_time(&first.first_time), since.and_then(|since| parse_time(since))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const WANTED: Wanted<'_> =
        Wanted { namespace: Some("shop"), labels: "a=b", since: None, thousands: 1 };

    #[tokio::test]
    async fn a_page_that_is_short_is_not_the_last() {
        let mut pages = 0;
        let (client, log) = crate::fake::api(move |_| {
            pages += 1;
            let metadata = json!({"continue": if pages < 5 { "more" } else { "" }});
            (200, json!({"metadata": metadata, "items": []}))
        });
        assert_eq!(read(&client, WANTED, |_| true).await, Ok(true));
        assert_eq!(log.of("GET ").len(), 5);
    }

    #[tokio::test]
    async fn why_they_cannot_be_read_is_what_the_server_says() {
        let (client, _) =
            crate::fake::api(|_| crate::fake::failure(503, "ServiceUnavailable", "not yet"));
        let error = read(&client, WANTED, |_| true).await.unwrap_err().to_string();
        assert_eq!(
            error,
            "decisions can't be read now: Error from server (ServiceUnavailable): not yet"
        );
        let (client, _) =
            crate::fake::api(|_| crate::fake::failure(405, "MethodNotAllowed", "switched off"));
        let error = read(&client, WANTED, |_| true).await.unwrap_err().to_string();
        assert_eq!(error, "there are none: switched off");
    }
}
