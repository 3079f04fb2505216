//! Plimsoll in the place of prometheus-adapter: where it differs on purpose, and
//! what it does that the peer can't. (What is the same is in `peer`.)

use crate::SOON;
use crate::peer::{World, any_certificate, ask, on_world, pair, wait_ready};
use bed::adapter::{Adapter, Program};
use bed::proxy::Fault;
use bed::thanos::Thanos;
use bed::victoria_metrics::VictoriaMetrics;
use bed::{eventually, plimsoll};
use futures::StreamExt;
use serde_json::Value;
use std::net::IpAddr;
use std::time::{Duration, Instant};

const OVERRIDES: &str =
    "  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}\n";
const SUM: &str = "  metricsQuery: 'sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)'\n";
const API: &str = "/apis/custom.metrics.k8s.io/v1beta2";

fn rule(series: &str) -> String {
    format!("- seriesQuery: '{series}'\n{OVERRIDES}{SUM}")
}

async fn ours(world: &World, name: &str, config: &str) -> Adapter {
    let port = world.cluster.prometheus_port;
    let ours = Adapter::start_as(&world.cluster, Program::Plimsoll, name, config, port);
    wait_ready(&ours, &world.token).await;
    ours
}

/// Asks until the answer is 200 and has an item.
async fn served(adapter: &Adapter, token: &str, path: &str) -> Value {
    eventually(path, SOON, async || {
        let (code, body) = ask(adapter.port, token, path).await;
        let items = body["items"].as_array().map_or(0, Vec::len);
        if code == 200 && items > 0 { Ok(body) } else { Err(format!("{code} {body}")) }
    })
    .await
}

#[test]
fn the_differences_are_those_documented() {
    on_world(async |world| {
        let config = format!(
            "rules:\n{}{}",
            rule("{__name__=~\"^odd_.*\"}"),
            rule("http_requests_total{namespace!=\"\"}")
        );
        let (theirs, ours) = pair(&world.cluster, &world.token, "differences", &config).await;
        let path = |metric: &str| format!("{API}/namespaces/bank/pods/web-0/{metric}");
        for adapter in [&theirs, &ours] {
            served(adapter, &world.token, &path("odd_whole")).await;
        }
        let value = async |adapter: &Adapter, path: &str| {
            let (code, body) = ask(adapter.port, &world.token, path).await;
            let value = body["items"][0]["value"].as_str().map(str::to_owned);
            (code, value.unwrap_or_else(|| body["reason"].as_str().unwrap_or_default().to_owned()))
        };
        for (path, their, our) in [
            (path("odd_nan"), (200, "0"), (404, "NotFound")),
            (path("odd_infinite"), (200, "-9223372036854775808m"), (404, "NotFound")),
            (path("odd_tiny"), (200, "0"), (200, "400u")),
            (path("odd_third"), (200, "333m"), (200, "333333300n")),
            (
                format!("{API}/namespaces/bank/pods/web-0%2Fx/odd_whole"),
                (404, "NotFound"),
                (400, "BadRequest"),
            ),
            (
                format!(
                    "{API}/namespaces/shop/pods/web-0/http_requests_total?metricLabelSelector=zone%21%3Da"
                ),
                (500, ""),
                (200, "30"),
            ),
        ] {
            let (a, b) = (value(&theirs, &path).await, value(&ours, &path).await);
            assert_eq!((a.0, a.1.as_str()), their, "theirs: {path}");
            assert_eq!((b.0, b.1.as_str()), our, "ours: {path}");
        }
    });
}

