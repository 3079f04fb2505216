//! The oracles: they see the truth, and look at every write and at every scrape.

mod checkpoint;
mod counts;
mod exact;
mod expect;
mod left_alone;
mod number;
mod record;
mod timeline;

pub use counts::{Count, Counts, Oracle};
pub use expect::{Measured, PodView, SharedSpec, SpecView};
pub use record::{LAG, Reading, Record, ReplicaRecord};
pub use timeline::Timeline;

use crate::plan::{MINUTE, Millis, REPLICAS, SCRAPE, SECOND, WORKLOADS};
use crate::workload::NAMES;
use plimsoll::crd::Mode;
use record::{Change, Span};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::VecDeque;

/// What an oracle found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// The oracle.
    pub oracle: Oracle,
    /// When.
    pub at: Millis,
    /// What is wrong, of which workload.
    pub text: String,
}

/// The truth, and what the oracles found.
pub struct Oracles {
    /// The wall clock at the start of the simulation, in ms since 1970.
    pub base: i64,
    /// Whether the replicas scale to zero.
    pub scales_to_zero: bool,
    /// The workloads.
    pub records: Vec<Record>,
    /// The replicas of Plimsoll.
    pub replicas: Vec<ReplicaRecord>,
    /// Who holds the Lease.
    pub holder: Option<usize>,
    /// Who acquired it when.
    pub acquisitions: VecDeque<(Millis, usize)>,
    /// Since when nobody has led.
    unled_since: Option<Millis>,
    /// Whether scales are frozen.
    pub frozen: Timeline<bool>,
    /// When checkpoints were written, and by whom.
    pub checkpoints: VecDeque<(Millis, usize)>,
    /// The checkpoints that were written last.
    last_checkpoints: Option<checkpoint::Written>,
    /// The exact decisions for one workload.
    exact: exact::Exact,
    /// How often each oracle looked.
    pub counts: Counts,
    /// The first violation.
    pub violation: Option<Violation>,
    /// The last steps, for the report of a violation.
    pub steps: VecDeque<String>,
    /// The writes of scales by Plimsoll.
    pub writes: u64,
    /// A digest of all changes of scales.
    pub digest: u64,
}

/// How long a cluster with a sound replica may be without a leader: a Lease expires after 15 s, a candidate waits
/// twice as long for another one that reaches Prometheus, and tries every few seconds.
const TAKEN_OVER: Millis = 60 * SECOND;

/// How much later than it was made a change may be dated: a write that was given up is dated when a read has
/// seen it.
const DATED_LATE: Millis = 25 * SECOND;

/// How many steps a report shows.
const STEPS: usize = 60;

impl Oracles {
    /// Nothing was seen yet.
    pub fn new(base: i64, scales_to_zero: bool, cpu_requests: [i64; WORKLOADS]) -> Self {
        let record = |cpu_request| Record { cpu_request, ..Record::default() };
        Self {
            base,
            scales_to_zero,
            records: cpu_requests.into_iter().map(record).collect(),
            replicas: (0..REPLICAS).map(|_| ReplicaRecord::new()).collect(),
            holder: None,
            acquisitions: VecDeque::new(),
            unled_since: None,
            frozen: Timeline::default(),
            checkpoints: VecDeque::new(),
            last_checkpoints: None,
            exact: exact::Exact::default(),
            counts: Counts::new(),
            violation: None,
            steps: VecDeque::new(),
            writes: 0,
            digest: 0,
        }
    }

    /// Notes a step for the report.
    pub fn step(&mut self, at: Millis, text: impl std::fmt::Display) {
        if self.steps.len() == STEPS {
            self.steps.pop_front();
        }
        self.steps.push_back(format!("{} {text}", time(at)));
    }

    /// Reports a violation, unless there was one.
    pub fn violate(&mut self, oracle: Oracle, at: Millis, text: String) {
        if self.violation.is_none() {
            self.step(at, format_args!("VIOLATION of {oracle:?}: {text}"));
            self.violation = Some(Violation { oracle, at, text });
        }
    }

    /// Counts a look that is of no workload, or for which no condition of the oracle had to hold.
    pub fn checked(&mut self, oracle: Oracle) {
        self.counts.entry(oracle).or_default().checked += 1;
    }

