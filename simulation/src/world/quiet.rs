//! The quiet end of each day: what is steady asks for nothing, and a fresh process comes to the same.

use super::{Task, World};
use crate::api_server::resource;
use crate::conditions::locked;
use crate::network::LEASE;
use crate::oracle::Oracle;
use crate::plan::{DAY, HOUR, MINUTE, Millis, QUIET, REPLICAS, SECOND};
use crate::workload::{CONFIG, NAMES, NAMESPACE};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What is done in a quiet time.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// It is taken for steady from now on.
    Settle,
    /// Nothing was asked for.
    Measure,
    /// All replicas have been restarted, and have come to something.
    Compare,
}

/// When the first quiet time has settled.
pub const FIRST: Millis = DAY - QUIET + 75 * MINUTE;
const MEASURED: Millis = 12 * MINUTE;
const COMPARED: Millis = 10 * MINUTE;

/// The most checkpoints while nothing happens: each change of a scale leaves it once, when no window
/// sees it any longer.
const MOST_SAVES: usize = 10;

/// The most listings of the series of a rule meanwhile: one in 10 minutes, and one for a metric that no rule lists
/// in 3 minutes.
const MOST_LISTINGS: u64 = 2 + 5;

/// The most events that are counted again, of all autoscalers: one whose metric fails goes on saying so.
const MOST_REPEATS: usize = 3 * NAMES.len();

/// What was seen of a quiet time.
#[derive(Debug, Default)]
pub struct Observed {
    /// The scales and statuses, and the metrics that are shown.
    before: BTreeMap<&'static str, (Value, Value)>,
    /// The tasks of the runtime before the replicas were restarted.
    tasks: usize,
    /// The tasks after they were, on the first day.
    first_tasks: Option<usize>,
}

/// How many more tasks one state may have than the same one at another time. For each replica: the evaluations in
/// flight; and a query keeps a task until its result is forgotten, 67.5 s, which is five periods. Two workloads share
/// their queries for CPU if they are evaluated at the same time.
const IN_FLIGHT: usize = REPLICAS * (NAMES.len() + 5);
/// How often a leader renews its Lease (`--leader-elect-retry-period`), and for how long a watch asks (kube's
/// default).
const RENEWED: Millis = 2 * SECOND;
const WATCHED: Millis = 290 * SECOND;

impl World {
    pub(super) fn quiet(&mut self, at: Millis, step: Step) {
        match step {
            Step::Settle => {
                for replica in 0..REPLICAS {
                    self.network.take_requests(replica);
                    self.network.take_listings(replica);
                    self.network.take_upkeep(replica);
                }
                self.at(at + MEASURED, Task::Quiet(Step::Measure));
            }
            Step::Measure => {
                self.measure(at);
                self.quiet.before = self.states();
                for replica in 0..REPLICAS {
                    self.crash_replica(at, replica);
                    self.at(at + SECOND, Task::StartReplica(replica));
                }
                self.at(at + COMPARED, Task::Quiet(Step::Compare));
            }
            Step::Compare => {
                self.compare(at);
                self.at(at + DAY - MEASURED - COMPARED, Task::Quiet(Step::Settle));
            }
        }
    }

    /// A steady state asks the API server for nothing but what it must: watches end, and a Lease is renewed.
    fn measure(&mut self, at: Millis) {
        self.quiet.tasks = tasks();
        self.measure_upkeep(at);
        let mut asked = Vec::new();
        let (mut saves, mut repeats) = (0, 0);
        let listings = (0..REPLICAS).map(|replica| self.network.take_listings(replica));
        let listings = listings.max().unwrap_or(0);
        for replica in 0..REPLICAS {
            for request in self.network.take_requests(replica) {
                if request.contains("/configmaps/") {
                    // The version is read before each.
                    saves += usize::from(!request.starts_with("GET"));
                } else if request.contains("/events/") && repeats < MOST_REPEATS {
                    // An event that goes on is counted again.
                    repeats += 1;
                } else if !is_expected(&request) {
                    asked.push(request);
                }
            }
        }
        let mut oracles = locked(&self.oracles);
        for number in 0..NAMES.len() {
            oracles.checked_of(Oracle::Steady, number);
        }
        if let Some(request) = asked.first() {
            let text = format!("{} requests in a steady state, such as {request}", asked.len());
            oracles.violate(Oracle::Steady, at, text);
        }
        // Recommendations are kept for an hour, the longest window that there may be.
        let is_steady = oracles
            .records
            .iter()
            .all(|record| record.is_steady(at - MEASURED) && record.changed < at - MEASURED - HOUR);
        if saves > MOST_SAVES && is_steady {
            let text = format!("{saves} checkpoints were saved in a steady state");
            oracles.violate(Oracle::Steady, at, text);
        }
        if listings > MOST_LISTINGS * CONFIG.matches("seriesQuery").count() as u64 {
            let text = format!("a replica listed series {listings} times in a steady state");
            oracles.violate(Oracle::Steady, at, text);
        }
    }

