//! What a replica was told and what it asked for, from the record of its proxies: each decision is
//! judged by what was known where it was made, and not by what the soak did meanwhile.

use crate::settings::{NAMESPACE, TARGET};
use bed::traffic::{Exchange, Passed, WatchLine};
use http::Method;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long anything is kept: longer than all windows, periods and time limits together.
const KEPT: Duration = Duration::from_secs(120);
/// The path of the list and of the watch of all Autoscalers.
const AUTOSCALERS: &str = "/apis/plimsoll.dev/v1alpha1/autoscalers?";

/// A read of a scale.
#[derive(Clone, Debug)]
pub struct ScaleRead {
    pub arrived: Instant,
    pub answered: Instant,
    pub version: String,
    pub replicas: i64,
}

/// The Lease as a response showed it.
#[derive(Clone, Debug)]
pub struct LeaseSeen {
    /// Whether it was a read, and no renewal.
    pub is_read: bool,
    pub answered: Instant,
    pub version: u64,
    pub holder: String,
    pub frozen: bool,
}

/// The values of a workload's metric in a response of Prometheus.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub at: Instant,
    pub sum: f64,
    pub least: f64,
    pub most: f64,
}

impl Reading {
    /// The replicas that it asks for, if it has all pods.
    pub fn wanted(&self) -> i64 {
        (self.sum / TARGET as f64).ceil() as i64
    }
}

/// A request to change a scale.
#[derive(Clone, Debug)]
pub struct Write {
    pub replica: usize,
    pub name: String,
    pub arrived: Instant,
    /// When its answer went out, and the status; none if Plimsoll did not get one.
    pub answered: Option<(Instant, u16)>,
    pub to: i64,
    /// The resource version that it is based on.
    pub version: String,
}

/// What one replica was told.
#[derive(Default)]
pub struct View {
    /// The maximum of each Autoscaler and when it was told of it; none once it was told that the
    /// Autoscaler is gone.
    specs: BTreeMap<String, Vec<(Instant, Option<i64>)>>,
    /// The Autoscalers of the list that is under way.
    listed: BTreeSet<String>,
    /// When it first had a whole list.
    synced: Option<Instant>,
    /// How often it was told that its watch of Autoscalers has expired.
    pub expired: usize,
    reads: BTreeMap<String, Vec<ScaleRead>>,
    pub leases: Vec<LeaseSeen>,
    readings: BTreeMap<String, Vec<Reading>>,
}

/// What is recorded between Plimsoll and kube-apiserver.
pub fn of_api(line: &str) -> bool {
    let ends = line.split('?').next().is_some_and(|path| path.ends_with("/scale"));
    ends || line.contains("/leases") || line.contains(AUTOSCALERS)
}

