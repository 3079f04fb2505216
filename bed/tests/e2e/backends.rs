//! Where metrics come from: Prometheus, the backend of a rule, and another adapter.

use crate::SOON;
use crate::fixture::{
    API, OVERRIDES, SUM, ask, ask_verbose, ours, rule, served, wait_ready, with_fixture,
};
use bed::adapter::{Adapter, Program};
use bed::eventually;
use bed::proxy::{Fault, Proxy};
use bed::thanos::Thanos;
use bed::victoria_metrics::VictoriaMetrics;
use serde_json::Value;

#[test]
fn an_error_of_prometheus_is_a_503_with_its_message() {
    with_fixture(async |fixture| {
        let config = format!("externalRules:\n{}", rule("queue_depth"));
        let faults = Proxy::start(fixture.cluster.prometheus_port).await;
        let port = faults.port;
        let ours = Adapter::start_as(&fixture.cluster, Program::Plimsoll, "fails", &config, port);
        wait_ready(&ours, &fixture.token).await;
        let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/queue_depth";
        served(&ours, &fixture.token, path).await;
        let headers = vec![("retry-after", "7".to_owned())];
        let body = "too busy".to_owned();
        faults.fail("queue_depth", Fault::Response { status: 503, headers, body });
        let (code, body) = eventually("Prometheus is missed", SOON, async || {
            let (code, body) = ask(ours.port, &fixture.token, path).await;
            if code == 200 { Err(body.to_string()) } else { Ok((code, body)) }
        })
        .await;
        assert_eq!((code, body["reason"].as_str()), (503, Some("ServiceUnavailable")), "{body}");
        assert!(
            body["message"].to_string().contains("Prometheus answered 503: too busy"),
            "{body}"
        );
    });
}

#[test]
fn a_rule_may_read_an_external_metric_from_another_namespace() {
    with_fixture(async |fixture| {
        let config = "externalRules:\n- seriesQuery: 'queue_depth{namespace!=\"\"}'\n\
             \x20 resources: {overrides: {namespace: {resource: namespace}}, namespace: bank}\n\
             \x20 metricsQuery: 'max(<<.Series>>{<<.LabelMatchers>>})'\n";
        let ours = ours(fixture, "elsewhere", config).await;
        let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/queue_depth";
        let body = served(&ours, &fixture.token, path).await;
        assert_eq!(body["items"][0]["value"], "41");
    });
}

#[test]
#[ignore = "it builds Thanos: make thanos"]
fn a_rule_may_name_its_backend_such_as_thanos() {
    with_fixture(async |fixture| {
        let thanos = Thanos::start(&fixture.cluster).await;
        let config = format!(
            "backends:\n  global: {{url: 'http://127.0.0.1:{}'}}\nrules:\n{}  backend: global\n{}",
            thanos.port,
            rule("queue_depth"),
            rule("tenant_credit"),
        );
        // The Prometheus of the flags fails; the backend is not affected.
        let faults = Proxy::start(fixture.cluster.prometheus_port).await;
        let port = faults.port;
        let ours =
            Adapter::start_as(&fixture.cluster, Program::Plimsoll, "backends", &config, port);
        wait_ready(&ours, &fixture.token).await;
        let of = |metric: &str| format!("{API}/namespaces/shop/pods/*/{metric}");
        let body = served(&ours, &fixture.token, &of("queue_depth")).await;
        assert_eq!(body["items"].as_array().map(Vec::len), Some(3));
        served(&ours, &fixture.token, &of("tenant_credit")).await;
        faults.stall("");
        served(&ours, &fixture.token, &of("queue_depth")).await;
    });
}

