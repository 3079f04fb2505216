//! Hands that interfere: people, GitOps and other controllers.

use super::{OWN_NAMESPACE, Task, Undo, World, workload_resource};
use crate::api_server::{DeleteOptions, Part, Resource, resource};
use crate::conditions::locked;
use crate::network::METRICS;
use crate::oracle::{LAG, Oracle, time};
use crate::plan::{Hand, MINUTE, Millis, REPLICAS, SECOND};
use crate::workload::{NAMES, NAMESPACE};
use plimsoll::crd::{AutoscalerSpec, Executor, Mode};
use serde_json::{Value, json};

impl World {
    /// A hand does something.
    pub(super) fn hand(&mut self, at: Millis, number: usize, hand: Hand) {
        let name = NAMES[number];
        self.step(at, format_args!("{name}: hand: {hand:?}"));
        match hand {
            Hand::Scale(replicas) => self.scale_by_hand(number, replicas),
            Hand::Bounds { min, max } => {
                let first = self.workloads[number].autoscaler.clone();
                let bound = |field: &str| first[field].as_i64().unwrap_or(1);
                let (min, max) =
                    (bound("minReplicas") + i64::from(min), bound("maxReplicas") + i64::from(max));
                self.edit_spec(number, |spec| {
                    spec["minReplicas"] = json!(min);
                    spec["maxReplicas"] = json!(max.max(min).max(1));
                });
            }
            // While there is a second one, that would take over.
            Hand::Pause(_) | Hand::Recreate(_)
                if locked(&self.oracles).records[number].ambiguous.now() == Some(&true) => {}
            Hand::Pause(time) => {
                self.edit_spec(number, |spec| spec["mode"] = json!("Paused"));
                self.at(at + time, Task::Undo(Undo::Pause(number)));
            }
            Hand::Recreate(time) => {
                self.delete(&resource::AUTOSCALERS, name);
                self.at(at + time, Task::Undo(Undo::Delete(number)));
            }
            Hand::RecreateTarget(time) => {
                let resource = workload_resource(&self.workloads[number]);
                let Some(object) = self.api.get(resource, NAMESPACE, name) else { return };
                let replicas = object["spec"]["replicas"].as_i64().unwrap_or(1);
                self.delete(resource, name);
                self.remove_all_pods(at, number);
                let replicas = i32::try_from(replicas).unwrap_or(1);
                self.at(at + time, Task::Undo(Undo::DeleteTarget(number, replicas)));
            }
            Hand::Second(time) => self.second(at, number, time),
            Hand::NativeHpa { time, paused } => {
                // What a native HPA has not is refused with it.
                let plain = |spec: &Value| {
                    spec.get("fallback").is_none() && spec.get("syncPeriodSeconds").is_none()
                };
                if plain(&self.workloads[number].autoscaler) {
                    self.edit_spec(number, |spec| {
                        spec["executor"] = json!("NativeHPA");
                        spec["mode"] = json!(if paused { "Paused" } else { "Active" });
                    });
                    self.at(at + time, Task::Undo(Undo::NativeHpa(number)));
                }
            }
            Hand::Freeze(time) => {
                if self.annotate_lease(at, Some("an incident")) {
                    self.at(at + time, Task::Undo(Undo::Freeze));
                }
            }
        }
    }

    /// A hand undoes what it did.
    pub(super) fn undo(&mut self, at: Millis, undo: Undo) {
        self.step(at, format_args!("hand: undoes {undo:?}"));
        match undo {
            Undo::Pause(number) => self.edit_spec(number, |spec| {
                spec.as_object_mut().map(|spec| spec.remove("mode"));
            }),
            Undo::Delete(number) => {
                let workload = &self.workloads[number];
                let object = workload.autoscaler_object(&workload.autoscaler);
                // It may have been created by another hand.
                let _ = self.api.create(&resource::AUTOSCALERS, object);
            }
            Undo::DeleteTarget(number, replicas) => {
                let object = self.workloads[number].object(replicas);
                let _ = self.api.create(workload_resource(&self.workloads[number]), object);
                self.at(at + SECOND, Task::Reconcile(number));
            }
            Undo::Second(number) => {
                let name = format!("{}-second", NAMES[number]);
                self.delete(&resource::AUTOSCALERS, &name);
                let record = &mut locked(&self.oracles).records[number];
                record.ambiguous.set(at, false);
                record.undisturbed_since = at;
            }
            Undo::NativeHpa(number) => self.edit_spec(number, |spec| {
                if let Some(spec) = spec.as_object_mut() {
                    spec.remove("executor");
                    spec.remove("mode");
                }
            }),
            Undo::Freeze => {
                self.annotate_lease(at, None);
            }
        }
    }

    /// `kubectl scale`.
    pub(super) fn scale_by_hand(&mut self, number: usize, replicas: i32) {
        let resource = workload_resource(&self.workloads[number]);
        self.edit(resource, Part::Main, NAMES[number], |object| {
            object["spec"]["replicas"] = json!(replicas);
        });
    }

