//! What a backtest of a week costs: of one autoscaler from a file of load, and of many from a real Prometheus.

use crate::measure::{cpu_seconds, cpu_seconds_of_ended, peak_memory, sum};
use crate::round::show_progress;
use bed::plimsoll::binary;
use bed::process::{Process, printed};
use bed::random::Random;
use bed::{eventually, free_port, parts, root};
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// The decisions of a week, and the most pods, from the file.
const TICKS: usize = 40_320;
const PODS: i64 = 50;
const RUNS: usize = 9;
/// The end of the week that Prometheus has, in Unix seconds, and what its samples are drawn from.
const END: u64 = 1_767_571_200;
const WEEK: u64 = 7 * 86_400;
const SEED: u64 = 1;

/// The most seconds from the file.
const MOST_OF_FILE: f64 = 0.3;
/// The most seconds for an autoscaler of many: 10 minutes for 1,000.
const MOST_OF_EACH: f64 = 0.6;
/// The most memory, in MiB.
const MOST_MEMORY: f64 = 300.0;

/// Measures both, with so many autoscalers over Prometheus. Fails where a bound is exceeded.
pub async fn run(autoscalers: usize) -> ExitCode {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let file = of_file();
    let prometheus = over_prometheus(autoscalers).await;
    let report = json!({"file": file, "prometheus": prometheus});
    let path = root().join("target/bench/backtest.json");
    std::fs::write(&path, format!("{report:#}\n")).expect("a file");
    println!("written to target/bench/backtest.json");
    let mut code = ExitCode::SUCCESS;
    for (name, figure, most) in [
        ("seconds from a file", &file["median_seconds"], MOST_OF_FILE),
        ("seconds over Prometheus", &prometheus["seconds"], MOST_OF_EACH * autoscalers as f64),
        ("MiB of memory", &prometheus["peak_mib"], MOST_MEMORY),
    ] {
        let figure = figure.as_f64().expect("a number");
        if figure > most {
            println!("EXCEEDED: {figure} {name}: at most {most} were expected");
            code = ExitCode::FAILURE;
        }
    }
    code
}

/// The decisions of a week with one every 15 s.
fn of_file() -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path
    };
    let load = file("load.csv", &load());
    let autoscaler = json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 1, "maxReplicas": PODS,
            "customMetrics": [{"metricName": "http_requests_total", "averageValue": 10}]}});
    let autoscaler = file("autoscaler.yaml", &autoscaler.to_string());
    let run = |output: &str| -> (String, f64) {
        let mut command = Command::new(binary());
        command.arg("backtest").arg("--load").arg(&load).arg("-f").arg(&autoscaler);
        let began = Instant::now();
        let done = command.args(["--output", output]).output().expect("it can be run");
        let seconds = began.elapsed().as_secs_f64();
        (printed(&done).unwrap_or_else(|error| panic!("plimsoll backtest: {error}")), seconds)
    };
    let tried: Value = serde_json::from_str(&run("json").0).expect("JSON");
    let replicas = tried["candidates"][0]["replicas"].as_array().expect("rows");
    let most = replicas.iter().filter_map(|row| row[2].as_i64()).max();
    assert_eq!((tried["ticks"].as_u64(), most), (Some(TICKS as u64), Some(PODS)));
    let mut seconds: Vec<f64> = (0..RUNS).map(|_| run("text").1).collect();
    seconds.sort_by(f64::total_cmp);
    let [least, median, longest] =
        [0, RUNS / 2, RUNS - 1].map(|run| (seconds[run] * 1000.0).round() / 1000.0);
    println!(
        "a week of one autoscaler from a file, {TICKS} decisions, up to {PODS} pods: {median} s (median of {RUNS} runs, {least} to {longest} s)"
    );
    json!({"ticks": TICKS, "runs": RUNS, "median_seconds": median, "least_seconds": least, "most_seconds": longest})
}

/// A load that needs 2 to 50 pods of 10, up and down with the days, and with noise.
fn load() -> String {
    let (mut text, mut random) = ("time,value\n".to_owned(), Random(SEED));
    for tick in 0..TICKS {
        let day = (tick as f64 / 5_760.0 * std::f64::consts::TAU).sin();
        let noise = random.below(1_000) as f64 / 10_000.0 - 0.05;
        let value = (260.0 + 240.0 * day) * (1.0 + noise);
        let time = END - WEEK + tick as u64 * 15;
        let _ = writeln!(text, "{time},{value:.3}");
    }
    text
}

