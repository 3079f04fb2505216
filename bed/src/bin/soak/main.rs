//! A long run with churn and faults on the real parts: `make soak MINUTES=30`.
//!
//! Autoscalers, pods, metrics and the configuration are created, changed and deleted; Prometheus
//! and kube-apiserver fail in turn; all at random, from a seed that is printed. Each round checks
//! the invariants. At the end every workload must have the size that its metrics ask for, and
//! memory, open files and tasks must not have grown.

mod acts;
mod judge;

use bed::random::Random;
use bed::workload::Namespace;
use bed::{Bed, Options, eventually};
use futures::StreamExt;
use judge::{History, Judge, Seen, Step, Timeline};
use k8s_openapi::api::apps::v1::Deployment;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

const NAMESPACE: &str = "soak";
/// How long the Deployment of a deleted Autoscaler is checked.
const CHECKED_AFTER_DELETION: Duration = Duration::from_secs(60);

/// A workload and its Autoscaler.
struct Workload {
    name: String,
    made: Instant,
    max: Timeline<i64>,
    /// The metric of each of its pods; the target of its Autoscaler is 10.
    shows: Timeline<i64>,
    /// Whether its Autoscaler has the scale-up policy [`judge::POLICY`].
    policy: bool,
    /// When its Autoscaler was deleted.
    removed: Option<Instant>,
    /// The changes of its replicas that Plimsoll made.
    steps: Vec<Step>,
}

impl Workload {
    /// The replicas that it settles at without further changes.
    fn settles_at(&self) -> i64 {
        if self.shows.now() > 10 { self.max.now() } else { 1 }
    }
}

/// The resource usage of Plimsoll.
#[derive(Clone, Copy, Debug)]
struct Usage {
    megabytes: f64,
    files: f64,
    tasks: f64,
}

struct Soak<'a> {
    bed: &'a Bed,
    began: Instant,
    random: Random,
    workloads: Vec<Workload>,
    made: usize,
    actions: BTreeMap<&'static str, usize>,
    rounds: usize,
    usage: Vec<Usage>,
    history: History,
    judge: Judge,
    seen: Arc<Mutex<Seen>>,
    /// Updates of scales that the watch has not seen yet.
    written: Vec<bed::proxy::ScaleUpdate>,
    /// When the present fault ends.
    fault: Option<Instant>,
    frozen: bool,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let minutes: f64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(10.0);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seed = arguments.next().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(now.as_nanos() as u64);
    eprintln!("  seed {seed}: soak {minutes} {seed} does the same again");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(run(Duration::from_secs_f64(minutes * 60.0), seed, minutes))
}

async fn run(length: Duration, seed: u64, minutes: f64) -> ExitCode {
    let options = Options {
        faults: true,
        flags: ["--status-interval=1s", "--prometheus-timeout=1s", "--memory-interval=5s"]
            .map(str::to_owned)
            .to_vec(),
        progress: |what| eprintln!("  {what} ..."),
        ..Options::default()
    };
    let bed = Bed::start(options).await;
    Namespace::new(&bed.cluster, NAMESPACE).await;
    let seen = Arc::<Mutex<Seen>>::default();
    tokio::spawn(watch(bed.cluster.client.clone(), seen.clone()));
    let mut soak = Soak {
        bed: &bed,
        began: Instant::now(),
        random: Random(seed),
        workloads: Vec::new(),
        made: 0,
        actions: BTreeMap::new(),
        rounds: 0,
        usage: Vec::new(),
        history: History::default(),
        judge: Judge::default(),
        seen,
        written: Vec::new(),
        fault: None,
        frozen: false,
    };
    let mut told = 0;
    while soak.began.elapsed() < length {
        soak.act().await;
        tokio::time::sleep(Duration::from_millis(700)).await;
        soak.check().await;
        let minute = soak.began.elapsed().as_secs() / 60;
        if minute > told {
            told = minute;
            let last = soak.usage.last();
            eprintln!("  {minute} of {minutes} minutes, {} rounds, {last:?}", soak.rounds);
        }
    }
    soak.settle().await;
    soak.report(minutes, seed)
}

