//! Who else writes the replicas of a target, or the requests that its utilization is relative to.

use super::super::check_targets::{Rival, rivals_text};
use super::super::objects::maker;
use super::around::{Around, Utilization};
use crate::crd::{Autoscaler, Mode};
use crate::k8s::managed_fields::{ReplicasOwner, Way, replicas_owners};
use crate::watch;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::ResourceExt;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Where `kubectl apply` keeps the manifest that it applied last.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The other writers of a target's `spec.replicas`, and what to do about each. An HPA that is to scale it is none.
pub fn writers(target: &DynamicObject, name: &str, is_scaled_by_hpa: bool) -> Vec<String> {
    let applied = target.annotations().get(LAST_APPLIED);
    let applied: Option<Value> = applied.and_then(|text| serde_json::from_str(text).ok());
    let applied = applied.as_ref().map(|manifest| manifest["spec"]["replicas"].as_i64());
    let replicas = target.data["spec"]["replicas"].as_i64();
    let mut owners = replicas_owners(target.managed_fields());
    owners.retain(|owner| {
        // Who creates an object owns its defaults, too.
        let is_default = owner.way == Way::Update
            && owner.manager == "kubectl-client-side-apply"
            && applied == Some(None);
        let is_hpa = owner.way == Way::Scale && owner.manager == "kube-controller-manager";
        !(owner.is_plimsoll() || is_default || is_hpa && is_scaled_by_hpa)
    });
    let text = |owner: &ReplicasOwner| {
        let advice = owner.way.advice();
        match owner.way {
            Way::Scale => {
                let known = ["kubectl", "kube-controller-manager", "keda"];
                let is_known = known.iter().any(|known| owner.manager.starts_with(known));
                let earlier = match is_known {
                    true => "",
                    false => {
                        "; an earlier build of Plimsoll, which had another name, needs nothing either: this ends when the workload is scaled once more"
                    }
                };
                format!("{owner} was the last to scale {name}: {advice}{earlier}")
            }
            Way::Update if replicas == Some(1) && applied.is_none() => format!(
                "{owner} owns spec.replicas of {name}, or only left it at the default when it made the object. If its manifest has spec.replicas, each of its writes sets the scale back: {advice}"
            ),
            Way::Apply | Way::Update => format!(
                "{owner} owns spec.replicas of {name}, so that each of its writes sets the scale back: {advice}"
            ),
        }
    };
    let mut texts: Vec<String> = owners.iter().map(text).collect();
    let is_told = owners.iter().any(|owner| owner.manager == "kubectl-client-side-apply");
    if let Some(Some(replicas)) = applied.filter(|_| !is_told) {
        texts.push(format!(
            "the manifest of {name} that kubectl apply applied last has spec.replicas: {replicas}, and the next kubectl apply sets the scale back to it: {}",
            Way::Update.advice()
        ));
    }
    texts
}

/// Looks for other autoscalers of the target.
pub async fn check_autoscalers(around: &mut Around<'_>) {
    let mut rivals = BTreeSet::new();
    let hpas = ApiResource::erase::<HorizontalPodAutoscaler>(&());
    let what = "spec.scaleTargetRef: HorizontalPodAutoscalers of the same target";
    let preview = around.object.spec.mode == Mode::Preview;
    let all = match preview {
        // That one scales meanwhile is what a preview is for.
        true => None,
        false => around.list(&hpas, ListParams::default(), what).await,
    };
    for hpa in all.into_iter().flatten() {
        let is_own = watch::owner(&hpa.metadata).is_some() && hpa.name_any() == around.object.name;
        if is_own || !around.is_target(&hpa.data["spec"]["scaleTargetRef"]) {
            continue;
        }
        let owners = json!({"metadata": {"ownerReferences": hpa.owner_references()}});
        rivals.insert(Rival::hpa(hpa.name_any(), maker(&owners)));
    }
    let autoscalers = ApiResource::erase::<Autoscaler>(&());
    let what = "spec.scaleTargetRef: Autoscalers of the same target";
    let all = around.list(&autoscalers, ListParams::default(), what).await;
    for other in all.into_iter().flatten() {
        let scales = other.data["spec"]["mode"] != "Preview" && !preview;
        let is_same = other.name_any() == around.object.name;
        if scales && !is_same && around.is_target(&other.data["spec"]["scaleTargetRef"]) {
            rivals.insert(Rival::autoscaler(other.name_any()));
        }
    }
    let makers: BTreeSet<String> = rivals.iter().map(Rival::as_maker).collect();
    rivals.retain(|rival| !rival.is_made_by(|maker| makers.contains(maker)));
    if let Some(text) = rivals_text(rivals.iter(), rivals.len(), &around.target_name()) {
        around.warn(&text);
    }
}

