//! A long run with churn and faults on the real parts: `make soak MINUTES=30`.
//!
//! Autoscalers, pods, metrics and the configuration come, change and go; Prometheus
//! and kube-apiserver fail in turn; all at random from a seed that is printed.
//! Each round the invariants are checked; at the end everything must be where its
//! metrics say, and memory, files and tasks where they were.

#[path = "../bed/mod.rs"]
mod bed;

use bed::proxy::Fault;
use bed::random::Random;
use bed::workload::Namespace;
use bed::{Bed, Options};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

/// The most workloads at once.
const WORKLOADS: usize = 8;
const NAMESPACE: &str = "soak";
/// How long a workload may be out of its bounds after a hand was laid on it.
const GRACE: Duration = Duration::from_secs(20);

/// A workload and its Autoscaler.
struct Workload {
    name: String,
    max: i64,
    /// What each of its pods shows; its Autoscaler wants 10.
    shows: i64,
    /// When a hand was laid on it last.
    touched: Instant,
    replicas: i64,
}

impl Workload {
    /// Where it ends when it is left alone.
    fn settles_at(&self) -> i64 {
        if self.shows > 10 { self.max } else { 1 }
    }
}

/// What Plimsoll uses.
#[derive(Clone, Copy, Debug)]
struct Usage {
    megabytes: f64,
    files: f64,
    tasks: f64,
}

struct Soak<'a> {
    bed: &'a Bed,
    random: Random,
    workloads: Vec<Workload>,
    made: usize,
    actions: BTreeMap<&'static str, usize>,
    rounds: usize,
    usage: Vec<Usage>,
    broken: Vec<String>,
    /// Until when which fault holds, and whether it keeps metrics away.
    fault: Option<(Instant, bool)>,
    frozen: bool,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let minutes: f64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(10.0);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seed = arguments.next().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(now.as_nanos() as u64);
    eprintln!("  seed {seed}: soak {minutes} {seed} does the same again");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(run(Duration::from_secs_f64(minutes * 60.0), seed, minutes))
}

async fn run(length: Duration, seed: u64, minutes: f64) -> ExitCode {
    let options = Options {
        faults: true,
        flags: ["--status-interval=1s", "--prometheus-timeout=1s", "--memory-interval=5s"]
            .map(str::to_owned)
            .to_vec(),
        progress: |what| eprintln!("  {what} ..."),
        ..Options::default()
    };
    let bed = Bed::start(options).await;
    Namespace::new(&bed.cluster, NAMESPACE).await;
    let mut soak = Soak {
        bed: &bed,
        random: Random(seed),
        workloads: Vec::new(),
        made: 0,
        actions: BTreeMap::new(),
        rounds: 0,
        usage: Vec::new(),
        broken: Vec::new(),
        fault: None,
        frozen: false,
    };
    let start = Instant::now();
    let mut told = 0;
    while start.elapsed() < length {
        soak.act().await;
        tokio::time::sleep(Duration::from_millis(700)).await;
        soak.check().await;
        let minute = start.elapsed().as_secs() / 60;
        if minute > told {
            told = minute;
            let last = soak.usage.last();
            eprintln!("  {minute} of {minutes} minutes, {} rounds, {last:?}", soak.rounds);
        }
    }
    soak.settle().await;
    soak.report(minutes, seed)
}

