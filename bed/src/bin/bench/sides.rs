//! The sides that are measured: Plimsoll, and prometheus-adapter with kube-controller-manager.

use crate::load::{self, Load};
use crate::round::show_progress;
use crate::world::{World, namespace};
use bed::process::Process;
use bed::{eventually, free_port, parts, plimsoll};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A side of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Plimsoll in their place, with the same rule and the same HPAs.
    Plimsoll,
    /// prometheus-adapter and kube-controller-manager's HPA controller.
    Peers(Peers),
    /// Plimsoll with Autoscalers, without a comparison.
    Alone,
}

/// The flags of prometheus-adapter and kube-controller-manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peers {
    /// The defaults.
    Default,
    /// All rate limits raised.
    Tuned,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Self::Plimsoll | Self::Alone => "Plimsoll",
            Self::Peers(Peers::Default) => "the peers by default",
            Self::Peers(Peers::Tuned) => "the peers tuned",
        }
    }
}

/// The same rule for both: of the metrics of `fleet series` that an autoscaler uses, as the others would be listed, too. Their
/// names match a regular expression, with `_total` after it.
pub fn rules(names: &str) -> String {
    format!(
        r#"rules:
- seriesQuery: '{{__name__=~"^({names})_total$",namespace!="",pod!=""}}'
  resources: {{overrides: {{namespace: {{resource: namespace}}, pod: {{resource: pod}}}}}}
  name: {{matches: "^(.*)_total$", as: "${{1}}_per_second"}}
  metricsQuery: sum(rate(<<.Series>>{{<<.LabelMatchers>>}}[1m])) by (<<.GroupBy>>)
"#
    )
}
/// The configuration for the custom metrics of Autoscalers: the rate over the same window.
pub const AUTOSCALER_CONFIG: &str = "podMetrics:\n  counterQuery: \
    'sum by (<<.GroupBy>>) (rate(<<.Series>>{<<.LabelMatchers>>}[1m]))'\n";

