//! With some seeds a crowd: more autoscalers of one query shape than are evaluated at one time.
//!
//! Their scales never change. They are there from the start, before anything fails, and are deleted while
//! faults begin, so that a day costs little more.

use super::World;
use crate::api_server::{DeleteOptions, resource};
use crate::conditions::locked;
use crate::network;
use crate::oracle::{Oracle, time};
use crate::plan::{MINUTE, Millis, REPLICAS, SCRAPE};
use crate::prometheus::Labels;
use plimsoll::promql::union::QUERY_LABEL;
use serde_json::{Value, json};
use std::collections::VecDeque;

/// The rule of the crowd's metric, which is one of `externalRules`.
const RULE: &str = r#"
- seriesQuery: 'crowd_depth{namespace!=""}'
  resources: {overrides: {namespace: {resource: namespace}}}
  metricsQuery: 'max(<<.Series>>{<<.LabelMatchers>>})'
"#;

const METRIC: &str = "crowd_depth";
/// With so many in each of so many namespaces, more than 1,000, they are evaluated in two parts.
const IN_NAMESPACE: usize = 103;
const NAMESPACES: usize = 10;
/// How many there are.
pub const SIZE: usize = IN_NAMESPACE * NAMESPACES;
/// When they are deleted.
const END: Millis = 15 * MINUTE;
/// How long after anything failed they are all at the time of their part.
const SETTLED: Millis = 2 * MINUTE;
/// Over how many scrapes, which are as far apart as evaluations, values are counted.
const COUNTED: usize = 4;

/// The crowd.
#[derive(Debug)]
pub struct Crowd {
    /// The series of the metric, one of each namespace.
    series: Vec<Labels>,
    /// How many values each replica was sent between the last scrapes.
    sent: [VecDeque<usize>; REPLICAS],
}

impl Crowd {
    /// A crowd, if the seed has one.
    pub fn of(seed: u64) -> Option<Self> {
        let series =
            |number| Labels::new([("__name__", METRIC), ("namespace", namespace(number).as_str())]);
        let sent = std::array::from_fn(|_| VecDeque::new());
        (seed % 8 == 5).then(|| Self { series: (0..NAMESPACES).map(series).collect(), sent })
    }

    /// Takes what a replica was sent since the last scrape. Returns what it was sent in all that are counted.
    fn count(&mut self, replica: usize, sent: usize) -> usize {
        let counted = &mut self.sent[replica];
        counted.push_back(sent);
        if counted.len() > COUNTED {
            counted.pop_front();
        }
        counted.iter().sum()
    }
}

impl World {
    /// The rule of the crowd's metric, while there is a crowd.
    pub(super) fn crowd_rule(&self) -> &'static str {
        if self.crowd.is_some() { RULE } else { "" }
    }

    /// Creates the objects of the crowd.
    pub(super) fn set_up_crowd(&self) {
        if self.crowd.is_none() {
            return;
        }
        locked(&self.prometheus).set_type(METRIC, "gauge");
        for number in 0..NAMESPACES {
            let object = json!({"apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": namespace(number)}});
            self.create(&resource::NAMESPACES, object);
        }
        for (namespace, name) in keys() {
            self.create(&resource::DEPLOYMENTS, deployment(&namespace, &name));
            self.create(&resource::AUTOSCALERS, autoscaler(&namespace, &name));
        }
    }

    /// Scrapes the crowd's targets, and looks at what was queried; in the end it goes.
    pub(super) fn look_at_crowd(&mut self, at: Millis) {
        let Some(mut crowd) = self.crowd.take() else { return };
        let wall = self.wall_ms(at);
        let ends = at >= END;
        for labels in &crowd.series {
            let mut prometheus = locked(&self.prometheus);
            if ends { prometheus.stale(labels, wall) } else { prometheus.append(labels, wall, 1.0) }
        }
        if ends {
            return self.remove_crowd(at);
        }
        for replica in 0..REPLICAS {
            let sent = crowd.count(replica, self.network.take_crowd_values(replica));
            self.check_sent(at, replica, sent);
        }
        self.crowd = Some(crowd);
    }

    /// A replica asks for the value of each namespace at most once between two scrapes, however many use it.
    fn check_sent(&self, at: Millis, replica: usize, sent: usize) {
        let (from, needed) = (at - SCRAPE * COUNTED as Millis, NAMESPACES * COUNTED);
        let mut oracles = locked(&self.oracles);
        if !oracles.replicas[replica].is_sound(from - SETTLED, at) {
            return;
        }
        oracles.checked(Oracle::Steady);
        // With fewer, it would not be evaluated, or not be counted. Another than the leader reads what is at rest in one of some rounds.
        let least = if oracles.holder == Some(replica) { needed / 2 } else { 0 };
        if !(least..=needed * 3 / 2).contains(&sent) {
            let from = time(from);
            let text = format!(
                "replica {replica} was sent {sent} values of {METRIC} since {from}, and needs {needed}"
            );
            oracles.violate(Oracle::Steady, at, text);
        }
    }

    fn remove_crowd(&self, at: Millis) {
        self.step(at, "the crowd goes");
        for (namespace, name) in keys() {
            for resource in [&resource::AUTOSCALERS, &resource::DEPLOYMENTS] {
                let key = (namespace.as_str(), name.as_str());
                let deleted = self.api.delete(resource, key, &DeleteOptions::default());
                deleted.expect("nobody else deletes one of the crowd");
            }
        }
    }
}

/// How many values of the crowd's metric a response of Prometheus has; none if the request is of another.
pub fn values(form: &[(String, String)], body: &str) -> usize {
    let query = form.iter().find(|(name, value)| name == "query" && value.contains(METRIC));
    let Some((_, query)) = query else { return 0 };
    if !query.contains(QUERY_LABEL) {
        return body.matches(r#""metric":"#).count();
    }
    let rows = |number| body.matches(&format!("\"{QUERY_LABEL}\":\"{number}\"")).count();
    network::members(query, METRIC).map(rows).sum()
}

fn namespace(number: usize) -> String {
    format!("crowd-{number}")
}

/// The namespaces and names of all.
fn keys() -> impl Iterator<Item = (String, String)> {
    let of_namespace =
        |number| (0..IN_NAMESPACE).map(move |one| (namespace(number), format!("one-{one}")));
    (0..NAMESPACES).flat_map(of_namespace)
}

fn deployment(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "app", "image": "app"}]}},
        },
    })
}

/// An autoscaler whose metric asks for the one replica that there is.
fn autoscaler(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": 1, "maxReplicas": 3,
            "metrics": [{"type": "External", "external": {"metric": {"name": METRIC},
                "target": {"type": "AverageValue", "averageValue": "1"}}}],
        },
    })
}
