//! The rules of each write of a scale. They are held against what passed the proxies of the replica
//! that wrote, so that nothing has to be forgiven after a fault. Each rule counts how often it had
//! something to say: a write that it allowed, or one that was due and was withheld. A rule that
//! never had proves nothing.

use crate::history::{Spans, Step};
use crate::settings::{NAMES, TARGET, WINDOW};
use crate::view::{LeaseSeen, Reading, ScaleRead, View, Write};
use crate::workload::Workload;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How old the values of a decision may be when the scale is read for its write: an answer is used
/// for `--sample-max-age`, which is 1 s, from its query on, which may take `--prometheus-timeout`,
/// which is 1 s here; and half a second of Plimsoll's own on a busy machine.
pub const VALUES: Duration = Duration::from_millis(2_500);
/// From an event of a watch going out to its being looked at, and from the Lease being read to the
/// write that it allows being sent: Plimsoll's own work alone, on a busy machine.
const WORK: Duration = Duration::from_millis(500);
/// How much earlier than its values a recommendation may be dated: a decision is dated before it
/// asks Prometheus, which may take `--prometheus-timeout`.
const ASKING: Duration = Duration::from_secs(1);

/// The rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    OnThePresentScale,
    AsTheLeaseSays,
    OneWriter,
    WithinTheLimits,
    AsTheMetricAsks,
    NothingWithoutMetrics,
    NothingWhileFrozen,
    NothingForWhatIsGone,
    NothingKeptOfWhatIsGone,
    AsPoliciesAllowUp,
    AsPoliciesAllowDown,
    NotBeforeTheWindowEnds,
    ToZero,
    FromZero,
    ByEachReplica,
    WatchExpired,
}

const RULES: [(Rule, &str); 16] = [
    (Rule::OnThePresentScale, "on the scale as it is"),
    (Rule::AsTheLeaseSays, "as the Lease says"),
    (Rule::OneWriter, "one writer at a time"),
    (Rule::WithinTheLimits, "within the limits"),
    (Rule::AsTheMetricAsks, "as the metric asks"),
    (Rule::NothingWithoutMetrics, "nothing without metrics"),
    (Rule::NothingWhileFrozen, "nothing while frozen"),
    (Rule::NothingForWhatIsGone, "nothing for what is gone"),
    (Rule::NothingKeptOfWhatIsGone, "nothing kept of what is gone"),
    (Rule::AsPoliciesAllowUp, "as policies allow, up"),
    (Rule::AsPoliciesAllowDown, "as policies allow, down"),
    (Rule::NotBeforeTheWindowEnds, "not before the window ends"),
    // What must have happened, and is no rule of a write.
    (Rule::ToZero, "went to zero"),
    (Rule::FromZero, "came back from zero"),
    (Rule::ByEachReplica, "each replica has written"),
    (Rule::WatchExpired, "watches expired, as events"),
];

/// What the judge needs to know beside the write.
pub struct Scene<'a> {
    pub views: &'a [View; 2],
    /// When each replica was stopped.
    pub stopped: &'a [Spans; 2],
    /// When each was started.
    pub started: [Instant; 2],
    /// When scaling was frozen.
    pub frozen: &'a Spans,
    /// When kube-apiserver or its watches failed.
    pub faulty: &'a Spans,
    /// The replicas of the Deployments.
    pub replicas: &'a Replicas,
}

impl Scene<'_> {
    /// The least that a decision on these values recommended, all of which are above the target: as
    /// many replicas as there were, as pods without a value count as idle; up to the maximum. The
    /// pods that have values, and the scale, may be those of some seconds before, and of longer while
    /// watches fail.
    fn asked(&self, workload: &Workload, reading: &Reading) -> i64 {
        let fault = self.faulty.first_within(reading.at - Duration::from_secs(30), reading.at);
        let before = fault.map_or(reading.at, |began| began.min(reading.at));
        let (from, to) = (before - Duration::from_secs(6), reading.at + Duration::from_secs(3));
        let least = self.replicas.least(&workload.name, from, to);
        least.min(reading.wanted()).min(workload.least_max)
    }
}

