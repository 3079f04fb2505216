//! `plimsoll status`: the leader, the freeze, and the failing Autoscalers.

use super::super::story::{plain, span};
use super::cluster::{Cluster, lease_name};
use super::error::{OperateError, api_error};
use crate::config::{ClusterFlags, StatusFlags};
use crate::crd::{Autoscaler, AutoscalerStatus, Mode};
use crate::leader::Freeze;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use std::fmt::Write;

/// Shows the leader, the freeze, and the failing Autoscalers. Of both, what can be read is shown, and why the other can't.
///
/// # Errors
/// As [`OperateError`] says, and if nothing can be read.
pub async fn status(flags: &StatusFlags) -> Result<String, OperateError> {
    let cluster = Cluster::of(&flags.cluster).await?;
    status_of(&cluster, flags).await.map_err(|error| cluster.told(error))
}

async fn status_of(cluster: &Cluster, flags: &StatusFlags) -> Result<String, OperateError> {
    let place = cluster.place.strip_prefix("context ").unwrap_or(&cluster.place);
    let mut text = format!("Context  {place}\n");
    let lease = match leader(cluster, &flags.cluster).await {
        Err(error) if !error.is_refused() => return Err(error),
        lease => lease,
    };
    let autoscalers = autoscalers(cluster, flags.namespace.as_deref()).await;
    let lease_name = lease_name(&flags.cluster);
    match (lease, autoscalers) {
        (Ok(None), Err(autoscalers)) if autoscalers.is_unknown_kind() => {
            return Err(OperateError::Refused(format!(
                "Plimsoll's definitions are not installed, and there is no {lease_name}"
            )));
        }
        (Err(lease), Err(autoscalers)) => {
            let hint = hint(flags, &autoscalers);
            return Err(OperateError::Refused(format!("{lease}\nplimsoll: {autoscalers}{hint}")));
        }
        (lease, autoscalers) => {
            text += &match lease {
                Ok(Some(leader)) => leader,
                Ok(None) => format!("Leader   none: there is no {lease_name}\n"),
                Err(error) => format!("Leader   not known: {error}\n"),
            };
            text += &autoscalers.unwrap_or_else(|error| {
                format!("Autoscalers   not known: {error}{}\n", hint(flags, &error))
            });
        }
    }
    Ok(text)
}

/// What helps who may not list the Autoscalers of all namespaces.
fn hint(flags: &StatusFlags, error: &OperateError) -> &'static str {
    match flags.namespace.is_none() && error.is_refused() {
        true => "; -n NAMESPACE shows those of one namespace",
        false => "",
    }
}

/// Who leads, and whether scales are frozen; none if there is no Lease.
async fn leader(cluster: &Cluster, flags: &ClusterFlags) -> Result<Option<String>, OperateError> {
    let read = cluster.leases(flags).get_opt(&flags.lease).await;
    let Some(lease) = read.map_err(api_error(lease_name(flags)))? else {
        return Ok(None);
    };
    let spec = lease.spec.clone().unwrap_or_default();
    let age = |renewed: i64| {
        format!("{} ago", span(cluster.clock.server_or_wall().saturating_sub(renewed)))
    };
    let renewed = spec.renew_time.map(|time| age(time.0.as_millisecond()));
    let renewed = renewed.unwrap_or_else(|| "never".to_owned());
    let mut text = match spec.holder_identity.filter(|holder| !holder.is_empty()) {
        Some(holder) => format!("Leader   {}, renewed {renewed}\n", plain(&holder)),
        None => "Leader   none\n".to_owned(),
    };
    if let Some(freeze) = Freeze::of(&lease) {
        let _ = writeln!(text, "Frozen   no scale is written: {}", plain(&freeze.to_string()));
    }
    Ok(Some(text))
}

