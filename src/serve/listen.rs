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

/// How many connections are held at once; more wait to be accepted.
const CONNECTIONS: usize = 1024;
/// How many requests run at once on one connection, by default.
const STREAMS: u32 = 250;
/// How long a client may take to speak TLS, and then to send its headers.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long requests under way may take once the server is asked to stop.
const GRACE: Duration = Duration::from_secs(10);

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
        let (stopping, stopped) = watch::channel(false);
        tokio::pin!(stop);
        loop {
            let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
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
            let (tls, router, stopped) = (self.tls.clone(), router.clone(), stopped.clone());
            let streams = self.streams;
            tokio::spawn(async move {
                connection(stream, tls, streams, router, stopped).await;
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

async fn connection(
    stream: TcpStream,
    tls: TlsAcceptor,
    streams: u32,
    router: Router,
    mut stopped: watch::Receiver<bool>,
) {
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
        router.clone().oneshot(request)
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HANDSHAKE);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
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
