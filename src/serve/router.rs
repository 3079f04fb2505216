//! From requests to answers: the routes, the layers around them, and what is
//! answered to those who have passed the layers.

use super::admission::Admission;
use super::authorize::Authorizer;
use super::discovery::{self, Offered};
use super::health::{self, Health};
use super::identity::Authenticator;
use super::layers::{self, Asked, Authentication};
use super::negotiate::{Form, form, has_common_kind};
use super::parameters::Listing;
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
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::IntoResponse;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
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
}

/// From which size on answers are compressed for those who take that, as kube-apiserver does.
const COMPRESSED_FROM: u64 = 32 * 1024;

/// The routes of the server, and the layers around those that are not open to anybody.
pub fn router(server: Server) -> Router {
    let compression =
        CompressionLayer::new().gzip(true).compress_when(SizeAbove::new(COMPRESSED_FROM));
    let (authorizer, metrics) = (server.authorizer.clone(), server.metrics.clone());
    let authentication =
        Authentication::new(server.authenticator.clone(), authorizer.clone(), metrics.clone());
    let room = (Admission::default(), metrics.clone());
    let health = server.health.clone();
    let server = Arc::new(server);
    // The last layer is the outermost.
    let api = Router::new()
        .fallback(answer)
        .with_state(server)
        .layer(from_fn_with_state(room.clone(), layers::admit_allowed))
        .layer(from_fn_with_state(authorizer, layers::authorize))
        .layer(from_fn_with_state(room, layers::admit))
        .layer(from_fn_with_state(authentication, layers::authenticate))
        .layer(from_fn(layers::canonical))
        .layer(from_fn_with_state(metrics, layers::observe))
        .layer(compression);
    health::routes(health, &api).fallback_service(api)
}

async fn answer(
    State(server): State<Arc<Server>>,
    Extension(Asked(target)): Extension<Asked>,
    request: Request,
) -> Result<Response<Body>, ApiError> {
    let (parts, _) = request.into_parts();
    let (server, path) = (&*server, parts.uri.path());
    let is_object = target.as_ref().is_ok_and(|target| !target.is_discovery());
    match parts.method {
        Method::GET => {}
        Method::HEAD if !is_object => {}
        _ => return Err(ApiError::method_not_allowed()),
    }
    if health::is_detailed(path) {
        return Ok(server.health.ready(health::Detail::All).into_response());
    }
    if path == "/metrics" {
        return Ok(server.metrics.exposition(&parts.headers).into_response());
    }
    if let Some(subject) = live_subject(path) {
        let status = server.live.get(&subject).ok_or_else(ApiError::no_such_path)?;
        return Ok(json_body(status.as_ref()));
    }
    if path.starts_with(openapi::BASE)
        && let Some(document) = openapi::document(path, &server.served())
    {
        return Ok(tagged(&parts.headers, &document, "application/json"));
    }
    let target = target.map_err(|error| match error {
        NoTarget::Unknown => ApiError::no_such_path(),
        NoTarget::Invalid => ApiError::bad_request("invalid request path"),
    })?;
    if target.group().is_some_and(|group| !server.serves(group)) {
        return Err(ApiError::no_such_path());
    }
    let listing: Listing = parameters(&parts.uri)?;
    if target.is_list() && listing.watches() {
        return Err(ApiError::method_not_allowed());
    }
    // Only what pods and nodes use has a table.
    let has_table = matches!(target, Target::Nodes { .. } | Target::Pods { .. });
    if !has_common_kind(&parts.headers) {
        return Err(ApiError::not_acceptable());
    }
    let form = form(&parts.headers, has_table);
    let pretty = wants_pretty(&parts.uri, &parts.headers);
    let way = (target.path(), parts.uri.query());
    let value = match target {
        Target::Groups if aggregated(&parts.headers) => {
            let mut groups = Vec::new();
            for group in server.served() {
                groups.push((group, server.offered(group).await));
            }
            let document = discovery::aggregated(&groups);
            return Ok(tagged(&parts.headers, &document, discovery::AGGREGATED));
        }
        Target::Groups | Target::Group(_) | Target::Resources(..) => {
            let document = match target {
                Target::Group(group) => discovery::group(group),
                Target::Resources(group, version) => {
                    discovery::resources(group, version, &server.offered(group).await)
                }
                _ => discovery::groups(&server.served()),
            };
            if form == Some(Form::Json) && !pretty {
                return Ok(tagged(&parts.headers, &document, "application/json"));
            }
            document
        }
        Target::Object(object) => {
            let answer = custom::objects(server, &object, &parameters(&parts.uri)?).await;
            match server.pass_on(ApiGroup::Custom, &way, &answer).await {
                Some(passed) => return passed,
                None => answer?,
            }
        }
        Target::External { namespace, metric } => {
            let asked = parameters(&parts.uri)?;
            let answer = external::values(server, &namespace, &metric, &asked).await;
            match server.pass_on(ApiGroup::External, &way, &answer).await {
                Some(passed) => return passed,
                None => answer?,
            }
        }
        Target::Nodes { .. } | Target::Pods { .. } if server.rules.rules().resource.is_none() => {
            return Err(ApiError::no_such_path());
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
            match pretty {
                true => pretty_body(&shown),
                false => json_body(&shown),
            }
        }
    })
}

