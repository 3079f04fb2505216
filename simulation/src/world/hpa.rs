//! HPAs that kube-controller-manager executes and Plimsoll observes, in a namespace of their own: `watched`, whose
//! metric Plimsoll serves, and `unserved`, whose metric no rule lists. At times kube-controller-manager is of another
//! mind about `watched`: that must be counted.

use super::{Task, World};
use crate::api_server::{Part, resource};
use crate::conditions::locked;
use crate::oracle::Oracle;
use crate::plan::{MINUTE, Millis, REPLICAS, SECOND, is_quiet, random};
use crate::prometheus::Labels;
use crate::workload::{LEGACY_BACKLOG, MESSAGES_PER_POD};
use fastrand::Rng;
use plimsoll::hpa::{
    self, Context, ControllerConfig, Input, Outcome, Samples, Scale, ScalingHistory, Selected,
    Spec, Status,
};
use serde_json::{Value, json};

/// The namespace of the HPAs: no autoscaler selects its pods.
pub const NAMESPACE: &str = "legacy";
/// The HPA whose metric Plimsoll serves, and its Deployment.
const WATCHED: &str = "watched";
/// The HPA whose metric nobody serves, and its Deployment.
const UNSERVED: &str = "unserved";
/// The metric of [`UNSERVED`].
const UNKNOWN_METRIC: &str = "legacy_backlogs";

/// The sync period of kube-controller-manager.
const PERIOD: Millis = 15 * SECOND;
/// How long after a change of the load everything is as it stays: longer than the window of scale-downs.
const SETTLED: Millis = 6 * MINUTE;
/// How long the other mind holds. After 3 evaluations in which only Plimsoll would scale, it counts a difference in
/// any case.
const OTHER_MIND: Millis = 2 * PERIOD;
/// How long after a change of the scale its comparison must have been counted: an evaluation comes every 15 s, on what
/// is known by watches.
const COMPARED: Millis = 29 * SECOND;
/// How long the leader must have been sound before: the longest window, and what a fault leaves behind.
const SOUND: Millis = 10 * MINUTE;
/// How long a replica that no longer holds the Lease may still query.
const HANDED_OVER: Millis = MINUTE;

/// What is done about the HPAs.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// kube-controller-manager decides.
    Sync,
    /// The pods that lack have started.
    Start,
    /// The status of the Deployment is that of its spec, and other pods are gone.
    Settle,
    /// The comparison of a change of the scale must have been counted.
    Look(Look),
}

/// What was when kube-controller-manager changed a scale.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// When.
    at: Millis,
    leader: usize,
    /// The outcomes so far: agreed, differed.
    before: [u64; 2],
    /// Whether Plimsoll must be of another mind.
    differs: bool,
}

/// kube-controller-manager's memory of `watched`, and what its load is to be.
pub struct Controller {
    rng: Rng,
    spec: Spec,
    history: ScalingHistory,
    status: Status,
    /// In pods.
    load: f64,
    /// The value at the last scrape.
    exposed: Option<f64>,
    next_load: Millis,
    /// When it is of another mind next.
    next_other_mind: Option<Millis>,
    /// Until when it is of another mind.
    other_mind_until: Millis,
    /// Since when each replica does not hold the Lease.
    follows_since: [Option<Millis>; REPLICAS],
}

impl Controller {
    /// It has decided nothing yet.
    pub fn new(seed: u64) -> Self {
        let spec = serde_json::from_value(spec(WATCHED, LEGACY_BACKLOG));
        Self {
            rng: random(seed, "native HPAs"),
            spec: Spec::from_api(&spec.expect("a spec of the API")),
            history: ScalingHistory::default(),
            status: Status::default(),
            load: 1.0,
            exposed: None,
            next_load: 0,
            next_other_mind: None,
            other_mind_until: 0,
            follows_since: [None; REPLICAS],
        }
    }

    /// Changes the load every 20 minutes or so. After some changes, kube-controller-manager is of another mind.
    fn change_load(&mut self, at: Millis) {
        if at < self.next_load || is_quiet(at) {
            return;
        }
        self.load = f64::from(self.rng.u32(10..=80)) / 10.0;
        self.next_load = at + self.rng.i64(10 * MINUTE..30 * MINUTE);
        let other_mind = at + SETTLED;
        let is_of_another = self.rng.u8(..) < 16 && !is_quiet(other_mind + SETTLED);
        self.next_other_mind = is_of_another.then_some(other_mind);
    }

    /// The replicas of another mind, for those that are right, if it is one now.
    fn other_mind(&mut self, at: Millis, right: i32) -> Option<i32> {
        self.next_other_mind.take_if(|next| *next <= at)?;
        self.other_mind_until = at + OTHER_MIND;
        let is_down = right >= 5 && self.rng.bool();
        Some(if is_down { 1 } else { right + self.rng.i32(8..=15) })
    }

