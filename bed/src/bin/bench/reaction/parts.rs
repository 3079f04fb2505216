//! What makes up the time from a step to a write.

use super::cases::{CASES, Case, FACTOR, PODS, REPLICAS, SIDES};
use crate::world::{RATE, World};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The sync period of both sides, in seconds.
const PERIOD: f64 = 15.0;
/// The tolerance of both, by which the ratio of the load to its target may be off.
const TOLERANCE: f64 = 0.1;

/// The parts of one step, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// Until a scrape has seen it.
    pub scrape: f64,
    /// Until the rate over the window asks for all replicas.
    pub window: f64,
    /// Until the decision begins.
    pub period: f64,
    /// The decision, with its query and its write.
    pub decision: f64,
    /// Until the first replicas are written.
    pub first: f64,
}

impl Parts {
    /// The parts of a step at a time, by what Prometheus has recorded; none if the scale did not follow.
    pub async fn of(
        world: &World,
        app: usize,
        case: Case,
        stepped: f64,
        writes: &[(f64, i64)],
        decision: f64,
    ) -> Option<Self> {
        let later = writes.iter().filter(|(at, _)| *at > stepped);
        let first = later.clone().find(|(_, replicas)| *replicas > PODS as i64)?.0 - stepped;
        let all = later.clone().find(|(_, replicas)| *replicas >= REPLICAS)?.0 - stepped;
        let labels = format!("app=\"app-{app}\",job=\"every-{}s\"", case.scrape);
        let (from, to) = (stepped - 20.0, stepped + 2.0 * case.window as f64 + 30.0);
        let raw = [
            (
                "query",
                format!(
                    "http_requests_total{{{labels},pod=\"app-{app}-0\"}}[{}s]",
                    (to - from).ceil()
                ),
            ),
            ("time", to.to_string()),
        ];
        let scrape = time_of(&ask(world, "query", &raw).await, |at, _| at > stepped)? - stepped;
        let query = format!("avg(rate(http_requests_total{{{labels}}}[{}s]))", case.window);
        let range = [
            ("query", query),
            ("start", from.to_string()),
            ("end", to.to_string()),
            ("step", "0.1".to_owned()),
        ];
        let wanted = (REPLICAS - 1) as f64 / PODS as f64 * RATE as f64;
        let rates = ask(world, "query_range", &range).await;
        let visible = time_of(&rates, |at, rate| at > stepped && rate > wanted)? - stepped;
        let scrape = scrape.min(visible);
        let period = (all - visible - decision).max(0.0);
        Some(Self { scrape, window: visible - scrape, period, decision, first })
    }
}

/// When a value of the only series is the first for which a condition holds.
fn time_of(series: &[Value], is: impl Fn(f64, f64) -> bool) -> Option<f64> {
    let values = series.first()?["values"].as_array()?;
    let pair = |pair: &Value| Some((pair[0].as_f64()?, pair[1].as_str()?.parse().ok()?));
    values.iter().filter_map(pair).find(|(at, value)| is(*at, *value)).map(|(at, _)| at)
}

/// The means over the steps of a case and a side.
#[derive(Clone, Copy, Debug)]
pub struct Reaction {
    pub mean: Parts,
    /// Until all replicas are written, of the slowest step.
    pub worst: f64,
    pub steps: usize,
}

impl Reaction {
    pub fn of(steps: &[Parts]) -> Self {
        assert!(!steps.is_empty(), "no step has reached its scale");
        let mean =
            |of: fn(&Parts) -> f64| steps.iter().map(of).sum::<f64>() / steps.len().max(1) as f64;
        Self {
            mean: Parts {
                scrape: mean(|parts| parts.scrape),
                window: mean(|parts| parts.window),
                period: mean(|parts| parts.period),
                decision: mean(|parts| parts.decision),
                first: mean(|parts| parts.first),
            },
            worst: steps.iter().map(Parts::all).fold(0.0, f64::max),
            steps: steps.len(),
        }
    }

    /// What is to be expected of a step at any time. The rate is that of the last scrapes within the window,
    /// which span the window less one interval, and its share of the step is the share of that which they are
    /// later than the step.
    pub fn expected(case: Case) -> Self {
        let [interval, window] = [case.scrape, case.window].map(|seconds| seconds as f64);
        let until = |rise: f64| rise / (FACTOR - 1.0) * (window - interval);
        let all = until((REPLICAS - 1) as f64 / PODS as f64 - 1.0);
        let first = interval / 2.0 + until(TOLERANCE) + PERIOD / 2.0;
        let (scrape, period) = (interval / 2.0, PERIOD / 2.0);
        let mean = Parts { scrape, window: all, period, decision: 0.0, first };
        Self { mean, worst: interval + all + PERIOD, steps: 0 }
    }
}

impl Parts {
    /// Until all replicas are written.
    pub fn all(&self) -> f64 {
        self.scrape + self.window + self.period + self.decision
    }
}

/// The rows of a case: what is to be expected, and each side.
pub fn rows(
    reactions: &BTreeMap<(Case, &'static str), Reaction>,
) -> impl Iterator<Item = (Case, &'static str, Reaction)> {
    CASES.into_iter().flat_map(|case| {
        let expected = ("expected", Reaction::expected(case));
        let measured = SIDES.map(|side| (side, reactions[&(case, side)]));
        std::iter::once(expected).chain(measured).map(move |(of, reaction)| (case, of, reaction))
    })
}

/// Prints a table, and a line of JSON.
pub fn print(reactions: &BTreeMap<(Case, &'static str), Reaction>, steps: usize) {
    println!(
        "\n{steps} steps each, means in seconds\n\n\
         | scrapes every | window | | steps | scrape | window | period | decision | all replicas | worst | first replicas |\n\
         |---|---|---|---|---|---|---|---|---|---|---|"
    );
    let mut figures = Vec::new();
    for (case, of, Reaction { mean, worst, steps }) in rows(reactions) {
        println!(
            "| {} s | {} s | {of} | {steps} | {:.1} | {:.1} | {:.1} | {:.3} | {:.1} | {worst:.1} | {:.1} |",
            case.scrape,
            case.window,
            mean.scrape,
            mean.window,
            mean.period,
            mean.decision,
            mean.all(),
            mean.first
        );
        figures
            .push(json!({"scrape": case.scrape, "window": case.window, "of": of, "steps": steps,
            "all": mean.all(), "first": mean.first}));
    }
    println!("bench-reaction: {}", Value::from(figures));
}

/// The result of a query of Prometheus.
async fn ask(world: &World, path: &str, parameters: &[(&str, String)]) -> Vec<Value> {
    let url = format!("http://127.0.0.1:{}/api/v1/{path}", world.cluster.prometheus_port);
    let response = reqwest::Client::new().post(url).form(parameters).send().await;
    let text = response.expect("Prometheus answers").text().await.expect("a body");
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    answer["data"]["result"].as_array().cloned().unwrap_or_else(|| panic!("{answer}"))
}
