//! What stands between Plimsoll and Prometheus and can be told to fail.

use super::free_port;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

/// A TCP proxy to a port of this machine.
pub struct Proxy {
    pub port: u16,
    mode: Arc<AtomicU8>,
}

const PASS: u8 = 0;
const STALL: u8 = 1;

impl Proxy {
    /// Starts one that passes everything on.
    pub async fn start(to: u16) -> Self {
        let port = free_port();
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("a free port");
        let mode = Arc::new(AtomicU8::new(PASS));
        let seen = mode.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, to, seen.clone()));
            }
        });
        Self { port, mode }
    }

    /// From now on nothing is answered on new connections, nor refused.
    pub fn stall(&self) {
        self.mode.store(STALL, Ordering::SeqCst);
    }

    /// From now on everything is passed on again.
    pub fn pass(&self) {
        self.mode.store(PASS, Ordering::SeqCst);
    }
}

async fn pass(mut client: TcpStream, to: u16, mode: Arc<AtomicU8>) {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", to)).await else { return };
    let stalled = async {
        while mode.load(Ordering::SeqCst) == PASS {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => {}
        () = stalled => {
            // Held open, silent, until the client gives up or the fault is over.
            while mode.load(Ordering::SeqCst) == STALL {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
    }
}