    /// Decides, and returns the replicas to write and whether they are of another mind.
    fn decide(&mut self, at: Millis, now: i64, scale: Scale) -> Option<(i32, bool)> {
        let value = self.exposed.map(|value| [(value * 1000.0) as i64]);
        let samples = [Samples::Values(value.as_ref().map(|value| &value[..]).ok_or("no value"))];
        let config = ControllerConfig::default();
        let spec = self.spec.clone();
        let context = Context::new(&spec, &config, now);
        let input = Input {
            context,
            namespace: NAMESPACE,
            scale: Ok(scale),
            selected: Selected::Pods(&[]),
            samples: &samples,
        };
        let (history, status) = (&mut self.history, &mut self.status);
        let mut decision = hpa::decide(&input, history, status, &mut ());
        if at < self.other_mind_until {
            self.status.desired_replicas = scale.spec_replicas;
            return None;
        }
        let other = self.other_mind(at, scale.spec_replicas);
        if let Some(to) = other {
            let reason = "of another mind".to_owned();
            decision.outcome = Outcome::Rescale { from: scale.spec_replicas, to, reason };
        }
        let (history, status) = (&mut self.history, &mut self.status);
        hpa::complete_rescale(context, &mut decision, Ok(()), history, status);
        match decision.outcome {
            Outcome::Rescale { to, .. } => Some((to, other.is_some())),
            Outcome::Hold | Outcome::Failed => None,
        }
    }
}

/// The spec of an HPA.
fn spec(name: &str, metric: &str) -> Value {
    let policy =
        |kind: &str, value: i32| json!({"type": kind, "value": value, "periodSeconds": 15});
    json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "minReplicas": 1, "maxReplicas": 30,
        "metrics": [{"type": "External", "external": {"metric": {"name": metric},
            "target": {"type": "AverageValue", "averageValue": format!("{MESSAGES_PER_POD}")}}}],
        "behavior": {
            // No limit that is reached: Plimsoll may know of a change by the HPA's status before it sees the scale,
            // and would take what was added off what may be added.
            "scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max",
                "policies": [policy("Pods", 30)]},
            // No multiple of the period: at its end a recommendation may count for one and not for the other.
            "scaleDown": {"stabilizationWindowSeconds": 290, "selectPolicy": "Max",
                "policies": [policy("Percent", 100)]}},
    })
}

fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "app", "image": "app"}]}}},
    })
}

impl World {
    /// Creates the HPAs and what they scale.
    pub(super) fn set_up_hpas(&mut self) {
        locked(&self.prometheus).set_type(LEGACY_BACKLOG, "gauge");
        for (name, metric) in [(WATCHED, LEGACY_BACKLOG), (UNSERVED, UNKNOWN_METRIC)] {
            self.create(&resource::DEPLOYMENTS, deployment(name));
            let hpa = json!({
                "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": spec(name, metric),
            });
            self.create(&resource::HPAS, hpa);
        }
        let phase = self.hpas.rng.i64(0..PERIOD);
        self.at(phase, Task::Hpa(Step::Start));
        self.at(phase, Task::Hpa(Step::Settle));
        self.at(PERIOD + phase, Task::Hpa(Step::Sync));
    }

    /// A scrape sees the load of `watched`.
    pub(super) fn expose_backlog(&mut self, at: Millis) {
        let value = (self.hpas.load * MESSAGES_PER_POD).round();
        self.hpas.exposed = Some(value);
        let labels = Labels::new([("__name__", LEGACY_BACKLOG), ("namespace", NAMESPACE)]);
        locked(&self.prometheus).append(&labels, self.wall_ms(at), value);
    }

    pub(super) fn hpa(&mut self, at: Millis, step: Step) {
        match step {
            Step::Sync => {
                self.check_observers(at);
                self.ask_unknown();
                self.hpas.change_load(at);
                self.sync_hpa(at);
                self.at(at + PERIOD, Task::Hpa(Step::Sync));
            }
            Step::Start => self.start_pods(),
            Step::Settle => self.settle(),
            Step::Look(look) => self.look_at_rescale(at, look),
        }
    }

    /// kube-controller-manager asks for the metric of `unserved`, which the API server passes on to any replica.
    fn ask_unknown(&mut self) {
        let replica = self.hpas.rng.usize(..REPLICAS);
        if let Some(running) = self.replicas[replica].as_mut().filter(|one| !one.is_stopping()) {
            running.ask_external(NAMESPACE, UNKNOWN_METRIC);
        }
    }

    /// Decides on the true value, and writes the scale and the status.
    fn sync_hpa(&mut self, at: Millis) {
        let [spec_replicas, status_replicas] =
            ["/spec/replicas", "/status/replicas"].map(|at| self.replicas_of_watched(at));
        let now = self.wall_ms(at);
        let decided = self.hpas.decide(at, now, Scale { spec_replicas, status_replicas });
        if let Some((to, differs)) = decided {
            let why = if differs { ", of another mind" } else { "" };
            self.step(at, format_args!("{WATCHED}: {spec_replicas} -> {to} by its HPA{why}"));
            self.edit_legacy(&resource::DEPLOYMENTS, Part::Main, |object| {
                object["spec"]["replicas"] = json!(to);
            });
            // Pods are there before the status counts them.
            self.at(at + SECOND, Task::Hpa(Step::Start));
            self.at(at + 3 * SECOND, Task::Hpa(Step::Settle));
            self.plan_look(at, differs);
        }
        let status = hpa::render_status(&self.hpas.status);
        let status = serde_json::to_value(status).expect("a status is JSON");
        self.edit_legacy(&resource::HPAS, Part::Status, |object| object["status"] = status);
    }