/// A running side.
pub struct Running {
    pub processes: Vec<(&'static str, Process)>,
    /// The port of its `/metrics`.
    pub metrics_port: u16,
    /// The counter of its decisions, and whether one with these labels was a success.
    pub decisions: (&'static str, fn(&str) -> bool),
    /// The buckets of the delays between the time that an evaluation is due and its start, and a label of them.
    pub lag: (&'static str, &'static str),
}

/// Starts a side, and waits until it serves metrics.
pub async fn start(world: &World, side: Side) -> Running {
    match side {
        Side::Plimsoll | Side::Alone => {
            let native_hpas = match side {
                Side::Alone => ["--native-hpas=ignore"],
                _ => ["--native-hpas=manage"],
            };
            let process = start_plimsoll(world, side, &native_hpas);
            if side != Side::Alone {
                wait_for_value(world, &process).await;
            }
            // kube-apiserver polls each APIService: both sides have them.
            register(world, world.adapter_port, &CUSTOM_METRICS).await;
            of_plimsoll(world, process)
        }
        Side::Peers(peers) => {
            let adapter = start_adapter(world, peers);
            register(world, world.adapter_port, &CUSTOM_METRICS).await;
            eventually("kube-apiserver serves the metric", Duration::from_secs(90), async || {
                world.cluster.raw(&path_of_one(world, 0, 0)).await
            })
            .await;
            wait_for_value(world, &adapter).await;
            with_manager(world, peers, vec![("prometheus-adapter", adapter)])
        }
    }
}

/// Starts kube-controller-manager's HPA controller beside the processes that serve its metrics.
pub fn with_manager(
    world: &World,
    peers: Peers,
    mut processes: Vec<(&'static str, Process)>,
) -> Running {
    let (manager, port) = start_manager(world, peers);
    processes.push(("kube-controller-manager", manager));
    Running {
        processes,
        metrics_port: port,
        decisions: ("horizontal_pod_autoscaler_controller_reconciliations_total", |labels| {
            labels.contains("error=\"none\"")
        }),
        lag: ("workqueue_queue_duration_seconds_bucket", "name=\"horizontalpodautoscaler\""),
    }
}

/// Starts kube-controller-manager's HPA controller; its port.
pub fn start_manager(world: &World, peers: Peers) -> (Process, u16) {
    let port = free_port();
    let kubeconfig = world.cluster.kubeconfig.display();
    let mut flags = vec![
        "kube-controller-manager".to_owned(),
        format!("--kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        "--controllers=horizontal-pod-autoscaler-controller".to_owned(),
        "--leader-elect=false".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        format!("--cert-dir={}", world.cluster.folder.join("manager").display()),
    ];
    if peers == Peers::Tuned {
        let tuned = [
            "--kube-api-qps=5000",
            "--kube-api-burst=10000",
            "--concurrent-horizontal-pod-autoscaler-syncs=50",
        ];
        flags.extend(tuned.map(str::to_owned));
    }
    let program = world.cluster.parts.join("cluster");
    (world.cluster.run("kube-controller-manager", &program, &flags), port)
}

/// Starts Plimsoll with leader election, as in a cluster.
pub fn start_leading(world: &World) -> Running {
    start_replica(world, world.adapter_port, &[])
}

/// Starts a replica of Plimsoll at a port, with more flags.
pub fn start_replica(world: &World, port: u16, more: &[String]) -> Running {
    let prometheus = world.cluster.prometheus_port;
    let mut flags = adapter_flags(world, "plimsoll", AUTOSCALER_CONFIG, prometheus, port);
    flags.insert(0, "serve".to_owned());
    let own = ["--leader-elect-resource-namespace=kube-system", "--native-hpas=ignore"];
    flags.extend(own.map(str::to_owned));
    flags.extend_from_slice(more);
    Running { metrics_port: port, ..running(world, &flags) }
}

/// Starts Plimsoll with a Prometheus at another port; it logs each decision.
pub fn start_logged(world: &World, prometheus: u16) -> Running {
    let port = world.adapter_port;
    let mut flags = adapter_flags(world, "plimsoll", AUTOSCALER_CONFIG, prometheus, port);
    flags.insert(0, "serve".to_owned());
    let logged = [
        "--leader-elect=false",
        "--leader-elect-resource-namespace=kube-system",
        "--native-hpas=ignore",
        "--log-format=json",
        "--log-level=info,plimsoll::control=debug",
    ];
    flags.extend(logged.map(str::to_owned));
    running(world, &flags)
}

/// Starts Plimsoll without a comparison, with this configuration and these flags.
pub fn start_with(world: &World, config: &str, more: &[&str]) -> Running {
    of_plimsoll(world, start_plimsoll_with(world, config, more))
}

fn running(world: &World, flags: &[String]) -> Running {
    of_plimsoll(world, world.cluster.run("plimsoll", &plimsoll::binary(), flags))
}

/// A process of Plimsoll as a side.
pub fn of_plimsoll(world: &World, process: Process) -> Running {
    Running {
        processes: vec![("plimsoll", process)],
        metrics_port: world.adapter_port,
        decisions: ("plimsoll_decisions_total", |labels| !labels.contains("outcome=\"failed\"")),
        lag: ("plimsoll_decision_lag_seconds_bucket", ""),
    }
}

/// The flags that both metrics adapters take.
fn adapter_flags(
    world: &World,
    name: &str,
    config: &str,
    prometheus: u16,
    port: u16,
) -> Vec<String> {
    let folder = &world.cluster.folder;
    let file = folder.join(format!("{name}-rules.yaml"));
    std::fs::write(&file, config).expect("a file");
    let kubeconfig = world.cluster.kubeconfig.display();
    vec![
        format!("--config={}", file.display()),
        format!("--prometheus-url=http://127.0.0.1:{prometheus}"),
        format!("--lister-kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--cert-dir={}", folder.join(name).display()),
    ]
}

fn start_adapter(world: &World, peers: Peers) -> Process {
    start_adapter_with(world, peers, &rules(world.metrics.names), world.adapter_port)
}

/// Starts prometheus-adapter with these rules at a port.
pub fn start_adapter_with(world: &World, peers: Peers, rules: &str, port: u16) -> Process {
    let mut flags = adapter_flags(world, "adapter", rules, world.cluster.prometheus_port, port);
    if peers == Peers::Tuned {
        flags.extend(["--client-qps=5000", "--client-burst=10000"].map(str::to_owned));
    }
    world.cluster.run("prometheus-adapter", &adapter_binary(), &flags)
}

fn start_plimsoll(world: &World, side: Side, more: &[&str]) -> Process {
    let rules = rules(world.metrics.names);
    let config = if side == Side::Alone { AUTOSCALER_CONFIG } else { &rules };
    start_plimsoll_with(world, config, more)
}

/// Starts Plimsoll with this configuration.
pub fn start_plimsoll_with(world: &World, config: &str, more: &[&str]) -> Process {
    let (prometheus, port) = (world.cluster.prometheus_port, world.adapter_port);
    let mut flags = adapter_flags(world, "plimsoll", config, prometheus, port);
    flags.insert(0, "serve".to_owned());
    // The other side does not elect a leader either.
    flags.push("--leader-elect=false".to_owned());
    flags.push("--leader-elect-resource-namespace=kube-system".to_owned());
    flags.extend(more.iter().map(|flag| (*flag).to_owned()));
    world.cluster.run("plimsoll", &plimsoll::binary(), &flags)
}

fn adapter_binary() -> PathBuf {
    parts(&["prometheus-adapter"]).join("prometheus-adapter")
}

/// The API of custom metrics.
pub const CUSTOM_METRICS: [&str; 2] =
    ["v1beta1.custom.metrics.k8s.io", "v1beta2.custom.metrics.k8s.io"];

/// Registers the adapter at a port with kube-apiserver for these versions of API groups, such as
/// `v1beta1.metrics.k8s.io`, and waits until kube-apiserver finds them available.
pub async fn register(world: &World, port: u16, services: &[&str]) {
    // A Service for each: kube-apiserver learns late that the port of one has changed.
    let mut manifest = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: adapter-{port}, namespace: kube-system}}\n\
         spec:\n  type: ExternalName\n  externalName: localhost\n\
         \x20 ports: [{{name: https, port: {port}, targetPort: {port}}}]\n"
    );
    for name in services {
        let (version, group) = name.split_once('.').expect("a version and a group");
        manifest += &format!(
            "---\napiVersion: apiregistration.k8s.io/v1\nkind: APIService\n\
             metadata: {{name: {name}}}\n\
             spec: {{group: {group}, version: {version}, insecureSkipTLSVerify: true,\n\
             \x20 groupPriorityMinimum: 100, versionPriority: 100,\n\
             \x20 service: {{name: adapter-{port}, namespace: kube-system, port: {port}}}}}\n"
        );
    }
    world.cluster.apply(&manifest).await;
    eventually("the metrics APIs are served", Duration::from_secs(90), async || {
        for name in services {
            let path = format!("/apis/apiregistration.k8s.io/v1/apiservices/{name}");
            let text = world.cluster.raw(&path).await?;
            let service: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            let conditions = service["status"]["conditions"].as_array();
            let is_available = |condition: &Value| {
                condition["type"] == "Available" && condition["status"] == "True"
            };
            if !conditions.is_some_and(|conditions| conditions.iter().any(is_available)) {
                return Err(format!("{name}: {}", service["status"]));
            }
        }
        Ok(())
    })
    .await;
}

/// Deletes APIServices that may have been registered: kube-apiserver polls them without a server, too.
pub async fn unregister(world: &World, services: &[&str]) {
    for name in services {
        let path = format!("/apis/apiregistration.k8s.io/v1/apiservices/{name}");
        // Not all of them are there.
        let _ = world.cluster.request("DELETE", &path, "application/json", "{}".into()).await;
    }
}

fn path_of_one(world: &World, app: usize, pod: usize) -> String {
    let (of, name) = (namespace(app), world.metrics.served(app));
    format!("{METRICS}/{of}/pods/app-{app}-{pod}/{name}")
}

pub fn path_of_selector(app: usize) -> String {
    let of = namespace(app);
    format!("{METRICS}/{of}/pods/*/http_requests_per_second?labelSelector=app%3Dapp-{app}")
}

const METRICS: &str = "/apis/custom.metrics.k8s.io/v1beta2/namespaces";

/// Waits until a side serves a value; returns the time that it took.
async fn wait_for_value(world: &World, process: &Process) -> Duration {
    let start = Instant::now();
    let client = load::client(world);
    let url = format!("https://127.0.0.1:{}{}", world.adapter_port, path_of_one(world, 0, 0));
    loop {
        let value = async {
            let response = client.get(&url).send().await.ok()?.error_for_status().ok()?;
            response.text().await.ok().filter(|text| text.contains("\"value\""))
        };
        if value.await.is_some() {
            return start.elapsed();
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no value served:\n{}", process.tail());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The results of a side under load.
#[derive(Clone, Debug)]
pub struct ServeResult {
    /// From the start of the process to the first value.
    pub first_value: Duration,
    /// Requests for all pods of a workload, by selector; for each of [`CONNECTIONS`].
    pub selector: Vec<Load>,
    /// Requests for one pod; for each of [`CONNECTIONS`].
    pub one: Vec<Load>,
}

/// The numbers of concurrent connections.
pub const CONNECTIONS: [usize; 3] = [1, 16, 64];

/// Sends requests to a side that does not decide meanwhile.
pub async fn serve(world: &World, side: Side, each: Duration) -> ServeResult {
    let process = start_api(world, side);
    let first_value = wait_for_value(world, &process).await;
    let (size, selectors) = (world.size, selectors(world));
    let one = |number: usize| path_of_one(world, number / size.pods, number % size.pods);
    let pods: Vec<String> = (0..size.autoscalers * size.pods).map(one).collect();
    let mut served = ServeResult { first_value, selector: Vec::new(), one: Vec::new() };
    for connections in CONNECTIONS {
        served.selector.push(load::send(world, &selectors, connections, each).await);
        served.one.push(load::send(world, &pods, connections, each).await);
    }
    served
}

/// Starts a side that only serves the API.
fn start_api(world: &World, side: Side) -> Process {
    show_progress(&format!("sending requests to {}", side.name()));
    match side {
        Side::Peers(peers) => start_adapter(world, peers),
        _ => start_plimsoll(world, side, &["--native-hpas=ignore"]),
    }
}

/// The paths of the pods of each workload.
fn selectors(world: &World) -> Vec<String> {
    (0..world.size.autoscalers).map(path_of_selector).collect()
}

/// How long requests are sent that are not counted: those of autoscalers are sent again in each period.
const WARM_UP: Duration = Duration::from_secs(1);

/// Requests by selector over each of [`CONNECTIONS`]; last, the first request for each workload, over 16, which is sent before.
async fn send_selectors(world: &World, each: Duration) -> Vec<Load> {
    let paths = selectors(world);
    let first = load::send_once(world, &paths, 16).await;
    load::send(world, &paths, 16, WARM_UP).await;
    let mut loads = Vec::new();
    for connections in CONNECTIONS {
        loads.push(load::send(world, &paths, connections, each).await);
    }
    loads.push(first);
    loads
}

/// Sends requests by selector to a side that only serves the API. Returns one of its answers, too.
pub async fn serve_selectors(world: &World, side: Side, each: Duration) -> (Vec<Load>, Vec<u8>) {
    let process = start_api(world, side);
    wait_for_value(world, &process).await;
    let url = format!("https://127.0.0.1:{}{}", world.adapter_port, path_of_selector(0));
    let answer = load::client(world).get(url).send().await.expect("an answer");
    let answer = answer.error_for_status().expect("an answer").bytes().await.expect("an answer");
    (send_selectors(world, each).await, answer.to_vec())
}

/// Sends the same requests to the program `static-answer`, which answers each of them with these bytes.
pub async fn serve_static(world: &World, answer: &[u8], each: Duration) -> Vec<Load> {
    show_progress("sending requests to a static answer");
    let file = world.cluster.folder.join("static-answer");
    std::fs::write(&file, answer).expect("a file");
    let program = std::env::current_exe().expect("the path of this program");
    let program = program.with_file_name("static-answer");
    let arguments = [world.adapter_port.to_string(), file.display().to_string()];
    let process = world.cluster.run("static-answer", &program, &arguments);
    let url = format!("https://127.0.0.1:{}/", world.adapter_port);
    eventually("the static answer is served", Duration::from_secs(30), async || {
        let answer = load::client(world).get(&url).send().await;
        answer.map(drop).map_err(|error| format!("{error}\n{}", process.tail()))
    })
    .await;
    send_selectors(world, each).await
}

/// The sizes of the binaries of Plimsoll and prometheus-adapter, in bytes.
pub fn binary_sizes() -> [u64; 2] {
    [plimsoll::binary(), adapter_binary()]
        .map(|path| std::fs::metadata(path).map_or(0, |metadata| metadata.len()))
}
