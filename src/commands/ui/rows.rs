//! All autoscalers that the page shows, and what has changed since a client saw them last. No client has a queue:
//! each looks here for what is newer than what it has, so that a slow one costs nothing.

use super::problems::Problems;
use super::row::{Row, State};
use super::swings::{LOOK_BACK_MS, Swings};
use crate::clock::Clock;
use crate::time::UnixMillis;
use crate::watch::{AutoscalerKind, AutoscalerRef};
use futures::{Stream, stream};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// The most autoscalers; those that come after them are left out, and the page says so.
const MAX_ROWS: usize = 50_000;
/// The removals that are remembered. A client that missed more starts anew.
const MAX_REMOVED: usize = 10_000;
/// The rows of a line.
const ROWS_PER_LINE: usize = 1_000;
/// The least time between two lines with changes.
const LINE_INTERVAL: Duration = Duration::from_millis(250);
/// The time between two lines, if nothing changes.
const SILENCE: Duration = Duration::from_secs(10);
/// How often states that depend on the time are looked at.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// All rows. Cheap to clone.
#[derive(Clone)]
pub struct Rows {
    inner: Arc<Mutex<Inner>>,
    changed: Arc<watch::Sender<u64>>,
    clock: Clock,
}

#[derive(Default)]
struct Inner {
    rows: BTreeMap<AutoscalerRef, Held>,
    removed: VecDeque<(u64, AutoscalerRef)>,
    /// The version of the last removal that was forgotten.
    forgotten: u64,
    problems: Problems,
    problems_version: u64,
    listed: BTreeSet<AutoscalerKind>,
    version: u64,
}

/// A row, and since which version it is as it is.
struct Held {
    row: Arc<Row>,
    swings: Swings,
    state: State,
    why: Arc<str>,
    version: u64,
}

/// The kinds that are listed.
const KINDS: usize = 2;

