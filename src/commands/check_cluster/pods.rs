//! The pods of a target: whether they have the requests that a utilization needs, and whether its selector
//! takes in pods of others.

use super::around::{Around, Utilization};
use crate::control::Owners;
use crate::crd::SelectionStrategy;
use crate::watch::{LeanPod, Owner, read_pod};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// Looks at the pods that the target's selector matches.
pub async fn check_pods(
    around: &mut Around<'_>,
    target: &DynamicObject,
    utilizations: &[Utilization],
) {
    let scale = around.targets.read(&around.object.namespace, &around.target).await;
    let selector = match scale {
        Ok(scale) => scale.selector,
        Err(error) => {
            around.not_checked(&format!("spec.scaleTargetRef: the pods of its selector: {error}"));
            return;
        }
    };
    if selector.is_empty() {
        around.warn("spec.scaleTargetRef: its scale has no selector, so that its pods are not known: metrics of pods can't be read");
        return;
    }
    let what = "spec.scaleTargetRef: the pods of its selector";
    let parameters = ListParams::default().labels(&selector);
    let pods = around.list(&ApiResource::erase::<Pod>(&()), parameters, what).await;
    let mut pods = pods.unwrap_or_default();
    pods.retain(|pod| {
        let phase = pod.data["status"]["phase"].as_str();
        pod.metadata.deletion_timestamp.is_none() && phase != Some("Failed")
    });
    let (own, others) = by_owner(around, pods).await;
    let by_owner = around.object.spec.selection_strategy == Some(SelectionStrategy::OwnerReference);
    for (owner, pods) in others.into_iter().filter(|_| !by_owner) {
        let more = match pods.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        around.warn(&format!(
            "spec.scaleTargetRef: the selector {selector} of {} matches pods of {owner}, too: {}{more}. They count as its replicas in each average: set selectionStrategy: OwnerReference, or give one of the two a label of its own that its selector names",
            around.target_name(), pods[0]
        ));
    }
    let template = &target.data["spec"]["template"]["spec"];
    for Utilization { field, resource, container } in utilizations {
        let lacking = match own.is_empty() {
            true => lacking(template, resource, container.as_deref(), "(its template)"),
            false => own.iter().find_map(|pod| {
                lacking(&pod.data["spec"], resource, container.as_deref(), &pod.name_any())
            }),
        };
        if let Some(lacking) = lacking {
            around.warn(&format!(
                "{field}: {lacking}, which the utilization is relative to, so that it can't be computed: set resources.requests.{resource}, or target averageValue"
            ));
        }
    }
}

/// The pods of the target, and the names of those of others, by their controllers.
async fn by_owner(
    around: &mut Around<'_>,
    pods: Vec<DynamicObject>,
) -> (Vec<DynamicObject>, BTreeMap<String, Vec<String>>) {
    let owners = Owners::new(around.client.clone(), around.targets.clone());
    let reads = AtomicUsize::new(0);
    let (mut own, mut others) = (Vec::new(), BTreeMap::<String, Vec<String>>::new());
    let mut known: HashMap<Arc<Owner>, Option<bool>> = HashMap::new();
    let mut unknown = None;
    for pod in pods {
        let owner = Owner::controller(pod.metadata.owner_references.as_deref()).map(Arc::new);
        let leads = match &owner {
            None => Some(false),
            Some(owner) if known.contains_key(owner) => known[owner],
            Some(owner) => {
                let namespace = &around.object.namespace;
                let leads = owners.leads(namespace, owner.clone(), &around.target, &reads).await;
                let leads = leads.map_err(|error| {
                    unknown.get_or_insert(format!("whose pod {} is: {error}", pod.name_any()));
                });
                known.insert(owner.clone(), leads.ok());
                leads.ok()
            }
        };
        match (leads, owner) {
            (Some(true), _) => own.push(pod),
            (Some(false), owner) => {
                let name = owner.map_or("no workload".to_owned(), |owner| {
                    format!("{} {}", owner.kind, owner.name)
                });
                others.entry(name).or_default().push(pod.name_any());
            }
            (None, _) => {}
        }
    }
    if let Some(unknown) = unknown {
        around.not_checked(&format!("spec.scaleTargetRef: {unknown}"));
    }
    (own, others)
}

/// Which requests a pod of this spec lacks for a utilization, by the rule of the decision.
fn lacking(spec: &Value, resource: &str, container: Option<&str>, pod: &str) -> Option<String> {
    let object = json!({"metadata": {"name": pod}, "spec": spec});
    let lean: LeanPod = serde_json::from_value(object).ok()?;
    let requests = read_pod(lean).requests;
    let error = requests.milli(resource, container, pod).err()?;
    let all = ["containers", "initContainers"].into_iter();
    let all = all.flat_map(|field| spec[field].as_array().into_iter().flatten());
    let names = all.filter_map(|one| one["name"].as_str());
    // An init container that ends is not found among those that count.
    let without = |name: &&str| {
        let of_one = requests.milli(resource, Some(name), pod);
        of_one.is_err_and(|error| error.starts_with("missing request"))
    };
    let names: Vec<&str> = names.filter(without).collect();
    let is_of_pod = error.starts_with("missing pod-level request");
    Some(match container.is_none() && !is_of_pod {
        true => format!(
            "missing request for {resource} in containers {} of Pod {pod}",
            names.join(", ")
        ),
        false => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_containers_that_lack_a_request_are_named_and_init_containers_that_end_are_not() {
        let spec = json!({
            "containers": [
                {"name": "app", "resources": {"requests": {"cpu": "1"}}},
                {"name": "proxy"}],
            "initContainers": [
                {"name": "migrate"},
                {"name": "agent", "restartPolicy": "Always"}]});
        let of = |resource, container| lacking(&spec, resource, container, "web-0");
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(
            of("cpu", None),
            text("missing request for cpu in containers proxy, agent of Pod web-0")
        );
        assert_eq!(of("cpu", Some("app")), None);
        assert_eq!(
            of("memory", Some("app")),
            text("missing request for memory in container app of Pod web-0")
        );
        assert_eq!(of("cpu", Some("apk")), text("container apk not found in Pod web-0"));
        let pod = json!({"containers": [{"name": "app"}], "resources": {"requests": {"cpu": "1"}}});
        assert_eq!(lacking(&pod, "cpu", None, "web-0"), None);
        assert_eq!(
            lacking(&pod, "memory", None, "web-0"),
            text("missing pod-level request for memory in Pod web-0")
        );
    }
}
