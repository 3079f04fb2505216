//! How the decisions for an observed HPA agree with those of kube-controller-manager.

use super::changes::{constraint, name_of, why};
use super::words::{clock, counted, date, number, parsed, span};
use crate::ledger::api::{ApiObserved, Decision, Metric};
use crate::ledger::{parse_time, time};
use crate::time::UnixMillis;
use serde_json::{Value, json};
use std::collections::VecDeque;

/// One of two decides up to a period later, and its status is seen after that: so many evaluations in a row may differ
/// if each of both has what the other decided, before or after that.
const MAX_APART: u64 = 2;
/// How long after a decision the next one may be to be seen with it, in ms.
const GAP: i64 = 300_000;
/// The age of a sample from which on it may be why two measure different values, in ms.
const OLD: i64 = 30_000;

/// Equal decisions in a row, side by side with kube-controller-manager's.
#[derive(Clone, Debug)]
struct Seen {
    ours: i32,
    kcm: i32,
    count: u64,
    /// The decision, if both are not the same.
    differing: Option<Box<Decision>>,
}

/// The decisions for one HPA and those of kube-controller-manager.
#[derive(Clone, Debug, Default)]
pub struct Agreement {
    /// The evaluations in which both decided, and those in which both desired the same replicas.
    pub decisions: u64,
    pub equal: u64,
    /// Those of them in which one of both was a period earlier.
    pub apart: u64,
    /// In how many only one of both could decide.
    pub undecided: u64,
    pub failed: u64,
    /// The first decision that differs, and for how many evaluations it did.
    pub difference: Option<(Box<Decision>, u64)>,
    first: Option<UnixMillis>,
    last: UnixMillis,
    /// The latest ones; those from `judged` on are not counted yet.
    window: VecDeque<Seen>,
    judged: usize,
}

impl Agreement {
    /// Takes the next decision.
    pub fn push(&mut self, decision: Decision) {
        let Some(observed) = &decision.observed else { return };
        let begin = parse_time(&decision.first_time).unwrap_or_default();
        if self.first.is_some() && begin - self.last > GAP {
            self.close();
        }
        self.first.get_or_insert(begin);
        self.last = parse_time(&decision.last_time).unwrap_or_default();
        let count = decision.count;
        match (decision.desired_replicas, observed.desired_replicas) {
            (_, None) => {
                self.close();
                self.undecided += count;
            }
            (None, Some(_)) => {
                self.close();
                self.failed += count;
                self.decisions += count;
                self.difference.get_or_insert((Box::new(decision), count));
            }
            (Some(ours), Some(kcm)) => {
                let differing = (ours != kcm).then(|| Box::new(decision));
                self.window.push_back(Seen { ours, kcm, count, differing });
                // Two before and two after tell of one.
                while self.window.len() - self.judged > 2 {
                    self.judge();
                }
            }
        }
    }

    /// There are no more decisions. The last few that differ are not counted: the other may yet decide so.
    pub fn finish(&mut self) {
        while self.window.len() > self.judged
            && self
                .window
                .back()
                .is_some_and(|last| last.differing.is_some() && last.count <= MAX_APART)
        {
            self.window.pop_back();
        }
        self.close();
    }

    /// There is no later decision that the last ones are to be seen with.
    fn close(&mut self) {
        while self.judged < self.window.len() {
            self.judge();
        }
        self.window.clear();
        self.judged = 0;
    }

    fn judge(&mut self) {
        let is_apart = self.is_apart(self.judged);
        let seen = &mut self.window[self.judged];
        self.decisions += seen.count;
        match seen.differing.take() {
            None => self.equal += seen.count,
            Some(_) if is_apart => {
                self.equal += seen.count;
                self.apart += seen.count;
            }
            Some(decision) => {
                self.difference.get_or_insert((decision, seen.count));
            }
        }
        self.judged += 1;
        if self.judged > 2 {
            self.window.pop_front();
            self.judged -= 1;
        }
    }

    /// Whether one of both only decides earlier than the other.
    fn is_apart(&self, index: usize) -> bool {
        let one = &self.window[index];
        if one.count > MAX_APART {
            return false;
        }
        let at = |index: Option<usize>| self.window.get(index?);
        // What is between two is short, or they are not near.
        let beyond = |next: Option<usize>, at_next: Option<&Seen>| {
            at_next.filter(|between| between.count <= MAX_APART).and_then(|_| at(next))
        };
        let [previous, next] = [at(index.checked_sub(1)), at(index.checked_add(1))];
        let before = [previous, beyond(index.checked_sub(2), previous)];
        let after = [next, beyond(index.checked_add(2), next)];
        let near = || before.iter().chain(&after).flatten();
        // A spike of one of both that the other never has is a difference.
        near().any(|seen| seen.kcm == one.ours) && near().any(|seen| seen.ours == one.kcm)
    }

