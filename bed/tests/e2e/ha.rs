//! Two replicas, each with its own proxies to kube-apiserver and Prometheus.

use crate::security::ask;
use crate::{FOLLOWS, SOON, runtime};
use ::plimsoll::promql::name::generated_name;
use bed::cluster::Cluster;
use bed::process::Process;
use bed::proxy::Proxy;
use bed::workload::Namespace;
use bed::{Options, eventually, plimsoll};
use serde_json::Value;
use std::time::{Duration, Instant};

/// A replica, and its proxies.
pub struct Replica {
    pub process: Process,
    pub port: u16,
    pub api: Proxy,
    pub prometheus: Proxy,
}

impl Replica {
    async fn start(cluster: &Cluster, name: &str) -> Self {
        let api = Proxy::to_https(cluster.api_port(), cluster.ca()).await;
        let prometheus = Proxy::start(cluster.prometheus_port).await;
        let (process, port) = Self::launch(cluster, name, &api, &prometheus, Vec::new()).await;
        Self { process, port, api, prometheus }
    }

    /// Kills it, and restarts it with this environment.
    pub async fn restart(&mut self, cluster: &Cluster, name: &str, environment: Vec<String>) {
        self.process.signal("KILL");
        let Self { api, prometheus, .. } = &*self;
        let started = Self::launch(cluster, name, api, prometheus, environment).await;
        (self.process, self.port) = started;
    }

    async fn launch(
        cluster: &Cluster,
        name: &str,
        api: &Proxy,
        prometheus: &Proxy,
        environment: Vec<String>,
    ) -> (Process, u16) {
        let options = Options {
            flags: [
                "--status-interval=1s",
                "--memory-interval=2s",
                "--prometheus-timeout=1s",
                // Shorter than the defaults, so that tests take less time.
                "--leader-elect-lease-duration=7s",
                "--leader-elect-renew-deadline=5s",
            ]
            .map(str::to_owned)
            .to_vec(),
            environment,
            ..Options::default()
        };
        let [server, prometheus] =
            [api, prometheus].map(|proxy| format!("http://127.0.0.1:{}", proxy.port));
        plimsoll::launch(cluster, name, &server, &prometheus, &options).await
    }

    /// Its updates of scales, and their times.
    pub fn scales(&self) -> Vec<Instant> {
        let writes = self.api.writes("/scale");
        writes.into_iter().filter(|(_, what)| what.starts_with("PUT")).map(|(at, _)| at).collect()
    }
}

async fn holder(cluster: &Cluster) -> Result<String, String> {
    let arguments =
        ["-n", "plimsoll", "get", "lease", "plimsoll", "-o", "jsonpath={.spec.holderIdentity}"];
    cluster.try_kubectl(&arguments).await
}

/// The timeout of a leader change: the duration of the Lease, and a margin for a busy machine.
const TAKEN_OVER: Duration = Duration::from_secs(20);

/// Waits until a replica leads; returns the time that it took.
pub async fn leads(cluster: &Cluster, name: &str, within: Duration) -> Duration {
    let start = Instant::now();
    eventually(&format!("{name} leads"), within, async || match holder(cluster).await? {
        identity if identity.starts_with(&format!("{name}_")) => Ok(()),
        other => Err(other),
    })
    .await;
    start.elapsed()
}

/// Runs a test with two replicas, of which `a` leads.
pub fn on_two_replicas(test: impl AsyncFnOnce(&mut Cluster, &mut Replica, &mut Replica)) {
    runtime().block_on(async {
        let mut cluster = Cluster::start(&Options::default()).await;
        plimsoll::install(&cluster, "deploy").await;
        let mut a = Replica::start(&cluster, "a").await;
        leads(&cluster, "a", SOON).await;
        let mut b = Replica::start(&cluster, "b").await;
        test(&mut cluster, &mut a, &mut b).await;
    });
}

const WINDOW: Duration = Duration::from_secs(30);

/// A workload that only its stabilization window keeps at three replicas, since the time returned.
pub async fn holds_by_its_window(ns: &Namespace<'_>) -> Instant {
    ns.deployment("web", 1, "").await;
    ns.autoscaler_of("Deployment", "web", "{metricName: http_requests_total, averageValue: 10}", 8)
        .await;
    let window = format!(
        r#"{{"spec":{{"behavior":{{"scaleDown":{{"stabilizationWindowSeconds":{}}}}}}}}}"#,
        WINDOW.as_secs()
    );
    let patch = ["-n", &ns.name, "patch", "autoscaler", "web", "--type=merge", "-p", &window];
    ns.cluster.kubectl(&patch).await;
    ns.cluster.load(&ns.name, "app=web", "/hit/http_requests_total", 27.0).await;
    ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 3).await;
    ns.wait_ready("Deployment", "web", 3).await;
    let held = |c: &serde_json::Value| c["reason"] == "ReadyForNewScale";
    ns.wait_condition("web", "AbleToScale", FOLLOWS, held).await;
    ns.cluster.load(&ns.name, "app=web", "/hit/http_requests_total", 0.0).await;
    let held = |c: &serde_json::Value| c["reason"] == "ScaleDownStabilized";
    ns.wait_condition("web", "AbleToScale", SOON, held).await;
    Instant::now()
}

