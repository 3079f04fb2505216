//! The metrics API, as kubectl sees it.

use crate::{SOON, on_shared_bed};
use bed::eventually;
use bed::workload::Namespace;
use plimsoll::k8s::LabelSet;
use plimsoll::promql::name::generated_name;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const GROUP: &str = "/apis/custom.metrics.k8s.io";

/// Waits until a list has this number of items; returns the value of each pod.
async fn values(ns: &Namespace<'_>, path: &str, count: usize) -> BTreeMap<String, String> {
    eventually(&format!("{count} values at {path}"), SOON, async || {
        let list = ns.raw("v1beta2", path).await?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        if items.len() != count {
            return Err(list.to_string());
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let item = |item: &Value| (text(&item["describedObject"]["name"]), text(&item["value"]));
        Ok(items.iter().map(item).collect())
    })
    .await
}

#[test]
fn one_pod_all_pods_and_those_of_a_selector_are_served_in_both_versions() {
    on_shared_bed("api-values", async |_, ns| {
        ns.deployment("web", 2, "queue_depth 7").await;
        ns.deployment("api", 1, "queue_depth 2.5").await;
        ns.autoscaler("web", "queue_depth", "7", 5).await;
        let metric = generated_name("queue_depth", None, &ns.name, "web");
        let all = values(ns, &format!("pods/*/{metric}"), 3).await;
        assert_eq!(all.values().filter(|value| *value == "7").count(), 2, "{all:?}");
        let path = format!("pods/*/{metric}?labelSelector=app%3Dapi");
        assert_eq!(values(ns, &path, 1).await.into_values().next().as_deref(), Some("2500m"));
        let (pod, _) = all.iter().find(|(_, value)| *value == "7").unwrap();

        let one = ns.raw("v1beta1", &format!("pods/{pod}/{metric}")).await.unwrap();
        assert_eq!(one["kind"], "MetricValueList");
        assert_eq!(one["apiVersion"], "custom.metrics.k8s.io/v1beta1");
        let item = &one["items"][0];
        let described =
            json!({"kind": "Pod", "namespace": ns.name, "name": pod, "apiVersion": "/v1"});
        assert_eq!(item["describedObject"], described);
        assert_eq!(item["metricName"], metric);
        assert_eq!(item["value"], "7");
        assert!(item["timestamp"].as_str().unwrap().ends_with('Z'));

        let one = ns.raw("v1beta2", &format!("pods/{pod}/{metric}")).await.unwrap();
        assert_eq!(one["items"][0]["metric"], json!({"name": metric, "selector": null}));
        let error = ns.raw("v1beta2", &format!("pods/nobody/{metric}")).await.unwrap_err();
        assert!(
            error.contains(&format!("could not find the metric {metric} for pods nobody")),
            "{error}"
        );
    });
}

#[test]
fn a_metric_is_served_for_its_labels_and_not_for_others() {
    on_shared_bed("api-labels", async |_, ns| {
        let series =
            "hits{view=\"default\",module=\"server\"} 3\nhits{view=\"other\",module=\"server\"} 40";
        ns.deployment("web", 1, series).await;
        let metric =
            "{metricName: hits, labels: {view: default, module: server}, averageValue: 100}";
        ns.autoscaler_of("Deployment", "web", metric, 5).await;
        let labels = LabelSet::from([
            ("view".to_owned(), "default".to_owned()),
            ("module".to_owned(), "server".to_owned()),
        ]);
        let name = generated_name("hits", Some(&labels), &ns.name, "web");
        assert!(name.contains("820193bd2d60"), "{name}");
        let with = |labels: &str| format!("pods/*/{name}?metricLabelSelector={labels}");
        let found = values(ns, &with("module%3Dserver,view%3Ddefault"), 1).await;
        assert_eq!(found.into_values().next().as_deref(), Some("3"));
        assert_eq!(values(ns, &format!("pods/*/{name}"), 1).await.len(), 1);
        for labels in ["module%3Dserver", "module%3Dserver,view%3Dother", "view"] {
            let error = ns.raw("v1beta2", &with(labels)).await.unwrap_err();
            assert!(error.contains("could not find the metric"), "{labels}: {error}");
        }
    });
}

#[test]
fn a_wrong_hash_and_an_unknown_metric_are_not_found_with_the_usual_message() {
    on_shared_bed("api-unknown", async |bed, ns| {
        ns.deployment("web", 1, "queue_depth 1").await;
        ns.autoscaler("web", "queue_depth", "100", 5).await;
        let right = generated_name("queue_depth", None, &ns.name, "web");
        values(ns, &format!("pods/*/{right}"), 1).await;
        let wrong = right.replace("74234e98afe7", "000000000000");
        for name in [wrong.as_str(), "queue_depth", "up"] {
            let error = ns.raw("v1beta1", &format!("pods/*/{name}")).await.unwrap_err();
            let expected = format!(
                "Error from server (NotFound): the server could not find the metric {name} for pods"
            );
            assert_eq!(error, expected);
        }
        let (pod, _) = values(ns, &format!("pods/*/{right}"), 1).await.pop_first().unwrap();
        let elsewhere = format!("{GROUP}/v1beta1/namespaces/default/pods/{pod}/{right}");
        let error = bed.cluster.try_kubectl(&["get", "--raw", &elsewhere]).await.unwrap_err();
        assert!(error.contains("NotFound"), "{error}");
    });
}

#[test]
fn discovery_lists_the_groups_and_no_metrics_of_namespaces() {
    on_shared_bed("api-discovery", async |bed, ns| {
        ns.deployment("web", 1, "discovered 1").await;
        ns.autoscaler("web", "discovered", "5", 5).await;
        let metric = generated_name("discovered", None, &ns.name, "web");
        values(ns, &format!("pods/*/{metric}"), 1).await;
        let raw = async |path: &str| -> Value {
            serde_json::from_str(&bed.cluster.kubectl(&["get", "--raw", path]).await).unwrap()
        };
        for version in ["v1beta1", "v1beta2"] {
            let list = raw(&format!("{GROUP}/{version}")).await;
            assert_eq!(list["kind"], "APIResourceList");
            assert!(!list.to_string().contains(&ns.name), "{list}");
        }
        let group = raw(GROUP).await;
        assert_eq!(group["preferredVersion"]["version"], "v1beta2");
        let groups = raw("/apis").await;
        let listed = groups["groups"].as_array().unwrap().iter();
        assert_eq!(listed.filter(|group| group["name"] == "custom.metrics.k8s.io").count(), 1);

        // Aggregated discovery, from Plimsoll itself and as kube-apiserver merges it.
        let token = bed.cluster.kubectl(&["-n", "plimsoll", "create", "token", "plimsoll"]).await;
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let bearer = format!("Bearer {}", token.trim());
        let (code, body) =
            bed.plimsoll.get("/apis", &[("accept", accept), ("authorization", &bearer)]).await;
        assert_eq!(code, 200, "{body}");
        let list: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(list["kind"], "APIGroupDiscoveryList");
        assert_eq!(list["items"][0]["versions"][0]["version"], "v1beta2");
        assert!(!body.contains(&ns.name), "{body}");
        // kube-apiserver polls discovery every minute.
        eventually("kube-apiserver merges it", Duration::from_secs(100), async || {
            let request =
                http::Request::get("/apis").header("accept", accept).body(vec![]).unwrap();
            let text = bed.cluster.client.request_text(request).await.map_err(|e| e.to_string())?;
            assert!(!text.contains(&metric), "{text}");
            if text.contains("custom.metrics.k8s.io") { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
    });
}

#[test]
fn a_metric_created_at_run_time_is_served_within_a_second_without_a_restart() {
    on_shared_bed("api-live", async |bed, ns| {
        ns.deployment("web", 1, "brand_new 11").await;
        // Prometheus has the metric before the first request for it.
        let url = format!(
            "http://127.0.0.1:{}/api/v1/query?query=brand_new",
            bed.cluster.prometheus_port
        );
        eventually("Prometheus has scraped it", SOON, async || {
            let text = reqwest::get(&url).await.map_err(|e| e.to_string())?.text().await;
            let text = text.map_err(|e| e.to_string())?;
            if text.contains("\"11\"") { Ok(()) } else { Err(text) }
        })
        .await;
        let process = bed.plimsoll.process.id();
        let metric = generated_name("brand_new", None, &ns.name, "web");
        let path = format!("{GROUP}/v1beta2/namespaces/{}/pods/*/{metric}", ns.name);
        let ask = async || {
            let request = http::Request::get(&path).body(vec![]).unwrap();
            bed.cluster.client.request::<Value>(request).await
        };
        assert!(ask().await.is_err(), "nobody asks for it yet");
        ns.autoscaler("web", "brand_new", "100", 5).await;
        let created = Instant::now();
        let value = loop {
            if let Ok(list) = ask().await
                && let Some(value) = list["items"][0]["value"].as_str()
            {
                break value.to_owned();
            }
            assert!(created.elapsed() < Duration::from_secs(1), "not within a second");
        };
        assert_eq!(value, "11");
        println!("served {:?} after it was created", created.elapsed());
        assert_eq!(bed.plimsoll.process.id(), process);

        bed.cluster.kubectl(&["-n", &ns.name, "delete", "autoscaler", "web"]).await;
        eventually("the metric is gone with its autoscaler", SOON, async || match ask().await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
        let listed = bed.cluster.kubectl(&["get", "--raw", &format!("{GROUP}/v1beta2")]).await;
        assert!(!listed.contains(&metric));
    });
}

#[test]
fn pods_of_the_same_name_in_two_namespaces_never_mix() {
    on_shared_bed("api-mix-a", async |bed, ns| {
        let other = Namespace::new(&bed.cluster, "api-mix-b").await;
        for (ns, series) in [(ns, "depth 5"), (&other, "depth 900")] {
            ns.workload("StatefulSet", "web", 1, series).await;
            ns.autoscaler_of("StatefulSet", "web", "{metricName: depth, averageValue: 1k}", 3)
                .await;
        }
        for (ns, expected) in [(ns, "5"), (&other, "900")] {
            let metric = generated_name("depth", None, &ns.name, "web");
            let found = values(ns, &format!("pods/*/{metric}"), 1).await;
            assert_eq!(found, BTreeMap::from([("web-0".to_owned(), expected.to_owned())]));
        }
    });
}

#[test]
fn nan_is_not_a_sample() {
    on_shared_bed("api-nan", async |_, ns| {
        ns.deployment("good", 1, "ratio 4").await;
        ns.deployment("bad", 1, "ratio NaN").await;
        ns.autoscaler("bad", "ratio", "1", 5).await;
        let metric = generated_name("ratio", None, &ns.name, "bad");
        let found = values(ns, &format!("pods/*/{metric}"), 1).await;
        assert!(found.keys().all(|pod| pod.starts_with("good-")), "{found:?}");
        let message =
            ns.wait_condition("bad", "ScalingActive", SOON, |c| c["status"] == "False").await;
        assert!(message.contains("no metrics returned from custom metrics API"), "{message}");
        assert_eq!(ns.replicas("Deployment", "bad").await, 1);
    });
}

#[test]
fn a_counter_is_served_as_its_rate_and_a_users_query_as_it_is() {
    on_shared_bed("api-rate", async |bed, ns| {
        ns.deployment("web", 1, "pool_used 30\npool_size 40").await;
        let query = "100 * sum by (pod) (pool_used) / sum by (pod) (pool_size)";
        let metric = format!(
            "{{metricName: hits_total, averageValue: 100}}, {{metricName: pool_percent, averageValue: 100, query: \"{query}\"}}"
        );
        ns.autoscaler_of("Deployment", "web", &metric, 3).await;
        bed.cluster.load(&ns.name, "app=web", "/hit/hits_total", 20.0).await;
        let rate = generated_name("hits_total", None, &ns.name, "web");
        eventually("the rate is about 20 a second", SOON, async || {
            let list = ns.raw("v1beta2", &format!("pods/*/{rate}")).await?;
            let value = list["items"][0]["value"].as_str().unwrap_or("0").to_owned();
            let milli = value.parse::<plimsoll::k8s::Quantity>().unwrap().milli();
            if (17_000..=23_000).contains(&milli) { Ok(()) } else { Err(value) }
        })
        .await;
        bed.cluster.load(&ns.name, "app=web", "/hit/hits_total", 0.0).await;
        let percent = generated_name("pool_percent", None, &ns.name, "web");
        let found = values(ns, &format!("pods/*/{percent}"), 1).await;
        assert_eq!(found.into_values().next().as_deref(), Some("75"));
    });
}

#[test]
fn unauthorized_and_unauthenticated_requests_are_refused() {
    on_shared_bed("api-access", async |bed, ns| {
        ns.deployment("web", 1, "queue_depth 1").await;
        ns.autoscaler("web", "queue_depth", "100", 5).await;
        let metric = generated_name("queue_depth", None, &ns.name, "web");
        values(ns, &format!("pods/*/{metric}"), 1).await;
        let path = format!("{GROUP}/v1beta2/namespaces/{}/pods/*/{metric}", ns.name);

        // Through the aggregator, which authenticates the user, without and with permission.
        let mallory = bed.cluster.kubeconfig_of("mallory", &["outsiders"]);
        let ask = ["get", "--raw", path.as_str()];
        let error = bed.cluster.kubectl_as(&mallory, &ask, "").await.unwrap_err();
        assert!(error.contains("Forbidden") && error.contains("\"mallory\""), "{error}");
        let alice = bed.cluster.kubeconfig_of("alice", &[]);
        bed.cluster
            .kubectl(&[
                "-n",
                &ns.name,
                "create",
                "rolebinding",
                "alice",
                "--clusterrole=view",
                "--user=alice",
            ])
            .await;
        eventually("alice may look", SOON, async || bed.cluster.kubectl_as(&alice, &ask, "").await)
            .await;

        // Directly: anonymous, an invalid token, and headers that only a front proxy may send.
        let spoofed = [("x-remote-user", "admin"), ("x-remote-group", "system:masters")];
        for headers in [&[][..], &[("authorization", "Bearer nonsense")], &spoofed] {
            let (code, body) = bed.plimsoll.get(&path, headers).await;
            let status: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(
                (code, status["reason"].as_str()),
                (401, Some("Unauthorized")),
                "{headers:?}"
            );
            assert_eq!(status["kind"], "Status");
        }
        // A valid token of a user without permission.
        let token = bed.cluster.kubectl(&["-n", &ns.name, "create", "token", "default"]).await;
        let bearer = format!("Bearer {}", token.trim());
        let (code, body) = bed.plimsoll.get(&path, &[("authorization", &bearer)]).await;
        assert_eq!(code, 403, "{body}");
        for path in ["/livez", "/readyz", "/healthz"] {
            assert_eq!(bed.plimsoll.get(path, &[]).await, (200, "ok".to_owned()));
        }
        assert_eq!(bed.plimsoll.get("/metrics", &[]).await.0, 401);
    });
}