impl Rows {
    /// No rows yet.
    pub fn new(clock: Clock) -> Self {
        let changed = Arc::new(watch::channel(0).0);
        Self { inner: Arc::default(), changed, clock }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what there is, and wakes those who wait for it.
    fn change<T>(&self, change: impl FnOnce(&mut Inner, UnixMillis) -> T) -> T {
        let now = self.now();
        let mut inner = self.lock();
        let before = inner.version;
        let result = change(&mut inner, now);
        let after = inner.version;
        drop(inner);
        if before != after {
            self.changed.send_replace(after);
        }
        result
    }

    /// The present time.
    pub fn now(&self) -> UnixMillis {
        self.clock.latest()
    }

    /// Puts in a row, or replaces it.
    pub fn put(&self, autoscaler: AutoscalerRef, row: Row) {
        self.change(|inner, now| inner.put(autoscaler, row, now));
    }

    /// Takes out a row.
    pub fn remove(&self, autoscaler: &AutoscalerRef) {
        self.change(|inner, _| inner.remove(autoscaler));
    }

    /// All of a kind were listed: others of it are gone.
    pub fn listed(&self, kind: AutoscalerKind, names: &HashSet<AutoscalerRef>) {
        self.change(|inner, _| {
            let of_kind = inner.rows.keys().filter(|one| one.kind == kind);
            let gone: Vec<_> = of_kind.filter(|one| !names.contains(one)).cloned().collect();
            gone.iter().for_each(|one| inner.remove(one));
            if inner.listed.insert(kind) {
                inner.version += 1;
            }
        });
    }

    /// The kind may not be listed now. What is known of it stays: it can be that the server has just started.
    pub fn refused(&self, kind: AutoscalerKind) {
        self.change(|inner, _| {
            if inner.listed.insert(kind) {
                inner.version += 1;
            }
        });
    }

    /// Whether any of a kind is known.
    pub fn has_of(&self, kind: AutoscalerKind) -> bool {
        self.lock().rows.keys().any(|one| one.kind == kind)
    }

    /// Whether all kinds were listed, or may not be.
    pub fn is_complete(&self) -> bool {
        self.lock().listed.len() == KINDS
    }

    /// Waits until something changes.
    pub async fn changed(&self) {
        let mut changed = self.changed.subscribe();
        changed.mark_unchanged();
        // The sender is a field of this.
        let _ = changed.changed().await;
    }

    /// Says what is wrong with a source of rows, or nothing any more.
    pub fn problem(&self, source: &'static str, problem: Option<String>) {
        self.change(|inner, _| inner.problem(source, problem));
    }

    /// The reversals of an autoscaler within the last hour.
    pub fn reversals(&self, autoscaler: &AutoscalerRef) -> usize {
        let now = self.now();
        self.lock().rows.get(autoscaler).map_or(0, |held| held.swings.count(now))
    }

    /// The autoscalers whose replicas changed within the last hour, the latest first, at most so many.
    pub fn scaled_lately(&self, most: usize) -> Vec<AutoscalerRef> {
        let since = self.now() - LOOK_BACK_MS;
        let inner = self.lock();
        let scaled = inner.rows.iter().filter_map(|(name, held)| Some((held.row.scaled?, name)));
        let mut scaled: Vec<_> = scaled.filter(|(at, _)| *at >= since).collect();
        scaled.sort_by_key(|(at, _)| Reverse(*at));
        scaled.into_iter().take(most).map(|(_, name)| name.clone()).collect()
    }

    /// Sets what is known of the earlier changes of an autoscaler.
    pub fn swung(&self, autoscaler: &AutoscalerRef, swings: Swings) {
        self.change(|inner, now| {
            let Some(held) = inner.rows.get_mut(autoscaler) else { return };
            held.swings = swings;
            inner.judge(autoscaler, now);
        });
    }

    /// Looks at the states that depend on the time, for ever.
    pub async fn run_sweeper(self) {
        loop {
            sleep(SWEEP_INTERVAL).await;
            self.change(|inner, now| {
                let names: Vec<_> = inner.rows.keys().cloned().collect();
                names.iter().for_each(|name| inner.judge(name, now));
            });
        }
    }

    /// All rows as lines of JSON, and then what changes: `{"scope"}` at the beginning and whenever a client has to
    /// forget what it has, `{"rows", "removed", "problems", "complete"}`. A line comes every 10 s at least.
    pub fn stream(&self, scope: String) -> impl Stream<Item = String> + Send + use<> {
        let state = Client { rows: self.clone(), scope, seen: None, lines: VecDeque::new() };
        stream::unfold(state, async |mut client| {
            let line = client.next_line().await;
            Some((line, client))
        })
    }
}

impl Inner {
    fn put(&mut self, autoscaler: AutoscalerRef, row: Row, now: UnixMillis) {
        if !self.rows.contains_key(&autoscaler) && self.rows.len() >= MAX_ROWS {
            let text = format!(
                "There are more than {MAX_ROWS} autoscalers, and the others are not shown: start plimsoll ui \
                 with -n NAMESPACE."
            );
            return self.problem("rows", Some(text));
        }
        match self.rows.get_mut(&autoscaler) {
            Some(held) => {
                if let (Some(before), Some(after)) = (held.row.desired, row.desired)
                    && before != after
                    && held.row.is_carried_out()
                    && row.is_carried_out()
                {
                    held.swings.changed(now, after > before);
                }
                if *held.row != row {
                    self.version += 1;
                    (held.row, held.version) = (Arc::new(row), self.version);
                }
            }
            None => {
                self.version += 1;
                let (state, why) = row.state(0, now);
                let (row, swings, version) = (Arc::new(row), Swings::default(), self.version);
                let held = Held { row, swings, state, why: why.into(), version };
                self.rows.insert(autoscaler.clone(), held);
            }
        }
        self.judge(&autoscaler, now);
    }

    /// Sets the state of a row anew.
    fn judge(&mut self, autoscaler: &AutoscalerRef, now: UnixMillis) {
        let Some(held) = self.rows.get_mut(autoscaler) else { return };
        let (state, why) = held.row.state(held.swings.count(now), now);
        if (state, &*why) != (held.state, &*held.why) {
            self.version += 1;
            (held.state, held.why, held.version) = (state, why.into(), self.version);
        }
    }

    fn remove(&mut self, autoscaler: &AutoscalerRef) {
        if self.rows.remove(autoscaler).is_some() {
            // Whether one is left out is seen when it changes, or is listed again.
            self.problem("rows", None);
            self.version += 1;
            self.removed.push_back((self.version, autoscaler.clone()));
            if self.removed.len() > MAX_REMOVED {
                self.forgotten = self.removed.pop_front().map_or(0, |(version, _)| version);
            }
        }
    }

    fn problem(&mut self, source: &'static str, problem: Option<String>) {
        if self.problems.set(source, problem) {
            self.version += 1;
            self.problems_version = self.version;
        }
    }

