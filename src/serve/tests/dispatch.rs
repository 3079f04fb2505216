//! The responses of the dispatch, by method, path and `Accept`.

use super::handled as ask;
use super::*;
use crate::crd::AutoscalerStatus;
use crate::promql::name::generated_name;
use crate::samples::Store;
use crate::supervise::Spawner;
use crate::watch::{AutoscalerRef, ObjectKey, read_autoscaler};

const CUSTOM: &str = "/apis/custom.metrics.k8s.io";
const PODS: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods";

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
async fn metrics_are_given_in_the_format_that_the_scraper_prefers() {
    let server = Arc::new(server(&reviewer().0));
    for (accept, is_openmetrics) in [
        // Prometheus before it knew OpenMetrics; later ones, the last with native histograms.
        ("text/plain;version=0.0.4;q=1,*/*;q=0.1", false),
        (
            "application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            true,
        ),
        (
            "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            true,
        ),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            true,
        ),
        (
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            true,
        ),
        // With `scrape_protocols` in another order.
        (
            "text/plain;version=0.0.4;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.2",
            false,
        ),
        ("text/plain", false),
        ("text/*", false),
        ("text/plain;q=0.5,application/json", false),
        ("application/openmetrics-text;q=0,*/*", false),
        ("text/plain;q=0", true),
        ("text/plain,*/*", true),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", true),
        ("application/json", true),
        ("", true),
    ] {
        let response = ask(&server, ("GET", "/metrics", accept)).await.unwrap();
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        let text = text(response).await;
        let is = (kind.starts_with("application/openmetrics-text;"), text.ends_with("# EOF\n"));
        assert_eq!(is, (is_openmetrics, is_openmetrics), "{accept}: {kind}");
    }
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
    let status = AutoscalerStatus { desired_replicas: Some(7), ..Default::default() };
    server.live.set(&AutoscalerRef::autoscaler(key), status, &[]);
    let status = text(ask(&server, ("GET", path, "*/*")).await.unwrap()).await;
    assert!(status.contains("\"desiredReplicas\":7"), "{status}");
    assert!(ask(&server, ("GET", "/live/autoscalers/shop/api", "*/*")).await.is_err());
}

/// kube-controller-manager takes a sum below zero for an overflow.
#[tokio::test]
async fn a_total_below_zero_is_published_as_zero() {
    let (prometheus, _) = fake::prometheus(|_| {
        let series = r#"{"metric":{"namespace":"shop"},"value":[1,"-5"]}"#;
        let data = format!(r#"{{"resultType":"vector","result":[{series}]}}"#);
        format!(r#"{{"status":"success","data":{data}}}"#)
    })
    .await;
    let mut server = server(&reviewer().0);
    server.groups.push(ApiGroup::External);
    server.samples = Store::new(prometheus, MINUTE, Spawner::unowned());
    let object = json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "executor": "NativeHPA", "maxReplicas": 3, "customMetrics": [{"metricName": "backlog",
            "per": "Workload", "averageValue": "1", "query": "sum(backlog)"}]}});
    let record = read_autoscaler(serde_json::from_value(object).unwrap(), None);
    let key = ObjectKey { namespace: "shop".to_owned(), name: "web".to_owned() };
    server.cluster.write(|index| index.put_autoscaler(key, record));
    let name = generated_name("backlog", None, "shop", "web");
    let path = format!("/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/{name}");
    let values = text(ask(&Arc::new(server), ("GET", &path, "*/*")).await.unwrap()).await;
    assert!(values.contains("\"value\":\"0\""), "{values}");
}