/// The workload scales down when the window that began at a time ends: not before, and not a window
/// after any later event.
pub async fn goes_when_its_window_ends(ns: &Namespace<'_>, began: Instant) {
    while began.elapsed() < WINDOW - Duration::from_secs(6) {
        assert_eq!(ns.replicas("Deployment", "web").await, 3, "after {:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let left = (WINDOW + Duration::from_secs(8)).saturating_sub(began.elapsed());
    ns.wait_replicas("Deployment", "web", left, |replicas| replicas < 3).await;
    println!("scaled down {:?} after the window began", began.elapsed());
}

#[test]
fn a_follower_has_the_scaling_history_when_the_leader_is_killed() {
    on_two_replicas(async |cluster, a, _| {
        let began = {
            let ns = Namespace::new(cluster, "killed").await;
            holds_by_its_window(&ns).await
        };
        tokio::time::sleep(Duration::from_secs(8)).await;
        a.process.signal("KILL");
        let took = leads(cluster, "b", TAKEN_OVER).await;
        println!("killed: the other led after {took:?}");
        let ns = Namespace { cluster, name: "killed".to_owned() };
        goes_when_its_window_ends(&ns, began).await;
    });
}

/// The events of the schedules of the namespace `window`, and how often.
async fn told_of_schedules(cluster: &Cluster) -> Result<Vec<(String, u64)>, String> {
    let events = ["-n", "window", "get", "events", "-o", "json"];
    let events: serde_json::Value =
        serde_json::from_str(&cluster.kubectl(&events).await).expect("JSON");
    let events = events["items"].as_array().expect("a list").iter();
    let of_window = events
        .filter(|e| {
            e["involvedObject"]["kind"] == "Autoscaler"
                && e["reason"].to_string().contains("Schedule")
        })
        .map(|event| {
            let count = event["count"].as_u64().or(event["series"]["count"].as_u64());
            (event["reason"].to_string(), count.unwrap_or(1))
        });
    let told: Vec<_> = of_window.collect();
    match told.is_empty() {
        true => Err("nothing was told".to_owned()),
        false => Ok(told),
    }
}

/// The new leader knows the window from the status: it holds the bound at once, and says nothing again.
#[test]
fn a_window_of_a_schedule_goes_on_when_the_leader_is_killed() {
    on_two_replicas(async |cluster, a, _| {
        let ns = Namespace::new(cluster, "window").await;
        ns.deployment("web", 1, "queue 1").await;
        let from = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(5);
        let until = from + jiff::SignedDuration::from_secs(3_600);
        let fields = format!(
            "maxReplicas: 5, syncPeriodSeconds: 1, customMetrics: [{{metricName: queue, averageValue: 10}}], \
             behavior: {{scaleDown: {{stabilizationWindowSeconds: 0}}}}, \
             schedules: [{{name: sale, from: '{from}', until: '{until}', minReplicas: 3}}]"
        );
        ns.autoscaler_with("Deployment", "web", &fields).await;
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 3).await;
        let before =
            eventually("its begin is told", SOON, async || told_of_schedules(cluster).await).await;
        assert_eq!(before, [("\"ScheduleStarted\"".to_owned(), 1)]);
        eventually("the status has it", SOON, async || {
            let status = ns.get("autoscaler", "web").await?["status"].clone();
            let is_active = status["schedule"]["active"][0]["name"] == "sale";
            if is_active { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
        // Until the metrics of the new pods are there, those pods count as at the target.
        let limited = |c: &Value| c["reason"] == "TooFewReplicas";
        ns.wait_condition("web", "ScalingLimited", SOON, limited).await;
        let written = async || -> Result<(Value, Value), String> {
            let web = ns.get("autoscaler", "web").await?;
            Ok((web["metadata"]["resourceVersion"].clone(), web["status"].clone()))
        };
        // While they are not, nothing limits.
        let before_it = eventually("the status is as it will be", SOON, async || {
            let before_it = written().await?;
            tokio::time::sleep(Duration::from_secs(3)).await;
            let conditions = before_it.1["conditions"].as_array();
            let is_limited = conditions.is_some_and(|all| all.iter().any(limited));
            match is_limited && written().await? == before_it {
                true => Ok(before_it),
                false => Err(before_it.1.to_string()),
            }
        })
        .await;
        a.process.signal("KILL");
        leads(cluster, "b", TAKEN_OVER).await;
        let led = Instant::now();
        while led.elapsed() < Duration::from_secs(6) {
            assert_eq!(ns.replicas("Deployment", "web").await, 3, "after {:?}", led.elapsed());
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert_eq!(told_of_schedules(cluster).await.expect("events"), before);
        let after_it = written().await.expect("a status");
        assert_eq!(after_it, before_it, "it had that status already");
    });
}

#[test]
fn a_graceful_shutdown_hands_over_at_once() {
    on_two_replicas(async |cluster, a, b| {
        let ns = Namespace::new(cluster, "orderly").await;
        ns.deployment("web", 1, "queue 20").await;
        ns.autoscaler("web", "queue", "10", 2).await;
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 2).await;
        // All replicas serve.
        let metric = generated_name("queue", None, "orderly", "web");
        let path =
            format!("/apis/custom.metrics.k8s.io/v1beta2/namespaces/orderly/pods/*/{metric}");
        let admin = cluster.sign("root", &["system:masters"]);
        for replica in [&*a, &*b] {
            assert_eq!(ask(replica.port, Some(&admin), &[], &path).await, 200);
        }
        let by_a = a.scales().len();
        a.process.ask_to_stop();
        let took = leads(cluster, "b", Duration::from_secs(3)).await;
        println!("stopped: the other led after {took:?}");
        ns.cluster.kubectl(&["-n", "orderly", "scale", "deployment/web", "--replicas=1"]).await;
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 2).await;
        assert!(a.scales().len() == by_a && !b.scales().is_empty());
        // The CAs of both replicas are trusted.
        let path = "jsonpath={.spec.caBundle}";
        let ca = ["get", "apiservice", "v1beta2.custom.metrics.k8s.io", "-o", path];
        let bundle: k8s_openapi::ByteString =
            serde_json::from_value(cluster.kubectl(&ca).await.into()).expect("bytes");
        assert_eq!(String::from_utf8_lossy(&bundle.0).matches("BEGIN").count(), 2);
    });
}

/// Scales a workload by hand again and again, so that the leader writes every second, until a
/// condition holds.
async fn stirred_until<T>(ns: &Namespace<'_>, until: impl Future<Output = T>) -> T {
    let stir = async {
        loop {
            ns.scale("Deployment", "web", 1).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    tokio::select! {
        happened = until => happened,
        () = stir => unreachable!("it is stirred for ever"),
    }
}

/// The same for a time.
pub async fn stirred(ns: &Namespace<'_>, during: Duration) {
    stirred_until(ns, tokio::time::sleep(during)).await;
}

/// Waits until a replica has updated scales this often since a time: every other replica has had as
/// many sync periods by then.
async fn writes(replica: &Replica, since: Instant, count: usize) {
    eventually("it writes", SOON, async || {
        match replica.scales().iter().filter(|at| **at > since).count() {
            written if written >= count => Ok(()),
            written => Err(format!("{written} of {count}\n{}", replica.process.tail())),
        }
    })
    .await;
}

/// A workload that is scaled up after each stir, without a rate limit.
pub async fn to_be_stirred(cluster: &Cluster) -> Namespace<'_> {
    let ns = Namespace::new(cluster, "stirred").await;
    ns.deployment("web", 1, "queue 20").await;
    ns.autoscaler("web", "queue", "10", 2).await;
    let policy = r#"{"spec":{"behavior":{"scaleUp":{"policies":[{"type":"Pods","value":1000,"periodSeconds":1}]}}}}"#;
    let patch = ["-n", "stirred", "patch", "autoscaler", "web", "--type=merge", "-p", policy];
    cluster.kubectl(&patch).await;
    ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 2).await;
    ns
}

#[test]
fn never_two_replicas_write() {
    on_two_replicas(async |cluster, a, b| {
        let ns = to_be_stirred(cluster).await;
        stirred_until(&ns, writes(a, Instant::now(), 3)).await;
        assert!(b.scales().is_empty());

        // It is paused for longer than the Lease, and then resumes.
        a.process.signal("STOP");
        let stopped = Instant::now();
        let took = stirred_until(&ns, leads(cluster, "b", TAKEN_OVER)).await;
        stirred_until(&ns, writes(b, stopped, 2)).await;
        println!("stood still: the other led after {took:?}");
        let woken = Instant::now();
        a.process.signal("CONT");
        stirred_until(&ns, writes(b, woken, 5)).await;
        assert!(a.scales().iter().all(|at| *at < woken), "the one that was stopped wrote");

        // The leader is cut off from the API server, but not from Prometheus.
        b.api.stall("");
        let cut = Instant::now();
        let took = stirred_until(&ns, leads(cluster, "a", TAKEN_OVER)).await;
        stirred_until(&ns, writes(a, cut, 2)).await;
        println!("cut off from the API server: the other led after {took:?}");
        let healed = Instant::now();
        b.api.clear();
        stirred_until(&ns, writes(a, healed, 5)).await;
        let by_b: Vec<_> = b.scales().into_iter().filter(|at| *at > cut).collect();
        assert!(by_b.is_empty(), "{by_b:?} after {cut:?}, healed at {healed:?}");

        // The reverse: a leader that cannot reach Prometheus releases the Lease.
        a.prometheus.stall("");
        let blind = Instant::now();
        let took = stirred_until(&ns, leads(cluster, "b", SOON)).await;
        stirred_until(&ns, writes(b, blind, 2)).await;
        println!("cut off from Prometheus: the other led after {took:?}");
        a.prometheus.clear();
        stirred_until(&ns, writes(b, Instant::now(), 5)).await;

        // At most one of them wrote at any time.
        let mut all: Vec<(Instant, char)> = a.scales().into_iter().map(|at| (at, 'a')).collect();
        all.extend(b.scales().into_iter().map(|at| (at, 'b')));
        all.sort();
        let mut writers: Vec<char> = all.iter().map(|(_, who)| *who).collect();
        writers.dedup();
        assert_eq!(writers, ['a', 'b', 'a', 'b'], "{} writes", all.len());
    });
}

#[test]
fn a_frozen_cluster_is_evaluated_and_not_scaled() {
    on_two_replicas(async |cluster, a, b| {
        let freeze = "plimsoll.dev/freeze=incident 42";
        cluster.kubectl(&["-n", "plimsoll", "annotate", "lease", "plimsoll", freeze]).await;
        let ns = Namespace::new(cluster, "frozen").await;
        ns.deployment("web", 1, "queue 20").await;
        ns.autoscaler("web", "queue", "10", 3).await;
        let held = |c: &serde_json::Value| c["message"].to_string().contains("desired");
        let message = ns.wait_condition("web", "Frozen", SOON, held).await;
        assert_eq!(message, "the scale stays at 1 (desired: 2): incident 42");
        // The freeze outlives a restart of the leader and the loss of the Lease.
        a.process.ask_to_stop();
        leads(cluster, "b", SOON).await;
        cluster.kubectl(&["-n", "plimsoll", "delete", "lease", "plimsoll"]).await;
        leads(cluster, "b", SOON).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(ns.replicas("Deployment", "web").await, 1, "{}", b.process.tail());
        assert_eq!(a.scales().len() + b.scales().len(), 0);
        let thaw = "plimsoll.dev/freeze-";
        cluster.kubectl(&["-n", "plimsoll", "annotate", "lease", "plimsoll", thaw]).await;
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas > 1).await;
        ns.wait_condition("web", "Frozen", SOON, |c| c["status"] == "False").await;
    });
}

#[test]
fn a_window_that_begins_while_nobody_leads_is_told_of() {
    on_two_replicas(async |cluster, a, b| {
        let ns = Namespace::new(cluster, "window").await;
        ns.deployment("web", 1, "queue 1").await;
        let now = jiff::Timestamp::now();
        let window = |from: i64| {
            let [from, until] =
                [from, 7_200].map(|after| now + jiff::SignedDuration::from_secs(after));
            format!(
                "maxReplicas: 5, syncPeriodSeconds: 1, customMetrics: [{{metricName: queue, averageValue: 10}}], \
                 schedules: [{{name: sale, from: '{from}', until: '{until}', minReplicas: 3}}]"
            )
        };
        ns.autoscaler_with("Deployment", "web", &window(3_600)).await;
        eventually("the status has no window", SOON, async || {
            let status = ns.get("autoscaler", "web").await?["status"].clone();
            let is_known = status["schedule"]["minReplicas"] == 1;
            if is_known { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
        b.process.signal("STOP");
        a.process.signal("KILL");
        // Long enough ago that a process would not tell of it without the status.
        ns.autoscaler_with("Deployment", "web", &window(-3_600)).await;
        b.process.signal("CONT");
        leads(cluster, "b", TAKEN_OVER).await;
        let told =
            eventually("its begin is told", SOON, async || told_of_schedules(cluster).await).await;
        assert_eq!(told, [("\"ScheduleStarted\"".to_owned(), 1)]);
    });
}