    /// What has changed since a version, as lines; what needs a person first.
    fn lines(&self, scope: &str, seen: Option<u64>) -> VecDeque<String> {
        let seen = seen.filter(|seen| *seen >= self.forgotten);
        let since = seen.unwrap_or(0);
        let mut lines = VecDeque::new();
        let is_new = |version: u64| seen.is_none() || version > since;
        let problems = || self.problems.texts();
        let head = Line {
            scope: seen.is_none().then_some(scope),
            problems: is_new(self.problems_version).then(problems),
            removed: self
                .removed
                .iter()
                .filter(|(version, _)| seen.is_some() && *version > since)
                .map(|(_, name)| names(name))
                .collect(),
            ..Line::default()
        };
        lines.push_back(text(&head));
        let mut rows: Vec<_> = self.rows.iter().filter(|(_, held)| is_new(held.version)).collect();
        rows.sort_by_key(|(_, held)| held.state);
        for rows in rows.chunks(ROWS_PER_LINE) {
            let rows = rows.iter().map(|(name, held)| held.shown(name)).collect();
            lines.push_back(text(&Line { rows, ..Line::default() }));
        }
        if self.listed.len() == KINDS {
            lines.push_back(text(&Line { complete: true, ..Line::default() }));
        }
        lines
    }
}

type Names<'a> = (&'a str, &'a str, &'a str);

fn names(autoscaler: &AutoscalerRef) -> Names<'_> {
    (&autoscaler.key.namespace, autoscaler.kind.as_str(), &autoscaler.key.name)
}

/// A row as list.js reads it.
type Shown<'a> = (
    &'a str,
    &'a str,
    &'a str,
    &'a str,
    Option<i32>,
    Option<i32>,
    i32,
    i32,
    State,
    &'a str,
    &'a str,
    Option<i64>,
);

impl Held {
    fn shown<'a>(&'a self, autoscaler: &'a AutoscalerRef) -> Shown<'a> {
        let (namespace, kind, name) = names(autoscaler);
        let Row { target, current, desired, min, max, metrics, scaled, .. } = &*self.row;
        let scaled = scaled.map(|millis| millis / 1_000);
        let state = self.state;
        (
            namespace, kind, name, target, *current, *desired, *min, *max, state, &self.why,
            metrics, scaled,
        )
    }
}

#[derive(Default, Serialize)]
struct Line<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problems: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    removed: Vec<Names<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rows: Vec<Shown<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    complete: bool,
}

fn text(line: &impl Serialize) -> String {
    serde_json::to_string(line).expect("texts and numbers can be written as JSON")
}

/// A client, and what it has seen.
struct Client {
    rows: Rows,
    scope: String,
    seen: Option<u64>,
    lines: VecDeque<String>,
}

