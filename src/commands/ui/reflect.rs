//! Lists and watches the autoscalers into the rows.

use super::error::{is_refused, problem};
use super::row::Row;
use super::rows::Rows;
use super::watching::{Seen, watched};
use crate::crd::Autoscaler;
use crate::watch::{AutoscalerKind, AutoscalerRef, ObjectKey};
use futures::StreamExt;
use futures::future::BoxFuture;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use std::collections::HashSet;

/// The objects of a page of a list.
const PAGE_SIZE: u32 = 500;

/// The tasks that keep the rows of a namespace, or of all, up to date for ever.
pub fn all(client: &Client, namespace: Option<&str>, rows: &Rows) -> [BoxFuture<'static, ()>; 2] {
    [AutoscalerKind::Autoscaler, AutoscalerKind::Hpa].map(|kind| {
        let api = api(client, kind, namespace);
        let (rows, namespace) = (rows.clone(), namespace.map(str::to_owned));
        Box::pin(async move { reflect(api, kind, namespace.as_deref(), &rows).await }) as _
    })
}

/// The name of a kind in messages.
pub fn resource(kind: AutoscalerKind) -> &'static str {
    match kind {
        AutoscalerKind::Autoscaler => "autoscalers.plimsoll.dev",
        AutoscalerKind::Hpa => "horizontalpodautoscalers.autoscaling",
    }
}

/// The objects of a kind as they are, whichever version of their definition is installed.
pub fn api(client: &Client, kind: AutoscalerKind, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = match kind {
        AutoscalerKind::Autoscaler => ApiResource::erase::<Autoscaler>(&()),
        AutoscalerKind::Hpa => ApiResource::erase::<HorizontalPodAutoscaler>(&()),
    };
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

async fn reflect(
    api: Api<DynamicObject>,
    kind: AutoscalerKind,
    namespace: Option<&str>,
    rows: &Rows,
) {
    let config = watcher::Config::default().page_size(PAGE_SIZE);
    let mut watch = watched(api, config).boxed();
    let mut listed = HashSet::new();
    let resource = resource(kind);
    while let Some(seen) = watch.next().await {
        match seen {
            Seen::Failed(error) => {
                let is_refused = is_refused(&error);
                let mut text = problem(&error, resource, namespace);
                if is_refused && rows.has_of(kind) {
                    text += " What is shown of them is as it was.";
                }
                rows.problem(resource, Some(text));
                if is_refused {
                    rows.refused(kind);
                }
                continue;
            }
            Seen::Event(Event::Init) => {
                listed.clear();
                continue;
            }
            Seen::Event(Event::InitApply(object)) => {
                let name = name(kind, &object);
                listed.insert(name.clone());
                apply(rows, name, &object);
                // The list can fail still.
                continue;
            }
            Seen::Event(Event::InitDone) => rows.listed(kind, &listed),
            Seen::Event(Event::Apply(object)) => apply(rows, name(kind, &object), &object),
            Seen::Event(Event::Delete(object)) => rows.remove(&name(kind, &object)),
            Seen::Works => {}
        }
        rows.problem(resource, None);
    }
}

fn apply(rows: &Rows, name: AutoscalerRef, object: &DynamicObject) {
    if is_of_an_autoscaler(object) {
        rows.remove(&name);
    } else {
        let row = Row::read(name.kind, &object.data);
        rows.put(name, row);
    }
}

fn name(kind: AutoscalerKind, object: &DynamicObject) -> AutoscalerRef {
    let namespace = object.metadata.namespace.clone().unwrap_or_default();
    let name = object.metadata.name.clone().unwrap_or_default();
    AutoscalerRef { kind, key: ObjectKey { namespace, name }.into() }
}

/// Whether Plimsoll wrote this HPA for an Autoscaler, which shows its status.
fn is_of_an_autoscaler(object: &DynamicObject) -> bool {
    let owners = object.metadata.owner_references.iter().flatten();
    let mut owners = owners.filter(|owner| owner.controller == Some(true));
    owners.any(|owner| owner.kind == "Autoscaler" && owner.api_version.starts_with("plimsoll.dev/"))
}
