//! What happens when kube-apiserver fails, lags or is restarted. Each test has a bed of its own.

use crate::faults::{at_once, faulty, hits};
use crate::{FOLLOWS, SOON, on_own_bed};
use bed::proxy::Fault;
use bed::workload::Namespace;
use bed::{Options, eventually};
use plimsoll::promql::name::generated_name;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

#[test]
fn watches_resume_after_kube_apiserver_was_restarted() {
    on_own_bed(Options::default(), async |bed| {
        {
            let ns = Namespace::new(&bed.cluster, "restart").await;
            ns.deployment("web", 1, "queue_depth 20").await;
            ns.autoscaler("web", "queue_depth", "10", 2).await;
            ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 2).await;
        }
        let process = bed.plimsoll.process.id();
        bed.cluster.restart_apiserver().await;
        let ns = Namespace { cluster: &bed.cluster, name: "restart".to_owned() };
        // Objects from before and after the restart are watched.
        ns.deployment("late", 1, "queue_depth 20").await;
        ns.autoscaler("late", "queue_depth", "10", 3).await;
        ns.wait_replicas("Deployment", "late", FOLLOWS, |replicas| replicas == 3).await;
        let raise = r#"{"spec":{"maxReplicas":4}}"#;
        bed.cluster
            .kubectl(&["-n", "restart", "patch", "autoscaler", "web", "--type=merge", "-p", raise])
            .await;
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 4).await;
        let name = generated_name("queue_depth", None, "restart", "late");
        eventually("the API serves again", SOON, async || {
            let list = ns.raw("v1beta2", &format!("pods/*/{name}")).await?;
            let items = list["items"].as_array().map_or(0, Vec::len);
            if items > 0 { Ok(()) } else { Err(list.to_string()) }
        })
        .await;
        assert_eq!(bed.plimsoll.process.id(), process);
        assert!(bed.plimsoll.process.is_running());
    });
}

#[test]
fn after_errors_of_kube_apiserver_the_right_scale_is_written() {
    on_own_bed(faulty(&[]), async |bed| {
        let ns = Namespace::new(&bed.cluster, "apiserver").await;
        ns.deployment("web", 1, "queue 20").await;
        at_once(&ns, "web", "queue", 2).await;
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 2).await;
        let api = &bed.faults.as_ref().unwrap().api;
        let status = |code: u16, reason: &str| {
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                   "reason": reason, "message": format!("injected {reason}")})
            .to_string()
        };
        let scale = "PUT /apis/apps/v1/namespaces/apiserver/deployments/web/scale";
        let conflict = status(409, "Conflict");
        for (what, word, fault, told) in [
            ("slow", "", Fault::Slow(Duration::from_millis(700)), ""),
            ("a conflict, twice", scale, Fault::Times(2, 409, conflict.clone()), ""),
            ("conflicts without end", scale, Fault::Times(12, 409, conflict), "injected Conflict"),
            ("too many requests", scale, Fault::Times(2, 429, status(429, "TooManyRequests")), ""),
            ("an error", scale, Fault::Times(3, 500, status(500, "InternalError")), "injected"),
            (
                "a scale that can't be read",
                "GET /apis/apps/v1/namespaces/apiserver/deployments/web/scale",
                Fault::Times(3, 503, status(503, "ServiceUnavailable")),
                "",
            ),
            (
                "statuses that can't be written",
                "/status",
                Fault::Times(3, 500, status(500, "InternalError")),
                "",
            ),
        ] {
            api.fail(word, fault);
            bed.cluster
                .kubectl(&["-n", "apiserver", "scale", "deployment/web", "--replicas=1"])
                .await;
            if !told.is_empty() {
                let failed = |c: &Value| c["status"] == "False" && c.to_string().contains(told);
                ns.wait_condition("web", "AbleToScale", SOON, failed).await;
            }
            ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 2).await;
            // A status is written after the scale that it reports.
            hits(api, 1, what).await;
            api.clear();
            ns.wait_condition("web", "AbleToScale", SOON, |c| c["status"] == "True").await;
            println!("survived: kube-apiserver: {what}");
        }
        // Failing writes of events do not prevent scaling.
        let error = status(500, "InternalError");
        api.fail("POST /api/v1/namespaces/apiserver/events", Fault::Times(2, 500, error));
        ns.deployment("untold", 1, "queue 20").await;
        at_once(&ns, "untold", "queue", 3).await;
        ns.wait_replicas("Deployment", "untold", SOON, |replicas| replicas == 3).await;
        hits(api, 1, "events that can't be written").await;
        api.clear();
        println!("survived: kube-apiserver: events that can't be written");
        // Watches that expire again and again, as kube-apiserver tells it: no change is lost, and what
        // was deleted before they were told so is forgotten.
        api.stall("watch=true");
        api.end_responses();
        bed.cluster.kubectl(&["-n", "apiserver", "delete", "autoscaler", "untold"]).await;
        ns.deployment("late", 1, "queue 20").await;
        at_once(&ns, "late", "queue", 3).await;
        api.fail("watch=true", Fault::expired_watch());
        hits(api, 15, "watches expire again and again").await;
        api.clear();
        ns.wait_replicas("Deployment", "late", FOLLOWS, |replicas| replicas == 3).await;
        // `late` is known from a list of the Autoscalers that no longer has `untold`. Before that list nothing
        // told of the deletion, and a change of the scale would have been undone.
        ns.scale("Deployment", "untold", 1).await;
        bed.plimsoll.decided(&bed.cluster, 8).await;
        assert_eq!(ns.replicas("Deployment", "untold").await, 1);
        println!("survived: kube-apiserver: watches expired");
    });
}