impl Server {
    /// What is registered must answer, with or without rules: discovery that fails
    /// holds up the deletion of namespaces in the whole cluster.
    fn serves(&self, group: ApiGroup) -> bool {
        self.groups.contains(&group)
    }

    fn served(&self) -> Vec<ApiGroup> {
        ApiGroup::ALL.into_iter().filter(|group| self.serves(*group)).collect()
    }

    /// Where a metric is not known here: what another adapter says of it.
    async fn pass_on(
        &self,
        group: ApiGroup,
        (path, query): &(String, Option<&str>),
        answer: &Result<Value, ApiError>,
    ) -> Option<Result<Response<Body>, ApiError>> {
        let unknown = matches!(answer, Err(error) if error.code == StatusCode::NOT_FOUND);
        if !unknown {
            return None;
        }
        let config = self.config.now();
        let other = config.pass_on.get(&group)?;
        Some(other.get(path, *query).await.map(|(status, body)| {
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
                // Generated names are not listed: each has a namespace and the name of an
                // autoscaler in it, which everybody may read here, and there may be
                // ten thousand. Who asks for one knows it.
                self.rules.read(|registry| {
                    let metric = |metric: &crate::rules::ObjectMetric| {
                        let resource = metric.resource.to_string();
                        Offered::object_metric(resource, metric.namespaced, metric.metric.clone())
                    };
                    registry.custom_metrics().map(|(key, _)| metric(key)).collect()
                })
            }
            ApiGroup::External => self.rules.read(|registry| {
                let names = registry.external_metrics().map(|(metric, _)| metric.clone());
                names.map(Offered::external_metric).collect()
            }),
            ApiGroup::Resource => match self.rules.rules().resource {
                Some(_) => BTreeSet::from(Offered::resource_metrics()),
                None => BTreeSet::new(),
            },
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

/// An answer that a client may keep: with a tag, by which it is told that its copy is good.
fn tagged(headers: &HeaderMap, document: &Value, kind: &'static str) -> Response<Body> {
    let body = serde_json::to_vec(document).expect("an API object has nothing that JSON can't say");
    let hash = Sha256::digest(&body);
    let tag: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let mut response = match layers::not_modified(headers, &tag) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(header::CONTENT_TYPE, HeaderValue::from_static(kind))], body).into_response(),
    };
    let tag = HeaderValue::from_str(&format!("\"{tag}\"")).expect("hex digits in quotes");
    response.headers_mut().insert(header::ETAG, tag);
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}
