//! From requests to answers: health, then who asks, whether they may, and what.

use super::authorize::{Action, Authorizer};
use super::discovery::{self, Offered};
use super::health::Health;
use super::identity::{Authenticator, Unidentified};
use super::listen::{Crowded, PeerCertificates};
use super::negotiate::{Form, form, has_common_kind};
use super::request::{ApiGroup, NoTarget, Target};
use super::response::{ApiError, json_body, pretty_body, protobuf_body, yaml_body};
use super::{custom, external, openapi, resource_metrics};
use crate::config::LiveConfig;
use crate::live::LiveStatus;
use crate::rules::Rules;
use crate::samples::Store;
use crate::telemetry::Metrics;
use crate::watch::{Cluster, ObjectKey, Subject};
use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, header};
use axum::response::IntoResponse;
use axum::routing::get;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::SizeAbove;

/// What answering needs.
#[derive(Clone)]
pub struct Server {
    /// What the cluster says.
    pub cluster: Cluster,
    /// The values.
    pub samples: Store,
    /// How they are asked for.
    pub config: LiveConfig,
    /// The metrics of rules.
    pub rules: Rules,
    /// The groups that may be served.
    pub groups: Vec<ApiGroup>,
    /// Tells who asks.
    pub authenticator: Authenticator,
    /// Tells whether they may.
    pub authorizer: Authorizer,
    /// Tells whether requests can be answered.
    pub health: Health,
    /// Plimsoll's own metrics.
    pub metrics: Arc<Metrics>,
    /// The statuses as they are now.
    pub live: LiveStatus,
    /// Bounds the requests that are answered at once.
    pub slots: Slots,
}