/// How many Autoscalers there are in a namespace, or in all, and which fail.
async fn autoscalers(cluster: &Cluster, namespace: Option<&str>) -> Result<String, OperateError> {
    let client = cluster.client.clone();
    let (api, of): (Api<Autoscaler>, _) = match namespace {
        Some(namespace) => (Api::namespaced(client, namespace), format!(" in {namespace}")),
        None => (Api::all(client), String::new()),
    };
    let all = api.list(&ListParams::default()).await.map_err(api_error("autoscalers"))?;
    let mut failing = Vec::new();
    for object in &all {
        if let Some(condition) = object.status.as_ref().and_then(fault) {
            let name = format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any());
            let why = format!("{}: {}", condition.reason, condition.message);
            failing.push((plain(&name).into_owned(), plain(&why).into_owned()));
        }
    }
    let now = cluster.clock.server_or_wall();
    let paused = all.iter().filter(|object| object.spec.mode_at(now) == Mode::Paused).count();
    let count = all.items.len();
    let failed = failing.len();
    let mut text =
        format!("Autoscalers   {count}{of}, {failed} of them failing, {paused} paused\n");
    let width = failing.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    for (name, why) in failing {
        let _ = writeln!(text, "  {name:width$}   {why}");
    }
    Ok(text)
}

