//! Scale targets and Autoscalers that are created, changed and deleted, also in large numbers.

use crate::faults::{at_once, faulty, hits};
use crate::{FOLLOWS, SOON, on_own_bed};
use bed::proxy::Fault;
use bed::workload::Namespace;
use bed::{Faults, Options, eventually};
use futures::StreamExt;
use kube::Api;
use kube::api::ListParams;
use plimsoll::crd::Autoscaler;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

#[test]
fn targets_are_deleted_recreated_and_changed_by_others() {
    on_own_bed(faulty(&[]), async |bed| {
        let ns = Namespace::new(&bed.cluster, "targets").await;
        let Faults { prometheus, api } = bed.faults.as_ref().unwrap();
        ns.deployment("web", 1, "queue 20").await;
        at_once(&ns, "web", "queue", 2).await;
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 2).await;
        let kubectl = async |arguments: &[&str]| {
            bed.cluster.kubectl(&[&["-n", "targets"], arguments].concat()).await
        };
        // The target is scaled by a user.
        kubectl(&["scale", "deployment/web", "--replicas=4"]).await;
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 2).await;
        println!("survived: a target scaled by hand");
        // The target is deleted and recreated.
        kubectl(&["delete", "deployment", "web"]).await;
        let gone = |c: &Value| c["status"] == "False" && c["reason"] == "FailedGetScale";
        ns.wait_condition("web", "AbleToScale", SOON, gone).await;
        ns.deployment("web", 1, "queue 20").await;
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 2).await;
        println!("survived: a target deleted and made anew");
        // A second autoscaler has the same target: both are named, and nothing is written.
        ns.hpa("web", "http_requests_total", "10", 5).await;
        let both = |c: &Value| c["reason"] == "AmbiguousSelector";
        let told = ns.wait_condition("web", "ScalingActive", SOON, both).await;
        assert!(told.contains("HorizontalPodAutoscaler") && told.contains("targets/web"), "{told}");
        let before = api.writes("/scale").len();
        bed.plimsoll.decided(&bed.cluster, 4).await;
        assert_eq!(api.writes("/scale").len(), before);
        kubectl(&["delete", "hpa", "web"]).await;
        ns.wait_condition("web", "ScalingActive", SOON, |c| c["status"] == "True").await;
        println!("survived: a second autoscaler of one target");
        // The Autoscaler is deleted during a decision: the query result comes too late.
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 2).await;
        prometheus.stall("queue");
        // From then on no decision uses an earlier result.
        hits(prometheus, 1, "a query hangs").await;
        kubectl(&["scale", "deployment/web", "--replicas=1"]).await;
        kubectl(&["delete", "autoscaler", "web"]).await;
        let before = api.writes("deployments/web/scale").len();
        prometheus.clear();
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(api.writes("deployments/web/scale").len(), before);
        assert_eq!(ns.replicas("Deployment", "web").await, 1);
        println!("survived: an autoscaler deleted in mid-decision");
        // A namespace is deleted, and others are not affected.
        let other = Namespace::new(&bed.cluster, "ending").await;
        other.deployment("web", 1, "queue 20").await;
        at_once(&other, "web", "queue", 2).await;
        other.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 2).await;
        bed.cluster.kubectl(&["delete", "namespace", "ending", "--wait=false"]).await;
        at_once(&ns, "web", "queue", 3).await;
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 3).await;
        eventually("the namespace is gone", FOLLOWS, async || {
            match bed.cluster.try_kubectl(&["get", "namespace", "ending"]).await {
                Err(error) if error.contains("NotFound") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        println!("survived: a namespace that ends");
        // Discovery of one API group fails: only its kinds cannot be scaled.
        let failing = json!({"kind": "Status", "status": "Failure", "code": 503}).to_string();
        api.fail(
            "/apis/batch",
            Fault::Response { status: 503, headers: Vec::new(), body: failing },
        );
        let target = "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\n\
             metadata: {name: job, namespace: targets}\n\
             spec: {scaleTargetRef: {apiVersion: batch/v1, kind: Job, name: job}, maxReplicas: 2, \
             syncPeriodSeconds: 1, customMetrics: [{metricName: queue, averageValue: 10}]}\n";
        bed.cluster.apply(target).await;
        ns.wait_condition("job", "AbleToScale", SOON, |c| c["status"] == "False").await;
        kubectl(&["scale", "deployment/web", "--replicas=1"]).await;
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 3).await;
        assert!(api.hits() > 0);
        println!("survived: discovery fails for one group");
    });
}

#[test]
fn a_thousand_new_autoscalers_are_all_evaluated() {
    on_own_bed(Options::default(), async |bed| {
        let ns = Namespace::new(&bed.cluster, "thousand").await;
        ns.deployment("web", 1, "queue 20").await;
        let client = &bed.cluster.client;
        let one = async |n: usize| {
            let path = "/apis/plimsoll.dev/v1alpha1/namespaces/thousand/autoscalers";
            let body = json!({
                "apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
                "metadata": {"name": format!("a-{n}")},
                "spec": {
                    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment",
                                       "name": format!("missing-{n}")},
                    "maxReplicas": 2,
                    "customMetrics": [{"metricName": "queue", "averageValue": "10"}],
                },
            });
            let request = http::Request::post(path).header("content-type", "application/json");
            let request = request.body(body.to_string().into_bytes()).expect("a request");
            client.request::<Value>(request).await.expect("an Autoscaler");
        };
        let start = Instant::now();
        futures::stream::iter((0..1000).map(one)).buffer_unordered(64).collect::<Vec<_>>().await;
        let made = start.elapsed();
        // An Autoscaler created meanwhile is evaluated, too.
        at_once(&ns, "web", "queue", 2).await;
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 2).await;
        let all: Api<Autoscaler> = Api::namespaced(client.clone(), "thousand");
        // A thousand statuses are written, on a machine that may be busy.
        eventually("each was decided for", 3 * FOLLOWS, async || {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let all = all.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            let told = |object: &&Autoscaler| {
                let status = serde_json::to_string(&object.status).unwrap_or_default();
                status.contains("FailedGetScale")
            };
            match all.iter().filter(told).count() {
                1000 => Ok(()),
                some => Err(format!("{some} of 1000; {}", bed.plimsoll.process.tail())),
            }
        })
        .await;
        println!("made in {made:?}, each told {:?} later", start.elapsed() - made);
    });
}
