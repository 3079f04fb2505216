//! CPU and memory of processes, and their own metrics.

use crate::load;
use crate::round::{ROUND, show_progress};
use crate::sides::Running;
use crate::world::World;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// The measurements of a side in one run.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// Round by round.
    pub rounds: Vec<Round>,
    /// What Prometheus was asked.
    pub asked: Asked,
    /// Requests that kube-apiserver served.
    pub api_requests: f64,
    /// The peak memory of each process of the side, in MiB.
    pub memory: BTreeMap<&'static str, f64>,
    /// The p99 of the delay between the time that an evaluation is due and its start.
    pub lag_p99: Option<f64>,
}

/// What Prometheus was asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// HTTP requests to its API: queries, of which one request of Plimsoll can have several, and listings of series.
    pub requests: f64,
    /// Seconds of evaluating queries.
    pub seconds: f64,
}

impl Asked {
    /// Since it was started.
    pub async fn read(world: &World) -> Self {
        let url = format!("http://127.0.0.1:{}/metrics", world.cluster.prometheus_port);
        let text = reqwest::get(url).await.expect("metrics").text().await.expect("metrics");
        Self {
            requests: sum(&text, "prometheus_http_requests_total", "handler=\"/api/v1/"),
            seconds: sum(
                &text,
                "prometheus_engine_query_duration_seconds_sum",
                "slice=\"inner_eval\"",
            ),
        }
    }

    /// What was asked after an earlier reading.
    pub fn since(self, earlier: Self) -> Self {
        Self { requests: self.requests - earlier.requests, seconds: self.seconds - earlier.seconds }
    }
}

/// The measurements of a round.
#[derive(Clone, Debug, Default)]
pub struct Round {
    pub seconds: f64,
    /// CPU seconds by process.
    pub cpu: BTreeMap<&'static str, f64>,
    /// That succeeded.
    pub decisions: f64,
    pub failed: f64,
}

/// The part of the decisions of all rounds but one that there are at least: kube-controller-manager takes 15 s and the time
/// of a round for each, and all may be decided in the part of a round in which none is counted.
const LEAST_DECIDED: f64 = 0.95;
/// The part of decisions that may fail.
pub const MOST_FAILED: f64 = 0.01;

impl Block {
    pub fn seconds(&self) -> f64 {
        self.rounds.iter().map(|round| round.seconds).sum()
    }

    pub fn decisions(&self) -> f64 {
        self.rounds.iter().map(|round| round.decisions).sum()
    }

    /// The decisions that failed.
    pub fn failed(&self) -> f64 {
        self.rounds.iter().map(|round| round.failed).sum()
    }

    /// Panics unless so many autoscalers were decided, and hardly a decision failed: a side that fails costs less.
    pub fn check(&self, side: &str, autoscalers: usize) {
        let least = LEAST_DECIDED * ((self.rounds.len() - 1) * autoscalers) as f64;
        let (decisions, failed) = (self.decisions(), self.failed());
        assert!(decisions >= least, "{side}: {decisions} successful decisions, not {least}");
        let most = MOST_FAILED * decisions;
        assert!(failed <= most, "{side}: {failed} decisions failed, beside {decisions}");
    }
}

/// Measures a side and the cluster under it.
pub struct Meter<'a> {
    world: &'a World,
    running: Option<&'a Running>,
    processes: Vec<(&'static str, u32)>,
    client: reqwest::Client,
}

impl<'a> Meter<'a> {
    pub fn new(world: &'a World, running: Option<&'a Running>) -> Self {
        let [etcd, apiserver, prometheus] = world.cluster.program_ids();
        let mut processes =
            vec![("etcd", etcd), ("kube-apiserver", apiserver), ("prometheus", prometheus)];
        for (name, process) in running.iter().flat_map(|running| &running.processes) {
            processes.push((name, process.program_id()));
        }
        Self { world, running, processes, client: load::client(world) }
    }

