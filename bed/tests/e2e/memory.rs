//! The scaling history: its clock, restarts, and the writes of other replicas.

use crate::ha::{goes_when_its_window_ends, holds_by_its_window, leads, on_two_replicas};
use crate::{FOLLOWS, SOON, on_own_bed};
use bed::clock::Clock;
use bed::proxy::Fault;
use bed::workload::Namespace;
use bed::{Options, eventually, plimsoll};
use serde_json::{Value, json};
use std::time::Duration;

const HOUR: i64 = 3_600;

#[test]
fn the_scaling_history_outlives_the_only_replica_and_a_wrong_clock() {
    on_two_replicas(async |cluster, a, b| {
        b.process.stop();
        let ns = Namespace::new(cluster, "restarted").await;
        let began = holds_by_its_window(&ns).await;
        // Without the scaling history it would wait for another window from here on.
        tokio::time::sleep(Duration::from_secs(15)).await;
        let clock = Clock::new(&cluster.folder, "a");
        clock.set(HOUR);
        a.restart(cluster, "a", clock.environment()).await;
        goes_when_its_window_ends(&ns, began).await;
    });
}

#[test]
fn a_clock_that_is_set_neither_ends_a_window_nor_makes_one_longer() {
    on_two_replicas(async |cluster, a, b| {
        b.process.stop();
        let clock = Clock::new(&cluster.folder, "a");
        a.restart(cluster, "a", clock.environment()).await;
        leads(cluster, "a", SOON).await;
        let ns = Namespace::new(cluster, "set").await;
        let began = holds_by_its_window(&ns).await;
        clock.set(2 * HOUR);
        tokio::time::sleep(Duration::from_secs(5)).await;
        clock.set(-2 * HOUR);
        goes_when_its_window_ends(&ns, began).await;
    });
}

/// Patches the Autoscaler `web`.
async fn patch(ns: &Namespace<'_>, patch: Value) {
    let patch = patch.to_string();
    let arguments = ["-n", &ns.name, "patch", "autoscaler", "web", "--type=merge", "-p", &patch];
    ns.cluster.kubectl(&arguments).await;
}

#[test]
fn a_follower_knows_of_a_rescale_whose_status_comes_late() {
    on_two_replicas(async |cluster, a, b| {
        let ns = Namespace::new(cluster, "late").await;
        ns.deployment("web", 1, "queue 100").await;
        ns.autoscaler("web", "queue", "10", 1).await;
        ns.wait_condition("web", "ScalingLimited", SOON, |c| c["status"] == "True").await;
        // b has more than one sync period between the scale and the status.
        a.api.fail("/status", Fault::Slow(Duration::from_millis(2_500)));
        let one = json!([{"type": "Pods", "value": 1, "periodSeconds": 600}]);
        patch(&ns, json!({"spec": {"maxReplicas": 5, "behavior": {"scaleUp": {"policies": one}}}}))
            .await;
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 2).await;
        eventually("the status is there", SOON, async || {
            let status = ns.get("autoscaler", "web").await?["status"].clone();
            let late = status["lastScaleTime"].is_string() && status["desiredReplicas"] == 2;
            if late { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        // b cannot read the stored history.
        b.api.fail(
            "plimsoll-memory",
            Fault::Response {
                status: 403,
                headers: vec![],
                body:
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
                         "reason": "Forbidden", "message": "injected"})
                    .to_string(),
            },
        );
        a.process.signal("KILL");
        leads(cluster, "b", SOON).await;
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(ns.replicas("Deployment", "web").await, 2, "one more per 600 s");
    });
}

#[test]
fn a_leader_that_returns_knows_what_the_other_did() {
    on_two_replicas(async |cluster, a, b| {
        let ns = Namespace::new(cluster, "returns").await;
        ns.deployment("web", 1, "queue 100").await;
        ns.autoscaler("web", "queue", "10", 1).await;
        // Evaluates every second, which shows whether a replica reaches Prometheus.
        ns.deployment("asks", 1, "queue 1").await;
        ns.autoscaler("asks", "queue", "10", 1).await;
        ns.wait_condition("web", "ScalingLimited", SOON, |c| c["status"] == "True").await;
        // With a sync period of an hour, a replica learns of changes only by its watches.
        let one = json!([{"type": "Pods", "value": 1, "periodSeconds": 600}]);
        patch(
            &ns,
            json!({"spec": {"syncPeriodSeconds": 3600,
            "behavior": {"scaleUp": {"policies": one}}}}),
        )
        .await;
        let hand_over = async |name: &str, cannot: &crate::ha::Replica| {
            cannot.prometheus.stall("");
            leads(cluster, name, Duration::from_secs(60)).await;
            cannot.prometheus.clear();
        };
        hand_over("b", a).await;
        patch(&ns, json!({"spec": {"maxReplicas": 5}})).await;
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 2).await;
        let by_b = eventually("b says so", SOON, async || {
            let status = ns.get("autoscaler", "web").await?["status"].clone();
            status["lastScaleTime"].as_str().map(str::to_owned).ok_or(status.to_string())
        })
        .await;
        hand_over("a", b).await;
        tokio::time::sleep(Duration::from_secs(6)).await;
        let status = ns.get("autoscaler", "web").await.unwrap()["status"].clone();
        assert_eq!(status["lastScaleTime"], by_b.as_str(), "{status}");
        assert_eq!(ns.replicas("Deployment", "web").await, 2, "one more per 600 s");
    });
}

