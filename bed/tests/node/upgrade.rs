//! The upgrade from the first chart, with what ran then, and the uninstall.

use crate::applications::{application, remove_namespace};
use crate::install::works;
use crate::installation::{By, Installation, namespace, remove};
use crate::isolation::{binary, old_chart};
use crate::load::Load;
use crate::node::{Node, PODS, Pod};
use crate::scaling::pods_of;
use bed::eventually;
use bed::pages::Pages;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;

/// The pods of `legacy`, as they are every 200 ms.
struct Watch {
    task: JoinSet<()>,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Watch {
    fn start(node: &'static Node) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let list = Arc::clone(&seen);
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                if let Ok(text) = workloads(node).await {
                    let mut list = list.lock().expect("no panic");
                    if list.last() != Some(&text) {
                        list.push(text);
                    }
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        Self { task, seen }
    }

    /// Checks that all stayed as it was.
    fn stop(self, since: &str) {
        drop(self.task);
        let seen = self.seen.lock().expect("no panic");
        assert!(seen.iter().all(|one| one == since), "{since}, then {seen:?}");
    }
}

/// The names and restarts of all pods of the workloads, and the replicas that they are to have.
async fn workloads(node: &Node) -> Result<String, String> {
    let mut names: Vec<_> = node
        .pods("legacy", "app")
        .await?
        .into_iter()
        .map(|Pod { name, restarts, .. }| format!("{name} {restarts}"))
        .collect();
    names.sort();
    let path = "{range .items[*]}{.metadata.name}={.spec.replicas} {end}";
    let replicas = node.field(&["-n", "legacy", "deployments"], path).await?;
    Ok(format!("{replicas}{}", names.join(" ")))
}

pub fn chart(node: &'static Node) {
    node.run(async {
        let Some(old) = old_chart() else { panic!("no chart of before: `make old-image`") };
        remove(node).await;
        namespace(node).await;
        let pages = Pages::new(&node.cluster);
        for name in ["plimsoll", "kubectl-plimsoll"] {
            pages.add(name, &binary());
        }
        let run = async |command: &str| {
            pages.run(command).await.unwrap_or_else(|error| panic!("{command}: {error}"))
        };
        let window = r"sum by (<<.GroupBy>>) (rate(<<.Series>>{<<.LabelMatchers>>}[10s]))";
        run(&format!(
            "helm install plimsoll {} -n plimsoll --set image.tag=old \
             --set-string 'config.podMetrics.counterQuery={}'",
            old.display(),
            window.replace('{', r"\{").replace('}', r"\}")
        ))
        .await;
        node.rolled_out("plimsoll", "deployment/plimsoll").await;
        Installation::changed(Some(By::Helm)).await;
        for (name, replicas, fields) in [
            ("busy", 1, "fallback: {failedRounds: 3, replicas: 3}"),
            ("idle", 3, "paused: true"),
        ] {
            application(node, "legacy", "Deployment", name, replicas).await;
            node.cluster
                .apply(&format!(
                    "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\n\
                     metadata: {{name: {name}, namespace: legacy}}\n\
                     spec:\n  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {name}}}\n\
                     \x20 maxReplicas: 6\n  syncPeriodSeconds: 2\n  {fields}\n\
                     \x20 customMetrics: [{{metricName: http_requests_total, averageValue: 10}}]\n\
                     \x20 behavior: {{scaleDown: {{stabilizationWindowSeconds: 5}}}}\n"
                ))
                .await;
        }
        let load = Load::of_url(17, node.url("legacy", "busy").await);
        pods_of(node, "legacy", "busy", 2).await;
        pods_of(node, "legacy", "idle", 3).await;
        let before = workloads(node).await.expect("workloads");
        let watch = Watch::start(node);

        run("kubectl get autoscalers -A -o yaml | plimsoll convert - > autoscalers.yaml").await;
        let old = "kubectl -n plimsoll get pods -l app.kubernetes.io/name=plimsoll -o name";
        let old = run(old).await.split_whitespace().collect::<Vec<_>>().join(" ");
        // A leader of before does not acknowledge it.
        let frozen = pages.run("kubectl plimsoll freeze upgrade").await.unwrap_or_else(|said| said);
        assert!(frozen.contains("frozen in "), "{frozen}");
        println!("{frozen}");
        run("helm upgrade plimsoll deploy/chart -n plimsoll --reset-then-reuse-values --set image.tag=0.1.0,image.digest=").await;
        node.rolled_out("plimsoll", "deployment/plimsoll").await;
        // A replica of before may lead until its pod is gone.
        run(&format!("kubectl -n plimsoll wait --for=delete {old} --timeout=5m")).await;
        run("kubectl apply -f autoscalers.yaml").await;
        println!("{}", run("kubectl get autoscalers -A -o wide").await);
        let frozen = run("kubectl plimsoll freeze upgrade").await;
        assert!(frozen.contains(", acknowledged by"), "{frozen}");
        run("kubectl plimsoll thaw").await;
        works(node).await;
        let path = "{.status.conditions[?(@.type==\"ScalingActive\")].status}";
        eventually("the new version decides", PODS, async || {
            let active = node.field(&["-n", "legacy", "autoscaler", "busy"], path).await?;
            let mode = node.field(&["-n", "legacy", "autoscaler", "idle"], "{.spec.mode}").await?;
            let fallback = ["-n", "legacy", "autoscaler", "busy"];
            let rounds = node.field(&fallback, "{.spec.fallback.failureThreshold}").await?;
            let all = (&*active, &*mode, &*rounds) == ("True", "Paused", "3");
            if all { Ok(()) } else { Err(format!("{active} {mode} {rounds}")) }
        })
        .await;
        watch.stop(&before);
        load.stop().await;
        let load = Load::of_url(37, node.url("legacy", "busy").await);
        pods_of(node, "legacy", "busy", 4).await;
        pods_of(node, "legacy", "idle", 3).await;

        let before = workloads(node).await.expect("workloads");
        let watch = Watch::start(node);
        println!("{}", run("helm uninstall plimsoll -n plimsoll").await);
        load.stop().await;
        assert!(run("kubectl get autoscalers -A").await.contains("busy"));
        eventually("the pods of Plimsoll are gone", PODS, async || {
            let left = node.field(&["-n", "plimsoll", "pods"], "{.items[*].metadata.name}").await?;
            if left.is_empty() { Ok(()) } else { Err(left) }
        })
        .await;
        let services = run("kubectl get apiservices").await;
        assert!(!services.contains("False"), "{services}");
        watch.stop(&before);
        // Nothing keeps the namespaces.
        run("kubectl -n plimsoll delete lease/plimsoll configmap/plimsoll-memory").await;
        run("kubectl delete namespace plimsoll --timeout=60s").await;
        Installation::changed(None).await;
        remove_namespace(node, "legacy").await;
    });
}
