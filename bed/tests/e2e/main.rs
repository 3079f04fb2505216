//! What Plimsoll does, on real parts. Each test states one property.

mod api;
mod api_faults;
mod backends;
mod beds;
mod browser;
mod chart;
mod decisions;
mod docs;
mod drop_in;
mod duel;
mod explain;
mod faults;
mod fixture;
mod freeze;
mod ha;
mod install;
mod joined;
mod memory;
mod metric_rules;
mod metric_types;
mod modes;
mod monitoring;
mod moving;
mod observed;
mod oldest;
mod operating;
mod page;
mod page_change;
mod page_live;
mod parity;
mod parity_cases;
mod planned;
mod policies;
mod relist;
mod reload;
mod report;
mod reproduced;
mod rollouts;
mod rows;
mod scaling;
mod schedules;
mod security;
mod selection;
mod simulated_api_server;
mod simulated_prometheus;
mod socket;
mod targets;
mod totals;
mod validation;
mod warnings;

use bed::workload::Namespace;
use bed::{Bed, Options};
use std::sync::OnceLock;
use std::time::Duration;
use tokio::runtime::Runtime;

/// The timeout of what happens within a few evaluations.
const SOON: Duration = Duration::from_secs(60);
/// The timeout of a workload that follows its load.
const FOLLOWS: Duration = Duration::from_secs(120);

/// Runs a test that breaks nothing on the shared bed, in a namespace of its own.
fn on_shared_bed(namespace: &str, test: impl AsyncFnOnce(&Bed, &Namespace<'_>)) {
    static BED: OnceLock<Bed> = OnceLock::new();
    let bed = BED.get_or_init(|| runtime().block_on(Bed::start(Options::default())));
    runtime().block_on(async {
        test(bed, &Namespace::new(&bed.cluster, namespace).await).await;
    });
}

/// Native HPAs are managed, and kube-controller-manager's HPA controller is off.
fn managing_native_hpas() -> Options {
    Options {
        hpa_controller: false,
        manifests: "deploy/overlays/manage-native-hpas",
        flags: vec!["--native-hpas=manage".to_owned()],
        ..Options::default()
    }
}

/// Runs a test that breaks things, on a bed of its own.
fn on_own_bed(options: Options, test: impl AsyncFnOnce(&mut Bed)) {
    runtime().block_on(async { test(&mut Bed::start(options).await).await });
}

/// The runtime of all beds, which lives as long as the process.
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new().expect("a runtime"))
}