#[test]
fn the_history_of_an_idle_autoscaler_is_not_rewritten() {
    on_two_replicas(async |cluster, a, _| {
        let ns = Namespace::new(cluster, "idle").await;
        ns.deployment("web", 1, "queue 0").await;
        ns.autoscaler("web", "queue", "10", 3).await;
        ns.deployment("full", 1, "queue 30").await;
        ns.autoscaler("full", "queue", "10", 1).await;
        ns.wait_condition("web", "ScalingLimited", SOON, |c| c["status"] == "True").await;
        ns.wait_condition("full", "ScalingLimited", SOON, |c| c["status"] == "True").await;
        // The windows of 5 s are over then.
        tokio::time::sleep(Duration::from_secs(8)).await;
        let written = || a.api.writes("plimsoll-memory").len();
        let before = written();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(written() - before, 0);
    });
}

/// An Autoscaler `web` that scales to zero, on an external metric of the pods of `source`.
async fn to_zero(ns: &Namespace<'_>) {
    ns.deployment("source", 1, "").await;
    ns.deployment("web", 1, "").await;
    ns.cluster.load(&ns.name, "app=source", "/hit/http_requests_total", 10.0).await;
    let manifest = format!(
        "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\n\
         metadata: {{name: web, namespace: {}}}\n\
         spec:\n  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: web}}\n\
         \x20 minReplicas: 0\n  maxReplicas: 3\n  syncPeriodSeconds: 1\n\
         \x20 metrics: [{{type: External, external: {{metric: {{name: backlog}}, target: {{type: AverageValue, averageValue: 5}}}}}}]\n\
         \x20 behavior: {{scaleDown: {{stabilizationWindowSeconds: 3}}}}\n",
        ns.name
    );
    ns.cluster.apply(&manifest).await;
    ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas > 1).await;
}

const BACKLOG: &str = "externalRules:\n\
    - seriesQuery: 'http_requests_total{namespace!=\"\",pod=~\"source.*\"}'\n\
    \x20 resources: {overrides: {namespace: {resource: namespace}}}\n\
    \x20 name: {as: backlog}\n\
    \x20 metricsQuery: 'sum(rate(http_requests_total{<<.LabelMatchers>>,pod=~\"source.*\"}[8s]))'\n";

#[test]
fn a_workload_scaled_to_zero_comes_back_after_any_failure() {
    // The series of the rule appear after Plimsoll has started.
    let flags =
        ["--status-interval=1s", "--metrics-relist-interval=2s"].map(str::to_owned).to_vec();
    let options = Options { faults: true, flags, config: BACKLOG, ..Options::default() };
    on_own_bed(options.clone(), async |bed| {
        let api = &bed.faults.as_ref().unwrap().api;
        let scale = "PUT /apis/apps/v1/namespaces/zero/deployments/web/scale";
        let ns = Namespace::new(&bed.cluster, "zero").await;
        to_zero(&ns).await;
        let load = async |qps| {
            bed.cluster.load("zero", "app=source", "/hit/http_requests_total", qps).await;
        };
        let is = async |wanted: fn(i64) -> bool| {
            ns.wait_replicas("Deployment", "web", FOLLOWS, wanted).await;
        };
        // The scale is written, but the response is lost.
        api.fail(scale, Fault::Late(Duration::from_secs(11)));
        load(0.0).await;
        is(|replicas| replicas == 0).await;
        tokio::time::sleep(Duration::from_secs(13)).await;
        api.clear();
        load(10.0).await;
        is(|replicas| replicas > 0).await;
        // It does not scale to zero if the status that records it cannot be written.
        let error = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500,
                           "reason": "InternalError", "message": "injected"});
        let body = error.to_string();
        api.fail("autoscalers/web/status", Fault::Response { status: 500, headers: vec![], body });
        load(0.0).await;
        // Longer than the rate and the stabilization window.
        tokio::time::sleep(Duration::from_secs(25)).await;
        assert_ne!(ns.replicas("Deployment", "web").await, 0);
        assert!(api.hits() > 0, "no status was written");
        // The leader is killed while the scale is written.
        api.fail(scale, Fault::Late(Duration::from_secs(60)));
        is(|replicas| replicas == 0).await;
        bed.plimsoll.process.signal("KILL");
        api.clear();
        let [server, prometheus] = [api, &bed.faults.as_ref().unwrap().prometheus]
            .map(|proxy| format!("http://127.0.0.1:{}", proxy.port));
        let _again = plimsoll::launch(&bed.cluster, "again", &server, &prometheus, &options).await;
        load(10.0).await;
        is(|replicas| replicas > 0).await;
        // A workload that a user scaled to zero stays there.
        bed.cluster.kubectl(&["-n", "zero", "scale", "deployment/web", "--replicas=0"]).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        is(|replicas| replicas == 0).await;
        let disabled = |c: &Value| c["reason"] == "ScalingDisabled";
        ns.wait_condition("web", "ScalingActive", SOON, disabled).await;
    });
}
