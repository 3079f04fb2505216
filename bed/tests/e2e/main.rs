//! What the product does, on the real parts. Each test says one thing of it.

mod api;
mod beds;
mod chart;
mod docs;
mod drop_in;
mod duel;
mod faults;
mod freeze;
mod ha;
mod install;
mod memory;
mod operating;
mod peer;
mod planned;
mod relist;
mod scaling;
mod security;
mod socket;
mod validation;

use bed::workload::Namespace;
use bed::{Bed, Options};
use std::sync::OnceLock;
use std::time::Duration;
use tokio::runtime::Runtime;

/// How long anything may take that happens within a few rounds.
const SOON: Duration = Duration::from_secs(30);
/// How long a workload may take to follow its load.
const FOLLOWS: Duration = Duration::from_secs(90);

/// Runs a test that breaks nothing, in a namespace of its own, on the bed that
/// all such tests share.
fn on_shared_bed(namespace: &str, test: impl AsyncFnOnce(&Bed, &Namespace<'_>)) {
    static BED: OnceLock<Bed> = OnceLock::new();
    let bed = BED.get_or_init(|| runtime().block_on(Bed::start(Options::default())));
    runtime().block_on(async {
        test(bed, &Namespace::new(&bed.cluster, namespace).await).await;
    });
}

/// Runs a test that breaks things, on a bed of its own.
fn on_own_bed(options: Options, test: impl AsyncFnOnce(&mut Bed)) {
    runtime().block_on(async { test(&mut Bed::start(options).await).await });
}

/// The runtime that beds live on, as long as the process.
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new().expect("a runtime"))
}
