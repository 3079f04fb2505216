//! The CA injector: adds the CA of a self-signed serving certificate to `caBundle` of our
//! APIServices, next to the CAs of other replicas.

use super::request::ApiGroup;
use crate::kube_error::{worded, worded_watch};
use crate::telemetry::Metrics;
use crate::watch::{FailureLog, ResettableBackoff};
use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The number of CAs in a bundle. The oldest are dropped first; a replica that still needs
/// its CA adds it again. With more replicas than this they would push each other out for ever.
const MAX_CAS: usize = 64;
const PEM_BEGIN: &str = "-----BEGIN CERTIFICATE-----";

/// A bundle with one more CA.
fn with_ca(bundle: &[u8], ca: &str) -> String {
    let text = String::from_utf8_lossy(bundle);
    let others =
        text.split(PEM_BEGIN).skip(1).map(|rest| format!("{PEM_BEGIN}{}\n", rest.trim_end()));
    let mut all: Vec<String> = others.collect();
    all.push(format!("{}\n", ca.trim_end()));
    all.drain(..all.len().saturating_sub(MAX_CAS));
    all.concat()
}

/// The APIServices of this Service that do not have our CA yet. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct CaBundleStatus(Arc<Mutex<InjectorState>>);

#[derive(Debug, Default)]
struct InjectorState {
    /// Whether the injector runs, as the serving certificate is self-signed.
    enabled: bool,
    /// Whether the APIServices were listed.
    listed: bool,
    /// Whether listing them is forbidden.
    forbidden: bool,
    missing: BTreeMap<String, PendingWrite>,
    /// When the APIServices that were written may be written again.
    written: BTreeMap<String, Attempt>,
}

/// The pending write of an APIService without our CA.
#[derive(Clone, Debug)]
struct PendingWrite {
    object: APIService,
    attempt: Attempt,
}

/// The time of the next attempt, and the backoff after it.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    next: Instant,
    backoff: Duration,
}

impl Attempt {
    fn first() -> Self {
        Self { next: Instant::now(), backoff: FIRST_BACKOFF }
    }
}

/// The first and the longest backoff after a write.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(15);
/// How long our CA must have stayed for the backoff to begin anew.
const STAYED: Duration = Duration::from_secs(60);
/// The longest time for a write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

impl CaBundleStatus {
    fn state(&self) -> MutexGuard<'_, InjectorState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The APIServices of this Service without our CA, whose requests fail. None if the serving
    /// certificate is not self-signed, or if the APIServices can't be listed.
    pub fn missing(&self) -> Vec<String> {
        let state = self.state();
        if state.enabled && !state.listed {
            return vec!["(not listed yet)".to_owned()];
        }
        state.missing.keys().cloned().collect()
    }

    /// Whether listing the APIServices is forbidden, so that our CA is added to none.
    pub fn is_forbidden(&self) -> bool {
        self.state().forbidden
    }
}

/// The CA to be injected, and the Service whose APIServices get it.
pub struct ServingCa {
    /// The name of the Service.
    pub service: String,
    /// The namespace of the Service.
    pub namespace: String,
    /// The CA of the serving certificate, as PEM.
    pub ca: String,
}

impl ServingCa {
    /// Whether an APIService names this Service and does not have our CA.
    fn is_missing(&self, object: &APIService) -> bool {
        let Some(spec) = &object.spec else { return false };
        let group = spec.group.as_deref();
        let is_ours = ApiGroup::ALL.iter().any(|served| group == Some(served.as_str()))
            && spec.service.as_ref().is_some_and(|reference| {
                reference.name.as_deref() == Some(&self.service)
                    && reference.namespace.as_deref() == Some(&self.namespace)
            });
        is_ours && !String::from_utf8_lossy(bundle(object)).contains(self.ca.trim_end())
    }

    /// Writes our CA to an APIService.
    async fn write(&self, api: &Api<APIService>, object: &APIService) -> Result<(), String> {
        let bundle = ByteString(with_ca(bundle(object), &self.ca).into_bytes());
        // On a conflict with another replica, the watch sends what that replica wrote.
        let patch = json!({
            "metadata": {"resourceVersion": object.metadata.resource_version},
            "spec": {"caBundle": bundle, "insecureSkipTLSVerify": null},
        });
        let (name, parameters) = (object.name_any(), PatchParams::default());
        let patch = Patch::Merge(patch);
        let written = api.patch(&name, &parameters, &patch);
        match tokio::time::timeout(WRITE_TIMEOUT, written).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(worded(&error)),
            Err(_) => Err(format!("no response within {WRITE_TIMEOUT:?}")),
        }
    }
}

fn bundle(object: &APIService) -> &[u8] {
    let bundle = object.spec.as_ref().and_then(|spec| spec.ca_bundle.as_ref());
    bundle.map_or(&[], |bundle| &bundle.0)
}

/// Keeps our CA in `caBundle` of every APIService of our groups that names this Service, for
/// ever. APIServices of other Services may be another adapter's. Failed writes are retried with
/// a backoff, and those that another writer undoes are repeated with it.
pub async fn run_ca_injector(
    client: Client,
    ca: ServingCa,
    status: CaBundleStatus,
    metrics: Arc<Metrics>,
) {
    status.state().enabled = true;
    let api: Api<APIService> = Api::all(client);
    let (backoff, progress) = ResettableBackoff::new();
    let mut events = watcher(api.clone(), watcher::Config::default()).backoff(backoff).boxed();
    let mut failures = FailureLog::default();
    loop {
        metrics.serving.ca_bundles_missing(status.missing().len());
        let next = status.state().missing.values().map(|pending| pending.attempt.next).min();
        let due = async {
            match next {
                Some(next) => tokio::time::sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(event)) => {
                    if !matches!(event, Event::Init) {
                        progress.made();
                        failures.succeeded();
                    }
                    handle_event(&ca, &status, event);
                }
                Some(Err(error)) => {
                    if let Some(failures) = failures.failed() {
                        let error = worded_watch(&error);
                        tracing::warn!(error, failures, "Failed to watch APIServices");
                    }
                    // It fails no check: with insecureSkipTLSVerify, or if another tool sets caBundle,
                    // the permission is not needed.
                    if is_forbidden(&error) {
                        let mut state = status.state();
                        (state.listed, state.forbidden) = (true, true);
                    }
                }
                None => return,
            },
            () = due => write_due(&api, &ca, &status).await,
        }
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    let watcher::Error::InitialListFailed(kube::Error::Api(status)) = error else { return false };
    status.code == 403
}

