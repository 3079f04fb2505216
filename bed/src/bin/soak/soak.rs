//! The state of the soak, its checks and its report.

use crate::history::History;
use crate::judge::{Judge, Seen};
use crate::workload::Workload;
use bed::random::Random;
use bed::workload::Namespace;
use bed::{Bed, eventually};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The namespace of all workloads.
pub const NAMESPACE: &str = "soak";
/// How long the Deployment of a deleted Autoscaler is checked.
const CHECKED_AFTER_DELETION: Duration = Duration::from_secs(60);

/// The resource usage of Plimsoll.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub megabytes: f64,
    pub files: f64,
    pub tasks: f64,
}

/// A run: the cluster, what was done to it, and what was found.
pub struct Soak<'a> {
    pub bed: &'a Bed,
    pub began: Instant,
    pub random: Random,
    pub workloads: Vec<Workload>,
    pub made: usize,
    pub actions: BTreeMap<&'static str, usize>,
    pub rounds: usize,
    pub usage: Vec<Usage>,
    pub history: History,
    pub judge: Judge,
    pub seen: Arc<Mutex<Seen>>,
    /// Updates of scales that the watch has not seen yet.
    pub written: Vec<bed::proxy::ScaleUpdate>,
    /// When the present fault ends.
    pub fault: Option<Instant>,
    pub frozen: bool,
}

impl Soak<'_> {
    fn ns(&self) -> Namespace<'_> {
        Namespace { cluster: &self.bed.cluster, name: NAMESPACE.to_owned() }
    }

    /// Runs kubectl in the namespace.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.bed.cluster.try_kubectl(&[&["-n", NAMESPACE], arguments].concat()).await
    }

    /// Checks the scales that were written since the last round, and those that were not.
    pub async fn check(&mut self) {
        self.rounds += 1;
        self.judge_steps();
        for workload in &self.workloads {
            let replicas = self.seen.lock().expect("no panic").replicas(&workload.name);
            if let Some(replicas) = replicas {
                self.judge.check_unchanged(workload, &self.history, replicas);
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
            self.judge.violations.push(format!("round {}: not ready: {ready}", self.rounds));
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
    pub async fn settle(&mut self) {
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
                let status_is_current = status["desiredReplicas"] == *wanted
                    && status["observedGeneration"] == *generation
                    && well("AbleToScale")
                    && well("ScalingActive")
                    && !conditions.iter().any(|c| c["type"] == "Frozen");
                if !status_is_current {
                    return Err(format!("{name}: {status}, generation {generation}"));
                }
            }
            Ok(())
        })
        .await;
        eprintln!("  settled after {:.0} s", start.elapsed().as_secs_f64());
        self.judge_steps();
    }

    /// Prints the report; fails if an invariant was violated.
    pub fn report(mut self, minutes: f64, seed: u64) -> ExitCode {
        let log = std::fs::read_to_string(&self.bed.plimsoll.process.log).unwrap_or_default();
        for line in log.lines().filter(|line| line.contains("panicked")) {
            self.judge.violations.push(format!("in the log: {line}"));
        }
        let starts = |line: &&str| line.to_lowercase().contains("plimsoll::app: started serving");
        let starts = log.lines().filter(starts).count();
        if starts != 1 {
            self.judge.violations.push(format!("it was started {starts} times"));
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
                self.judge.violations.push(format!("{name} grew from {first:.1} to {last:.1}"));
            }
        }
        println!("\n  rule, and how often it was looked at");
        let length = Duration::from_secs_f64(minutes * 60.0);
        for (rule, count) in &self.judge.checks {
            println!("    {rule:28} {count:6}");
            // A short run may have no occasion.
            if *count == 0 && length >= Duration::from_secs(240) {
                self.judge.violations.push(format!("{rule}: there was nothing to look at"));
            }
        }
        println!("\n  broken                     {:6}", self.judge.violations.len());
        for what in &self.judge.violations {
            println!("    {what}");
        }
        if self.judge.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