/// What is recorded between Plimsoll and Prometheus.
pub fn of_prometheus(line: &str) -> bool {
    line.split('?').next().is_some_and(|path| path.ends_with("/api/v1/query"))
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_default()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

impl View {
    /// Takes in what passed a proxy; returns the writes of scales.
    pub fn absorb(&mut self, replica: usize, passed: Vec<Passed>) -> Vec<Write> {
        let mut writes = Vec::new();
        for passed in passed {
            match passed {
                Passed::Watch(line) => self.watched(&line),
                Passed::Exchange(exchange) => writes.extend(self.asked(replica, &exchange)),
            }
        }
        self.forget();
        writes
    }

    fn watched(&mut self, line: &WatchLine) {
        let event = json(&line.line);
        let object = &event["object"];
        match event["type"].as_str() {
            Some("ERROR") => self.expired += 1,
            Some("DELETED") => self.told(line.at, object, false),
            Some("ADDED" | "MODIFIED") => self.told(line.at, object, true),
            _ => {}
        }
    }

    fn told(&mut self, at: Instant, object: &Value, is_there: bool) {
        if object["metadata"]["namespace"] != NAMESPACE {
            return;
        }
        let max = object["spec"]["maxReplicas"].as_i64().filter(|_| is_there);
        self.specs.entry(text(&object["metadata"]["name"])).or_default().push((at, max));
    }

    fn asked(&mut self, replica: usize, exchange: &Exchange) -> Option<Write> {
        let path = exchange.path.split('?').next().unwrap_or_default();
        if let Some(path) = path.strip_suffix("/scale") {
            let name = path.rsplit('/').next().unwrap_or_default().to_owned();
            return match exchange.method {
                Method::GET => {
                    self.read_scale(name, exchange);
                    None
                }
                _ => {
                    let body = json(&exchange.body);
                    let answered =
                        exchange.answer.as_ref().map(|answer| (answer.at, answer.status));
                    let to = body["spec"]["replicas"].as_i64().unwrap_or(0);
                    let version = text(&body["metadata"]["resourceVersion"]);
                    Some(Write { replica, name, arrived: exchange.arrived, answered, to, version })
                }
            };
        }
        let answer =
            exchange.answer.as_ref().filter(|answer| (200..300).contains(&answer.status))?;
        let body = json(&answer.body);
        if path.contains("/leases") {
            // A list of Leases has no holder.
            if body["kind"] != "Lease" {
                return None;
            }
            let metadata = &body["metadata"];
            self.leases.push(LeaseSeen {
                is_read: exchange.method == Method::GET,
                answered: answer.at,
                version: metadata["resourceVersion"].as_str()?.parse().ok()?,
                holder: text(&body["spec"]["holderIdentity"]),
                frozen: !metadata["annotations"]["plimsoll.dev/freeze"].is_null(),
            });
        } else if exchange.path.starts_with(AUTOSCALERS) {
            self.listed(exchange, answer.at, &body);
        } else {
            self.answered(exchange, answer.at, &body);
        }
        None
    }

    fn read_scale(&mut self, name: String, exchange: &Exchange) {
        let Some(answer) = exchange.answer.as_ref().filter(|answer| answer.status == 200) else {
            return;
        };
        let scale = json(&answer.body);
        self.reads.entry(name).or_default().push(ScaleRead {
            arrived: exchange.arrived,
            answered: answer.at,
            version: text(&scale["metadata"]["resourceVersion"]),
            replicas: scale["spec"]["replicas"].as_i64().unwrap_or(0),
        });
    }

    /// A page of the list of Autoscalers. Whatever the whole list lacks is gone.
    fn listed(&mut self, exchange: &Exchange, at: Instant, list: &Value) {
        if !exchange.path.contains("continue=") {
            self.listed.clear();
        }
        for object in list["items"].as_array().into_iter().flatten() {
            self.told(at, object, true);
            self.listed.insert(text(&object["metadata"]["name"]));
        }
        if list["metadata"]["continue"].as_str().is_none_or(str::is_empty) {
            self.synced.get_or_insert(at);
            for (name, told) in &mut self.specs {
                if !self.listed.contains(name) {
                    told.push((at, None));
                }
            }
        }
    }

    /// A response of Prometheus: the present values of pods and of queues.
    fn answered(&mut self, exchange: &Exchange, at: Instant, body: &Value) {
        // A query over a time, such as for the type of a metric, has no present values.
        let asked = String::from_utf8_lossy(&exchange.body);
        if body["status"] != "success"
            || [&*asked, &exchange.path].iter().any(|text| text.contains("%5B"))
        {
            return;
        }
        let mut readings = BTreeMap::<String, Reading>::new();
        for series in body["data"]["result"].as_array().into_iter().flatten() {
            let (metric, value) = (&series["metric"], series["value"][1].as_str());
            let Some(value) = value.and_then(|value| value.parse::<f64>().ok()) else { continue };
            let name = match (metric["queue"].as_str(), metric["pod"].as_str()) {
                (Some(queue), _) => queue,
                // NAME-REPLICASET-POD
                (_, Some(pod)) => pod.rsplitn(3, '-').nth(2).unwrap_or(pod),
                _ => continue,
            };
            let none = Reading { at, sum: 0.0, least: f64::INFINITY, most: f64::NEG_INFINITY };
            let reading = readings.entry(name.to_owned()).or_insert(none);
            reading.sum += value;
            reading.least = reading.least.min(value);
            reading.most = reading.most.max(value);
        }
        for (name, reading) in readings {
            self.readings.entry(name).or_default().push(reading);
        }
    }

    fn forget(&mut self) {
        let Some(before) = Instant::now().checked_sub(KEPT) else { return };
        self.leases.retain(|lease| lease.answered > before);
        self.reads.values_mut().for_each(|reads| reads.retain(|read| read.answered > before));
        self.readings.values_mut().for_each(|all| all.retain(|reading| reading.at > before));
        self.reads.retain(|_, reads| !reads.is_empty());
        self.readings.retain(|_, all| !all.is_empty());
        // What was told last holds for ever.
        for told in self.specs.values_mut() {
            let old = told.iter().take_while(|(at, _)| *at < before).count();
            told.drain(..old.saturating_sub(1));
        }
    }

    /// The last read of a scale before a time that returned this version.
    pub fn read(&self, name: &str, version: &str, before: Instant) -> Option<&ScaleRead> {
        let mut reads = self.reads.get(name)?.iter().rev();
        reads.find(|read| read.answered <= before && read.version == version)
    }

    /// What it knew of the maximum of an Autoscaler at any time of a range; none where it knew of no
    /// such Autoscaler.
    pub fn maxima(&self, name: &str, from: Instant, to: Instant) -> Vec<Option<i64>> {
        let told = self.specs.get(name).map(Vec::as_slice).unwrap_or_default();
        let first = told.iter().rposition(|(at, _)| *at <= from);
        let before = first.is_none().then_some(None);
        let known = told[first.unwrap_or(0)..].iter().take_while(|(at, _)| *at <= to);
        before.into_iter().chain(known.map(|(_, max)| *max)).collect()
    }

    /// Since when it has known that an Autoscaler is gone; none if it knows of it, or of nothing yet.
    pub fn gone_since(&self, name: &str) -> Option<Instant> {
        // It was started when the Autoscaler was gone already, and its list lacked it.
        let Some(told) = self.specs.get(name) else { return self.synced };
        told.iter().rev().take_while(|(_, max)| max.is_none()).last().map(|(at, _)| *at)
    }

    /// The values of a workload's metric that it read within a range.
    pub fn readings(&self, name: &str, from: Instant, to: Instant) -> Vec<Reading> {
        let all = self.readings.get(name).into_iter().flatten();
        all.filter(|reading| (from..=to).contains(&reading.at)).copied().collect()
    }

    /// It was started anew and knows nothing.
    pub fn restarted(&mut self) {
        let leases = std::mem::take(&mut self.leases);
        *self = Self { leases, ..Self::default() };
    }
}