    /// Counts a look at a workload while the oracle's condition held.
    pub fn checked_of(&mut self, oracle: Oracle, workload: usize) {
        let count = self.counts.entry(oracle).or_default();
        count.checked += 1;
        count.of[workload] += 1;
    }

    /// Counts a write for a workload that was wanted and withheld.
    pub fn withheld_of(&mut self, oracle: Oracle, workload: usize) {
        let count = self.counts.entry(oracle).or_default();
        count.withheld += 1;
        count.of[workload] += 1;
    }

    /// The wall clock of the cluster.
    pub fn wall(&self, at: Millis) -> i64 {
        self.base + at
    }

    /// A replica acquired the Lease, or released it.
    pub fn lease_held(&mut self, at: Millis, holder: Option<usize>) {
        if self.holder != holder {
            self.step(at, format_args!("the Lease is held by {holder:?}"));
            self.holder = holder;
            if let Some(holder) = holder {
                self.replicas[holder].acquired = Some(at);
                self.acquisitions.push_back((at, holder));
            }
        }
    }

    /// A replica has written something else than a scale: what it had begun to write when another one acquired the Lease
    /// may still come.
    pub fn written(&mut self, at: Millis, by: usize, what: &str) {
        self.checked(Oracle::OneWriter);
        let acquired = self.replicas[by].acquired;
        let mut others = self.acquisitions.iter().filter(|(_, other)| *other != by);
        let is_over = |since: Millis| Some(since) > acquired && since < at - record::LATE;
        if self.holder != Some(by) && others.any(|(since, _)| is_over(*since)) {
            let text =
                format!("replica {by} writes {what}, the Lease is held by {:?}", self.holder);
            self.violate(Oracle::OneWriter, at, text);
        }
    }

    /// A checkpoint was written.
    pub fn checkpoint_written(&mut self, at: Millis, by: usize) {
        self.written(at, by, "a checkpoint");
        self.checkpoints.push_back((at, by));
        if self.checkpoints.len() > 200 {
            self.checkpoints.pop_front();
        }
    }

    /// The scale of a workload was changed, by a replica of Plimsoll or by another writer.
    pub fn scale_changed(
        &mut self,
        at: Millis,
        workload: usize,
        by: Option<usize>,
        change: (i32, i32),
    ) {
        let (from, to) = change;
        let name = NAMES[workload];
        for part in [at, workload as i64, by.map_or(-1, |by| by as i64), i64::from(to)] {
            self.digest =
                (self.digest ^ part as u64).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
        }
        match by {
            Some(by) => {
                self.step(at, format_args!("{name}: {from} -> {to} by replica {by}"));
                self.writes += 1;
                self.check_write(at, workload, by, change);
                self.check_exact_write(at, workload, to);
            }
            None => self.step(at, format_args!("{name}: {from} -> {to} by hand")),
        }
        let record = &mut self.records[workload];
        if by.is_some() {
            (record.slept, record.slept_in_doubt, record.scaled) = (to == 0, false, true);
        }
        record.replicas.set(at, Some(to));
        record.slept_in_doubt |= record.slept && to > 0;
        record.changed = at;
        record.changes.push_back(Change { at, from, to, by });
        record.due_since = None;
        if by.is_none() {
            record.undisturbed_since = at;
        }
    }

    /// The autoscaler of a workload was created, changed or deleted.
    pub fn spec_changed(&mut self, at: Millis, workload: usize, spec: Option<SharedSpec>) {
        let record = &mut self.records[workload];
        record.undisturbed_since = at;
        record.due_since = None;
        let uid = |spec: &Option<SharedSpec>| spec.as_ref().map(|spec| spec.uid.clone());
        if record.specs.now().and_then(uid) != uid(&spec) {
            // Only its own status says that an autoscaler scaled to zero, and its history is its own.
            (record.slept, record.slept_in_doubt) = (false, false);
            record.scaled = false;
            record.reported = None;
            record.changes.clear();
            record.spans.clear();
            record.created = spec.as_ref().map(|_| at);
        }
        if spec.as_ref().is_some_and(|spec| spec.api.mode == Mode::Paused) {
            // What was recommended does not apply to replicas that the owner may choose meanwhile.
            record.spans.clear();
        }
        record.specs.set(at, spec);
    }

