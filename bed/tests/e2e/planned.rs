//! The planner on a real Prometheus: queries in a batch have exactly the
//! values, labels, times and errors that they have by themselves.

use crate::rows::{Asked, rows_of, single};
use crate::{joined, runtime};
use axum::Router;
use axum::routing::get;
use bed::process::Process;
use bed::random::Random;
use bed::{eventually, free_port, parts};
use futures::future::join_all;
use plimsoll::prometheus::{Client, Options};
use plimsoll::promql::cost::{Estimates, Limits};
use plimsoll::promql::functions::each_series;
use plimsoll::promql::matcher::Matcher;
use plimsoll::promql::plan::{PlanInput, PlannedQuery, plan};
use plimsoll::promql::query::{fields, times};
use plimsoll::promql::shape::{Arguments, ShapedQuery};
use plimsoll::promql::template::Template;
use plimsoll::replica::BackgroundTasks;
use plimsoll::samples::{Caller, Store};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// The number of random batches.
const TRIALS: usize = 500;

const LABELS: [(&str, &[&str]); 4] = [
    ("namespace", &["shop", "bank", "a.b"]),
    ("pod", &["p-1", "p-2", "p.2", "q|r"]),
    ("app", &["web", "api", "we\"ird", "a|b", "é\\", ""]),
    ("code", &["200", "500"]),
];
const NUMBERS: [&str; 8] = ["1", "2.5", "0.1", "0.2", "-3", "1e9", "NaN", "+Inf"];

/// The metrics of the target: gauges x and y, counter c and histogram h.
fn exposition(seed: u64, scrape: u64, time: u128) -> String {
    let mut random = Random(seed);
    let mut text = String::new();
    for name in ["x", "y", "c", "h_bucket"] {
        let mut seen = BTreeSet::new();
        for _ in 0..90 {
            let mut labels = String::new();
            for (label, values) in LABELS {
                let value = random.one_of(values);
                if !value.is_empty() {
                    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
                    let _ = write!(labels, "{label}=\"{value}\",");
                }
            }
            let bound = random.one_of(&["0.1", "1", "+Inf"]);
            let number = random.one_of(&NUMBERS);
            let step = random.below(9) as u64;
            if name == "h_bucket" {
                let _ = write!(labels, "le=\"{bound}\",");
            }
            if !seen.insert(labels.clone()) {
                continue;
            }
            let value = match name {
                "c" | "h_bucket" => (step * scrape).to_string(),
                _ => number.to_owned(),
            };
            let _ = writeln!(text, "{name}{{{labels}}} {value} {time}");
        }
    }
    for n in 0..NODES {
        for mode in ["idle", "user"] {
            let _ = writeln!(text, "w{{node=\"node-{n}\",mode=\"{mode}\"}} {n}.5 {time}");
        }
    }
    for n in 0..DEPLOYMENTS {
        for pod in 0..2 {
            let labels = format!(
                r#""k8s.deployment.name"="web-{n}","k8s.pod.name"="web-{n}-{pod}","quo\"te"="{pod}""#
            );
            let _ = writeln!(text, "{{\"http.requests\",{labels}}} {n}.25 {time}");
        }
    }
    text
}

/// More values of one label than a query may name.
const NODES: usize = 1_100;
/// So many values that the label is left unmatched.
const DEPLOYMENTS: usize = 80;

/// The plan for all of these at once.
fn planned(queries: &[Arc<str>]) -> Vec<PlannedQuery> {
    let shaped: Vec<ShapedQuery> = queries.iter().map(|query| ShapedQuery::of(query)).collect();
    let shape = &shaped[0].shape;
    assert!(shaped.iter().all(|query| query.shape == *shape), "{queries:?}");
    let pending: BTreeSet<Arguments> = shaped.iter().map(|query| query.arguments.clone()).collect();
    let input = PlanInput { pending: &pending, expected: &BTreeSet::new(), recent: &pending };
    plan(shape, input, Estimates::default(), Limits::default())
}