#[test]
fn victoria_metrics_gives_the_same_results_as_prometheus() {
    with_fixture(async |fixture| {
        let victoria = VictoriaMetrics::start(&fixture.cluster, "node_load").await;
        let counter = "- seriesQuery: 'http_requests_total{namespace!=\"\"}'\n".to_owned()
            + OVERRIDES
            + "  name: {as: requests_per_second}\n\
               \x20 metricsQuery: 'sum(rate(<<.Series>>{<<.LabelMatchers>>}[8s])) by (<<.GroupBy>>)'\n";
        let config = format!(
            "rules:\n{}{}{counter}externalRules:\n- seriesQuery: node_load\n\
             \x20 resources: {{namespaced: false}}\n  metricsQuery: 'max(node_load) by (node)'\n",
            rule("queue_depth"),
            rule("{__name__=~\"^odd_(whole|fraction|negative)$\"}"),
        );
        let [theirs, ours] =
            [("on-prometheus", fixture.cluster.prometheus_port), ("on-victoria", victoria.port)]
                .map(|(name, port)| {
                    Adapter::start_as(&fixture.cluster, Program::Plimsoll, name, &config, port)
                });
        for adapter in [&theirs, &ours] {
            wait_ready(adapter, &fixture.token).await;
        }
        let selector = "metricLabelSelector=zone%20in%20(a,b)";
        for path in [
            format!("{API}/namespaces/shop/pods/*/queue_depth"),
            format!("{API}/namespaces/shop/pods/*/queue_depth?{selector}"),
            format!("{API}/namespaces/bank/pods/web-0/queue_depth"),
            format!("{API}/namespaces/shop/pods/*/requests_per_second"),
            format!("{API}/namespaces/bank/pods/*/odd_whole"),
            format!("{API}/namespaces/bank/pods/*/odd_fraction"),
            format!("{API}/namespaces/bank/pods/*/odd_negative"),
            "/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/node_load".to_owned(),
        ] {
            let values = async |adapter: &Adapter| {
                let body = served(adapter, &fixture.token, &path).await;
                let items = body["items"].as_array().cloned().unwrap_or_default();
                let value =
                    |item: &Value| format!("{} {}", item["describedObject"]["name"], item["value"]);
                let mut values: Vec<String> = items.iter().map(value).collect();
                values.sort();
                values
            };
            assert_eq!(values(&theirs).await, values(&ours).await, "{path}");
        }
        // An invalid query is rejected by both, and reported.
        let broken = "rules:\n- seriesQuery: '{__name__=~\"(\"}'\n".to_owned() + OVERRIDES + SUM;
        let name = "victoria-broken";
        let refused =
            Adapter::start_as(&fixture.cluster, Program::Plimsoll, name, &broken, victoria.port);
        wait_ready(&refused, &fixture.token).await;
        eventually("it says what was refused", SOON, async || {
            let (_, body) = ask_verbose(refused.port, &fixture.token).await;
            if body.contains("[!]rules") { Ok(()) } else { Err(body) }
        })
        .await;
    });
}

#[test]
fn requests_for_unknown_metrics_are_forwarded_to_another_adapter() {
    with_fixture(async |fixture| {
        let external = |series: &str| {
            format!(
                "externalRules:\n- seriesQuery: '{series}'\n  resources: {{namespaced: false}}\n  metricsQuery: 'max(<<.Series>>)'\n"
            )
        };
        // The other adapter is prometheus-adapter.
        let other = format!("rules:\n{}{}", rule("tenant_credit"), external("gizmo_load"));
        let other = Adapter::start(&fixture.cluster, "other", &other);
        wait_ready(&other, &fixture.token).await;
        let token = fixture.cluster.folder.join("other-token");
        std::fs::write(&token, &fixture.token).expect("a file");
        let way = format!(
            "{{url: 'https://127.0.0.1:{}', insecureSkipTLSVerify: true, tokenFile: '{}'}}",
            other.port,
            token.display()
        );
        let config = format!(
            "passOn: {{custom.metrics.k8s.io: {way}, external.metrics.k8s.io: {way}}}\nrules:\n{}{}",
            rule("queue_depth"),
            external("node_load"),
        );
        let ours = ours(fixture, "passing", &config).await;
        let pods = |metric: &str| format!("{API}/namespaces/shop/pods/*/{metric}");
        let base = "/apis/external.metrics.k8s.io/v1beta1";
        let outside = |metric: &str| format!("{base}/namespaces/shop/{metric}");
        for path in [
            pods("queue_depth"),
            pods("tenant_credit"),
            outside("node_load"),
            outside("gizmo_load"),
        ] {
            served(&ours, &fixture.token, &path).await;
        }
        assert_eq!(ask(ours.port, &fixture.token, &pods("nobodys")).await.0, 404);
        let (_, list) = ask(ours.port, &fixture.token, base).await;
        let names: Vec<_> =
            list["resources"].as_array().into_iter().flatten().map(|r| r["name"].clone()).collect();
        assert!(
            names.contains(&"node_load".into()) && names.contains(&"gizmo_load".into()),
            "{list}"
        );
    });
}