#[test]
fn the_time_of_a_value_is_that_of_its_sample() {
    on_world(async |world| {
        let ours = ours(world, "times", &format!("rules:\n{}", rule("queue_depth"))).await;
        let path = format!("{API}/namespaces/shop/pods/web-0/queue_depth");
        served(&ours, &world.token, &path).await;
        // Between two scrapes the clock moves on, the sample does not: it counts
        // where a second began between the last sample and the request.
        let mut conclusive = 0;
        for _ in 0..30 {
            tokio::time::sleep(Duration::from_millis(370)).await;
            let before = jiff::Timestamp::now().as_second();
            let (_, body) = ask(ours.port, &world.token, &path).await;
            let text = body["items"][0]["timestamp"].as_str().expect("a time").to_owned();
            let time: jiff::Timestamp = text.parse().expect("a time");
            let query = "max(timestamp(queue_depth{namespace=\"shop\",pod=\"web-0\"}))";
            let url = format!("http://127.0.0.1:{}/api/v1/query", world.cluster.prometheus_port);
            let url = reqwest::Url::parse_with_params(&url, [("query", query)]).expect("a URL");
            let answer = reqwest::get(url).await.expect("an answer").bytes().await.expect("a body");
            let answer: Value = serde_json::from_slice(&answer).expect("JSON");
            let last: f64 = answer["data"]["result"][0]["value"][1]
                .as_str()
                .expect("a value")
                .parse()
                .expect("a number");
            let behind = last.floor() as i64 - time.as_second();
            assert!((0..=2).contains(&behind), "{text}, Prometheus says {last}");
            // Where samples are taken just as seconds begin, none begins after them.
            conclusive += i32::from(before > time.as_second() || last.fract() < 0.15);
        }
        assert!(conclusive > 0, "a stamp of the request's own time is never late");
    });
}

#[test]
fn every_form_of_an_answer_is_that_of_the_peer() {
    on_world(async |world| {
        let config = format!(
            "rules:\n{}externalRules:\n- seriesQuery: node_load\n  resources: {{namespaced: false}}\n  metricsQuery: 'max(node_load) by (node)'\n",
            rule("queue_depth")
        );
        let (theirs, ours) = pair(&world.cluster, &world.token, "forms", &config).await;
        let path = format!(
            "{API}/namespaces/shop/pods/*/queue_depth?metricLabelSelector=zone%20in%20(a),service%3Dweb"
        );
        let old = path.replace("v1beta2", "v1beta1");
        let external = "/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/node_load".to_owned();
        for adapter in [&theirs, &ours] {
            served(adapter, &world.token, &path).await;
            served(adapter, &world.token, &external).await;
        }
        let missing = format!("{API}/namespaces/shop/pods/*/none");
        let get = async |adapter: &Adapter, path: &str, accept: &str| {
            let http = any_certificate().build();
            let url = format!("https://127.0.0.1:{}{path}", adapter.port);
            let request = http.expect("a client").get(url).bearer_auth(&world.token);
            let response = request.header("accept", accept).send().await.expect("an answer");
            let code = response.status().as_u16();
            let kind = response.headers().get("content-type").cloned();
            (code, kind, response.bytes().await.expect("a body"))
        };
        let protobuf = "application/vnd.kubernetes.protobuf";
        for path in [
            &path,
            &old,
            &external,
            &missing,
            &API.to_owned(),
            &"/apis/custom.metrics.k8s.io".to_owned(),
        ] {
            for accept in [
                protobuf,
                "application/vnd.kubernetes.protobuf,application/json",
                "application/yaml",
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
                "application/json;as=Table;v=v1;g=meta.k8s.io",
                "text/html",
                "*/*",
            ] {
                let a = get(&theirs, path, accept).await;
                let b = get(&ours, path, accept).await;
                assert_eq!((a.0, &a.1), (b.0, &b.1), "{path} as {accept}");
                // Discovery says more here: v1beta2 is named beside v1beta1.
                let binary = accept.starts_with(protobuf) && path.contains("namespaces");
                let agreed = match binary {
                    true => without_times(&a.2) == without_times(&b.2),
                    false => a.2.is_empty() == b.2.is_empty(),
                };
                // The message of an error is in our own words.
                assert!(agreed || *path == missing, "{path} as {accept}:\n{:?}\n{:?}", a.2, b.2);
            }
        }
    });
}

/// The bytes with the seconds of every `Time` blanked: field 3, 8 bytes long, of
/// a varint of 5 bytes and a zero.
fn without_times(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for at in 0..bytes.len().saturating_sub(9) {
        if bytes[at..].starts_with(&[0x1a, 8, 8]) && bytes[at + 8..].starts_with(&[0x10, 0]) {
            bytes[at + 3..at + 8].fill(0);
        }
    }
    bytes
}

