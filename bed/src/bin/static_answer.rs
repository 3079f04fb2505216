//! A server that answers each request with the same bytes, for `make bench-api`: Plimsoll's own listener, with its TLS, its
//! handling of client certificates, its HTTP settings and its allocator, and nothing behind it. It is what is left of
//! a request where the answer costs nothing.

use axum::Router;
use axum::http::header;
use bytes::Bytes;
use plimsoll::serve::{ServingCertificate, TlsOptions, listen};
use std::net::Ipv4Addr;

/// As the product's; the program `bench` counts allocations by another.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Serves the bytes of a file at a port of loopback, until the process ends.
#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(port), Some(file)) = (arguments.next(), arguments.next()) else {
        panic!("usage: static-answer PORT FILE");
    };
    let answer = Bytes::from(std::fs::read(file).expect("the answer"));
    let certificate = ServingCertificate::self_signed("static", "static").expect("a certificate");
    let address = (Ipv4Addr::LOCALHOST, port.parse().expect("a port")).into();
    let listener = listen(address, certificate, TlsOptions::default(), 0).await.expect("a port");
    let json = [(header::CONTENT_TYPE, "application/json")];
    let router = Router::new().fallback(async move || (json, answer));
    listener.serve(router, std::future::pending()).await;
}
