//! A small model of the controllers of Deployments and StatefulSets.

use super::super::rollout::Seen;
use super::super::workload;
use serde_json::json;
use std::collections::BTreeMap;

/// The seconds of a step of the controllers.
pub const STEP: u64 = 5;
/// How many seconds a pod takes to end.
const GRACE: u64 = 20;
/// When a pod that is never ready is ready.
pub const NEVER: u64 = 1 << 40;

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Deployment {
        surge: usize,
        unavailable: usize,
    },
    /// A Deployment whose pods end, which takes so many seconds, before others are made.
    Recreate {
        grace: u64,
    },
    StatefulSet {
        is_on_delete: bool,
        is_parallel: bool,
    },
}

#[derive(Clone, Copy, Debug)]
pub enum Change {
    Wait(u64),
    Scale(usize),
    /// Of a drain, or an eviction.
    Evict(usize),
    /// A pod is not ready for a while.
    Unready(usize),
    /// Another template, whose pods take so long to be ready.
    Template(u64),
    /// The template before.
    Undo,
    Partition(usize),
}

#[derive(Clone, Copy)]
struct Pod {
    ordinal: usize,
    template: usize,
    ready_at: u64,
    gone_at: Option<u64>,
}

/// What is so, whatever is seen of it.
#[derive(Clone, Copy, Default)]
pub struct Truth {
    /// When the template was last changed, or a pod replaced by one of another template.
    pub moved: Option<u64>,
    /// When that was, or the controller was told to, or began to.
    pub asked: Option<u64>,
    /// Of `Recreate`, when it began with what is not done, or went on with the new pods.
    pub began: Option<u64>,
    /// When all that is to be replaced was, and ready.
    pub done: Option<u64>,
    /// Whether a pod is to be replaced by the controller itself.
    pub is_under_way: bool,
    /// Whether the status tells so at once, without what was before.
    pub is_plain: bool,
}

pub struct Look {
    pub now: u64,
    pub seen: Seen,
    pub truth: Truth,
    /// Whether the controller has seen the present spec.
    pub is_current: bool,
}

pub struct World {
    kind: Kind,
    now: u64,
    wanted: usize,
    /// When that was last changed, and of a StatefulSet until all are there.
    scaled: u64,
    partition: usize,
    generation: i64,
    observed: i64,
    /// How long the pods of each template take to be ready. The last is not always the present one.
    pub starts: Vec<u64>,
    template: usize,
    /// How often the template was changed; of `Recreate`, the number that the newest ReplicaSet was given.
    revision: usize,
    /// Of `Recreate`: the numbers of the ReplicaSets.
    revisions: BTreeMap<usize, usize>,
    /// Of a Deployment: how many pods of each template there are to be.
    targets: BTreeMap<usize, usize>,
    /// Of a StatefulSet: the template before, until all are updated and ready.
    current: usize,
    /// Of a StatefulSet: the templates of pods that are gone and come again.
    gone: BTreeMap<usize, usize>,
    pods: Vec<Pod>,
    status: serde_json::Value,
    truth: Truth,
    pub looks: Vec<Look>,
}

impl World {
    pub fn new(kind: Kind, wanted: usize) -> Self {
        let pod = |ordinal| Pod { ordinal, template: 0, ready_at: 0, gone_at: None };
        let mut world = Self {
            kind,
            now: 0,
            wanted,
            scaled: 0,
            partition: 0,
            generation: 1,
            observed: 1,
            starts: vec![30],
            template: 0,
            revision: 1,
            revisions: BTreeMap::from([(0, 1)]),
            targets: BTreeMap::from([(0, wanted)]),
            current: 0,
            gone: BTreeMap::new(),
            pods: (0..wanted).map(pod).collect(),
            status: json!({}),
            truth: Truth::default(),
            looks: Vec::new(),
        };
        world.step();
        world
    }

    fn count(&self, is: impl Fn(&Pod) -> bool) -> usize {
        self.pods.iter().filter(|pod| is(pod)).count()
    }

    fn is_ready(&self, pod: &Pod) -> bool {
        pod.ready_at <= self.now
    }

    fn is_active(pod: &Pod) -> bool {
        pod.gone_at.is_none()
    }

    fn grace(&self) -> u64 {
        match self.kind {
            Kind::Recreate { grace } => grace,
            _ => GRACE,
        }
    }

