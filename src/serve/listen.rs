//! Connections: TLS, limits, and an orderly end.

use super::connections::{CONNECTIONS, Connections, FRONT_PROXY, Place, RESERVE, WAITING};
use super::tls::{Current, ServingCertificate, TlsError, TlsOptions};
use crate::telemetry::ServingMetrics;
use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use rustls::pki_types::CertificateDer;
use socket2::{Domain, Protocol, Socket, Type};
use std::future::Future;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

/// The connection that a request came on.
#[derive(Clone)]
pub struct Peer {
    /// The certificates that the client showed; not yet checked.
    pub certificates: Arc<[CertificateDer<'static>]>,
    /// The connection's place among all.
    pub place: Arc<Place>,
    /// Where the connection comes from.
    pub source: IpAddr,
}

/// How much a request's head may hold, in bytes.
const HEAD: usize = 64 * 1024;
/// How many requests run at once on one connection, by default.
const STREAMS: u32 = 250;
/// How much of the bodies of requests is taken that nobody reads, in bytes, for one request and
/// for a connection over HTTP/2: nothing here needs a body.
const BODY: u32 = 64 * 1024;
/// What all connections may hold of requests that come, in bytes: of each a head or a body.
pub const INCOMING: usize = (CONNECTIONS + FRONT_PROXY + RESERVE) * HEAD;
/// How long a client may take to send the head of a request over HTTP/1.1.
const NEXT_HEAD: Duration = Duration::from_secs(30);
/// How long requests under way may take once the server is asked to stop.
const GRACE: Duration = Duration::from_secs(10);
/// How long the end of a connection may take whose time is over.
const OVERDUE: Duration = Duration::from_secs(1);
/// How long a connection waits for a place in a crowd.
const IN_CROWD: Duration = Duration::from_secs(10);
/// How many connections are held, wait, and are about to end; more wait in the kernel. Those
/// that are held and wait are fewer.
const TASKS: usize = 2 * (CONNECTIONS + FRONT_PROXY + RESERVE + WAITING);
/// How many connections wait in the kernel to be accepted.
const BACKLOG: i32 = 1024;

/// A bound address, ready to serve.
pub struct Listener {
    tcp: TcpListener,
    tls: TlsAcceptor,
    certificate: Arc<Current>,
    streams: u32,
    connections: Connections,
}

/// Binds an address. The unspecified address of either family stands for all
/// addresses of both, as in Go; where there is no IPv6, for those of IPv4.
///
/// # Errors
/// Where it can't be bound or the certificate can't be served.
pub async fn listen(
    address: SocketAddr,
    certificate: ServingCertificate,
    options: TlsOptions,
    streams: u32,
) -> Result<Listener, ListenError> {
    let (config, certificate) = certificate.server_config(options)?;
    let tls = TlsAcceptor::from(Arc::new(config));
    let tcp = bind(address).map_err(|error| ListenError::Bind { address, error })?;
    let streams = if streams == 0 { STREAMS } else { streams };
    Ok(Listener { tcp, tls, certificate, streams, connections: Connections::default() })
}

fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return bind_one(address);
    }
    match bind_one((Ipv6Addr::UNSPECIFIED, address.port()).into()) {
        Err(error)
            if !matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::PermissionDenied) =>
        {
            tracing::debug!(%error, "no IPv6: listening on IPv4 only");
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

/// Why nothing can be served.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address can't be bound.
    #[error("can't listen on {address} (--bind-address, --secure-port): {error}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        error: std::io::Error,
    },
    /// The certificate can't be served.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl Listener {
    /// The address bound.
    ///
    /// # Errors
    /// Where the system does not say.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Shows in metrics how many connections there are.
    #[must_use]
    pub fn counted(mut self, metrics: &ServingMetrics) -> Self {
        self.connections = Connections::shown_by(metrics.connections());
        self
    }

    /// Takes up what the files of the certificate hold, whenever it changes, for ever.
    pub fn follow_certificate(
        &self,
        metrics: &ServingMetrics,
    ) -> impl Future<Output = ()> + Send + 'static {
        self.certificate.clone().follow(metrics.not_after())
    }

    /// Serves until `stop` ends; then takes nothing new and ends what is under way.
    pub async fn serve(self, router: Router, stop: impl Future<Output = ()>) {
        let (stopping, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tokio::pin!(stop);
        loop {
            let (stream, source) = tokio::select! {
                accepted = self.tcp.accept(), if tasks.len() < TASKS => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(%error, "could not accept a connection");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
                Some(_) = tasks.join_next() => continue,
                () = &mut stop => break,
            };
            let source = source.ip().to_canonical();
            let admitted = self.connections.admit(source);
            let waiting = admitted.is_none().then(|| self.connections.admit_in_crowd(source));
            let stopped = stopped.clone();
            let service =
                Service { tls: self.tls.clone(), streams: self.streams, router: router.clone() };
            // Those that come when there is no room wait here, and hold up nobody else.
            tasks.spawn(async move {
                let admitted = match waiting {
                    Some(waiting) => timeout(IN_CROWD, waiting).await.ok().flatten(),
                    None => admitted,
                };
                let Some((place, evicted)) = admitted else {
                    return tracing::debug!(%source, "connection refused: too many wait");
                };
                tokio::select! {
                    () = connection(stream, source, service, place, stopped) => {}
                    _ = evicted => tracing::debug!(%source, "connection ended: there are too many"),
                }
            });
        }
        let _ = stopping.send(true);
        let all = async { while tasks.join_next().await.is_some() {} };
        if timeout(GRACE, all).await.is_err() {
            tracing::warn!("requests were still under way at the end");
        }
    }
}

