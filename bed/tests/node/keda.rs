//! Plimsoll takes the place of KEDA, as docs/moving-from-keda.md says. KEDA is installed by its own manifests.

use crate::applications::{application, remove_namespace};
use crate::images::{Image, write_one};
use crate::install::works;
use crate::installation::{By, Installation, namespace, remove};
use crate::isolation::{binary, folder};
use crate::load::Load;
use crate::machine::{import, write};
use crate::node::{Node, PODS};
use crate::scaling::pods_of;
use bed::pages::Pages;
use bed::{eventually, keda_sources};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Its images, as those of the other parts, and what the manifests call them.
const IMAGES: [(Image, &str); 2] = [
    (("localhost/keda:1", "keda", &[]), "/keda:"),
    (("localhost/keda-adapter:1", "keda-adapter", &[]), "/keda-metrics-apiserver:"),
];

/// A ScaledObject of the Deployment of this name by the requests of `web` above a level.
fn scaled_object(name: &str, least: i32, level: i32) -> String {
    format!(
        r#"---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {{name: {name}, namespace: kedas}}
spec:
  scaleTargetRef: {{name: {name}}}
  pollingInterval: 5
  cooldownPeriod: 5
  minReplicaCount: {least}
  maxReplicaCount: 6
  advanced: {{horizontalPodAutoscalerConfig: {{behavior: {{scaleDown: {{stabilizationWindowSeconds: 5}}}}}}}}
  triggers:
    - type: prometheus
      metadata:
        serverAddress: http://prometheus.monitoring.svc:9090
        query: sum(rate(http_requests_total{{namespace="kedas",pod=~"web-.*"}}[10s])) - {level}
        threshold: "10"
"#
    )
}

/// KEDA's manifests with these images, which are on the machine.
async fn manifests(pages: &Pages) -> String {
    let render = format!("kubectl kustomize {}/config/minimal", keda_sources().display());
    let text = pages.run(&render).await.unwrap_or_else(|error| panic!("{render}: {error}"));
    let line = |line: &str| {
        let start = line.split("image: ").next().unwrap_or_default();
        let image = |((name, ..), known): &(Image, &str)| {
            (line.len() > start.len() && line.contains(known))
                .then(|| format!("{start}image: {name}\n"))
        };
        IMAGES.iter().find_map(image).unwrap_or_else(|| format!("{line}\n"))
    };
    text.lines().map(line).collect::<String>().replace("PullPolicy: Always", "PullPolicy: Never")
}

/// How many replicas `web` and `night` of `kedas` were to have, each tenth of a second.
#[derive(Clone, Default)]
struct Replicas(Arc<Mutex<Vec<[i64; 2]>>>);

