//! Ports that nobody else gets before the program that is told to listen there does.
//!
//! A port that is merely free now may be taken the next moment: by another test that asks
//! for one, or by the kernel as the local end of any connection. So ports come from below the
//! kernel's own range, in blocks that one process has at a time: it holds a listening
//! socket on the first port of each of its blocks, which the kernel closes however it ends.

use std::net::TcpListener;
use std::ops::Range;
use std::sync::Mutex;

/// The ports of a block: the first is held, the others are handed out.
const BLOCK: u16 = 64;
/// No lower ones: many are known services.
const LOWEST: u16 = 10_240;

struct Ports {
    /// Those that are left of the last block.
    left: Range<u16>,
    /// Where to look for the next block.
    next: u16,
    /// What keeps the blocks ours.
    held: Vec<TcpListener>,
}

static PORTS: Mutex<Ports> = Mutex::new(Ports { left: 0..0, next: LOWEST, held: Vec::new() });

/// A port of loopback that is free and that this process alone hands out, once.
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
        // Somebody who knows nothing of blocks may listen there, such as a demo that is kept.
        if listen(port).is_ok() {
            return port;
        }
    }
}

impl Ports {
    fn take_block(&mut self) {
        let end = kernels().start;
        while self.next + BLOCK <= end {
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

/// The ports that the kernel gives to connections.
pub fn kernels() -> Range<u16> {
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