#[test]
fn a_stalled_watch_is_detected_and_no_scale_is_written_on_its_data() {
    on_own_bed(faulty(&[]), async |bed| {
        let ns = Namespace::new(&bed.cluster, "silent").await;
        ns.deployment("web", 1, "queue 10").await;
        at_once(&ns, "web", "queue", 10).await;
        ns.wait_condition("web", "ScalingActive", SOON, |c| c["status"] == "True").await;
        let api = &bed.faults.as_ref().unwrap().api;
        let before = api.writes("web/scale").len();
        // All watches stay open and deliver nothing.
        api.fail("watch=true", Fault::Silence);
        let began = Instant::now();
        // Scaled to five, which Plimsoll does not see. Then the load rises: the one pod that it
        // knows needs two replicas, all five need eight.
        bed.cluster.kubectl(&["-n", "silent", "scale", "deployment/web", "--replicas=5"]).await;
        ns.wait_ready("Deployment", "web", 5).await;
        let more = "bed.plimsoll.dev/metrics=queue 15";
        let annotate = ["-n", "silent", "annotate", "--overwrite", "pods", "-l", "app=web", more];
        bed.cluster.kubectl(&annotate).await;
        // It reads the scale before it writes, and finds that four pods are missing.
        let lacks = |c: &Value| c["reason"] == "PodsNotKnown";
        let told = ns.wait_condition("web", "ScalingLimited", SOON, lacks).await;
        assert!(told.contains("1 pods are known of the 5"), "{told}");
        bed.plimsoll.decided(&bed.cluster, 8).await;
        assert_eq!(ns.replicas("Deployment", "web").await, 5);
        assert_eq!(api.writes("web/scale").len(), before);
        // An Autoscaler created now is evaluated once the silence is detected.
        ns.deployment("late", 1, "queue 20").await;
        at_once(&ns, "late", "queue", 2).await;
        let noticed = Duration::from_secs(130);
        tokio::time::sleep_until((began + Duration::from_secs(60)).into()).await;
        api.release_new();
        ns.wait_replicas("Deployment", "late", noticed, |replicas| replicas == 2).await;
        ns.wait_replicas("Deployment", "web", noticed, |replicas| replicas >= 8).await;
        println!("survived: kube-apiserver: silent watches, noticed after {:?}", began.elapsed());
    });
}

#[test]
fn a_scale_that_another_changes_in_mid_decision_is_decided_again() {
    on_own_bed(faulty(&[]), async |bed| {
        let ns = Namespace::new(&bed.cluster, "writes").await;
        let api = &bed.faults.as_ref().unwrap().api;
        ns.deployment("web", 1, "queue 10").await;
        at_once(&ns, "web", "queue", 10).await;
        ns.wait_condition("web", "ScalingActive", SOON, |c| c["status"] == "True").await;
        // The scale is changed between the decision and its write.
        api.stall("PUT /apis/apps/v1/namespaces/writes/deployments/web/scale");
        let twice = "bed.plimsoll.dev/metrics=queue 20";
        let annotate = ["-n", "writes", "annotate", "--overwrite", "pods", "-l", "app=web", twice];
        bed.cluster.kubectl(&annotate).await;
        hits(api, 1, "two are decided").await;
        bed.cluster.kubectl(&["-n", "writes", "scale", "deployment/web", "--replicas=7"]).await;
        api.clear();
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas > 7).await;
        let events = bed.cluster.kubectl(&["-n", "writes", "get", "events"]).await;
        let rescaled = |line: &str| line.contains("SuccessfulRescale") && line.contains("size: 2;");
        assert!(!events.lines().any(rescaled), "{events}");
        println!("survived: a scale that another changed in mid-decision");
    });
}