    fn replicas_of_watched(&self, pointer: &str) -> i32 {
        let object = self.api.get(&resource::DEPLOYMENTS, NAMESPACE, WATCHED);
        let replicas = object.and_then(|object| object.pointer(pointer)?.as_i64());
        replicas.and_then(|replicas| i32::try_from(replicas).ok()).unwrap_or(0)
    }

    fn edit_legacy(
        &self,
        resource: &'static crate::api_server::Resource,
        part: Part,
        change: impl FnOnce(&mut Value),
    ) {
        self.api
            .edit(resource, part, (NAMESPACE, WATCHED), change)
            .expect("nobody deletes it, and the write is valid");
    }

    fn start_pods(&mut self) {
        for number in 0..self.replicas_of_watched("/spec/replicas") {
            let name = format!("{WATCHED}-{number}");
            if self.api.get(&resource::PODS, NAMESPACE, &name).is_none() {
                self.create(&resource::PODS, json!({
                    "apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": WATCHED}},
                    "spec": {"nodeName": "node", "containers": [{"name": "app"}]},
                }));
            }
        }
    }

    fn settle(&mut self) {
        let replicas = self.replicas_of_watched("/spec/replicas");
        self.edit_legacy(&resource::DEPLOYMENTS, Part::Status, |object| {
            object["status"]["replicas"] = json!(replicas);
        });
        let surplus = (replicas..).map(|number| format!("{WATCHED}-{number}"));
        for name in surplus {
            if !self.api.remove(&resource::PODS, NAMESPACE, &name) {
                break;
            }
        }
    }

    fn comparisons(&self, replica: usize) -> Option<[u64; 2]> {
        let running = self.replicas[replica].as_ref()?;
        Some(["agreed", "differed"].map(|outcome| running.comparisons(outcome)))
    }

    /// Whether a replica has led for long, and nothing failed for it.
    fn leads_soundly(&self, replica: usize, since: Millis, now: Millis) -> bool {
        let oracles = locked(&self.oracles);
        let record = &oracles.replicas[replica];
        oracles.holder == Some(replica)
            && record.acquired.is_some_and(|acquired| acquired < since)
            && record.is_sound(since, now)
    }

    fn plan_look(&mut self, at: Millis, differs: bool) {
        let leader = locked(&self.oracles).holder;
        let Some(leader) = leader.filter(|leader| self.leads_soundly(*leader, at - SOUND, at))
        else {
            return;
        };
        if let Some(before) = self.comparisons(leader) {
            let look = Look { at, leader, before, differs };
            self.at(at + COMPARED, Task::Hpa(Step::Look(look)));
        }
    }

    /// A sound leader has compared the change of the scale.
    fn look_at_rescale(&mut self, at: Millis, look: Look) {
        if !self.leads_soundly(look.leader, look.at - SOUND, at) {
            return;
        }
        let Some([agreed, differed]) = self.comparisons(look.leader) else { return };
        let (agreed, differed) = (agreed - look.before[0], differed - look.before[1]);
        let mut oracles = locked(&self.oracles);
        oracles.checked(Oracle::Compared);
        let fault = match look.differs {
            true if differed == 0 => "is not counted as a difference",
            false if differed > 0 => "is counted as a difference, though it is the right one",
            false if agreed == 0 => "is not counted",
            _ => return,
        };
        let text = format!("{WATCHED}: what its HPA decided {fault} by replica {}", look.leader);
        oracles.violate(Oracle::Compared, at, text);
    }

    /// Only the leader evaluates what is observed, and nobody what Plimsoll does not serve.
    fn check_observers(&mut self, at: Millis) {
        let mut oracles = locked(&self.oracles);
        if let Some((replica, path)) = self.network.asked_others() {
            let text = format!("replica {replica} asks others for what it only observes: {path}");
            oracles.violate(Oracle::Steady, at, text);
        }
        for replica in 0..REPLICAS {
            let follows_since = &mut self.hpas.follows_since[replica];
            if oracles.holder == Some(replica) {
                *follows_since = None;
                continue;
            }
            // It may have led for a while between two looks.
            let acquired = oracles.replicas[replica].acquired;
            let since =
                follows_since.filter(|since| acquired.is_none_or(|acquired| acquired < *since));
            let since = *follows_since.insert(since.unwrap_or(at));
            let queried = self.network.queried(replica, LEGACY_BACKLOG);
            if queried.is_some_and(|queried| queried > since + HANDED_OVER) {
                let text = format!("replica {replica} evaluates {WATCHED} and does not lead");
                oracles.violate(Oracle::Steady, at, text);
            }
        }
    }
}