    pub fn change(&mut self, change: Change) {
        match change {
            Change::Wait(steps) => return (0..steps).for_each(|_| self.step()),
            Change::Scale(wanted) => self.scale(wanted),
            Change::Evict(at) => {
                let (at, gone_at) = (at % self.pods.len().max(1), self.now + self.grace());
                if let Some(pod) = self.pods.get_mut(at) {
                    pod.gone_at.get_or_insert(gone_at);
                }
                return self.look();
            }
            Change::Unready(at) => {
                let at = at % self.pods.len().max(1);
                if let Some(pod) = self.pods.get_mut(at) {
                    pod.ready_at = pod.ready_at.max(self.now + 40);
                }
                return self.look();
            }
            Change::Template(start) => {
                self.starts.push(start);
                self.set_template(self.starts.len() - 1);
            }
            Change::Undo => self.set_template(self.template.saturating_sub(1)),
            Change::Partition(partition) => {
                self.partition = partition;
                if self.is_under_way() || self.is_incomplete() {
                    self.ask();
                }
            }
        }
        // The status is still that of the spec before.
        self.generation += 1;
        self.look();
        self.step();
    }

    fn set_template(&mut self, template: usize) {
        let is_made_later = matches!(self.kind, Kind::Recreate { .. });
        self.revision += usize::from(template != self.template && !is_made_later);
        self.template = template;
        if self.is_under_way() {
            self.act();
        } else if self.is_incomplete() {
            self.ask();
        }
    }

    /// Whether a pod ends or is missing: if it is made again, it may be one of those that are replaced.
    fn is_incomplete(&self) -> bool {
        self.count(Self::is_active) < self.wanted.max(self.pods.len())
    }

    fn ask(&mut self) {
        (self.truth.asked, self.truth.done) = (Some(self.now), None);
    }

    fn act(&mut self) {
        self.ask();
        // Soon after a change of the replicas that can't be told.
        if self.now >= self.scaled + 30 {
            self.truth.moved = Some(self.now);
        }
    }

    fn is_under_way(&self) -> bool {
        let is_due = |pod: &Pod| match self.kind {
            Kind::Deployment { .. } | Kind::Recreate { .. } => true,
            Kind::StatefulSet { is_on_delete, .. } => {
                !is_on_delete && (self.partition..self.wanted).contains(&pod.ordinal)
            }
        };
        self.count(|pod| Self::is_active(pod) && pod.template != self.template && is_due(pod)) > 0
    }

    /// Of several ReplicaSets each gets its part, and the largest what is left.
    fn scale(&mut self, wanted: usize) {
        let total: usize = self.targets.values().sum();
        let is_between = total == 0 && matches!(self.kind, Kind::Recreate { .. });
        let goal = (total + wanted).saturating_sub(self.wanted);
        for target in self.targets.values_mut() {
            *target = *target * goal / total.max(1);
        }
        let left = goal - self.targets.values().sum::<usize>();
        if let Some(largest) = self.targets.values_mut().max().filter(|_| !is_between) {
            *largest += left;
        }
        if wanted > self.wanted {
            // Pods that are added are none of the rollout.
            self.truth.began = None;
        }
        (self.wanted, self.scaled) = (wanted, self.now);
        self.gone.retain(|ordinal, _| *ordinal < wanted);
    }

    /// The controller does what it does at a time.
    fn step(&mut self) {
        self.now += STEP;
        let now = self.now;
        for pod in self.pods.iter().filter(|pod| pod.gone_at.is_some_and(|at| at <= now)) {
            if pod.ordinal < self.wanted {
                self.gone.insert(pod.ordinal, pod.template);
            }
        }
        self.pods.retain(|pod| pod.gone_at.is_none_or(|at| at > now));
        match self.kind {
            Kind::Deployment { surge, unavailable } => {
                self.roll(surge, unavailable);
                self.fill();
            }
            Kind::Recreate { .. } => {
                self.recreate();
                self.fill();
            }
            Kind::StatefulSet { is_on_delete, is_parallel } => {
                if now < self.scaled + 30 && self.count(Self::is_active) != self.wanted {
                    self.scaled = now;
                }
                self.sync(is_on_delete, is_parallel);
            }
        }
        self.observed = self.generation;
        self.look();
    }

