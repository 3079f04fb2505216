//! What is answered behind the layers, by method, path and `Accept`.

use super::super::error::ApiError;
use super::super::handle::handle;
use super::*;
use crate::watch::{AutoscalerRef, ObjectKey};
use axum::extract::{Extension, State};

const CUSTOM: &str = "/apis/custom.metrics.k8s.io";
const PODS: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods";

async fn ask(
    server: &Arc<Server>,
    (method, path, accept): (&str, &str, &str),
) -> Result<Response<Body>, ApiError> {
    let request = Request::builder().method(method).uri(path).header("accept", accept);
    let request = request.body(Body::empty()).unwrap();
    let parsed = ParsedPath(RequestInfo::parse(request.uri().path()));
    handle(State(server.clone()), Extension(parsed), request).await
}

#[tokio::test]
async fn each_path_has_its_handler() {
    let server = Arc::new(server(&reviewer().0));
    let openmetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    for (method, path, accept, content_type) in [
        ("GET", "/metrics", "*/*", openmetrics),
        ("HEAD", "/metrics", "*/*", openmetrics),
        ("GET", "/metrics", "text/plain", "text/plain; version=0.0.4; charset=utf-8"),
        ("GET", "/apis", "*/*", "application/json"),
        ("GET", "/apis", "application/yaml", "application/yaml"),
        ("GET", CUSTOM, "*/*", "application/json"),
        ("GET", &format!("{CUSTOM}/v1beta2"), "*/*", "application/json"),
        ("GET", "/openapi/v3", "text/html", "application/json"),
    ] {
        let response = ask(&server, (method, path, accept)).await.unwrap();
        assert_eq!(response.headers()["content-type"], content_type, "{path} {accept}");
    }
    let details = text(ask(&server, ("GET", "/readyz/verbose", "*/*")).await.unwrap()).await;
    assert!(details.starts_with("[+]ping ok\n[-]watches failed"), "{details}");
}

#[tokio::test]
async fn what_is_not_served_is_refused() {
    let server = Arc::new(server(&reviewer().0));
    let metric = format!("{CUSTOM}/v1beta2/namespaces/shop/pods/*/load");
    for (method, path, accept, code) in [
        ("POST", "/metrics", "*/*", 405),
        ("DELETE", CUSTOM, "*/*", 405),
        ("HEAD", &metric, "*/*", 405),
        ("GET", "/", "*/*", 404),
        ("GET", "/metrics/", "*/*", 404),
        ("GET", "/openapi/v3/x", "*/*", 404),
        ("GET", "/apis/apps", "*/*", 404),
        ("GET", &format!("{CUSTOM}/v1"), "*/*", 404),
        ("GET", &format!("{CUSTOM}/v1beta2/namespaces/shop/load"), "*/*", 400),
        // This group is served by another.
        ("GET", "/apis/external.metrics.k8s.io/v1beta1", "*/*", 404),
        // There are no rules for resource usage.
        ("GET", PODS, "*/*", 404),
        ("GET", &format!("{PODS}?watch=1"), "*/*", 405),
        ("GET", &metric, "text/html", 406),
        ("GET", CUSTOM, "text/html", 406),
    ] {
        let error = ask(&server, (method, path, accept)).await.unwrap_err();
        assert_eq!(error.code.as_u16(), code, "{method} {path} {accept}: {error:?}");
    }
}

#[tokio::test]
async fn a_live_status_is_that_of_the_autoscaler() {
    let server = Arc::new(server(&reviewer().0));
    let path = "/live/autoscalers/shop/web";
    let error = ask(&server, ("GET", path, "*/*")).await.unwrap_err();
    assert_eq!(error.code, StatusCode::NOT_FOUND);
    let key = ObjectKey { namespace: "shop".to_owned(), name: "web".to_owned() };
    let status = serde_json::from_value(json!({"desiredReplicas": 7})).unwrap();
    server.live.set(&AutoscalerRef::autoscaler(key), Arc::new(status));
    let status = text(ask(&server, ("GET", path, "*/*")).await.unwrap()).await;
    assert!(status.contains("\"desiredReplicas\":7"), "{status}");
    assert!(ask(&server, ("GET", "/live/autoscalers/shop/api", "*/*")).await.is_err());
}
