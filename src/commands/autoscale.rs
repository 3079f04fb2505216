//! `plimsoll autoscale`: an Autoscaler for a workload, as `kubectl autoscale` makes an HPA.

use super::check_autoscaler::memory_fault;
use super::convert::yaml;
use super::operate::{Cluster, OperateError, error_before_write, with_hint, write_error};
use crate::config::{AutoscaleFlags, DryRun, ObjectFormat, PerFlag};
use crate::control::{Targets, within};
use crate::crd::{Autoscaler, AutoscalerSpec};
use crate::nearest::nearest;
use kube::api::PostParams;
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, ResourceExt, discovery};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The name of this command in `managedFields`.
const FIELD_MANAGER: &str = "plimsoll-autoscale";

/// The workloads of `apps` and their names for kubectl.
const APPS: [(&str, [&str; 3]); 3] = [
    ("Deployment", ["deployment", "deployments", "deploy"]),
    ("StatefulSet", ["statefulset", "statefulsets", "sts"]),
    ("ReplicaSet", ["replicaset", "replicasets", "rs"]),
];

/// The type of a workload.
#[derive(Debug, PartialEq, Eq)]
enum Type {
    /// One that is known.
    Known { api_version: String, kind: String },
    /// A resource or kind of a group, which discovery knows.
    OfGroup { resource: String, group: String },
}

/// Creates an Autoscaler. Returns what is printed.
///
/// # Errors
/// If the flags are invalid, there is no such workload, or the API server refuses it.
pub async fn run(flags: &AutoscaleFlags) -> Result<String, OperateError> {
    let refused = OperateError::Refused;
    let (kind, name) = target(&flags.target).map_err(refused)?;
    let is_local = flags.dry_run == DryRun::Client && matches!(kind, Type::Known { .. });
    let cluster = match Cluster::of(&flags.kubectl).await {
        Ok(cluster) => Some(cluster),
        Err(_) if is_local => None,
        Err(error) => return Err(error.into()),
    };
    let namespace = flags.namespace.clone().or_else(|| Some(cluster.as_ref()?.namespace.clone()));
    let told = |error| match &cluster {
        Some(cluster) => cluster.told(error),
        None => error,
    };
    let (api_version, kind) = match (kind, &cluster) {
        (Type::Known { api_version, kind }, _) => (api_version, kind),
        (Type::OfGroup { resource, group }, Some(cluster)) => {
            discovered(&cluster.client, &resource, &group).await.map_err(told)?
        }
        (Type::OfGroup { .. }, None) => unreachable!("it is not local"),
    };
    let target = json!({"apiVersion": api_version, "kind": kind, "name": name});
    let object = object(flags, target, namespace.as_deref()).map_err(refused)?;
    let written = match &cluster {
        Some(cluster) if flags.dry_run != DryRun::Client => {
            create(cluster, flags, &object).await.map_err(told)?
        }
        _ => object,
    };
    Ok(printed(flags, &written))
}

/// Creates it, or has the API server check it, where its workload exists.
async fn create(
    cluster: &Cluster,
    flags: &AutoscaleFlags,
    object: &Value,
) -> Result<Value, OperateError> {
    let autoscaler: Autoscaler = serde_json::from_value(object.clone())
        .map_err(|error| OperateError::Refused(error.to_string()))?;
    let namespace = autoscaler.namespace().unwrap_or_default();
    let reference = &autoscaler.spec.scale_target_ref;
    let group = reference.api_version.as_deref().unwrap_or_default();
    let group = group.rsplit_once('/').map_or("", |(group, _)| group);
    let name = format!("{} {namespace}/{}", reference.kind, reference.name);
    let targets = Targets::new(cluster.client.clone());
    let resource: ApiResource =
        targets.resource(group, &reference.kind).await.map_err(OperateError::Refused)?;
    let workloads: Api<DynamicObject> =
        Api::namespaced_with(cluster.client.clone(), &namespace, &resource);
    if let Err(error) = within(workloads.get_metadata(&reference.name)).await {
        let all = Api::all_with(cluster.client.clone(), &resource);
        let place = (&*namespace, &*reference.name);
        let error = error_before_write(name)(error);
        return Err(with_hint(error, &cluster.client, place, [workloads, all]).await);
    }
    let api: Api<Autoscaler> = Api::namespaced(cluster.client.clone(), &namespace);
    let dry_run = flags.dry_run == DryRun::Server;
    let params = PostParams { dry_run, field_manager: Some(FIELD_MANAGER.to_owned()) };
    let named = format!("autoscaler {namespace}/{}", autoscaler.name_any());
    let created = within(api.create(&params, &autoscaler)).await.map_err(write_error(named))?;
    let mut created = json!(created);
    created["metadata"].as_object_mut().map(|metadata| metadata.remove("managedFields"));
    Ok(created)
}

