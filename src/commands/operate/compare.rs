//! `plimsoll compare`: the decisions for native HPAs beside those of kube-controller-manager.

use super::super::shown::printed;
use super::super::story::{Agreement, event_line, plain, total};
use super::cluster::Cluster;
use super::decisions::{Wanted, read};
use super::error::{OperateError, api_error};
use crate::config::{CompareFlags, OutputFormat};
use crate::ledger::api::KIND_LABEL;
use crate::time::UnixMillis;
use crate::watch::AutoscalerKind;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The most decisions that are read, in thousands. None is kept.
const THOUSANDS: usize = 2_000;
/// The HPAs of a request.
const PAGE: u32 = 500;
/// How near an event has to be to the first difference, in ms, and how many are shown.
const NEAR_MS: i64 = 60_000;
const MAX_EVENTS: usize = 3;

/// An HPA by namespace and name.
type Key = (String, String);

/// Compares the decisions for each HPA.
///
/// # Errors
/// As [`OperateError`] says.
pub async fn compare(flags: &CompareFlags) -> Result<String, OperateError> {
    let cluster = Cluster::of(&flags.cluster.kubectl).await?;
    compare_in(&cluster, flags).await.map_err(|error| cluster.told(error))
}

async fn compare_in(cluster: &Cluster, flags: &CompareFlags) -> Result<String, OperateError> {
    let Cluster { client, namespace, clock, .. } = cluster;
    let namespace = flags.namespace.as_ref().unwrap_or(namespace);
    let namespace = Some(&**namespace).filter(|_| !flags.all_namespaces);
    let mut all = hpas(client, namespace).await?;
    let now = clock.server_or_wall();
    let from = now.saturating_sub(i64::try_from(flags.since.as_millis()).unwrap_or(i64::MAX));
    let labels = format!("{KIND_LABEL}={}", AutoscalerKind::Hpa.as_str());
    let wanted =
        Wanted { namespace, labels: &labels, since: Some(from.max(0)), thousands: THOUSANDS };
    let is_whole = read(client, wanted, |decision| {
        let metadata = &decision.metadata;
        let name = metadata.name.rsplitn(3, '.').nth(2).unwrap_or_default().to_owned();
        // One that was deleted meanwhile is not compared.
        if let Some(agreement) = all.get_mut(&(metadata.namespace.clone(), name)) {
            agreement.push(decision);
        }
        true
    })
    .await?;
    all.values_mut().for_each(Agreement::finish);
    if all.is_empty() && flags.output == OutputFormat::Text {
        return Ok(none(namespace));
    }
    let (mut text, mut hpas) = (String::new(), Vec::<Value>::new());
    for ((namespace, name), agreement) in &all {
        let events = match agreement.difference_at() {
            Some(at) => events(client, (namespace, name), at).await,
            None => Vec::new(),
        };
        match flags.output {
            OutputFormat::Json | OutputFormat::Yaml => {
                hpas.push(agreement.json(namespace, name, &events));
            }
            OutputFormat::Text => {
                text += &agreement.text(&format!("{namespace}/{name}"), &events);
            }
        }
    }
    if flags.output != OutputFormat::Text {
        return Ok(printed(&json!({ "hpas": hpas, "complete": is_whole }), flags.output));
    }
    if all.values().any(Agreement::is_empty) {
        text += "Compared are HPAs of Deployments and StatefulSets whose metrics Plimsoll serves (of CPU and memory with resourceRules), under --native-hpas=observe\n";
    }
    if !is_whole {
        text += &format!(
            "Not all were read, after {THOUSANDS},000 decisions: a shorter --since or --namespace has them\n"
        );
    }
    Ok(text + &total(all.values()))
}

/// What is said where there is none.
fn none(namespace: Option<&str>) -> String {
    match namespace {
        Some(of) => format!("no native HPAs in namespace {of}; -A looks into all namespaces\n"),
        None => "no native HPAs in the cluster\n".to_owned(),
    }
}

/// The HPAs of a namespace, or of all.
async fn hpas(
    client: &Client,
    namespace: Option<&str>,
) -> Result<BTreeMap<Key, Agreement>, OperateError> {
    let api: Api<HorizontalPodAutoscaler> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let (mut all, mut params) = (BTreeMap::new(), ListParams::default().limit(PAGE));
    loop {
        let list = api.list_metadata(&params).await.map_err(api_error("native HPAs"))?;
        let more = list.metadata.continue_.clone().filter(|token| !token.is_empty());
        for hpa in list {
            let key = (hpa.namespace().unwrap_or_default(), hpa.name_any());
            all.insert(key, Agreement::default());
        }
        match more {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}

/// The events of kube-controller-manager about an HPA around a time, as long as they are kept.
async fn events(client: &Client, (namespace, name): (&str, &str), at: UnixMillis) -> Vec<String> {
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let fields = format!("involvedObject.kind=HorizontalPodAutoscaler,involvedObject.name={name}");
    let params = ListParams::default().fields(&fields).limit(PAGE);
    let Ok(list) = api.list(&params).await else { return Vec::new() };
    let line = |event: Event| {
        let time = event.last_timestamp.map(|time| time.0.as_millisecond());
        let time = time.or(event.event_time.map(|time| time.0.as_millisecond()))?;
        let [reason, message] = [event.reason, event.message].map(Option::unwrap_or_default);
        let is_near = (time - at).abs() <= NEAR_MS;
        is_near.then(|| plain(&event_line(time, &reason, &message)).into_owned())
    };
    list.items.into_iter().filter_map(line).take(MAX_EVENTS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_namespaces_are_offered_where_one_was_looked_into() {
        assert!(none(Some("shop")).contains("namespace shop; -A"));
        assert!(!none(None).contains("-A"));
    }
}
