//! A server that answers each request with the same bytes: Plimsoll's own listener, with its TLS, its handling of client
//! certificates and its HTTP settings, and nothing behind it. It is what is left of a request where the answer costs nothing.

use axum::Router;
use axum::http::header;
use bytes::Bytes;
use plimsoll::serve::{ServingCertificate, TlsOptions, listen};
use std::net::Ipv4Addr;
use std::path::Path;

/// Serves the bytes of a file at a port of loopback, until the process ends.
pub async fn run(port: u16, answer: &Path) {
    let answer = Bytes::from(std::fs::read(answer).expect("the answer"));
    let certificate = ServingCertificate::self_signed("static", "static").expect("a certificate");
    let address = (Ipv4Addr::LOCALHOST, port).into();
    let listener = listen(address, certificate, TlsOptions::default(), 0).await.expect("a port");
    let json = [(header::CONTENT_TYPE, "application/json")];
    let router = Router::new().fallback(async move || (json, answer));
    listener.serve(router, std::future::pending()).await;
}