#[test]
fn a_status_under_way_does_not_reach_an_object_that_was_made_anew() {
    let options = Options {
        hpa_controller: false,
        manifests: "deploy/overlays/manage-native-hpas",
        ..faulty(&["--native-hpas=manage"])
    };
    on_own_bed(options, async |bed| {
        let ns = Namespace::new(&bed.cluster, "anew").await;
        ns.deployment("web", 1, "").await;
        let api = &bed.faults.as_ref().unwrap().api;
        for (resource, api_version, kind) in [
            ("autoscaler", "plimsoll.dev/v1alpha1", "Autoscaler"),
            ("hpa", "autoscaling/v2", "HorizontalPodAutoscaler"),
        ] {
            let collection = ns.path(resource).expect("it has one");
            // A write that is stalled ends with the right to write: on a machine that is too slow to replace the
            // object meanwhile there is another attempt.
            let mut attempts = (0..10).map(|attempt| format!("again-{attempt}"));
            loop {
                let name = attempts.next().expect("an old status is sent within ten attempts");
                let create = async |target: &str| {
                    let manifest = format!(
                        "apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: {name}, namespace: anew}}\n\
                         spec: {{scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {target}}}, \
                         maxReplicas: 3, metrics: [{{type: Pods, pods: {{metric: {{name: queue}}, \
                         target: {{type: AverageValue, averageValue: 10}}}}}}]}}\n"
                    );
                    bed.cluster.apply(&manifest).await;
                };
                let status = format!("PATCH {collection}/{name}/status");
                api.stall(&status);
                create("web").await;
                hits(api, 1, "a status is under way").await;
                let delete = bed
                    .cluster
                    .request(
                        "DELETE",
                        &format!("{collection}/{name}"),
                        "application/json",
                        String::new(),
                    )
                    .await;
                delete.expect("it is deleted");
                // Of this one only the scale is known to be missing: nothing is said about metrics.
                create("missing").await;
                let created = ns.get(resource, &name).await.expect("the new object");
                api.clear();
                eventually("the new object has its own status", SOON, async || {
                    let status = ns.get(resource, &name).await?["status"].to_string();
                    if status.contains("FailedGetScale") { Ok(()) } else { Err(status) }
                })
                .await;
                // All that the new object has ever been.
                let version = created["metadata"]["resourceVersion"].as_str().expect("a version");
                let watch = format!(
                    "{collection}?watch=true&timeoutSeconds=1&resourceVersion={version}&fieldSelector=metadata.name%3D{name}"
                );
                let events = bed.cluster.raw(&watch).await.expect("the events");
                assert!(events.contains("FailedGetScale"), "{events}");
                assert!(!events.contains("ScalingActive"), "{kind}: {events}");
                bed.cluster.kubectl(&["-n", "anew", "delete", resource, &name]).await;
                if api.writes(&status).len() >= 2 {
                    break;
                }
            }
            println!("survived: a status under way for an object that was made anew: {kind}");
        }
    });
}

#[test]
fn a_crd_deleted_unseen_removes_its_autoscalers() {
    on_own_bed(faulty(&["--memory-interval=0s"]), async |bed| {
        let ns = Namespace::new(&bed.cluster, "undefined").await;
        ns.deployment("web", 1, "queue 30").await;
        ns.autoscaler("web", "queue", "10", 8).await;
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 3).await;
        let api = &bed.faults.as_ref().expect("faults").api;
        // No event of Autoscalers arrives until the CRD is gone.
        api.fail("/autoscalers?", Fault::Silence);
        bed.cluster.kubectl(&["delete", "crd", "autoscalers.plimsoll.dev"]).await;
        api.clear();
        api.end_responses();
        eventually("nothing is decided any more", FOLLOWS, async || {
            let metrics = bed.plimsoll.metrics(&bed.cluster).await;
            let line = metrics.lines().find(|line| line.starts_with("plimsoll_autoscalers "));
            match line {
                Some("plimsoll_autoscalers 0") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    });
}
