//! Accepts connections on loopback, and serves them.

use super::write_timeout::WriteTimeout;
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
/// How long a client may read nothing of what is sent to it. As the page, which takes a stream that is silent for so
/// long for a broken one.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
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
        let stream = TokioIo::new(WriteTimeout::new(stream, WRITE_TIMEOUT));
        connections.spawn(async move {
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
            builder.max_buf_size(MAX_HEADER_BYTES);
            // One that breaks concerns its client only.
            let _ = builder.serve_connection(stream, service).await;
            drop(seat);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpStream;
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    /// Tells by its channel when it is dropped.
    struct Ended(mpsc::UnboundedSender<()>);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_ends() {
        let (sender, mut ended) = mpsc::unbounded_channel();
        let (began, mut begun) = mpsc::unbounded_channel();
        let handler = async move || {
            let _ended = Ended(sender);
            began.send(()).unwrap();
            std::future::pending::<()>().await;
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut server = JoinSet::new();
        server.spawn(serve(listener, Router::new().route("/", get(handler))));
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        begun.recv().await.unwrap();
        assert!(timeout(Duration::from_millis(200), ended.recv()).await.is_err());
        drop(client);
        timeout(Duration::from_secs(10), ended.recv()).await.unwrap();
    }
}
