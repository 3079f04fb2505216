//! The changes of an autoscaler's replicas as a list with a chart.

use super::account::{Subject, replicas};
use super::changes::{By, Change, Changes, deciding, name_of};
use super::chart::{Point, Screen, chart, paint};
use super::words::{clock, counted, date, like, parsed, span};
use crate::commands::table::{Align, table};
use crate::ledger::api::{Decision, Metric};
use crate::ledger::parse_time;
use crate::time::UnixMillis;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};

/// What is kept of the decisions of a span of time.
#[derive(Debug, Default)]
pub struct Listing {
    changes: VecDeque<Told>,
    /// The changes that are not kept any more.
    earlier: usize,
    finder: Changes,
    points: Vec<Seen>,
    /// How many decisions there were, and by which metric each was made.
    decisions: u64,
    by: BTreeMap<usize, u64>,
    /// The metrics that there were, and the place of each. A spec that is edited has others at their index.
    metrics: Vec<Known>,
    places: BTreeMap<Identity, usize>,
    last: Option<Box<Decision>>,
}

/// What is told of a change. Its decision may have thousands of metrics.
#[derive(Debug)]
struct Told {
    at: UnixMillis,
    from: i32,
    to: i32,
    by: By,
    times: u64,
    reason: String,
    why: String,
    /// The name of its decision.
    decision: String,
}

impl Told {
    fn of(change: Change) -> Self {
        let why = change.why();
        let Change { at, from, to, by, times, decision, .. } = change;
        Self {
            at,
            from,
            to,
            by,
            times,
            reason: decision.reason,
            why,
            decision: decision.metadata.name,
        }
    }
}

/// What the chart says of a metric.
#[derive(Debug)]
struct Known {
    /// Its name, once it has decided.
    name: String,
    target: String,
}

/// What tells a metric from others: its name, scope and type of target.
type Identity = (String, Option<String>, Option<String>);

/// Which metric it is, its value and its target.
type Shown = (usize, Option<f64>, Option<f64>);

/// A run of decisions, as far as the chart shows it.
#[derive(Debug)]
struct Seen {
    first: UnixMillis,
    last: UnixMillis,
    replicas: Option<i32>,
    metrics: Box<[Shown]>,
}

impl Seen {
    /// The same with a metric.
    fn point(&self, index: Option<usize>) -> Point {
        let Self { first, last, replicas, .. } = *self;
        let metric = self.metrics.iter().find(|(of, ..)| Some(*of) == index);
        let (value, target) = metric.map_or((None, None), |(_, value, target)| (*value, *target));
        Point { first, last, value, target, replicas }
    }
}

/// The most changes that are kept, the newest ones, and those that are shown.
const MAX_CHANGES: usize = 5_000;
const MAX_SHOWN: usize = 30;

impl Listing {
    /// One of an autoscaler that is decided for so often, in ms.
    pub fn new(period: i64) -> Self {
        Self { finder: Changes::new(period), ..Self::default() }
    }

    /// Takes the next decision, which begins within a span of time.
    pub fn push(&mut self, decision: &Decision, (from, to): (UnixMillis, UnixMillis)) {
        let [first, last] = [&decision.first_time, &decision.last_time]
            .map(|time| parse_time(time).unwrap_or_default());
        if first > to {
            return;
        }
        let found: Vec<Change> = self.finder.next(decision).collect();
        self.keep(found, (from, to));
        self.decisions += decision.count;
        if let Some(metric) = deciding(decision).or_else(|| decision.metrics.first()) {
            let of = self.identify(metric);
            self.metrics[of].name = name_of(metric, decision).into_owned();
            *self.by.entry(of).or_default() += decision.count;
        }
        let number = |text: Option<&str>| text.and_then(parsed);
        let value = |metric: &Metric| {
            let text = metric.max_value.as_deref().or(metric.value.as_deref());
            (self.identify(metric), number(text), number(metric.target.as_deref()))
        };
        let metrics = decision.metrics.iter().map(value).collect();
        self.points.push(Seen { first, last, replicas: replicas(decision), metrics });
        if !decision.metrics.is_empty() || self.last.is_none() {
            self.last = Some(Box::new(decision.clone()));
        }
    }

