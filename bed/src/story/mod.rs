//! The steps of the demo: each changes something and waits for its effect.

mod show;

use crate::cluster::Cluster;
use crate::wait::eventually;
use crate::workload::Namespace;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use plimsoll::crd::Autoscaler;
use plimsoll::promql::name::generated_name;
use serde_json::Value;
use show::{Observation, Screen};
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

const TARGET: f64 = 20.0;
const METRIC: &str = "http_requests_total";
const NEW_METRIC: &str = "checkouts_total";

/// Where the story happens: a cluster whose applications count requests to `/hit/METRIC`.
pub trait Stage {
    /// The cluster.
    fn cluster(&self) -> &Cluster;

    /// Creates the Deployment of an application in a namespace, and waits until it is ready.
    fn deployment(
        &self,
        namespace: &Namespace<'_>,
        name: &str,
        replicas: i32,
    ) -> impl Future<Output = ()>;

    /// Sets the requests a second that an application of the namespace `shop` gets, and the metric
    /// that counts them.
    fn load(&self, name: &str, metric: &str, qps: u32) -> impl Future<Output = ()>;

    /// Prometheus's response to an instant query.
    fn query(&self, query: &str) -> impl Future<Output = Option<Value>>;

    /// What changes when Plimsoll is restarted.
    fn processes(&self) -> impl Future<Output = String>;
}