    /// Of a Deployment, how many pods of each template there are to be.
    fn roll(&mut self, surge: usize, unavailable: usize) {
        let (wanted, newest) = (self.wanted, self.template);
        let new = *self.targets.entry(newest).or_default();
        let total: usize = self.targets.values().sum();
        if total == new {
            self.targets.insert(newest, wanted);
            return;
        }
        let more = (wanted + surge).saturating_sub(total).min(wanted.saturating_sub(new));
        if more > 0 {
            self.act();
        }
        let new = (new + more).min(wanted);
        self.targets.insert(newest, new);
        let ready = |of: usize| {
            self.count(|pod| Self::is_active(pod) && self.is_ready(pod) && pod.template == of)
        };
        let all_ready = self.count(|pod| Self::is_active(pod) && self.is_ready(pod));
        let least = wanted.saturating_sub(unavailable);
        let pending = new.saturating_sub(ready(newest));
        let mut room = self.targets.values().sum::<usize>().saturating_sub(least + pending);
        let unready: BTreeMap<_, _> = self
            .targets
            .iter()
            .map(|(of, target)| (*of, target.saturating_sub(ready(*of))))
            .collect();
        let mut spare = all_ready.saturating_sub(least);
        for (of, target) in self.targets.iter_mut().filter(|(of, _)| **of != newest) {
            let down = room.min(unready[of]);
            let healthy = (room - down).min(spare).min(*target - down);
            *target -= down + healthy;
            room -= down + healthy;
            spare -= healthy;
        }
    }

    /// Of a Deployment that ends all old pods first. Source: `rolloutRecreate`.
    fn recreate(&mut self) {
        let newest = self.template;
        if self.targets.contains_key(&newest) {
            self.name_revision();
        }
        self.observed = self.generation;
        if self.targets.iter().any(|(of, target)| *of != newest && *target > 0) {
            self.act();
            // The status shows old pods, if there are any.
            if self.is_under_way() {
                self.truth.began.get_or_insert(self.now);
            }
            self.targets.iter_mut().filter(|(of, _)| **of != newest).for_each(|(_, of)| *of = 0);
            // The ReplicaSet has not deleted a pod yet.
            return self.look();
        }
        if self.pods.iter().any(|pod| pod.template != newest || !self.targets.contains_key(&newest))
        {
            return;
        }
        if self.targets.insert(newest, self.wanted) == Some(0) {
            self.ask();
        }
        self.name_revision();
    }

    /// Its newest ReplicaSet has the greatest number, which is shown with the status of before.
    fn name_revision(&mut self) {
        let others = self.revisions.iter().filter(|(of, _)| **of != self.template);
        let next = others.map(|(_, number)| number + 1).max().unwrap_or(1);
        let number = self.revisions.entry(self.template).or_default();
        *number = next.max(*number);
        if self.revision != *number {
            self.revision = *number;
            self.act();
            self.truth.began = Some(self.now);
            self.look();
        }
    }

    /// Of a Deployment, the ReplicaSets make and delete pods.
    fn fill(&mut self) {
        let (now, gone_at) = (self.now, self.now + self.grace());
        for (&template, &target) in &self.targets {
            let is_of = |pod: &Pod| Self::is_active(pod) && pod.template == template;
            let there = self.pods.iter().filter(|pod| is_of(pod)).count();
            let ready_at = now + self.starts[template];
            let new = Pod { ordinal: usize::MAX, template, ready_at, gone_at: None };
            self.pods.extend((there..target).map(|_| new));
            let mut surplus: Vec<&mut Pod> =
                self.pods.iter_mut().filter(|pod| is_of(pod)).collect();
            surplus.sort_by_key(|pod| std::cmp::Reverse(pod.ready_at));
            for pod in surplus.into_iter().take(there.saturating_sub(target)) {
                pod.gone_at = Some(gone_at);
            }
        }
    }

