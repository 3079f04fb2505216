//! `/livez`, `/readyz`, `/healthz`, `/version`: open to anybody. What exactly fails
//! is told to those alone who may read the path with `verbose`.

use super::apiservice::Bundled;
use super::trust::Trust;
use crate::config::LiveConfig;
use crate::rules::Rules;
use crate::supervise::Heartbeat;
use crate::watch::Synced;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use std::fmt::Write;
use tower::ServiceExt;

/// What health depends on.
#[derive(Clone)]
pub struct Health {
    /// The watches.
    pub synced: Synced,
    /// Whom to believe.
    pub trust: Trust,
    /// Whether kube-apiserver can trust our certificate.
    pub bundled: Bundled,
    /// Whether the control loop turns.
    pub heartbeat: Heartbeat,
    /// The configuration in force.
    pub config: LiveConfig,
    /// The rules.
    pub rules: Rules,
}

/// How much is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// `ok`, or the checks that fail.
    Failed,
    /// Every check by its name.
    Checks,
    /// Every check, and what is known of watches, configuration and rules.
    All,
}

/// The paths of health, which are answered in any crowd. With `verbose` and
/// credentials a request goes the way of all others.
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
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    }))
}

async fn ready(health: Health, api: Router, request: Request) -> Response<Body> {
    if !is_verbose(&request) {
        return health.ready(Detail::Failed).into_response();
    }
    // Whoever may not see the details is told as much as anybody.
    let Ok(answer) = api.oneshot(detailed(request)).await;
    match answer.status() {
        StatusCode::OK | StatusCode::INTERNAL_SERVER_ERROR => answer,
        _ => health.ready(Detail::Checks).into_response(),
    }
}

/// The path by which details are asked for, after authorization. The first part is
/// what a client has to be allowed: `/readyz` itself is open.
const DETAILED: &str = "/readyz/verbose";

/// Whether a path is that of the details.
pub fn is_detailed(path: &str) -> bool {
    path == DETAILED
}

fn is_verbose(request: &Request) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|pair| pair == "verbose" || pair.starts_with("verbose="))
}

fn detailed(mut request: Request) -> Request {
    *request.uri_mut() = axum::http::Uri::from_static(DETAILED);
    request
}

impl Health {
    /// Whether the process is of use: a loop that stands still is not.
    pub fn live(&self) -> (StatusCode, String) {
        match self.heartbeat.stands_still_for() {
            None => (StatusCode::OK, "ok".to_owned()),
            Some(since) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                format!(
                    "[-]control-loop failed: it has not turned for {}s\nlivez check failed\n",
                    since.as_secs()
                ),
            ),
        }
    }

    /// Whether requests can be answered, check by check.
    pub fn ready(&self, detail: Detail) -> (StatusCode, String) {
        let missing = self.synced.missing();
        let untrusted = self.bundled.missing();
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

    /// The last good state stays in use: these faults are shown and fail no check.
    fn details(&self, text: &mut String) {
        for watch in self.synced.watches() {
            let _ = writeln!(text, "{watch}");
        }
        if let Some(fault) = self.config.fault() {
            let _ = writeln!(
                text,
                "[!]config: the file can't be reloaded, the last good one is in use: {fault}"
            );
        }
        if self.bundled.is_forbidden() {
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
