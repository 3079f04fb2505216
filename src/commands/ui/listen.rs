//! Accepts connections on loopback, and serves them.

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tower::ServiceExt;

/// The connections at a time; further ones wait in the kernel.
const MAX_CONNECTIONS: usize = 128;
/// How long a connection may take to send the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest head of a request, in bytes.
const MAX_HEADER_BYTES: usize = 16 * 1024;
/// The pause after a connection could not be accepted, as when there are too many files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves for ever. The connections end when the future is dropped.
pub async fn serve(listener: TcpListener, router: Router) {
    let seats = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(seat) = seats.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let router = router.clone();
        let service = hyper::service::service_fn(move |request| router.clone().oneshot(request));
        connections.spawn(async move {
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
            builder.max_buf_size(MAX_HEADER_BYTES);
            // One that breaks concerns its client only.
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            drop(seat);
        });
    }
}
