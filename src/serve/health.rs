//! `/livez`, `/readyz`, `/healthz` and `/version`, which are always allowed. Only users that may
//! read `/readyz/verbose` see why a check fails.

use super::ca_injector::CaBundleStatus;
use super::trust::TrustStore;
use crate::ledger::Ledger;
use crate::reload::Reloadable;
use crate::rules::Rules;
use crate::supervise::Heartbeat;
use crate::watch::WatchStatuses;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use std::fmt::Write;
use tower::ServiceExt;

/// The state that the health checks look at.
#[derive(Clone)]
pub struct Health {
    /// The health of the watches.
    pub synced: WatchStatuses,
    /// The trusted CAs.
    pub trust: TrustStore,
    /// Whether the APIServices have the CA of the serving certificate.
    pub ca_bundles: CaBundleStatus,
    /// The leader's decisions, which a new replica copies before it is ready.
    pub ledger: Ledger,
    /// Whether the control loop makes progress.
    pub heartbeat: Heartbeat,
    /// The error of the last reload of the configuration file; none if it succeeded.
    pub config_error: Reloadable<Option<String>>,
    /// The rules.
    pub rules: Rules,
}

/// How much a health endpoint shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// `ok`, or the checks if one fails.
    Failed,
    /// Every check.
    Checks,
    /// Every check, and details of the watches, the configuration and the rules.
    All,
}

/// The health endpoints, which overflow connections may read, too. With `verbose`, a request is
/// authenticated and authorized as any other.
pub fn routes(health: Health, api: &Router) -> Router {
    let ping = || get(|| async { "ok" });
    let ready = |State((health, api)): State<(Health, Router)>, request: Request| async move {
        ready(health, api, request).await
    };
    let live = |State((health, _)): State<(Health, Router)>| async move { health.live() };
    Router::new()
        .route("/livez", get(live))
        .route("/healthz", get(ready))
        .route("/readyz", get(ready))
        .route("/livez/ping", ping())
        .route("/healthz/ping", ping())
        .route("/readyz/ping", ping())
        .route("/version", get(version))
        .with_state((health, api.clone()))
}

async fn version() -> impl IntoResponse {
    let [major, minor] = [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR")];
    axum::Json(serde_json::json!({
        "major": major,
        "minor": minor,
        "gitVersion": concat!("v", env!("CARGO_PKG_VERSION")),
        "gitCommit": crate::revision::REVISION.unwrap_or_default(),
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    }))
}

async fn ready(health: Health, api: Router, request: Request) -> Response<Body> {
    if !is_verbose(&request) {
        return health.ready(Detail::Failed).into_response();
    }
    // Without authorization, the response is the one without details.
    let Ok(response) = api.oneshot(detailed(request)).await;
    match response.status() {
        StatusCode::OK | StatusCode::INTERNAL_SERVER_ERROR => response,
        _ => health.ready(Detail::Checks).into_response(),
    }
}

/// The path that a client must be allowed to read for details: `/readyz` itself is always
/// allowed.
const DETAILED_PATH: &str = "/readyz/verbose";

/// Whether a path is the one of the details.
pub fn is_detailed(path: &str) -> bool {
    path == DETAILED_PATH
}

fn is_verbose(request: &Request) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|pair| pair == "verbose" || pair.starts_with("verbose="))
}

fn detailed(mut request: Request) -> Request {
    *request.uri_mut() = axum::http::Uri::from_static(DETAILED_PATH);
    request
}

impl Health {
    /// The liveness check: fails if the control loop is stuck.
    pub fn live(&self) -> (StatusCode, String) {
        match self.heartbeat.stalled_for() {
            None => (StatusCode::OK, "ok".to_owned()),
            Some(since) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                format!(
                    "[-]control-loop failed: no heartbeat for {}s\nlivez check failed\n",
                    since.as_secs()
                ),
            ),
        }
    }

    /// The readiness checks.
    pub fn ready(&self, detail: Detail) -> (StatusCode, String) {
        let missing = self.synced.missing();
        let untrusted = self.ca_bundles.missing();
        let checks = [
            ("ping", None),
            (
                "watches",
                (!missing.is_empty()).then(|| format!("not listed yet: {}", missing.join(", "))),
            ),
            (
                "authentication",
                (!self.trust.is_known()).then(|| {
                    "configmap kube-system/extension-apiserver-authentication was not read yet"
                        .to_owned()
                }),
            ),
            (
                "caBundle",
                (!untrusted.is_empty())
                    .then(|| format!("our CA is not in APIService {} yet", untrusted.join(", "))),
            ),
            (
                "decisions",
                self.ledger
                    .awaits_copy()
                    .then(|| "the leader's decisions were not copied yet".to_owned()),
            ),
        ];
        let failed = checks.iter().any(|(_, fault)| fault.is_some());
        if !failed && detail == Detail::Failed {
            return (StatusCode::OK, "ok".to_owned());
        }
        let mut text = String::new();
        for (name, fault) in checks {
            let _ = match fault {
                None => writeln!(text, "[+]{name} ok"),
                Some(fault) => writeln!(text, "[-]{name} failed: {fault}"),
            };
        }
        if detail == Detail::All {
            self.details(&mut text);
        }
        let _ = writeln!(text, "readyz check {}", if failed { "failed" } else { "passed" });
        let code = if failed { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK };
        (code, text)
    }

    /// The details. These faults fail no check, as the last good state stays in use.
    fn details(&self, text: &mut String) {
        for watch in self.synced.watches() {
            let _ = writeln!(text, "{watch}");
        }
        if let Some(fault) = &*self.config_error.load() {
            let _ = writeln!(
                text,
                "[!]config: the file can't be reloaded, the last good one is in use: {fault}"
            );
        }
        if self.ca_bundles.is_forbidden() {
            let _ = writeln!(
                text,
                "[!]caBundle: listing APIServices is forbidden, so our CA is not written; allow list, watch and patch"
            );
        }
        for (query, fault) in self.rules.failing() {
            let _ = writeln!(text, "[!]rules: the series query {query} fails: {fault}");
        }
    }
}