/// Sends all at once, and some of them by themselves.
async fn compare(prometheus: &Client, store: &Store, queries: &[Arc<str>]) {
    let caller = Caller::of("shop");
    let results = join_all(queries.iter().map(|query| store.series(query, &caller))).await;
    for (n, (query, batched)) in queries.iter().zip(results).enumerate() {
        let rows = rows_of(&batched.unwrap_or_else(|error| panic!("{query}: {error}")));
        assert!(!rows.is_empty(), "{query}");
        if n % 25 == 0 {
            assert_eq!(rows, single(prometheus, query).await.expect("an answer"), "{query}");
        }
    }
}

/// Queries for each way of planning.
async fn try_each_way(url: &str, prometheus: &Client, at: &str) {
    let of = |count: usize, query: &dyn Fn(usize) -> String| -> Vec<Arc<str>> {
        (0..count).map(|n| query(n).replace("@ T", at).into()).collect()
    };
    let background = BackgroundTasks::default();
    let store = |client: &Client| Store::new(client.clone(), Duration::ZERO, background.spawner());

    // Unfiltered: a label with many values is not matched at all.
    let unfiltered =
        of(500, &|n| format!(r#"sum by (node) (w{{mode!="idle",node="node-{n}"}} @ T)"#));
    let [only] = &planned(&unfiltered)[..] else { panic!("more than one query") };
    assert_eq!(only.query, format!(r#"sum by (node) (w{{mode!="idle"}} {at})"#));
    compare(prometheus, &store(prometheus), &unfiltered).await;
    let bare = of(100, &|n| format!(r#"w{{node="node-{n}"}} @ T"#));
    assert_eq!(planned(&bare)[0].query, format!("w {at}"));
    compare(prometheus, &store(prometheus), &bare).await;

    // In chunks: a selector without a name always names values, at most 255 each.
    let chunks = of(NODES, &|n| format!(r#"{{mode!="",node="node-{n}"}} @ T"#));
    let planned_chunks = planned(&chunks);
    assert!(planned_chunks.len() == 5, "{planned_chunks:?}");
    assert!(planned_chunks.iter().all(|chunk| chunk.query.contains("node=~")));
    compare(prometheus, &store(prometheus), &chunks).await;

    // Split: a batch whose response is too large is halved until it is not.
    let small = Client::new(Options { max_response_bytes: 20_000, ..Options::new(url) });
    compare(prometheus, &store(&small.expect("a client")), &unfiltered).await;

    // With names in quotes, filtered and unfiltered.
    let quoted = |n: usize| {
        let selector =
            format!(r#"{{"http.requests","k8s.deployment.name"="web-{n}","quo\"te"!="x"}}"#);
        format!(r#"sum by ("k8s.pod.name") ({selector} @ T)"#)
    };
    let few = of(10, &quoted);
    assert!(planned(&few)[0].query.contains(r#""k8s.deployment.name"=~"web-0|web-1|"#));
    compare(prometheus, &store(prometheus), &few).await;
    let many = of(DEPLOYMENTS, &|n| {
        format!(r#"{{"http.requests","k8s.deployment.name"="web-{n}","quo\"te"="0"}} @ T"#)
    });
    let [only] = &planned(&many)[..] else { panic!("more than one query") };
    assert!(only.is_unfiltered() && !only.query.contains("web-1"), "{only:?}");
    compare(prometheus, &store(prometheus), &many).await;
}

/// Query templates; `@ T` fixes their time, so that each has the same values
/// whenever it runs.
const TEMPLATES: &[&str] = &[
    "sum by (<<.GroupBy>>) (<<.Series>>{<<.LabelMatchers>>} @ T)",
    "sum(rate(c{<<.LabelMatchers>>}[10s] @ T)) by (<<.GroupBy>>)",
    "sum(<<.Series>>{<<.LabelMatchers>>} @ T)",
    "avg by (<<.GroupBy>>) (<<.Series>>{<<.LabelMatchers>>} @ T)",
    "max by (<<.GroupBy>>) (max_over_time(<<.Series>>{<<.LabelMatchers>>}[10s] @ T))",
    "count(<<.Series>>{<<.LabelMatchers>>} @ T) by (<<.GroupBy>>)",
    "quantile by (<<.GroupBy>>) (0.5, <<.Series>>{<<.LabelMatchers>>} @ T)",
    "stddev by (<<.GroupBy>>) (<<.Series>>{<<.LabelMatchers>>} @ T)",
    "<<.Series>>{<<.LabelMatchers>>} @ T",
    "-abs(<<.Series>>{<<.LabelMatchers>>} @ T)",
    "sum by (<<.GroupBy>>) (x{<<.LabelMatchers>>} @ T) / sum by (<<.GroupBy>>) (y{<<.LabelMatchers>>} @ T)",
    "sum by (<<.GroupBy>>) (x{<<.LabelMatchers>>} @ T) / on (<<.GroupBy>>) sum by (<<.GroupBy>>) (y{<<.LabelMatchers>>} @ T)",
    "sum by (<<.GroupBy>>) (x{<<.LabelMatchers>>} @ T) + y{<<.LabelMatchers>>} @ T",
    "x{<<.LabelMatchers>>} @ T / on (pod) y{<<.LabelMatchers>>} @ T",
    "x{<<.LabelMatchers>>} @ T / on (pod, code) sum by (pod, code) (y{<<.LabelMatchers>>} @ T)",
    "x{<<.LabelMatchers>>} @ T * on (pod) group_left () sum by (pod) (y{<<.LabelMatchers>>} @ T)",
    "x{<<.LabelMatchers>>} @ T - ignoring (code) y{<<.LabelMatchers>>} @ T",
    "sum by (<<.GroupBy>>) (x{<<.LabelMatchers>>} @ T) or sum by (<<.GroupBy>>) (y{<<.LabelMatchers>>} @ T)",
    "sum by (<<.GroupBy>>) (x{<<.LabelMatchers>>} @ T) or y{<<.LabelMatchers>>} @ T",
    "sum by (pod) (x{<<.LabelMatchers>>} @ T) or -x{<<.LabelMatchers>>} @ T",
    "sum by (<<.GroupBy>>) (x{<<.LabelMatchers>>} @ T) unless sum by (<<.GroupBy>>) (y{<<.LabelMatchers>>} @ T)",
    "x{<<.LabelMatchers>>} @ T and on (pod) y{<<.LabelMatchers>>} @ T",
    "x{<<.LabelMatchers>>} @ T or on (pod) y{<<.LabelMatchers>>} @ T",
    "sum without (code) (x{<<.LabelMatchers>>} @ T)",
    "sum without (app, namespace) (x{<<.LabelMatchers>>} @ T)",
    "sum by (<<.GroupBy>>) (sum without (code) (x{<<.LabelMatchers>>} @ T))",
    "sum by (<<.GroupBy>>) (sum by (pod) (x{<<.LabelMatchers>>} @ T))",
    "topk(2, x{<<.LabelMatchers>>} @ T)",
    "sum by (<<.GroupBy>>) (x{<<.LabelMatchers>>} @ T) > 5",
    "5 > bool sum by (<<.GroupBy>>) (x{<<.LabelMatchers>>} @ T)",
    "absent(x{<<.LabelMatchers>>} @ T)",
    "sum by (<<.GroupBy>>) (x{<<.LabelMatchers>>} @ T) or vector(7)",
    "vector(scalar(sum(x{<<.LabelMatchers>>} @ T)))",
    "scalar(sum(x{<<.LabelMatchers>>} @ T))",
    "label_replace(x{<<.LabelMatchers>>} @ T, \"app\", \"z\", \"\", \"\")",
    "label_replace(x{<<.LabelMatchers>>} @ T, \"new\", \"$1\", \"pod\", \"(.*)-.*\")",
    "label_replace(sum by (<<.GroupBy>>) (x{<<.LabelMatchers>>} @ T), \"new\", \"1\", \"\", \"\")",
    "label_join(x{<<.LabelMatchers>>} @ T, \"new\", \"-\", \"app\", \"code\")",
    "histogram_quantile(0.9, sum by (le, pod) (rate(h_bucket{<<.LabelMatchers>>}[10s] @ T)))",
    "max_over_time(sum by (<<.GroupBy>>) (x{<<.LabelMatchers>>})[10s:1s] @ T)",
    "count_values(\"v\", x{<<.LabelMatchers>>} @ T)",
    "sum by (<<.GroupBy>>) (x{<<.LabelMatchers>>} @ T) / sum by (<<.GroupBy>>) (x{namespace=\"shop\"} @ T)",
    "sum by (<<.GroupBy>>) ({__name__=~\"x|y\",<<.LabelMatchers>>} @ T)",
    "no query at all <<.LabelMatchers>>",
];

/// A template with a function that computes each series from one.
fn template_of(function: &str) -> String {
    let instant = "<<.Series>>{<<.LabelMatchers>>} @ T";
    let range = "<<.Series>>{<<.LabelMatchers>>}[10s] @ T";
    match function {
        "clamp" => format!("clamp({instant}, 1, 5)"),
        "clamp_max" | "clamp_min" => format!("{function}({instant}, 2)"),
        // It depends on the time of its evaluation, whatever `@` says; a subquery fixes that.
        "predict_linear" => {
            format!("last_over_time(predict_linear({range}, 60)[5s:5s] @ T)")
        }
        "quantile_over_time" => format!("quantile_over_time(0.9, {range})"),
        "changes" | "delta" | "deriv" | "idelta" | "increase" | "irate" | "rate" | "resets" => {
            format!("{function}({range})")
        }
        over_time if over_time.ends_with("_over_time") => format!("{over_time}({range})"),
        other => format!("{other}({instant})"),
    }
}

/// A random matcher for a label.
fn matcher(random: &mut Random, values: &[&str]) -> Matcher {
    let value = random.one_of(values).to_owned();
    let another = random.one_of(values).to_owned();
    match random.below(12) {
        0 => Matcher::NotEmpty,
        1 => Matcher::IsNot(value),
        2 => Matcher::Empty,
        3 => Matcher::AnyOf(vec![value, another]),
        _ => Matcher::Is(value),
    }
}

/// Functions of native histograms, which a text exposition has none of: they give nothing here.
const NATIVE: &[&str] =
    &["histogram_avg", "histogram_count", "histogram_stddev", "histogram_stdvar", "histogram_sum"];

struct Tried {
    /// The queries, with what they gave by themselves.
    asked: Vec<Asked>,
    queries: usize,
    found: usize,
    failed: usize,
    parameterized: usize,
}

async fn try_all(prometheus: &Client, store: &Store, seed: u64, end: u128) -> Tried {
    let mut tried = Tried { asked: Vec::new(), queries: 0, found: 0, failed: 0, parameterized: 0 };
    let names: Vec<&str> = each_series().collect();
    let functions: Vec<String> = names.iter().copied().map(template_of).collect();
    let mut shown: BTreeSet<&str> = NATIVE.iter().copied().collect();
    let templates: Vec<&str> =
        TEMPLATES.iter().copied().chain(functions.iter().map(String::as_str)).collect();
    for trial in 0..5 * TRIALS {
        let mut random = Random(seed ^ (trial as u64) << 20);
        // Each template once for sure; in the end functions that found nothing yet, such as `acos`,
        // which few numbers have a value of.
        let missing = names.iter().position(|name| !shown.contains(name));
        let place = match missing.map(|function| TEMPLATES.len() + function) {
            _ if trial < templates.len() => trial,
            _ if trial < TRIALS => random.below(templates.len()),
            Some(place) => place,
            None => break,
        };
        let at = format!("@ {}.{:03}", end / 1000, end % 1000);
        let template = Template::parse(&templates[place].replace("@ T", &at)).expect("a template");
        let series = random.one_of(&["x", "y", "c"]);
        let group_by: Vec<String> =
            [&["pod"][..], &["namespace", "pod"], &["app"], &["code", "pod"]][random.below(4)]
                .iter()
                .map(|label| (*label).to_owned())
                .collect();
        let timed = random.below(12) == 0 && place < TEMPLATES.len();
        let chosen = 1 + random.below(14);
        let asks: Vec<Arc<str>> = (0..2 + random.below(9))
            .map(|_| {
                let labels = LABELS.iter().enumerate().filter(|(n, _)| chosen & (1 << n) != 0);
                let matchers: Vec<_> = labels
                    .map(|(_, (label, values))| (*label, matcher(&mut random, values)))
                    .collect();
                let text = template.render(&fields(series, &matchers, &group_by)).expect("a query");
                match timed {
                    // The times at which its series were measured.
                    true => times(series, &matchers, &group_by).expect("good names"),
                    false => text.into(),
                }
            })
            .collect();
        let caller = Caller::of("shop");
        let results = join_all(asks.iter().map(|query| store.series(query, &caller))).await;
        let shaped: Vec<ShapedQuery> = asks.iter().map(|query| ShapedQuery::of(query)).collect();
        let is_batched = |query: &ShapedQuery| {
            let alike = |other: &&ShapedQuery| other.shape == query.shape;
            shaped.iter().filter(alike).any(|other| other.arguments != query.arguments)
        };
        for ((query, of), batched) in asks.iter().zip(&shaped).zip(results) {
            tried.queries += 1;
            tried.parameterized += usize::from(!of.shape.parameters.is_empty());
            let alone = single(prometheus, query).await;
            tried.asked.push((query.clone(), alone.clone()));
            match (alone, batched) {
                (Ok(rows), Ok(samples)) => {
                    tried.found += usize::from(!rows.is_empty());
                    if let Some(function) = place.checked_sub(TEMPLATES.len())
                        && !rows.is_empty()
                        && is_batched(of)
                    {
                        shown.insert(names[function]);
                    }
                    assert_eq!(rows_of(&samples), rows, "trial {trial}, seed {seed}: {query}");
                }
                (Err(_), Err(_)) if place < TEMPLATES.len() => tried.failed += 1,
                (single, batched) => panic!(
                    "trial {trial}, seed {seed}: {query}\n single: {single:?}\n batched: {:?}",
                    batched.map(|samples| rows_of(&samples)).map_err(|e| e.to_string())
                ),
            }
        }
    }
    let never: Vec<_> = names.iter().filter(|name| !shown.contains(*name)).collect();
    assert!(never.is_empty(), "seed {seed}: {never:?} gave nothing in a batch");
    tried
}

#[test]
fn a_batched_query_has_the_same_result_as_unbatched() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    runtime().block_on(async {
        let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
        // A target that exposes the time of its samples, and stops after ten of them.
        let (scrapes, last) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (counted, stopped) = (scrapes.clone(), last.clone());
        let expose = get(async move || {
            let scrape = counted.fetch_add(1, Ordering::SeqCst).min(10);
            if scrape < 10 {
                stopped.store(now() as u64, Ordering::SeqCst);
            }
            exposition(seed, scrape.min(9), stopped.load(Ordering::SeqCst).into())
        });
        let target = Router::new().route("/metrics", expose);
        let (process, url, _folder) = prometheus_of(target, "1s").await;
        eventually("ten scrapes", Duration::from_secs(60), async || {
            match scrapes.load(Ordering::SeqCst) {
                11.. => Ok(()),
                few => Err(format!("{few} so far\n{}", process.tail())),
            }
        })
        .await;

        let prometheus = Client::new(Options::new(&url)).expect("a client");
        let background = BackgroundTasks::default();
        let store = Store::new(prometheus.clone(), Duration::ZERO, background.spawner());
        let end = u128::from(last.load(Ordering::SeqCst));
        let Tried { asked, queries, found, failed, parameterized } =
            try_all(&prometheus, &store, seed, end).await;
        println!(
            "{queries} queries, {parameterized} of them with parameters; {found} found something, {failed} failed alike"
        );
        assert!(parameterized * 2 > queries && found * 4 > queries && failed > 0);
        let at = format!("@ {}.{:03}", end / 1000, end % 1000);
        try_each_way(&url, &prometheus, &at).await;
        joined::compare(&url, &prometheus, asked, seed).await;
        if std::env::var_os("QUERY_COSTS").is_some() {
            measure_costs().await;
        }
    });
}

/// A real Prometheus that scrapes this target; its URL, and the folder of its data.
async fn prometheus_of(target: Router, interval: &str) -> (Process, String, tempfile::TempDir) {
    let job = |address| {
        format!(
            "{{job_name: t, honor_labels: true, static_configs: [{{targets: [\"{address}\"]}}]}}"
        )
    };
    prometheus_with(target, interval, job).await
}

/// The same with the scrape configurations for the address of the target.
pub async fn prometheus_with(
    target: Router,
    interval: &str,
    jobs: impl Fn(SocketAddr) -> String,
) -> (Process, String, tempfile::TempDir) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, target).await });
    let folder = tempfile::tempdir().expect("a folder");
    let parts = tokio::task::spawn_blocking(|| parts(&[])).await.expect("the parts");
    let port = free_port();
    let config = folder.path().join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: {interval}, scrape_timeout: {interval}}}\nscrape_configs: [{}]\n",
        jobs(address)
    );
    std::fs::write(&config, text).expect("a file");
    let arguments = [
        format!("--config.file={}", config.display()),
        format!("--storage.tsdb.path={}", folder.path().join("data").display()),
        format!("--web.listen-address=127.0.0.1:{port}"),
    ];
    let program = parts.join("prometheus");
    let process = Process::start(&parts, folder.path(), false, "prometheus", &program, &arguments);
    (process, format!("http://127.0.0.1:{port}"), folder)
}

/// The CPU time of a process so far, in us, as coarse as the kernel's ticks.
fn cpu(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("a process");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    // utime and stime, in hundredths of a second.
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().expect("a number") * 1e4).sum()
}

/// Measures the costs in `promql/cost.rs`: `make query-costs`. CPU time, so that
/// other processes change little; no assertion, as it is a measurement.
async fn measure_costs() {
    let name = |n: usize| format!("app-{}-7d4f5b6c8-{n:05}", n / 10);
    let series = move |n| format!("m{{namespace=\"ns-{}\",pod=\"{}\"}} {n}\n", n % 10, name(n));
    let text: String = (0..20_000).map(series).collect();
    let target = Router::new().route("/metrics", get(async move || text.clone()));
    let (process, url, _folder) = prometheus_of(target, "5s").await;
    let prometheus = Client::new(Options::new(&url)).expect("a client");
    eventually("all series", Duration::from_secs(60), async || {
        match single(&prometheus, "m").await {
            Ok(rows) if rows.len() == 20_000 => Ok(()),
            other => Err(format!("{:?}", other.map(|rows| rows.len()))),
        }
    })
    .await;
    let cost = async |query: String| {
        let (begin, mut runs) = (cpu(process.program_id()), 0.0);
        while cpu(process.program_id()) - begin < 1.5e6 {
            prometheus.query(&query, &[]).await.expect("an answer");
            runs += 1.0;
        }
        (cpu(process.program_id()) - begin) / runs
    };
    let none = cost("vector(1)".to_owned()).await;
    println!("a query of nothing: {none:.0} us");
    for (count, query) in [(2_000.0, r#"m{namespace="ns-1"}"#), (20_000.0, "m")] {
        let each = (cost(query.to_owned()).await - none) / count;
        println!("{count} series: {each:.1} us each");
    }
    for count in [50, 255, 256, 1_000] {
        for end in ["", ".x"] {
            let values: Vec<String> = (0..count).map(|n| name(3 * n) + end).collect();
            let query = format!("m{{{}}}", Matcher::AnyOf(values).render("pod"));
            let whole = cost(query).await;
            let each = (whole - none) / count as f64;
            println!("{count} values such as {}: {whole:.0} us, {each:.1} us each", name(3) + end);
        }
    }
}
