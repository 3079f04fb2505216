//! One run: a seed, and some simulated days.

use crate::conditions::locked;
use crate::entropy;
use crate::oracle::{Counts, Oracle, Violation};
use crate::plan::{Millis, Planned, plan};
use crate::world::World;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

/// What is run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// The seed of all that is drawn.
    pub seed: u64,
    /// How long, in simulated time.
    pub length: Millis,
    /// The average number of faults in a simulated hour.
    pub faults_per_hour: f64,
    /// The numbers of the faults and hands that are left out.
    pub left_out: BTreeSet<usize>,
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// How far it came, in simulated time.
    pub length: Millis,
    /// How many faults of each kind there were: of those that wait for a write, how many struck.
    pub faults: BTreeMap<String, u64>,
    /// How often each oracle looked.
    pub counts: Counts,
    /// Evaluations of all replicas.
    pub evaluations: u64,
    /// Writes of a scale.
    pub writes: u64,
    /// Queries to Prometheus.
    pub queries: u64,
    /// What an oracle found.
    pub violation: Option<Violation>,
    /// The last steps before it.
    pub steps: Vec<String>,
    /// A digest of all writes: the same for the same run.
    pub digest: u64,
}

/// 2026-01-01T00:00:00Z, when each simulation begins.
const BASE: i64 = 1_767_225_600_000;

/// The events of a run, without those that are left out.
pub fn planned(settings: &Settings) -> Vec<Planned> {
    let mut planned = plan(settings.seed, settings.length, settings.faults_per_hour);
    planned.retain(|one| one.number.is_none_or(|number| !settings.left_out.contains(&number)));
    planned
}

/// A run that came to nothing: its process panicked, or did not end.
#[derive(Debug)]
pub struct Failed {
    /// The seed.
    pub seed: u64,
    /// How it ended. It has said more on its standard error.
    pub error: String,
}

/// Runs it in a process of its own: some of the randomness of a process is shared by its threads, and a run must not
/// depend on those before it.
///
/// # Errors
/// If the simulation itself fails.
///
/// # Panics
/// If this program can't be started.
pub fn run_apart(settings: &Settings) -> Result<Report, Failed> {
    let seed = settings.seed;
    let program = std::env::current_exe().expect("the path of this program");
    let settings = serde_json::to_string(settings).expect("settings are JSON");
    let ended = Command::new(program).args(["--run", &settings]).stderr(Stdio::inherit()).output();
    let ended = ended.expect("this program can be started");
    if !ended.status.success() {
        return Err(Failed { seed, error: format!("the simulation failed: {}", ended.status) });
    }
    serde_json::from_slice(&ended.stdout)
        .map_err(|error| Failed { seed, error: format!("no report: {error}") })
}

/// Runs it in this process, which must have run nothing else to repeat it bit for bit.
///
/// # Panics
/// If the simulation itself fails.
pub fn run(settings: &Settings) -> Report {
    let settings = settings.clone();
    // A new thread draws its randomness anew.
    let thread = std::thread::Builder::new().stack_size(16 << 20).spawn(move || {
        entropy::seed(settings.seed);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let report = runtime.block_on(simulate(&settings));
        runtime.shutdown_background();
        report
    });
    match thread.expect("a thread").join() {
        Ok(report) => report,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

async fn simulate(settings: &Settings) -> Report {
    let mut world = World::new(settings.seed, BASE, planned(settings));
    world.run(settings.length).await;
    let length = world.now().min(settings.length);
    let evaluations = world.evaluations();
    let mut oracles = locked(&world.oracles);
    let faults = world.faults();
    if let Some(request) = world.api.unmodelled().first() {
        let text = format!("the API server has no model of {request}");
        oracles.violate(Oracle::Bounded, length, text);
    }
    Report {
        seed: settings.seed,
        length,
        faults,
        counts: oracles.counts.clone(),
        evaluations,
        writes: oracles.writes,
        queries: world.queries(),
        violation: oracles.violation.clone(),
        steps: oracles.steps.iter().cloned().collect(),
        digest: oracles.digest,
    }
}

/// Leaves out faults and hands of a run that fails, as long as the same oracle finds something.
/// `tries` is the most runs.
///
/// # Errors
/// If the simulation itself fails.
///
/// # Panics
/// If it is no run that fails.
pub fn shrink(
    settings: &Settings,
    found: &Report,
    tries: usize,
) -> Result<(Settings, Report), Failed> {
    let violation = found.violation.as_ref().expect("only a run that fails is shortened");
    let length = violation.at + 1_000;
    let mut best = Settings { length: settings.length.min(length), ..settings.clone() };
    let numbers = |settings: &Settings| -> Vec<usize> {
        let planned = planned(settings).into_iter().filter(|one| one.at < length);
        planned.filter_map(|one| one.number).collect()
    };
    let mut report = None;
    let mut tries = 0..tries;
    let mut chunk = numbers(&best).len().div_ceil(2).max(1);
    loop {
        let present = numbers(&best);
        let mut shorter = false;
        for some in present.chunks(chunk) {
            if tries.next().is_none() {
                let report = report.map_or_else(|| run_apart(&best), Ok)?;
                return Ok((best, report));
            }
            let mut tried = best.clone();
            tried.left_out.extend(some);
            let outcome = run_apart(&tried)?;
            if outcome.violation.as_ref().is_some_and(|one| one.oracle == violation.oracle) {
                (best, report, shorter) = (tried, Some(outcome), true);
            }
        }
        if chunk == 1 && !shorter {
            let report = report.map_or_else(|| run_apart(&best), Ok)?;
            return Ok((best, report));
        }
        if !shorter {
            chunk = (chunk / 2).max(1);
        }
    }
}
