//! Dispatches requests that were authorized to their handlers.

use super::encode::{ResponseContent, encode, json};
use super::error::ApiError;
use super::health::{self, Detail};
use super::options::{ListOptions, parameters};
use super::request::{ApiGroup, PathError, RequestInfo};
use super::server::Server;
use super::user::UserInfo;
use super::{custom, discovery, external, negotiate, openapi, resource_metrics};
use crate::telemetry::Metrics;
use crate::watch::{AutoscalerRef, ObjectKey};
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, header};
use axum::response::IntoResponse;
use serde_json::value::RawValue;

/// Dispatches a request of this user, anonymous if its path is always allowed, and encodes the response.
///
/// # Errors
/// As a Kubernetes client expects them.
pub async fn handle(
    server: &Server,
    parts: &Parts,
    path: Result<RequestInfo, PathError>,
    user: Option<&UserInfo>,
) -> Result<Response<Body>, ApiError> {
    let content = dispatch(server, parts, path, user).await?;
    encode(content, &parts.uri, &parts.headers)
}

async fn dispatch(
    server: &Server,
    parts: &Parts,
    path: Result<RequestInfo, PathError>,
    user: Option<&UserInfo>,
) -> Result<ResponseContent, ApiError> {
    check_method(&parts.method, &path)?;
    if let Some(content) = non_resource(server, parts)? {
        return Ok(content);
    }
    let info = path.map_err(|error| match error {
        PathError::NotFound => ApiError::no_such_path(),
        PathError::Invalid => ApiError::bad_request("invalid request path"),
    })?;
    if info.group().is_some_and(|group| !server.serves(group)) {
        return Err(ApiError::no_such_path());
    }
    let is_watch = info.is_list() && parameters::<ListOptions>(&parts.uri)?.is_watch();
    let is_decisions = matches!(info, RequestInfo::Decisions { .. });
    if is_watch && !is_decisions {
        return Err(ApiError::method_not_allowed());
    }
    if !negotiate::accepts_any(&parts.headers) {
        return Err(ApiError::not_acceptable());
    }
    if is_watch && let RequestInfo::Decisions { namespace, .. } = &info {
        let options = parameters(&parts.uri)?;
        return server.decisions.watch(namespace.as_deref(), &options, parts, user).await;
    }
    resource(server, info, parts).await
}

/// Refuses methods other than GET and, except for objects, HEAD.
fn check_method(method: &Method, path: &Result<RequestInfo, PathError>) -> Result<(), ApiError> {
    let is_object = path.as_ref().is_ok_and(|info| !info.is_discovery());
    match *method {
        Method::GET => Ok(()),
        Method::HEAD if !is_object => Ok(()),
        _ => Err(ApiError::method_not_allowed()),
    }
}

/// The response for a non-resource path; none for any other path.
fn non_resource(server: &Server, parts: &Parts) -> Result<Option<ResponseContent>, ApiError> {
    let path = parts.uri.path();
    let response = if health::is_detailed(path) {
        server.health.ready(Detail::All).into_response()
    } else if path == "/metrics" {
        exposition(&server.metrics, &parts.headers)
    } else if let Some(autoscaler) = live_autoscaler(path) {
        let status = server.live.get(&autoscaler).ok_or_else(ApiError::no_such_path)?;
        json(&serde_json::from_str::<&RawValue>(&status).expect("a status is JSON"))
    } else if path.starts_with(openapi::BASE)
        && let Some(document) = openapi::document(path, &server.served_groups())
    {
        return Ok(Some(ResponseContent::Document(document, "application/json")));
    } else {
        return Ok(None);
    };
    Ok(Some(ResponseContent::Response(response)))
}

/// Plimsoll's own metrics, in the format that the client prefers.
fn exposition(metrics: &Metrics, headers: &HeaderMap) -> Response<Body> {
    let (content_type, text) = match negotiate::prefers_prometheus_text(headers) {
        true => ("text/plain; version=0.0.4; charset=utf-8", metrics.prometheus_text()),
        false => {
            ("application/openmetrics-text; version=1.0.0; charset=utf-8", metrics.openmetrics())
        }
    };
    ([(header::CONTENT_TYPE, HeaderValue::from_static(content_type))], text).into_response()
}

