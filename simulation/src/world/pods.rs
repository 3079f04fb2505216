//! The controllers of the workloads: pods start, become ready, fail and go.

use super::{Task, World, workload_resource};
use crate::api_server::{DeleteOptions, Part, resource};
use crate::conditions::locked;
use crate::oracle::PodView;
use crate::plan::{Millis, SECOND};
use crate::workload::{NAMESPACE, Pod, Stage};
use plimsoll::hpa::Phase;
use serde_json::json;
use std::sync::Arc;

impl World {
    /// Starts and ends pods until there are as many as are wanted.
    pub(super) fn reconcile(&mut self, at: Millis, number: usize) {
        let name = self.workloads[number].name();
        let resource = workload_resource(&self.workloads[number]);
        let object = self.api.get(resource, NAMESPACE, name);
        let wanted = object.as_ref().and_then(|object| object["spec"]["replicas"].as_i64());
        let wanted = usize::try_from(wanted.unwrap_or(0)).unwrap_or(0);
        loop {
            let workload = &mut self.workloads[number];
            let counted = workload.pods.values().filter(|pod| pod.counts()).count();
            if counted < wanted {
                // A pod of a StatefulSet has to be gone before another of its name can start.
                if workload.kind == "StatefulSet" && workload.pods.values().any(|pod| !pod.counts())
                {
                    break;
                }
                let (pod, runs, ready) = workload.start_pod();
                let object = workload.pod_object(&pod, |_| String::new());
                self.create(&resource::PODS, object);
                self.at(at + runs, Task::PodRuns(number, pod.clone()));
                self.at(at + ready, Task::PodReady(number, pod, true));
            } else if counted > wanted {
                let Some(pod) = workload.pod_to_remove() else { break };
                self.remove_pod(at, number, &pod);
            } else {
                break;
            }
        }
        self.show(at, number);
    }

    /// Deletes a pod, which takes a while.
    fn remove_pod(&mut self, at: Millis, number: usize, pod: &str) {
        let workload = &mut self.workloads[number];
        let grace = workload.grace();
        let Some(state) = workload.pods.get_mut(pod) else { return };
        if std::mem::replace(&mut state.deleting, true) {
            return;
        }
        let _ = self.api.delete(&resource::PODS, (NAMESPACE, pod), &DeleteOptions::default());
        self.at(at + grace, Task::PodGone(number, pod.to_owned()));
    }

    pub(super) fn pod_runs(&mut self, at: Millis, number: usize, pod: &str) {
        let state = self.workloads[number].pods.get_mut(pod);
        if let Some(state) = state.filter(|state| state.stage == Stage::Pending) {
            (state.stage, state.start) = (Stage::Running, Some(at));
            state.ready = Some((false, at));
            self.show_pod(at, number, pod);
        }
    }

    pub(super) fn pod_ready(&mut self, at: Millis, number: usize, pod: &str, ready: bool) {
        let state = self.workloads[number].pods.get_mut(pod);
        if let Some(state) = state.filter(|state| state.stage == Stage::Running) {
            state.ready = Some((ready, at));
            self.show_pod(at, number, pod);
        }
    }

    pub(super) fn pod_gone(&mut self, at: Millis, number: usize, pod: &str) {
        if self.workloads[number].pods.remove(pod).is_some() {
            self.api.remove(&resource::PODS, NAMESPACE, pod);
            self.at(at + SECOND, Task::Reconcile(number));
            self.show(at, number);
        }
    }

    /// A pod of a workload fails; another takes its place.
    pub(super) fn fail_pod(&mut self, at: Millis, number: usize) {
        let Some(pod) = self.serving_pod(number) else { return };
        let state = self.workloads[number].pods.get_mut(&pod).expect("it serves");
        (state.stage, state.ready) = (Stage::Failed, Some((false, at)));
        self.show_pod(at, number, &pod);
        // It is collected a while later.
        self.at(at + 40 * SECOND, Task::PodGone(number, pod));
        self.at(at + SECOND, Task::Reconcile(number));
    }

    /// A pod of a workload that serves, if there is one.
    pub(super) fn serving_pod(&self, number: usize) -> Option<String> {
        let pods = self.workloads[number].pods.iter();
        pods.filter(|(_, pod)| pod.serves() && !pod.deleting).map(|(name, _)| name.clone()).next()
    }

    /// Ends all pods of a workload that is gone.
    pub(super) fn remove_all_pods(&mut self, at: Millis, number: usize) {
        let pods: Vec<String> = self.workloads[number].pods.keys().cloned().collect();
        for pod in pods {
            self.remove_pod(at, number, &pod);
        }
        self.show(at, number);
    }

    /// Writes the status of a pod.
    fn show_pod(&mut self, at: Millis, number: usize, pod: &str) {
        let base = self.base;
        let object = self.workloads[number].pod_object(pod, |time| text(base + time));
        let status = object["status"].clone();
        self.edit(&resource::PODS, Part::Status, pod, |object| object["status"] = status);
        self.show(at, number);
    }

    /// Tells the oracles of the pods, and writes the status of their workload.
    fn show(&mut self, at: Millis, number: usize) {
        let workload = &self.workloads[number];
        let counted = workload.pods.values().filter(|pod| pod.counts()).count();
        let views: Arc<[PodView]> =
            workload.pods.iter().map(|(name, pod)| view(self.base, name, pod)).collect();
        {
            let record = &mut locked(&self.oracles).records[number];
            if record.pods.now() != Some(&views) {
                record.pods.set(at, views);
            }
            let counted = i32::try_from(counted).unwrap_or(i32::MAX);
            if record.counted.now() != Some(&counted) {
                record.counted.set(at, counted);
            }
        }
        let resource = workload_resource(workload);
        let shown = self.api.get(resource, NAMESPACE, workload.name());
        if shown.is_some_and(|shown| shown["status"]["replicas"] != json!(counted)) {
            self.edit(resource, Part::Status, workload.name(), |object| {
                object["status"]["replicas"] = json!(counted);
            });
        }
    }
}

/// A time as objects have it, in whole seconds.
fn text(wall: i64) -> String {
    let time = jiff::Timestamp::from_second(wall.div_euclid(1000));
    time.expect("a time of this century").to_string()
}

fn view(base: i64, name: &str, pod: &Pod) -> PodView {
    // Objects have whole seconds.
    let wall = |time: Millis| (base + time).div_euclid(1000) * 1000;
    PodView {
        name: name.to_owned(),
        phase: match pod.stage {
            Stage::Pending => Phase::Pending,
            Stage::Running => Phase::Running,
            Stage::Failed => Phase::Failed,
        },
        deleting: pod.deleting,
        start: pod.start.map(wall),
        ready: pod.ready.map(|(ready, since)| (ready, wall(since))),
    }
}
