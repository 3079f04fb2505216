//! Ports that stay free until the program that is to listen there does.
//!
//! A port that is free now may be taken the next moment: by another test, or by the kernel as the
//! local end of a connection. So ports come from below the kernel's ephemeral range, if it leaves room there, in blocks. A
//! process owns a block as long as it listens on the block's first port, which the kernel closes
//! however the process ends.

use std::net::TcpListener;
use std::ops::Range;
use std::sync::Mutex;

/// The ports of a block: the first marks it as taken, the others are handed out.
const BLOCK: u16 = 64;
/// Many ports below are those of known services.
const LOWEST: u16 = 10_240;
/// Fewer ports below the ephemeral range may not be enough for all beds.
const ENOUGH: u16 = 32 * BLOCK;

struct Ports {
    /// The ports of the last block that are not handed out yet.
    left: Range<u16>,
    /// The first port of the next block to try.
    next: u16,
    /// The listeners on the first ports of the blocks.
    held: Vec<TcpListener>,
}

static PORTS: Mutex<Ports> = Mutex::new(Ports { left: 0..0, next: LOWEST, held: Vec::new() });

/// A free port of loopback, which no process hands out again.
pub fn free_port() -> u16 {
    let mut ports = PORTS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    loop {
        let port = match ports.left.next() {
            Some(port) => port,
            None => {
                ports.take_block();
                continue;
            }
        };
        // A program of an earlier run may listen there, such as a kept demo.
        if listen(port).is_ok() {
            return port;
        }
    }
}

impl Ports {
    fn take_block(&mut self) {
        let Range { end, .. } = usable(&ephemeral());
        while self.next <= end - BLOCK {
            let first = self.next;
            self.next += BLOCK;
            if let Ok(held) = listen(first) {
                self.held.push(held);
                self.left = first + 1..first + BLOCK;
                return;
            }
        }
        panic!("no block of ports is left from {LOWEST} to {end}");
    }
}

/// The ports that blocks are of: those below the ephemeral ones, or all where hardly any are below, as with
/// `net.ipv4.ip_local_port_range = 1024 65535`.
pub fn usable(ephemeral: &Range<u16>) -> Range<u16> {
    let below = LOWEST..ephemeral.start;
    if below.len() < ENOUGH.into() { LOWEST..u16::MAX } else { below }
}

/// The range of ephemeral ports, which the kernel assigns to connections.
pub fn ephemeral() -> Range<u16> {
    let file = "/proc/sys/net/ipv4/ip_local_port_range";
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let ends: Vec<u16> = text.split_whitespace().filter_map(|end| end.parse().ok()).collect();
    match ends[..] {
        [first, last] => first..last.saturating_add(1),
        _ => panic!("{file}: two ports were expected: {text}"),
    }
}

fn listen(port: u16) -> std::io::Result<TcpListener> {
    TcpListener::bind(("127.0.0.1", port))
}