fn printed(flags: &AutoscaleFlags, object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    match flags.output {
        Some(ObjectFormat::Yaml) => yaml(object),
        Some(ObjectFormat::Json) => format!("{object:#}\n"),
        Some(ObjectFormat::Name) => format!("autoscaler.plimsoll.dev/{name}\n"),
        None => {
            let dry_run = match flags.dry_run {
                DryRun::None => "",
                DryRun::Server => " (server dry run)",
                DryRun::Client => " (dry run)",
            };
            format!("autoscaler.plimsoll.dev/{name} autoscaled{dry_run}\n")
        }
    }
}

/// `TYPE/NAME` or `TYPE NAME`.
fn target(words: &[String]) -> Result<(Type, String), String> {
    let expected = "TYPE/NAME or TYPE NAME was expected, such as deployment/web";
    let (kind, name) = match words {
        [one] => one.split_once('/').ok_or_else(|| format!("{one}: {expected}"))?,
        [kind, name] => (&**kind, &**name),
        _ => return Err(expected.to_owned()),
    };
    if name.is_empty() || name.contains('/') || kind.contains('/') {
        return Err(format!("{}: {expected}", words.join(" ")));
    }
    let lower = kind.to_ascii_lowercase();
    let (resource, group) = lower.split_once('.').unwrap_or((&lower, ""));
    let known = |of: &str| {
        let (kind, _) = APPS.iter().find(|(_, names)| names.contains(&of))?;
        Some(Type::Known { api_version: "apps/v1".to_owned(), kind: (*kind).to_owned() })
    };
    let found = match (known(resource), group) {
        (Some(known), "" | "apps" | "v1.apps") => known,
        (None, "")
            if matches!(resource, "replicationcontroller" | "replicationcontrollers" | "rc") =>
        {
            Type::Known { api_version: "v1".to_owned(), kind: "ReplicationController".to_owned() }
        }
        (None, "") => {
            let names = APPS.iter().map(|(_, [name, ..])| (*name).to_owned());
            let hint = nearest(resource, names);
            let hint = hint.map(|known| format!("did you mean {known}/{name}? "));
            return Err(format!(
                "type {kind:?} is not known: {}write TYPE.GROUP/NAME for others, such as rollouts.argoproj.io/web",
                hint.unwrap_or_default()
            ));
        }
        (_, group) => Type::OfGroup { resource: resource.to_owned(), group: group.to_owned() },
    };
    Ok((found, name.to_owned()))
}

/// The version and kind of a resource of a group, which may be named by its kind, too.
async fn discovered(
    client: &Client,
    resource: &str,
    group: &str,
) -> Result<(String, String), OperateError> {
    let found = within(discovery::oneshot::group(client, group)).await;
    let none = || {
        OperateError::Refused(format!(
            "the server doesn't have a resource type {resource:?} in group {group:?}"
        ))
    };
    let found = match found {
        Ok(found) => found,
        Err(kube::Error::Discovery(_)) => return Err(none()),
        Err(error) => return Err(error_before_write(format!("resources of {group}"))(error)),
    };
    let all = found.recommended_resources();
    let is_it = |one: &&(ApiResource, _)| {
        one.0.plural == resource || one.0.kind.eq_ignore_ascii_case(resource)
    };
    let (found, _) = all.iter().find(is_it).ok_or_else(none)?;
    Ok((found.api_version.clone(), found.kind.clone()))
}

