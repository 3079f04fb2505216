//! What happens in a run besides Plimsoll's own doing: load, hands and faults, all drawn from the seed
//! before the run begins, so that a run can be repeated without some of its faults. Restarts soon after a checkpoint,
//! and how long pods and requests take, are drawn on the way: they can't be left out, and may be others then.

mod scenario;

use fastrand::Rng;
use scenario::scenario;

/// Milliseconds since the start of the simulation.
pub type Millis = i64;

/// A second, a minute, an hour and a day.
pub const SECOND: Millis = 1_000;
/// A minute.
pub const MINUTE: Millis = 60 * SECOND;
/// An hour.
pub const HOUR: Millis = 60 * MINUTE;
/// A day.
pub const DAY: Millis = 24 * HOUR;

/// The end of each day is quiet: no load changes and nothing fails, so that what is steady can be told.
pub const QUIET: Millis = 100 * MINUTE;
/// How long before the quiet time no fault begins; none lasts longer.
const LONGEST: Millis = 30 * MINUTE;

/// The number of replicas of Plimsoll.
pub const REPLICAS: usize = 2;
/// In the place of a replica's number: whichever leads when it happens.
pub const LEADER: usize = REPLICAS;
/// The number of workloads, each with an autoscaler.
pub const WORKLOADS: usize = 5;

/// An event of a run.
#[derive(Clone, Debug)]
pub struct Planned {
    /// When.
    pub at: Millis,
    /// Its number among the faults and hands, by which it can be left out; none for load.
    pub number: Option<usize>,
    /// What happens.
    pub event: Event,
}

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The load of a workload becomes this many times what one pod carries.
    Load {
        /// The workload.
        workload: usize,
        /// In pods.
        pods: f64,
    },
    /// Somebody interferes with a workload.
    Hand {
        /// The workload.
        workload: usize,
        /// What is done.
        hand: Hand,
    },
    /// Something fails.
    Fault(Fault),
}

/// What somebody does to a workload or its autoscaler.
#[derive(Clone, Debug, PartialEq)]
pub enum Hand {
    /// `kubectl scale`.
    Scale(i32),
    /// Edits the bounds of the autoscaler.
    Bounds {
        /// Added to the first `minReplicas`.
        min: i32,
        /// Added to the first `maxReplicas`.
        max: i32,
    },
    /// Pauses the autoscaler for a time, and scales by hand meanwhile.
    Pause(Millis),
    /// Deletes the autoscaler, and creates it anew after a time.
    Recreate(Millis),
    /// Deletes the workload, and creates it anew after a time.
    RecreateTarget(Millis),
    /// A second autoscaler selects the same pods for a time.
    Second(Millis),
    /// kube-controller-manager executes for a time; it may be paused meanwhile.
    NativeHpa {
        /// How long.
        time: Millis,
        /// Whether it is paused.
        paused: bool,
    },
    /// All scales are frozen for a time.
    Freeze(Millis),
}