    /// Of a StatefulSet: one pod after the other. Source: `updateStatefulSet`.
    fn sync(&mut self, is_on_delete: bool, is_parallel: bool) {
        let now = self.now;
        let at = |pods: &[Pod], ordinal| pods.iter().position(|pod| pod.ordinal == ordinal);
        for ordinal in 0..self.wanted {
            let Some(found) = at(&self.pods, ordinal) else {
                let is_kept = !is_on_delete && ordinal < self.partition;
                let template = if is_kept { self.current } else { self.template };
                if self.gone.remove(&ordinal).is_some_and(|before| before != template) {
                    // While others are missing that can't be told.
                    match self.count(Self::is_active) + 1 == self.wanted {
                        true => self.act(),
                        false => self.ask(),
                    }
                }
                let ready_at = now + self.starts[template];
                self.pods.push(Pod { ordinal, template, ready_at, gone_at: None });
                if is_parallel {
                    continue;
                }
                return;
            };
            let pod = self.pods[found];
            let is_up = Self::is_active(&pod) && self.is_ready(&pod);
            if !is_parallel && !is_up {
                return;
            }
        }
        let condemned = self.pods.iter_mut().filter(|pod| pod.ordinal >= self.wanted);
        if let Some(pod) = condemned.max_by_key(|pod| pod.ordinal) {
            pod.gone_at.get_or_insert(now + GRACE);
            return;
        }
        for ordinal in (self.partition..self.wanted).rev().filter(|_| !is_on_delete) {
            let Some(found) = at(&self.pods, ordinal) else { return };
            let pod = self.pods[found];
            if pod.template != self.template && Self::is_active(&pod) {
                self.pods[found].gone_at = Some(now + GRACE);
                return self.ask();
            }
            if !(Self::is_active(&pod) && self.is_ready(&pod)) {
                return;
            }
        }
    }

    /// The status, where so many pods are up.
    fn status(&mut self, up: usize) -> serde_json::Value {
        let of = |of: usize| self.count(|pod| Self::is_active(pod) && pod.template == of);
        let (updated, old) = (of(self.template), of(self.current));
        match self.kind {
            Kind::Deployment { .. } | Kind::Recreate { .. } => json!({
                "replicas": self.count(Self::is_active), "updatedReplicas": updated,
                "readyReplicas": up}),
            Kind::StatefulSet { is_on_delete, .. } => {
                let (all, ready) = (self.pods.len(), self.count(|pod| self.is_ready(pod)));
                let is_complete = !is_on_delete && updated == all && ready == all;
                if is_complete {
                    self.current = self.template;
                }
                json!({"replicas": all, "updatedReplicas": updated, "readyReplicas": ready,
                    "currentReplicas": if is_complete { updated } else { old },
                    "currentRevision": format!("web-{}", self.current),
                    "updateRevision": format!("web-{}", self.template)})
            }
        }
    }

    /// The controller writes the status, and the watch shows it.
    fn look(&mut self) {
        let is_current = self.observed == self.generation;
        let up = self.count(|pod| Self::is_active(pod) && self.is_ready(pod));
        // A StatefulSet is not updated before those that are too many are gone.
        let is_up = match self.kind {
            Kind::Deployment { .. } | Kind::Recreate { .. } => up >= self.wanted,
            Kind::StatefulSet { .. } => up == self.wanted && self.pods.len() == up,
        };
        if is_current {
            self.status = self.status(up);
        }
        self.status["observedGeneration"] = self.observed.into();
        let (template, current) = (self.template, self.current);
        let is_known = |pod: &Pod| [template, current].contains(&pod.template);
        let is_plain = match self.kind {
            Kind::Deployment { .. } | Kind::Recreate { .. } => true,
            Kind::StatefulSet { .. } => {
                let kept = self.partition.min(self.wanted);
                let is_kept = |pod: &Pod| {
                    Self::is_active(pod) && pod.ordinal < kept && pod.template == current
                };
                let are_kept = self.count(is_kept) == kept;
                template != current && are_kept && self.pods.iter().all(is_known)
            }
        };
        (self.truth.is_plain, self.truth.is_under_way) = (is_plain, self.is_under_way());
        if is_current && self.truth.asked.is_some() && !self.truth.is_under_way && is_up {
            self.truth.done.get_or_insert(self.now);
            self.truth.began = None;
        }
        let recreate = matches!(self.kind, Kind::Recreate { .. }).then_some("Recreate");
        let strategy = match self.kind {
            Kind::StatefulSet { is_on_delete: true, .. } => json!({"type": "OnDelete"}),
            _ => json!({"type": "RollingUpdate", "rollingUpdate": {"partition": self.partition}}),
        };
        let object = json!({
            "metadata": {"name": "web", "generation": self.generation, "annotations": {
                "deployment.kubernetes.io/revision": self.revision.to_string()}},
            "spec": {"replicas": self.wanted, "updateStrategy": strategy,
                "strategy": {"type": recreate},
                "selector": {"matchLabels": {"app": "web"}}},
            "status": self.status});
        let object = serde_json::from_value(object).expect("a workload");
        let seen = workload::scale(object).expect("a scale").seen;
        self.looks.push(Look { now: self.now, seen, truth: self.truth, is_current });
    }
}
