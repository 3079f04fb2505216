//! The world around Plimsoll: workloads and their pods, hands that interfere, and all that fails.

pub mod crowd;
mod faults;
mod hands;
mod hpa;
mod looks;
mod observe;
mod pods;
mod quiet;
mod scrape;

use crate::api_server::{ApiServer, Part, Resource, resource};
use crate::conditions::{Conditions, Shared, locked};
use crate::network::{Ask, Network};
use crate::oracle::Oracles;
use crate::plan::{Event, MINUTE, Millis, Planned, REPLICAS, SCRAPE, SECOND, WORKLOADS};
use crate::prometheus::Prometheus;
use crate::replica::RunningReplica;
use crate::workload::{NAMES, NAMESPACE, Workload, scales_to_zero};
use fastrand::Rng;
use observe::{observe, written};
use scrape::Exporter;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// The namespace of Plimsoll itself.
pub const OWN_NAMESPACE: &str = "plimsoll";

/// Something that the world does at a time.
#[derive(Clone, Debug)]
enum Task {
    Scrape,
    Planned(usize),
    /// The controller of a workload looks at its pods.
    Reconcile(usize),
    PodRuns(usize, String),
    PodReady(usize, String, bool),
    PodGone(usize, String),
    StartReplica(usize),
    /// A hand's other half: what it undoes.
    Undo(Undo),
    /// The troubles of a replica may be over.
    Recheck,
    /// Watches of a replica, whose versions have expired, come back.
    Compact(usize),
    Quiet(quiet::Step),
    Hpa(hpa::Step),
    /// All replicas die soon after a checkpoint, and start again.
    Restart(looks::Restart),
}

/// What a hand undoes after a time.
#[derive(Clone, Debug)]
enum Undo {
    Pause(usize),
    Delete(usize),
    DeleteTarget(usize, i32),
    Second(usize),
    NativeHpa(usize),
    Freeze,
}

/// The world.
pub struct World {
    /// The cluster's API server.
    pub api: ApiServer,
    /// Prometheus.
    pub prometheus: Shared<Prometheus>,
    /// What fails now.
    pub conditions: Shared<Conditions>,
    /// The oracles.
    pub oracles: Shared<Oracles>,
    /// How many faults of each kind there were, without those that wait for a request.
    faults: BTreeMap<&'static str, u64>,
    network: Arc<Network>,
    start: Instant,
    base: i64,
    workloads: Vec<Workload>,
    exporters: Vec<Exporter>,
    replicas: [Option<RunningReplica>; REPLICAS],
    starts: u64,
    plan: Vec<Planned>,
    tasks: BinaryHeap<Reverse<(Millis, u64)>>,
    due: BTreeMap<u64, Task>,
    next_task: u64,
    scaled: mpsc::UnboundedReceiver<usize>,
    quiet: quiet::Observed,
    hpas: hpa::Controller,
    looks: looks::Looks,
    evaluations: u64,
    scales_to_zero: bool,
    crowd: Option<crowd::Crowd>,
    asked: mpsc::UnboundedReceiver<Ask>,
    rng: Rng,
}

impl World {
    /// A world in which the plan comes true.
    pub fn new(seed: u64, base: i64, plan: Vec<Planned>) -> Self {
        let start = Instant::now();
        let wall = move || base + since(start);
        let api = ApiServer::new(move || {
            jiff::Timestamp::from_millisecond(wall()).expect("a time of this century")
        });
        let workloads: Vec<Workload> = (0..WORKLOADS).map(|n| Workload::new(n, seed)).collect();
        let requests = std::array::from_fn(|number| workloads[number].cpu_request);
        let oracles = Shared::new(Oracles::new(base, scales_to_zero(seed), requests).into());
        let mut prometheus = Prometheus::new(Duration::from_secs(900));
        for (metric, metric_type) in scrape::TYPES {
            prometheus.set_type(metric, metric_type);
        }
        let prometheus = Shared::new(prometheus.into());
        let conditions = Shared::new(Conditions::default().into());
        let (asks, asked) = mpsc::unbounded_channel();
        let ways = (conditions.clone(), prometheus.clone());
        let network = Arc::new(Network::new(seed, start, base, ways, asks.clone()));
        let (scaled_to, scaled) = mpsc::unbounded_channel();
        let (observed, armed, crash) = (oracles.clone(), conditions.clone(), asks.clone());
        api.observe(move |write| {
            observe(&mut locked(&observed), &scaled_to, since(start), write);
            let (Some(replica), Some(written)) = (replica_of(&write.who), written(write)) else {
                return;
            };
            if locked(&armed).take_crash(written) {
                let _ = crash.send(Ask::Crash(replica));
            }
        });
        let mut world = Self {
            api,
            prometheus,
            conditions,
            oracles,
            faults: BTreeMap::new(),
            network,
            start,
            base,
            workloads,
            exporters: (0..WORKLOADS).map(|_| Exporter::default()).collect(),
            replicas: [None, None],
            starts: 0,
            plan,
            tasks: BinaryHeap::new(),
            due: BTreeMap::new(),
            next_task: 0,
            scaled,
            quiet: quiet::Observed::default(),
            hpas: hpa::Controller::new(seed),
            looks: looks::Looks::new(seed),
            evaluations: 0,
            scales_to_zero: scales_to_zero(seed),
            crowd: crowd::Crowd::of(seed),
            asked,
            rng: crate::plan::random(seed, "world"),
        };
        world.set_up();
        world
    }