/// What fails. `replica` and `workload` say of which, `time` and `down` how long.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the fields have the same meaning in all variants")]
pub enum Fault {
    /// A replica dies, and starts again.
    Crash { replica: usize, down: Millis },
    /// All replicas die, and start again.
    CrashAll { down: Millis },
    /// A replica is stopped in order (SIGTERM), and started again.
    Stop { replica: usize, down: Millis },
    /// A replica can't reach the API server.
    LoseApi { replica: usize, time: Millis },
    /// A replica can't reach Prometheus.
    LosePrometheus { replica: usize, time: Millis },
    /// Prometheus is away.
    PrometheusAway { time: Millis },
    /// Prometheus takes long to respond.
    PrometheusSlow { latency: Millis, time: Millis },
    /// Prometheus responds with something else than a whole result.
    PrometheusLies { lie: Lie, time: Millis },
    /// Targets of a workload are not scraped.
    ScrapeGap { workload: usize, time: Millis },
    /// The API server refuses requests of a replica.
    Refuse { replica: usize, code: u16, time: Millis },
    /// The API server takes long to respond to a replica.
    ApiSlow { replica: usize, latency: Millis, time: Millis },
    /// The next write to this kind of object of any replica is handled, but its response is lost.
    ResponseLost(Written),
    /// The replica that makes the next write to this kind of object dies before it has the response.
    CrashAfter(Written),
    /// The next write to this kind of object arrives late: after its sender has given up.
    Late(Written),
    /// Another writer is faster than the next write to this kind of object.
    Conflict(Written),
    /// Others edit the object of a workload all the time: each first try to scale it is a conflict.
    Busy { workload: usize, time: Millis },
    /// Somebody else takes the Lease while a leader reads the next scale that it is going to write.
    LeaseTaken,
    /// Somebody empties the holder of the Lease, so that any replica may lead at once.
    LeaseCleared,
    /// The watches of a replica fall silent.
    WatchSilent { replica: usize, time: Millis },
    /// The watches of a replica are cut off for a time, and their versions have expired afterwards.
    WatchExpired { replica: usize, time: Millis },
    /// All watches end.
    WatchEnded,
    /// The wall clock of a replica is set.
    ClockStep { replica: usize, by: Millis },
    /// A pod of a workload becomes unready for a time.
    PodUnready { workload: usize, time: Millis },
    /// A pod of a workload fails, and another takes its place.
    PodFails { workload: usize },
    /// The counters of a workload begin at zero again.
    CounterReset { workload: usize },
    /// The metrics of a workload are NaN.
    NotANumber { workload: usize, time: Millis },
}

/// What Prometheus responds with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// A result with the warning that it is partial.
    Partial,
    /// A page of a proxy, with status 200.
    Html,
    /// Half of the JSON.
    Truncated,
    /// An internal error.
    Error,
}

/// A kind of object that Plimsoll writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Written {
    /// A `/scale`.
    Scale,
    /// A `/scale` that is set to zero.
    ScaleToZero,
    /// The status of an Autoscaler.
    Status,
    /// The Lease.
    Lease,
    /// The ConfigMap of checkpoints.
    Checkpoint,
    /// A native HPA.
    Hpa,
}

impl Written {
    /// Whether this is one of a kind: a scale to zero is one of a scale.
    pub fn is_one(self, kind: Self) -> bool {
        self == kind || (self == Self::ScaleToZero && kind == Self::Scale)
    }
}

impl Fault {
    /// The replica for which it happens, if it does for one.
    pub fn replica_mut(&mut self) -> Option<&mut usize> {
        match self {
            Self::Crash { replica, .. }
            | Self::Stop { replica, .. }
            | Self::LoseApi { replica, .. }
            | Self::LosePrometheus { replica, .. }
            | Self::Refuse { replica, .. }
            | Self::ApiSlow { replica, .. }
            | Self::WatchSilent { replica, .. }
            | Self::WatchExpired { replica, .. }
            | Self::ClockStep { replica, .. } => Some(replica),
            Self::CrashAll { .. }
            | Self::PrometheusAway { .. }
            | Self::PrometheusSlow { .. }
            | Self::PrometheusLies { .. }
            | Self::ScrapeGap { .. }
            | Self::ResponseLost(_)
            | Self::CrashAfter(_)
            | Self::Late(_)
            | Self::Conflict(_)
            | Self::Busy { .. }
            | Self::LeaseTaken
            | Self::LeaseCleared
            | Self::WatchEnded
            | Self::PodUnready { .. }
            | Self::PodFails { .. }
            | Self::CounterReset { .. }
            | Self::NotANumber { .. } => None,
        }
    }

    /// Whether it does nothing before a request comes that it is for.
    pub fn waits(&self) -> bool {
        matches!(
            self,
            Self::ResponseLost(_)
                | Self::CrashAfter(_)
                | Self::Late(_)
                | Self::Conflict(_)
                | Self::LeaseTaken
        )
    }

