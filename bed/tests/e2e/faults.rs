//! What happens when Prometheus fails, is slow or answers wrongly. Each test has a bed of its own.

use crate::{FOLLOWS, SOON, on_own_bed, on_shared_bed};
use bed::proxy::{Fault, Proxy};
use bed::thanos::Thanos;
use bed::workload::Namespace;
use bed::{Faults, Options, eventually, plimsoll as installed};
use plimsoll::prometheus::{Client, Error, Options as To};
use plimsoll::promql::name::generated_name;
use plimsoll::samples::Table;
use serde_json::{Value, json};
use std::time::{Duration, Instant, SystemTime};

fn flags(flags: &[&str]) -> Vec<String> {
    flags.iter().map(|flag| (*flag).to_owned()).collect()
}

#[test]
fn without_prometheus_nothing_is_scaled_down_and_everything_recovers() {
    on_own_bed(Options::default(), async |bed| {
        let name = generated_name("queue_depth", None, "down", "web");
        let path = format!("pods/*/{name}");
        {
            let ns = Namespace::new(&bed.cluster, "down").await;
            ns.deployment("web", 1, "queue_depth 20").await;
            ns.deployment("safe", 1, "queue_depth 20").await;
            ns.autoscaler("web", "queue_depth", "10", 4).await;
            let spec = "{metricName: queue_depth, averageValue: 30}";
            ns.autoscaler_of("Deployment", "safe", spec, 6).await;
            let fallback = r#"{"spec":{"fallback":{"failureThreshold":3,"replicas":5}}}"#;
            let patch =
                ["-n", "down", "patch", "autoscaler", "safe", "--type=merge", "-p", fallback];
            bed.cluster.kubectl(&patch).await;
            ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 4).await;
        }
        bed.cluster.stop_prometheus();
        {
            let ns = Namespace { cluster: &bed.cluster, name: "down".to_owned() };
            let message =
                ns.wait_condition("web", "ScalingActive", SOON, |c| c["status"] == "False").await;
            assert!(message.contains("Prometheus can't be reached"), "{message}");
            let object = ns.get("autoscaler", "web").await.unwrap();
            assert!(object["status"]["conditions"].to_string().contains("FailedGetPodsMetric"));
            let error = ns.raw("v1beta2", &path).await.unwrap_err();
            assert!(error.contains("ServiceUnavailable"), "{error}");
            // Of two autoscalers, each second, for longer than the window of 5 s: a guess would have
            // scaled down by now.
            bed.plimsoll.decided(&bed.cluster, 16).await;
            assert_eq!(ns.replicas("Deployment", "web").await, 4);
            // The fallback applies.
            ns.wait_replicas("Deployment", "safe", SOON, |replicas| replicas == 5).await;
            ns.wait_condition("safe", "FallbackActive", SOON, |c| c["status"] == "True").await;
            let columns = ["-n", "down", "get", "autoscaler", "safe", "-o", "wide"];
            let table = bed.cluster.kubectl(&columns).await;
            let lines: Vec<&str> = table.lines().collect();
            let [head, row] = lines[..] else { panic!("{table}") };
            let cell = |name: &str| &row[head.find(name).expect(name)..];
            assert!(cell("FALLBACK").starts_with("True "), "{table}");
            assert!(cell("MESSAGE").contains("Prometheus can't be reached"), "{table}");
        }
        bed.cluster.start_prometheus();
        let ns = Namespace { cluster: &bed.cluster, name: "down".to_owned() };
        ns.wait_condition("web", "ScalingActive", SOON, |c| c["status"] == "True").await;
        assert_eq!(ns.replicas("Deployment", "web").await, 4);
        ns.wait_replicas("Deployment", "safe", FOLLOWS, |replicas| replicas == 2).await;
        ns.wait_condition("safe", "FallbackActive", SOON, |c| c["status"] == "False").await;
    });
}

