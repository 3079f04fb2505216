//! A long run with churn and faults on the real parts: `make soak MINUTES=30`.
//!
//! Autoscalers, pods, metrics and the configuration are created, changed and deleted, workloads go to
//! zero and come back; Prometheus, kube-apiserver and each of two replicas fail in turn; all at
//! random, from a seed that is printed: a run of the same seed draws the same numbers, but what they are
//! drawn for depends on time, too. Each write of a scale is judged by what the replica that
//! wrote it had been told. At the end every workload must have the size that its metrics ask for,
//! memory, open files and tasks must not have grown, and `plimsoll replay` must decide the same on each line of the
//! decision logs. What is printed counts the acts, the faults, and how
//! often each rule had something to look at: a rule that never had is a violation, too.

mod acts;
mod faults;
mod history;
mod judge;
mod kinds;
mod policy;
mod replay;
mod replicas;
mod settings;
mod soak;
mod view;
mod workload;

use bed::random::Random;
use bed::workload::Namespace;
use bed::{Bed, Options};
use futures::StreamExt;
use judge::{Judge, Replicas};
use k8s_openapi::api::apps::v1::Deployment;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use replicas::Pair;
use settings::NAMESPACE;
use soak::Soak;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

/// The metric of workloads that go to zero, by their queues.
const RULES: &str = "externalRules:\n\
    - seriesQuery: 'backlog{namespace!=\"\"}'\n\
    \x20 resources: {overrides: {namespace: {resource: namespace}}}\n\
    \x20 metricsQuery: 'sum by (queue) (<<.Series>>{<<.LabelMatchers>>})'\n";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let minutes: f64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(10.0);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seed = arguments.next().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(now.as_nanos() as u64);
    eprintln!(
        "  seed {seed}: make soak MINUTES={minutes} SEED={seed} draws the same numbers again"
    );
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(run(Duration::from_secs_f64(minutes * 60.0), seed, minutes))
}

async fn run(length: Duration, seed: u64, minutes: f64) -> ExitCode {
    let options = Options {
        faults: true,
        decision_log: true,
        flags: [
            "--status-interval=1s",
            "--prometheus-timeout=1s",
            "--memory-interval=5s",
            "--metrics-relist-interval=2s",
            // Shorter than the defaults, so that there are more failovers.
            "--leader-elect-lease-duration=7s",
            "--leader-elect-renew-deadline=5s",
        ]
        .map(str::to_owned)
        .to_vec(),
        config: RULES,
        progress: |what| eprintln!("  {what} ..."),
        ..Options::default()
    };
    let bed = Bed::start(options.clone()).await;
    Namespace::new(&bed.cluster, NAMESPACE).await;
    bed.cluster
        .apply(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {}, namespace: {NAMESPACE}}}\n\
             spec: {{containers: [{{name: meter, image: fleet}}]}}\n",
            acts::METER
        ))
        .await;
    let replicas = Arc::<Mutex<Replicas>>::default();
    let watching = tokio::spawn(watch(bed.cluster.client.clone(), replicas.clone()));
    let pair = Pair::start(&bed, &options).await;
    let mut soak = Soak {
        bed: &bed,
        pair,
        began: Instant::now(),
        random: Random(seed),
        workloads: Vec::new(),
        made: 0,
        actions: Default::default(),
        faults: Default::default(),
        rounds: 0,
        usage: Vec::new(),
        judge: Judge::default(),
        replicas,
        // What no other fault shows comes first, once there is something to delete.
        deck: vec![kinds::Kind::DeletionsWhileWatchesExpire],
        fault_until: None,
        calm_until: Instant::now() + Duration::from_secs(15),
        cut_off: None,
        faulty: Default::default(),
        frozen: Default::default(),
    };
    let mut reported_at = 0;
    while soak.began.elapsed() < length {
        soak.fail().await;
        soak.act().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        soak.check().await;
        assert!(!watching.is_finished(), "the watch of the Deployments has ended");
        let minute = soak.began.elapsed().as_secs() / 60;
        if minute > reported_at {
            reported_at = minute;
            let last = soak.usage.last();
            eprintln!("  {minute} of {minutes} minutes, {} rounds, {last:?}", soak.rounds);
        }
    }
    soak.settle().await;
    // The cluster ends before the runtime does.
    watching.abort();
    soak.report(minutes, seed)
}

/// Watches the Deployments past the proxies, forever.
async fn watch(client: kube::Client, replicas: Arc<Mutex<Replicas>>) {
    let api: Api<Deployment> = Api::namespaced(client, NAMESPACE);
    let mut events = watcher(api, watcher::Config::default()).boxed();
    while let Some(event) = events.next().await {
        let event = event.expect("kube-apiserver is there all the time");
        if let watcher::Event::Apply(object) | watcher::Event::InitApply(object) = event {
            let count = object.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
            replicas.lock().expect("no panic").put(&object.name_any(), count.into());
        }
    }
}
