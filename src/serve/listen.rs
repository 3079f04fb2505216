//! The listener: accepts connections, serves TLS and HTTP on them, and shuts down gracefully.

use super::body::AwaitedBody;
use super::client_chain::ClientChain;
use super::connections::{
    ConnectionHandle, ConnectionLimiter, MAX_CONNECTIONS, MAX_FRONT_PROXY_CONNECTIONS, MAX_QUEUED,
    OVERFLOW_SLOTS, Peer,
};
use super::tls::{ReloadedCertificate, ServingCertificate, TlsError, TlsOptions};
use crate::telemetry::ServingMetrics;
use axum::Router;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use socket2::{Domain, Protocol, Socket, Type};
use std::future::Future;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

/// The largest head of a request, in bytes.
const MAX_HEADER_BYTES: usize = 64 * 1024;
/// The default number of concurrent streams per HTTP/2 connection.
const DEFAULT_MAX_STREAMS: u32 = 250;
/// The HTTP/2 flow-control window of a stream and of a connection, in bytes. It bounds bodies of
/// requests, which no handler reads.
const BODY_WINDOW_BYTES: u32 = 64 * 1024;
/// The most memory that incoming requests of all connections take, in bytes: a head or a body
/// per connection.
pub const MAX_REQUEST_BYTES: usize =
    (MAX_CONNECTIONS + MAX_FRONT_PROXY_CONNECTIONS + OVERFLOW_SLOTS) * MAX_HEADER_BYTES;
/// How long a client may take to send the head of a request over HTTP/1.1.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// How long requests in flight may take during a graceful shutdown.
const SHUTDOWN_GRACE_PERIOD: Duration = Duration::from_secs(10);
/// How long an idle connection of HTTP/1.1 stays open at a graceful shutdown, for what a client sends on it before it learns
/// of the end. HTTP/2 tells it by a GOAWAY.
const LAST_REQUEST: Duration = Duration::from_secs(1);
/// How long a connection may take to close after its deadline.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long an overflow connection waits for a slot.
const OVERFLOW_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of connection tasks: open, queued and closing connections. Further connections
/// wait in the kernel. Open and queued ones are fewer.
const MAX_TASKS: usize =
    2 * (MAX_CONNECTIONS + MAX_FRONT_PROXY_CONNECTIONS + OVERFLOW_SLOTS + MAX_QUEUED);
/// The number of connections that wait in the kernel to be accepted.
const BACKLOG: i32 = 1024;

/// A bound address, ready to accept connections.
pub struct Listener {
    tcp: TcpListener,
    tls: TlsAcceptor,
    certificate: Arc<ReloadedCertificate>,
    max_streams: u32,
    limiter: ConnectionLimiter,
}

/// Binds an address. The unspecified address of either family binds both, as in Go; only IPv4 if
/// there is no IPv6. `max_streams` is per HTTP/2 connection; 0 is the default.
///
/// # Errors
/// If the address can't be bound, or the certificate can't be served.
pub async fn listen(
    address: SocketAddr,
    certificate: ServingCertificate,
    options: TlsOptions,
    max_streams: u32,
) -> Result<Listener, ListenError> {
    let (config, certificate) = certificate.server_config(options)?;
    let tls = TlsAcceptor::from(Arc::new(config));
    let tcp = bind(address).map_err(|error| ListenError::Bind { address, error })?;
    let max_streams = if max_streams == 0 { DEFAULT_MAX_STREAMS } else { max_streams };
    Ok(Listener { tcp, tls, certificate, max_streams, limiter: ConnectionLimiter::default() })
}

fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return bind_one(address);
    }
    match bind_one((Ipv6Addr::UNSPECIFIED, address.port()).into()) {
        Err(error)
            if !matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::PermissionDenied) =>
        {
            tracing::debug!(
                error = error.to_string(),
                "Failed to listen on IPv6, listening on IPv4"
            );
            bind_one((Ipv4Addr::UNSPECIFIED, address.port()).into())
        }
        bound => bound,
    }
}