#[test]
fn a_slow_query_times_out_and_other_metrics_are_unharmed() {
    let flags = flags(&["--prometheus-timeout=1s"]);
    on_own_bed(Options { flags, faults: true, ..Options::default() }, async |bed| {
        let ns = Namespace::new(&bed.cluster, "slow").await;
        ns.deployment("slow", 1, "slow_depth 20").await;
        ns.deployment("quick", 1, "quick_depth 20").await;
        let faults = &bed.faults.as_ref().unwrap().prometheus;
        faults.stall("slow_depth");
        let missed =
            async || bed.plimsoll.metric(&bed.cluster, "plimsoll_missed_rounds_total", "").await;
        let missed_before = missed().await;
        ns.autoscaler("slow", "slow_depth", "10", 3).await;
        ns.autoscaler("quick", "quick_depth", "10", 3).await;
        ns.wait_replicas("Deployment", "quick", SOON, |replicas| replicas == 3).await;
        let message =
            ns.wait_condition("slow", "ScalingActive", SOON, |c| c["status"] == "False").await;
        assert!(message.contains("Prometheus did not answer within 1s"), "{message}");
        assert_eq!(ns.replicas("Deployment", "slow").await, 1);
        // Its sync period is one second, too: evaluations are skipped and counted.
        eventually("rounds are missed", SOON, async || {
            let missed = missed().await - missed_before;
            if missed > 0.0 { Ok(()) } else { Err(missed.to_string()) }
        })
        .await;
        let quick = generated_name("quick_depth", None, "slow", "quick");
        // Nobody else asks for it, and no sample is as old as the time between two requests.
        let pause = ["-n", "slow", "patch", "autoscaler", "quick", "--type=merge", "-p"];
        bed.cluster.kubectl(&[&pause[..], &[r#"{"spec":{"mode":"Paused"}}"#]].concat()).await;
        ns.wait_condition("quick", "Paused", SOON, |c| c["status"] == "True").await;
        let mut fastest = Duration::MAX;
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            let start = Instant::now();
            ns.raw("v1beta2", &format!("pods/*/{quick}")).await.unwrap();
            fastest = fastest.min(start.elapsed());
        }
        assert!(fastest < Duration::from_millis(900), "{fastest:?}");
        let slow = generated_name("slow_depth", None, "slow", "slow");
        let error = ns.raw("v1beta2", &format!("pods/*/{slow}")).await.unwrap_err();
        assert!(error.contains("ServiceUnavailable"), "{error}");
        faults.clear();
        ns.wait_replicas("Deployment", "slow", FOLLOWS, |replicas| replicas == 3).await;
    });
}

/// Milliseconds since 1970.
fn millis() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time").as_millis()
}

/// Creates an Autoscaler without a stabilization window: a wrong value scales at once.
pub async fn at_once(ns: &Namespace<'_>, workload: &str, metric: &str, max: i32) {
    let metric = format!("{{metricName: {metric}, averageValue: 10}}");
    ns.autoscaler_of("Deployment", workload, &metric, max).await;
    let window = r#"{"spec":{"behavior":{"scaleDown":{"stabilizationWindowSeconds":0}}}}"#;
    let patch = ["-n", &ns.name, "patch", "autoscaler", workload, "--type=merge", "-p", window];
    ns.cluster.kubectl(&patch).await;
}

/// Waits until a fault has struck so many requests.
pub async fn hits(proxy: &Proxy, least: usize, what: &str) {
    eventually(what, SOON, async || match proxy.hits() {
        hits if hits >= least => Ok(()),
        hits => Err(format!("{hits} of {least} requests were hit")),
    })
    .await;
}

/// A bed whose Prometheus and kube-apiserver can be made to fail.
pub fn faulty(flags: &[&str]) -> Options {
    let flags = ["--status-interval=1s", "--prometheus-timeout=1s"].iter().chain(flags);
    Options { flags: flags.map(|f| (*f).to_owned()).collect(), faults: true, ..Options::default() }
}

#[test]
fn no_invalid_response_of_prometheus_changes_a_scale() {
    let options = faulty(&["--prometheus-max-response-bytes=100000"]);
    on_own_bed(options, async |bed| {
        let ns = Namespace::new(&bed.cluster, "answers").await;
        // It may scale in both directions.
        ns.deployment("web", 4, "queue 10").await;
        at_once(&ns, "web", "queue", 10).await;
        ns.wait_condition("web", "ScalingActive", SOON, |c| c["status"] == "True").await;
        let Faults { prometheus, api } = bed.faults.as_ref().unwrap();
        let answer = |status: u16, headers: &[(&'static str, &str)], body: &str| Fault::Response {
            status,
            headers: headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
            body: body.to_owned(),
        };
        let vector = |result: Value| {
            json!({"status": "success", "data": {"resultType": "vector", "result": result}})
                .to_string()
        };
        let of_pods = |time: f64, values: &[&str]| -> String {
            let one = |(n, value): (usize, &&str)| {
                json!({"metric": {"namespace": "answers", "pod": format!("other-{n}")},
                       "value": [time, value]})
            };
            vector(values.iter().enumerate().map(one).collect())
        };
        let now = millis() as f64 / 1000.0;
        let padded = format!("{{\"status\":\"success\",\"pad\":\"{}\"}}", "x".repeat(1 << 20));
        let later = [("retry-after", "1")];
        for (what, fault, expected) in [
            ("slow", Fault::Slow(Duration::from_secs(3)), "did not answer within 1s"),
            ("no JSON", answer(200, &[], "<html>sign in</html>"), "invalid response"),
            ("half an answer", Fault::Cut, "invalid response"),
            ("ten times too large", answer(200, &[], &padded), "larger than 100000 bytes"),
            ("too many requests", answer(429, &later, "slow down"), "429: slow down"),
            ("unavailable", answer(503, &later, "starting"), "503: starting"),
            ("a redirect", answer(302, &[("location", "http://127.0.0.1:1/")], ""), "302"),
            ("no series", answer(200, &[], &vector(json!([]))), "no metrics returned"),
            ("other pods alone", answer(200, &[], &of_pods(now, &["0", "0"])), "no metrics"),
            (
                "a matrix",
                answer(200, &[], &vector(json!([])).replace("vector", "matrix")),
                "vector",
            ),
        ] {
            let before = api.writes("/scale").len();
            let failures = async || {
                let failed = "outcome=\"failed\"";
                bed.plimsoll.metric(&bed.cluster, "plimsoll_decisions_total", failed).await
            };
            let failures_before = failures().await;
            prometheus.fail("/api/v1/query?", fault);
            let failed =
                |c: &Value| c["status"] == "False" && c["message"].to_string().contains(expected);
            ns.wait_condition("web", "ScalingActive", SOON, failed).await;
            bed.plimsoll.decided(&bed.cluster, 2).await;
            assert_eq!(api.writes("/scale").len(), before, "{what}");
            assert_eq!(ns.replicas("Deployment", "web").await, 4, "{what}");
            assert!(failures().await >= failures_before + 2.0, "{what}");
            prometheus.clear();
            ns.wait_condition("web", "ScalingActive", SOON, |c| c["status"] == "True").await;
            println!("survived: Prometheus: {what}");
        }
        // NaN and Inf are no values; a timestamp in the future is accepted.
        let pods = ["-n", "answers", "get", "pods", "-l", "app=web", "-o", "json"];
        let pods: Value = serde_json::from_str(&bed.cluster.kubectl(&pods).await).unwrap();
        let pods: Vec<Value> = pods["items"].as_array().unwrap().clone();
        let labels = json!({"namespace": "answers", "app": "web"});
        for (what, time, value) in
            [("NaN", now, "NaN"), ("+Inf", now, "+Inf"), ("a clock ahead", now + 3600.0, "10.5")]
        {
            let one = |pod: &Value| {
                let mut metric = labels.clone();
                metric["pod"] = pod["metadata"]["name"].clone();
                json!({"metric": metric, "value": [time, value]})
            };
            let before = api.writes("/scale").len();
            let body = vector(pods.iter().map(one).collect());
            prometheus.fail("/api/v1/query?", answer(200, &[], &body));
            if value == "10.5" {
                let live = "/live/autoscalers/answers/web";
                eventually("the value is read", SOON, async || {
                    let status = bed.plimsoll.get_as_scraper(&bed.cluster, live).await;
                    if status.contains("10500m/10") { Ok(()) } else { Err(status) }
                })
                .await;
                ns.wait_condition("web", "ScalingActive", SOON, |c| c["status"] == "True").await;
            } else {
                ns.wait_condition("web", "ScalingActive", SOON, |c| c["status"] == "False").await;
            }
            bed.plimsoll.decided(&bed.cluster, 2).await;
            assert_eq!(api.writes("/scale").len(), before, "{what}");
            prometheus.clear();
            ns.wait_condition("web", "ScalingActive", SOON, |c| c["status"] == "True").await;
            println!("survived: Prometheus: {what}");
        }
    });
}

#[test]
fn stale_duplicate_and_reset_samples_scale_nothing_wrongly() {
    on_own_bed(faulty(&[]), async |bed| {
        let ns = Namespace::new(&bed.cluster, "samples").await;
        // The last sample is older than the lookback of Prometheus.
        let old = format!("aged 1 {}", millis() - 600_000);
        ns.deployment("old", 3, &old).await;
        at_once(&ns, "old", "aged", 4).await;
        // A user's query with two series per pod.
        ns.deployment("double", 3, "doubled{part=\"a\"} 1\ndoubled{part=\"b\"} 2").await;
        ns.autoscaler_of(
            "Deployment",
            "double",
            "{metricName: doubled, averageValue: 10, query: doubled}",
            4,
        )
        .await;
        for (name, expected) in [("old", "no metrics returned"), ("double", "more than one")] {
            let told = |c: &Value| c["status"] == "False" && c.to_string().contains(expected);
            ns.wait_condition(name, "ScalingActive", SOON, told).await;
            assert_eq!(ns.replicas("Deployment", name).await, 3, "{name}");
            println!("survived: samples: {name}");
        }
        // Counters reset to 0 with their pods, under the same names.
        ns.workload("StatefulSet", "counts", 3, "").await;
        let metric = "{metricName: http_requests_total, averageValue: 10}";
        ns.autoscaler_of("StatefulSet", "counts", metric, 8).await;
        // Longer than the pods take to begin anew, one after the other: a young counter's rate is low.
        let window = r#"{"spec":{"behavior":{"scaleDown":{"stabilizationWindowSeconds":30}}}}"#;
        let patch =
            ["-n", "samples", "patch", "autoscaler", "counts", "--type=merge", "-p", window];
        bed.cluster.kubectl(&patch).await;
        bed.cluster.load("samples", "app=counts", "/hit/http_requests_total", 27.0).await;
        let steady = |c: &Value| c["reason"] == "ReadyForNewScale";
        tokio::time::sleep(Duration::from_secs(12)).await;
        ns.wait_replicas("StatefulSet", "counts", FOLLOWS, |replicas| replicas == 3).await;
        ns.wait_condition("counts", "AbleToScale", FOLLOWS, steady).await;
        // The last one for longer than the window, in which the recommendations from before leave it.
        for (pod, seconds) in [("counts-0", 4), ("counts-1", 4), ("counts-2", 38)] {
            bed.cluster.kubectl(&["-n", "samples", "delete", "pod", pod, "--wait=false"]).await;
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(seconds) {
                let replicas = ns.replicas("StatefulSet", "counts").await;
                if !(3..=5).contains(&replicas) {
                    let status = ns.get("autoscaler", "counts").await.unwrap_or_default();
                    let tail = bed.plimsoll.process.tail();
                    panic!("{replicas} after {pod} began anew: {status}\n{tail}");
                }
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        }
        ns.wait_replicas("StatefulSet", "counts", FOLLOWS, |replicas| replicas == 3).await;
        println!("survived: samples: counter resets");
    });
}

#[test]
fn an_expired_certificate_of_prometheus_is_rejected() {
    on_own_bed(Options::default(), async |bed| {
        let ns = Namespace::new(&bed.cluster, "expired").await;
        ns.deployment("web", 3, "queue 1").await;
        at_once(&ns, "web", "queue", 4).await;
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 1).await;
        bed.cluster.kubectl(&["-n", "expired", "scale", "deployment/web", "--replicas=0"]).await;
        bed.plimsoll.process.stop();
        bed.cluster.kubectl(&["-n", "expired", "scale", "deployment/web", "--replicas=3"]).await;
        ns.wait_ready("Deployment", "web", 3).await;
        let ca = bed.cluster.ca().display().to_string();
        let options = Options {
            flags: vec![format!("--prometheus-ca-file={ca}"), "--status-interval=1s".to_owned()],
            ..Options::default()
        };
        let server = format!("https://127.0.0.1:{}", bed.cluster.api_port());
        for (name, days, expected) in [("expired", -1, "False"), ("valid", 1, "True")] {
            let signed = bed.cluster.sign_until(name, days);
            let port = bed.cluster.prometheus_port;
            let proxy = Proxy::with_tls(port, &signed.certificate, &signed.key).await;
            let url = format!("https://127.0.0.1:{}", proxy.port);
            let mut replica =
                installed::launch(&bed.cluster, name, &server, &url, &options).await.0;
            // The replica before may have left "False" for another reason.
            let is_expected = |condition: &Value| {
                let text = condition["message"].as_str().unwrap_or_default();
                let why = text.contains("certificate") && text.contains("xpired");
                condition["status"] == expected && (why || expected == "True")
            };
            ns.wait_condition("web", "ScalingActive", SOON, is_expected).await;
            if expected == "False" {
                tokio::time::sleep(Duration::from_secs(3)).await;
                assert_eq!(ns.replicas("Deployment", "web").await, 3);
            }
            replica.stop();
        }
        println!("survived: Prometheus: an expired certificate");
    });
}

#[test]
fn one_tenants_slow_queries_delay_others_by_less_than_a_period() {
    on_own_bed(Options { faults: true, ..Options::default() }, async |bed| {
        let good = Namespace::new(&bed.cluster, "good").await;
        good.deployment("template", 1, "queue 20").await;
        good.deployment("query", 1, "queue 20").await;
        at_once(&good, "template", "queue", 3).await;
        let own = "{metricName: q, averageValue: 10, query: 'sum by (pod) (queue)'}";
        good.autoscaler_of("Deployment", "query", own, 3).await;
        for name in ["template", "query"] {
            // The default policy adds at most 4 pods in 15 s.
            let policy = r#"{"type":"Pods","value":100,"periodSeconds":1}"#;
            let behavior =
                format!(r#"{{"spec":{{"behavior":{{"scaleUp":{{"policies":[{policy}]}}}}}}}}"#);
            let patch =
                ["-n", "good", "patch", "autoscaler", name, "--type=merge", "-p", &behavior];
            bed.cluster.kubectl(&patch).await;
            good.wait_replicas("Deployment", name, SOON, |replicas| replicas == 3).await;
        }
        let Faults { prometheus, .. } = bed.faults.as_ref().unwrap();
        prometheus.fail("greedy_slow", Fault::Slow(Duration::from_secs(11)));
        let greedy = Namespace::new(&bed.cluster, "greedy").await;
        for (first, name) in [(0, "a"), (24, "b"), (48, "c")] {
            greedy.deployment(name, 1, "queue 20").await;
            let metrics: Vec<_> = (first..first + 24)
                .map(|n| {
                    let query = format!("sum by (pod) (greedy_slow) + {n}");
                    json!({"metricName": format!("{name}-{n}"), "averageValue": "10", "query": query})
                })
                .collect();
            let object = json!({
                "apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
                "metadata": {"name": name, "namespace": "greedy"},
                "spec": {
                    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                    "maxReplicas": 3, "syncPeriodSeconds": 1, "customMetrics": metrics,
                },
            });
            bed.cluster.apply(&object.to_string()).await;
        }
        hits(prometheus, 1, "the slow queries run").await;
        // The sync period is a second: a manual change is reverted within a few.
        let mut worst = Duration::ZERO;
        for round in 0..12 {
            let name = ["template", "query"][round % 2];
            let scale = ["-n", "good", "scale", &format!("deployment/{name}"), "--replicas=2"];
            bed.cluster.kubectl(&scale).await;
            let began = Instant::now();
            good.wait_replicas("Deployment", name, SOON, |replicas| replicas == 3).await;
            worst = worst.max(began.elapsed());
        }
        assert!(prometheus.hits() > 2, "{}", prometheus.hits());
        assert!(worst < Duration::from_secs(3), "a neighbour waited for {worst:?}");
        println!("survived: 72 slow queries of one tenant; a neighbour waited for {worst:?}");
    });
}

#[test]
#[ignore = "it builds Thanos: make thanos"]
fn a_result_of_thanos_without_its_store_is_an_error() {
    on_shared_bed("thanos-down", async |bed, ns| {
        // Prometheus has no series without a target.
        ns.deployment("web", 1, "queue 1").await;
        let mut thanos = Thanos::start(&bed.cluster).await;
        let url = format!("http://127.0.0.1:{}", thanos.port);
        let client = Client::new(To::new(&url)).expect("a client");
        let ask = async || -> Result<usize, Error> {
            let body = client.query("sum(up)", &[]).await?;
            body.read(Table::read).map(|table| table.series())
        };
        assert_eq!(ask().await, Ok(1));
        thanos.stop_store();
        // While the querier knows the store, it returns a warning. Once it has forgotten the
        // store, it returns an empty result, unless partial responses are disabled.
        eventually("Thanos has forgotten its store", FOLLOWS, async || {
            let answer = ask().await;
            assert!(matches!(answer, Err(Error::Unavailable { status: 422, .. })), "{answer:?}");
            let url = format!("{url}/api/v1/query?query=sum(up)");
            let text = async { reqwest::get(url).await?.text().await }.await;
            let text = text.map_err(|error| error.to_string())?;
            if text.contains("warnings") { Err(text) } else { Ok(()) }
        })
        .await;
    });
}