    /// A replica wrote the status of an autoscaler: it must not be of an earlier object, or of another time.
    pub fn status_written(
        &mut self,
        at: Millis,
        workload: usize,
        by: usize,
        (before, status): (Option<&Value>, &Value),
    ) {
        self.checked(Oracle::Status);
        self.written(at, by, "a status");
        let time = |status: &Value| status["lastScaleTime"].clone();
        let is_reported = before.is_some_and(|before| time(before) != time(status));
        let record = &self.records[workload];
        // One whose Lease was taken by force finds that out within seconds.
        let leads = self.holder == Some(by) && self.replicas[by].lag(at) == LAG;
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let reasons: Vec<&str> =
            conditions.filter_map(|condition| condition["reason"].as_str()).collect();
        let is_off = status["currentMetrics"].as_array().is_some_and(|all| !all.is_empty())
            && reasons.contains(&"ScalingDisabled");
        let lag = record::TROUBLED_LAG + LAG;
        let recent = record.changes.back().is_some_and(|change| change.at > at - lag);
        // What is paused, can't be read, or is another executor's shows what was before: the one of the HPAs that Plimsoll
        // writes is not simulated, so they have no status.
        let is_paused = record.specs.now().is_none_or(|spec| {
            spec.as_ref().is_none_or(|spec| {
                spec.api.mode == Mode::Paused
                    || spec.api.executor != plimsoll::crd::Executor::Embedded
            })
        });
        let is_current = leads
            && !is_paused
            && !reasons.contains(&"FailedGetScale")
            && self.replicas[by].lags(at).scale == record::FRESH;
        let fault = if !status["lastScaleTime"].is_null() && !record.scaled {
            "it has a lastScaleTime, and this autoscaler has scaled nothing"
        } else if is_reported && leads && !record.may_report(by, self.replicas[by].acquired) {
            "its lastScaleTime is of a time before that of another replica"
        } else if is_reported
            && leads
            && !self.is_of_a_change(at, workload, &status["lastScaleTime"])
        {
            "its lastScaleTime is not that of a change"
        } else if is_current && !record.had(at - record::SLOW, at, &status["currentReplicas"]) {
            "there were not so many replicas"
        } else if is_off {
            "it shows metrics, and reads none"
        } else if reasons.contains(&"ScaledToZero") && !record.slept && !recent {
            "it says that the workload was scaled to zero"
        } else if reasons.contains(&"AmbiguousSelector")
            && self.replicas[by].lag(at) == LAG
            && self.replicas[by].lags(at).scale == record::FRESH
            // The HPA of an object before may not have been deleted yet.
            && record.created.is_some_and(|created| created < at - record::LATE)
            && !record.ambiguous.during(at - lag, at).any(|ambiguous| *ambiguous)
        {
            "it says that the selector is ambiguous"
        } else {
            if is_reported {
                self.records[workload].reported = Some((at, by));
            }
            return;
        };
        let text =
            format!("{}: a status by replica {by} is wrong: {fault}: {status}", NAMES[workload]);
        self.violate(Oracle::Status, at, text);
    }

    /// Whether a time is that of a change by Plimsoll, by the wall clock of whoever made it.
    fn is_of_a_change(&self, at: Millis, workload: usize, time: &Value) -> bool {
        let time = time.as_str().and_then(|time| time.parse::<jiff::Timestamp>().ok());
        let Some(time) = time.map(jiff::Timestamp::as_second) else { return false };
        let changes = self.records[workload].changes.iter();
        let mut walls =
            changes.filter_map(|change| Some((change.at, change.by?))).flat_map(|(made, by)| {
                let offsets = self.replicas[by].offsets(made - LAG, at);
                offsets.into_iter().map(move |offset| self.base + made + offset)
            });
        // It shows whole seconds, and a change is dated when its response is there.
        walls.any(|wall| {
            (wall - SECOND).div_euclid(SECOND) <= time && time <= (wall + DATED_LATE) / SECOND
        })
    }