async fn resource(
    server: &Server,
    info: RequestInfo,
    parts: &Parts,
) -> Result<ResponseContent, ApiError> {
    match &info {
        RequestInfo::Groups if negotiate::accepts_aggregated_discovery(&parts.headers) => {
            let mut groups = Vec::new();
            for group in server.served_groups() {
                groups.push((group, server.served_resources(group).await));
            }
            Ok(ResponseContent::Document(discovery::aggregated(&groups), discovery::AGGREGATED))
        }
        RequestInfo::Groups => {
            Ok(ResponseContent::Discovery(discovery::groups(&server.served_groups())))
        }
        RequestInfo::Group(group) => Ok(ResponseContent::Discovery(discovery::group(*group))),
        RequestInfo::Resources(group, version) => {
            let resources = server.served_resources(*group).await;
            Ok(ResponseContent::Discovery(discovery::resources(*group, *version, &resources)))
        }
        RequestInfo::Object(object) => {
            let values = custom::objects(server, object, &parts.uri).await;
            forward_if_not_found(server, ApiGroup::Custom, (&info, &parts.uri), values).await
        }
        RequestInfo::External { namespace, metric } => {
            let options = parameters(&parts.uri)?;
            let values = external::values(server, namespace, metric, &options).await;
            let values = values.map(ResponseContent::Object);
            forward_if_not_found(server, ApiGroup::External, (&info, &parts.uri), values).await
        }
        RequestInfo::Decisions { namespace, name } => {
            let options = parameters(&parts.uri)?;
            match (namespace, name) {
                (Some(namespace), Some(name)) => {
                    server.decisions.get(namespace, name, &options).await
                }
                _ => server.decisions.list(namespace.as_deref(), &options, parts).await,
            }
        }
        RequestInfo::Nodes { .. } | RequestInfo::Pods { .. }
            if server.rules.rules().resource.is_none() =>
        {
            Err(ApiError::no_such_path())
        }
        RequestInfo::Nodes { name } => {
            let options = parameters(&parts.uri)?;
            let value = resource_metrics::nodes(server, name.as_deref(), &options).await?;
            Ok(ResponseContent::Tabular(value, resource_metrics::table))
        }
        RequestInfo::Pods { namespace, name } => {
            let options = parameters(&parts.uri)?;
            let (namespace, name) = (namespace.as_deref(), name.as_deref());
            let value = resource_metrics::pods(server, namespace, name, &options).await?;
            Ok(ResponseContent::Tabular(value, resource_metrics::table))
        }
    }
}

/// Forwards a request for a metric that Plimsoll does not know to the adapter that is configured
/// for the API group, if any.
async fn forward_if_not_found(
    server: &Server,
    group: ApiGroup,
    (info, uri): (&RequestInfo, &Uri),
    values: Result<ResponseContent, ApiError>,
) -> Result<ResponseContent, ApiError> {
    let not_found = matches!(&values, Err(error) if error.code == StatusCode::NOT_FOUND);
    let targets = server.forward.load();
    let Some(target) = targets.get(&group).filter(|_| not_found) else {
        return values;
    };
    let (status, body) = target.get(&info.path(), uri.query()).await?;
    let json = HeaderValue::from_static("application/json");
    let mut response = ([(header::CONTENT_TYPE, json)], body).into_response();
    *response.status_mut() = status;
    Ok(ResponseContent::Response(response))
}

/// The autoscaler of a live status:
/// `/live/{autoscalers,horizontalpodautoscalers}/{namespace}/{name}`.
fn live_autoscaler(path: &str) -> Option<AutoscalerRef> {
    let parts: Vec<&str> = path.strip_prefix("/live/")?.split('/').collect();
    let [resource, namespace, name] = parts.as_slice() else { return None };
    let key = ObjectKey { namespace: (*namespace).to_owned(), name: (*name).to_owned() };
    match *resource {
        "autoscalers" => Some(AutoscalerRef::autoscaler(key)),
        "horizontalpodautoscalers" => Some(AutoscalerRef::hpa(key)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_only_read_by_get() {
        let check = |method: Method, path: &str| check_method(&method, &RequestInfo::parse(path));
        let object = "/apis/metrics.k8s.io/v1beta1/nodes";
        for path in ["/metrics", "/apis", object] {
            assert_eq!(check(Method::GET, path), Ok(()), "{path}");
            assert_eq!(check(Method::POST, path), Err(ApiError::method_not_allowed()), "{path}");
        }
        assert_eq!(check(Method::HEAD, "/apis"), Ok(()));
        assert_eq!(check(Method::HEAD, object), Err(ApiError::method_not_allowed()));
    }

    #[test]
    fn a_live_status_is_found_by_kind_and_name() {
        let key = ObjectKey { namespace: "shop".to_owned(), name: "web".to_owned() };
        assert_eq!(
            live_autoscaler("/live/autoscalers/shop/web"),
            Some(AutoscalerRef::autoscaler(key))
        );
        for path in ["/live/autoscalers/shop", "/live/pods/shop/web", "/live/autoscalers/a/b/c"] {
            assert_eq!(live_autoscaler(path), None, "{path}");
        }
    }
}
