//! What observing native HPAs costs and shows.

use crate::duel::RULES;
use crate::{FOLLOWS, SOON, on_own_bed, on_shared_bed};
use bed::workload::Namespace;
use bed::{Options, eventually};
use std::fmt::Write;
use std::time::Duration;

#[test]
fn a_hundred_observed_hpas_cost_the_api_server_next_to_nothing() {
    let manifests = "deploy/overlays/all-metrics";
    on_own_bed(Options { config: RULES, manifests, ..Options::default() }, async |bed| {
        const HPAS: usize = 100;
        Namespace::new(&bed.cluster, "observed").await;
        // At the target: half of the request of each pod.
        let usage = "cpu_usage{container=\\\"app\\\",node=\\\"fleet\\\"} 0.05";
        let mut all = String::new();
        for n in 0..HPAS {
            let _ = write!(
                all,
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: w{n}, namespace: observed}}\n\
                 spec:\n  selector: {{matchLabels: {{app: w{n}}}}}\n  template:\n    metadata:\n\
                 \x20     labels: {{app: w{n}}}\n      annotations: {{bed.plimsoll.dev/metrics: \"{usage}\"}}\n\
                 \x20   spec: {{containers: [{{name: app, image: fleet, resources: {{requests: {{cpu: 100m}}}}}}]}}\n---\n\
                 apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {{name: w{n}, namespace: observed}}\n\
                 spec:\n  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: w{n}}}\n  maxReplicas: 3\n\
                 \x20 metrics: [{{type: Resource, resource: {{name: cpu, target: {{type: Utilization, averageUtilization: 50}}}}}}]\n---\n"
            );
        }
        bed.cluster.apply(&all).await;
        let count = async |metric: &str, label: &str| {
            bed.plimsoll.metric(&bed.cluster, metric, label).await
        };
        let evaluated =
            async || count("plimsoll_decisions_total", "outcome=\"observed\"").await as usize;
        eventually("all are observed, and both compute", Duration::from_secs(240), async || {
            let observed = count("plimsoll_native_hpas", "observed=\"yes\"").await;
            let hpas = bed.cluster.kubectl(&["-n", "observed", "get", "hpa", "-o", "json"]).await;
            let computed = hpas.matches("ValidMetricFound").count();
            match (observed as usize, evaluated().await, computed) {
                (HPAS, HPAS.., HPAS) => Ok(()),
                few => Err(format!("{few:?}\n{}", bed.plimsoll.process.tail())),
            }
        })
        .await;
        // All requests but those of the Lease, watches and lists that begin anew, and reviews of who
        // scrapes.
        let requests = async || {
            let metrics = bed.plimsoll.metrics(&bed.cluster).await;
            let others = ["verb=\"watch\"", "verb=\"list\"", "\"leases\"", "reviews\""];
            let of = |line: &&str| {
                line.starts_with("plimsoll_kube_requests_total{")
                    && !others.iter().any(|other| line.contains(other))
            };
            let values = metrics.lines().filter(of).filter_map(|line| line.rsplit(' ').next());
            values.filter_map(|value| value.parse::<f64>().ok()).sum::<f64>()
        };
        let (before, first) = (requests().await, evaluated().await);
        bed.plimsoll.decided(&bed.cluster, 10 * HPAS).await;
        let (sent, evaluations) = (requests().await - before, evaluated().await - first);
        println!("{sent} requests for {evaluations} evaluations of {HPAS} HPAs");
        assert!(evaluations >= 9 * HPAS, "{evaluations}");
        assert!(sent <= 2.0, "{sent}");
    });
}

#[test]
fn an_hpa_that_plimsoll_cannot_decide_on_has_no_desired_replicas() {
    on_shared_bed("observed-failing", async |bed, ns| {
        ns.deployment("web", 1, "").await;
        ns.hpa("web", "http_requests_total", "10", 5).await;
        bed.cluster.load(&ns.name, "app=web", "/hit/http_requests_total", 9.0).await;
        let is_shown = async |expected: bool| {
            let metrics = bed.plimsoll.metrics(&bed.cluster).await;
            let series = "plimsoll_native_hpa_desired_replicas{namespace=\"observed-failing\"";
            if metrics.contains(series) == expected { Ok(()) } else { Err(metrics) }
        };
        eventually("it is decided on", FOLLOWS, async || is_shown(true).await).await;
        bed.cluster.kubectl(&["-n", &ns.name, "delete", "deployment", "web"]).await;
        eventually("its target is gone", SOON, async || is_shown(false).await).await;
    });
}