fn bind_one(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Why the listener can't start.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address can't be bound.
    #[error("can't listen on {address} (--bind-address, --secure-port): {error}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The cause.
        error: std::io::Error,
    },
    /// The certificate can't be served.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl Listener {
    /// The bound address.
    ///
    /// # Errors
    /// If the system does not know it.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Shows the number of connections in metrics.
    #[must_use]
    pub fn counted(mut self, metrics: &ServingMetrics) -> Self {
        self.limiter = ConnectionLimiter::new(metrics.connections());
        self
    }

    /// Reloads the files of the serving certificate when they change, for ever.
    pub fn run_certificate_reloader(
        &self,
        metrics: &ServingMetrics,
    ) -> impl Future<Output = ()> + Send + 'static {
        self.certificate.clone().run_reloader(metrics.not_after())
    }

    /// Serves until `stop` ends, then shuts down gracefully: refuses new connections, and waits for
    /// requests in flight.
    pub async fn serve(self, router: Router, stop: impl Future<Output = ()>) {
        let (stopping, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tokio::pin!(stop);
        loop {
            let (stream, source) = tokio::select! {
                accepted = self.tcp.accept(), if tasks.len() < MAX_TASKS => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(error = error.to_string(), "Failed to accept connection");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
                Some(_) = tasks.join_next() => continue,
                () = &mut stop => break,
            };
            let source = source.ip().to_canonical();
            let admitted = self.limiter.admit(source);
            let overflow = admitted.is_none().then(|| self.limiter.admit_overflow(source));
            let stopped = stopped.clone();
            let service = Service {
                tls: self.tls.clone(),
                max_streams: self.max_streams,
                router: router.clone(),
            };
            // Overflow connections wait in their own task, and block no other connection.
            tasks.spawn(async move {
                let admitted = match overflow {
                    Some(overflow) => timeout(OVERFLOW_TIMEOUT, overflow).await.ok().flatten(),
                    None => admitted,
                };
                let Some((handle, evicted)) = admitted else {
                    return tracing::debug!(%source, "Dropped connection: the queue is full");
                };
                tokio::select! {
                    () = serve_connection(stream, source, service, handle, stopped) => {}
                    _ = evicted => tracing::debug!(%source, "Evicted connection"),
                }
            });
        }
        // What connects from now on is refused at once, and not left to wait for the end of the process.
        drop(self.tcp);
        let _ = stopping.send(true);
        let all = async { while tasks.join_next().await.is_some() {} };
        if timeout(SHUTDOWN_GRACE_PERIOD, all).await.is_err() {
            tracing::warn!("Aborted requests in flight at shutdown");
        }
    }
}

/// The TLS and HTTP settings of connections.
struct Service {
    tls: TlsAcceptor,
    max_streams: u32,
    router: Router,
}

async fn serve_connection(
    stream: TcpStream,
    source: IpAddr,
    service: Service,
    handle: Arc<ConnectionHandle>,
    mut stopped: watch::Receiver<bool>,
) {
    let Service { tls, max_streams, router } = service;
    let _ = stream.set_nodelay(true);
    let stream = match timeout_at(handle.deadline(), tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            return tracing::debug!(%source, error = error.to_string(), "TLS handshake failed");
        }
        Err(_) => return tracing::debug!(%source, "TLS handshake timed out"),
    };
    let session = stream.get_ref().1;
    let http2 = session.alpn_protocol() == Some(b"h2");
    let certificates = session.peer_certificates().unwrap_or_default();
    let certificates = certificates.iter().map(|certificate| certificate.clone().into_owned());
    let chain = Arc::new(ClientChain::new(certificates.collect()));
    let peer = Peer { chain, connection: handle.clone(), source };
    let is_stopping = stopped.clone();
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        let (connection, is_stopping) = (peer.connection.clone(), is_stopping.clone());
        let in_flight = connection.clone().begin_request();
        request.extensions_mut().insert(peer.clone());
        let response = router.clone().oneshot(request);
        async move {
            let response = response.await;
            drop(in_flight);
            response.map(|mut response| {
                if !http2 && *is_stopping.borrow() {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                AwaitedBody::of(response, connection)
            })
        }
    });
    let builder = builder(http2, max_streams, handle.is_overflow());
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let expired = async {
        // Requests move the deadline.
        while handle.deadline() > Instant::now() {
            sleep_until(handle.deadline()).await;
        }
    };
    let grace = tokio::select! {
        ended = connection.as_mut() => return log_end(source, ended),
        () = async { _ = stopped.wait_for(|stopped| *stopped).await.is_ok() } => SHUTDOWN_GRACE_PERIOD,
        () = expired => CLOSE_TIMEOUT,
    };
    let is_stopping = *stopped.borrow();
    if is_stopping
        && !http2
        && let Ok(ended) = timeout(LAST_REQUEST, connection.as_mut()).await
    {
        return log_end(source, ended);
    }
    connection.as_mut().graceful_shutdown();
    match timeout(grace, connection).await {
        Ok(ended) => log_end(source, ended),
        Err(_) => tracing::debug!(%source, "Closed idle or slow connection"),
    }
}

fn log_end<E: std::fmt::Display>(source: IpAddr, ended: Result<(), E>) {
    if let Err(error) = ended {
        tracing::debug!(%source, error = error.to_string(), "Connection failed");
    }
}