    /// Whether nothing was compared.
    pub fn is_empty(&self) -> bool {
        self.decisions == 0
    }

    /// Whether all that was compared is equal.
    pub fn is_whole(&self) -> bool {
        self.decisions > 0 && self.equal == self.decisions
    }

    /// The share of equal decisions in percent, rounded down to a tenth.
    pub fn percent(&self) -> f64 {
        let thousandths = (self.equal * 1000).checked_div(self.decisions);
        thousandths.unwrap_or_default() as f64 / 10.0
    }

    /// When the first difference was.
    pub fn difference_at(&self) -> Option<UnixMillis> {
        parse_time(&self.difference.as_ref()?.0.first_time)
    }

    /// The lines about an HPA, with the events of kube-controller-manager around the first difference.
    pub fn text(&self, name: &str, events: &[String]) -> String {
        let Self { decisions, equal, apart, undecided, failed, .. } = *self;
        let age = span(self.last - self.first.unwrap_or(self.last));
        if decisions == 0 {
            let why = match undecided {
                0 => "no decision was made beside kube-controller-manager's".to_owned(),
                _ => format!("kube-controller-manager could not decide in {age}"),
            };
            return format!("{name}: nothing to compare: {why}\n");
        }
        let (of, all) = (grouped(equal), grouped(decisions));
        let mut text =
            format!("{name}: {of} of {all} decisions equal in {age} ({} %)\n", self.percent());
        let mut say = |line: String| text += &format!("  {line}\n");
        if apart > 0 {
            say(format!("{} of them a sync period apart", grouped(apart)));
        }
        if undecided > 0 {
            let count = grouped(undecided);
            say(format!("{count} more not compared: kube-controller-manager could not decide"));
        }
        if failed > 0 {
            say(format!("in {} Plimsoll could not decide", grouped(failed)));
        }
        let Some((decision, count)) = &self.difference else { return text };
        let at = parse_time(&decision.first_time).unwrap_or_default();
        let count = counted(i64::try_from(*count).unwrap_or(i64::MAX), "decision");
        say(format!("first difference at {}, for {count}:", date(at)));
        let observed = decision.observed.clone().unwrap_or_default();
        let [values, conditions] = [&observed.values, &observed.conditions]
            .map(|text| text.clone().filter(|text| !text.is_empty()));
        say(format!(
            "  kube-controller-manager {}, measured {}: {}",
            replicas(observed.desired_replicas),
            values.unwrap_or_else(|| "nothing".to_owned()),
            conditions.unwrap_or_else(|| "no conditions".to_owned())
        ));
        say(format!(
            "  Plimsoll {} ({}): {}",
            replicas(decision.desired_replicas),
            decision.reason,
            why(decision)
        ));
        say(format!("  cause: {}", cause(decision)));
        events.iter().for_each(|event| say(format!("  event: {event}")));
        text
    }

    /// The comparison for programs.
    pub fn json(&self, namespace: &str, name: &str, events: &[String]) -> Value {
        let difference = self.difference.as_ref().map(|(decision, count)| {
            json!({"decisions": count, "cause": cause(decision), "events": events, "decision": decision})
        });
        json!({
            "namespace": namespace, "name": name, "decisions": self.decisions, "equal": self.equal,
            "percent": self.percent(), "periodApart": self.apart, "notDecidedByKubeControllerManager": self.undecided,
            "notDecidedByPlimsoll": self.failed, "from": self.first.map(time), "to": self.first.map(|_| time(self.last)),
            "firstDifference": difference,
        })
    }
}

fn replicas(count: Option<i32>) -> String {
    count.map_or_else(|| "no decision".to_owned(), |count| count.to_string())
}

