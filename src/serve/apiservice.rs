//! Writes the CA of a self-made certificate to the APIServices that lead here,
//! beside those of other replicas, and tells which do not have it yet.

use super::ApiGroup;
use crate::telemetry::Metrics;
use crate::watch::{Failures, Growing};
use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many CAs a bundle has at most; those that were written first are dropped
/// first, and written again by a replica that still needs its own.
const BUNDLED: usize = 16;
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";

/// A bundle with one CA more.
fn with_ca(bundle: &[u8], ca: &str) -> String {
    let text = String::from_utf8_lossy(bundle);
    let others = text.split(BEGIN).skip(1).map(|rest| format!("{BEGIN}{}\n", rest.trim_end()));
    let mut all: Vec<String> = others.collect();
    all.push(format!("{}\n", ca.trim_end()));
    all.drain(..all.len().saturating_sub(BUNDLED));
    all.concat()
}

/// Which APIServices lead here and do not have our CA. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Bundled(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Whether there is a CA of ours to be written.
    wanted: bool,
    /// Whether the APIServices were listed.
    listed: bool,
    /// Whether listing them is forbidden.
    forbidden: bool,
    missing: BTreeMap<String, Missing>,
}

/// An APIService without our CA.
#[derive(Clone, Debug)]
struct Missing {
    object: APIService,
    /// When it is tried to write it again, and how long the wait after that is.
    next: Instant,
    wait: Duration,
}

/// The first wait after a write that failed, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(15);
/// How long a write may take.
const WRITE: Duration = Duration::from_secs(10);

impl Bundled {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The APIServices that lead here and do not have our CA: requests by them fail.
    /// None where our certificate is not self-made, or where the APIServices can't be read.
    pub fn missing(&self) -> Vec<String> {
        let state = self.state();
        if state.wanted && !state.listed {
            return vec!["(not listed yet)".to_owned()];
        }
        state.missing.keys().cloned().collect()
    }

    /// Whether the APIServices can't be read, so that our CA is written to none.
    pub fn is_forbidden(&self) -> bool {
        self.state().forbidden
    }
}

/// Who writes: the Service that our APIServices name, and the CA.
pub struct OwnCa {
    /// The Service.
    pub service: String,
    /// Its namespace.
    pub namespace: String,
    /// The CA of our certificate, as PEM.
    pub ca: String,
}

impl OwnCa {
    /// Whether an APIService leads here, and does not have our CA.
    fn is_missing(&self, object: &APIService) -> bool {
        let Some(spec) = &object.spec else { return false };
        let group = spec.group.as_deref();
        let ours = ApiGroup::ALL.iter().any(|ours| group == Some(ours.as_str()))
            && spec.service.as_ref().is_some_and(|reference| {
                reference.name.as_deref() == Some(&self.service)
                    && reference.namespace.as_deref() == Some(&self.namespace)
            });
        ours && !String::from_utf8_lossy(bundle(object)).contains(self.ca.trim_end())
    }

    async fn write(&self, api: &Api<APIService>, object: &APIService) -> Result<(), String> {
        let bundle = ByteString(with_ca(bundle(object), &self.ca).into_bytes());
        // Another replica may write at the same time: then what it wrote comes by the watch.
        let patch = json!({
            "metadata": {"resourceVersion": object.metadata.resource_version},
            "spec": {"caBundle": bundle, "insecureSkipTLSVerify": null},
        });
        let (name, parameters) = (object.name_any(), PatchParams::default());
        let patch = Patch::Merge(patch);
        let written = api.patch(&name, &parameters, &patch);
        match tokio::time::timeout(WRITE, written).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {WRITE:?}")),
        }
    }
}

fn bundle(object: &APIService) -> &[u8] {
    let bundle = object.spec.as_ref().and_then(|spec| spec.ca_bundle.as_ref());
    bundle.map_or(&[], |bundle| &bundle.0)
}