    /// Waits until Plimsoll has decided for each autoscaler and written all pending statuses.
    pub async fn wait_settled(&self) {
        let start = Instant::now();
        let mut settled = 0;
        while settled < 5 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let Some(running) = self.running else { return };
            // Not before it knows the CAs of clients.
            let text = self.try_side_metrics(running).await.unwrap_or_default();
            let all =
                sum(&text, "plimsoll_decisions_total", "") >= self.world.size.autoscalers as f64;
            let written = sum(&text, "plimsoll_status_writes_waiting", "") == 0.0;
            settled = if all && written { settled + 1 } else { 0 };
            assert!(start.elapsed() < Duration::from_secs(300), "it does not settle");
        }
        show_progress(&format!("  settled after {:.0} s", start.elapsed().as_secs_f64()));
    }

    pub async fn measure(&self, rounds: usize) -> Block {
        let before = self.totals().await;
        let mut block = Block::default();
        let (mut cpu, mut decided) = (self.cpu(), self.decisions().await);
        let mut at = Instant::now();
        for _ in 0..rounds {
            tokio::time::sleep_until((at + ROUND).into()).await;
            let (cpu_now, decided_now, now) = (self.cpu(), self.decisions().await, Instant::now());
            let used = cpu_now.iter().map(|(name, used)| (*name, used - cpu[name])).collect();
            block.rounds.push(Round {
                seconds: (now - at).as_secs_f64(),
                cpu: used,
                decisions: decided_now[0] - decided[0],
                failed: decided_now[1] - decided[1],
            });
            (cpu, decided, at) = (cpu_now, decided_now, now);
        }
        let after = self.totals().await;
        let processes = self.running.iter().flat_map(|running| &running.processes);
        block.memory =
            processes.map(|(name, process)| (*name, peak_memory(process.program_id()))).collect();
        block.asked = after.asked.since(before.asked);
        block.api_requests = after.api_requests - before.api_requests;
        block.lag_p99 = quantile(&before.lag, &after.lag, 0.99);
        block
    }

    fn cpu(&self) -> BTreeMap<&'static str, f64> {
        self.processes.iter().map(|(name, id)| (*name, cpu_seconds(*id))).collect()
    }

    /// Those that succeeded, and those that failed.
    async fn decisions(&self) -> [f64; 2] {
        match self.running {
            Some(Running { decisions: (name, succeeded), .. }) => {
                let text = self.side_metrics().await;
                [true, false].map(|success| {
                    let all = samples(&text, name);
                    let of = all.filter(|(labels, _)| succeeded(labels) == success);
                    of.map(|(_, count)| count).sum()
                })
            }
            None => [0.0; 2],
        }
    }

    /// The metrics of the side that runs.
    pub async fn side_metrics(&self) -> String {
        let running = self.running.expect("a side runs");
        self.try_side_metrics(running).await.expect("metrics")
    }

    async fn try_side_metrics(&self, running: &Running) -> reqwest::Result<String> {
        let url = format!("https://127.0.0.1:{}/metrics", running.metrics_port);
        self.client.get(url).send().await?.error_for_status()?.text().await
    }

    async fn totals(&self) -> Totals {
        let request = http::Request::get("/metrics").body(Vec::new()).expect("a request");
        let apiserver = self.world.cluster.client.request_text(request).await.expect("metrics");
        let lag = match self.running {
            Some(running) => buckets(&self.side_metrics().await, running.lag),
            None => Vec::new(),
        };
        Totals {
            asked: Asked::read(self.world).await,
            api_requests: sum(&apiserver, "apiserver_request_total", ""),
            lag,
        }
    }
}

struct Totals {
    asked: Asked,
    api_requests: f64,
    lag: Vec<(f64, f64)>,
}

/// The samples of a metric in an exposition: labels and value.
pub fn samples<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
    text.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name).filter(|rest| rest.starts_with(['{', ' ']))?;
        let (labels, value) = rest.rsplit_once(' ')?;
        Some((labels, value.parse().ok()?))
    })
}

/// The sum of a metric over all labels that contain a text.
pub fn sum(text: &str, name: &str, with: &str) -> f64 {
    samples(text, name).filter(|(labels, _)| labels.contains(with)).map(|(_, value)| value).sum()
}

/// Upper bounds and counts of a histogram, of the series with a label.
fn buckets(text: &str, (name, label): (&str, &str)) -> Vec<(f64, f64)> {
    let bound = |labels: &str| -> Option<f64> {
        labels.split_once("le=\"")?.1.split_once('"')?.0.replace("+Inf", "inf").parse().ok()
    };
    let of_label = samples(text, name).filter(|(labels, _)| labels.contains(label));
    of_label.filter_map(|(labels, count)| Some((bound(labels)?, count))).collect()
}

/// The upper bound of a quantile of the observations between two readings; none if there were none.
fn quantile(before: &[(f64, f64)], after: &[(f64, f64)], part: f64) -> Option<f64> {
    let earlier = |bound: f64| before.iter().find(|(b, _)| *b == bound).map_or(0.0, |(_, c)| *c);
    let counts: Vec<(f64, f64)> = after.iter().map(|(b, c)| (*b, c - earlier(*b))).collect();
    let all = counts.last()?.1;
    if all <= 0.0 {
        return None;
    }
    counts.iter().find(|(_, count)| *count >= all * part).map(|(bound, _)| *bound)
}

/// CPU seconds of a process, user and system.
pub fn cpu_seconds(id: u32) -> f64 {
    ticks(&id.to_string(), 11)
}

/// CPU seconds of the processes that this one has started and that have ended.
pub fn cpu_seconds_of_ended() -> f64 {
    ticks("self", 13)
}

/// Two fields of a process's times, in seconds.
fn ticks(process: &str, first: usize) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name, in parentheses, may have spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = fields.split_whitespace().skip(first).take(2);
    ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// The peak memory of a process, in MiB.
pub fn peak_memory(id: u32) -> f64 {
    memory_of(id, "VmHWM:")
}

/// The resident memory of a process, in MiB.
pub fn memory(id: u32) -> f64 {
    memory_of(id, "VmRSS:")
}

/// The number of lines of a log.
pub fn log_lines(log: &Path) -> f64 {
    let text = std::fs::read(log).unwrap_or_default();
    text.iter().filter(|byte| **byte == b'\n').count() as f64
}

fn memory_of(id: u32, field: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kb = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kb.unwrap_or(0.0) / 1024.0
}

/// A time in milliseconds.
pub fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