impl Client {
    async fn next_line(&mut self) -> String {
        if let Some(line) = self.lines.pop_front() {
            return line;
        }
        if let Some(seen) = self.seen {
            sleep(LINE_INTERVAL).await;
            let mut changed = self.rows.changed.subscribe();
            let newer = changed.wait_for(|version| *version > seen);
            if timeout(SILENCE, newer).await.is_err() {
                return "{}".to_owned();
            }
        }
        let inner = self.rows.lock();
        self.lines = inner.lines(&self.scope, self.seen);
        self.seen = Some(inner.version);
        drop(inner);
        self.lines.pop_front().unwrap_or_else(|| "{}".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::ObjectKey;
    use futures::StreamExt;
    use serde_json::{Value, json};

    fn name(name: &str) -> AutoscalerRef {
        let key = ObjectKey { namespace: "shop".to_owned(), name: name.to_owned() };
        AutoscalerRef::autoscaler(key)
    }

    fn row(desired: i32) -> Row {
        let object = json!({"spec": {"minReplicas": 1, "maxReplicas": 9},
            "status": {"currentReplicas": desired, "desiredReplicas": desired}});
        Row::read(AutoscalerKind::Autoscaler, &object)
    }

    /// What has changed since a version, and the version now.
    fn since(rows: &Rows, seen: Option<u64>) -> (Vec<Value>, u64) {
        let inner = rows.lock();
        let lines = inner.lines("x", seen);
        (lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect(), inner.version)
    }

    /// The names and states of the rows of lines.
    fn shown(lines: &[Value]) -> Vec<(String, String)> {
        let rows = lines.iter().filter_map(|line| line["rows"].as_array()).flatten();
        rows.map(|row| [&row[2], &row[8]].map(|one| one.as_str().unwrap().to_owned()))
            .map(|[name, state]| (name, state))
            .collect()
    }

    #[test]
    fn a_client_gets_what_needs_a_person_first_and_then_what_changes() {
        let rows = Rows::new(Clock::default());
        rows.put(name("a"), row(3));
        rows.put(name("b"), row(9));
        let (lines, seen) = since(&rows, None);
        assert_eq!(lines[0]["scope"], "x");
        let pair = |name: &str, state: &str| (name.to_owned(), state.to_owned());
        assert_eq!(shown(&lines), [pair("b", "atMax"), pair("a", "steady")]);
        rows.put(name("a"), row(3));
        assert_eq!(since(&rows, Some(seen)).1, seen, "nothing has changed");
        rows.put(name("a"), row(9));
        rows.remove(&name("b"));
        let (lines, after) = since(&rows, Some(seen));
        assert_eq!(shown(&lines), [pair("a", "atMax")]);
        assert_eq!(lines[0]["removed"], json!([["shop", "Autoscaler", "b"]]));
        assert_eq!(lines[0].get("scope"), None);
        rows.problem("autoscalers", Some("no right".to_owned()));
        assert_eq!(since(&rows, Some(after)).0[0]["problems"], json!(["no right"]));
    }

    #[test]
    fn a_list_takes_out_what_is_gone_and_is_complete_with_all_kinds() {
        let rows = Rows::new(Clock::default());
        rows.put(name("a"), row(3));
        rows.put(name("b"), row(3));
        rows.listed(AutoscalerKind::Autoscaler, &HashSet::from([name("b")]));
        assert!(!rows.is_complete());
        rows.listed(AutoscalerKind::Hpa, &HashSet::new());
        assert!(rows.is_complete());
        let (lines, _) = since(&rows, None);
        assert_eq!(shown(&lines).len(), 1);
        assert_eq!(lines.last().unwrap()["complete"], true);
    }

    #[test]
    fn a_client_that_missed_too_many_removals_starts_anew() {
        let rows = Rows::new(Clock::default());
        let (_, seen) = since(&rows, None);
        for round in 0..=MAX_REMOVED {
            rows.put(name(&format!("r{round}")), row(3));
            rows.remove(&name(&format!("r{round}")));
        }
        assert_eq!(rows.lock().removed.len(), MAX_REMOVED);
        assert_eq!(since(&rows, Some(seen)).0[0]["scope"], "x");
    }

    #[test]
    fn replicas_that_turn_back_again_and_again_are_flapping() {
        let rows = Rows::new(Clock::default());
        for desired in [2, 4, 2, 4] {
            rows.put(name("a"), row(desired));
        }
        assert_eq!(shown(&since(&rows, None).0)[0].1, "steady");
        rows.put(name("a"), row(2));
        assert_eq!(shown(&since(&rows, None).0)[0].1, "flapping");
        assert_eq!(rows.reversals(&name("a")), 3);
    }

    #[test]
    fn a_refusal_takes_no_row_out() {
        let rows = Rows::new(Clock::default());
        rows.put(name("a"), row(3));
        for kind in [AutoscalerKind::Autoscaler, AutoscalerKind::Hpa] {
            rows.refused(kind);
        }
        assert!(rows.is_complete() && rows.has_of(AutoscalerKind::Autoscaler));
        assert!(!rows.has_of(AutoscalerKind::Hpa));
    }

    #[test]
    fn a_preview_that_changes_its_mind_is_not_flapping() {
        let rows = Rows::new(Clock::default());
        for desired in [2, 4, 2, 4, 2, 4] {
            let object = json!({"spec": {"minReplicas": 1, "maxReplicas": 9, "mode": "Preview"},
                "status": {"currentReplicas": 2, "desiredReplicas": desired}});
            rows.put(name("a"), Row::read(AutoscalerKind::Autoscaler, &object));
        }
        assert_eq!(rows.reversals(&name("a")), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_has_nothing_to_say_sends_a_line_every_ten_seconds() {
        let rows = Rows::new(Clock::default());
        let mut lines = std::pin::pin!(rows.stream("x".to_owned()));
        assert!(lines.next().await.unwrap().contains("scope"));
        let start = tokio::time::Instant::now();
        assert_eq!(lines.next().await.unwrap(), "{}");
        assert!(start.elapsed() < Duration::from_secs(11));
        rows.put(name("a"), row(3));
        lines.next().await.unwrap();
        assert!(lines.next().await.unwrap().contains("\"a\""));
    }
}