    /// Watches are begun anew when their time is over, and only the leader asks for the Lease.
    fn measure_upkeep(&mut self, at: Millis) {
        let mut oracles = locked(&self.oracles);
        for replica in 0..REPLICAS {
            let leads = oracles.holder == Some(replica);
            for (of, count) in self.network.take_upkeep(replica) {
                let most = match of.as_str() {
                    LEASE if leads => MEASURED / RENEWED + 1,
                    LEASE => 0,
                    _ => MEASURED / WATCHED + 1,
                };
                if count as Millis > most {
                    let text = format!(
                        "replica {replica} asked {count} times for {of} in a steady state, {most} are needed"
                    );
                    oracles.violate(Oracle::Steady, at, text);
                }
            }
        }
    }

    /// Processes that have run for a day keep no more tasks than fresh ones, and those that are gone keep none.
    fn compare_tasks(&mut self, at: Millis) {
        let (before, fresh) = (self.quiet.tasks, tasks());
        let first = *self.quiet.first_tasks.get_or_insert(fresh);
        let mut oracles = locked(&self.oracles);
        oracles.checked(Oracle::Bounded);
        if before > fresh + IN_FLIGHT {
            let text = format!("{before} tasks, after a restart there are {fresh}");
            oracles.violate(Oracle::Bounded, at, text);
        }
        if fresh > first + IN_FLIGHT {
            let text =
                format!("{fresh} tasks after a restart, on the first day there were {first}");
            oracles.violate(Oracle::Bounded, at, text);
        }
    }

    /// A fresh process shows the same, and keeps the scales.
    fn compare(&mut self, at: Millis) {
        self.compare_tasks(at);
        let after = self.states();
        let mut oracles = locked(&self.oracles);
        for (number, name) in NAMES.into_iter().enumerate() {
            oracles.checked_of(Oracle::Restart, number);
            let ((before, _), (after, metrics)) = (&self.quiet.before[name], &after[name]);
            if before != after {
                let text = format!("{name}: {before} before a restart, {after} after it");
                oracles.violate(Oracle::Restart, at, text);
            }
            let shows_metrics = metrics.as_array().is_some_and(|all| !all.is_empty());
            if after["replicas"] == 0 && shows_metrics && !is_active(after) {
                let text = format!("{name}: metrics of before are shown at zero: {after}");
                oracles.violate(Oracle::Restart, at, text);
            }
            if after["generation"] != after["status"]["observedGeneration"] {
                let text = format!("{name}: the status is not of this generation: {after}");
                oracles.violate(Oracle::Restart, at, text);
            }
        }
    }

    /// The scales and the statuses, without what changes in a steady state.
    fn states(&self) -> BTreeMap<&'static str, (Value, Value)> {
        let state = |(number, name): (usize, &&'static str)| {
            let workload = super::workload_resource(&self.workloads[number]);
            let replicas = self.api.get(workload, NAMESPACE, name);
            let replicas = replicas.map(|object| object["spec"]["replicas"].clone());
            let object = self.api.get(&resource::AUTOSCALERS, NAMESPACE, name);
            let object = object.map(|object| (*object).clone()).unwrap_or_default();
            let mut status = object["status"].clone();
            let mut metrics = Value::Null;
            if let Some(status) = status.as_object_mut() {
                metrics = status.remove("currentMetrics").unwrap_or_default();
                status.remove("targets");
            }
            if let Some(conditions) = status["conditions"].as_array_mut() {
                for condition in conditions {
                    if let Some(condition) = condition.as_object_mut() {
                        condition.remove("lastTransitionTime");
                    }
                }
            }
            let generation = object["metadata"]["generation"].clone();
            let state = json!({"replicas": replicas, "status": status, "generation": generation});
            (*name, (state, metrics))
        };
        NAMES.iter().enumerate().map(state).collect()
    }
}

/// The tasks of all processes that have not ended.
fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// Requests that are made at times whatever happens: discovery.
fn is_expected(request: &str) -> bool {
    request.ends_with("/apis") || request.ends_with("/api")
}

/// Whether a state's autoscaler reads metrics.
fn is_active(state: &Value) -> bool {
    let conditions = state["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "ScalingActive" && condition["status"] == "True")
}