/// Room for so many requests at once, and for as many that wait for a while.
#[derive(Clone)]
pub struct Slots {
    running: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl Default for Slots {
    fn default() -> Self {
        let slots = || Arc::new(Semaphore::new(AT_ONCE));
        Self { running: slots(), waiting: slots() }
    }
}

impl Slots {
    /// Waits for room; none where too many wait already, or for too long.
    async fn take(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(slot) = self.running.clone().try_acquire_owned() {
            return Some(slot);
        }
        let _place = self.waiting.clone().try_acquire_owned().ok()?;
        tokio::time::timeout(WAIT, self.running.clone().acquire_owned()).await.ok()?.ok()
    }
}

/// How many requests are answered at once, health apart.
const AT_ONCE: usize = 400;
/// How long a request waits for its turn.
const WAIT: Duration = Duration::from_secs(2);
/// How long answering may take altogether.
const PATIENCE: Duration = Duration::from_secs(30);

/// From which size on answers are compressed for those who take that, as kube-apiserver does.
const COMPRESSED_FROM: u64 = 32 * 1024;

/// The routes of the server.
pub fn router(server: Server) -> Router {
    let compression =
        CompressionLayer::new().gzip(true).compress_when(SizeAbove::new(COMPRESSED_FROM));
    Router::new()
        .route("/livez", get(|| async { "ok" }))
        .route("/healthz", get(ready))
        .route("/readyz", get(ready))
        .fallback(api)
        .with_state(Arc::new(server))
        .layer(compression)
}

async fn ready(
    State(server): State<Arc<Server>>,
    Query(parameters): Query<HashMap<String, String>>,
) -> impl IntoResponse {
    server.health.ready(parameters.contains_key("verbose"))
}

async fn api(
    State(server): State<Arc<Server>>,
    Extension(peer): Extension<PeerCertificates>,
    Extension(Crowded(crowded)): Extension<Crowded>,
    request: Request,
) -> Response<Body> {
    let errors = form(request.headers(), false).unwrap_or(Form::Json);
    let slot = if crowded { None } else { server.slots.take().await };
    let answered = match slot {
        None => Err(ApiError::too_many()),
        Some(_slot) => tokio::time::timeout(PATIENCE, answer(&server, &peer, request))
            .await
            .unwrap_or_else(|_| Err(ApiError::unavailable("the answer took too long"))),
    };
    let response = answered.unwrap_or_else(|error| error.into_form(errors));
    server.metrics.answered(response.status().as_u16());
    response
}

async fn answer(
    server: &Server,
    peer: &PeerCertificates,
    request: Request,
) -> Result<Response<Body>, ApiError> {
    let (parts, _) = request.into_parts();
    let path = parts.uri.path();
    let target = Target::parse(path);
    if !server.authorizer.is_open(path) {
        let identity =
            server.authenticator.identify(&peer.0, &parts.headers).await.map_err(|error| {
                match error {
                    Unidentified::Unknown => ApiError::unauthorized(),
                    Unidentified::Unavailable(_) => ApiError::unavailable(error.to_string()),
                }
            })?;
        if parts.method != Method::GET && parts.method != Method::HEAD {
            return Err(ApiError::method_not_allowed());
        }
        server.authorizer.authorize(&identity, Action::of(target.as_ref().ok(), path)).await?;
    }
    if path == "/metrics" {
        return Ok(server.metrics.exposition().into_response());
    }
    if let Some(subject) = live_subject(path) {
        let status = server.live.get(&subject).ok_or_else(ApiError::no_such_path)?;
        return Ok(json_body(status.as_ref()));
    }
    if path.starts_with(openapi::BASE)
        && let Some(document) = openapi::document(path, &server.served())
    {
        return Ok(json_body(&document));
    }
    let target = target.map_err(|error| match error {
        NoTarget::Unknown => ApiError::no_such_path(),
        NoTarget::Invalid => ApiError::bad_request("invalid request path"),
    })?;
    if target.group().is_some_and(|group| !server.serves(group)) {
        return Err(ApiError::no_such_path());
    }
    // Only what pods and nodes use has a table.
    let has_table = matches!(target, Target::Nodes { .. } | Target::Pods { .. });
    if !has_common_kind(&parts.headers) {
        return Err(ApiError::not_acceptable());
    }
    let form = form(&parts.headers, has_table);
    let value = match target {
        Target::Groups if aggregated(&parts.headers) => {
            let mut groups = Vec::new();
            for group in server.served() {
                groups.push((group, server.offered(group).await));
            }
            let mut response = json_body(&discovery::aggregated(&groups));
            let kind = HeaderValue::from_static(discovery::AGGREGATED);
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            return Ok(response);
        }
        Target::Groups => discovery::groups(&server.served()),
        Target::Group(group) => discovery::group(group),
        Target::Resources(group, version) => {
            discovery::resources(group, version, &server.offered(group).await)
        }
        Target::Object(object) => {
            let answer = custom::objects(server, &object, &parameters(&parts.uri)?).await;
            match server.pass_on(ApiGroup::Custom, &parts.uri, &answer).await {
                Some(passed) => return passed,
                None => answer?,
            }
        }
        Target::External { namespace, metric } => {
            let asked = parameters(&parts.uri)?;
            let answer = external::values(server, &namespace, &metric, &asked).await;
            match server.pass_on(ApiGroup::External, &parts.uri, &answer).await {
                Some(passed) => return passed,
                None => answer?,
            }
        }
        Target::Nodes { name } => {
            let parameters = parameters(&parts.uri)?;
            resource_metrics::nodes(server, name.as_deref(), &parameters).await?
        }
        Target::Pods { namespace, name } => {
            let parameters = parameters(&parts.uri)?;
            let (namespace, name) = (namespace.as_deref(), name.as_deref());
            resource_metrics::pods(server, namespace, name, &parameters).await?
        }
    };
    Ok(match form.ok_or_else(ApiError::not_acceptable)? {
        Form::Yaml => yaml_body(&value),
        Form::Protobuf => protobuf_body(&value),
        Form::Json | Form::Table => {
            let table = form == Some(Form::Table);
            let shown = if table { resource_metrics::table(&value) } else { value };
            match wants_pretty(&parts.uri, &parts.headers) {
                true => pretty_body(&shown),
                false => json_body(&shown),
            }
        }
    })
}

impl Server {
    fn serves(&self, group: ApiGroup) -> bool {
        let rules = self.rules.rules();
        self.groups.contains(&group)
            && match group {
                ApiGroup::Custom => true,
                ApiGroup::External => {
                    !rules.external.is_empty()
                        || self.config.now().pass_on.contains_key(&ApiGroup::External)
                }
                ApiGroup::Resource => rules.resource.is_some(),
            }
    }

