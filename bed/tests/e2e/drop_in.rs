//! Plimsoll in the place of prometheus-adapter: where it differs on purpose, and
//! what only Plimsoll does. `parity.rs` tests what is the same.

use crate::SOON;
use crate::fixture::{
    API, OVERRIDES, any_certificate, ask, ask_verbose, ours, pair, rule, served, with_fixture,
};
use bed::adapter::Adapter;
use bed::{eventually, plimsoll};
use futures::StreamExt;
use serde_json::Value;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn the_differences_are_as_documented() {
    with_fixture(async |fixture| {
        let config = format!(
            "rules:\n{}{}",
            rule("{__name__=~\"^odd_.*\"}"),
            rule("http_requests_total{namespace!=\"\"}")
        );
        let (theirs, ours) = pair(&fixture.cluster, &fixture.token, "differences", &config).await;
        let path = |metric: &str| format!("{API}/namespaces/bank/pods/web-0/{metric}");
        for adapter in [&theirs, &ours] {
            served(adapter, &fixture.token, &path("odd_whole")).await;
        }
        let value = async |adapter: &Adapter, path: &str| {
            let (code, body) = ask(adapter.port, &fixture.token, path).await;
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
fn the_timestamp_of_a_value_is_that_of_its_sample() {
    with_fixture(async |fixture| {
        let ours = ours(fixture, "times", &format!("rules:\n{}", rule("queue_depth"))).await;
        let path = format!("{API}/namespaces/shop/pods/web-0/queue_depth");
        served(&ours, &fixture.token, &path).await;
        // Between two scrapes the clock advances and the sample does not. A request is conclusive
        // if a second began between the last sample and the request.
        let mut conclusive = 0;
        for _ in 0..30 {
            tokio::time::sleep(Duration::from_millis(370)).await;
            let before = jiff::Timestamp::now().as_second();
            let (_, body) = ask(ours.port, &fixture.token, &path).await;
            let text = body["items"][0]["timestamp"].as_str().expect("a time").to_owned();
            let time: jiff::Timestamp = text.parse().expect("a time");
            let query = "max(timestamp(queue_depth{namespace=\"shop\",pod=\"web-0\"}))";
            let url = format!("http://127.0.0.1:{}/api/v1/query", fixture.cluster.prometheus_port);
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
            // If samples are taken at the start of a second, none begins after them.
            conclusive += i32::from(before > time.as_second() || last.fract() < 0.15);
        }
        assert!(conclusive > 0, "a stamp of the request's own time is never late");
    });
}

#[test]
fn every_encoding_of_a_response_equals_that_of_prometheus_adapter() {
    with_fixture(async |fixture| {
        let config = format!(
            "rules:\n{}externalRules:\n- seriesQuery: node_load\n  resources: {{namespaced: false}}\n  metricsQuery: 'max(node_load) by (node)'\n",
            rule("queue_depth")
        );
        let (theirs, ours) = pair(&fixture.cluster, &fixture.token, "forms", &config).await;
        let path = format!(
            "{API}/namespaces/shop/pods/*/queue_depth?metricLabelSelector=zone%20in%20(a),service%3Dweb"
        );
        let old = path.replace("v1beta2", "v1beta1");
        let external = "/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/node_load".to_owned();
        for adapter in [&theirs, &ours] {
            served(adapter, &fixture.token, &path).await;
            served(adapter, &fixture.token, &external).await;
        }
        let missing = format!("{API}/namespaces/shop/pods/*/none");
        let get = async |adapter: &Adapter, path: &str, accept: &str| {
            let http = any_certificate().build();
            let url = format!("https://127.0.0.1:{}{path}", adapter.port);
            let request = http.expect("a client").get(url).bearer_auth(&fixture.token);
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
                "application/json;q=0.5, application/yaml",
                "application/json;q=0.9,application/yaml;q=0.95",
                "application/yaml;q=0.8, */*",
                "*/*, application/yaml",
                "text/*, application/yaml;q=0.1",
                "application/yaml;q=oops, application/json;q=0.1",
                "*/*, application/yaml;q=0.8",
                "*/*, Application/YAML",
                "",
                "*",
                "application/*",
                "application/*, text/html, */*",
                "application/json;as=Table",
                "application/json;charset",
                "application/json;profile=https://x/y",
                "application/json;stream=watch",
                "application/json;stream=x",
                "application/yaml;stream=watch",
                "text/html;x=\", application/yaml",
                "application/json;q=0.5 , application/yaml;q=0.3",
                "application/json;as=Table=x",
                "application/json;q=, application/yaml;q=0.5",
                "application/json/, application/yaml;q=0.5",
            ] {
                let a = get(&theirs, path, accept).await;
                let b = get(&ours, path, accept).await;
                assert_eq!((a.0, &a.1), (b.0, &b.1), "{path} as {accept}");
                // Discovery differs on purpose: Plimsoll lists v1beta2 beside v1beta1.
                let binary = accept.starts_with(protobuf) && path.contains("namespaces");
                let agreed = match binary {
                    true => without_times(&a.2) == without_times(&b.2),
                    false => a.2.is_empty() == b.2.is_empty(),
                };
                // Error messages differ.
                assert!(agreed || *path == missing, "{path} as {accept}:\n{:?}\n{:?}", a.2, b.2);
            }
        }
    });
}

/// The bytes with the seconds of every protobuf `Time` zeroed: field 3, 8 bytes long, with a varint
/// of 5 bytes and a zero.
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
fn a_failing_rule_does_not_affect_others() {
    with_fixture(async |fixture| {
        let config = format!("rules:\n{}{}", rule("queue_depth"), rule("{__name__=~\"(\"}"));
        let (theirs, ours) = pair(&fixture.cluster, &fixture.token, "failing-rule", &config).await;
        let path = format!("{API}/namespaces/shop/pods/*/queue_depth");
        served(&ours, &fixture.token, &path).await;
        // prometheus-adapter has lost all rules.
        assert_eq!(ask(theirs.port, &fixture.token, &path).await.0, 404);
        let (code, body) = ask_verbose(ours.port, &fixture.token).await;
        assert_eq!(code, 200);
        assert!(body.contains("[!]rules: the series query {__name__=~\"(\"} fails"), "{body}");
    });
}

async fn ask_text(port: u16, path: &str) -> (u16, String) {
    let http = any_certificate().build();
    let response = http.expect("a client").get(format!("https://127.0.0.1:{port}{path}")).send();
    let response = response.await.expect("an answer");
    (response.status().as_u16(), response.text().await.expect("a body"))
}

#[test]
fn kubectl_top_shows_the_usage_by_rules() {
    with_fixture(async |fixture| {
        let rule = |resource: &str, series: &str| {
            let query = format!("sum({series}{{<<.LabelMatchers>>}}) by (<<.GroupBy>>)");
            format!(
                "  {resource}:\n    containerLabel: container\n    containerQuery: '{query}'\n    nodeQuery: '{query}'\n\
                 \x20   resources: {{overrides: {{namespace: {{resource: namespace}}, pod: {{resource: pod}}, node: {{resource: node}}}}}}\n"
            )
        };
        let rules = rule("cpu", "cpu_usage") + &rule("memory", "container_memory_bytes");
        let ours = ours(fixture, "top", &format!("resourceRules:\n  window: 1m\n{rules}")).await;
        ours.register(&fixture.cluster, "metrics.k8s.io", "v1beta1").await;
        let top = eventually("kubectl top", SOON, async || {
            fixture.cluster.try_kubectl(&["top", "pods", "-n", "shop", "--containers"]).await
        })
        .await;
        let row = top.lines().find(|line| line.starts_with("web-0") && line.contains("app"));
        let words: Vec<&str> = row.expect(&top).split_whitespace().collect();
        assert_eq!(words, ["web-0", "app", "250m", "1Mi"], "{top}");
        let table = fixture.cluster.kubectl(&["get", "pods.metrics.k8s.io", "-n", "shop"]).await;
        assert!(table.contains("375m") && table.contains("1m0s"), "{table}");
    });
}

#[test]
fn check_reports_what_rules_find() {
    with_fixture(async |fixture| {
        let config = format!(
            "rules:\n{}{}{}- seriesQuery: 'gizmo_load'\n{OVERRIDES}  metricsQuery: 'sum('\n",
            rule("queue_depth"),
            rule("nothing_here"),
            rule("{__name__=~\"queue_.*\"}")
        );
        let file = fixture.cluster.folder.join("check.yaml");
        std::fs::write(&file, config).expect("a file");
        let url = format!("http://127.0.0.1:{}", fixture.cluster.prometheus_port);
        let run = |more: &[&str]| {
            let kubeconfig = fixture.cluster.kubeconfig.display().to_string();
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
        let text = text.replace(&file.display().to_string(), "FILE");
        for expected in [
            "metrics  namespaces/queue_depth, pods/queue_depth",
            "warning: FILE:5:3: rules[1]: no series match",
            "pods/queue_depth is given by rules[0], rules[2]: rules[2] wins",
            "error: FILE:11:3: rules[3]: metricsQuery: Prometheus refused the query",
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
fn a_burst_of_requests_gets_429_and_health_probes_are_served() {
    with_fixture(async |fixture| {
        let config = format!("rules:\n{}", rule("queue_depth"));
        let ours = ours(fixture, "storm", &config).await;
        let path = format!("{API}/namespaces/shop/pods/*/queue_depth");
        served(&ours, &fixture.token, &path).await;
        let http = any_certificate().http1_only().build();
        let http = http.expect("a client");
        // Thousands of different selectors over a thousand connections, without a pause.
        let requests = (0..3000).map(|n| {
            let url = format!("https://127.0.0.1:{}{path}?labelSelector=app%3Dweb&metricLabelSelector=zone%3Dz{n}", ours.port);
            let request = http.get(url).bearer_auth(&fixture.token).send();
            async move {
                let start = Instant::now();
                let response = request.await.ok()?;
                let retry = response.headers().contains_key("retry-after");
                Some((response.status().as_u16(), retry, start.elapsed()))
            }
        });
        let storm = futures::stream::iter(requests).buffer_unordered(1000).collect::<Vec<_>>();
        let over = Arc::new(AtomicBool::new(false));
        let is_over = over.clone();
        let storm = async {
            let answers = storm.await;
            over.store(true, Ordering::Relaxed);
            answers
        };
        // Probes come from their own thread, so that the load of the client does not delay them,
        // and from their own address, as from the kubelet: when connections are full, the
        // address with the most of them loses one.
        let port = ours.port;
        let health = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let mut all = Vec::new();
                for _ in 0..20 {
                    let start = Instant::now();
                    let kubelet = any_certificate().local_address(IpAddr::from([127, 0, 0, 2]));
                    let http = kubelet.build().expect("a client");
                    let answer = http.get(format!("https://127.0.0.1:{port}/livez")).send().await;
                    assert_eq!(answer.expect("an answer").status(), 200);
                    if !is_over.load(Ordering::Relaxed) {
                        all.push(start.elapsed());
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                all.sort_unstable();
                all
            })
        });
        let (answers, probes) = tokio::join!(storm, health);
        let probes = probes.expect("health always answers");
        assert!(!probes.is_empty(), "no probe was answered before the storm was over");
        let mut answers: Vec<_> = answers.into_iter().flatten().collect();
        answers.sort_unstable_by_key(|(.., took)| *took);
        let of = |code: u16| answers.iter().filter(|(answer, ..)| *answer == code).count();
        let (probe, slowest) = (probes[probes.len() / 2], probes[probes.len() - 1]);
        let (.., usual) = answers[answers.len() / 2];
        println!(
            "200: {}, 429: {}, 503: {}, after {usual:?}; health after {probe:?}, slowest {slowest:?}",
            of(200),
            of(429),
            of(503)
        );
        assert!(of(200) > 100, "{}", of(200));
        assert_eq!(of(200) + of(429) + of(503), answers.len());
        assert!(answers.iter().all(|(code, retry, _)| *code == 200 || *retry));
        // A probe, with its handshake, does not queue with the storm, whose requests take longer on a
        // busy machine.
        assert!(probe < Duration::from_millis(1500).max(2 * usual), "{probe:?}, others {usual:?}");
        assert!(slowest < Duration::from_secs(30), "{slowest:?}");
        // More slow clients, which never finish their request, than the connection limit.
        let mut slow = Vec::new();
        for _ in 0..1100 {
            if let Ok(stream) = tokio::net::TcpStream::connect(("127.0.0.1", ours.port)).await {
                slow.push(stream);
            }
        }
        // A probe succeeds as for the kubelet, which tolerates two failures.
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
        served(&ours, &fixture.token, &path).await;
        // Oversized headers and URLs.
        let long = "x".repeat(100 * 1024);
        let url = format!("https://127.0.0.1:{}{path}", ours.port);
        // Far more than one read returns.
        let head = "x".repeat(1 << 20);
        let refused =
            http.get(&url).header("x-long", &head).bearer_auth(&fixture.token).send().await;
        assert!(refused.map_or(true, |response| response.status().is_client_error()));
        let refused = http.get(format!("{url}?labelSelector={long}")).send().await;
        assert!(refused.map_or(true, |response| response.status().is_client_error()));
        served(&ours, &fixture.token, &path).await;
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
fn a_registered_group_serves_discovery_with_or_without_rules() {
    with_fixture(async |fixture| {
        let ours = ours(fixture, "unruled", "").await;
        for (group, version) in [
            ("custom.metrics.k8s.io", "v1beta2"),
            ("external.metrics.k8s.io", "v1beta1"),
            ("metrics.k8s.io", "v1beta1"),
        ] {
            let path = format!("/apis/{group}/{version}");
            let (code, list) = ask(ours.port, &fixture.token, &path).await;
            assert_eq!((code, list["kind"].as_str()), (200, Some("APIResourceList")), "{path}");
        }
        let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/none";
        assert_eq!(ask(ours.port, &fixture.token, path).await.0, 404);
    });
}

#[test]
fn monitoring_finds_the_endpoints_of_other_api_servers() {
    with_fixture(async |fixture| {
        let usage = |resource: &str, series: &str| {
            let query = format!("sum({series}{{<<.LabelMatchers>>}}) by (<<.GroupBy>>)");
            format!(
                "  {resource}:\n    containerLabel: container\n    containerQuery: '{query}'\n    nodeQuery: '{query}'\n\
                 \x20   resources: {{overrides: {{namespace: {{resource: namespace}}, pod: {{resource: pod}}, node: {{resource: node}}}}}}\n"
            )
        };
        let rules = usage("cpu", "cpu_usage") + &usage("memory", "container_memory_bytes");
        let ours =
            ours(fixture, "monitored", &format!("resourceRules:\n  window: 1m\n{rules}")).await;
        for path in ["/livez/ping", "/readyz/ping", "/healthz/ping", "/livez"] {
            assert_eq!(ask_text(ours.port, path).await, (200, "ok".to_owned()), "{path}");
        }
        let (code, version) = ask_text(ours.port, "/version").await;
        assert!(code == 200 && version.contains("gitVersion"), "{version}");
        let pods = "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods";
        served(&ours, &fixture.token, pods).await;
        // A client that gets a list for a watch retries at once, forever.
        let (code, status) = ask(ours.port, &fixture.token, &format!("{pods}?watch=true")).await;
        assert_eq!((code, status["reason"].as_str()), (405, Some("MethodNotAllowed")), "{status}");
        // An unchanged response is not sent again.
        let http = any_certificate().build().expect("a client");
        for path in [API, "/openapi/v3", "/openapi/v2", "/apis"] {
            let url = format!("https://localhost:{}{path}", ours.port);
            let first = http.get(&url).bearer_auth(&fixture.token).send().await.expect("an answer");
            let tag = first.headers().get("etag").cloned();
            let tag = tag.unwrap_or_else(|| panic!("{path} has no ETag"));
            let again = http.get(&url).bearer_auth(&fixture.token).header("if-none-match", tag);
            assert_eq!(again.send().await.expect("an answer").status(), 304, "{path}");
        }
        // The Prometheus text format for clients that accept nothing else.
        let url = format!("https://localhost:{}/metrics", ours.port);
        for (accept, kind) in [
            ("text/plain;version=0.0.4", "text/plain"),
            (
                "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
                "application/openmetrics-text",
            ),
        ] {
            let asked = http.get(&url).bearer_auth(&fixture.token).header("accept", accept);
            let answer = asked.send().await.expect("an answer");
            let given = answer.headers()["content-type"].to_str().expect("text").to_owned();
            assert!(given.starts_with(kind), "{accept}: {given}");
        }
        let head = http.head(&url).bearer_auth(&fixture.token).send().await.expect("an answer");
        assert_eq!(head.status(), 200);
    });
}

/// A Role and RoleBinding that let a user read the metrics of one pod.
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
fn permission_for_a_pod_by_name_covers_selecting_it_by_name() {
    with_fixture(async |fixture| {
        let ours = ours(fixture, "selected", "").await;
        fixture.cluster.apply(&may_read("selective", "web-0")).await;
        let selective = fixture.cluster.sign("selective", &[]);
        let path = "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods";
        // There are no rules: 404 means allowed, 403 forbidden.
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

/// The program of a guard.
fn child_of(guard: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{guard}/task/{guard}/children"));
    let children = children.expect("the guard's children");
    children.split_whitespace().next().and_then(|pid| pid.parse().ok()).unwrap_or(guard)
}
