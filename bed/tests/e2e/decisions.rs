//! The decision ledger: `kubectl get decisions`, and the log of decisions.

use crate::ha::{leads, on_two_replicas};
use crate::operating::plugin;
use crate::{FOLLOWS, SOON, managing_native_hpas, on_own_bed, on_shared_bed};
use bed::pki::Signed;
use bed::plimsoll::{binary, decision_log};
use bed::workload::Namespace;
use bed::{Options, eventually};
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use tokio::io::{AsyncBufReadExt, BufReader};

/// An Autoscaler of the Deployment `web` with a period of a second.
async fn autoscaler(ns: &Namespace<'_>, name: &str, fields: &str) {
    let manifest = format!(
        "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\n\
         metadata: {{name: {name}, namespace: {}}}\n\
         spec: {{scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {name}}}, \
         syncPeriodSeconds: 1, customMetrics: [{{metricName: queue_depth, averageValue: 10}}], {fields}}}\n",
        ns.name
    );
    ns.cluster.apply(&manifest).await;
}

/// The decisions of an autoscaler.
async fn decisions(ns: &Namespace<'_>, autoscaler: &str) -> Result<Vec<Value>, String> {
    let label = format!("plimsoll.dev/autoscaler={autoscaler}");
    let arguments = ["-n", &ns.name, "get", "decisions", "-l", &label, "-o", "json"];
    let list = ns.cluster.try_kubectl(&arguments).await?;
    let list: Value = serde_json::from_str(&list).map_err(|error| error.to_string())?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// Waits for a decision.
async fn decision(
    ns: &Namespace<'_>,
    autoscaler: &str,
    what: &str,
    is: impl Fn(&Value) -> bool,
) -> Value {
    eventually(what, FOLLOWS, async || {
        let all = decisions(ns, autoscaler).await?;
        let text = || serde_json::to_string(&all).unwrap_or_default();
        all.iter().find(|one| is(one)).cloned().ok_or_else(text)
    })
    .await
}

#[test]
fn a_scale_up_says_by_which_metric_and_query() {
    on_shared_bed("decisions-up", async |_, ns| {
        ns.deployment("web", 1, "queue_depth 30").await;
        autoscaler(ns, "web", "maxReplicas: 3").await;
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 3).await;
        let up = decision(ns, "web", "the scale-up is there", |one| {
            one["desiredReplicas"] == 3 && one["currentReplicas"] == 1
        })
        .await;
        assert_eq!(up["reason"], "MetricRecommendation", "{up}");
        assert_eq!(up["recommendedReplicas"], 3);
        assert_eq!(up["carriedOut"]["written"], true);
        assert_eq!(up["carriedOut"]["by"], "plimsoll");
        let metric = &up["metrics"][0];
        assert_eq!(metric["name"].as_str().map(|name| name.starts_with("queue_depth")), Some(true));
        let query = metric["query"].as_str().unwrap_or_default();
        assert!(query.contains("queue_depth") && query.contains(&ns.name), "{query}");
        assert_eq!((&metric["value"], &metric["target"]), (&"30".into(), &"10".into()));
        assert_eq!(metric["status"], "Used");
        assert_eq!(metric["ratio"].as_f64(), Some(3.0));
        assert_eq!(metric["pods"]["ready"], 1);
        // Three pods of 30 ask for more than the most.
        let most = decision(ns, "web", "the limit is there", |one| one["reason"] == "ReplicaLimit");
        let most = most.await;
        assert_eq!(most["constraints"][0]["type"], "TooManyReplicas", "{most}");
        assert_eq!(most["desiredReplicas"], 3);
        assert_eq!(most["wouldChange"]["more"]["preventedBy"], "maxReplicas");

        let get = async |arguments: &[&str]| {
            let arguments = [&["-n", &ns.name, "get", "decisions"], arguments].concat();
            ns.cluster.kubectl(&arguments).await
        };
        let table = get(&[]).await;
        let header: Vec<&str> =
            table.lines().next().unwrap_or_default().split_whitespace().collect();
        let columns = ["NAME", "AUTOSCALER", "FROM", "TO", "REASON", "METRIC", "COUNT", "AGE"];
        assert_eq!(header, columns, "{table}");
        assert!(table.contains("MetricRecommendation") && table.contains("30/10"), "{table}");
        assert!(get(&["-o", "wide"]).await.contains("TooManyReplicas"));
        assert!(get(&["-o", "yaml"]).await.contains("query: "));
        let name = up["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        assert!(name.starts_with("web.autoscaler."), "{name}");
        let one = ["-n", &ns.name, "get", "dec", &name, "-o", "jsonpath={.metadata.uid}"];
        assert_eq!(ns.cluster.kubectl(&one).await, up["metadata"]["uid"].as_str().unwrap());
        let field = format!("--field-selector=metadata.name={name}");
        assert_eq!(get(&[&field, "--no-headers"]).await.lines().count(), 1);
        assert_eq!(get(&["-l", "plimsoll.dev/autoscaler=api", "--no-headers"]).await, "");
        let chunks = get(&["--chunk-size=1", "--no-headers"]).await;
        assert!(chunks.lines().count() > 1, "{chunks}");
    });
}

#[test]
fn decisions_are_explained_and_watched_by_kubectl() {
    on_shared_bed("decisions-watch", async |bed, ns| {
        // kube-apiserver asks for the schema now and then.
        let explained = eventually("decisions are explained", FOLLOWS, async || {
            bed.cluster.try_kubectl(&["explain", "decisions"]).await
        })
        .await;
        assert!(explained.contains("KIND:       Decision"), "{explained}");
        assert!(explained.contains("recommendedReplicas"), "{explained}");
        let field = bed.cluster.kubectl(&["explain", "decisions.metrics.query"]).await;
        assert!(field.contains("if Plimsoll itself queries it"), "{field}");
        ns.deployment("web", 1, "queue_depth 30").await;
        let path =
            format!("/apis/decisions.plimsoll.dev/v1alpha1/namespaces/{}/decisions", ns.name);
        let watch = format!("{path}?watch=1&timeoutSeconds=60");
        let client = bed.cluster.client.clone();
        let request = http::Request::get(watch).body(Vec::new()).expect("a request");
        let watched = async {
            use futures::AsyncBufReadExt;
            let lines = client.request_stream(request).await.expect("a watch");
            let mut lines = std::pin::pin!(lines);
            let (mut line, mut seen) = (String::new(), Vec::new());
            while lines.read_line(&mut line).await.is_ok_and(|read| read > 0) {
                let event: Value = serde_json::from_str(&line).expect("an event");
                let is_up = event["object"]["desiredReplicas"] == 3;
                seen.push(event);
                if is_up {
                    break;
                }
                line.clear();
            }
            seen
        };
        let watched = tokio::time::timeout(FOLLOWS, watched);
        let (seen, ()) = tokio::join!(watched, autoscaler(ns, "web", "maxReplicas: 3"));
        let seen = seen.expect("in time");
        let up = seen.last().expect("events");
        assert_eq!((&up["type"], &up["object"]["kind"]), (&"ADDED".into(), &"Decision".into()));
        let old = format!("{path}?watch=1&resourceVersion=1");
        let expired = bed.cluster.kubectl(&["get", "--raw", &old]).await;
        let event: Value = serde_json::from_str(&expired).expect("an event");
        assert_eq!((&event["type"], &event["object"]["code"]), (&"ERROR".into(), &410.into()));
        // As kubectl does it: a list, and a watch from its version on.
        let mut command = tokio::process::Command::new(bed.cluster.parts.join("cluster"));
        command.args(["kubectl", "-n", &ns.name, "get", "decisions", "-w"]);
        command
            .env("KUBECONFIG", &bed.cluster.kubeconfig)
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut kubectl = command.spawn().expect("kubectl can be run");
        let mut lines = BufReader::new(kubectl.stdout.take().expect("a pipe")).lines();
        let mut shown = String::new();
        let mut row = async |from: &str, to: &str| {
            while let Some(line) = lines.next_line().await.expect("text") {
                shown += &format!("{line}\n");
                let columns: Vec<&str> = line.split_whitespace().collect();
                if columns.get(2..4) == Some(&[from, to][..]) {
                    return;
                }
            }
            panic!("kubectl ended:\n{shown}");
        };
        let watched = async {
            row("1", "3").await;
            ns.patch("autoscaler", "web", &json!({"spec": {"maxReplicas": 4}})).await;
            row("3", "4").await;
        };
        let watched = tokio::time::timeout(FOLLOWS, watched).await;
        watched.expect("kubectl shows the scale-up that is there, and the next one");
    });
}

#[test]
fn a_decision_is_described_by_kubectl() {
    on_shared_bed("decisions-described", async |bed, ns| {
        ns.deployment("web", 1, "queue_depth 30").await;
        autoscaler(ns, "web", "maxReplicas: 3").await;
        let up = decision(ns, "web", "the scale-up is there", |one| {
            one["desiredReplicas"] == 3 && one["currentReplicas"] == 1
        })
        .await;
        let name = up["metadata"]["name"].as_str().expect("a name");
        let describe = ["-n", &ns.name, "describe", "decisions"];
        let one = bed.cluster.kubectl(&[&describe[..], &[name]].concat()).await;
        let field = |wanted: &str| {
            let fields = one.lines().filter_map(|line| line.split_once(':'));
            // Nested ones, such as the reason of carriedOut, are indented.
            let mut found = fields.filter(|(field, _)| *field == wanted);
            found.next().map(|(_, value)| value.trim())
        };
        for (wanted, expected) in [
            ("Name", name),
            ("Kind", "Decision"),
            ("Current Replicas", "1"),
            ("Desired Replicas", "3"),
            ("Reason", "MetricRecommendation"),
        ] {
            assert_eq!(field(wanted), Some(expected), "{wanted}:\n{one}");
        }
        assert!(one.contains("plimsoll.dev/autoscaler=web"), "{one}");
        assert!(one.contains("Query:") && one.contains("queue_depth"), "{one}");
        let all = bed.cluster.kubectl(&describe).await;
        assert!(all.contains(name), "{all}");
    });
}

/// One that is executed here, not only observed.
#[test]
fn a_managed_native_hpa_leaves_decisions() {
    on_own_bed(managing_native_hpas(), async |bed| {
        let ns = Namespace::new(&bed.cluster, "managed").await;
        ns.deployment("web", 1, "queue_depth 30").await;
        ns.hpa("web", "queue_depth", "10", 3).await;
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 3).await;
        let up = decision(&ns, "web", "the scale-up is there", |one| {
            one["desiredReplicas"] == 3 && one["currentReplicas"] == 1
        })
        .await;
        let kind = &up["metadata"]["labels"]["plimsoll.dev/kind"];
        assert_eq!(kind, "HorizontalPodAutoscaler", "{up}");
        assert_eq!(up["reason"], "MetricRecommendation", "{up}");
        assert_eq!(up["carriedOut"]["written"], true, "{up}");
        assert_eq!(up["carriedOut"]["by"], "plimsoll", "{up}");
        // kube-controller-manager does not decide.
        assert!(up["observed"].is_null(), "{up}");
        let explained = plugin(bed, &["explain", "hpa/web", "-n", "managed"]).await.unwrap();
        assert!(explained.contains("3 replicas of Deployment/web"), "{explained}");
    });
}

