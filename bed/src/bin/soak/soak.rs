//! The state of the soak, its checks and its report.

use crate::history::Spans;
use crate::judge::{Judge, Replicas, Rule, Scene, VALUES};
use crate::kinds::Kind;
use crate::replicas::{Pair, Usage};
use crate::settings::{NAMES, NAMESPACE, WINDOW};
use crate::workload::Workload;
use bed::Bed;
use bed::random::Random;
use bed::workload::Namespace;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long what is left of a deleted Autoscaler or Deployment is looked at.
const CHECKED_AFTER_DELETION: Duration = Duration::from_secs(60);
/// How soon a replica has forgotten what it was told is gone: the evaluation that is under way, and
/// those of a second after it.
const FORGOTTEN: Duration = Duration::from_secs(5);

/// How many violations are printed: one fault may break a rule in each round.
const SHOWN: usize = 30;

/// A run: the cluster, what was done to it, and what was found.
pub struct Soak<'a> {
    pub bed: &'a Bed,
    pub pair: Pair<'a>,
    pub began: Instant,
    pub random: Random,
    pub workloads: Vec<Workload>,
    pub made: usize,
    pub actions: BTreeMap<&'static str, usize>,
    pub faults: BTreeMap<String, usize>,
    pub rounds: usize,
    pub usage: Vec<Usage>,
    pub judge: Judge,
    pub replicas: Arc<Mutex<Replicas>>,
    /// The faults that are yet to come before any comes again.
    pub deck: Vec<Kind>,
    /// When the present fault ends.
    pub fault_until: Option<Instant>,
    /// When the next fault begins at the earliest.
    pub calm_until: Instant,
    /// The replica that is cut off from kube-apiserver.
    pub cut_off: Option<usize>,
    /// When kube-apiserver, its watches or a replica failed.
    pub faulty: Spans,
    /// When scaling was frozen.
    pub frozen: Spans,
}