    /// Creates the objects, and plans what is known.
    fn set_up(&mut self) {
        for namespace in [NAMESPACE, OWN_NAMESPACE, hpa::NAMESPACE] {
            self.create(
                &resource::NAMESPACES,
                json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
            );
        }
        for number in 0..WORKLOADS {
            let workload = &self.workloads[number];
            let (object, resource) = (workload.object(1), workload_resource(workload));
            let spec = workload.autoscaler.clone();
            let autoscaler = workload.autoscaler_object(&spec);
            self.create(resource, object);
            self.create(&resource::AUTOSCALERS, autoscaler);
            let mut oracles = locked(&self.oracles);
            oracles.records[number].ambiguous.set(0, false);
            oracles.records[number].counted.set(0, 0);
            oracles.records[number].pods.set(0, Arc::new([]));
            oracles.records[number].readings.set(0, Arc::new([None, None]));
        }
        self.set_up_crowd();
        for replica in 0..REPLICAS {
            // After the first scrape: what rules are of is listed at the start, and then every 10 minutes.
            self.at(SCRAPE + (replica as Millis + 1) * SECOND, Task::StartReplica(replica));
        }
        locked(&self.oracles).frozen.set(0, false);
        for (place, planned) in self.plan.clone().into_iter().enumerate() {
            self.at(planned.at, Task::Planned(place));
        }
        self.set_up_hpas();
        self.at(SCRAPE, Task::Scrape);
        self.at(quiet::FIRST, Task::Quiet(quiet::Step::Settle));
        self.plan_restart(0);
    }

    /// Runs until a time, or until an oracle finds something.
    pub async fn run(&mut self, until: Millis) {
        loop {
            let Some(&Reverse((at, number))) = self.tasks.peek() else { return };
            let next = self.start + Duration::from_millis(at.min(until).unsigned_abs());
            tokio::select! {
                biased;
                Some(workload) = self.scaled.recv() => {
                    let delay = self.rng.i64(100..2 * SECOND);
                    self.at(self.now() + delay, Task::Reconcile(workload));
                    continue;
                }
                Some(ask) = self.asked.recv() => {
                    match ask {
                        Ask::TakeLease => self.take_lease(),
                        Ask::Crash(replica) => {
                            let at = self.now();
                            self.crash_replica(at, replica);
                            let down = self.rng.i64(SECOND..MINUTE);
                            self.at(at + down, Task::StartReplica(replica));
                        }
                        Ask::Touch(path) => self.touch(&path),
                        Ask::Measured { replica, at, messages } => {
                            locked(&self.oracles).measured(at, replica, messages);
                        }
                        Ask::Recheck => {
                            self.recheck(self.now());
                            self.at(self.now() + CALM + 1, Task::Recheck);
                        }
                    }
                    continue;
                }
                () = tokio::time::sleep_until(next) => {}
            }
            if at > until || locked(&self.oracles).violation.is_some() {
                return;
            }
            self.tasks.pop();
            if let Some(task) = self.due.remove(&number) {
                self.act(at, task).await;
            }
        }
    }

    async fn act(&mut self, at: Millis, task: Task) {
        match task {
            Task::Scrape => {
                self.collect_garbage();
                self.scrape(at);
                self.look_at_crowd(at);
                self.expose_backlog(at);
                locked(&self.oracles).scraped(at);
                self.check_replicas(at);
                self.check_left_alone(at);
                self.check_thawed(at);
                self.look(at);
                self.at(at + SCRAPE, Task::Scrape);
            }
            Task::Planned(place) => match self.plan[place].event.clone() {
                Event::Load { workload, pods } => {
                    self.step(at, format_args!("{}: load of {pods} pods", NAMES[workload]));
                    self.workloads[workload].load = pods;
                }
                Event::Hand { workload, hand } => self.hand(at, workload, hand),
                Event::Fault(fault) => self.fault(at, fault),
            },
            Task::Reconcile(workload) => self.reconcile(at, workload),
            Task::PodRuns(workload, pod) => self.pod_runs(at, workload, &pod),
            Task::PodReady(workload, pod, ready) => self.pod_ready(at, workload, &pod, ready),
            Task::PodGone(workload, pod) => self.pod_gone(at, workload, &pod),
            Task::StartReplica(replica) => self.start_replica(at, replica),
            Task::Undo(undo) => self.undo(at, undo),
            Task::Recheck => self.recheck(at),
            Task::Compact(replica) => self.compact(at, replica),
            Task::Quiet(step) => self.quiet(at, step),
            Task::Hpa(step) => self.hpa(at, step),
            Task::Restart(restart) => self.restart(at, restart),
        }
    }