/// The Autoscaler of the flags.
fn object(flags: &AutoscaleFlags, target: Value, namespace: Option<&str>) -> Result<Value, String> {
    if flags.min > flags.max {
        return Err(format!("--max={} must be at least --min={}", flags.max, flags.min));
    }
    let name = flags.name.clone().or_else(|| target["name"].as_str().map(str::to_owned));
    let mut spec =
        json!({"scaleTargetRef": target, "minReplicas": flags.min, "maxReplicas": flags.max});
    if let Some(metric) = &flags.metric {
        let value = flags.value.as_deref().unwrap_or_default();
        let mut custom = json!({"metricName": metric, "averageValue": value});
        if !flags.label.is_empty() {
            custom["labels"] = json!(flags.label.iter().cloned().collect::<BTreeMap<_, _>>());
        }
        if flags.per == PerFlag::Workload {
            custom["per"] = "Workload".into();
        }
        if let Some(query) = &flags.query {
            custom["query"] = query.as_str().into();
        }
        spec["customMetrics"] = json!([custom]);
    }
    let resources = [("cpu", &flags.cpu), ("memory", &flags.memory)];
    let resources: Vec<Value> = resources
        .into_iter()
        .filter_map(|(name, target)| Some(resource(name, target.as_deref()?)))
        .collect::<Result<_, _>>()?;
    if !resources.is_empty() {
        spec["resourceMetrics"] = resources.into();
    }
    if flags.preview {
        spec["mode"] = "Preview".into();
    }
    AutoscalerSpec::read(spec.clone()).map_err(|error| error.to_string())?;
    let mut metadata = json!({"name": name});
    if let Some(namespace) = namespace {
        metadata["namespace"] = namespace.into();
    }
    Ok(
        json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler", "metadata": metadata, "spec": spec}),
    )
}

/// What the targets of the flags were taken for, where something else may have been meant.
pub fn notes(flags: &AutoscaleFlags) -> Vec<String> {
    let cpu = flags.cpu.as_deref().filter(|target| has_no_unit(target)).map(|target| {
        format!("--cpu={target} is {target}m, so many thousandths of a core per pod: --cpu={target}% is a percentage of the requests")
    });
    let memory = flags.memory.as_deref().and_then(memory_fault);
    let memory = memory.map(|fault| format!("--memory: {fault}"));
    cpu.into_iter().chain(memory).collect()
}

fn has_no_unit(target: &str) -> bool {
    !target.is_empty() && target.bytes().all(|byte| byte.is_ascii_digit())
}

