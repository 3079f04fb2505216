//! The replicas: whether they are ready, and of one version.

use super::apis::{ServiceName, is_own};
use super::report::Group;
use crate::commands::operate::Cluster;
use crate::commands::story::counted;
use crate::config::ClusterFlags;
use crate::control::within;
use crate::kube_error::worded;
use crate::leader::NAME_LABEL;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use std::collections::{BTreeMap, BTreeSet};

/// What is known of the replicas.
#[derive(Debug, Default)]
pub struct Replicas {
    /// The names of the pods; none if they can't be listed.
    pub pods: Option<Vec<String>>,
    /// The service account of the pods.
    pub service_account: Option<String>,
    /// `--prometheus-url` of the pods.
    pub prometheus_url: Option<String>,
}

/// Checks the Deployment and its pods.
pub async fn check(
    cluster: &Cluster,
    flags: &ClusterFlags,
    services: &BTreeMap<String, ServiceName>,
) -> (Replicas, Group) {
    let (mut known, mut group) = (Replicas::default(), Group::new("plimsoll-replicas"));
    let namespace = &flags.plimsoll_namespace;
    let label = format!("{}={}", NAME_LABEL.0, NAME_LABEL.1);
    let params = ListParams::default().labels(&label);
    let what = format!("there is a Deployment of Plimsoll in namespace {namespace}");
    let api: Api<Deployment> = Api::namespaced(cluster.client.clone(), namespace);
    let deployments = match within(api.list(&params)).await {
        Ok(deployments) => deployments.items,
        Err(error) => {
            group.skipped(&what, &worded(&error), "");
            return (known, group);
        }
    };
    let [deployment] = &*deployments else {
        let found = format!("{} with the label {label}", counted_deployments(deployments.len()));
        let other = services.values().find(|service| !is_own(service, flags));
        let hint = match other {
            Some((other, _)) => {
                format!("APIServices name a Service in {other}: --plimsoll-namespace={other}")
            }
            None => "--plimsoll-namespace names the namespace that it is installed in".to_owned(),
        };
        group.failed(&what, &found, &hint);
        return (known, group);
    };
    group.passed(&what);
    let template = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    known.service_account = template.and_then(|pod| pod.service_account_name.clone());
    let args = template.into_iter().flat_map(|pod| &pod.containers);
    let args: Vec<&String> = args.flat_map(|container| container.args.iter().flatten()).collect();
    known.prometheus_url = value(&args, "--prometheus-url");
    ready(&mut group, deployment);

    let what = "its pods are ready, and of one image";
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    let pods = match within(api.list(&params)).await {
        Ok(pods) => pods.items,
        Err(error) => {
            group.skipped(what, &worded(&error), "");
            return (known, group);
        }
    };
    check_pods(&mut group, namespace, &pods);
    known.pods = Some(pods.iter().map(ResourceExt::name_any).collect());
    (known, group)
}

/// The value of a flag.
fn value(args: &[&String], name: &str) -> Option<String> {
    let at = args.iter().position(|arg| arg.split('=').next() == Some(name))?;
    match args[at].split_once('=') {
        Some((_, value)) => Some(value.to_owned()),
        None => args.get(at + 1).map(|value| (*value).clone()),
    }
}

fn counted_deployments(count: usize) -> String {
    if count == 0 { "there is none".to_owned() } else { format!("there are {count}") }
}

/// Whether as many replicas are ready as there should be, and more than one.
fn ready(group: &mut Group, deployment: &Deployment) {
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let ready = deployment.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
    let what = format!("Deployment {} has all its replicas ready", deployment.name_any());
    let found = format!("{ready} of {wanted} ready");
    match wanted {
        0 => group.failed(&what, "it is scaled to zero", "scale it to 2"),
        _ if ready < wanted => group.failed(&what, &found, ""),
        1 => group.warn(
            &what,
            "it has one replica: nothing is served or scaled while it restarts",
            "scale it to 2",
        ),
        _ => group.passed(&format!("{what} ({ready})")),
    }
}