#[test]
fn one_failing_rule_harms_no_other() {
    on_world(async |world| {
        let config = format!("rules:\n{}{}", rule("queue_depth"), rule("{__name__=~\"(\"}"));
        let (theirs, ours) = pair(&world.cluster, &world.token, "failing-rule", &config).await;
        let path = format!("{API}/namespaces/shop/pods/*/queue_depth");
        served(&ours, &world.token, &path).await;
        // The peer lost all of them.
        assert_eq!(ask(theirs.port, &world.token, &path).await.0, 404);
        let (code, body) = ask_verbose(ours.port, &world.token).await;
        assert_eq!(code, 200);
        assert!(body.contains("[!]rules: the series query {__name__=~\"(\"} fails"), "{body}");
    });
}

/// What one is told of health who may see the details.
async fn ask_verbose(port: u16, token: &str) -> (u16, String) {
    let http = any_certificate().build().expect("a client");
    let request = http.get(format!("https://127.0.0.1:{port}/readyz?verbose")).bearer_auth(token);
    let response = request.send().await.expect("an answer");
    (response.status().as_u16(), response.text().await.expect("a body"))
}

async fn ask_text(port: u16, path: &str) -> (u16, String) {
    let http = any_certificate().build();
    let response = http.expect("a client").get(format!("https://127.0.0.1:{port}{path}")).send();
    let response = response.await.expect("an answer");
    (response.status().as_u16(), response.text().await.expect("a body"))
}