impl Soak<'_> {
    fn ns(&self) -> Namespace<'_> {
        Namespace { cluster: &self.bed.cluster, name: NAMESPACE.to_owned() }
    }

    async fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.bed.cluster.try_kubectl(&[&["-n", NAMESPACE], arguments].concat()).await
    }

    /// Checks the scales that were written since the last round, and those that were not.
    async fn check(&mut self) {
        self.rounds += 1;
        self.judge_steps();
        for workload in &self.workloads {
            let replicas = self.seen.lock().expect("no panic").replicas(&workload.name);
            if let Some(replicas) = replicas {
                self.judge.left_alone(workload, &self.history, replicas);
            }
        }
        let gone = |workload: &Workload| {
            workload.removed.is_some_and(|at| at.elapsed() > CHECKED_AFTER_DELETION)
        };
        let (gone, left) = std::mem::take(&mut self.workloads).into_iter().partition(gone);
        self.workloads = left;
        for Workload { name, .. } in Vec::<Workload>::from_iter(gone) {
            let _ = self.kubectl(&["delete", "deployment", &name, "--wait=false"]).await;
        }
        let (code, ready) = self.bed.plimsoll.get("/readyz?verbose", &[]).await;
        if code != 200 {
            self.judge.broken.push(format!("round {}: not ready: {ready}", self.rounds));
        }
        if self.rounds.is_multiple_of(5) {
            let of = async |name| self.bed.plimsoll.metric(&self.bed.cluster, name, "").await;
            self.usage.push(Usage {
                megabytes: of("process_resident_memory_bytes").await / 1e6,
                files: of("process_open_fds").await,
                tasks: of("plimsoll_tasks").await,
            });
        }
    }

    /// Checks the invariants of each update of a scale, once the watch has seen it.
    fn judge_steps(&mut self) {
        self.written.extend(self.bed.faults.as_ref().expect("proxies").api.take_scale_updates());
        let seen = self.seen.lock().expect("no panic");
        let (judge, history, workloads) = (&mut self.judge, &self.history, &mut self.workloads);
        self.written.retain(|write| {
            let Some(step) = seen.step(write) else {
                // An update to the present number changes nothing.
                return write.at.elapsed() < Duration::from_secs(30);
            };
            if let Some(workload) = workloads.iter_mut().find(|one| one.name == write.name) {
                judge.step(workload, history, &step);
                workload.steps.push(step);
            }
            false
        });
    }

    /// Ends all faults, and waits until each workload and each status is as its metrics ask for.
    async fn settle(&mut self) {
        eprintln!("  letting it settle ...");
        self.heal();
        self.frozen = true;
        while self.frozen {
            self.freeze().await;
        }
        let start = Instant::now();
        let living = self.workloads.iter().filter(|workload| workload.removed.is_none());
        let living: Vec<(String, i64)> =
            living.map(|workload| (workload.name.clone(), workload.settles_at())).collect();
        let ns = self.ns();
        eventually("all settles", Duration::from_secs(180), async || {
            for (name, wanted) in &living {
                let replicas = ns.replicas("Deployment", name).await;
                if replicas != *wanted {
                    return Err(format!("{name} has {replicas}, not {wanted}"));
                }
                let object = ns.get("autoscaler", name).await?;
                let (status, generation) = (&object["status"], &object["metadata"]["generation"]);
                let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
                let well = |kind: &str| {
                    conditions.iter().any(|c| c["type"] == kind && c["status"] == "True")
                };
                let told = status["desiredReplicas"] == *wanted
                    && status["observedGeneration"] == *generation
                    && well("AbleToScale")
                    && well("ScalingActive")
                    && !conditions.iter().any(|c| c["type"] == "Frozen");
                if !told {
                    return Err(format!("{name}: {status}, generation {generation}"));
                }
            }
            Ok(())
        })
        .await;
        eprintln!("  settled after {:.0} s", start.elapsed().as_secs_f64());
        self.judge_steps();
    }

    fn report(mut self, minutes: f64, seed: u64) -> ExitCode {
        let log = std::fs::read_to_string(&self.bed.plimsoll.process.log).unwrap_or_default();
        for line in
            log.lines().filter(|line| line.contains("panicked") || line.contains("broken off"))
        {
            self.judge.broken.push(format!("in the log: {line}"));
        }
        let starts = log.lines().filter(|line| line.contains("plimsoll::app: serving")).count();
        if starts != 1 {
            self.judge.broken.push(format!("it was started {starts} times"));
        }
        println!("\nSoak of {minutes} minutes, seed {seed}: {} rounds checked\n", self.rounds);
        for (action, count) in &self.actions {
            println!("  {action:26} {count:6}");
        }
        println!();
        // Caches are full after the first quarter: compare the last quarter with the second.
        let used = self.usage.len() / 4;
        let median = |of: &[Usage], field: fn(&Usage) -> f64| -> f64 {
            let mut values: Vec<f64> = of.iter().map(field).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
        };
        let (first, last) = (&self.usage[used..used * 2], &self.usage[used * 3..]);
        type Field = (&'static str, fn(&Usage) -> f64, f64);
        let fields: [Field; 3] = [
            ("memory, MB", |usage| usage.megabytes, 8.0),
            ("open files", |usage| usage.files, 20.0),
            ("tasks", |usage| usage.tasks, 40.0),
        ];
        for (name, field, allowed) in fields {
            let (first, last) = (median(first, field), median(last, field));
            println!("  {name:26} {first:6.1} in the second quarter, {last:6.1} in the last");
            if last > first * 1.15 + allowed {
                self.judge.broken.push(format!("{name} grew from {first:.1} to {last:.1}"));
            }
        }
        println!("\n  rule, and how often it was looked at");
        let length = Duration::from_secs_f64(minutes * 60.0);
        for (rule, count) in &self.judge.looked_at {
            println!("    {rule:28} {count:6}");
            // A short run may have no occasion.
            if *count == 0 && length >= Duration::from_secs(240) {
                self.judge.broken.push(format!("{rule}: there was nothing to look at"));
            }
        }
        println!("\n  broken                     {:6}", self.judge.broken.len());
        for what in &self.judge.broken {
            println!("    {what}");
        }
        if self.judge.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Watches the Deployments past the proxy, forever.
async fn watch(client: kube::Client, seen: Arc<Mutex<Seen>>) {
    let api: Api<Deployment> = Api::namespaced(client, NAMESPACE);
    let mut events = watcher(api, watcher::Config::default()).boxed();
    while let Some(event) = events.next().await {
        let event = event.expect("kube-apiserver is there all the time");
        if let watcher::Event::Apply(object) | watcher::Event::InitApply(object) = event {
            let replicas = object.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
            let version = object.resource_version().unwrap_or_default();
            seen.lock().expect("no panic").put(&object.name_any(), &version, replicas.into());
        }
    }
}
