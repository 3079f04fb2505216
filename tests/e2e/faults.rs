//! What happens when parts fail. Each test has a bed of its own.

use crate::bed::workload::Namespace;
use crate::bed::{Options, eventually};
use crate::{FOLLOWS, SOON, on_own_bed};
use plimsoll::promql::name::generated_name;
use std::time::Duration;

fn flags(flags: &[&str]) -> Vec<String> {
    flags.iter().map(|flag| (*flag).to_owned()).collect()
}

#[test]
fn without_prometheus_nothing_is_scaled_down_and_all_recovers_by_itself() {
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
            let fallback = r#"{"spec":{"fallback":{"failedRounds":3,"replicas":5}}}"#;
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
            // Longer than the stabilization window: a guess would have scaled down by now.
            tokio::time::sleep(Duration::from_secs(8)).await;
            assert_eq!(ns.replicas("Deployment", "web").await, 4);
            // Who asked for a fallback has it.
            ns.wait_replicas("Deployment", "safe", SOON, |replicas| replicas == 5).await;
            ns.wait_condition("safe", "FallbackActive", SOON, |c| c["status"] == "True").await;
        }
        bed.cluster.start_prometheus();
        let ns = Namespace { cluster: &bed.cluster, name: "down".to_owned() };
        ns.wait_condition("web", "ScalingActive", SOON, |c| c["status"] == "True").await;
        assert_eq!(ns.replicas("Deployment", "web").await, 4);
        ns.wait_replicas("Deployment", "safe", FOLLOWS, |replicas| replicas == 2).await;
        let safe = ns.get("autoscaler", "safe").await.unwrap();
        assert!(!safe["status"]["conditions"].to_string().contains("FallbackActive"));
    });
}

#[test]
fn a_slow_query_times_out_and_other_metrics_are_unharmed() {
    let flags = flags(&["--prometheus-timeout=1s"]);
    on_own_bed(Options { flags, faults: true, ..Options::default() }, async |bed| {
        let ns = Namespace::new(&bed.cluster, "slow").await;
        ns.deployment("slow", 1, "slow_depth 20").await;
        ns.deployment("quick", 1, "quick_depth 20").await;
        let faults = bed.faults.as_ref().unwrap();
        faults.stall("slow_depth");
        ns.autoscaler("slow", "slow_depth", "10", 3).await;
        ns.autoscaler("quick", "quick_depth", "10", 3).await;
        ns.wait_replicas("Deployment", "quick", SOON, |replicas| replicas == 3).await;
        let message =
            ns.wait_condition("slow", "ScalingActive", SOON, |c| c["status"] == "False").await;
        assert!(message.contains("Prometheus did not answer within 1s"), "{message}");
        assert_eq!(ns.replicas("Deployment", "slow").await, 1);
        // Its period is one second, too: rounds are missed, and that is told.
        let missed = eventually("rounds are missed", SOON, async || {
            let metrics = bed.plimsoll.metrics(&bed.cluster).await;
            let line = metrics.lines().find(|l| l.starts_with("plimsoll_missed_rounds_total"));
            let count = line.and_then(|line| line.split_once(' ')?.1.parse::<u32>().ok());
            count.filter(|count| *count > 0).ok_or(format!("{line:?}"))
        });
        missed.await;
        let quick = generated_name("quick_depth", None, "slow", "quick");
        let start = std::time::Instant::now();
        ns.raw("v1beta2", &format!("pods/*/{quick}")).await.unwrap();
        assert!(start.elapsed() < Duration::from_millis(900), "{:?}", start.elapsed());
        let slow = generated_name("slow_depth", None, "slow", "slow");
        let error = ns.raw("v1beta2", &format!("pods/*/{slow}")).await.unwrap_err();
        assert!(error.contains("ServiceUnavailable"), "{error}");
        faults.pass();
        ns.wait_replicas("Deployment", "slow", FOLLOWS, |replicas| replicas == 3).await;
    });
}

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
        // Both what was there before and what comes after are seen.
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