fn check_pods(group: &mut Group, namespace: &str, pods: &[Pod]) {
    for pod in pods {
        let name = pod.name_any();
        let status = pod.status.clone().unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let is_ready = conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
        let containers = status.container_statuses.unwrap_or_default();
        let what = format!("pod {name} is ready");
        if !is_ready {
            let waiting = containers.iter().find_map(waits);
            let unscheduled = conditions.iter().find(|one| one.status == "False");
            let why = waiting.or_else(|| unscheduled.and_then(|one| one.message.clone()));
            let hint = format!(
                "kubectl -n {namespace} logs {name}; kubectl -n {namespace} describe pod {name}"
            );
            group.failed(&what, &why.unwrap_or_else(|| "it is not ready".to_owned()), &hint);
        }
        if let Some((restarts, why)) = containers.iter().find_map(restarted) {
            let times = counted(i64::from(restarts), "time");
            let hint = format!("kubectl -n {namespace} logs --previous {name}");
            group.warn(
                &format!("pod {name} does not restart"),
                &format!("restarted {times}, last: {why}"),
                &hint,
            );
        }
    }
    let images: BTreeSet<&str> = pods
        .iter()
        .filter_map(|pod| pod.spec.as_ref())
        .flat_map(|pod| &pod.containers)
        .filter_map(|container| container.image.as_deref())
        .filter(|image| image.contains("plimsoll"))
        .collect();
    let what = "all replicas are of one version";
    match images.iter().copied().collect::<Vec<_>>().as_slice() {
        [] => {}
        [image] => group.passed(&format!("{what} ({image})")),
        images => group.warn(
            what,
            &images.join(", "),
            "wait for the rollout, or see why it does not end: kubectl rollout status",
        ),
    }
}

/// What a container waits for, or how it ended.
fn waits(status: &ContainerStatus) -> Option<String> {
    let state = status.state.as_ref()?;
    let waiting = state.waiting.as_ref().map(|one| (one.reason.clone(), one.message.clone()));
    let ended = || state.terminated.as_ref().map(|one| (one.reason.clone(), one.message.clone()));
    let (reason, message) = waiting.or_else(ended)?;
    let both = [reason, message].into_iter().flatten().collect::<Vec<_>>();
    Some(both.join(": "))
}

/// How often a container restarted, and why the last time, if it did after a failure.
fn restarted(status: &ContainerStatus) -> Option<(i32, String)> {
    let last = status.last_state.as_ref()?.terminated.as_ref()?;
    let why = last.reason.clone().unwrap_or_default();
    let is_fault = status.restart_count > 0 && last.exit_code != 0;
    is_fault.then(|| (status.restart_count, format!("{why}, exit code {}", last.exit_code)))
}

#[cfg(test)]
mod tests {
    use super::super::report::Outcome::{Failed, Passed, Warning};
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, image: &str, status: Value) -> Value {
        json!({"metadata": {"name": name}, "status": status,
            "spec": {"containers": [{"name": "plimsoll", "image": image}]}})
    }

    #[tokio::test]
    async fn a_replica_that_is_not_ready_is_told_with_why() {
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "plimsoll", "image": "", "imageID": "", "ready": true,
                "restartCount": 2, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]});
        let waiting = json!({"containerStatuses": [{"name": "plimsoll", "image": "", "imageID": "",
            "ready": false, "restartCount": 0, "state": {"waiting": {"reason": "ErrImagePull"}}}]});
        let args = json!(["serve", "--prometheus-url=http://prom:9090"]);
        let template = json!({"spec": {"serviceAccountName": "p", "containers": [{"name": "plimsoll", "args": args}]}});
        let deployment = json!({"metadata": {"name": "plimsoll"}, "status": {"readyReplicas": 1},
            "spec": {"replicas": 2, "selector": {}, "template": template}});
        let pods = json!([pod("a", "plimsoll:1", ready), pod("b", "plimsoll:2", waiting)]);
        let (client, _) = crate::fake::api(move |request| {
            let is_pods = request.line.ends_with("/pods");
            let items = if is_pods { pods.clone() } else { json!([deployment]) };
            (200, json!({"metadata": {}, "items": items}))
        });
        let flags = ClusterFlags {
            kubectl: Default::default(),
            plimsoll_namespace: "plimsoll".to_owned(),
            lease: "plimsoll".to_owned(),
        };
        let (known, group) = check(&Cluster::fake(client), &flags, &BTreeMap::new()).await;
        assert_eq!(group.outcomes(), [Passed, Failed, Warning, Failed, Warning]);
        let text = format!("{group:?}");
        for said in
            ["1 of 2 ready", "OOMKilled, exit code 137", "ErrImagePull", "plimsoll:1, plimsoll:2"]
        {
            assert!(text.contains(said), "{said}: {text}");
        }
        assert_eq!(known.prometheus_url.as_deref(), Some("http://prom:9090"));
        assert_eq!(known.service_account.as_deref(), Some("p"));
    }
}