    fn delete(&self, resource: &'static Resource, name: &str) {
        // It may have been deleted by another hand.
        let _ = self.api.delete(resource, (NAMESPACE, name), &DeleteOptions::default());
    }

    /// HPAs whose Autoscaler is gone are deleted, as kube-controller-manager's garbage collector does, though one may
    /// be created late.
    pub(super) fn collect_garbage(&self) {
        for hpa in self.api.list(&resource::HPAS, NAMESPACE) {
            let name = hpa["metadata"]["name"].as_str().unwrap_or_default();
            let Some(owner) = hpa.pointer("/metadata/ownerReferences/0/uid") else { continue };
            let present = self.api.get(&resource::AUTOSCALERS, NAMESPACE, name);
            if present.is_none_or(|present| present["metadata"]["uid"] != *owner) {
                self.delete(&resource::HPAS, name);
            }
        }
    }

    fn edit_spec(&mut self, number: usize, change: impl FnOnce(&mut Value)) {
        self.edit(&resource::AUTOSCALERS, Part::Main, NAMES[number], |object| {
            change(&mut object["spec"]);
        });
    }

    /// A second autoscaler of a workload, which selects the same pods.
    fn second(&mut self, at: Millis, number: usize, time: Millis) {
        let present = self.api.get(&resource::AUTOSCALERS, NAMESPACE, NAMES[number]);
        // One that is paused claims nothing: the second would scale in its place.
        let Some(present) = present.filter(|one| one["spec"]["mode"] != "Paused") else { return };
        let mut object = self.workloads[number].autoscaler_object(&present["spec"]);
        object["metadata"]["name"] = json!(format!("{}-second", NAMES[number]));
        if self.api.create(&resource::AUTOSCALERS, object).is_ok() {
            {
                let record = &mut locked(&self.oracles).records[number];
                record.ambiguous.set(at, true);
                record.undisturbed_since = at;
            }
            self.at(at + time, Task::Undo(Undo::Second(number)));
        }
    }

    /// Another writer edits an object, by the path of a request.
    pub(super) fn touch(&mut self, path: &str) {
        let now = self.now();
        let parts: Vec<&str> = path.split('/').collect();
        let Some(place) = parts.iter().position(|part| *part == "namespaces") else { return };
        let [namespace, plural, name] = parts[place + 1..][..3] else { return };
        let of = |resource: &&&'static Resource| resource.plural == plural;
        let Some(resource) = resource::ALL.iter().find(of) else { return };
        // It may have been deleted meanwhile.
        let _ = self.api.edit(resource, Part::Main, (namespace, name), |object| {
            if !object["metadata"]["annotations"].is_object() {
                object["metadata"]["annotations"] = json!({});
            }
            object["metadata"]["annotations"]["touched"] = json!(now.to_string());
        });
    }

    /// Somebody else takes the Lease, as another installation of the same name would, and leaves it at once.
    pub(super) fn take_lease(&mut self) {
        let at = self.now();
        self.step(at, "somebody else takes the Lease");
        let renewed = jiff::Timestamp::from_millisecond(self.wall_ms(at));
        let renewed = renewed.expect("a time of this century").to_string();
        let _ =
            self.api.edit(&resource::LEASES, Part::Main, (OWN_NAMESPACE, "plimsoll"), |lease| {
                lease["spec"]["holderIdentity"] = json!("somebody-else");
                lease["spec"]["renewTime"] = json!(renewed);
                lease["spec"]["acquireTime"] = json!(renewed);
            });
    }

    /// Somebody empties the holder of the Lease (`kubectl edit`).
    pub(super) fn clear_lease(&mut self, at: Millis) {
        self.step(at, "somebody clears the Lease");
        let _ =
            self.api.edit(&resource::LEASES, Part::Main, (OWN_NAMESPACE, "plimsoll"), |lease| {
                lease["spec"]["holderIdentity"] = json!("");
            });
    }