    /// Targets were scraped: looks at what was decided, and not decided, since the last scrape.
    pub fn scraped(&mut self, at: Millis) {
        self.check_led(at);
        self.check_exact(at);
        for workload in 0..WORKLOADS {
            self.close_span(at, workload);
            self.check_in_time(at, workload);
            self.count_left_alone(at, workload);
            self.records[workload].forget(at);
        }
        for replica in &mut self.replicas {
            replica.trouble.forget(at - record::MEMORY);
            replica.views.forget(at - record::MEMORY);
            replica.unanswered.forget(at - record::MEMORY);
            replica.offset.forget(at - record::MEMORY);
        }
        self.frozen.forget(at - record::MEMORY);
        while self.acquisitions.front().is_some_and(|(acquired, _)| *acquired < at - record::MEMORY)
        {
            self.acquisitions.pop_front();
        }
    }

    /// While a replica is sound, one that runs holds the Lease.
    fn check_led(&mut self, at: Millis) {
        let holder = self.holder.map(|holder| &self.replicas[holder]);
        if holder.is_some_and(|holder| holder.alive_since.is_some()) {
            self.unled_since = None;
            return;
        }
        let since = *self.unled_since.get_or_insert(at);
        if !self.replicas.iter().any(|replica| replica.is_sound(at - TAKEN_OVER, at)) {
            return;
        }
        self.checked(Oracle::InTime);
        if at - since > TAKEN_OVER {
            let text = format!("nobody leads since {}", time(since));
            self.violate(Oracle::InTime, at, text);
        }
    }

    /// The proposals of all evaluations that there may have been in a time.
    fn proposals_in(&self, workload: usize, from: Millis, at: Millis) -> record::Hull {
        let record = &self.records[workload];
        let lag = self.replicas.iter().map(|one| one.lag(at)).max().unwrap_or(LAG);
        let offsets: Vec<i64> =
            self.replicas.iter().flat_map(|replica| replica.offsets(from - lag, at)).collect();
        let lags = record::Lags::all(lag + SCRAPE);
        let lags = record::Lags { metrics: lags.metrics.min(record::SLOW + SCRAPE), ..lags };
        let mut hull = record::Hull::default();
        // Those before an edit and after it: a replica whose watches are behind still goes by the old bounds.
        let uid = record.specs.now().and_then(Option::as_ref).map(|spec| &spec.uid);
        let specs = record.specs.during(from - lag, at).flatten();
        for spec in specs.filter(|spec| uid.is_none_or(|uid| *uid == spec.uid)) {
            for replicas in record.replicas.during(from - lag, at).flatten() {
                let one = record.hull(spec, (at, lags), *replicas, (self.base, &offsets));
                hull.may_fail |= one.may_fail;
                if let Some((low, high)) = one.range {
                    hull.add(Some(low));
                    hull.add(Some(high));
                }
            }
        }
        hull
    }

    /// Notes the proposals of the time since the last scrape.
    fn close_span(&mut self, at: Millis, workload: usize) {
        let from = at - SCRAPE;
        let record = &self.records[workload];
        let sound: [bool; REPLICAS] =
            std::array::from_fn(|replica| self.replicas[replica].is_sound(from - 90 * SECOND, at));
        let answered = std::array::from_fn(|replica| self.replicas[replica].is_answered(from, at));
        let evaluated = [false; REPLICAS];
        let mut span = Span { from, proposals: None, may_fail: false, answered, evaluated };
        let specs: Vec<_> = record.specs.during(from, at).cloned().collect();
        let hull = self.proposals_in(workload, from, at);
        (span.proposals, span.may_fail) = (hull.range, hull.may_fail);
        if let [Some(spec)] = &specs[..] {
            let left_alone = spec.api.mode == Mode::Paused
                || spec.api.executor != plimsoll::crd::Executor::Embedded
                || record.ambiguous.during(from - LAG, at).any(|ambiguous| *ambiguous)
                // The HPA of the object before may not have been collected yet.
                || record.created.is_some_and(|created| created > from - MINUTE);
            for (replica, evaluated) in span.evaluated.iter_mut().enumerate() {
                *evaluated = !hull.may_fail && !left_alone && sound[replica];
            }
        }
        self.records[workload].spans.push_back(span);
    }
}

/// A time as a report shows it: days, and the time of the day.
pub fn time(at: Millis) -> String {
    let (days, rest) = (at.div_euclid(86_400_000), at.rem_euclid(86_400_000));
    let (hours, minutes) = (rest / 3_600_000, rest / 60_000 % 60);
    format!("day {days} {hours:02}:{minutes:02}:{:02}.{:03}", rest / 1000 % 60, rest % 1000)
}
