//! What a small fleet costs, in counts: a busy machine changes times, and these little. Of Plimsoll
//! alone, on several mixes of metrics, over a number of decisions and not for a time.

use crate::bounds::{self, Count, Slack};
use crate::kernels;
use crate::load;
use crate::measure::{MOST_FAILED, Meter, samples, sum};
use crate::mixed;
use crate::round::show_progress;
use crate::sides;
use crate::world::{MetricChoice, Size, World};
use futures::{StreamExt, stream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const SIZE: Size = Size { autoscalers: 100, pods: 10 };
/// Rounds before the first that counts, after those in which it settles.
const WARM_UP: usize = 1;
const ROUNDS: usize = 4;
/// The relative noise of the rate of a pod: values change from round to round.
const NOISE: f64 = 0.05;
/// Four scrapes, which are there before the first round that counts.
const WINDOW: &str = "[20s]";

/// The mix whose metric the API serves, too.
const ONE: &str = "1 metric";
/// The names of all of them, for the rules.
const ALL_NAMES: &str = "http_requests|one_of_ten_.*|own_.*|split_.*";
/// The mixes: 100 label values of one metric, ten values of each of ten metrics, and queries that
/// differ in more than labels.
const MIXES: [(&str, MetricChoice); 3] = [
    (
        "100 metrics",
        MetricChoice { metric: |app| format!("own_{app}_total"), ..MetricChoice::OWN_LABEL },
    ),
    (
        "10 metrics",
        MetricChoice {
            metric: |app| format!("one_of_ten_{}_total", app % 10),
            ..MetricChoice::OWN_LABEL
        },
    ),
    (ONE, MetricChoice::OWN_LABEL),
];

/// The mix of `make bench-mixed`.
const MIXED: &str = "mixed metrics";
const FLAGS: [&str; 4] = [
    "--native-hpas=ignore",
    // At 100 autoscalers it is long enough on a busy machine.
    "--horizontal-pod-autoscaler-sync-period=2s",
    // Neither are numbers that move a reason to write a status, nor a late scrape to change a scale.
    "--status-interval=1h",
    "--horizontal-pod-autoscaler-tolerance=0.9",
];

/// Counts, and compares with the bounds.
pub async fn run() -> ExitCode {
    let begun = Instant::now();
    let mut counts = kernels::counts();
    show_progress("counting instructions");
    counts.extend(kernels::instructions());
    let mut world = World::scraped(SIZE, true, NOISE, &[("pods", 5)]).await;
    world.make_autoscalers().await;
    world.fill(WINDOW).await;
    let config = format!("{}{}", sides::rules(ALL_NAMES), sides::AUTOSCALER_CONFIG);
    let config = config.replace("[1m]", WINDOW);
    for (name, metrics) in MIXES {
        world.set_metrics(metrics).await;
        show_progress(&format!("counting with {name}"));
        let running = sides::start_with(&world, &config, &FLAGS);
        let meter = Meter::new(&world, Some(&running));
        counts.extend(rounds(&world, &meter, name).await);
        if name == ONE {
            counts.extend(gets(&world, &meter).await);
        }
    }
    drop(world);
    let mut world = World::without_workloads(SIZE).await;
    world.make_workloads().await;
    show_progress(&format!("counting with {MIXED}"));
    let running = mixed::start_in_small(&mut world, &FLAGS).await;
    let counted = rounds(&world, &Meter::new(&world, Some(&running)), MIXED).await;
    // The window of CPU fills meanwhile, so that each round reads more samples.
    counts.extend(counted.into_iter().filter(|count| !count.name.contains("samples")));
    show_progress(&format!("counted within {} s", begun.elapsed().as_secs()));
    bounds::check(&counts)
}

/// The start, and some rounds after it.
async fn rounds(world: &World, meter: &Meter<'_>, name: &str) -> Vec<Count> {
    meter.wait_settled().await;
    let of = |what: &str, measured: f64, share: f64, more: f64| Count {
        name: format!("{name}: {what}"),
        measured,
        slack: Slack { share, more },
    };
    let started = read(meter, world).await;
    let before = after(meter, world, &started, WARM_UP).await;
    let mut now = after(meter, world, &before, 1).await;
    let mut fewest = now.queries - before.queries;
    for _ in 1..ROUNDS {
        let next = after(meter, world, &now, 1).await;
        fewest = fewest.min(next.queries - now.queries);
        now = next;
    }
    let a_round = |figure: fn(&Reading) -> f64| {
        let rounds = (now.decisions - before.decisions) / SIZE.autoscalers as f64;
        (figure(&now) - figure(&before)) / rounds
    };
    let (failed, decisions) = (now.failed - before.failed, now.decisions - before.decisions);
    assert!(failed <= MOST_FAILED * decisions, "{failed} of {decisions} decisions failed");
    print_api_requests(&before, &now);
    // On a busy machine a round may be one batch more, as evaluations begin one after the other, and fewer queries
    // share a request, as each seems to take longer: hardly in each of four.
    vec![
        of("API server requests until it is settled", started.api, 0.1, 10.0),
        of("Prometheus requests of the round with the fewest", fewest, 0.3, -0.3),
        of("response bytes a round", a_round(|r| r.bytes), 0.5, 0.0),
        of("samples that Prometheus reads a round", a_round(|r| r.samples), 0.5, 0.0),
        of("API server requests a round", a_round(|r| r.api), 0.0, 1.0),
        of("status writes a round", a_round(|r| r.statuses), 0.0, 1.0),
    ]
}

/// The counters of a moment.
struct Reading {
    text: String,
    decisions: f64,
    failed: f64,
    queries: f64,
    bytes: f64,
    samples: f64,
    api: f64,
    statuses: f64,
}

async fn read(meter: &Meter<'_>, world: &World) -> Reading {
    let text = meter.side_metrics().await;
    let url = format!("http://127.0.0.1:{}/metrics", world.cluster.prometheus_port);
    let prometheus = reqwest::get(url).await.expect("metrics").text().await.expect("metrics");
    Reading {
        decisions: sum(&text, "plimsoll_decisions_total", ""),
        failed: sum(&text, "plimsoll_decisions_total", "outcome=\"failed\""),
        queries: sum(&text, "plimsoll_prometheus_requests_total", ""),
        bytes: sum(&text, "plimsoll_prometheus_response_bytes_sum", ""),
        samples: sum(&prometheus, "prometheus_engine_query_samples_total", ""),
        api: samples(&text, "plimsoll_kube_requests_total")
            .filter(|(labels, _)| is_counted(labels))
            .map(|(_, count)| count)
            .sum(),
        statuses: sum(&text, "plimsoll_kube_requests_total", "resource=\"autoscalers/status\""),
        text,
    }
}

/// Whether a request to the API server is none that a clock sets off: the Lease is read every two seconds.
fn is_counted(labels: &str) -> bool {
    !labels.contains("resource=\"leases\"")
}

/// Prints which requests the API server had in between, as none are needed.
fn print_api_requests(before: &Reading, now: &Reading) {
    for (labels, count) in samples(&now.text, "plimsoll_kube_requests_total") {
        let more = count - sum(&before.text, "plimsoll_kube_requests_total", labels);
        if more > 0.0 && is_counted(labels) {
            show_progress(&format!("  API server: {more} requests {labels}"));
        }
    }
}

/// The counters after this many more rounds.
async fn after(meter: &Meter<'_>, world: &World, from: &Reading, rounds: usize) -> Reading {
    let start = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = read(meter, world).await;
        if now.decisions >= from.decisions + (rounds * SIZE.autoscalers) as f64 {
            return now;
        }
        assert!(start.elapsed() < Duration::from_secs(120), "too few decisions are made");
    }
}

/// A GET by selector for each workload, 16 at a time.
async fn gets(world: &World, meter: &Meter<'_>) -> [Count; 2] {
    let client = load::client(world);
    let get = async |app: usize| {
        let path = sides::path_of_selector(app);
        let response = client.get(format!("https://127.0.0.1:{}{path}", world.adapter_port)).send();
        let response = response.await.expect("a response").error_for_status().expect("values");
        response.bytes().await.expect("a body").len()
    };
    let before = read(meter, world).await;
    let lengths = stream::iter((0..SIZE.autoscalers).map(get)).buffer_unordered(16);
    let bytes: usize = lengths.collect::<Vec<usize>>().await.into_iter().sum();
    let now = read(meter, world).await;
    [
        // A batch for each few requests until the sizes are known, and those of the rounds meanwhile.
        Count {
            name: format!("{ONE}: Prometheus requests of 100 GETs by selector"),
            measured: now.queries - before.queries,
            slack: Slack { share: 0.0, more: 20.0 },
        },
        Count {
            name: format!("{ONE}: bytes of 100 GETs by selector"),
            measured: bytes as f64,
            slack: Slack { share: 0.05, more: 0.0 },
        },
    ]
}
