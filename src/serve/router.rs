//! From requests to answers: health, then who asks, whether they may, and what.

use super::authorize::{Action, Authorizer};
use super::custom::{self, Parameters};
use super::discovery;
use super::health::Health;
use super::identity::{Authenticator, Unidentified};
use super::listen::PeerCertificates;
use super::request::Target;
use super::response::{ApiError, json_body};
use crate::config::Config;
use crate::samples::Store;
use crate::telemetry::Metrics;
use crate::watch::Cluster;
use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, Response, header};
use axum::response::IntoResponse;
use axum::routing::get;
use std::collections::HashMap;
use std::sync::Arc;

/// What answering needs.
#[derive(Clone)]
pub struct Server {
    /// What the cluster says.
    pub cluster: Cluster,
    /// The values.
    pub samples: Store,
    /// How they are asked for.
    pub config: Arc<Config>,
    /// Tells who asks.
    pub authenticator: Authenticator,
    /// Tells whether they may.
    pub authorizer: Authorizer,
    /// Tells whether requests can be answered.
    pub health: Health,
    /// Plimsoll's own metrics.
    pub metrics: Arc<Metrics>,
}

/// The routes of the server.
pub fn router(server: Server) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok" }))
        .route("/healthz", get(ready))
        .route("/readyz", get(ready))
        .fallback(api)
        .with_state(Arc::new(server))
}

async fn ready(
    State(server): State<Arc<Server>>,
    Query(parameters): Query<HashMap<String, String>>,
) -> impl IntoResponse {
    server.health.ready(parameters.contains_key("verbose"))
}

async fn api(
    State(server): State<Arc<Server>>,
    Extension(peer): Extension<PeerCertificates>,
    request: Request,
) -> Response<Body> {
    let response = answer(&server, &peer, request).await.unwrap_or_else(ApiError::into_response);
    server.metrics.answered(response.status().as_u16());
    response
}

async fn answer(
    server: &Server,
    peer: &PeerCertificates,
    request: Request,
) -> Result<Response<Body>, ApiError> {
    let (parts, _) = request.into_parts();
    let identity = server.authenticator.identify(&peer.0, &parts.headers).await.map_err(
        |error| match error {
            Unidentified::Unknown => ApiError::unauthorized(),
            Unidentified::Unavailable(_) => ApiError::unavailable(error.to_string()),
        },
    )?;
    if parts.method != Method::GET {
        return Err(ApiError::method_not_allowed());
    }
    let path = parts.uri.path();
    let target = Target::parse(path);
    server.authorizer.authorize(&identity, Action::of(target.as_ref(), path)).await?;
    if path == "/metrics" {
        return Ok(server.metrics.exposition().into_response());
    }
    let Some(target) = target else {
        return Err(ApiError::no_such_path());
    };
    let value = match target {
        Target::Groups if aggregated(&parts.headers) => {
            let list = server.cluster.read(|index| discovery::aggregated(&index.published_names()));
            let mut response = json_body(&list);
            let kind = HeaderValue::from_static(discovery::AGGREGATED);
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            return Ok(response);
        }
        Target::Groups => discovery::groups(),
        Target::Group => discovery::group(),
        Target::Resources(version) => {
            server.cluster.read(|index| discovery::resources(version, &index.published_names()))
        }
        Target::Object { version, namespace, resource, name, metric } => {
            if resource != "pods" {
                return Err(ApiError::not_found(format!(
                    "the server could not find the metric {metric} for {resource}"
                )));
            }
            let Query(parameters) = Query::<Parameters>::try_from_uri(&parts.uri)
                .map_err(|error| ApiError::bad_request(error.to_string()))?;
            custom::pods(server, version, &namespace, &name, &metric, &parameters).await?
        }
    };
    Ok(json_body(&value))
}

fn aggregated(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_some_and(discovery::accepts_aggregated)
}