fn handle_event(ca: &ServingCa, status: &CaBundleStatus, event: Event<APIService>) {
    let mut state = status.state();
    match event {
        Event::Init => {}
        Event::InitDone => (state.listed, state.forbidden) = (true, false),
        Event::Delete(object) => {
            let name = object.name_any();
            state.missing.remove(&name);
            state.written.remove(&name);
        }
        Event::Apply(object) | Event::InitApply(object) => {
            let name = object.name_any();
            if ca.is_missing(&object) {
                // Another writer may take it out each time.
                let written = state.written.get(&name).copied();
                let recent = written.filter(|attempt| attempt.next.elapsed() < STAYED);
                let attempt = recent.unwrap_or_else(Attempt::first);
                state.missing.insert(name, PendingWrite { object, attempt });
            } else {
                state.missing.remove(&name);
            }
        }
    }
}

async fn write_due(api: &Api<APIService>, ca: &ServingCa, status: &CaBundleStatus) {
    let now = Instant::now();
    let due: Vec<PendingWrite> = {
        let mut state = status.state();
        let due = state.missing.values_mut().filter(|pending| pending.attempt.next <= now);
        // A successful write comes back by the watch, before the next attempt.
        due.map(|pending| {
            let Attempt { next, backoff } = &mut pending.attempt;
            *next = now + *backoff;
            *backoff = (*backoff * 2).min(MAX_BACKOFF);
            pending.clone()
        })
        .collect()
    };
    for PendingWrite { object, attempt } in due {
        let name = object.name_any();
        match ca.write(api, &object).await {
            Ok(()) => {
                tracing::info!(apiservice = name, "Wrote caBundle");
                status.state().written.insert(name, attempt);
            }
            Err(error) => tracing::warn!(apiservice = name, error, "Failed to write caBundle"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    #[tokio::test]
    async fn a_forbidden_list_is_reported_and_fails_no_check() {
        let (client, _) = fake::api(|_| fake::failure(403, "Forbidden", "not for you"));
        let ca = ServingCa { service: "a".into(), namespace: "b".into(), ca: "PEM".into() };
        let status = CaBundleStatus::default();
        let metrics = Arc::new(Metrics::default());
        let injector = tokio::spawn(run_ca_injector(client, ca, status.clone(), metrics));
        let reported = async {
            while !status.is_forbidden() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), reported).await.expect("it is reported");
        assert_eq!(status.missing(), Vec::<String>::new());
        injector.abort();
    }

    /// Another controller that sets `caBundle` to what it was, each time.
    #[tokio::test(start_paused = true)]
    async fn a_ca_that_is_taken_out_again_and_again_is_written_ever_less_often() {
        let object = |bundle: &str| -> APIService {
            let spec = json!({"group": ApiGroup::Custom.as_str(), "version": "v1beta2",
                "groupPriorityMinimum": 1, "versionPriority": 1,
                "service": {"name": "a", "namespace": "b"}, "caBundle": ByteString(bundle.into())});
            let metadata = json!({"name": "v1beta2.custom.metrics.k8s.io"});
            serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
        };
        let (client, log) = fake::api(|request| (200, request.object()));
        let ca = ServingCa { service: "a".into(), namespace: "b".into(), ca: "PEM".into() };
        let (api, status) = (Api::all(client), CaBundleStatus::default());
        let shown = |bundle| handle_event(&ca, &status, Event::Apply(object(bundle)));
        let next =
            || status.state().missing.values().map(|pending| pending.attempt.next).next().unwrap();
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(60) {
            shown("");
            tokio::time::sleep_until(next()).await;
            write_due(&api, &ca, &status).await;
            shown("PEM");
            assert_eq!(status.missing(), Vec::<String>::new());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let writes = log.of("PATCH").len();
        assert!((3..12).contains(&writes), "{writes}");
        // Once it has stayed for a while, it is written at once again.
        tokio::time::sleep(Duration::from_secs(600)).await;
        shown("");
        assert_eq!(next(), Instant::now());
    }

    /// A rollout has as many again for a while.
    #[test]
    fn a_bundle_has_room_for_twice_the_replicas_that_the_chart_allows() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/chart/templates/apiservices.yaml");
        let template = std::fs::read_to_string(path).unwrap();
        let (_, rest) = template.split_once("(gt (int .Values.replicas) ").expect("a maximum");
        let most: usize = rest.split_once(')').unwrap().0.parse().unwrap();
        assert!(2 * most <= MAX_CAS, "{most}");
    }

    #[test]
    fn a_bundle_has_the_last_cas_of_the_replicas() {
        let ca = |n: usize| format!("{PEM_BEGIN}\n{n}\n-----END CERTIFICATE-----");
        let mut bundle = String::new();
        for n in 0..MAX_CAS + 2 {
            bundle = with_ca(bundle.as_bytes(), &ca(n));
        }
        let expected: String = (2..MAX_CAS + 2).map(|n| ca(n) + "\n").collect();
        assert_eq!(bundle, expected);
    }
}