/// Looks for VerticalPodAutoscalers that change the requests of these utilizations.
pub async fn check_vpas(
    around: &mut Around<'_>,
    target: Option<&DynamicObject>,
    utilizations: &[Utilization],
) {
    let kind = GroupVersionKind::gvk("autoscaling.k8s.io", "v1", "VerticalPodAutoscaler");
    let vpas = ApiResource::from_gvk_with_plural(&kind, "verticalpodautoscalers");
    let what = "spec.metrics: VerticalPodAutoscalers of the same target (autoscaling.k8s.io/v1)";
    let all = around.list(&vpas, ListParams::default(), what).await;
    let containers = target.map(containers).unwrap_or_default();
    for vpa in all.into_iter().flatten() {
        let spec = &vpa.data["spec"];
        let mode = spec["updatePolicy"]["updateMode"].as_str().unwrap_or("Auto");
        if mode == "Off" || !around.is_target(&spec["targetRef"]) {
            continue;
        }
        for Utilization { field, resource, container } in utilizations {
            let mut of = match container {
                Some(container) => vec![container.as_str()],
                None => containers.clone(),
            };
            if of.is_empty() {
                of.push("*");
            }
            if of.iter().any(|container| controls(spec, container, resource)) {
                around.warn(&format!(
                    "{field}: VerticalPodAutoscaler {} (updateMode {mode}) sets the requests for {resource} that the utilization is relative to, so that each answers the other's changes: target averageValue instead, or take {resource} out of its spec.resourcePolicy.containerPolicies[].controlledResources",
                    vpa.name_any()
                ));
            }
        }
    }
}

/// The names of the containers of a workload's template.
fn containers(target: &DynamicObject) -> Vec<&str> {
    let containers = target.data["spec"]["template"]["spec"]["containers"].as_array();
    containers.into_iter().flatten().filter_map(|one| one["name"].as_str()).collect()
}

/// Whether a VPA of this spec sets the requests of a container for a resource: by the container's policy, or that
/// of `*`, or the default of CPU and memory.
fn controls(spec: &Value, container: &str, resource: &str) -> bool {
    let policies = spec["resourcePolicy"]["containerPolicies"].as_array();
    let of = |name: &str| {
        policies.into_iter().flatten().find(|policy| policy["containerName"].as_str() == Some(name))
    };
    let Some(policy) = of(container).or_else(|| of("*")) else {
        return ["cpu", "memory"].contains(&resource);
    };
    policy["mode"] != "Off"
        && match policy["controlledResources"].as_array() {
            Some(resources) => resources.iter().any(|one| one == resource),
            None => ["cpu", "memory"].contains(&resource),
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(replicas: i32, last_applied: Option<Value>, owners: Value) -> DynamicObject {
        let annotations = match last_applied {
            Some(manifest) => json!({LAST_APPLIED: manifest.to_string()}),
            None => json!({}),
        };
        serde_json::from_value(json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "annotations": annotations, "managedFields": owners},
            "spec": {"replicas": replicas}}))
        .expect("an object")
    }

    fn owner(manager: &str, operation: &str, subresource: Option<&str>) -> Value {
        json!({"manager": manager, "operation": operation, "subresource": subresource,
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:replicas": {}}}})
    }

    #[test]
    fn other_writers_of_the_replicas_are_told_from_those_who_left_the_default() {
        let with = || Some(json!({"spec": {"replicas": 4}}));
        let without = || Some(json!({"spec": {}}));
        let kubectl = || owner("kubectl-client-side-apply", "Update", None);
        let scaled = || owner("plimsoll", "Update", Some("scale"));
        let hpa = || owner("kube-controller-manager", "Update", Some("scale"));
        for (replicas, applied, owners, expected) in [
            (1, without(), json!([kubectl()]), vec![]),
            (5, without(), json!([scaled()]), vec![]),
            (4, with(), json!([kubectl()]), vec!["\"kubectl-client-side-apply\" (Update) owns"]),
            (5, with(), json!([scaled()]), vec!["applied last has spec.replicas: 4"]),
            (3, None, json!([owner("argocd", "Apply", None)]), vec!["\"argocd\" (Apply) owns"]),
            (1, None, json!([owner("helm", "Update", None)]), vec!["left it at the default"]),
            (3, None, json!([hpa()]), vec!["was the last to scale Deployment web"]),
        ] {
            let texts = writers(&deployment(replicas, applied, owners), "Deployment web", false);
            assert_eq!(texts.len(), expected.len(), "{texts:?}");
            for (text, part) in texts.iter().zip(expected) {
                assert!(text.contains(part), "{text}");
            }
        }
        assert!(writers(&deployment(3, None, json!([hpa()])), "", true).is_empty());
        for (manager, is_maybe_ours) in
            [("unknown", true), ("kubectl", false), ("kube-controller-manager", false)]
        {
            let owners = json!([owner(manager, "Update", Some("scale"))]);
            let texts = writers(&deployment(3, None, owners), "Deployment web", false);
            assert_eq!(
                texts[0].contains("an earlier build of Plimsoll"),
                is_maybe_ours,
                "{texts:?}"
            );
        }
    }

    #[test]
    fn a_vpa_controls_what_the_policy_of_the_container_says() {
        let spec = json!({"resourcePolicy": {"containerPolicies": [
            {"containerName": "proxy", "mode": "Off"},
            {"containerName": "app", "controlledResources": ["memory"]},
            {"containerName": "*", "controlledResources": ["cpu"]}]}});
        for (container, resource, expected) in [
            ("proxy", "cpu", false),
            ("app", "cpu", false),
            ("app", "memory", true),
            ("other", "cpu", true),
            ("other", "memory", false),
        ] {
            assert_eq!(controls(&spec, container, resource), expected, "{container} {resource}");
        }
        assert!(controls(&json!({}), "app", "cpu") && !controls(&json!({}), "app", "storage"));
    }
}