/// What a connection is served with.
struct Service {
    tls: TlsAcceptor,
    streams: u32,
    router: Router,
}

async fn connection(
    stream: TcpStream,
    source: IpAddr,
    service: Service,
    place: Arc<Place>,
    mut stopped: watch::Receiver<bool>,
) {
    let Service { tls, streams, router } = service;
    let _ = stream.set_nodelay(true);
    let stream = match timeout_at(place.deadline().into(), tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%source, %error, "no TLS"),
        Err(_) => return tracing::debug!(%source, "no TLS in time"),
    };
    let session = stream.get_ref().1;
    let http2 = session.alpn_protocol() == Some(b"h2");
    let certificates = session.peer_certificates().unwrap_or_default();
    let certificates: Arc<[CertificateDer<'static>]> =
        certificates.iter().map(|certificate| certificate.clone().into_owned()).collect();
    let peer = Peer { certificates, place: place.clone(), source };
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        let under_way = peer.place.clone().begin();
        request.extensions_mut().insert(peer.clone());
        let answer = router.clone().oneshot(request);
        async move {
            let answer = answer.await;
            drop(under_way);
            answer
        }
    });
    let builder = builder(http2, streams, place.is_crowded());
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let overdue = async {
        // What happens on it moves the deadline.
        while place.deadline() > std::time::Instant::now() {
            sleep_until(place.deadline().into()).await;
        }
    };
    let grace = tokio::select! {
        ended = connection.as_mut() => return said(source, ended),
        () = async { _ = stopped.wait_for(|stopped| *stopped).await.is_ok() } => GRACE,
        () = overdue => OVERDUE,
    };
    connection.as_mut().graceful_shutdown();
    match timeout(grace, connection).await {
        Ok(ended) => said(source, ended),
        Err(_) => tracing::debug!(%source, "connection ended: it was silent or slow"),
    }
}

fn said<E: std::fmt::Display>(source: IpAddr, ended: Result<(), E>) {
    if let Err(error) = ended {
        tracing::debug!(%source, %error, "connection ended");
    }
}

/// The protocol is that which TLS agreed on: nothing is guessed from first bytes,
/// which may never come.
fn builder(http2: bool, streams: u32, crowded: bool) -> Builder<TokioExecutor> {
    let mut builder = match http2 {
        true => Builder::new(TokioExecutor::new()).http2_only(),
        false => Builder::new(TokioExecutor::new()).http1_only(),
    };
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(NEXT_HEAD)
        .max_buf_size(HEAD)
        // One answer, and the place is free for the next.
        .keep_alive(!crowded);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .max_header_list_size(HEAD as u32)
        .initial_stream_window_size(BODY)
        .initial_connection_window_size(BODY)
        .keep_alive_interval(Duration::from_secs(30));
    builder
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn reached(bound: &str, from: &str) -> bool {
        let certificate = ServingCertificate::self_made("a", "b").unwrap();
        let address = bound.parse().unwrap();
        let listener = listen(address, certificate, TlsOptions::default(), 0).await.unwrap();
        let port = listener.address().unwrap().port();
        let reached = TcpStream::connect(format!("{from}:{port}")).await;
        reached.is_ok()
    }

    #[tokio::test]
    async fn bodies_that_nobody_reads_take_little_room() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let service = hyper::service::service_fn(|_: Request<Incoming>| {
            std::future::pending::<Result<axum::response::Response, std::convert::Infallible>>()
        });
        let serving = builder(true, STREAMS, false);
        let serving = async move { serving.serve_connection(TokioIo::new(server), service).await };
        let serving = tokio::spawn(serving);
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        client.write_all(&settings).await.unwrap();
        // The window of a connection begins at 65,535 and is changed by WINDOW_UPDATE (8) alone,
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
        assert!(of_connection <= BODY && of_stream <= BODY, "{of_connection}, {of_stream}");
        serving.abort();
    }

    #[tokio::test]
    async fn any_address_of_either_family_stands_for_both() {
        for bound in ["0.0.0.0:0", "[::]:0"] {
            assert!(reached(bound, "127.0.0.1").await, "{bound}");
            // Where this machine has no IPv6, IPv4 is all there is.
            if std::net::TcpListener::bind("[::1]:0").is_ok() {
                assert!(reached(bound, "[::1]").await, "{bound}");
            }
        }
        assert!(reached("127.0.0.1:0", "127.0.0.1").await);
        assert!(!reached("127.0.0.1:0", "127.0.0.2").await);
    }
}
