//! What the product does, on the real parts. Each test says one thing of it.

#[path = "../bed/mod.rs"]
mod bed;

mod api;

use bed::{Bed, Options};
use std::sync::OnceLock;
use tokio::runtime::Runtime;

/// The bed that all tests share which break nothing, on a runtime of its own
/// that lives as long as the process.
fn shared() -> &'static Bed {
    static BED: OnceLock<Bed> = OnceLock::new();
    BED.get_or_init(|| {
        let start = || runtime().block_on(Bed::start(Options::default()));
        std::thread::spawn(start).join().expect("the bed starts")
    })
}

/// The runtime that beds live on.
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new().expect("a runtime"))
}