/// The condition with which an Autoscaler fails, if it does.
fn fault(status: &AutoscalerStatus) -> Option<&Condition> {
    let conditions = status.conditions.as_ref()?;
    let healthy = ["AbleToScale", "ScalingActive"];
    conditions.iter().find(|c| {
        c.status != "True" && healthy.contains(&&*c.type_) && c.reason != "ScalingDisabled"
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, Dated};
    use crate::commands::story;
    use crate::fake;
    use jiff::Timestamp;
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};

    /// The status by an API server that answers so at this time, whatever the clock here says.
    async fn shown_at(now: Timestamp, lease: Value, autoscalers: Value) -> String {
        let date = jiff::fmt::rfc2822::DateTimePrinter::new();
        let date = date.timestamp_to_rfc9110_string(&now).unwrap();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let is_lease = request.uri().path().contains("/leases/");
            let body = if is_lease { lease.clone() } else { autoscalers.clone() };
            let response = http::Response::builder().header("date", &date);
            let response = response.body(Body::from(body.to_string().into_bytes()));
            async move { Ok::<_, kube::Error>(response.unwrap()) }
        });
        let clock = Clock::default();
        let service = Dated::new(service, clock.clone());
        let client = Client::new(service, "default");
        let cluster = Cluster { clock, ..Cluster::fake(client) };
        status_of(&cluster, &flags(None)).await.unwrap()
    }

    fn flags(namespace: Option<&str>) -> StatusFlags {
        let cluster = ClusterFlags {
            kubeconfig: None,
            context: None,
            plimsoll_namespace: "plimsoll".to_owned(),
            lease: "plimsoll".to_owned(),
        };
        StatusFlags { namespace: namespace.map(str::to_owned), cluster }
    }

    fn lease(holder: &str, renewed: Timestamp, annotations: Value) -> Value {
        json!({"metadata": {"name": "plimsoll", "annotations": annotations},
            "spec": {"holderIdentity": holder, "renewTime": format!("{renewed:.6}")}})
    }

    fn list(spec: Value, status: Value) -> Value {
        let mut all = json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "maxReplicas": 3});
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        json!({"metadata": {}, "items": [{"metadata": {"namespace": "shop", "name": "web"},
            "spec": all, "status": status}]})
    }

    /// The clock of a laptop is an hour ahead.
    #[tokio::test]
    async fn times_are_by_the_clock_of_the_server() {
        let hour = jiff::SignedDuration::from_hours(1);
        let now = Clock::default().wall_timestamp() - hour;
        let until = (now + hour / 2).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let spec = json!({"mode": "Paused", "pause": {"until": until}});
        let text = shown_at(now, lease("a", now, json!({})), list(spec, json!({}))).await;
        let renewed = text.lines().find_map(|line| line.strip_prefix("Leader   a, renewed "));
        assert!(renewed.is_some_and(|age| ["0s ago", "1s ago", "2s ago"].contains(&age)), "{text}");
        assert!(text.contains("Autoscalers   1, 0 of them failing, 1 paused"), "{text}");
    }

    /// Prometheus, or what stands before it, writes the texts of conditions.
    #[tokio::test]
    async fn no_text_of_an_object_controls_the_terminal() {
        let now = Clock::default().wall_timestamp();
        let evil = "\u{1b}[2J\u{1b}]0;x\u{7}a\u{202e}b\nAutoscalers   1, 0 of them failing";
        let annotations = json!({"plimsoll.dev/freeze": evil, "plimsoll.dev/frozen-by": evil});
        let condition = json!({"type": "ScalingActive", "status": "False", "reason": evil,
            "message": evil, "lastTransitionTime": "2026-11-25T10:00:00Z"});
        let status = json!({"conditions": [condition]});
        let text = shown_at(now, lease(evil, now, annotations), list(json!({}), status)).await;
        assert!(!text.chars().any(|one| one != '\n' && story::is_unsafe(one)), "{text:?}");
        assert_eq!(text.lines().count(), 5, "{text}");
        assert_eq!(text.matches("b Autoscalers   1, 0 of them failing").count(), 5, "{text}");
    }

    /// The status where these are refused, and with a namespace or for all.
    async fn shown(refused: &'static [&str], namespace: Option<&str>) -> (bool, String) {
        let service = tower::service_fn(move |request: http::Request<Body>| async move {
            let is_lease = request.uri().path().contains("/leases/");
            let what = if is_lease { "leases" } else { "autoscalers" };
            let (code, body) = match (refused.contains(&what), is_lease) {
                (true, _) => fake::failure(403, "Forbidden", &format!("cannot read {what}")),
                (false, true) => fake::failure(404, "NotFound", "there is no Lease"),
                (false, false) => (200, json!({"metadata": {}, "items": []})),
            };
            let response = http::Response::builder().status(code);
            Ok::<_, kube::Error>(response.body(Body::from(body.to_string().into_bytes())).unwrap())
        });
        let client = Client::new(service, "default");
        match status_of(&Cluster::fake(client), &flags(namespace)).await {
            Ok(text) => (true, text),
            Err(error) => (false, error.to_string()),
        }
    }

    #[tokio::test]
    async fn what_can_be_read_is_shown_with_why_the_rest_can_not() {
        let (is_good, text) = shown(&["leases"], Some("shop")).await;
        let lines: Vec<&str> = text.lines().collect();
        assert!(is_good && lines[0] == "Context  test", "{text}");
        let expected = "Leader   not known: Lease plimsoll/plimsoll: Error from server (Forbidden): cannot read leases";
        assert!(lines[1].starts_with(expected), "{text}");
        assert_eq!(lines[2], "Autoscalers   0 in shop, 0 of them failing, 0 paused");
        let (is_good, text) = shown(&["autoscalers"], None).await;
        assert!(is_good && text.contains("Leader   none"), "{text}");
        assert!(text.contains("cannot read autoscalers; -n NAMESPACE shows"), "{text}");
        let (is_good, text) = shown(&["leases", "autoscalers"], None).await;
        assert!(!is_good && text.contains("cannot read leases"), "{text}");
        assert!(text.contains("\nplimsoll: autoscalers: Error from server"), "{text}");
    }

    #[tokio::test]
    async fn a_cluster_without_plimsoll_is_told_as_that() {
        let service = tower::service_fn(|request: http::Request<Body>| async move {
            let is_lease = request.uri().path().contains("/leases/");
            let body = match is_lease {
                true => fake::failure(404, "NotFound", "there is no Lease").1.to_string(),
                false => "404 page not found\n".to_owned(),
            };
            let response = http::Response::builder().status(404);
            Ok::<_, kube::Error>(response.body(Body::from(body.into_bytes())).unwrap())
        });
        let cluster = Cluster::fake(Client::new(service, "default"));
        let error = status_of(&cluster, &flags(None)).await.unwrap_err();
        assert_eq!(
            cluster.told(error).to_string(),
            "context test (https://test): Plimsoll's definitions are not installed, and there is no Lease plimsoll/plimsoll"
        );
    }
}