impl Soak<'_> {
    fn ns(&self) -> Namespace<'_> {
        Namespace { cluster: &self.bed.cluster, name: NAMESPACE.to_owned() }
    }

    async fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.bed.cluster.try_kubectl(&[&["-n", NAMESPACE], arguments].concat()).await
    }

    /// Does one thing at random.
    async fn act(&mut self) {
        if let Some((until, _)) = self.fault
            && Instant::now() >= until
        {
            self.heal();
        }
        let which = self.random.below(14);
        let some = (!self.workloads.is_empty()).then(|| self.random.below(self.workloads.len()));
        let action = match (which, some) {
            (0 | 1, _) if self.workloads.len() < WORKLOADS => self.make().await,
            (2, Some(place)) if self.workloads.len() > 2 => self.remove(place).await,
            (3, Some(place)) => self.show(place).await,
            (4, Some(place)) => self.scale(place).await,
            (5, Some(place)) => self.limit(place).await,
            (6, Some(place)) => self.delete_pod(place).await,
            (7, _) => self.reload(),
            (8, _) => self.freeze().await,
            (9 | 10, _) if self.fault.is_none() => self.fail_prometheus(),
            (11 | 12, _) if self.fault.is_none() => self.fail_api(),
            _ => self.ask().await,
        };
        *self.actions.entry(action).or_default() += 1;
    }

    fn heal(&mut self) {
        let faults = self.bed.faults.as_ref().expect("proxies");
        faults.prometheus.pass();
        faults.api.pass();
        self.fault = None;
        for workload in &mut self.workloads {
            workload.touched = Instant::now();
        }
    }

    async fn make(&mut self) -> &'static str {
        self.made += 1;
        let name = format!("app-{}", self.made);
        let (shows, max) = ([1, 20][self.random.below(2)], 2 + self.random.below(3) as i64);
        let manifest = format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\n\
             spec:\n  replicas: 1\n  selector: {{matchLabels: {{app: {name}}}}}\n\
             \x20 template:\n    metadata:\n      labels: {{app: {name}}}\n\
             \x20     annotations: {{bed.plimsoll.dev/metrics: 'depth {shows}'}}\n\
             \x20   spec:\n      terminationGracePeriodSeconds: 0\n\
             \x20     containers: [{{name: app, image: fleet}}]\n\
             ---\napiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\n\
             metadata: {{name: {name}, namespace: {NAMESPACE}}}\n\
             spec:\n  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {name}}}\n\
             \x20 maxReplicas: {max}\n  syncPeriodSeconds: 1\n\
             \x20 customMetrics: [{{metricName: depth, averageValue: 10}}]\n\
             \x20 behavior: {{scaleDown: {{stabilizationWindowSeconds: 3}}, scaleUp: {{policies: [{{type: Pods, value: 100, periodSeconds: 1}}]}}}}\n"
        );
        self.bed.cluster.apply(&manifest).await;
        let touched = Instant::now();
        self.workloads.push(Workload { name, max, shows, touched, replicas: 1 });
        "autoscalers made"
    }

    async fn remove(&mut self, place: usize) -> &'static str {
        let name = self.workloads.swap_remove(place).name;
        let both = format!("autoscaler/{name}");
        let deployment = format!("deployment/{name}");
        let _ = self.kubectl(&["delete", &both, &deployment, "--wait=false"]).await;
        "autoscalers deleted"
    }

    async fn show(&mut self, place: usize) -> &'static str {
        let shows = [1, 20][self.random.below(2)];
        let workload = &mut self.workloads[place];
        (workload.shows, workload.touched) = (shows, Instant::now());
        let patch = format!(
            r#"{{"spec":{{"template":{{"metadata":{{"annotations":{{"bed.plimsoll.dev/metrics":"depth {shows}"}}}}}}}}}}"#
        );
        let deployment = format!("deployment/{}", workload.name);
        let _ = self.kubectl(&["patch", &deployment, "-p", &patch]).await;
        "metrics changed"
    }

    async fn scale(&mut self, place: usize) -> &'static str {
        let replicas = 1 + self.random.below(6);
        let workload = &mut self.workloads[place];
        workload.touched = Instant::now();
        let deployment = format!("deployment/{}", workload.name);
        let _ = self.kubectl(&["scale", &deployment, &format!("--replicas={replicas}")]).await;
        "workloads scaled by hand"
    }

    async fn limit(&mut self, place: usize) -> &'static str {
        let max = 2 + self.random.below(3) as i64;
        let workload = &mut self.workloads[place];
        (workload.max, workload.touched) = (max, Instant::now());
        let autoscaler = format!("autoscaler/{}", workload.name);
        let patch = format!(r#"{{"spec":{{"maxReplicas":{max}}}}}"#);
        let _ = self.kubectl(&["patch", &autoscaler, "--type=merge", "-p", &patch]).await;
        "limits changed"
    }

    async fn delete_pod(&mut self, place: usize) -> &'static str {
        let workload = &mut self.workloads[place];
        workload.touched = Instant::now();
        let selector = format!("app={}", workload.name);
        let pods = ["get", "pods", "-l", &selector, "-o", "jsonpath={.items[0].metadata.name}"];
        if let Ok(pod) = self.kubectl(&pods).await {
            let _ = self.kubectl(&["delete", "pod", &pod, "--wait=false"]).await;
        }
        "pods deleted"
    }

    /// Changes the configuration, now and then to one that can't be used.
    fn reload(&mut self) -> &'static str {
        let path = self.bed.cluster.folder.join("plimsoll.yaml");
        let text = std::fs::read_to_string(&path).expect("the configuration");
        let text = text.split("\n# change").next().expect("a part").to_owned();
        let wrong = self.random.below(3) == 0;
        let change = if wrong { "\n\tno yaml: [" } else { "" };
        std::fs::write(&path, format!("{text}\n# change {}{change}\n", self.rounds))
            .expect("a file");
        if wrong { "wrong configurations" } else { "configurations" }
    }

    async fn freeze(&mut self) -> &'static str {
        self.frozen = !self.frozen && self.random.below(3) == 0;
        let word = if self.frozen { "plimsoll.dev/freeze=soak" } else { "plimsoll.dev/freeze-" };
        let annotate = ["-n", "plimsoll", "annotate", "lease", "plimsoll", "--overwrite", word];
        let _ = self.bed.cluster.try_kubectl(&annotate).await;
        for workload in &mut self.workloads {
            workload.touched = Instant::now();
        }
        "freezes and thaws"
    }

    fn until(&mut self) -> Instant {
        Instant::now() + Duration::from_secs(1 + self.random.below(5) as u64)
    }

    fn fail_prometheus(&mut self) -> &'static str {
        let answer = |status: u16, body: &str| Fault::Answer {
            status,
            headers: vec![("retry-after", "1".to_owned())],
            body: body.to_owned(),
        };
        let fault = match self.random.below(6) {
            0 => Fault::Stall,
            1 => Fault::Slow(Duration::from_millis(1500)),
            2 => answer(503, "starting"),
            3 => answer(200, "<html>"),
            4 => answer(429, "slow down"),
            _ => Fault::Cut,
        };
        self.bed.faults.as_ref().expect("proxies").prometheus.fail("", fault);
        self.fault = Some((self.until(), true));
        "faults of Prometheus"
    }

    fn fail_api(&mut self) -> &'static str {
        let api = &self.bed.faults.as_ref().expect("proxies").api;
        let answer = |status: u16| Fault::Answer {
            status,
            headers: Vec::new(),
            body: format!(
                r#"{{"kind":"Status","status":"Failure","code":{status},"message":"soak"}}"#
            ),
        };
        match self.random.below(6) {
            0 => api.fail("", Fault::Slow(Duration::from_millis(800))),
            1 => api.fail("/scale", answer(409)),
            2 => api.fail("PATCH", answer(500)),
            3 => api.fail("/scale", answer(429)),
            4 => {
                api.fail("watch=true", answer(410));
                api.end_answers();
            }
            _ => api.stall("leases"),
        }
        self.fault = Some((self.until(), false));
        "faults of kube-apiserver"
    }

    /// Asks the API as kubectl does.
    async fn ask(&self) -> &'static str {
        let path = "/apis/custom.metrics.k8s.io/v1beta2";
        let _ = self.bed.cluster.try_kubectl(&["get", "--raw", path]).await;
        "requests"
    }

    /// Checks what must hold at any time.
    async fn check(&mut self) {
        self.rounds += 1;
        let deployments = self.kubectl(&["get", "deployments", "-o", "json"]).await;
        let Ok(list) = deployments.map(|text| serde_json::from_str(&text).unwrap_or_default())
        else {
            return self
                .broken
                .push(format!("round {}: kube-apiserver can't be asked", self.rounds));
        };
        let list: serde_json::Value = list;
        let of = |name: &str| {
            let items = list["items"].as_array().into_iter().flatten();
            let found = items.filter(|item| item["metadata"]["name"] == name);
            found.filter_map(|item| item["spec"]["replicas"].as_i64()).next()
        };
        let blind = self.fault.is_some_and(|(_, of_metrics)| of_metrics);
        for workload in &mut self.workloads {
            let Some(replicas) = of(&workload.name) else { continue };
            let untouched = workload.touched.elapsed() > GRACE;
            if untouched && !(1..=workload.max).contains(&replicas) && !self.frozen {
                let (name, max) = (&workload.name, workload.max);
                self.broken
                    .push(format!("round {}: {name} has {replicas}, of 1 to {max}", self.rounds));
            }
            // Without metrics nothing goes down, but by a hand or a limit.
            if untouched && blind && replicas < workload.replicas {
                let (name, before) = (&workload.name, workload.replicas);
                self.broken.push(format!(
                    "round {}: {name} went from {before} to {replicas} without metrics",
                    self.rounds
                ));
            }
            workload.replicas = replicas;
        }
        let (code, ready) = self.bed.plimsoll.get("/readyz?verbose", &[]).await;
        if code != 200 {
            self.broken.push(format!("round {}: not ready: {ready}", self.rounds));
        }
        if self.rounds.is_multiple_of(5) {
            let metrics = self.bed.plimsoll.metrics(&self.bed.cluster).await;
            let value = |name: &str| -> f64 {
                let line = metrics.lines().find(|line| line.starts_with(name));
                line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok()).unwrap_or(f64::NAN)
            };
            self.usage.push(Usage {
                megabytes: value("process_resident_memory_bytes ") / 1e6,
                files: value("process_open_fds "),
                tasks: value("plimsoll_tasks "),
            });
        }
    }

    /// Lets everything be, and waits until all is where its metrics say.
    async fn settle(&mut self) {
        eprintln!("  letting it settle ...");
        self.heal();
        self.frozen = true;
        while self.frozen {
            self.freeze().await;
        }
        let start = Instant::now();
        loop {
            let mut astray = Vec::new();
            for workload in &self.workloads {
                let replicas = self.ns().replicas("Deployment", &workload.name).await;
                if replicas != workload.settles_at() {
                    let (name, wanted) = (&workload.name, workload.settles_at());
                    astray.push(format!("{name} has {replicas}, not {wanted}"));
                }
            }
            if astray.is_empty() {
                return eprintln!("  settled after {:.0} s", start.elapsed().as_secs_f64());
            }
            if start.elapsed() > Duration::from_secs(90) {
                return self.broken.push(format!("it does not settle: {}", astray.join(", ")));
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    fn report(mut self, minutes: f64, seed: u64) -> ExitCode {
        let log = std::fs::read_to_string(&self.bed.plimsoll.process.log).unwrap_or_default();
        for line in
            log.lines().filter(|line| line.contains("panicked") || line.contains("broken off"))
        {
            self.broken.push(format!("in the log: {line}"));
        }
        let starts = log.lines().filter(|line| line.contains("plimsoll::app: serving")).count();
        if starts != 1 {
            self.broken.push(format!("it was started {starts} times"));
        }
        println!("\nSoak of {minutes} minutes, seed {seed}: {} rounds checked\n", self.rounds);
        for (action, count) in &self.actions {
            println!("  {action:26} {count:6}");
        }
        println!();
        // Of the time when caches are full: what comes at the end against what came first.
        let used = self.usage.len() / 4;
        let median = |of: &[Usage], field: fn(&Usage) -> f64| -> f64 {
            let mut values: Vec<f64> = of.iter().map(field).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
        };
        let (first, last) = (&self.usage[used..used * 2], &self.usage[used * 3..]);
        type Field = (&'static str, fn(&Usage) -> f64, f64);
        let fields: [Field; 3] = [
            ("memory, MB", |usage| usage.megabytes, 8.0),
            ("open files", |usage| usage.files, 20.0),
            ("tasks", |usage| usage.tasks, 40.0),
        ];
        for (name, field, allowed) in fields {
            let (first, last) = (median(first, field), median(last, field));
            println!("  {name:26} {first:6.1} in the second quarter, {last:6.1} in the last");
            if last > first * 1.15 + allowed {
                self.broken.push(format!("{name} grew from {first:.1} to {last:.1}"));
            }
        }
        println!("\n  broken invariants          {:6}", self.broken.len());
        for what in &self.broken {
            println!("    {what}");
        }
        if self.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
