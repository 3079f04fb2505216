//! One autoscaler as a stream of JSON lines: its status, and its decisions.

use super::super::operate::decisions::labels;
use super::error::{is_refused, problem};
use super::lean;
use super::problems::Problems;
use super::reflect::{api, resource};
use super::row::Row;
use super::rows::Rows;
use super::watching::{Seen, watched};
use crate::ledger::api::{GROUP, VERSION};
use crate::watch::AutoscalerRef;
use futures::stream::{BoxStream, select};
use futures::{Stream, StreamExt, stream};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::timeout;

/// The most decisions that are sent: the newest.
const MAX_DECISIONS: usize = 2_000;
/// The most bytes of them: the newest, too.
const MAX_BYTES: usize = 16 << 20;
/// The decisions of a line, and its bytes before the last of them.
const PER_LINE: usize = 200;
const BYTES_PER_LINE: usize = 256 << 10;
/// The decisions of a page of a list.
const PAGE_SIZE: u32 = 500;
/// The time between two lines, if nothing changes.
const SILENCE: Duration = Duration::from_secs(10);
/// The name of the ledger's resource in messages.
const DECISIONS: &str = "decisions.decisions.plimsoll.dev";
/// The decisions in a namespace.
fn decisions(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(GROUP, VERSION, "Decision");
    let resource = ApiResource::from_gvk_with_plural(&kind, "decisions");
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// What happens.
enum Happening {
    Object(Seen),
    Decision(Seen),
}

/// One autoscaler: `{"scope", "canTry", "problems"}` (whether a change can be tried), `{"autoscaler"}` (null if there is none), `{"decisions", "again", "complete"}` (those
/// that are new or changed; all, again; all are sent), `{"problems"}`. A line comes every 10 s at least.
pub fn stream(
    client: Client,
    rows: Rows,
    scope: (String, bool),
    autoscaler: AutoscalerRef,
) -> impl Stream<Item = String> + Send {
    let namespace = &autoscaler.key.namespace;
    let only = watcher::Config::default().fields(&format!("metadata.name={}", autoscaler.key.name));
    let objects = watched(api(&client, autoscaler.kind, Some(namespace)), only);
    let api = decisions(&client, namespace);
    let labels = labels(&autoscaler.key.name, autoscaler.kind);
    let config = watcher::Config::default().labels(&labels).page_size(PAGE_SIZE);
    let decided = watched(api, config).map(Happening::Decision);
    let happenings = select(objects.map(Happening::Object), decided).boxed();
    stream::unfold(One::new(rows, scope, autoscaler, happenings), async |mut one| {
        let line = one.next_line().await?;
        Some((line, one))
    })
}

struct One {
    rows: Rows,
    autoscaler: AutoscalerRef,
    object: Option<Value>,
    /// Whether the list that is read has it.
    is_found: bool,
    /// The decisions of the list that is read.
    listing: Listing,
    problems: Problems,
    happenings: BoxStream<'static, Happening>,
    lines: VecDeque<String>,
}

/// The newest decisions, each as JSON.
#[derive(Default)]
struct Listing {
    all: VecDeque<String>,
    bytes: usize,
}

impl Listing {
    fn push(&mut self, decision: String) {
        self.bytes += decision.len();
        self.all.push_back(decision);
        while self.all.len() > MAX_DECISIONS || self.bytes > MAX_BYTES {
            let Some(oldest) = self.all.pop_front() else { return };
            self.bytes -= oldest.len();
        }
    }

    /// As lines, none of which is long.
    fn lines(self) -> Vec<String> {
        let (mut lines, mut line, mut count) = (Vec::new(), String::new(), 0);
        for decision in self.all {
            if count == PER_LINE || line.len() > BYTES_PER_LINE {
                lines.push(decisions_line(&std::mem::take(&mut line)));
                count = 0;
            }
            if count > 0 {
                line.push(',');
            }
            line += &decision;
            count += 1;
        }
        lines.push(decisions_line(&line));
        lines
    }
}

/// The line of decisions that are JSON already.
fn decisions_line(decisions: &str) -> String {
    format!("{{\"decisions\":[{decisions}]}}")
}

impl One {
    fn new(
        rows: Rows,
        (scope, can_try): (String, bool),
        autoscaler: AutoscalerRef,
        happenings: BoxStream<'static, Happening>,
    ) -> Self {
        // What was wrong with an earlier stream is not with this one.
        let first = json!({"scope": scope, "canTry": can_try, "problems": []}).to_string();
        Self {
            rows,
            autoscaler,
            object: None,
            is_found: false,
            listing: Listing::default(),
            problems: Problems::default(),
            happenings,
            lines: VecDeque::from([first]),
        }
    }

    async fn next_line(&mut self) -> Option<String> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(line);
            }
            match timeout(SILENCE, self.happenings.next()).await {
                Ok(Some(Happening::Object(event))) => self.object(event),
                Ok(Some(Happening::Decision(event))) => self.decision(event),
                Ok(None) => return None,
                // States depend on the time, too.
                Err(_) => {
                    let line = self.object.as_ref().map(|_| self.autoscaler_line());
                    return Some(line.unwrap_or_else(|| "{}".to_owned()));
                }
            }
        }
    }

    fn object(&mut self, seen: Seen) {
        let resource = resource(self.autoscaler.kind);
        let event = match seen {
            Seen::Event(event) => event,
            Seen::Works => return self.problem(resource, None),
            Seen::Failed(error) => {
                let text = problem(&error, resource, Some(&self.autoscaler.key.namespace));
                return self.problem(resource, Some(text));
            }
        };
        match event {
            Event::Init => {
                self.is_found = false;
                return;
            }
            Event::InitApply(object) | Event::Apply(object) => {
                self.is_found = true;
                self.object = Some(object.data);
            }
            Event::InitDone if self.is_found => return,
            Event::InitDone | Event::Delete(_) => self.object = None,
        }
        let line = self.autoscaler_line();
        self.lines.push_back(line);
        self.problem(resource, None);
    }

    /// The autoscaler as it is now.
    fn autoscaler_line(&self) -> String {
        let shown = self.object.as_ref().map(|object| {
            let row = Row::read(self.autoscaler.kind, object);
            let reversals = self.rows.reversals(&self.autoscaler);
            let now = self.rows.now();
            let (state, why) = row.state(reversals, now);
            json!({
                "now": now,
                "period": row.period_ms,
                "target": row.target,
                "current": row.current,
                "desired": row.desired,
                "min": row.min,
                "max": row.max,
                "metrics": row.metrics,
                "scaled": row.scaled.map(|millis| millis / 1_000),
                "state": state,
                "why": why,
                "conditions": lean::conditions(&object["status"]),
            })
        });
        json!({"autoscaler": shown}).to_string()
    }

    fn decision(&mut self, seen: Seen) {
        let event = match seen {
            Seen::Event(event) => event,
            Seen::Works => return self.problem(DECISIONS, None),
            Seen::Failed(error) => {
                let namespace = Some(self.autoscaler.key.namespace.as_str());
                self.problem(DECISIONS, Some(problem(&error, DECISIONS, namespace)));
                if is_refused(&error) {
                    self.lines.push_back(json!({"complete": true}).to_string());
                }
                return;
            }
        };
        match event {
            Event::Init => self.listing = Listing::default(),
            Event::InitApply(decision) => self.listing.push(lean::decision(decision)),
            Event::InitDone => {
                self.lines.push_back(json!({"again": true}).to_string());
                self.lines.extend(std::mem::take(&mut self.listing).lines());
                self.lines.push_back(json!({"complete": true}).to_string());
                self.problem(DECISIONS, None);
            }
            Event::Apply(decision) => {
                self.lines.push_back(decisions_line(&lean::decision(decision)));
                self.problem(DECISIONS, None);
            }
            // The ledger makes room; what is on the page stays there.
            Event::Delete(_) => {}
        }
    }

    fn problem(&mut self, source: &'static str, problem: Option<String>) {
        if self.problems.set(source, problem) {
            let problems = self.problems.texts();
            self.lines.push_back(json!({"problems": problems}).to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::ledger::api::{AUTOSCALER_LABEL, KIND_LABEL};
    use crate::watch::ObjectKey;
    use kube::core::Status;

    #[test]
    fn the_newest_decisions_are_kept_within_their_bytes_in_short_lines() {
        let mut listing = Listing::default();
        for at in 0..3_000 {
            listing.push(json!({"at": at}).to_string());
        }
        assert_eq!(listing.all.len(), MAX_DECISIONS);
        let lines = listing.lines();
        assert_eq!(lines.len(), MAX_DECISIONS / PER_LINE);
        let last: Value = serde_json::from_str(&lines[lines.len() - 1]).unwrap();
        assert_eq!(last["decisions"][PER_LINE - 1]["at"], 2_999);

        let mut listing = Listing::default();
        for _ in 0..1_000 {
            listing.push(json!("x".repeat(100_000)).to_string());
        }
        assert!(listing.bytes <= MAX_BYTES && listing.bytes > MAX_BYTES / 2);
        for line in listing.lines() {
            assert!(line.len() < 500_000);
            let line: Value = serde_json::from_str(&line).unwrap();
            assert!(!line["decisions"].as_array().unwrap().is_empty());
        }
        assert_eq!(Listing::default().lines(), ["{\"decisions\":[]}"]);
    }

    #[test]
    fn decisions_of_a_long_name_are_selected_by_its_label() {
        let key = ObjectKey { namespace: "shop".to_owned(), name: "x".repeat(100) };
        let autoscaler = AutoscalerRef::autoscaler(key);
        let labels = labels(&autoscaler.key.name, autoscaler.kind);
        // As the ledger labels them.
        let ledger = crate::ledger::metadata(&autoscaler, (1, 0, 1), 0);
        let expected = &ledger.labels[AUTOSCALER_LABEL];
        assert!(expected.len() <= 63, "{expected}");
        assert_eq!(labels, format!("{AUTOSCALER_LABEL}={expected},{KIND_LABEL}=Autoscaler"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_problem_that_is_over_is_taken_back() {
        let key = ObjectKey { namespace: "shop".to_owned(), name: "web".to_owned() };
        let status = Status { code: 503, message: "away".to_owned(), ..Status::default() };
        let error = || watcher::Error::WatchStartFailed(kube::Error::Api(Box::new(status.clone())));
        let happenings = [
            Happening::Object(Seen::Failed(error())),
            Happening::Decision(Seen::Failed(error())),
            Happening::Object(Seen::Works),
            Happening::Decision(Seen::Works),
        ];
        let rows = Rows::new(Clock::default());
        let happenings = stream::iter(happenings).boxed();
        let scope = ("x".to_owned(), true);
        let mut one = One::new(rows, scope, AutoscalerRef::autoscaler(key), happenings);
        let mut counts = Vec::new();
        while let Some(line) = one.next_line().await {
            let line: Value = serde_json::from_str(&line).unwrap();
            counts.push(line["problems"].as_array().map_or(99, Vec::len));
        }
        // The first line takes back those of an earlier stream.
        assert_eq!(counts, [0, 1, 2, 1, 0]);
    }
}
