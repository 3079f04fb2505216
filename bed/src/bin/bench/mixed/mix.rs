//! The mix of metrics of the fleet, and what a seed draws from it.

use crate::world::{Size, namespace};
use bed::random::Random;
use serde_json::{Value, json};

/// What a metric is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The rate of a counter of each pod.
    Counter,
    /// A gauge of each pod.
    Gauge,
    /// The 0.9 quantile over a histogram of each pod.
    Quantile,
    /// The ratio of the rates of two counters of each pod.
    Ratio,
    /// The result of a recording rule for each pod.
    Recorded,
    /// The rate of a counter over all pods of the workload.
    Total,
    /// CPU usage by `resourceRules`.
    Cpu,
    /// Memory usage by `resourceRules`.
    Memory,
}

/// A row of the mix.
pub struct Share {
    pub kind: Kind,
    /// Of the autoscalers, in percent.
    pub percent: usize,
    /// The number of names that autoscalers draw from.
    pub names: usize,
    /// Whether autoscalers draw a window, too.
    pub windows: bool,
    /// How the sides with HPAs (Plimsoll, and prometheus-adapter with kube-controller-manager), KEDA,
    /// and Plimsoll with Autoscalers have it.
    pub hpa: &'static str,
    pub keda: &'static str,
    pub autoscaler: &'static str,
}

/// The mix: all percents and all names.
pub const MIX: [Share; 8] = [
    Share {
        kind: Kind::Counter,
        percent: 50,
        names: 100,
        windows: true,
        hpa: "`Pods`: sum of rate by pod",
        keda: "sum of rate, `AverageValue`",
        autoscaler: "`query` by pod",
    },
    Share {
        kind: Kind::Gauge,
        percent: 12,
        names: 30,
        windows: false,
        hpa: "`Pods`: sum by pod",
        keda: "sum, `AverageValue`",
        autoscaler: "`query` by pod",
    },
    Share {
        kind: Kind::Quantile,
        percent: 8,
        names: 20,
        windows: true,
        hpa: "`Pods`: quantile 0.9 by pod",
        keda: "quantile 0.9 of the workload, `Value`",
        autoscaler: "`query` by pod",
    },
    Share {
        kind: Kind::Ratio,
        percent: 7,
        names: 16,
        windows: true,
        hpa: "`Pods`: ratio of rates by pod",
        keda: "ratio of the workload, `Value`",
        autoscaler: "`query` by pod",
    },
    Share {
        kind: Kind::Recorded,
        percent: 6,
        names: 14,
        windows: true,
        hpa: "`Pods`: the recorded series by pod",
        keda: "sum of the recorded series, `AverageValue`",
        autoscaler: "`query` by pod",
    },
    Share {
        kind: Kind::Total,
        percent: 7,
        names: 18,
        windows: true,
        hpa: "`External`: sum of rate, `AverageValue`",
        keda: "sum of rate, `AverageValue`",
        autoscaler: "`query`, `per: Workload`",
    },
    Share {
        kind: Kind::Cpu,
        percent: 7,
        names: 1,
        windows: false,
        hpa: "`Resource`: utilization, by `resourceRules`",
        keda: "sum of rate of cAdvisor's series, `AverageValue`",
        autoscaler: "`Resource`, by `resourceRules`",
    },
    Share {
        kind: Kind::Memory,
        percent: 3,
        names: 1,
        windows: false,
        hpa: "`Resource`: average, by `resourceRules`",
        keda: "sum of cAdvisor's series, `AverageValue`",
        autoscaler: "`Resource`, by `resourceRules`",
    },
];