/// Runs all steps. Returns the summary, or the step that failed.
pub async fn run(stage: &impl Stage) -> Result<String, String> {
    let cluster = stage.cluster();
    let shop = Namespace::new(cluster, "shop").await;
    let mut screen = Screen::new(TARGET);
    let processes = stage.processes().await;

    screen.chapter("A Deployment of 2 pods, an Autoscaler with a target of 20 requests/s per pod; 36 requests/s come in.");
    stage.deployment(&shop, "web", 2).await;
    autoscaler(&shop, "web", METRIC, "20").await;
    stage.load("web", METRIC, 36).await;
    let calm = watch(stage, &mut screen, "2 pods serve 36 requests/s", 45, |observation| {
        observation.requests > 30.0 && observation.ready == 2
    })
    .await?;

    screen.chapter("Load rises to 115 requests/s: nearly three times the target of 2 pods.");
    stage.load("web", METRIC, 115).await;
    let (rose, mut peak) = (Instant::now(), 0.0_f64);
    watch(stage, &mut screen, "the load per pod passes the target", 30, |observation| {
        peak = peak.max(observation.per_pod);
        observation.per_pod > TARGET * 1.1
    })
    .await?;
    let above = rose.elapsed();
    let high = watch(
        stage,
        &mut screen,
        "6 pods, and the load per pod is back at the target",
        60,
        |observation| {
            peak = peak.max(observation.per_pod);
            observation.ready == 6 && (observation.per_pod - TARGET).abs() <= TARGET * 0.1
        },
    )
    .await?;
    let scaled_up = rose.elapsed();

    screen.chapter(
        "A second Autoscaler, on a metric that Plimsoll does not know yet, without a restart.",
    );
    stage.deployment(&shop, "checkout", 1).await;
    stage.load("checkout", NEW_METRIC, 8).await;
    // A rate needs two scrapes; until then there is nothing to serve.
    let query = format!("rate({NEW_METRIC}[8s])>0");
    eventually("Prometheus has the new metric", Duration::from_secs(20), async || {
        if prometheus(stage, &query).await.is_some() { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    let created = Instant::now();
    autoscaler(&shop, "checkout", NEW_METRIC, "20").await;
    let name = generated_name(NEW_METRIC, None, "shop", "checkout");
    let path = format!("/apis/custom.metrics.k8s.io/v1beta2/namespaces/shop/pods/*/{name}");
    let served = loop {
        let request = http::Request::get(&path).body(Vec::new()).map_err(|e| e.to_string())?;
        if let Ok(list) = cluster.client.request::<Value>(request).await
            && list["items"].as_array().is_some_and(|items| !items.is_empty())
        {
            break created.elapsed();
        }
        if created.elapsed() > Duration::from_secs(5) {
            return Err("the new metric is not served".to_owned());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    if stage.processes().await != processes {
        return Err("Plimsoll was restarted".to_owned());
    }
    screen.say(&format!(
        "  served {:.2} s after `kubectl apply` began; no process was restarted.\n\n$ kubectl get --raw '{path}'",
        served.as_secs_f64()
    ));
    let raw = cluster.kubectl(&["get", "--raw", &path]).await;
    screen.say(&raw);
    screen.say("\n$ kubectl -n shop get autoscalers");
    // Wait for the first decision on the new metric: kubectl shows it.
    watch(stage, &mut screen, "the new Autoscaler decides", 20, |_| true).await?;
    screen.say(cluster.kubectl(&["-n", "shop", "get", "autoscalers"]).await.trim_end());

    screen.chapter("Load falls to 36 requests/s; the stabilization window is 8 s here.");
    stage.load("web", METRIC, 36).await;
    let fell = Instant::now();
    let low = watch(stage, &mut screen, "2 pods again", 60, |observation| {
        observation.ready == 2 && observation.replicas == 2
    })
    .await?;
    let scaled_down = fell.elapsed();

    let mut events = cluster
        .kubectl(&[
            "-n",
            "shop",
            "get",
            "events",
            "--field-selector=reason=SuccessfulRescale,involvedObject.kind=Autoscaler",
            "--sort-by=.firstTimestamp",
            "-o",
            "custom-columns=OBJECT:.involvedObject.name,MESSAGE:.message",
        ])
        .await;
    events.truncate(events.trim_end().len());
    screen.say("\n$ kubectl -n shop get events  (of the Autoscalers)");
    screen.say(&events);

    let mut summary = String::from("Summary\n");
    let mut line = |what: &str, value: String| {
        let _ = writeln!(summary, "  {what:<19} {value}");
    };
    line(
        "calm",
        format!(
            "{:.0} requests/s, {} pods, {:.1} per pod",
            calm.requests, calm.ready, calm.per_pod
        ),
    );
    line(
        "load rose",
        format!("at most {:.1} per pod, above the target after {:.0} s", peak, above.as_secs_f64()),
    );
    line(
        "scaled up",
        format!(
            "{} pods, {:.1} per pod, after {:.0} s",
            high.ready,
            high.per_pod,
            scaled_up.as_secs_f64()
        ),
    );
    line("new metric", format!("served after {:.2} s, no restart", served.as_secs_f64()));
    line("scaled down", format!("{} pods after {:.0} s", low.ready, scaled_down.as_secs_f64()));
    if served > Duration::from_secs(1) {
        return Err(format!("the new metric was served only after {served:?}"));
    }
    Ok(summary)
}

/// The command that explains the first scale-up of the story, and what this program prints.
pub async fn explanation(cluster: &Cluster, program: &Path) -> Result<String, String> {
    let history =
        plimsoll(cluster, program, &["history", "web", "-n", "shop", "-o", "json"]).await?;
    let history: Value = serde_json::from_str(&history).map_err(|error| error.to_string())?;
    let changes = history["changes"].as_array().cloned().unwrap_or_default();
    let up = changes.iter().find(|change| change["to"].as_i64() > change["from"].as_i64());
    let at = up.and_then(|up| up["time"].as_str()).ok_or("there is no scale-up in the history")?;
    let explain = ["explain", "web", "-n", "shop", "--at", at];
    let text = plimsoll(cluster, program, &explain).await?;
    Ok(format!(
        "Why it was scaled up first

$ kubectl plimsoll {}
{text}",
        explain.join(" ")
    ))
}

/// What a command of Plimsoll prints.
async fn plimsoll(cluster: &Cluster, program: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = tokio::process::Command::new(program);
    command.args(arguments).env("KUBECONFIG", &cluster.kubeconfig);
    crate::process::printed(&command.output().await.map_err(|error| error.to_string())?)
}

async fn autoscaler(shop: &Namespace<'_>, name: &str, metric: &str, average: &str) {
    let manifest = format!(
        "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec:\n  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {name}}}\n\
         \x20 minReplicas: {min}\n  maxReplicas: 10\n  syncPeriodSeconds: 2\n\
         \x20 customMetrics: [{{metricName: {metric}, averageValue: {average}}}]\n\
         \x20 behavior: {{scaleDown: {{stabilizationWindowSeconds: 8}}}}\n",
        min = if name == "web" { 2 } else { 1 }
    );
    shop.cluster.apply(&manifest).await;
}

/// Shows the workload until a condition holds.
async fn watch(
    stage: &impl Stage,
    screen: &mut Screen,
    what: &str,
    seconds: u64,
    mut condition: impl FnMut(&Observation) -> bool,
) -> Result<Observation, String> {
    let start = Instant::now();
    loop {
        let seen = observe(stage).await;
        screen.show(seen.clone());
        if condition(&seen) {
            return Ok(seen);
        }
        if start.elapsed() > Duration::from_secs(seconds) {
            return Err(format!("not within {seconds} s: {what}; last seen: {seen:?}"));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn observe(stage: &impl Stage) -> Observation {
    let client = &stage.cluster().client;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "shop");
    let autoscalers: Api<Autoscaler> = Api::namespaced(client.clone(), "shop");
    let query = format!("sum(rate({METRIC}{{namespace=\"shop\"}}[8s]))");
    let (deployment, autoscaler, requests) =
        tokio::join!(deployments.get("web"), autoscalers.get("web"), prometheus(stage, &query));
    let deployment = deployment.ok();
    let replicas = deployment.as_ref().and_then(|d| d.spec.as_ref()?.replicas).unwrap_or(0);
    let ready = deployment.as_ref().and_then(|d| d.status.as_ref()?.ready_replicas).unwrap_or(0);
    let requests = requests.unwrap_or(0.0);
    Observation {
        requests,
        replicas: replicas.into(),
        ready: ready.into(),
        per_pod: if ready > 0 { requests / f64::from(ready) } else { 0.0 },
        targets: autoscaler.ok().and_then(|a| a.status?.targets).unwrap_or_default(),
    }
}

/// The first value of an instant query's result.
async fn prometheus(stage: &impl Stage, query: &str) -> Option<f64> {
    let response = stage.query(query).await?;
    response["data"]["result"][0]["value"][1].as_str()?.parse().ok()
}