/// The HTTP settings of a connection. ALPN chose the protocol: guessing it from the first bytes
/// would wait for a silent client.
fn builder(http2: bool, max_streams: u32, is_overflow: bool) -> Builder<TokioExecutor> {
    let mut builder = match http2 {
        true => Builder::new(TokioExecutor::new()).http2_only(),
        false => Builder::new(TokioExecutor::new()).http1_only(),
    };
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES)
        // An overflow connection frees its slot after one response.
        .keep_alive(!is_overflow);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(max_streams)
        .max_header_list_size(MAX_HEADER_BYTES as u32)
        .initial_stream_window_size(BODY_WINDOW_BYTES)
        .initial_connection_window_size(BODY_WINDOW_BYTES)
        .keep_alive_interval(Duration::from_secs(30));
    builder
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::Notify;

    /// A connection to a server, what stops that and waits until it refuses new ones, and the server's end.
    async fn connected(
        router: Router,
    ) -> (tokio_rustls::client::TlsStream<TcpStream>, impl AsyncFn(), tokio::task::JoinHandle<()>)
    {
        let certificate = ServingCertificate::self_signed("a", "b").unwrap();
        let ca = certificate.self_signed_ca.clone().unwrap();
        let any = ([127, 0, 0, 1], 0).into();
        let listener = listen(any, certificate, TlsOptions::default(), 0).await.unwrap();
        let address = listener.address().unwrap();
        let stop = Arc::new(Notify::new());
        let of_stop = stop.clone();
        let serving = tokio::spawn(async move {
            listener.serve(router, async move { of_stop.notified().await }).await;
        });
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
        let config = rustls::ClientConfig::builder().with_root_certificates(roots);
        let client = tokio_rustls::TlsConnector::from(Arc::new(config.with_no_client_auth()));
        let stream = TcpStream::connect(address).await.unwrap();
        let stream = client.connect("localhost".try_into().unwrap(), stream).await.unwrap();
        let stop = async move || {
            stop.notify_one();
            let refused = async {
                while TcpStream::connect(address).await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            timeout(Duration::from_secs(5), refused).await.expect("new connections are refused");
        };
        (stream, stop, serving)
    }

    async fn reached(bound: &str, from: &str) -> bool {
        let certificate = ServingCertificate::self_signed("a", "b").unwrap();
        let address = bound.parse().unwrap();
        let listener = listen(address, certificate, TlsOptions::default(), 0).await.unwrap();
        let port = listener.address().unwrap().port();
        let reached = TcpStream::connect(format!("{from}:{port}")).await;
        reached.is_ok()
    }

    #[tokio::test]
    async fn bodies_of_requests_take_little_memory() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let service = hyper::service::service_fn(|_: Request<Incoming>| {
            std::future::pending::<Result<axum::response::Response, std::convert::Infallible>>()
        });
        let serving = builder(true, DEFAULT_MAX_STREAMS, false);
        let serving = async move { serving.serve_connection(TokioIo::new(server), service).await };
        let serving = tokio::spawn(serving);
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        client.write_all(&settings).await.unwrap();
        // The window of a connection begins at 65,535 and is changed only by WINDOW_UPDATE (8),
        // that of a stream by the setting 4 (RFC 9113, 6.5.2 and 6.9).
        let (mut of_connection, mut of_stream) = (65_535, 65_535);
        let read = async {
            loop {
                let mut head = [0; 9];
                client.read_exact(&mut head).await.unwrap();
                let mut frame = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
                client.read_exact(&mut frame).await.unwrap();
                let number = |at: &[u8]| u32::from_be_bytes(at.try_into().unwrap());
                let settings = frame.chunks_exact(6).filter(|_| head[3] == 4);
                for setting in settings.filter(|setting| setting[..2] == [0, 4]) {
                    of_stream = number(&setting[2..]);
                }
                if head[3] == 8 {
                    of_connection += number(&frame);
                }
            }
        };
        let _ = timeout(Duration::from_millis(300), read).await;
        assert!(
            of_connection <= BODY_WINDOW_BYTES && of_stream <= BODY_WINDOW_BYTES,
            "{of_connection}, {of_stream}"
        );
        serving.abort();
    }

    #[tokio::test]
    async fn a_server_that_drains_refuses_new_connections_and_answers_what_it_has_begun() {
        let [begun, answer] = std::array::from_fn(|_| Arc::new(Notify::new()));
        let (of_begun, of_answer) = (begun.clone(), answer.clone());
        let router = Router::new().fallback(async move || {
            of_begun.notify_one();
            of_answer.notified().await;
            "answered"
        });
        let (mut stream, stop, serving) = connected(router).await;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        begun.notified().await;
        stop().await;
        answer.notify_one();
        let mut response = String::new();
        let _ = stream.read_to_string(&mut response).await;
        assert!(response.ends_with("answered"), "{response}");
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn what_is_sent_on_a_kept_connection_as_the_server_stops_is_answered() {
        let router = Router::new().fallback(async || "answered");
        let (mut stream, stop, serving) = connected(router).await;
        let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut first = vec![0; 4096];
        let length = stream.read(&mut first).await.unwrap();
        assert!(first[..length].ends_with(b"answered"));
        stop().await;
        let _ = stream.write_all(request).await;
        let mut response = String::new();
        let _ = stream.read_to_string(&mut response).await;
        assert!(response.contains("connection: close\r\n"), "{response}");
        assert!(response.ends_with("answered"), "{response}");
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn the_unspecified_address_of_either_family_binds_both() {
        for bound in ["0.0.0.0:0", "[::]:0"] {
            assert!(reached(bound, "127.0.0.1").await, "{bound}");
            // This machine may have no IPv6.
            if std::net::TcpListener::bind("[::1]:0").is_ok() {
                assert!(reached(bound, "[::1]").await, "{bound}");
            }
        }
        assert!(reached("127.0.0.1:0", "127.0.0.1").await);
        assert!(!reached("127.0.0.1:0", "127.0.0.2").await);
    }
}