#[test]
fn users_see_the_decisions_of_their_namespaces_only() {
    on_shared_bed("decisions-rbac", async |bed, ns| {
        ns.deployment("web", 1, "queue_depth 10").await;
        autoscaler(ns, "web", "maxReplicas: 3").await;
        let one = decision(ns, "web", "a decision", |_| true).await;
        let name = one["metadata"]["name"].as_str().unwrap_or_default();
        let viewer =
            ["-n", &ns.name, "create", "rolebinding", "view", "--clusterrole=view", "--user=ann"];
        bed.cluster.kubectl(&viewer).await;
        eventually("ann may read them", SOON, async || {
            let own = ["-n", &ns.name, "--as=ann", "get", "decisions", "--no-headers"];
            let text = bed.cluster.try_kubectl(&own).await?;
            if text.contains("web.autoscaler.") { Ok(()) } else { Err(text) }
        })
        .await;
        let refused = async |arguments: &[&str]| {
            let error = bed.cluster.try_kubectl(arguments).await.unwrap_err();
            assert!(error.contains("Forbidden") || error.contains("forbidden"), "{error}");
        };
        for elsewhere in [&["-n", "default"][..], &["-A"]] {
            refused(&[elsewhere, &["--as=ann", "get", "decisions"]].concat()).await;
        }
        // Neither does a watch show them to others, nor a decision whose name is known.
        let group = "/apis/decisions.plimsoll.dev/v1alpha1";
        let own = format!("{group}/namespaces/{}/decisions", ns.name);
        let watch = "?watch=1&timeoutSeconds=1";
        let by_field = format!("{watch}&fieldSelector=metadata.namespace%3D{}", ns.name);
        for (user, path) in [
            ("bob", format!("{own}{watch}")),
            ("bob", format!("{own}/{name}")),
            ("bob", format!("{own}/{name}{watch}")),
            ("ann", format!("{group}/decisions{watch}")),
            ("ann", format!("{group}/decisions{by_field}")),
            ("ann", format!("{group}/namespaces/default/decisions{watch}")),
            ("ann", format!("{group}/namespaces/default/decisions/{name}")),
        ] {
            refused(&[&format!("--as={user}"), "get", "--raw", &path]).await;
        }
        for path in [format!("{own}/{name}"), format!("{own}{watch}")] {
            let shown = bed.cluster.kubectl(&["--as=ann", "get", "--raw", &path]).await;
            assert!(shown.contains(name), "{path}: {shown}");
        }
    });
}