impl Soak<'_> {
    /// Checks the scales that were written since the last round, and those that were not.
    pub async fn check(&mut self) {
        self.rounds += 1;
        self.judge_writes();
        self.judge_withheld();
        self.judge_gone().await;
        self.clear_up_gone().await;
        for (index, name) in NAMES.iter().enumerate() {
            if !self.pair.is_well(index) || self.cut_off == Some(index) {
                continue;
            }
            match self.pair.get(index, "/readyz?verbose").await {
                Ok((200, _)) => {}
                other => {
                    let what = format!("round {}: {name} is not ready: {other:?}", self.rounds);
                    self.judge.violations.push(what);
                }
            }
        }
        if self.rounds.is_multiple_of(5) && self.pair.runs(0) {
            self.usage.extend(self.pair.usage().await);
        }
    }

    /// Judges each write that is over.
    fn judge_writes(&mut self) {
        let expired = |pair: &Pair<'_>| pair.views.iter().map(|view| view.expired).sum::<usize>();
        let before = expired(&self.pair);
        let writes = self.pair.take();
        for _ in before..expired(&self.pair) {
            self.judge.rule(Rule::WatchExpired, "", true);
        }
        let replicas = self.replicas.lock().expect("no panic");
        let Self { pair, judge, workloads, frozen, faulty, .. } = self;
        let scene = Scene {
            views: &pair.views,
            stopped: &pair.stopped,
            started: pair.started,
            frozen,
            faulty,
            replicas: &replicas,
        };
        for write in writes {
            match workloads.iter_mut().find(|one| one.name == write.name) {
                Some(workload) => judge.write(&scene, workload, &write),
                None => judge.rule(Rule::NothingForWhatIsGone, &format!("{write:?}"), false),
            }
        }
    }

    /// Counts what was due and was not written, although a faulty controller would have.
    fn judge_withheld(&mut self) {
        let now = Instant::now();
        let replicas = self.replicas.lock().expect("no panic");
        let Some(leader) = self.pair.leader().filter(|leader| self.pair.runs(*leader)) else {
            return;
        };
        let view = &self.pair.views[leader];
        let frozen = self.frozen.since().is_some_and(|since| since.elapsed() > VALUES);
        for workload in &self.workloads {
            let (name, wanted) = (&workload.name, workload.settles_at());
            let Some(replicas) = replicas.now(name).filter(|now| *now != wanted) else { continue };
            if !workload.lives() {
                if view.gone_since(name).is_some_and(|since| since.elapsed() > VALUES) {
                    self.judge.rule(Rule::NothingForWhatIsGone, name, true);
                }
                continue;
            }
            // Beyond the limits no metric counts.
            if replicas > workload.max {
                continue;
            }
            if frozen {
                self.judge.rule(Rule::NothingWhileFrozen, name, true);
            } else if view.readings(name, now - VALUES - VALUES, now).is_empty() {
                self.judge.rule(Rule::NothingWithoutMetrics, name, true);
            } else if wanted < replicas {
                let before = view.readings(name, now - WINDOW + VALUES, now);
                if before.iter().any(|reading| reading.wanted() >= replicas) {
                    self.judge.rule(Rule::NotBeforeTheWindowEnds, name, true);
                }
            }
        }
    }

    /// Nothing is kept of an Autoscaler that a replica was told is gone: nothing is decided for it.
    async fn judge_gone(&mut self) {
        for index in (0..NAMES.len()).filter(|index| self.pair.runs(*index)) {
            for workload in self.workloads.iter().filter(|one| one.removed.is_some()) {
                let name = &workload.name;
                let gone = self.pair.views[index].gone_since(name);
                if gone.is_none_or(|since| since.elapsed() < FORGOTTEN) {
                    continue;
                }
                let path = format!("/live/autoscalers/{NAMESPACE}/{name}");
                if let Ok((status, body)) = self.pair.get(index, &path).await {
                    let what = format!("{} has of {name}: {status} {body}", NAMES[index]);
                    self.judge.rule(Rule::NothingKeptOfWhatIsGone, &what, status == 404);
                }
            }
        }
    }

    /// Deletes what was looked at for long enough, once no replica knows of it.
    async fn clear_up_gone(&mut self) {
        let views = &self.pair.views;
        let over = |workload: &Workload| {
            let gone = workload.removed.or(workload.target_gone);
            let known = views.iter().any(|view| view.gone_since(&workload.name).is_none());
            gone.is_some_and(|at| at.elapsed() > CHECKED_AFTER_DELETION)
                && (workload.removed.is_none() || !known)
        };
        let (over, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.workloads).into_iter().partition(over);
        self.workloads = left;
        for workload in over {
            self.clear_up(&workload.name).await;
        }
    }

    /// Ends all faults, and waits until each workload and each status is as its metrics ask for, and
    /// nothing is left of what is gone.
    pub async fn settle(&mut self) {
        eprintln!("  letting it settle ...");
        self.heal().await;
        self.freeze(false).await;
        let start = Instant::now();
        let ns = Namespace { cluster: &self.bed.cluster, name: NAMESPACE.to_owned() };
        loop {
            self.judge_writes();
            self.judge_gone().await;
            let mut unsettled = None;
            for workload in &self.workloads {
                if let Err(what) = settled(&ns, workload, &self.pair).await {
                    unsettled.get_or_insert(what);
                }
            }
            let Some(what) = unsettled else { break };
            // A run in which something is broken already may never settle.
            let broken = !self.judge.violations.is_empty();
            if start.elapsed() > Duration::from_secs(if broken { 20 } else { 180 }) {
                self.judge.violations.push(format!("it has not settled: {what}"));
                break;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        eprintln!("  settled after {:.0} s", start.elapsed().as_secs_f64());
        // Or what is decided again is not the whole log.
        for (index, name) in NAMES.iter().enumerate() {
            let dropped = self.pair.dropped(index).await;
            if dropped != Some(0.0) {
                self.judge
                    .violations
                    .push(format!("{name} dropped decisions of its log: {dropped:?}"));
            }
        }
    }

    /// Prints the report; fails if a rule was broken, or never had anything to say.
    pub fn report(mut self, minutes: f64, seed: u64) -> ExitCode {
        for (index, log) in self.pair.logs().into_iter().enumerate() {
            let name = NAMES[index];
            for line in log.lines().filter(|line| line.contains("panicked")) {
                self.judge.violations.push(format!("in the log of {name}: {line}"));
            }
            let starts =
                |line: &&str| line.to_lowercase().contains("plimsoll::app: started serving");
            let (starts, by_us) =
                (log.lines().filter(starts).count(), [1, self.pair.starts][index]);
            // The last start may be under way.
            if starts > by_us || starts + index < by_us {
                self.judge
                    .violations
                    .push(format!("{name} was started {starts} times, not {by_us}"));
            }
        }
        println!("\nSoak of {minutes} minutes, seed {seed}: {} rounds checked\n", self.rounds);
        for (action, count) in &self.actions {
            println!("  {action:30} {count:6}");
        }
        println!();
        for (fault, count) in &self.faults {
            println!("  {fault:30} {count:6}");
        }
        println!();
        self.report_growth();
        match crate::replay::all(&self.bed.cluster) {
            Ok(said) => println!("\n{said}"),
            Err(what) => self.judge.violations.push(what),
        }
        println!("\n  rule, and how often it had something to say");
        for (rule, count) in &self.judge.checks {
            let rule = Judge::name(*rule);
            println!("    {rule:30} {count:6}");
            if *count == 0 {
                self.judge.violations.push(format!("{rule}: there was nothing to look at"));
            }
        }
        println!("\n  broken                         {:6}", self.judge.violations.len());
        for what in self.judge.violations.iter().take(SHOWN) {
            println!("    {what}");
        }
        if self.judge.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn report_growth(&mut self) {
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
            println!("  {name:30} {first:6.1} in the second quarter, {last:6.1} in the last");
            if last > first * 1.15 + allowed {
                self.judge.violations.push(format!("{name} grew from {first:.1} to {last:.1}"));
            }
        }
    }
}

/// Whether a workload is as it stays without further changes.
async fn settled(ns: &Namespace<'_>, workload: &Workload, pair: &Pair<'_>) -> Result<(), String> {
    let (name, wanted) = (&workload.name, workload.settles_at());
    if workload.removed.is_some() {
        let known = pair.views.iter().position(|view| view.gone_since(name).is_none());
        return known.map_or(Ok(()), |index| Err(format!("{} knows of {name}", NAMES[index])));
    }
    let object = ns.get("autoscaler", name).await?;
    let (status, generation) = (&object["status"], &object["metadata"]["generation"]);
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let is = |kind: &str, state: &str| {
        let is = |condition: &Value| condition["type"] == kind && condition["status"] == state;
        conditions.iter().any(is)
    };
    if workload.target_gone.is_some() {
        return match is("AbleToScale", "False") {
            true => Ok(()),
            false => Err(format!("{name} has no target: {status}")),
        };
    }
    let replicas = ns.replicas("Deployment", name).await;
    // At zero, and only there, nothing is measured that a pod would have to show.
    let well = status["desiredReplicas"] == wanted
        && status["observedGeneration"] == *generation
        && is("AbleToScale", "True")
        && is("ScalingActive", "True")
        && !is("Frozen", "True");
    match replicas == wanted && well {
        true => Ok(()),
        false => Err(format!("{name} has {replicas}, not {wanted}: {status}, {generation}")),
    }
}