/// Keeps our CA in `caBundle` of every APIService of our groups that names this Service,
/// for ever. Others are left alone: another adapter may serve them. A write that fails is
/// tried again, after a wait that grows.
pub async fn keep_ca_bundles(client: Client, own: OwnCa, bundled: Bundled, metrics: Arc<Metrics>) {
    bundled.state().wanted = true;
    let api: Api<APIService> = Api::all(client);
    let (waits, progress) = Growing::new();
    let mut events = watch(api.clone(), watcher::Config::default()).backoff(waits).boxed();
    let mut failures = Failures::default();
    loop {
        metrics.serving.ca_bundles_missing(bundled.missing().len());
        let next = bundled.state().missing.values().map(|missing| missing.next).min();
        let due = async {
            match next {
                Some(next) => tokio::time::sleep_until(next.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(event)) => {
                    if !matches!(event, Event::Init) {
                        progress.made();
                        failures.end();
                    }
                    seen(&own, &bundled, event);
                }
                Some(Err(error)) => {
                    if let Some(failures) = failures.one_more() {
                        tracing::warn!(%error, failures, "Failed to watch APIServices");
                    }
                    // With insecureSkipTLSVerify or a caBundle by others that is right: no check fails.
                    if is_forbidden(&error) {
                        let mut state = bundled.state();
                        (state.listed, state.forbidden) = (true, true);
                    }
                }
                None => return,
            },
            () = due => write_due(&api, &own, &bundled).await,
        }
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    let watcher::Error::InitialListFailed(kube::Error::Api(status)) = error else { return false };
    status.code == 403
}

fn seen(own: &OwnCa, bundled: &Bundled, event: Event<APIService>) {
    let mut state = bundled.state();
    match event {
        Event::Init => {}
        Event::InitDone => (state.listed, state.forbidden) = (true, false),
        Event::Delete(object) => drop(state.missing.remove(&object.name_any())),
        Event::Apply(object) | Event::InitApply(object) => {
            let name = object.name_any();
            if own.is_missing(&object) {
                let next = Instant::now();
                state.missing.insert(name, Missing { object, next, wait: FIRST_WAIT });
            } else {
                state.missing.remove(&name);
            }
        }
    }
}

async fn write_due(api: &Api<APIService>, own: &OwnCa, bundled: &Bundled) {
    let now = Instant::now();
    let due: Vec<APIService> = {
        let mut state = bundled.state();
        let due = state.missing.values_mut().filter(|missing| missing.next <= now);
        // What is written comes back by the watch, before the next try.
        due.map(|missing| {
            missing.next = now + missing.wait;
            missing.wait = (missing.wait * 2).min(LONGEST_WAIT);
            missing.object.clone()
        })
        .collect()
    };
    for object in due {
        let name = object.name_any();
        match own.write(api, &object).await {
            Ok(()) => tracing::info!(apiservice = name, "Wrote caBundle"),
            Err(error) => tracing::warn!(apiservice = name, error, "Failed to write caBundle"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_list_that_is_forbidden_is_told_and_fails_no_check() {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            let status = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}"#;
            let answer = http::Response::builder().status(403);
            Ok::<_, tower::BoxError>(
                answer.body(kube::client::Body::from(status.as_bytes().to_vec())).unwrap(),
            )
        });
        let client = Client::new(service, "default");
        let own = OwnCa { service: "a".into(), namespace: "b".into(), ca: "PEM".into() };
        let bundled = Bundled::default();
        let metrics = Arc::new(Metrics::default());
        let keeping = tokio::spawn(keep_ca_bundles(client, own, bundled.clone(), metrics));
        let told = async {
            while !bundled.is_forbidden() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), told).await.expect("it is told");
        assert_eq!(bundled.missing(), Vec::<String>::new());
        keeping.abort();
    }

    #[test]
    fn the_last_cas_of_replicas_stand_side_by_side() {
        let ca = |n: usize| format!("{BEGIN}\n{n}\n-----END CERTIFICATE-----");
        let mut bundle = String::new();
        for n in 0..BUNDLED + 2 {
            bundle = with_ca(bundle.as_bytes(), &ca(n));
        }
        let expected: String = (2..BUNDLED + 2).map(|n| ca(n) + "\n").collect();
        assert_eq!(bundle, expected);
    }
}