/// A week of many autoscalers with a decision each minute, over a Prometheus that has nothing else to do.
async fn over_prometheus(autoscalers: usize) -> Value {
    let parts = parts(&["prometheus", "fleet", "blocks"]);
    let week = week(&parts, autoscalers);
    let (prometheus, url) = start(&parts, &week).await;
    let id = prometheus.program_id();
    let before = (requests(&url).await, cpu_seconds(id), cpu_seconds_of_ended());
    let result = week.join("result.json");
    show_progress(&format!("a backtest of {autoscalers} autoscalers"));
    let began = Instant::now();
    let mut child = Command::new(binary())
        .args(["backtest", "--prometheus-url", &url, "--period", "60s", "--output", "json"])
        .arg(format!("--from={}", END - WEEK))
        .arg(format!("--to={END}"))
        .arg("-f")
        .arg(week.join("fleet.yaml"))
        .stdout(File::create(&result).expect("a file"))
        .stdin(Stdio::null())
        .spawn()
        .expect("it can be run");
    let mut peak = 0.0;
    let status = loop {
        peak = f64::max(peak, peak_memory(child.id()));
        if let Some(status) = child.try_wait().expect("its status") {
            break status;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let seconds = began.elapsed().as_secs_f64();
    assert!(status.success(), "plimsoll backtest: {status}");
    let after = (requests(&url).await, cpu_seconds(id), cpu_seconds_of_ended());
    let result = std::fs::read_to_string(result).expect("the result");
    let result: Value = serde_json::from_str(&result).expect("JSON");
    let tried = result["autoscalers"].as_array().expect("rows");
    assert_eq!((tried.len(), &result["failed"]), (autoscalers, &json!([])));
    // Each pod takes 20 to 40 s.
    let start = |one: &Value| one["podStartSeconds"].as_f64().expect("a number");
    assert!(tried.iter().map(start).all(|start| (19.0..=41.0).contains(&start)));
    let high = tried.iter().filter(|one| one["trust"] == "high").count();
    let queries = after.0 - before.0;
    let round = |value: f64| (value * 10.0).round() / 10.0;
    let [seconds, of_prometheus, own, peak, peak_of_prometheus] =
        [seconds, after.1 - before.1, after.2 - before.2, peak, peak_memory(id)].map(round);
    println!(
        "a week of {autoscalers} autoscalers over Prometheus, with a decision each minute: {seconds} s\n  \
         CPU: plimsoll {own} s, Prometheus {of_prometheus} s; peak memory: plimsoll {peak} MiB, Prometheus {peak_of_prometheus} MiB\n  \
         {queries} requests; {high} reproduced with high trust"
    );
    json!({"autoscalers": autoscalers, "seconds": seconds, "cpu_seconds": own, "peak_mib": peak,
        "prometheus_cpu_seconds": of_prometheus, "prometheus_peak_mib": peak_of_prometheus,
        "requests": queries, "high_trust": high})
}

/// The folder with the blocks and the autoscalers, which are written once.
fn week(parts: &Path, autoscalers: usize) -> PathBuf {
    let program = parts.join("blocks").canonicalize().expect("the part");
    let version = program.file_name().expect("a name").to_string_lossy();
    let folder = root().join(format!("target/bench/{version}-{autoscalers}"));
    if folder.join("fleet.yaml").exists() {
        return folder;
    }
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    show_progress(&format!("writing a week of {autoscalers} workloads"));
    let arguments = [autoscalers as u64, END, SEED].map(|number| number.to_string());
    let written = Command::new(program).arg(&folder).args(arguments).status();
    assert!(written.expect("it can be run").success(), "the blocks are not written");
    folder
}

/// A Prometheus with these blocks, and its URL.
async fn start(parts: &Path, week: &Path) -> (Process, String) {
    let config = week.join("prometheus.yml");
    std::fs::write(&config, "").expect("a file");
    let url = format!("http://127.0.0.1:{}", free_port());
    let arguments = [
        format!("--config.file={}", config.display()),
        format!("--storage.tsdb.path={}", week.join("data").display()),
        "--storage.tsdb.retention.time=100y".to_owned(),
        // It does not join the blocks meanwhile.
        "--storage.tsdb.min-block-duration=1d".to_owned(),
        "--storage.tsdb.max-block-duration=1d".to_owned(),
        format!("--web.listen-address={}", url.trim_start_matches("http://")),
        "--log.level=warn".to_owned(),
    ];
    let program = parts.join("prometheus");
    let process = Process::start(parts, week, false, "prometheus", &program, &arguments);
    eventually("Prometheus is ready", Duration::from_secs(60), async || {
        let ready = reqwest::get(format!("{url}/-/ready")).await;
        match ready.and_then(reqwest::Response::error_for_status) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("{error}\n{}", process.tail())),
        }
    })
    .await;
    (process, url)
}

/// How many requests of its API a Prometheus has served.
async fn requests(url: &str) -> f64 {
    let metrics = reqwest::get(format!("{url}/metrics")).await.expect("metrics");
    let text = metrics.text().await.expect("metrics");
    sum(&text, "prometheus_http_requests_total", "handler=\"/api/v1/")
}