    /// What is paused or frozen with the executor NativeHPA must be so in the HPA; a workload that is paused, or
    /// that somebody switched off, needs no metrics.
    pub(super) fn check_left_alone(&mut self, at: Millis) {
        let mut oracles = locked(&self.oracles);
        let Some(leader) = oracles.holder else { return };
        let calm = at - 2 * MINUTE;
        let replica = &oracles.replicas[leader];
        if !replica.is_sound(calm, at) || replica.acquired.is_none_or(|acquired| acquired > calm) {
            return;
        }
        for (number, name) in NAMES.into_iter().enumerate() {
            let record = &oracles.records[number];
            let Some(Some(spec)) = record.specs.now() else { continue };
            let period = spec.period();
            if record.undisturbed_since > calm.min(at - 2 * period) {
                continue;
            }
            let left_alone =
                spec.api.mode == Mode::Paused || oracles.frozen.during(calm, at).all(|one| *one);
            if spec.api.executor == Executor::NativeHPA && left_alone {
                let hpa = self.api.get(&resource::HPAS, NAMESPACE, name);
                let policy = |direction: &str| {
                    let pointer = format!("/spec/behavior/{direction}/selectPolicy");
                    hpa.as_ref().and_then(|hpa| hpa.pointer(&pointer).cloned())
                };
                let policies = ["scaleUp", "scaleDown"].map(policy);
                oracles.checked_of(Oracle::LeftAlone, number);
                if policies.iter().any(|policy| *policy != Some(json!("Disabled"))) {
                    let text = format!("{name}: its HPA is not disabled: {policies:?}");
                    oracles.violate(Oracle::LeftAlone, at, text);
                }
                continue;
            }
            let is_off = record.replicas.now() == Some(&Some(0)) && !record.slept;
            let metric = METRICS.into_iter().find(|metric| spec_reads(&spec.api, metric));
            let queried = (0..REPLICAS)
                .filter(|replica| oracles.replicas[*replica].is_sound(calm, at))
                .filter_map(|replica| self.network.queried(replica, metric?))
                .max();
            if (is_off || spec.api.mode == Mode::Paused)
                && queried.is_some_and(|queried| queried > at - MINUTE)
            {
                let text = format!("{name} is switched off or paused, and its metric is queried");
                oracles.violate(Oracle::Steady, at, text);
            }
        }
    }

    /// Soon after the end of a freeze no status says that scales are frozen, however long the sync period.
    pub(super) fn check_thawed(&mut self, at: Millis) {
        let (latency, is_away) = {
            let conditions = locked(&self.conditions);
            let is_away = conditions.prometheus_away.at(at - MINUTE).is_some()
                || conditions
                    .replicas
                    .iter()
                    .any(|one| one.prometheus_lost.at(at - MINUTE).is_some());
            // One may have begun while it was slow.
            (conditions.prometheus_latency.at(at - 2 * MINUTE).unwrap_or(0), is_away)
        };
        // An evaluation waits for it until its time limit.
        if is_away {
            return;
        }
        let mut oracles = locked(&self.oracles);
        let Some(leader) = oracles.holder.filter(|_| oracles.frozen.now() == Some(&false)) else {
            return;
        };
        let thawed = oracles.frozen.since().unwrap_or(0);
        let replica = &oracles.replicas[leader];
        // The Lease is read every 2 s; an evaluation in flight then ends, and the next one reads metrics twice at most.
        let settled = thawed + 15 * SECOND + 4 * latency;
        let sound = replica.acquired.is_some_and(|acquired| acquired < thawed - MINUTE)
            && replica.alive_since.is_some_and(|since| since < thawed - MINUTE)
            && replica.lag(at) == LAG
            && !replica.trouble.during(thawed - MINUTE, at).any(|trouble| trouble.is_of_api());
        if at < settled || at > thawed + 2 * MINUTE || !sound {
            return;
        }
        for (number, name) in NAMES.into_iter().enumerate() {
            let record = &oracles.records[number];
            let Some(Some(spec)) = record.specs.now() else { continue };
            if spec.api.mode == Mode::Paused
                || spec.api.executor != Executor::Embedded
                || record.undisturbed_since > thawed - MINUTE
            {
                continue;
            }
            oracles.checked_of(Oracle::InTime, number);
            let object = self.api.get(&resource::AUTOSCALERS, NAMESPACE, name);
            let conditions =
                object.as_ref().and_then(|object| object.pointer("/status/conditions"));
            let mut conditions = conditions.and_then(Value::as_array).into_iter().flatten();
            if conditions.any(|one| one["type"] == "Frozen" && one["status"] == "True") {
                let text = format!("{name} is shown as frozen, which ended {}", time(thawed));
                oracles.violate(Oracle::InTime, at, text);
            }
        }
    }

    /// Freezes or thaws all scales, as `plimsoll freeze` and `thaw` do. Returns whether there is a Lease.
    fn annotate_lease(&mut self, at: Millis, reason: Option<&str>) -> bool {
        let changed =
            self.api.edit(&resource::LEASES, Part::Main, (OWN_NAMESPACE, "plimsoll"), |lease| {
                let annotations = &mut lease["metadata"]["annotations"];
                if !annotations.is_object() {
                    *annotations = json!({});
                }
                annotations["plimsoll.dev/freeze-request"] = json!(format!("request-{at}"));
                match reason {
                    Some(reason) => annotations["plimsoll.dev/freeze"] = json!(reason),
                    None => {
                        annotations.as_object_mut().map(|all| all.remove("plimsoll.dev/freeze"));
                    }
                }
            });
        if changed.is_err() {
            return false;
        }
        locked(&self.oracles).frozen.set(at, reason.is_some());
        true
    }
}

/// Whether an autoscaler reads a metric.
fn spec_reads(spec: &AutoscalerSpec, metric: &str) -> bool {
    let external = spec.metrics.iter().flatten().filter_map(|metric| metric.external.as_ref());
    external.map(|external| &external.metric.name).any(|name| name == metric)
        || spec.custom_metrics.iter().any(|custom| custom.metric_name == metric)
}
