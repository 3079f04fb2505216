//! What is looked at while the world goes on: what replicas show of their queues, and what failed metrics
//! withhold; and restarts of all replicas soon after a checkpoint.

use super::{Task, World, crowd};
use crate::conditions::{Trouble, locked};
use crate::oracle::Oracle;
use crate::plan::{HOUR, MINUTE, Millis, REPLICAS, SECOND, WORKLOADS, is_quiet, random};
use crate::workload::NAMES;
use fastrand::Rng;
use plimsoll::crd::{Executor, Mode};

/// What the looks remember.
#[derive(Debug)]
pub struct Looks {
    rng: Rng,
    /// Since when each replica has been troubled.
    troubled_since: [Option<Millis>; REPLICAS],
}

impl Looks {
    /// Nothing was seen yet.
    pub fn new(seed: u64) -> Self {
        Self { rng: random(seed, "restarts"), troubled_since: [None; REPLICAS] }
    }
}

/// A restart of all replicas.
#[derive(Clone, Copy, Debug)]
pub struct Restart {
    /// It follows a checkpoint that is written after this.
    from: Millis,
}

/// How often the metrics of replicas are read.
const SHOWN: Millis = 10 * MINUTE;
/// How long a trouble is after which they are read, too.
const LONG_TROUBLE: Millis = 5 * MINUTE;
/// The mean time between two restarts.
const RESTARTED: f64 = 8.0 * HOUR as f64;
/// For how long nothing must have failed before a restart, and for how long that is waited for.
const CALM_BEFORE: Millis = 5 * MINUTE;
const WAITED: Millis = 30 * MINUTE;
/// How long after a checkpoint the replicas die.
const AFTER_CHECKPOINT: Millis = 4 * SECOND;

/// The autoscalers that there may be: each workload may have a second one, and a native HPA.
const MOST_AUTOSCALERS: usize = 3 * WORKLOADS;
/// The most bytes of a checkpoint: for each autoscaler, 64 recommendations and, up and down, a change for each
/// evaluation of the longest policy period (180 s), 50 bytes each, and 300 bytes besides.
const MOST_HISTORY: usize = 2 * WORKLOADS * (300 + 50 * (64 + 2 * 13));

/// What replicas show of what must be bounded, and the most of it.
const BOUNDS: [(&str, usize); 5] = [
    ("plimsoll_status_writes_waiting ", MOST_AUTOSCALERS),
    ("plimsoll_autoscalers ", MOST_AUTOSCALERS),
    ("plimsoll_scaling_history_bytes ", MOST_HISTORY),
    ("plimsoll_scaling_history_left_out ", 0),
    // No request to the metrics APIs is made.
    ("plimsoll_http_requests_in_flight ", 0),
];
/// The most lines of a family with the labels of a native HPA: each has two.
const MOST_OF_HPAS: usize = 2 * WORKLOADS;

impl World {
    /// Looks at what goes on, at a scrape.
    pub(super) fn look(&mut self, at: Millis) {
        self.count_no_way_down(at);
        for replica in 0..REPLICAS {
            let trouble = locked(&self.oracles).replicas[replica].trouble.now().copied();
            let troubled = trouble.is_some_and(Trouble::is_any);
            let since = &mut self.looks.troubled_since[replica];
            let is_over = !troubled && since.is_some_and(|since| at - since > LONG_TROUBLE);
            *since = if troubled { since.or(Some(at)) } else { None };
            if is_over || at % SHOWN == 0 {
                self.check_shown(at, replica);
            }
        }
    }

    /// What a replica shows of its queues is bounded by what five autoscalers can need.
    fn check_shown(&self, at: Millis, replica: usize) {
        let Some(running) = &self.replicas[replica] else { return };
        let text = running.metrics.openmetrics();
        let mut oracles = locked(&self.oracles);
        oracles.checked(Oracle::Bounded);
        // With some seeds there is a crowd at first.
        let crowd = if at < HOUR { crowd::SIZE } else { 0 };
        for (name, most) in BOUNDS {
            let most = if most == MOST_AUTOSCALERS { most + crowd } else { most };
            let shown = text.lines().find_map(|line| line.strip_prefix(name)?.parse::<f64>().ok());
            if shown.is_none_or(|shown| shown > most as f64) {
                let text =
                    format!("replica {replica}: {name}is {shown:?}, at most {most} are needed");
                oracles.violate(Oracle::Bounded, at, text);
            }
        }
        let of_hpa = |line: &&str| line.starts_with("plimsoll_native_hpa_desired_replicas{");
        let of_hpas = text.lines().filter(of_hpa).count();
        if of_hpas > MOST_OF_HPAS {
            let text = format!("replica {replica} shows metrics of {of_hpas} native HPAs");
            oracles.violate(Oracle::Bounded, at, text);
        }
    }

    /// Counts the removals that the load asks for while metrics fail.
    fn count_no_way_down(&self, at: Millis) {
        let mut oracles = locked(&self.oracles);
        let Some(leader) = oracles.holder else { return };
        let lied_to = locked(&self.conditions).is_unanswered(leader, at);
        let away =
            oracles.replicas[leader].alive_since.is_none() || oracles.frozen.now() == Some(&true);
        for number in 0..NAMES.len() {
            let record = &oracles.records[number];
            let (Some(Some(spec)), Some(Some(replicas))) =
                (record.specs.now(), record.replicas.now())
            else {
                continue;
            };
            let left_alone = away
                || spec.api.mode == Mode::Paused
                || spec.api.executor != Executor::Embedded
                || record.ambiguous.now() == Some(&true);
            let fails = lied_to
                || record
                    .spans
                    .back()
                    .is_some_and(|span| span.may_fail && span.proposals.is_none());
            let wanted = self.workloads[number].load.ceil() as i32;
            let wanted = wanted.clamp(spec.spec.min_replicas, spec.spec.max_replicas);
            if fails && !left_alone && wanted < *replicas {
                oracles.withheld_of(Oracle::NoWayDown, number);
            }
        }
    }

    /// Plans the next restart.
    pub(super) fn plan_restart(&mut self, at: Millis) {
        let wait = -RESTARTED * (1.0 - self.looks.rng.f64()).ln();
        let at = at + SECOND + wait as Millis;
        self.at(at, Task::Restart(Restart { from: at }));
    }

    /// Restarts all replicas soon after a checkpoint, if nothing has failed for a while: what they then do follows
    /// from what it has.
    pub(super) fn restart(&mut self, at: Millis, restart: Restart) {
        if is_quiet(at) || at - restart.from > WAITED {
            return self.plan_restart(at);
        }
        let due = {
            let oracles = locked(&self.oracles);
            let sound = oracles.replicas.iter().all(|one| one.is_sound(at - CALM_BEFORE, at));
            let written = oracles.checkpoints.back().map(|(written, _)| *written);
            sound
                && written.is_some_and(|written| {
                    let age = at - written;
                    written > restart.from
                        && (AFTER_CHECKPOINT..AFTER_CHECKPOINT + 2 * SECOND).contains(&age)
                })
        };
        if !due {
            return self.at(at + SECOND, Task::Restart(restart));
        }
        self.step(at, "all replicas restart");
        *self.faults.entry("restart of all").or_default() += 1;
        for replica in 0..REPLICAS {
            self.crash_replica(at, replica);
            self.at(at + SECOND, Task::StartReplica(replica));
        }
        self.plan_restart(at);
    }
}