    /// There are no more decisions.
    pub fn finish(&mut self, span: (UnixMillis, UnixMillis)) {
        let found = self.finder.finish();
        self.keep(found, span);
    }

    fn keep(
        &mut self,
        changes: impl IntoIterator<Item = Change>,
        (from, to): (UnixMillis, UnixMillis),
    ) {
        let within = changes.into_iter().filter(|change| (from..=to).contains(&change.at));
        self.changes.extend(within.map(Told::of));
        while self.changes.len() > MAX_CHANGES {
            self.changes.pop_front();
            self.earlier += 1;
        }
    }

    /// Which metric this is, by its place among those that there were.
    fn identify(&mut self, metric: &Metric) -> usize {
        let Metric { name, scope, target_type, .. } = metric;
        let target = metric.target.as_deref();
        let target = target.map_or_else(|| "?".to_owned(), |text| like(text, target));
        let identity = (name.clone(), scope.clone(), target_type.clone());
        let place = *self.places.entry(identity).or_insert(self.metrics.len());
        match self.metrics.get_mut(place) {
            Some(known) => known.target = target,
            None => self.metrics.push(Known { name: String::new(), target }),
        }
        place
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
        let index = self.by.iter().max_by_key(|(_, count)| **count).map(|(index, _)| *index);
        let load = self.load(index).unwrap_or_default();
        let points: Vec<Point> = self.points.iter().map(|seen| seen.point(index)).collect();
        text += &chart(&points, (from, to), &load, screen);
        if self.changes.is_empty() {
            let replicas = self.points.iter().rev().find_map(|seen| seen.replicas);
            let replicas = replicas.map_or_else(|| "?".to_owned(), |count| count.to_string());
            let decisions = counted(i64::try_from(self.decisions).unwrap_or(i64::MAX), "decision");
            return text + &format!("no change: {replicas} in all of {decisions}\n");
        }
        if self.earlier > 0 {
            let earlier = self.earlier;
            text +=
                &format!("{earlier} earlier ones are not kept: a shorter --since has the others\n");
        }
        let hidden = self.changes.len().saturating_sub(MAX_SHOWN);
        if hidden > 0 {
            text += &format!("and {hidden} earlier ones: -o json has them\n");
        }
        text + &self.rows(to)
    }

    /// What the chart shows: the metric that decided most often.
    fn load(&self, index: Option<usize>) -> Option<String> {
        let Known { name, target } = self.metrics.get(index?)?;
        let others = match self.by.len() {
            0 | 1 => "",
            _ => ", which decided most often",
        };
        Some(format!("{name} (target {target}){others}"))
    }

    fn rows(&self, to: UnixMillis) -> String {
        let shown: Vec<&Told> =
            self.changes.iter().skip(self.changes.len().saturating_sub(MAX_SHOWN)).collect();
        let header = ["TIME", "FROM", "TO", "BY", "REASON", "WHY"].map(str::to_owned);
        let rows = shown.iter().map(|change| {
            let by = change.by.as_str().to_owned();
            let reason = change.reason.clone();
            let [from, to_replicas] = [change.from, change.to].map(|count| count.to_string());
            [clock(change.at, to), from, to_replicas, by, reason, change.why.clone()]
        });
        let rows: Vec<[String; 6]> = std::iter::once(header).chain(rows).collect();
        table(&rows, Align::Left)
    }

    /// The list for programs.
    pub fn json(&self, subject: &Subject, (from, to): (UnixMillis, UnixMillis)) -> Value {
        let change = |change: &Told| {
            json!({
                "time": crate::ledger::time(change.at),
                "from": change.from,
                "to": change.to,
                "by": change.by.as_str(),
                "times": change.times,
                "reason": change.reason,
                "why": change.why,
                "decision": change.decision,
            })
        };
        json!({
            "kind": subject.kind,
            "namespace": subject.namespace,
            "name": subject.name,
            "from": crate::ledger::time(from),
            "to": crate::ledger::time(to),
            "decisions": self.decisions,
            "earlierChanges": self.earlier,
            "changes": self.changes.iter().map(change).collect::<Vec<_>>(),
        })
    }
}
