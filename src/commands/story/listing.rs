//! The changes of an autoscaler's replicas as a list with a chart.

use super::changes::{Change, Changes, short_name, used};
use super::chart::{Point, Screen, chart, paint};
use super::tell::Subject;
use super::words::{clock, counted, date, number, parsed, span};
use crate::commands::table::{Align, table};
use crate::ledger::api::{Decision, Metric};
use crate::ledger::parse_time;
use crate::time::UnixMillis;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};

/// What is kept of the decisions of a span of time.
#[derive(Debug, Default)]
pub struct Listing {
    changes: VecDeque<Change>,
    /// The changes that are not kept any more.
    earlier: usize,
    finder: Changes,
    points: Vec<Point>,
    /// How many decisions there were, and by which metric each was made.
    decisions: u64,
    by: BTreeMap<usize, u64>,
    last: Option<Box<Decision>>,
}

/// The most changes that are kept, the newest ones, and those that are shown.
const MAX_CHANGES: usize = 5_000;
const MAX_SHOWN: usize = 30;

impl Listing {
    /// Takes the next decision, which begins within a span of time.
    pub fn push(&mut self, decision: &Decision, (from, to): (UnixMillis, UnixMillis)) {
        let [first, last] = [&decision.first_time, &decision.last_time]
            .map(|time| parse_time(time).unwrap_or_default());
        if first > to {
            return;
        }
        for change in self.finder.next(decision) {
            if (from..=to).contains(&change.at) {
                self.changes.push_back(change);
            }
        }
        if self.changes.len() > MAX_CHANGES {
            self.changes.pop_front();
            self.earlier += 1;
        }
        self.decisions += decision.count;
        let deciding = used(decision).or_else(|| decision.metrics.first());
        if let Some(metric) = deciding {
            *self.by.entry(metric.metric_index).or_default() += decision.count;
        }
        let value = |metric: &Metric| {
            let text = metric.max_value.as_deref().or(metric.value.as_deref());
            text.and_then(parsed)
        };
        let written = decision.desired_replicas.filter(|_| decision.carried_out.written);
        self.points.push(Point {
            first,
            last,
            value: deciding.and_then(value),
            target: deciding.and_then(|metric| metric.target.as_deref()).and_then(parsed),
            replicas: written.or(decision.current_replicas),
        });
        self.last = Some(Box::new(decision.clone()));
    }

    /// Whether there is no decision.
    pub fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    /// The list with a chart.
    pub fn text(
        &self,
        subject: &Subject,
        (from, to): (UnixMillis, UnixMillis),
        screen: Screen,
    ) -> String {
        let Subject { kind, namespace, name, target, .. } = subject;
        let target = target.as_ref().map(|target| format!(" ({target})")).unwrap_or_default();
        let changes = counted((self.changes.len() + self.earlier) as i64, "change");
        let (of, until) = (span(to - from), date(to));
        let head =
            format!("{kind} {namespace}/{name}{target}: {changes} in the {of} until {until}");
        let mut text = paint(&head, "1", screen.color) + "\n";
        let load = self.load().unwrap_or_default();
        text += &chart(&self.points, (from, to), &load, screen);
        if self.changes.is_empty() {
            let replicas = self.points.iter().rev().find_map(|point| point.replicas);
            let replicas = replicas.map_or_else(|| "?".to_owned(), |count| count.to_string());
            let decisions = counted(i64::try_from(self.decisions).unwrap_or(i64::MAX), "decision");
            return text + &format!("no change: {replicas} in all of {decisions}\n");
        }
        let hidden = self.earlier + self.changes.len().saturating_sub(MAX_SHOWN);
        if hidden > 0 {
            text += &format!("and {hidden} earlier ones: -o json has them\n");
        }
        text + &self.rows(to)
    }

    /// What the chart shows: the metric that decided most often.
    fn load(&self) -> Option<String> {
        let last = self.last.as_ref()?;
        let (index, _) = self.by.iter().max_by_key(|(_, count)| **count)?;
        let metric = last.metrics.iter().find(|metric| metric.metric_index == *index)?;
        let target = metric.target.as_deref().map_or_else(|| "?".to_owned(), number);
        let others = match self.by.len() {
            0 | 1 => "",
            _ => ", or what else decided",
        };
        Some(format!("{} (target {target}){others}", short_name(metric, last)))
    }

    fn rows(&self, to: UnixMillis) -> String {
        let shown: Vec<&Change> =
            self.changes.iter().skip(self.changes.len().saturating_sub(MAX_SHOWN)).collect();
        let header = ["TIME", "FROM", "TO", "BY", "REASON", "WHY"].map(str::to_owned);
        let rows = shown.iter().map(|change| {
            let by = change.by.as_str().to_owned();
            let reason = change.decision.reason.clone();
            let [from, to_replicas] = [change.from, change.to].map(|count| count.to_string());
            [clock(change.at, to), from, to_replicas, by, reason, change.why()]
        });
        let rows: Vec<[String; 6]> = std::iter::once(header).chain(rows).collect();
        table(&rows, Align::Left)
    }

    /// The list for programs.
    pub fn json(&self, subject: &Subject, (from, to): (UnixMillis, UnixMillis)) -> Value {
        let change = |change: &Change| {
            json!({
                "time": crate::ledger::time(change.at),
                "from": change.from,
                "to": change.to,
                "by": change.by.as_str(),
                "reason": change.decision.reason,
                "why": change.why(),
                "decision": change.decision.metadata.name,
            })
        };
        json!({
            "kind": subject.kind,
            "namespace": subject.namespace,
            "name": subject.name,
            "from": crate::ledger::time(from),
            "to": crate::ledger::time(to),
            "decisions": self.decisions,
            "changes": self.changes.iter().map(change).collect::<Vec<_>>(),
        })
    }
}