/// The target of a resource: a percentage, or an average, of CPU in milli-CPU where it has no unit, as kubectl reads it.
fn resource(name: &str, target: &str) -> Result<Value, String> {
    if let Some(percent) = target.strip_suffix('%') {
        let percent: Option<i32> = percent.parse().ok().filter(|percent| *percent > 0);
        let percent = percent.ok_or_else(|| {
            format!("--{name}: {target:?}: a percentage above 0 was expected, such as 70%")
        })?;
        return Ok(json!({"resourceName": name, "averageUtilization": percent}));
    }
    let is_milli = name == "cpu" && has_no_unit(target);
    let target = if is_milli { format!("{target}m") } else { target.to_owned() };
    Ok(json!({"resourceName": name, "averageValue": target}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Cli, Command};
    use clap::Parser;

    fn made(line: &str) -> Result<Value, String> {
        let line = format!("plimsoll autoscale {line}");
        let cli = Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
        let Command::Autoscale(flags) = cli.command else { panic!("another command") };
        let (kind, name) = target(&flags.target)?;
        let Type::Known { api_version, kind } = kind else { return Err(format!("{kind:?}")) };
        let target = json!({"apiVersion": api_version, "kind": kind, "name": name});
        object(&flags, target, flags.namespace.as_deref())
    }

    #[test]
    fn an_autoscaler_is_made_of_flags() {
        let object =
            made("deploy/web --metric qps --value 100 --label code=200 --min 2 --max 9 -n shop")
                .unwrap();
        assert_eq!(object["metadata"], json!({"name": "web", "namespace": "shop"}));
        let expected = json!({"minReplicas": 2, "maxReplicas": 9,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "customMetrics": [{"metricName": "qps", "averageValue": "100", "labels": {"code": "200"}}]});
        assert_eq!(object["spec"], expected);
        let object = made("sts db --cpu 500 --memory 70% --max 3 --name x --preview").unwrap();
        let expected = json!([{"resourceName": "cpu", "averageValue": "500m"},
            {"resourceName": "memory", "averageUtilization": 70}]);
        assert_eq!(object["spec"]["resourceMetrics"], expected);
        assert_eq!(
            (&object["spec"]["mode"], &object["metadata"]["name"]),
            (&json!("Preview"), &json!("x"))
        );
        let object =
            made("rc/a --metric q --value 1 --per workload --query sum(x) --min 0 --max 2")
                .unwrap();
        assert_eq!(object["spec"]["customMetrics"][0]["per"], "Workload");
        assert_eq!(object["spec"]["scaleTargetRef"]["kind"], "ReplicationController");
    }

    #[test]
    fn a_target_that_may_be_meant_otherwise_is_noted() {
        for (targets, expected) in [
            ("--cpu 70", vec!["--cpu=70 is 70m, so many thousandths"]),
            ("--memory 200m", vec!["--memory: 200m is 0.2 bytes"]),
            ("--cpu 70 --memory 70", vec!["--cpu=70 is 70m", "--memory: 70 is 70 bytes"]),
            ("--cpu 70% --memory 70%", vec![]),
            ("--cpu 500m --memory 200Mi", vec![]),
        ] {
            let line = format!("plimsoll autoscale deployment/web --max 3 {targets}");
            let cli = Cli::try_parse_from(line.split(' ')).expect("flags");
            let Command::Autoscale(flags) = cli.command else { panic!("another command") };
            let notes = notes(&flags);
            assert_eq!(notes.len(), expected.len(), "{notes:?}");
            for (note, expected) in notes.iter().zip(expected) {
                assert!(note.starts_with(expected), "{notes:?}");
            }
        }
    }

    #[test]
    fn a_wrong_flag_is_refused_with_what_is_right() {
        for (line, expected) in [
            ("web --cpu 70% --max 3", "TYPE/NAME or TYPE NAME was expected"),
            ("deployment/web --max 3", "--metric <NAME>|--cpu <TARGET>|--memory <TARGET>"),
            ("deployment/web --metric x --max 3", "--value"),
            ("deployment/web --metric x --value 0 --max 3", "a quantity above 0"),
            ("deployment/web --cpu 70%", "--max"),
            ("deployment/web --cpu 70% --min 4 --max 3", "--max=3 must be at least --min=4"),
            ("deployment/web --cpu x --max 3", "averageValue"),
            ("deployment/web --cpu 0% --max 3", "a percentage above 0"),
            ("deployment/web --cpu 70% --min 0 --max 3", "minReplicas"),
            ("deploiment/web --cpu 70% --max 3", "did you mean deployment/web?"),
            ("rollouts.argoproj.io/web --cpu 70% --max 3", "argoproj.io"),
        ] {
            let error = made(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[tokio::test]
    async fn a_resource_of_a_group_is_found_by_its_plural_or_kind() {
        let (client, _) = crate::fake::api(|request| {
            let version = json!({"groupVersion": "argoproj.io/v1alpha1", "version": "v1alpha1"});
            match request.line.as_str() {
                "GET /apis" => {
                    (200, json!({"groups": [{"name": "argoproj.io", "versions": [version]}]}))
                }
                "GET /apis/argoproj.io/v1alpha1" => (
                    200,
                    json!({"groupVersion": "argoproj.io/v1alpha1", "resources": [
                        {"name": "rollouts", "kind": "Rollout", "namespaced": true, "singularName": "rollout", "verbs": []}]}),
                ),
                other => panic!("{other}"),
            }
        });
        for named in ["rollouts", "rollout"] {
            let found = discovered(&client, named, "argoproj.io").await.unwrap();
            assert_eq!(found, ("argoproj.io/v1alpha1".to_owned(), "Rollout".to_owned()));
        }
        let error = discovered(&client, "x", "argoproj.io").await.unwrap_err().to_string();
        assert!(error.contains("doesn't have a resource type"), "{error}");
    }
}