/// The replicas of the Deployments over time, by a watch past the proxies.
#[derive(Default)]
pub struct Replicas(BTreeMap<String, Vec<(Instant, i64)>>);

impl Replicas {
    pub fn put(&mut self, name: &str, replicas: i64) {
        let all = self.0.entry(name.to_owned()).or_default();
        if all.last().is_none_or(|(_, last)| *last != replicas) {
            all.push((Instant::now(), replicas));
        }
    }

    pub fn now(&self, name: &str) -> Option<i64> {
        Some(self.0.get(name)?.last()?.1)
    }

    /// The least within a range; 0 if it was not there for all of it.
    fn least(&self, name: &str, from: Instant, to: Instant) -> i64 {
        let all = self.0.get(name).map(Vec::as_slice).unwrap_or_default();
        let Some(first) = all.iter().rposition(|(at, _)| *at <= from) else { return 0 };
        let within = all[first..].iter().take_while(|(at, _)| *at <= to);
        within.map(|(_, replicas)| *replicas).min().unwrap_or(0)
    }
}

/// How often each rule had something to say, and where it was broken.
pub struct Judge {
    pub checks: BTreeMap<Rule, usize>,
    pub violations: Vec<String>,
    began: Instant,
    /// The version of a write that kube-apiserver was too busy for, and when it said so, by
    /// replica and workload.
    retried: BTreeMap<(usize, String), (String, Instant)>,
    /// Which replicas have written.
    writers: [bool; 2],
}

impl Default for Judge {
    fn default() -> Self {
        let checks = RULES.map(|(rule, _)| (rule, 0)).into();
        let (violations, retried) = (Vec::new(), BTreeMap::new());
        Self { checks, violations, began: Instant::now(), retried, writers: [false; 2] }
    }
}

/// A write, and what was known to the replica that made it.
struct Case<'a> {
    write: &'a Write,
    read: &'a ScaleRead,
    /// When the decision was made at the earliest.
    from: Instant,
    what: String,
    /// The maxima that the Autoscaler may have had by then.
    maxima: Vec<i64>,
    readings: Vec<Reading>,
}

impl Case<'_> {
    fn upwards(&self) -> bool {
        self.write.to > self.read.replicas
    }

    /// Whether it brings back within its limits a scale that was beyond them, for which no metric,
    /// window or policy counts.
    fn to_the_limit(&self) -> bool {
        self.maxima.iter().any(|max| self.read.replicas > *max && self.write.to == *max)
    }
}

/// When something was, in seconds of the run.
fn seconds(began: Instant, at: Instant) -> String {
    format!("{:.3} s", at.saturating_duration_since(began).as_secs_f64())
}

