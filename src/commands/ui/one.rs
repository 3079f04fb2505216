//! One autoscaler as a stream of JSON lines: its status, and its decisions.

use super::error::{cut, is_refused, problem};
use super::problems::Problems;
use super::reflect::{api, resource};
use super::row::Row;
use super::rows::Rows;
use crate::ledger::api::{AUTOSCALER_LABEL, GROUP, KIND_LABEL, VERSION};
use crate::watch::{AutoscalerRef, ResettableBackoff};
use futures::stream::{BoxStream, select};
use futures::{Stream, StreamExt, stream};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::timeout;

/// The most decisions that are sent: the newest.
const MAX_DECISIONS: usize = 2_000;
/// The decisions of a line, and of a page of a list.
const PER_LINE: usize = 200;
const PAGE_SIZE: u32 = 500;
/// The time between two lines, if nothing changes.
const SILENCE: Duration = Duration::from_secs(10);
/// The name of the ledger's resource in messages.
const DECISIONS: &str = "decisions.decisions.plimsoll.dev";
/// The longest value of a label that can be selected by.
const MAX_LABEL: usize = 63;
/// The longest message of a condition, in characters.
const MAX_MESSAGE: usize = 2_000;

/// The decisions in the namespace of an autoscaler, and the labels of its own.
pub fn decisions(client: &Client, autoscaler: &AutoscalerRef) -> (Api<DynamicObject>, String) {
    let kind = GroupVersionKind::gvk(GROUP, VERSION, "Decision");
    let resource = ApiResource::from_gvk_with_plural(&kind, "decisions");
    let AutoscalerRef { kind, key } = autoscaler;
    let mut labels = format!("{KIND_LABEL}={}", kind.as_str());
    if key.name.len() <= MAX_LABEL {
        labels = format!("{AUTOSCALER_LABEL}={},{labels}", key.name);
    }
    (Api::namespaced_with(client.clone(), &key.namespace, &resource), labels)
}

/// Whether a decision is one of an autoscaler: a name can be longer than what can be selected by.
pub fn is_of(decision: &DynamicObject, autoscaler: &AutoscalerRef) -> bool {
    let labels = decision.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(AUTOSCALER_LABEL)) == Some(&autoscaler.key.name)
}

/// What happens.
enum Happening {
    Object(watcher::Result<Event<DynamicObject>>),
    Decision(watcher::Result<Event<DynamicObject>>),
}

/// One autoscaler: `{"scope"}`, `{"autoscaler"}` (null if there is none), `{"decisions", "again", "complete"}` (those
/// that are new or changed; all, again; all are sent), `{"problems"}`. A line comes every 10 s at least.
pub fn stream(
    client: Client,
    rows: Rows,
    scope: String,
    autoscaler: AutoscalerRef,
) -> impl Stream<Item = String> + Send {
    let namespace = &autoscaler.key.namespace;
    let (objects, progress_of_objects) = ResettableBackoff::new();
    let only = watcher::Config::default().fields(&format!("metadata.name={}", autoscaler.key.name));
    let objects = watcher(api(&client, autoscaler.kind, Some(namespace)), only).backoff(objects);
    let (backoff, progress) = ResettableBackoff::new();
    let (api, labels) = decisions(&client, &autoscaler);
    let config = watcher::Config::default().labels(&labels).page_size(PAGE_SIZE);
    let decided = watcher(api, config).backoff(backoff);
    let objects = objects.inspect(move |event| made(event, &progress_of_objects));
    let objects = objects.map(Happening::Object);
    let decided = decided.inspect(move |event| made(event, &progress)).map(Happening::Decision);
    let state = One {
        rows,
        autoscaler,
        object: None,
        is_found: false,
        listing: VecDeque::new(),
        problems: Problems::default(),
        happenings: select(objects, decided).boxed(),
        lines: VecDeque::from([json!({"scope": scope}).to_string()]),
    };
    stream::unfold(state, async |mut one| {
        let line = one.next_line().await?;
        Some((line, one))
    })
}

/// Tells a backoff that objects were received.
fn made(event: &watcher::Result<Event<DynamicObject>>, progress: &crate::watch::Progress) {
    if event.as_ref().is_ok_and(|event| !matches!(event, Event::Init)) {
        progress.made();
    }
}

struct One {
    rows: Rows,
    autoscaler: AutoscalerRef,
    object: Option<Value>,
    /// Whether the list that is read has it.
    is_found: bool,
    /// The decisions of the list that is read.
    listing: VecDeque<Value>,
    problems: Problems,
    happenings: BoxStream<'static, Happening>,
    lines: VecDeque<String>,
}

impl One {
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

    fn object(&mut self, event: watcher::Result<Event<DynamicObject>>) {
        let resource = resource(self.autoscaler.kind);
        let event = match event {
            Ok(event) => event,
            Err(error) => {
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
            let (state, why) = row.state(reversals, self.rows.now());
            let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
            json!({
                "target": row.target,
                "current": row.current,
                "desired": row.desired,
                "min": row.min,
                "max": row.max,
                "metrics": row.metrics,
                "scaled": row.scaled.map(|millis| millis / 1_000),
                "state": state,
                "why": why,
                "conditions": conditions.map(condition).collect::<Vec<_>>(),
            })
        });
        json!({"autoscaler": shown}).to_string()
    }

    fn decision(&mut self, event: watcher::Result<Event<DynamicObject>>) {
        match event {
            Err(error) => {
                let namespace = Some(self.autoscaler.key.namespace.as_str());
                self.problem(DECISIONS, Some(problem(&error, DECISIONS, namespace)));
                if is_refused(&error) {
                    self.lines.push_back(json!({"complete": true}).to_string());
                }
            }
            Ok(Event::InitApply(decision) | Event::Apply(decision))
                if !is_of(&decision, &self.autoscaler) => {}
            Ok(Event::Init) => self.listing.clear(),
            Ok(Event::InitApply(decision)) => {
                self.listing.push_back(lean(decision));
                if self.listing.len() > MAX_DECISIONS {
                    self.listing.pop_front();
                }
            }
            Ok(Event::InitDone) => {
                self.lines.push_back(json!({"again": true}).to_string());
                let all = Vec::from(std::mem::take(&mut self.listing));
                let lines = all.chunks(PER_LINE).map(|some| json!({"decisions": some}).to_string());
                self.lines.extend(lines);
                self.lines.push_back(json!({"complete": true}).to_string());
                self.problem(DECISIONS, None);
            }
            Ok(Event::Apply(decision)) => {
                self.lines.push_back(json!({"decisions": [lean(decision)]}).to_string());
            }
            // The ledger makes room; what is on the page stays there.
            Ok(Event::Delete(_)) => {}
        }
    }

    fn problem(&mut self, source: &'static str, problem: Option<String>) {
        if self.problems.set(source, problem) {
            let problems = self.problems.texts();
            self.lines.push_back(json!({"problems": problems}).to_string());
        }
    }
}

/// A decision with what the page shows of it.
fn lean(decision: DynamicObject) -> Value {
    let mut shown = match decision.data {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    shown.insert("metadata".to_owned(), json!({"name": decision.metadata.name}));
    Value::Object(shown)
}

/// A condition with a message that is not too long.
fn condition(condition: &Value) -> Value {
    let text = |field: &str| cut(condition[field].as_str().unwrap_or_default(), MAX_MESSAGE);
    json!({
        "type": text("type"),
        "status": text("status"),
        "reason": text("reason"),
        "message": text("message"),
        "lastTransitionTime": text("lastTransitionTime"),
    })
}