#[test]
fn what_was_shown_before_a_failover_is_shown_after_it() {
    on_two_replicas(async |cluster, a, b| {
        let ns = Namespace::new(cluster, "failover").await;
        ns.deployment("web", 1, "queue_depth 30").await;
        autoscaler(&ns, "web", "maxReplicas: 3").await;
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 3).await;
        let path = "/apis/decisions.plimsoll.dev/v1alpha1/namespaces/failover/decisions";
        let Signed { certificate, key } = cluster.sign("ann", &["system:masters"]);
        let pem = [certificate, key].map(|path| std::fs::read(path).expect("a file")).concat();
        let http = reqwest::Client::builder()
            .tls_danger_accept_invalid_certs(true)
            .identity(reqwest::Identity::from_pem(&pem).expect("an identity"))
            .build()
            .expect("a client");
        let list = async |port: u16| -> Result<Vec<Value>, String> {
            let response = http.get(format!("https://localhost:{port}{path}")).send().await;
            let list = response.map_err(|error| error.to_string())?.bytes().await;
            let list = list.map_err(|error| error.to_string())?;
            let list: Value = serde_json::from_slice(&list).map_err(|error| error.to_string())?;
            list["items"].as_array().cloned().ok_or_else(|| list.to_string())
        };
        let of_reason = |all: &[Value], reason: &str| {
            all.iter()
                .find(|one| one["reason"] == reason)
                .cloned()
                .ok_or_else(|| format!("{all:?}"))
        };
        let up = eventually("the leader shows the scale-up", FOLLOWS, async || {
            of_reason(&list(a.port).await?, "MetricRecommendation")
        })
        .await;
        eventually("the other replica shows the same", SOON, async || {
            let copied = of_reason(&list(b.port).await?, "MetricRecommendation")?;
            if copied == up { Ok(()) } else { Err(copied.to_string()) }
        })
        .await;
        // A list continues at the other replica.
        let page = async |port: u16, query: String| -> Value {
            let url = format!("https://localhost:{port}{path}?limit=1{query}");
            let page = http.get(url).send().await.expect("a response").bytes().await;
            serde_json::from_slice(&page.expect("a page")).expect("JSON")
        };
        let first = page(a.port, String::new()).await;
        let token = first["metadata"]["continue"].as_str().expect("there are more");
        let second = page(b.port, format!("&continue={token}")).await;
        assert_eq!(second["kind"], "DecisionList", "{second}");
        assert_ne!(second["items"][0]["metadata"]["name"], first["items"][0]["metadata"]["name"]);
        a.process.signal("KILL");
        leads(cluster, "b", FOLLOWS).await;
        let after = of_reason(&list(b.port).await.expect("a list"), "MetricRecommendation");
        assert_eq!(after.as_ref(), Ok(&up));
        // It continues, with the sequences of before.
        eventually("the new leader decides", FOLLOWS, async || {
            let all = list(b.port).await?;
            let last = all.last().cloned().unwrap_or_default();
            let is_later = last["time"].as_str() > up["time"].as_str();
            let uids: std::collections::BTreeSet<_> =
                all.iter().map(|one| one["metadata"]["name"].to_string()).collect();
            if is_later && uids.len() == all.len() { Ok(()) } else { Err(format!("{all:?}")) }
        })
        .await;
    });
}

