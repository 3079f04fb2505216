//! Connections: TLS, limits, and an orderly end.

use super::tls::{ServingCertificate, TlsError, TlsOptions};
use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use rustls::pki_types::CertificateDer;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

/// The certificates a client showed on its connection; not yet checked.
#[derive(Clone)]
pub struct PeerCertificates(pub Arc<[CertificateDer<'static>]>);

/// How many connections are held at once.
const CONNECTIONS: usize = 1024;
/// How many more are held that only health is told, so that a probe gets through a crowd.
const RESERVE: usize = 128;
/// How long such a connection may last.
const CROWDED: Duration = Duration::from_secs(2);
/// How much a request's head may hold, in bytes.
const HEAD: usize = 64 * 1024;
/// How many requests run at once on one connection, by default.
const STREAMS: u32 = 250;
/// How long a client may take to speak TLS, and then to send its headers.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long requests under way may take once the server is asked to stop.
const GRACE: Duration = Duration::from_secs(10);

/// Whether a connection came when there were too many.
#[derive(Clone, Copy, Debug)]
pub struct Crowded(pub bool);

/// A bound address, ready to serve.
pub struct Listener {
    tcp: TcpListener,
    tls: TlsAcceptor,
    streams: u32,
}

/// Binds an address.
///
/// # Errors
/// Where it can't be bound or the certificate can't be served.
pub async fn listen(
    address: SocketAddr,
    certificate: ServingCertificate,
    options: TlsOptions,
    streams: u32,
) -> Result<Listener, ListenError> {
    let tls = TlsAcceptor::from(Arc::new(certificate.server_config(options)?));
    let tcp =
        TcpListener::bind(address).await.map_err(|error| ListenError::Bind { address, error })?;
    let streams = if streams == 0 { STREAMS } else { streams };
    Ok(Listener { tcp, tls, streams })
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

    /// Serves until `stop` ends; then takes nothing new and ends what is under way.
    pub async fn serve(self, router: Router, stop: impl Future<Output = ()>) {
        let slots = Arc::new(Semaphore::new(CONNECTIONS));
        let reserve = Arc::new(Semaphore::new(RESERVE));
        let (stopping, stopped) = watch::channel(false);
        tokio::pin!(stop);
        loop {
            let stream = tokio::select! {
                accepted = self.tcp.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        tracing::warn!(%error, "could not accept a connection");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
                () = &mut stop => break,
            };
            let slot = slots.clone().try_acquire_owned();
            let crowded = Crowded(slot.is_err());
            let slot = match slot {
                Ok(slot) => slot,
                // More wait to be accepted; the reserve empties fast.
                Err(_) => {
                    reserve.clone().acquire_owned().await.expect("the semaphore is never closed")
                }
            };
            let service = Service {
                tls: self.tls.clone(),
                streams: self.streams,
                router: router.clone(),
                crowded,
            };
            let stopped = stopped.clone();
            tokio::spawn(async move {
                let connection = connection(stream, service, stopped);
                if crowded.0 {
                    let _ = tokio::time::timeout(CROWDED, connection).await;
                } else {
                    connection.await;
                }
                drop(slot);
            });
        }
        let _ = stopping.send(true);
        let all = slots.acquire_many(CONNECTIONS as u32);
        if tokio::time::timeout(GRACE, all).await.is_err() {
            tracing::warn!("requests were still under way at the end");
        }
    }
}

/// What a connection is served with.
struct Service {
    tls: TlsAcceptor,
    streams: u32,
    router: Router,
    crowded: Crowded,
}

async fn connection(stream: TcpStream, service: Service, mut stopped: watch::Receiver<bool>) {
    let Service { tls, streams, router, crowded } = service;
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "no TLS"),
        Err(_) => return tracing::debug!("no TLS in time"),
    };
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let chain: Arc<[CertificateDer<'static>]> =
        chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
    let peer = PeerCertificates(chain);
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        request.extensions_mut().insert(crowded);
        router.clone().oneshot(request)
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE)
        .max_buf_size(HEAD)
        .keep_alive(!crowded.0);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .max_header_list_size(HEAD as u32)
        .keep_alive_interval(Duration::from_secs(30));
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = async { _ = stopped.wait_for(|stopped| *stopped).await.is_ok() } => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}