impl Judge {
    /// The name of a rule.
    pub fn name(rule: Rule) -> &'static str {
        let found = RULES.iter().find(|(one, _)| *one == rule);
        found.expect("each rule is in the list").1
    }

    /// Counts a rule that had something to say.
    pub fn rule(&mut self, rule: Rule, what: &str, holds: bool) {
        *self.checks.get_mut(&rule).expect("a rule of the list") += 1;
        if !holds {
            let at = self.began.elapsed().as_secs_f64();
            self.violations.push(format!("{at:.1} s: {}: {what}", Self::name(rule)));
        }
    }

    /// A write that is over, after those before it. `workload` has all of its earlier ones.
    pub fn write(&mut self, scene: &Scene<'_>, workload: &mut Workload, write: &Write) {
        let view = &scene.views[write.replica];
        let began = self.began;
        let what = |from: &str| {
            let by = NAMES[write.replica];
            let at = seconds(began, write.arrived);
            let answer = write.answered.map(|(at, status)| (seconds(began, at), status));
            format!("{by}: {} from {from} to {} at {at}, {answer:?}", write.name, write.to)
        };
        let read = view.read(&write.name, &write.version, write.arrived);
        self.rule(Rule::OnThePresentScale, &what("?"), read.is_some());
        let Some(read) = read else { return };
        let what = what(&read.replicas.to_string());
        let stopped = &scene.stopped[write.replica];
        // A process that is stopped meanwhile continues with what it knew before.
        let awake = |from: Instant| stopped.first_within(from, write.arrived).unwrap_or(from);
        let from = awake(read.arrived).min(read.arrived);
        // As much earlier as it takes to look at what it was told.
        let known = awake(from - WORK).min(from) - WORK;
        let maxima = view.maxima(&write.name, known, write.arrived);
        if workload.removed.is_some() || maxima.iter().all(Option::is_none) {
            self.rule(Rule::NothingForWhatIsGone, &what, maxima.iter().any(Option::is_some));
        }
        if let Some(gone) = workload.target_gone {
            self.rule(Rule::NothingForWhatIsGone, &what, read.answered <= gone);
        }
        let values = awake(from - VALUES).min(from) - VALUES;
        let readings = view.readings(&write.name, values, write.arrived);
        let maxima = maxima.into_iter().flatten().collect();
        let case = Case { write, read, from, what, maxima, readings };
        self.lease(scene, &case);
        if case.maxima.is_empty() {
            return;
        }
        let most = case.maxima.iter().max().copied().unwrap_or(0);
        let within = (workload.min()..=most).contains(&write.to);
        self.rule(Rule::WithinTheLimits, &case.what, within);
        self.metric(&case);
        let own = |step: &Step| {
            step.replica == write.replica && step.arrived > scene.started[write.replica]
        };
        workload.note_unanswered(read);
        self.policies(workload, &case, own);
        self.window(scene, workload, &case);
        self.note(workload, &case);
    }

    /// Whether the Lease allowed a write.
    fn lease(&mut self, scene: &Scene<'_>, case: &Case<'_>) {
        let Write { replica, arrived, .. } = *case.write;
        let is = |lease: &LeaseSeen, replica: usize| {
            lease.holder.split('_').next() == Some(NAMES[replica])
        };
        // Each write reads the Lease first. One that kube-apiserver was too busy for (429) is sent
        // again without: until then the Lease can't change hands, and a freeze waits for it.
        let since = scene.stopped[replica].first_within(case.from, arrived);
        let since = since.unwrap_or(arrived).min(arrived) - 2 * WORK;
        let again = self.retried.get(&(replica, case.write.name.clone()));
        let again = again.is_some_and(|(version, at)| {
            *version == case.write.version && arrived - *at < Duration::from_secs(10)
        });
        let own = scene.views[replica].leases.iter().rev();
        let mut own = own.filter(|lease| lease.is_read && lease.answered <= arrived);
        let says = own
            .next()
            .is_some_and(|lease| lease.answered >= since && is(lease, replica) && !lease.frozen);
        self.rule(Rule::AsTheLeaseSays, &case.what, says || again);
        // Whatever any replica knew of the Lease: the latest that kube-apiserver had answered.
        let all = scene.views.iter().flat_map(|view| &view.leases);
        let all = all.filter(|lease| lease.answered <= arrived);
        let latest = all.max_by_key(|lease| lease.version);
        let holds = latest.is_none_or(|lease| is(lease, replica));
        self.rule(
            Rule::OneWriter,
            &format!("{}, held by {:?}", case.what, latest.map(|lease| &lease.holder)),
            holds,
        );
        let frozen = scene.frozen.since().is_some_and(|since| since + 2 * WORK < arrived);
        if frozen && !again {
            self.rule(Rule::NothingWhileFrozen, &case.what, false);
        }
        if case.write.answered.is_some_and(|(_, status)| status == 429) {
            let key = (replica, case.write.name.clone());
            let until = case.write.answered.map_or(arrived, |(at, _)| at);
            self.retried.insert(key, (case.write.version.clone(), until));
        }
    }

    /// Whether the number follows from the values that were read.
    fn metric(&mut self, case: &Case<'_>) {
        let Case { readings, .. } = case;
        if readings.is_empty() {
            let holds = case.to_the_limit();
            return self.rule(Rule::NothingWithoutMetrics, &case.what, holds);
        }
        let values: Vec<(f64, f64, f64)> =
            readings.iter().map(|one| (one.sum, one.least, one.most)).collect();
        let what = || format!("{}, on sums, least and most {values:?}", case.what);
        let target = TARGET as f64;
        let (low, high) = (
            readings.iter().all(|reading| reading.most < target),
            readings.iter().all(|reading| reading.least > target),
        );
        if case.upwards() {
            // Pods without a value count as idle on the way up.
            let wanted = readings.iter().map(Reading::wanted).max().unwrap_or(0);
            self.rule(Rule::AsTheMetricAsks, &what(), !low && case.write.to <= wanted);
        } else {
            self.rule(Rule::AsTheMetricAsks, &what(), !high || case.to_the_limit());
        }
    }

    /// Whether the policies allowed as much.
    fn policies(&mut self, workload: &Workload, case: &Case<'_>, own: impl Fn(&Step) -> bool) {
        let Write { arrived, to, .. } = *case.write;
        let from = case.read.replicas;
        if case.to_the_limit() || from < workload.min() {
            return;
        }
        let up = case.upwards();
        let (rule, policies) = match up {
            true => (Rule::AsPoliciesAllowUp, workload.up),
            false => (Rule::AsPoliciesAllowDown, workload.down),
        };
        let (limit, counted) = policies.limit(up, from, arrived, &workload.steps, own);
        let holds = if up { to <= limit } else { to >= limit };
        // Where they have something to say: the change goes as far as they allow, or there was another
        // in their period.
        if counted || to == limit || !holds {
            let recent = workload.steps.iter().rev().take(4).map(|step| {
                let Step { replica, from, to, .. } = step;
                let answered = step.answered.map(|at| seconds(self.began, at));
                let arrived = seconds(self.began, step.arrived);
                format!("{}: {from} to {to} at {arrived}, {answered:?}", NAMES[*replica])
            });
            let recent: Vec<String> = recent.collect();
            let what = format!("{}, limit {limit}, after {recent:?}", case.what);
            self.rule(rule, &what, holds);
        }
    }

    /// Whether a way down waited for the window: this process read values within it that asked for
    /// more, and decided on them.
    fn window(&mut self, scene: &Scene<'_>, workload: &Workload, case: &Case<'_>) {
        let Write { replica, arrived, to, .. } = *case.write;
        if case.upwards() || case.to_the_limit() {
            return;
        }
        let view = &scene.views[replica];
        let recent =
            view.readings(&case.write.name, arrived - (WINDOW - ASKING), case.from - ASKING);
        // Of two readings in a row, between which a decision lies, as there is one each second.
        let mut pairs = recent.windows(2).filter(|pair| {
            let apart = pair[1].at - pair[0].at;
            let is_busy = pair.iter().all(|reading| reading.least > TARGET as f64);
            is_busy && apart > ASKING / 2 && apart < 3 * ASKING
        });
        let asked = pairs.find_map(|pair| {
            let asked = scene.asked(workload, &pair[0]).min(case.read.replicas);
            (asked > to).then_some((asked, pair[0]))
        });
        let asked = asked.map(|(asked, by)| (asked, seconds(self.began, by.at)));
        let what = format!("{}, asked for was {asked:?}", case.what);
        self.rule(Rule::NotBeforeTheWindowEnds, &what, asked.is_none());
    }

    /// Keeps a write for those after it.
    fn note(&mut self, workload: &mut Workload, case: &Case<'_>) {
        let &Write { replica, arrived, answered, to, .. } = case.write;
        let from = case.read.replicas;
        let step = |answered| Step { replica, arrived, answered, from, to };
        match answered {
            Some((at, 200..300)) => {
                workload.steps.push(step(Some(at)));
                match (from, to) {
                    (_, 0) => self.rule(Rule::ToZero, "", true),
                    (0, _) => self.rule(Rule::FromZero, "", true),
                    _ => {}
                }
                self.writers[replica] = true;
                if self.writers == [true; 2] {
                    self.rule(Rule::ByEachReplica, "", true);
                }
            }
            Some((_, 0..500)) => {}
            Some(_) | None => workload.unanswered.push(step(None)),
        }
    }
}
