//! The routes of the page: its files, and its data as streams of JSON lines.

use super::access::{Access, CHANGE};
use super::one;
use super::rows::Rows;
use super::trials::{On, Refusal, Trials};
use super::{assets, error::cut};
use crate::commands::backtest;
use crate::config::above_zero;
use crate::watch::{AutoscalerKind, AutoscalerRef, ObjectKey};
use axum::Router;
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::{Stream, StreamExt};
use kube::Client;
use serde::Deserialize;
use std::convert::Infallible;
use std::sync::{Arc, LazyLock};
use tokio::sync::Semaphore;

/// What the page is served from.
pub struct Page {
    access: Access,
    client: Client,
    rows: Rows,
    scope: String,
    streams: Arc<Semaphore>,
    /// None without a Prometheus.
    trials: Option<Trials>,
}

/// The streams at a time, of all tabs.
const MAX_STREAMS: usize = 32;

impl Page {
    /// A page of this scope, such as the context and namespace.
    pub fn new(
        access: Access,
        client: Client,
        rows: Rows,
        scope: String,
        trials: Option<Trials>,
    ) -> Self {
        let streams = Arc::new(Semaphore::new(MAX_STREAMS));
        Self { access, client, rows, scope, streams, trials }
    }

    fn trials(&self) -> Result<&Trials, Refusal> {
        let text = "To try a change, start plimsoll ui with --prometheus-url=URL.";
        self.trials.as_ref().ok_or_else(|| (StatusCode::NOT_FOUND, text.to_owned()))
    }
}

/// The routes of a page.
pub fn router(page: Arc<Page>) -> Router {
    Router::new()
        .route("/api/key", get(key))
        .route("/api/autoscalers", get(autoscalers))
        .route("/api/autoscaler", get(autoscaler))
        .route(CHANGE, get(present).post(report))
        .fallback(asset)
        .layer(middleware::from_fn_with_state(page.clone(), guard))
        .with_state(page)
}

/// Nothing is loaded from elsewhere, no script is in a page but as a file, and no text becomes markup. The frame with a
/// report is of a blob, and inherits this: hence the hashes of what is in each report.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let [scripts, styles] = backtest::sources();
    format!(
        "default-src 'none'; script-src 'self' {scripts}; style-src 'self' {styles}; img-src 'self'; \
         connect-src 'self'; frame-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'"
    )
});

/// The other headers of each response.
const HEADERS: [(HeaderName, &str); 7] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("x-robots-tag"), "noindex"),
];

async fn guard(State(page): State<Arc<Page>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let mut response = match page.access.check(&parts) {
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(refusal) => refusal.into_response(),
    };
    let policy = (header::CONTENT_SECURITY_POLICY, POLICY.as_str());
    for (name, value) in HEADERS.into_iter().chain([policy]) {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn asset(uri: Uri) -> Response {
    match assets::at(uri.path()) {
        Some(asset) => ([(header::CONTENT_TYPE, asset.content_type)], asset.text).into_response(),
        None => {
            let path = cut(uri.path(), 100);
            (StatusCode::NOT_FOUND, format!("There is no {path} here.")).into_response()
        }
    }
}

/// Tells that the key is right: others are refused before.
async fn key() -> StatusCode {
    StatusCode::NO_CONTENT
}

async fn autoscalers(State(page): State<Arc<Page>>) -> Response {
    respond(&page, page.rows.stream(page.scope.clone()))
}

/// Which autoscaler is asked for.
#[derive(Deserialize)]
struct Named {
    namespace: String,
    kind: String,
    name: String,
}

impl Named {
    fn autoscaler(self) -> Result<AutoscalerRef, Refusal> {
        let kinds = [AutoscalerKind::Autoscaler, AutoscalerKind::Hpa];
        let kind = kinds.into_iter().find(|kind| kind.as_str() == self.kind);
        // They get into paths and selectors of requests to kube-apiserver.
        let is_name = |text: &str| {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
            !text.is_empty()
                && text.len() <= 253
                && !text.starts_with('.')
                && text.bytes().all(is_part)
        };
        let Some(kind) = kind.filter(|_| is_name(&self.namespace) && is_name(&self.name)) else {
            let text =
                "namespace, kind (Autoscaler or HorizontalPodAutoscaler) and name say which one.";
            return Err((StatusCode::BAD_REQUEST, text.to_owned()));
        };
        let key = ObjectKey { namespace: self.namespace, name: self.name };
        Ok(AutoscalerRef { kind, key: key.into() })
    }
}

async fn autoscaler(
    State(page): State<Arc<Page>>,
    Query(named): Query<Named>,
) -> Result<Response, Refusal> {
    let autoscaler = named.autoscaler()?;
    let (client, rows, scope) = (page.client.clone(), page.rows.clone(), page.scope.clone());
    let can_try = page.trials.is_some();
    Ok(respond(&page, one::stream(client, rows, (scope, can_try), autoscaler)))
}

/// The autoscaler to be edited.
async fn present(
    State(page): State<Arc<Page>>,
    Query(named): Query<Named>,
) -> Result<String, Refusal> {
    page.trials()?.present(&named.autoscaler()?).await
}

/// What a change is tried on: the load of so many hours until now, and what one pod carries of it. An empty text is none.
#[derive(Deserialize)]
struct Tried {
    hours: u32,
    #[serde(default)]
    carries: String,
}

impl Tried {
    fn on(&self) -> Result<On, Refusal> {
        let text = self.carries.trim();
        let pod_carries = (!text.is_empty()).then(|| above_zero(text)).transpose();
        let pod_carries = pod_carries
            .map_err(|error| (StatusCode::BAD_REQUEST, format!("One pod carries: {error}.")))?;
        Ok(On { hours: self.hours, pod_carries })
    }
}

/// The report on the edited autoscaler, which is the body.
async fn report(
    State(page): State<Arc<Page>>,
    Query(named): Query<Named>,
    Query(tried): Query<Tried>,
    edited: Body,
) -> Result<Response, Refusal> {
    let report = page.trials()?.report(&named.autoscaler()?, tried.on()?, edited).await?;
    // As a file, not as a page of this server: what shows it has it in a frame of its own origin.
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], report).into_response())
}

/// A stream of lines, which ends when the client goes.
fn respond(page: &Page, lines: impl Stream<Item = String> + Send + 'static) -> Response {
    let Ok(seat) = page.streams.clone().try_acquire_owned() else {
        let text = "Too many pages are open: close some.";
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    let lines = lines.map(move |line| {
        let _ = &seat;
        Ok::<_, Infallible>(line + "\n")
    });
    let content_type = [(header::CONTENT_TYPE, "application/x-ndjson")];
    (content_type, Body::from_stream(lines)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_pod_carries_is_a_number_or_nothing() {
        let on = |carries: &str| Tried { hours: 1, carries: carries.to_owned() }.on();
        for (text, expected) in [("", None), (" ", None), (" 250m ", Some(0.25))] {
            assert_eq!(on(text).ok().map(|on| on.pod_carries), Some(expected), "{text}");
        }
        let (status, text) = on("much").expect_err("no number");
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(text.starts_with("One pod carries: a number above 0"), "{text}");
    }
}