    /// Plans a task.
    fn at(&mut self, at: Millis, task: Task) {
        self.next_task += 1;
        self.due.insert(self.next_task, task);
        self.tasks.push(Reverse((at, self.next_task)));
    }

    /// The evaluations of all replicas so far.
    pub fn evaluations(&mut self) -> u64 {
        for replica in 0..REPLICAS {
            self.count_evaluations(replica);
        }
        self.evaluations
    }

    /// The queries that Prometheus answered.
    pub fn queries(&self) -> u64 {
        self.network.queries()
    }

    /// Counts the evaluations of a replica that ends.
    fn count_evaluations(&mut self, replica: usize) {
        let Some(running) = &self.replicas[replica] else { return };
        let text = running.metrics.openmetrics();
        let counts = text.lines().filter(|line| line.starts_with("plimsoll_decisions_total{"));
        let counts = counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        self.evaluations += counts.sum::<u64>();
    }

    /// The time now.
    pub fn now(&self) -> Millis {
        since(self.start)
    }

    /// The cluster's wall clock, in ms since 1970.
    fn wall_ms(&self, at: Millis) -> i64 {
        self.base + at
    }

    fn step(&self, at: Millis, text: impl std::fmt::Display) {
        locked(&self.oracles).step(at, text);
    }

    fn create(&self, resource: &'static Resource, object: Value) {
        if let Err(failure) = self.api.create(resource, object) {
            panic!("the world can't create one of {}: {failure}", resource.plural);
        }
    }

    /// Edits an object of the workloads, or its status, if it exists.
    fn edit(
        &self,
        resource: &'static Resource,
        part: Part,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) {
        // It may have been deleted by another hand.
        let _ = self.api.edit(resource, part, (NAMESPACE, name), change);
    }

    /// Runs a replica of Plimsoll.
    fn start_replica(&mut self, at: Millis, replica: usize) {
        if let Some(running) = &self.replicas[replica] {
            if running.is_stopping() {
                let text = format!("replica {replica} has not stopped in time");
                locked(&self.oracles).violate(crate::oracle::Oracle::Bounded, at, text);
            }
            return;
        }
        self.starts += 1;
        self.step(at, format_args!("replica {replica} starts"));
        self.replicas[replica] = Some(RunningReplica::start(
            &self.network,
            &self.api,
            replica,
            self.starts,
            self.scales_to_zero,
            self.crowd_rule(),
        ));
        locked(&self.oracles).replicas[replica].alive_since = Some(at);
    }

    /// Ends a replica as a crash does: nothing is finished.
    fn crash_replica(&mut self, at: Millis, replica: usize) {
        self.count_evaluations(replica);
        if self.replicas[replica].take().is_some() {
            self.step(at, format_args!("replica {replica} dies"));
            locked(&self.oracles).replicas[replica].alive_since = None;
        }
    }

    fn stop_replica(&mut self, at: Millis, replica: usize) {
        self.step(at, format_args!("replica {replica} is to stop"));
        if let Some(running) = &mut self.replicas[replica] {
            running.stop();
        }
    }

    /// Looks for replicas that have ended: stopped ones, and those that must not.
    fn check_replicas(&mut self, at: Millis) {
        for replica in 0..REPLICAS {
            let Some(ended) = self.replicas[replica].as_mut().and_then(RunningReplica::ended)
            else {
                continue;
            };
            self.count_evaluations(replica);
            self.replicas[replica] = None;
            let mut oracles = locked(&self.oracles);
            oracles.replicas[replica].alive_since = None;
            if let Err(error) = ended {
                let text = format!("replica {replica} ended: {error}");
                oracles.violate(crate::oracle::Oracle::Bounded, at, text);
            }
        }
    }
}

/// Milliseconds since the start.
pub fn since(start: Instant) -> Millis {
    i64::try_from(start.elapsed().as_millis()).unwrap_or(i64::MAX)
}

/// The resource of a workload.
fn workload_resource(workload: &Workload) -> &'static Resource {
    match workload.kind {
        "StatefulSet" => &resource::STATEFUL_SETS,
        _ => &resource::DEPLOYMENTS,
    }
}

/// The replica of a user agent or of a holder identity: `replica-1` or `replica-1-7`.
pub fn replica_of(name: &str) -> Option<usize> {
    let number = name.strip_prefix("replica-")?.split('-').next()?;
    number.parse().ok().filter(|number| *number < REPLICAS)
}

/// How long after a disturbance everything is calm again.
const CALM: Millis = MINUTE;