    fn served(&self) -> Vec<ApiGroup> {
        ApiGroup::ALL.into_iter().filter(|group| self.serves(*group)).collect()
    }

    /// Where a metric is not known here: what another adapter says of it.
    async fn pass_on(
        &self,
        group: ApiGroup,
        uri: &Uri,
        answer: &Result<Value, ApiError>,
    ) -> Option<Result<Response<Body>, ApiError>> {
        let unknown = matches!(answer, Err(error) if error.code == StatusCode::NOT_FOUND);
        if !unknown {
            return None;
        }
        let config = self.config.now();
        let other = config.pass_on.get(&group)?;
        let path = uri.path_and_query().map_or(uri.path(), |whole| whole.as_str());
        Some(other.get(path).await.map(|(status, body)| {
            let json = HeaderValue::from_static("application/json");
            let mut response = ([(header::CONTENT_TYPE, json)], body).into_response();
            *response.status_mut() = status;
            response
        }))
    }

    async fn offered(&self, group: ApiGroup) -> BTreeSet<Offered> {
        let mut offered = self.own(group);
        if let Some(other) = self.config.now().pass_on.get(&group) {
            offered.extend(other.offered(group).await);
        }
        offered
    }

    /// What Plimsoll itself offers.
    fn own(&self, group: ApiGroup) -> BTreeSet<Offered> {
        match group {
            ApiGroup::Custom => {
                let mut offered: BTreeSet<Offered> = self.cluster.read(|index| {
                    let pods = || "pods".to_owned();
                    let names = index.published_names().into_iter().map(str::to_owned);
                    names.map(|name| Offered::object_metric(pods(), true, name)).collect()
                });
                offered.extend(self.rules.read(|registry| {
                    let metric = |metric: &crate::rules::ObjectMetric| {
                        let resource = metric.resource.to_string();
                        Offered::object_metric(resource, metric.namespaced, metric.metric.clone())
                    };
                    registry.custom_metrics().map(|(key, _)| metric(key)).collect::<Vec<_>>()
                }));
                offered
            }
            ApiGroup::External => self.rules.read(|registry| {
                let names = registry.external_metrics().map(|(metric, _)| metric.clone());
                names.map(Offered::external_metric).collect()
            }),
            ApiGroup::Resource => BTreeSet::from(Offered::resource_metrics()),
        }
    }
}

/// The autoscaler whose status is asked for as it is now:
/// `/live/{autoscalers,horizontalpodautoscalers}/{namespace}/{name}`.
fn live_subject(path: &str) -> Option<Subject> {
    let parts: Vec<&str> = path.strip_prefix("/live/")?.split('/').collect();
    let [resource, namespace, name] = parts.as_slice() else { return None };
    let key = ObjectKey { namespace: (*namespace).to_owned(), name: (*name).to_owned() };
    match *resource {
        "autoscalers" => Some(Subject::autoscaler(key)),
        "horizontalpodautoscalers" => Some(Subject::hpa(key)),
        _ => None,
    }
}

fn parameters<T: DeserializeOwned>(uri: &Uri) -> Result<T, ApiError> {
    let parsed = Query::<T>::try_from_uri(uri);
    parsed.map(|Query(parsed)| parsed).map_err(|error| ApiError::bad_request(error.to_string()))
}

/// Whether a person reads the answer. Source: `isPrettyPrint` of `k8s.io/apiserver`.
fn wants_pretty(uri: &Uri, headers: &HeaderMap) -> bool {
    let asked: HashMap<String, String> = parameters(uri).unwrap_or_default();
    if let Some(pretty) = asked.get("pretty") {
        return matches!(pretty.as_str(), "1" | "t" | "T" | "true" | "TRUE" | "True");
    }
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    let people = ["curl", "Wget", "Mozilla/5.0"];
    agent.is_some_and(|agent| people.iter().any(|person| agent.starts_with(person)))
}

fn aggregated(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_some_and(discovery::accepts_aggregated)
}