#[test]
fn a_prometheus_that_fails_is_503_and_is_told() {
    on_world(async |world| {
        let config = format!("externalRules:\n{}", rule("queue_depth"));
        let faults = bed::proxy::Proxy::start(world.cluster.prometheus_port).await;
        let port = faults.port;
        let ours = Adapter::start_as(&world.cluster, Program::Plimsoll, "fails", &config, port);
        wait_ready(&ours, &world.token).await;
        let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/queue_depth";
        served(&ours, &world.token, path).await;
        let headers = vec![("retry-after", "7".to_owned())];
        let body = "too busy".to_owned();
        faults.fail("queue_depth", Fault::Answer { status: 503, headers, body });
        let (code, body) = eventually("Prometheus is missed", SOON, async || {
            let (code, body) = ask(ours.port, &world.token, path).await;
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
fn a_changed_configuration_is_taken_up_live() {
    on_world(async |world| {
        // As a ConfigMap's volume: a file behind a link to a folder that is swapped.
        let folder = world.cluster.folder.join("config-volume");
        let version = |name: &str, config: &str| {
            let of = folder.join(name);
            std::fs::create_dir_all(&of).expect("a folder");
            std::fs::write(of.join("config.yaml"), config).expect("a file");
            let (link, new) = (folder.join("..data"), folder.join("..new"));
            std::os::unix::fs::symlink(&of, &new).expect("a link");
            std::fs::rename(&new, &link).expect("the link is swapped");
        };
        version("1", &format!("rules:\n{}", rule("queue_depth")));
        let file = world.cluster.folder.join("live.yaml");
        let ours = Adapter::start_as(
            &world.cluster,
            Program::Plimsoll,
            "live",
            "",
            world.cluster.prometheus_port,
        );
        // The flag names this file; from now on it is the volume's.
        std::fs::remove_file(&file).expect("the file");
        std::os::unix::fs::symlink(folder.join("..data/config.yaml"), &file).expect("a link");
        wait_ready(&ours, &world.token).await;
        let of = |metric: &str| format!("{API}/namespaces/shop/pods/*/{metric}");
        served(&ours, &world.token, &of("queue_depth")).await;
        let process = ours.process.id();

        let swapped = Instant::now();
        version("2", &format!("rules:\n{}{}", rule("queue_depth"), rule("tenant_credit")));
        served(&ours, &world.token, &of("tenant_credit")).await;
        assert!(swapped.elapsed() < Duration::from_secs(2), "{:?}", swapped.elapsed());

        version("3", "rules:\n- seriesQuery: queue_depth\n  name: {matches: '('}\n");
        let told = eventually("the error is told", SOON, async || {
            let (_, body) = ask_verbose(ours.port, &world.token).await;
            if body.contains("[!]config") { Ok(body) } else { Err(body) }
        })
        .await;
        assert!(told.contains("live.yaml:3:") && told.contains("rules[0].name.matches"), "{told}");
        // The last good one goes on.
        assert_eq!(ask(ours.port, &world.token, &of("tenant_credit")).await.0, 200);
        version("4", &format!("rules:\n{}", rule("queue_depth")));
        eventually("the rule is gone", SOON, async || {
            match ask(ours.port, &world.token, &of("tenant_credit")).await {
                (404, _) => Ok(()),
                (code, body) => Err(format!("{code} {body}")),
            }
        })
        .await;
        assert_eq!(ours.process.id(), process);
        let (_, body) = ask_verbose(ours.port, &world.token).await;
        assert!(!body.contains("[!]config"), "{body}");
    });
}

#[test]
fn a_kind_that_is_new_in_the_cluster_needs_no_restart() {
    on_world(async |world| {
        let config =
            "rules:\n- seriesQuery: 'tenant_credit'\n  resources: {template: '<<.Resource>>'}\n"
                .to_owned()
                + SUM;
        let ours = ours(world, "new-kind", &config).await;
        let path = format!("{API}/namespaces/shop/tenants.example.org/a-b/tenant_credit");
        assert_eq!(ask(ours.port, &world.token, &path).await.0, 404);
        world
            .cluster
            .apply(
                "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: tenants.example.org}\n\
                 spec:\n  group: example.org\n  scope: Namespaced\n  names: {plural: tenants, singular: tenant, kind: Tenant}\n\
                 \x20 versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]\n",
            )
            .await;
        let body = served(&ours, &world.token, &path).await;
        assert_eq!(body["items"][0]["describedObject"]["kind"], "Tenant");
    });
}

#[test]
fn a_rule_may_read_an_external_metric_from_another_namespace() {
    on_world(async |world| {
        let config = "externalRules:\n- seriesQuery: 'queue_depth{namespace!=\"\"}'\n\
             \x20 resources: {overrides: {namespace: {resource: namespace}}, namespace: bank}\n\
             \x20 metricsQuery: 'max(<<.Series>>{<<.LabelMatchers>>})'\n";
        let ours = ours(world, "elsewhere", config).await;
        let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/queue_depth";
        let body = served(&ours, &world.token, path).await;
        assert_eq!(body["items"][0]["value"], "41");
    });
}

#[test]
fn a_rule_may_name_its_backend_such_as_thanos() {
    on_world(async |world| {
        let thanos = Thanos::start(&world.cluster).await;
        let config = format!(
            "backends:\n  global: {{url: 'http://127.0.0.1:{}'}}\nrules:\n{}  backend: global\n{}",
            thanos.port,
            rule("queue_depth"),
            rule("tenant_credit"),
        );
        // The Prometheus of the flags goes away; the backend does not care.
        let faults = bed::proxy::Proxy::start(world.cluster.prometheus_port).await;
        let port = faults.port;
        let ours = Adapter::start_as(&world.cluster, Program::Plimsoll, "backends", &config, port);
        wait_ready(&ours, &world.token).await;
        let of = |metric: &str| format!("{API}/namespaces/shop/pods/*/{metric}");
        let body = served(&ours, &world.token, &of("queue_depth")).await;
        assert_eq!(body["items"].as_array().map(Vec::len), Some(3));
        served(&ours, &world.token, &of("tenant_credit")).await;
        faults.stall("");
        served(&ours, &world.token, &of("queue_depth")).await;
    });
}

#[test]
fn victoria_metrics_gives_the_answers_of_prometheus() {
    on_world(async |world| {
        let victoria = VictoriaMetrics::start(&world.cluster, "node_load").await;
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
            [("on-prometheus", world.cluster.prometheus_port), ("on-victoria", victoria.port)].map(
                |(name, port)| {
                    Adapter::start_as(&world.cluster, Program::Plimsoll, name, &config, port)
                },
            );
        for adapter in [&theirs, &ours] {
            wait_ready(adapter, &world.token).await;
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
                let body = served(adapter, &world.token, &path).await;
                let items = body["items"].as_array().cloned().unwrap_or_default();
                let value =
                    |item: &Value| format!("{} {}", item["describedObject"]["name"], item["value"]);
                let mut values: Vec<String> = items.iter().map(value).collect();
                values.sort();
                values
            };
            assert_eq!(values(&theirs).await, values(&ours).await, "{path}");
        }
        // A query that neither takes is refused by both, and said.
        let broken = "rules:\n- seriesQuery: '{__name__=~\"(\"}'\n".to_owned() + OVERRIDES + SUM;
        let name = "victoria-broken";
        let refused =
            Adapter::start_as(&world.cluster, Program::Plimsoll, name, &broken, victoria.port);
        wait_ready(&refused, &world.token).await;
        eventually("it says what was refused", SOON, async || {
            let (_, body) = ask_verbose(refused.port, &world.token).await;
            if body.contains("[!]rules") { Ok(()) } else { Err(body) }
        })
        .await;
    });
}

#[test]
fn what_is_not_known_here_is_passed_on_to_another_adapter() {
    on_world(async |world| {
        let external = |series: &str| {
            format!(
                "externalRules:\n- seriesQuery: '{series}'\n  resources: {{namespaced: false}}\n  metricsQuery: 'max(<<.Series>>)'\n"
            )
        };
        // The other adapter is a real one: the peer.
        let other = format!("rules:\n{}{}", rule("tenant_credit"), external("gizmo_load"));
        let other = Adapter::start(&world.cluster, "other", &other);
        wait_ready(&other, &world.token).await;
        let token = world.cluster.folder.join("other-token");
        std::fs::write(&token, &world.token).expect("a file");
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
        let ours = ours(world, "passing", &config).await;
        let pods = |metric: &str| format!("{API}/namespaces/shop/pods/*/{metric}");
        let base = "/apis/external.metrics.k8s.io/v1beta1";
        let outside = |metric: &str| format!("{base}/namespaces/shop/{metric}");
        for path in [
            pods("queue_depth"),
            pods("tenant_credit"),
            outside("node_load"),
            outside("gizmo_load"),
        ] {
            served(&ours, &world.token, &path).await;
        }
        assert_eq!(ask(ours.port, &world.token, &pods("nobodys")).await.0, 404);
        let (_, list) = ask(ours.port, &world.token, base).await;
        let names: Vec<_> =
            list["resources"].as_array().into_iter().flatten().map(|r| r["name"].clone()).collect();
        assert!(
            names.contains(&"node_load".into()) && names.contains(&"gizmo_load".into()),
            "{list}"
        );
    });
}

#[test]
fn a_renewed_serving_certificate_is_taken_up() {
    on_world(async |world| {
        let folder = world.cluster.folder.join("renewed");
        std::fs::create_dir_all(&folder).expect("a folder");
        let renew = || {
            let key = rcgen::KeyPair::generate().expect("a key");
            let certificate = rcgen::CertificateParams::new(vec!["localhost".to_owned()])
                .and_then(|params| params.self_signed(&key))
                .expect("a certificate");
            std::fs::write(folder.join("apiserver.crt"), certificate.pem()).expect("a file");
            std::fs::write(folder.join("apiserver.key"), key.serialize_pem()).expect("a file");
            certificate.pem()
        };
        let trusted = async |port: u16, pem: &str| {
            let root = reqwest::Certificate::from_pem(pem.as_bytes()).expect("a certificate");
            let http = reqwest::Client::builder().tls_certs_only([root]).build().expect("a client");
            http.get(format!("https://localhost:{port}/livez")).send().await.is_ok()
        };
        let first = renew();
        // The flag names the folder after the adapter.
        let ours = ours(world, "renewed", "").await;
        assert!(trusted(ours.port, &first).await);
        let second = renew();
        eventually("the new certificate is served", SOON, async || {
            if trusted(ours.port, &second).await { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
        assert!(!trusted(ours.port, &first).await);
    });
}

#[test]
fn kubectl_top_shows_what_rules_say() {
    on_world(async |world| {
        let rule = |resource: &str, series: &str| {
            let query = format!("sum({series}{{<<.LabelMatchers>>}}) by (<<.GroupBy>>)");
            format!(
                "  {resource}:\n    containerLabel: container\n    containerQuery: '{query}'\n    nodeQuery: '{query}'\n\
                 \x20   resources: {{overrides: {{namespace: {{resource: namespace}}, pod: {{resource: pod}}, node: {{resource: node}}}}}}\n"
            )
        };
        let rules = rule("cpu", "cpu_usage") + &rule("memory", "container_memory_bytes");
        let ours = ours(world, "top", &format!("resourceRules:\n  window: 1m\n{rules}")).await;
        ours.register(&world.cluster, "metrics.k8s.io", "v1beta1").await;
        let top = eventually("kubectl top", SOON, async || {
            world.cluster.try_kubectl(&["top", "pods", "-n", "shop", "--containers"]).await
        })
        .await;
        let row = top.lines().find(|line| line.starts_with("web-0") && line.contains("app"));
        let words: Vec<&str> = row.expect(&top).split_whitespace().collect();
        assert_eq!(words, ["web-0", "app", "250m", "1Mi"], "{top}");
        let table = world.cluster.kubectl(&["get", "pods.metrics.k8s.io", "-n", "shop"]).await;
        assert!(table.contains("375m") && table.contains("1m0s"), "{table}");
    });
}

#[test]
fn check_tells_what_rules_find() {
    on_world(async |world| {
        let config = format!(
            "rules:\n{}{}{}- seriesQuery: 'gizmo_load'\n{OVERRIDES}  metricsQuery: 'sum('\n",
            rule("queue_depth"),
            rule("nothing_here"),
            rule("{__name__=~\"queue_.*\"}")
        );
        let file = world.cluster.folder.join("check.yaml");
        std::fs::write(&file, config).expect("a file");
        let url = format!("http://127.0.0.1:{}", world.cluster.prometheus_port);
        let run = |more: &[&str]| {
            let kubeconfig = world.cluster.kubeconfig.display().to_string();
            let output = std::process::Command::new(plimsoll::binary())
                .args(["check", &file.display().to_string(), "--prometheus", &url])
                .args(["--kubeconfig", &kubeconfig])
                .args(more)
                .output()
                .expect("it can be run");
            (output.status.code(), String::from_utf8(output.stdout).expect("text"))
        };
        let (code, text) = run(&[]);
        assert_eq!(code, Some(1), "{text}");
        for expected in [
            "metrics  namespaces/queue_depth, pods/queue_depth",
            "warning: rules[1]: no series match",
            "pods/queue_depth is given by rules[0], rules[2]: rules[2] wins",
            "error: rules[3]: metricsQuery: Prometheus refused the query",
            "gives    3 series",
        ] {
            assert!(text.contains(expected), "{expected:?} is not in\n{text}");
        }
        let (_, json) = run(&["-o", "json"]);
        let report: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(report["rules"][0]["querySeries"], 3);
        assert_eq!(report["errors"].as_array().map(Vec::len), Some(1));
    });
}

#[test]
fn a_storm_is_refused_in_order_and_health_always_answers() {
    on_world(async |world| {
        let config = format!("rules:\n{}", rule("queue_depth"));
        let ours = ours(world, "storm", &config).await;
        let path = format!("{API}/namespaces/shop/pods/*/queue_depth");
        served(&ours, &world.token, &path).await;
        let http = any_certificate().http1_only().build();
        let http = http.expect("a client");
        // Thousands of different selectors, as fast as they go, over a thousand connections.
        let requests = (0..3000).map(|n| {
            let url = format!("https://127.0.0.1:{}{path}?labelSelector=app%3Dweb&metricLabelSelector=zone%3Dz{n}", ours.port);
            let request = http.get(url).bearer_auth(&world.token).send();
            async move {
                let response = request.await.ok()?;
                let retry = response.headers().contains_key("retry-after");
                Some((response.status().as_u16(), retry))
            }
        });
        let storm = futures::stream::iter(requests).buffer_unordered(1000).collect::<Vec<_>>();
        // Health is asked from a thread of its own: what waits for the storm's client is no fault
        // of the server. And from an address of its own, as the kubelet has one: of those that
        // wait the address with most gives way.
        let port = ours.port;
        let health = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let mut slowest = Duration::ZERO;
                for _ in 0..20 {
                    let start = Instant::now();
                    let kubelet = any_certificate().local_address(IpAddr::from([127, 0, 0, 2]));
                    let http = kubelet.build().expect("a client");
                    let answer = http.get(format!("https://127.0.0.1:{port}/livez")).send().await;
                    assert_eq!(answer.expect("an answer").status(), 200);
                    slowest = slowest.max(start.elapsed());
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                slowest
            })
        });
        let (answers, slowest) = tokio::join!(storm, health);
        let slowest = slowest.expect("health always answers");
        let answers: Vec<_> = answers.into_iter().flatten().collect();
        let of = |code: u16| answers.iter().filter(|(answer, _)| *answer == code).count();
        println!(
            "200: {}, 429: {}, 503: {}; slowest health {slowest:?}",
            of(200),
            of(429),
            of(503)
        );
        assert!(of(200) > 100, "{}", of(200));
        assert_eq!(of(200) + of(429) + of(503), answers.len());
        assert!(answers.iter().all(|(code, retry)| *code == 200 || *retry));
        assert!(slowest < Duration::from_secs(15), "{slowest:?}");
        // Slow clients that never finish their request, more than may be held.
        let mut slow = Vec::new();
        for _ in 0..1100 {
            if let Ok(stream) = tokio::net::TcpStream::connect(("127.0.0.1", ours.port)).await {
                slow.push(stream);
            }
        }
        // A probe comes through as it would for kubelet, which gives up after the third failure.
        let mut tries = 0;
        let ready = loop {
            let url = format!("https://127.0.0.1:{}/readyz", ours.port);
            let client = any_certificate().build().expect("a client");
            match client.get(url).send().await {
                Ok(response) => break response.status().as_u16(),
                Err(error) => assert!(tries < 2, "{error:?}"),
            }
            tries += 1;
        };
        assert_eq!(ready, 200);
        drop(slow);
        served(&ours, &world.token, &path).await;
        // Oversized heads and addresses.
        let long = "x".repeat(100 * 1024);
        let url = format!("https://127.0.0.1:{}{path}", ours.port);
        // Far more than one read may bring along.
        let head = "x".repeat(1 << 20);
        let refused = http.get(&url).header("x-long", &head).bearer_auth(&world.token).send().await;
        assert!(refused.map_or(true, |response| response.status().is_client_error()));
        let refused = http.get(format!("{url}?labelSelector={long}")).send().await;
        assert!(refused.map_or(true, |response| response.status().is_client_error()));
        served(&ours, &world.token, &path).await;
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", child_of(ours.process.id())));
        let status = status.expect("the process");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
        let kilobytes: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
        println!("peak memory {} MB", kilobytes / 1024);
        assert!(kilobytes < 400 * 1024, "{peak}");
    });
}

#[test]
fn a_registered_group_answers_discovery_with_or_without_rules() {
    on_world(async |world| {
        let ours = ours(world, "unruled", "").await;
        for (group, version) in [
            ("custom.metrics.k8s.io", "v1beta2"),
            ("external.metrics.k8s.io", "v1beta1"),
            ("metrics.k8s.io", "v1beta1"),
        ] {
            let path = format!("/apis/{group}/{version}");
            let (code, list) = ask(ours.port, &world.token, &path).await;
            assert_eq!((code, list["kind"].as_str()), (200, Some("APIResourceList")), "{path}");
        }
        let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/none";
        assert_eq!(ask(ours.port, &world.token, path).await.0, 404);
    });
}

#[test]
fn monitoring_finds_what_other_api_servers_have() {
    on_world(async |world| {
        let usage = |resource: &str, series: &str| {
            let query = format!("sum({series}{{<<.LabelMatchers>>}}) by (<<.GroupBy>>)");
            format!(
                "  {resource}:\n    containerLabel: container\n    containerQuery: '{query}'\n    nodeQuery: '{query}'\n\
                 \x20   resources: {{overrides: {{namespace: {{resource: namespace}}, pod: {{resource: pod}}, node: {{resource: node}}}}}}\n"
            )
        };
        let rules = usage("cpu", "cpu_usage") + &usage("memory", "container_memory_bytes");
        let ours =
            ours(world, "monitored", &format!("resourceRules:\n  window: 1m\n{rules}")).await;
        for path in ["/livez/ping", "/readyz/ping", "/healthz/ping", "/livez"] {
            assert_eq!(ask_text(ours.port, path).await, (200, "ok".to_owned()), "{path}");
        }
        let (code, version) = ask_text(ours.port, "/version").await;
        assert!(code == 200 && version.contains("gitVersion"), "{version}");
        let pods = "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods";
        served(&ours, &world.token, pods).await;
        // A list is not a watch: a client that gets one for the other asks again at once, for ever.
        let (code, status) = ask(ours.port, &world.token, &format!("{pods}?watch=true")).await;
        assert_eq!((code, status["reason"].as_str()), (405, Some("MethodNotAllowed")), "{status}");
        // Of the same answer nothing is sent again.
        let http = any_certificate().build().expect("a client");
        for path in [API, "/openapi/v3", "/openapi/v2", "/apis"] {
            let url = format!("https://localhost:{}{path}", ours.port);
            let first = http.get(&url).bearer_auth(&world.token).send().await.expect("an answer");
            let tag = first.headers().get("etag").cloned();
            let tag = tag.unwrap_or_else(|| panic!("{path} has no ETag"));
            let again = http.get(&url).bearer_auth(&world.token).header("if-none-match", tag);
            assert_eq!(again.send().await.expect("an answer").status(), 304, "{path}");
        }
        // The older text for those who take nothing else.
        let url = format!("https://localhost:{}/metrics", ours.port);
        for (accept, kind) in [
            ("text/plain;version=0.0.4", "text/plain"),
            (
                "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
                "application/openmetrics-text",
            ),
        ] {
            let asked = http.get(&url).bearer_auth(&world.token).header("accept", accept);
            let answer = asked.send().await.expect("an answer");
            let given = answer.headers()["content-type"].to_str().expect("text").to_owned();
            assert!(given.starts_with(kind), "{accept}: {given}");
        }
        let head = http.head(&url).bearer_auth(&world.token).send().await.expect("an answer");
        assert_eq!(head.status(), 200);
    });
}

/// The text of rules that let one read metrics of some pods alone.
fn may_read(user: &str, pod: &str) -> String {
    format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {{name: one-pod, namespace: shop}}\n\
         rules: [{{apiGroups: [metrics.k8s.io], resources: [pods], resourceNames: [{pod}], verbs: [get, list]}}]\n---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{name: one-pod, namespace: shop}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: one-pod}}\n\
         subjects: [{{kind: User, name: {user}, apiGroup: rbac.authorization.k8s.io}}]\n"
    )
}

#[test]
fn one_who_may_read_a_pod_by_name_may_select_it_by_its_name() {
    on_world(async |world| {
        let ours = ours(world, "selected", "").await;
        world.cluster.apply(&may_read("selective", "web-0")).await;
        let selective = world.cluster.sign("selective", &[]);
        let path = "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods";
        // There are no rules: allowed is 404, and not 403.
        eventually("the role counts", SOON, async || {
            let path = format!("{path}?fieldSelector=metadata.name%3Dweb-0");
            match crate::security::ask(ours.port, Some(&selective), &[], &path).await {
                404 => Ok(()),
                other => Err(other.to_string()),
            }
        })
        .await;
        assert_eq!(crate::security::ask(ours.port, Some(&selective), &[], path).await, 403);
    });
}

/// The process that a guard runs.
fn child_of(guard: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{guard}/task/{guard}/children"));
    let children = children.expect("the guard's children");
    children.split_whitespace().next().and_then(|pid| pid.parse().ok()).unwrap_or(guard)
}