    /// Its name in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Crash { .. } => "crash",
            Self::CrashAll { .. } => "crash of all",
            Self::Stop { .. } => "stop",
            Self::LoseApi { .. } => "API server lost",
            Self::LosePrometheus { .. } => "Prometheus lost",
            Self::PrometheusAway { .. } => "Prometheus away",
            Self::PrometheusSlow { .. } => "Prometheus slow",
            Self::PrometheusLies { .. } => "Prometheus lies",
            Self::ScrapeGap { .. } => "scrape gap",
            Self::Refuse { .. } => "request refused",
            Self::ApiSlow { .. } => "API server slow",
            Self::ResponseLost(_) => "response lost",
            Self::CrashAfter(_) => "crash after write",
            Self::Late(_) => "late write",
            Self::Conflict(_) => "conflict",
            Self::Busy { .. } => "busy object",
            Self::LeaseTaken => "Lease taken",
            Self::LeaseCleared => "Lease cleared",
            Self::WatchSilent { .. } => "watch silent",
            Self::WatchExpired { .. } => "watch expired",
            Self::WatchEnded => "watch ended",
            Self::ClockStep { .. } => "clock step",
            Self::PodUnready { .. } => "pod unready",
            Self::PodFails { .. } => "pod fails",
            Self::CounterReset { .. } => "counter reset",
            Self::NotANumber { .. } => "NaN",
        }
    }
}

/// The random numbers of one purpose: those of another don't depend on how many are drawn.
pub fn random(seed: u64, purpose: &str) -> Rng {
    let mixed = purpose.bytes().fold(seed ^ 0x517c_c1b7_2722_0a95, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
    });
    Rng::with_seed(mixed)
}

/// The events of a run in their order.
pub fn plan(seed: u64, length: Millis, faults_per_hour: f64) -> Vec<Planned> {
    let mut planned = Vec::new();
    for workload in 0..WORKLOADS {
        let rng = &mut random(seed, &format!("load {workload}"));
        let mut at = 0;
        while at < length {
            if !is_quiet(at) {
                let event = Event::Load { workload, pods: load(rng) };
                planned.push(Planned { at, number: None, event });
            }
            at += exponential(rng, 12.0 * MINUTE as f64).max(2 * SCRAPE);
        }
    }
    let mut number = 0;
    let mut numbered = |at, event| {
        let one = Planned { at, number: Some(number), event };
        number += 2;
        one
    };
    let rng = &mut random(seed, "faults");
    let mut at = 10 * MINUTE;
    // Without faults the first is infinitely far away.
    loop {
        at = at.saturating_add(exponential(rng, HOUR as f64 / faults_per_hour));
        if at >= length {
            break;
        }
        if is_quiet(at) || is_quiet(at + LONGEST) {
            continue;
        }
        if rng.u8(..) < 64 {
            for (later, event) in scenario(rng) {
                planned.push(numbered(at + later, event));
            }
            continue;
        }
        planned.push(numbered(at, Event::Fault(fault(rng))));
        // Any others may matter together, too.
        if rng.u8(..) < 24 {
            let mut after = at;
            for _ in 0..rng.u8(1..4) {
                after += rng.i64(0..40 * SECOND);
                planned.push(numbered(after, Event::Fault(fault(rng))));
            }
        }
        // Faults that only matter together: a hand acts while something is away.
        if rng.u8(..) < 64 {
            let (later, workload) = (rng.i64(0..5 * MINUTE), rng.usize(..WORKLOADS));
            planned.push(numbered(at + later, Event::Hand { workload, hand: hand(rng) }));
        }
    }
    // Hands have odd numbers, so that those of a shorter run are the same.
    let mut number = 1;
    let rng = &mut random(seed, "hands");
    let mut at = 15 * MINUTE;
    loop {
        at += exponential(rng, 2.0 * HOUR as f64);
        if at >= length {
            break;
        }
        if !is_quiet(at) && !is_quiet(at + LONGEST) {
            let event = Event::Hand { workload: rng.usize(..WORKLOADS), hand: hand(rng) };
            planned.push(Planned { at, number: Some(number), event });
            number += 2;
        }
    }
    planned.sort_by_key(|one| one.at);
    planned
}

/// The time between two scrapes.
pub const SCRAPE: Millis = 15 * SECOND;

/// Whether nothing is planned at a time.
pub fn is_quiet(at: Millis) -> bool {
    at % DAY >= DAY - QUIET
}

fn load(rng: &mut Rng) -> f64 {
    // An idle workload now and then, which is scaled to its minimum.
    if rng.u8(..) < 40 { 0.0 } else { f64::from(rng.u32(5..=120)) / 10.0 }
}

fn exponential(rng: &mut Rng, mean: f64) -> Millis {
    (-mean * (1.0 - rng.f64()).ln()) as Millis
}