/// A number with a comma between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<&str> = groups.filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// Why two decided differently, as far as their accounts tell.
fn cause(decision: &Decision) -> String {
    if decision.desired_replicas.is_none() {
        let why = decision.message.as_deref().unwrap_or("it does not say why");
        return format!("Plimsoll could not decide: {why}");
    }
    let ApiObserved { values, conditions, .. } = decision.observed.clone().unwrap_or_default();
    let age = |text: &str| text.strip_suffix('s')?.parse::<f64>().ok();
    let oldest = decision.metrics.iter().filter_map(|metric| metric.newest_sample_age.as_deref());
    let oldest = oldest.filter_map(age).map(|seconds| (seconds * 1000.0) as i64).max();
    let old = oldest.filter(|age| *age >= OLD);
    let old = old.map(|age| format!("; the newest sample of Plimsoll's was {} old", span(age)));
    let own = ["PodsNotKnown", "MetricsWereAway", "RollingOut"];
    if let Some(held) = decision.constraints.iter().rfind(|one| own.contains(&&*one.kind)) {
        let why = constraint(held, decision);
        return format!("{}, which kube-controller-manager does not wait for: {why}", held.kind);
    }
    let values = values.unwrap_or_default();
    let measured: Vec<(&Metric, &str)> = decision.metrics.iter().zip(values.split(", ")).collect();
    let differ = |(metric, theirs): &(&Metric, &str)| {
        format!(
            "different values of {}: kube-controller-manager {}, Plimsoll {}",
            name_of(metric, decision),
            number(theirs),
            number(metric.value.as_deref().unwrap_or("unknown")),
        )
    };
    if let Some(of) = asks_otherwise(decision, &measured) {
        return format!("{}{}", differ(of), old.unwrap_or_default());
    }
    let limits = ["ScaleUpLimit", "ScaleDownLimit", "ScaleUpStabilized", "ScaleDownStabilized"];
    let conditions = conditions.unwrap_or_default();
    let theirs = limits.iter().find(|limit| conditions.contains(&format!("({limit})")));
    let mut ours = decision.constraints.iter().map(|one| one.kind.as_str());
    let ours = ours.rfind(|kind| limits.contains(kind));
    if theirs.copied() != ours {
        return format!(
            "different limits: kube-controller-manager {}, Plimsoll {}; after a restart of either, its \
             memory of earlier recommendations and changes is not the other's",
            theirs.unwrap_or(&"none"),
            ours.unwrap_or("none")
        );
    }
    if let Some(old) = old {
        return old.trim_start_matches("; ").to_owned();
    }
    let uncertain = decision.metrics.iter().any(|one| one.pods.unready + one.pods.missing > 0);
    if uncertain {
        return "pods were not ready or had no sample, and each may have seen others so".to_owned();
    }
    match measured.iter().find(|(ours, theirs)| parsed(theirs) != value(ours)) {
        Some(of) => format!("not known, within the same limits; {}", differ(of)),
        None => "not known: both measured the same, within the same limits".to_owned(),
    }
}

fn value(metric: &Metric) -> Option<f64> {
    metric.value.as_deref().and_then(parsed)
}

/// Why the values of both ask for other replicas, each metric with kube-controller-manager's value: the metric that asks for
/// most, or one that only one of both has. What asks for less on both sides decides nothing.
fn asks_otherwise<'a>(
    decision: &Decision,
    measured: &'a [(&'a Metric, &'a str)],
) -> Option<&'a (&'a Metric, &'a str)> {
    let most = |value: fn(&(&Metric, &str)) -> Option<f64>| {
        let all = measured.iter();
        let all = all.filter_map(|of| Some((asked(decision, of.0, value(of)?)?, of)));
        all.reduce(|most, next| if next.0 > most.0 { next } else { most })
    };
    let both = most(|(metric, _)| value(metric)).zip(most(|(_, theirs)| parsed(theirs)));
    if let Some((ours, theirs)) = both
        && ours.0 != theirs.0
    {
        return Some(if ours.0 > theirs.0 { ours.1 } else { theirs.1 });
    }
    let is_missing = |(metric, theirs): &&(&Metric, &str)| {
        !theirs.is_empty() && value(metric).is_some() != parsed(theirs).is_some()
    };
    measured.iter().find(is_missing)
}

/// The replicas that a value of a metric asks for: the present ones within the tolerance, or else a whole number of pods.
fn asked(decision: &Decision, metric: &Metric, value: f64) -> Option<f64> {
    let target = metric.target.as_deref().and_then(parsed).filter(|target| *target > 0.0);
    let ratio = value / target.filter(|_| !metric.is_total())?;
    let basis = &decision.basis;
    let within = 1.0 - basis.scale_down_tolerance..=1.0 + basis.scale_up_tolerance;
    let pods = decision.current_replicas.map_or(1.0, f64::from);
    Some(if within.contains(&ratio) { pods } else { (ratio * pods).ceil() })
}

/// What all comparisons come to.
pub fn total<'a>(all: impl Iterator<Item = &'a Agreement> + Clone) -> String {
    let count = |is: fn(&&Agreement) -> bool| all.clone().filter(is).count();
    let whole = count(|one| one.is_whole());
    let empty = count(|one| one.is_empty());
    let [equal, decisions] = all
        .clone()
        .fold([0, 0], |[equal, decisions], one| [equal + one.equal, decisions + one.decisions]);
    let hpas = all.count();
    format!(
        "{}: {whole} equal in all decisions, {} differ, {empty} not compared; {} of {} decisions equal\n",
        counted(hpas as i64, "HPA"),
        hpas - whole - empty,
        grouped(equal),
        grouped(decisions)
    )
}

/// An event of kube-controller-manager in a line.
pub fn event_line(at: UnixMillis, reason: &str, message: &str) -> String {
    format!("{} {reason}: {message}", clock(at, at))
}