impl Replicas {
    async fn watch(self, node: &Node) {
        let of = async |name: &str| {
            let path = format!("/apis/apps/v1/namespaces/kedas/deployments/{name}/scale");
            let text = node.cluster.raw(&path).await.expect("a scale");
            let scale: Value = serde_json::from_str(&text).expect("JSON");
            // No replicas are left out.
            scale["spec"]["replicas"].as_i64().unwrap_or(0)
        };
        loop {
            let replicas = [of("web").await, of("night").await];
            self.0.lock().expect("no panic").push(replicas);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Those since the last call.
    fn take(&self) -> Vec<[i64; 2]> {
        std::mem::take(&mut *self.0.lock().expect("no panic"))
    }
}

/// Waits until what KEDA's HPA wants and what a preview wants is this.
async fn both_want(node: &Node, replicas: &str) {
    eventually("KEDA and the preview want the same", PODS, async || {
        let field = "{.status.desiredReplicas}";
        let hpa = node.field(&["-n", "kedas", "hpa", "keda-hpa-web"], field).await?;
        let preview = node.field(&["-n", "kedas", "autoscaler", "web"], field).await?;
        if hpa == replicas && preview == replicas {
            return Ok(());
        }
        let kinds =
            ["-n", "kedas", "describe", "autoscalers,horizontalpodautoscalers,scaledobjects"];
        let all = node.cluster.try_kubectl(&kinds).await?;
        Err(format!("{replicas}: KEDA {hpa:?}, preview {preview:?}\n{all}"))
    })
    .await;
}

pub fn replaced(node: &'static Node) {
    node.run(async {
        remove(node).await;
        let parts = &node.cluster.parts;
        assert!(parts.join("keda").exists(), "no KEDA: `bed/build keda keda-adapter`");
        for (image, _) in &IMAGES {
            import(&node.cluster, &write_one(parts, &folder(), image, &[])).await;
        }
        let pages = Pages::new(&node.cluster);
        for name in ["plimsoll", "kubectl-plimsoll"] {
            pages.add(name, &binary());
        }
        let run = async |command: &str| {
            pages.run(command).await.unwrap_or_else(|error| panic!("{command}: {error}"))
        };
        let keda = write(&node.cluster.folder, "keda.yaml", &manifests(&pages).await);
        run(&format!("kubectl apply --server-side -f {keda}")).await;
        let started = Instant::now();
        for name in ["keda-operator", "keda-metrics-apiserver"] {
            node.rolled_out("keda", &format!("deployment/{name}")).await;
        }
        println!("KEDA is ready after {:.1} s", started.elapsed().as_secs_f64());
        for name in ["web", "night"] {
            application(node, "kedas", "Deployment", name, 1).await;
        }
        // One keeps a replica, and one goes to zero.
        let objects = scaled_object("web", 1, 0) + &scaled_object("night", 0, 30);
        let objects = write(&node.cluster.folder, "scaledobjects.yaml", &objects);
        run(&format!("kubectl apply -f {objects}")).await;
        let url = node.url("kedas", "web").await;
        let mut load = Load::of_url(17, url.clone());
        pods_of(node, "kedas", "web", 2).await;
        pods_of(node, "kedas", "night", 0).await;

        // Beside KEDA, which keeps the API of external metrics.
        namespace(node).await;
        run("helm upgrade --install plimsoll deploy/chart -n plimsoll \
             --set prometheus.url=http://prometheus.monitoring.svc:9090")
        .await;
        works(node).await;
        run("kubectl -n kedas get scaledobjects -o yaml | plimsoll convert - \
             --prometheus-url http://prometheus.monitoring.svc:9090 > active.yaml")
        .await;
        let active = run("cat active.yaml").await;
        assert_eq!(active.matches("kind: Autoscaler").count(), 2, "{active}");
        assert!(!active.contains("mode: "), "{active}");
        run("sed 's/^spec:$/spec:\\n  mode: Preview/' active.yaml | kubectl apply -f -").await;
        both_want(node, "2").await;
        // Pods that go refuse requests for a moment: what counts here is how many there are.
        for (requests, replicas) in [(47, 5), (26, 3)] {
            load.stop().await;
            load = Load::of_url(requests, url.clone());
            both_want(node, &replicas.to_string()).await;
            pods_of(node, "kedas", "web", replicas).await;
        }
        // The threshold of 30 is passed no more.
        pods_of(node, "kedas", "night", 0).await;

        let replicas = Replicas::default();
        let mut watch = JoinSet::new();
        watch.spawn(replicas.clone().watch(node));
        let started = Instant::now();
        for name in ["web", "night"] {
            run(&format!(
                "kubectl -n kedas patch scaledobject {name} --type=merge \
                 -p '{{\"spec\":{{\"advanced\":{{\"restoreToOriginalReplicaCount\":false}}}}}}'"
            ))
            .await;
            run(&format!("kubectl -n kedas delete scaledobject {name}")).await;
            run(&format!("kubectl -n kedas wait --for=delete hpa/keda-hpa-{name} --timeout=60s")).await;
        }
        run("kubectl -n kedas scale deployment/night --replicas=1").await;
        for name in ["web", "night"] {
            run(&format!(
                "kubectl -n kedas patch autoscaler {name} --type=merge -p '{{\"spec\":{{\"mode\":\"Active\"}}}}'"
            ))
            .await;
        }
        println!("taken over in {:.1} s", started.elapsed().as_secs_f64());
        pods_of(node, "kedas", "night", 0).await;
        // As many as the load needs, and what it was scaled to by hand.
        let taken_over = replicas.take();
        let stayed = taken_over.iter().all(|[web, night]| *web == 3 && [0, 1].contains(night));
        assert!(stayed && !taken_over.is_empty(), "{taken_over:?}");
        load.stop().await;
        load = Load::of_url(47, url);
        pods_of(node, "kedas", "web", 5).await;
        pods_of(node, "kedas", "night", 2).await;
        // It ends by a failure alone.
        assert!(watch.try_join_next().is_none());
        drop(watch);
        let grown = replicas.take();
        assert_eq!(grown.iter().map(|[web, _]| *web).min(), Some(3), "{grown:?}");
        load.stop().await;
        run(&format!("kubectl delete -f {keda} --timeout=120s")).await;
        remove_namespace(node, "kedas").await;
        Installation::changed(Some(By::Helm)).await;
    });
}
