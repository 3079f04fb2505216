//! The invariants of each scale that Plimsoll writes, checked on the proxy's log of updates and a
//! separate watch of the Deployments. Each invariant counts how often it was checked: one that never
//! was proves nothing.

use crate::history::{History, MAX_AGE, Step};
use crate::workload::{POLICY, WINDOW, Workload};
use bed::proxy::ScaleUpdate;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const RULES: [&str; 7] = [
    "within the limits",
    "as the metric asks",
    "nothing without metrics",
    "nothing while frozen",
    "nothing once deleted",
    "as policies allow",
    "not before the window ends",
];

/// The invariants: how often each was checked, and the violations.
pub struct Judge {
    pub checks: BTreeMap<&'static str, usize>,
    pub violations: Vec<String>,
}

impl Default for Judge {
    fn default() -> Self {
        Self { checks: RULES.map(|rule| (rule, 0)).into(), violations: Vec::new() }
    }
}

impl Judge {
    fn rule(&mut self, rule: &'static str, what: &str, holds: bool) {
        *self.checks.get_mut(rule).expect("a rule of the list") += 1;
        if !holds {
            self.violations.push(format!("{rule}: {what}"));
        }
    }

    /// Checks a workload whose scale was not written, although a faulty controller would have.
    pub fn check_unchanged(&mut self, workload: &Workload, history: &History, replicas: i64) {
        let (at, name) = (Instant::now(), &workload.name);
        if workload.removed.is_some_and(|removed| removed + MAX_AGE < at) {
            return self.rule("nothing once deleted", name, true);
        }
        let wanted = workload.settles_at() != replicas && replicas <= workload.max.now();
        if wanted && history.is_blind(at) {
            self.rule("nothing without metrics", name, true);
        }
        if wanted && history.is_frozen(at) {
            self.rule("nothing while frozen", name, true);
        }
    }

    /// A step that was written, after those before it.
    pub fn step(&mut self, workload: &Workload, history: &History, step: &Step) {
        let Step { at, from, to } = *step;
        let what = format!("{} went from {from} to {to}", workload.name);
        let view = at - history.max_age(at);
        if let Some(removed) = workload.removed {
            return self.rule("nothing once deleted", &what, removed >= view);
        }
        let (least_max, most_max) = workload
            .max
            .within(view, at)
            .fold((i64::MAX, i64::MIN), |(least, most), max| (least.min(max), most.max(max)));
        self.rule("within the limits", &what, (1..=most_max).contains(&to));
        let to_the_limit = from > least_max && to <= from;
        self.rule("nothing while frozen", &what, !history.is_frozen(at));
        if history.is_blind(at) {
            self.rule("nothing without metrics", &what, to_the_limit);
        }
        let (low, high) = workload
            .shows
            .within(view, at)
            .fold((true, true), |(low, high), shows| (low && shows < 10, high && shows > 10));
        if low || high {
            let right = if low { to < from } else { to > from };
            self.rule("as the metric asks", &what, right || to_the_limit);
        }
        if workload.policy && to > from {
            let (added, period) = POLICY;
            // The period begins when the scale is written; the proxy sees the request a little earlier.
            let since = at - (period - Duration::from_millis(500));
            let earlier = workload.steps.iter().filter(|step| step.at > since);
            let change: i64 = earlier.map(|step| step.to - step.from).sum();
            self.rule("as policies allow", &what, change + (to - from) <= added);
        }
        let steady = at - (WINDOW + MAX_AGE);
        let known = !history.blind.touch(steady, at) && !history.faulty.touch(steady, at);
        if to < from && !to_the_limit && known && workload.made < steady {
            // The last higher recommendation is at most a round older than the change.
            let since = at - (WINDOW - Duration::from_secs(2));
            let low = workload.shows.within(since, at).all(|shows| shows < 10);
            self.rule("not before the window ends", &what, low);
        }
    }
}

/// The changes of replicas that the watch has seen.
#[derive(Default)]
pub struct Seen {
    deployments: BTreeMap<String, Changes>,
}

/// The changes of one Deployment.
struct Changes {
    /// Its replicas now.
    replicas: i64,
    /// Each change of its replicas by resource version: before and after.
    by_version: BTreeMap<String, (i64, i64)>,
}

impl Seen {
    pub fn put(&mut self, name: &str, version: &str, replicas: i64) {
        let new = || Changes { replicas, by_version: BTreeMap::new() };
        let seen = self.deployments.entry(name.to_owned()).or_insert_with(new);
        let before = std::mem::replace(&mut seen.replicas, replicas);
        if before != replicas {
            seen.by_version.insert(version.to_owned(), (before, replicas));
        }
    }

    pub fn replicas(&self, name: &str) -> Option<i64> {
        self.deployments.get(name).map(|seen| seen.replicas)
    }

    /// The change that an update of a scale made, if the watch has seen it.
    pub fn step(&self, write: &ScaleUpdate) -> Option<Step> {
        let (from, to) = *self.deployments.get(&write.name)?.by_version.get(&write.version)?;
        Some(Step { at: write.at, from, to })
    }
}
