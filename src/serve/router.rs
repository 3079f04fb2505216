//! The routes of the API server, and the layers around them.

use super::admission::Admission;
use super::handle::handle;
use super::health;
use super::layers::{self, AuthenticationLayer};
use super::server::Server;
use axum::Router;
use axum::http::{Extensions, HeaderMap, StatusCode, Version};
use axum::middleware::{from_fn, from_fn_with_state};
use std::sync::Arc;
use tower::ServiceBuilder;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{Predicate, SizeAbove};

/// The size from which on responses are compressed if the client accepts that, in bytes, as in
/// kube-apiserver.
const COMPRESSION_THRESHOLD: u64 = 32 * 1024;

/// The routes of the server: health endpoints, and all others behind the layers.
pub fn router(server: Server) -> Router {
    // The events of a watch are sent one by one, and compression would hold them back.
    let is_whole = |_: StatusCode, _: Version, _: &HeaderMap, extensions: &Extensions| {
        extensions.get::<layers::LongRunning>().is_none()
    };
    let compression = CompressionLayer::new()
        .gzip(true)
        .compress_when(SizeAbove::new(COMPRESSION_THRESHOLD).and(is_whole));
    let (authorizer, metrics) = (server.authorizer.clone(), server.metrics.clone());
    let authentication =
        AuthenticationLayer::new(server.authenticator.clone(), authorizer.clone(), metrics.clone());
    let admission = (Admission::default(), metrics.clone());
    let health = server.health.clone();
    let server = Arc::new(server);
    // The first is the outermost. As one layer of the router they are cloned for a request in one piece each.
    let layers = ServiceBuilder::new()
        .layer(compression)
        .layer(from_fn_with_state(metrics, layers::instrument))
        .layer(from_fn(layers::canonicalize))
        .layer(from_fn_with_state(authentication, layers::authenticate))
        .layer(from_fn_with_state(admission.clone(), layers::admit))
        .layer(from_fn_with_state(authorizer, layers::authorize))
        .layer(from_fn_with_state(admission, layers::admit_authorized));
    let api = Router::new().fallback(handle).with_state(server).layer(layers);
    health::routes(health, &api).fallback_service(api)
}
