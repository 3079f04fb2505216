//! One run: a seed, and some simulated days.

use crate::conditions::locked;
use crate::entropy;
use crate::oracle::{Counts, Oracle, Violation};
use crate::plan::{Millis, Planned, plan};
use crate::world::World;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    let faults = world.faults();
    let mut oracles = locked(&world.oracles);
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

/// What is left of a run that fails.
#[derive(Debug)]
pub struct Shorter {
    /// What is run.
    pub settings: Settings,
    /// What comes of it.
    pub report: Report,
    /// Whether nothing more can be left out by itself. Otherwise the runs or the time were used up.
    pub is_least: bool,
}

/// Leaves out faults and hands of a run that fails, as long as the same oracle finds something. No run begins after
/// this time, or after so many of them. Says on standard error how far it has come.
///
/// # Panics
/// If it is no run that fails.
pub fn shrink(settings: &Settings, found: &Report, tries: usize, time: Duration) -> Shorter {
    #[expect(clippy::disallowed_methods, reason = "it is the time of the machine that is limited")]
    let begun = Instant::now();
    let mut tried = 0;
    shrink_by(settings, found, |variant, left| {
        if tried == tries || begun.elapsed() >= time {
            return None;
        }
        tried += 1;
        eprintln!("  run {tried} of at most {tries}: {left} faults and hands are left");
        Some(run_apart(variant))
    })
}

/// Runs variants, each with the number of faults and hands that are left without it, until `run` returns none.
fn shrink_by(
    settings: &Settings,
    found: &Report,
    mut run: impl FnMut(&Settings, usize) -> Option<Result<Report, Failed>>,
) -> Shorter {
    let violation = found.violation.as_ref().expect("only a run that fails is shortened");
    let length = violation.at + 1_000;
    let shorter = Settings { length: settings.length.min(length), ..settings.clone() };
    let mut best = Shorter { settings: shorter, report: found.clone(), is_least: false };
    let numbers = |settings: &Settings| -> Vec<usize> {
        let planned = planned(settings).into_iter().filter(|one| one.at < length);
        planned.filter_map(|one| one.number).collect()
    };
    let mut chunk = numbers(&best.settings).len().div_ceil(2).max(1);
    loop {
        let present = numbers(&best.settings);
        let mut left = present.len();
        for some in present.chunks(chunk) {
            let mut variant = best.settings.clone();
            variant.left_out.extend(some);
            match run(&variant, left) {
                None => return best,
                Some(Ok(report)) => {
                    if report.violation.as_ref().is_some_and(|one| one.oracle == violation.oracle) {
                        (best.settings, best.report) = (variant, report);
                        left -= some.len();
                    }
                }
                // That is another fault: what has been reached counts.
                Some(Err(failed)) => eprintln!("  without {some:?}: {}", failed.error),
            }
        }
        if left == present.len() {
            if chunk == 1 {
                best.is_least = true;
                return best;
            }
            chunk = (chunk / 2).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::DAY;

    /// A report of a violation that needs some faults, or of none.
    fn report(is_violated: bool) -> Report {
        let violation = Violation { oracle: Oracle::Number, at: DAY / 2, text: String::new() };
        Report {
            seed: 7,
            length: DAY,
            faults: BTreeMap::new(),
            counts: Counts::new(),
            evaluations: 0,
            writes: 0,
            queries: 0,
            violation: is_violated.then_some(violation),
            steps: Vec::new(),
            digest: 0,
        }
    }

    #[test]
    fn what_a_violation_needs_is_left_though_some_runs_fail_or_time_is_over() {
        let settings =
            Settings { seed: 7, length: DAY, faults_per_hour: 4.0, left_out: BTreeSet::new() };
        let numbers = |settings: &Settings| -> Vec<usize> {
            let before = planned(settings).into_iter().filter(|one| one.at <= DAY / 2);
            before.filter_map(|one| one.number).collect()
        };
        let all = numbers(&settings);
        let needed = [all[3], all[all.len() - 2]];
        let failing = all[5];
        let mut runs = 0;
        let mut run = |variant: &Settings| {
            runs += 1;
            let left = numbers(variant);
            // Its process ends without a report if this one alone is left out.
            if left.len() + 1 == all.len() && !left.contains(&failing) || runs % 5 == 2 {
                return Err(Failed { seed: 7, error: "panicked".to_owned() });
            }
            Ok(report(needed.iter().all(|number| left.contains(number))))
        };
        let whole = shrink_by(&settings, &report(true), |variant, _| Some(run(variant)));
        assert!(whole.is_least);
        let left = numbers(&whole.settings);
        assert!(needed.iter().all(|number| left.contains(number)), "{left:?}");
        assert!(left.len() < all.len() / 4, "{left:?} of {all:?}");
        let mut tries = 0..4;
        let part = shrink_by(&settings, &report(true), |variant, _| {
            tries.next().map(|_| Ok(report(needed.iter().all(|n| !variant.left_out.contains(n)))))
        });
        let some = numbers(&part.settings).len();
        assert!(!part.is_least && left.len() < some && some < all.len(), "{some}");
    }
}