fn hand(rng: &mut Rng) -> Hand {
    let time = rng.i64(MINUTE..10 * MINUTE);
    match rng.u8(0..16) {
        0..4 => Hand::Scale(rng.i32(0..=12)),
        4..7 => Hand::Bounds { min: rng.i32(0..=2), max: rng.i32(-3..=3) },
        7..9 => Hand::Pause(time),
        // Before a watch shows the deletion, or much later.
        9 => Hand::Recreate(rng.i64(0..SECOND)),
        10 => Hand::Recreate(rng.i64(0..15 * MINUTE)),
        11 => Hand::RecreateTarget(rng.i64(SECOND..90 * SECOND)),
        12 => Hand::Second(time),
        13 => Hand::NativeHpa { time, paused: rng.bool() },
        _ => Hand::Freeze(time),
    }
}

fn fault(rng: &mut Rng) -> Fault {
    // Often the one for which it matters.
    let replica = if rng.bool() { LEADER } else { rng.usize(..REPLICAS) };
    let workload = rng.usize(..WORKLOADS);
    // Mostly short, now and then long.
    let time =
        if rng.bool() { rng.i64(5 * SECOND..2 * MINUTE) } else { rng.i64(2 * MINUTE..20 * MINUTE) };
    let down = rng.i64(SECOND..2 * MINUTE);
    let written = {
        use Written::{Checkpoint, Hpa, Lease, Scale, ScaleToZero, Status};
        let kinds = [Scale, Scale, Scale, ScaleToZero, Status, Lease, Checkpoint, Hpa];
        kinds[rng.usize(..kinds.len())]
    };
    match rng.u8(0..33) {
        0..3 => Fault::Crash { replica, down },
        3 => Fault::CrashAll { down },
        4 => Fault::Stop { replica, down },
        5..7 => Fault::LoseApi { replica, time },
        7 => Fault::LosePrometheus { replica, time },
        8 => Fault::PrometheusAway { time },
        9 => Fault::PrometheusSlow { latency: rng.i64(SECOND..40 * SECOND), time },
        10 => {
            let lies = [Lie::Partial, Lie::Html, Lie::Truncated, Lie::Error];
            Fault::PrometheusLies { lie: lies[rng.usize(..lies.len())], time }
        }
        // Not as long as series that are gone are listed (10 minutes): then their metric is unknown until the next
        // listing, as with prometheus-adapter.
        11 => Fault::ScrapeGap { workload, time: time.min(8 * MINUTE) },
        12 => {
            let codes = [429, 500, 503, 403, 504];
            Fault::Refuse { replica, code: codes[rng.usize(..codes.len())], time }
        }
        13..15 => Fault::ApiSlow { replica, latency: rng.i64(200..15 * SECOND), time },
        15..17 => Fault::ResponseLost(written),
        17 => Fault::CrashAfter(written),
        18 => Fault::Late(written),
        19 => Fault::Conflict(written),
        20 => Fault::WatchSilent { replica, time },
        21..23 => Fault::WatchExpired { replica, time },
        23 => Fault::WatchEnded,
        24..26 => {
            let by = rng.i64(SECOND..8 * HOUR);
            Fault::ClockStep { replica, by: if rng.bool() { by } else { -by } }
        }
        26 => Fault::PodUnready { workload, time },
        27 => Fault::PodFails { workload },
        28 => Fault::CounterReset { workload },
        29 => Fault::LeaseTaken,
        31 => Fault::LeaseCleared,
        30 => Fault::Busy { workload, time },
        _ => Fault::NotANumber { workload, time },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_that_of_its_seed_and_has_every_kind_of_fault() {
        let one = plan(7, 30 * DAY, 1.0);
        assert_eq!(format!("{one:?}"), format!("{:?}", plan(7, 30 * DAY, 1.0)));
        let names: std::collections::BTreeSet<_> = one
            .iter()
            .filter_map(|planned| match &planned.event {
                Event::Fault(fault) => Some(fault.name()),
                Event::Load { .. } | Event::Hand { .. } => None,
            })
            .collect();
        assert_eq!(names.len(), 26, "{names:?}");
        assert!(one.iter().all(|planned| !is_quiet(planned.at)));
    }
}
