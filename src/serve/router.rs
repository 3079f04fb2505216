//! The routes of the API server.

use super::admission::Admission;
use super::body::LongRunning;
use super::handler_chain::HandlerChain;
use super::health;
use super::server::Server;
use axum::Router;
use axum::extract::Request;
use axum::http::{Extensions, HeaderMap, StatusCode, Version};
use std::convert::Infallible;
use std::sync::Arc;
use tower::{ServiceBuilder, service_fn};
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{Predicate, SizeAbove};

/// The size from which on responses are compressed if the client accepts that, in bytes, as in
/// kube-apiserver.
const COMPRESSION_THRESHOLD: u64 = 32 * 1024;

/// The routes of the server: health endpoints, and all others behind the handler chain.
pub fn router(server: Server) -> Router {
    // The events of a watch are sent one by one, and compression would hold them back.
    let is_whole = |_: StatusCode, _: Version, _: &HeaderMap, extensions: &Extensions| {
        extensions.get::<LongRunning>().is_none()
    };
    let compression = CompressionLayer::new()
        .gzip(true)
        .compress_when(SizeAbove::new(COMPRESSION_THRESHOLD).and(is_whole));
    let health = server.health.clone();
    let chain = Arc::new(HandlerChain::new(server, Admission::default()));
    let chain = service_fn(move |request: Request| {
        let chain = chain.clone();
        // Boxed here, as the layers around it would move the large future.
        Box::pin(async move { Ok::<_, Infallible>(chain.serve(request).await) })
    });
    let api = ServiceBuilder::new().layer(compression).service(chain);
    let api = Router::new().fallback_service(api);
    health::routes(health, &api).merge(api)
}