#[test]
fn the_log_of_decisions_is_replayed() {
    let folder = tempfile::tempdir().expect("a folder");
    on_own_bed(Options { decision_log: true, ..Options::default() }, async |bed| {
        let log = decision_log(&bed.cluster, "plimsoll");
        let ns = Namespace::new(&bed.cluster, "logged").await;
        ns.deployment("web", 1, "queue_depth 30").await;
        let more = "maxReplicas: 3, schedules: [{name: all, start: '@daily', end: '59 23 * * *', minReplicas: 1}]";
        autoscaler(&ns, "web", more).await;
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 3).await;
        let replay = |path: &std::path::Path| {
            Command::new(binary()).arg("replay").arg(path).output().expect("plimsoll replay")
        };
        let text = eventually("decisions are logged", SOON, async || {
            let text = std::fs::read_to_string(&log).map_err(|error| error.to_string())?;
            // There may be several without the metric before.
            let has_metric = text.contains("\"milli\":30000");
            let is_whole = text.lines().count() > 5 && text.ends_with('\n');
            if has_metric && is_whole { Ok(text) } else { Err(text) }
        })
        .await;
        let whole = folder.path().join("whole.jsonl");
        std::fs::write(&whole, &text).expect("a file");
        let replayed = replay(&whole);
        let output = String::from_utf8_lossy(&replayed.stdout).into_owned();
        assert!(replayed.status.success(), "{output}");
        assert!(output.ends_with(" 0 differ\n"), "{output}");
        let changed = folder.path().join("changed.jsonl");
        std::fs::write(&changed, text.replacen("\"milli\":30000", "\"milli\":29999", 1))
            .expect("a file");
        let replayed = replay(&changed);
        let output = String::from_utf8_lossy(&replayed.stdout).into_owned();
        assert_eq!(replayed.status.code(), Some(1), "{output}");
        assert!(output.contains(" 1 differ"), "{output}");
    });
}