/// A window, its seconds, and the percent of the autoscalers with a window that have it.
pub type Window = (&'static str, u32, usize);

pub const WINDOWS: [Window; 5] =
    [("30s", 30, 10), ("1m", 60, 35), ("2m", 120, 25), ("5m", 300, 20), ("10m", 600, 10)];

/// The window of CPU usage, which is one for all.
pub const CPU_WINDOW: &str = "2m";
const CPU_WINDOW_SECONDS: u32 = 120;

/// The rate of counters, the value of gauges, and the target of both.
pub const LOAD: f64 = 10.0;
/// The longest duration of a histogram, and its 0.9 quantile.
const LONGEST_SECONDS: f64 = 0.5;
pub const QUANTILE: f64 = 0.45;
/// The ratio, of two counters of seconds.
pub const RATIO: f64 = 0.5;
/// The CPU and memory that a container uses: half of the CPU that it requests.
pub const CPU: f64 = 0.05;
pub const MEMORY: f64 = 209_715_200.0;

/// The relative noise of a value, from scrape to scrape: over ten pods, well below the tolerance of
/// an autoscaler, so that a steady load is not scaled.
const NOISE: f64 = 0.08;
const SCRAPE_SECONDS: u32 = 5;

/// An autoscaler: what it was dealt of the mix.
#[derive(Clone, Debug)]
pub struct App {
    pub number: usize,
    pub kind: Kind,
    /// The number of its metric's name.
    pub metric: usize,
    pub window: Option<Window>,
}

impl App {
    pub fn name(&self) -> String {
        format!("app-{}", self.number)
    }

    pub fn namespace(&self) -> String {
        namespace(self.number)
    }

    /// Its window, as PromQL has it; empty without one.
    pub fn window(&self) -> &'static str {
        self.window.map_or("", |(text, ..)| text)
    }

    /// What its pods expose.
    fn series(&self) -> Vec<Value> {
        let (metric, app) = (self.metric, format!("app=\"{}\"", self.name()));
        let past = self.window.map_or(0, |(_, seconds, _)| seconds + SCRAPE_SECONDS);
        let own = |name: String, kind: &str, value: f64, load: bool| {
            json!({"name": name, "labels": app, "kind": kind,
            "value": value, "load": load, "past": past})
        };
        let mut series = match self.kind {
            Kind::Counter => vec![own(format!("requests_{metric}_total"), "counter", LOAD, true)],
            Kind::Gauge => vec![own(format!("in_flight_{metric}"), "gauge", LOAD, true)],
            Kind::Quantile => {
                vec![own(format!("latency_{metric}_seconds"), "histogram", LONGEST_SECONDS, true)]
            }
            Kind::Ratio => vec![
                own(format!("busy_{metric}_seconds_total"), "counter", RATIO, true),
                own(format!("worker_{metric}_seconds_total"), "counter", 1.0, false),
            ],
            Kind::Recorded => vec![own(format!("calls_{metric}_total"), "counter", LOAD, true)],
            Kind::Total => vec![own(format!("jobs_{metric}_total"), "counter", LOAD, true)],
            Kind::Cpu | Kind::Memory => Vec::new(),
        };
        // All pods have cAdvisor's.
        let past = if self.kind == Kind::Cpu { CPU_WINDOW_SECONDS + SCRAPE_SECONDS } else { 0 };
        let usage = |name: &str, kind: &str, value: f64, of: Kind, past: u32| {
            json!({"name": name,
            "labels": "container=\"app\"", "kind": kind, "value": value, "load": self.kind == of, "past": past})
        };
        series.push(usage("container_cpu_usage_seconds_total", "counter", CPU, Kind::Cpu, past));
        series.push(usage("container_memory_working_set_bytes", "gauge", MEMORY, Kind::Memory, 0));
        series
    }
}

/// Deals the mix to autoscalers: as many of each kind as the table says; which, and with which metric
/// and window, is drawn.
pub fn deal(autoscalers: usize, seed: u64) -> Vec<App> {
    let mut random = Random(seed);
    let mut kinds: Vec<&Share> = Vec::new();
    for share in &MIX {
        kinds.extend(std::iter::repeat_n(share, autoscalers * share.percent / 100));
    }
    kinds.resize(autoscalers, &MIX[0]);
    for last in (1..kinds.len()).rev() {
        kinds.swap(last, random.below(last + 1));
    }
    let app = |(number, share): (usize, &Share)| {
        let metric = random.below(share.names);
        let window = share.windows.then(|| draw_window(&mut random));
        App { number, kind: share.kind, metric, window }
    };
    kinds.into_iter().enumerate().map(app).collect()
}

fn draw_window(random: &mut Random) -> Window {
    let mut percent = random.below(100);
    for window in WINDOWS {
        match percent.checked_sub(window.2) {
            Some(left) => percent = left,
            None => return window,
        }
    }
    WINDOWS[0]
}

/// The mix as `fleet mixed` reads it.
pub fn exposed(size: Size, apps: &[App]) -> Value {
    let app = |app: &App| json!({"namespace": app.namespace(), "name": app.name(), "series": app.series()});
    json!({"pods": size.pods, "noise": NOISE, "step": SCRAPE_SECONDS,
        "apps": apps.iter().map(app).collect::<Vec<_>>()})
}

/// How many different metrics with their windows the autoscalers have.
pub fn distinct(apps: &[App]) -> usize {
    let all = apps.iter().map(|app| (app.kind, app.metric, app.window()));
    all.collect::<std::collections::BTreeSet<_>>().len()
}

/// Prints the table of the mix, as docs/growth.md has it.
pub fn print() {
    println!(
        "\n| metric | autoscalers | names | windows | HPA: Plimsoll, prometheus-adapter | KEDA: Prometheus triggers | Autoscaler |\n\
         |---|---|---|---|---|---|---|"
    );
    for share in &MIX {
        let windows = match share.kind {
            Kind::Cpu => CPU_WINDOW,
            _ if share.windows => "drawn",
            _ => "none",
        };
        println!(
            "| {} | {} % | {} | {windows} | {} | {} | {} |",
            share.kind.name(),
            share.percent,
            share.names,
            share.hpa,
            share.keda,
            share.autoscaler
        );
    }
    let windows = WINDOWS.map(|(text, _, percent)| format!("{text} {percent} %"));
    println!("\nWindows: {}.", windows.join(", "));
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "rate of a counter by pod",
            Self::Gauge => "gauge by pod",
            Self::Quantile => "quantile over a histogram by pod",
            Self::Ratio => "ratio of two counters by pod",
            Self::Recorded => "recording rule by pod",
            Self::Total => "total of the workload",
            Self::Cpu => "CPU",
            Self::Memory => "memory",
        }
    }
}
