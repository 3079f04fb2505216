//! The Prometheus of the simulation against a real one: the same samples, the same queries, the same
//! answers.

mod queries;
mod samples;

use crate::runtime;
use bed::process::Process;
use bed::random::Random;
use bed::{eventually, free_port, parts};
use plimsoll_simulation::prometheus::Prometheus;
use reqwest::{Client, Url};
use samples::Recording;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

/// The number of random queries, besides those of the planner.
const QUERIES: usize = 8_000;
/// The number of random batches for the planner.
const BATCHES: usize = 800;

#[test]
fn the_simulated_prometheus_answers_as_a_real_one() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed: Option<u64> = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(1);
    println!("SEED={seed}");
    runtime().block_on(async {
        let start = i64::try_from(now.as_millis()).unwrap() - samples::DURATION - 60_000;
        let recording = Recording::random(seed, start);
        let real = Real::start().await;
        let mut simulated = Prometheus::new(Duration::from_secs(3_600));
        for part in recording.parts() {
            real.write(&samples::write_request(part)).await;
            part.iter().for_each(|sample| sample.append(&mut simulated));
        }
        let mut random = Random(seed ^ 0x51);
        let mut compared = Compared::default();
        for _ in 0..BATCHES {
            for query in queries::planned(&mut random) {
                let at = recording.moment(&mut random);
                compared.query(&real, &mut simulated, &query, at).await;
            }
        }
        for _ in 0..QUERIES {
            let (query, at) = (queries::any(&mut random, start), recording.moment(&mut random));
            compared.query(&real, &mut simulated, &query, at).await;
        }
        let time = ((start + samples::DURATION / 2) / 1000).to_string();
        for query in queries::REFUSED {
            let form = [("query", *query), ("time", &time)];
            let (status, body) = real.ask("api/v1/query", &form).await;
            let own = ask(&mut simulated, "api/v1/query", &form, start);
            if let Err(difference) = same_answer(query, (status, &body), (own.0, &own.1)) {
                compared.differences.push(format!("{query}: {difference}\n {body}\n {own:?}"));
            }
        }
        for _ in 0..200 {
            let since = recording.moment(&mut random);
            compared.series(&real, &mut simulated, &queries::selector(&mut random), since).await;
        }
        let Compared { queries, found, refused, differences, .. } = &compared;
        let some: Vec<&str> = differences.iter().take(20).map(String::as_str).collect();
        assert!(
            some.is_empty(),
            "SEED={seed}: {} of {queries} differ\n{}",
            differences.len(),
            some.join("\n")
        );
        println!("{queries} queries; {found} found something, {refused} failed alike");
        println!("of each function or operator, so many found something: {:?}", compared.by_word);
        println!(
            "microseconds for each in the simulation: {}",
            compared.took.as_micros() / queries
        );
        assert!(found * 2 > *queries && *refused > 10);
        let seldom: Vec<_> = compared.by_word.iter().filter(|(_, count)| **count < 10).collect();
        assert!(seldom.is_empty(), "hardly ever compared: {seldom:?}");
    });
}

/// A real Prometheus that takes samples by remote write.
struct Real {
    url: Url,
    client: Client,
    _process: Process,
    _folder: tempfile::TempDir,
}

impl Real {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let parts = tokio::task::spawn_blocking(|| parts(&[])).await.expect("the parts");
        let port = free_port();
        let config = folder.path().join("prometheus.yml");
        std::fs::write(&config, "global: {evaluation_interval: 1m}\n").expect("a file");
        let arguments = [
            format!("--config.file={}", config.display()),
            format!("--storage.tsdb.path={}", folder.path().join("data").display()),
            format!("--web.listen-address=127.0.0.1:{port}"),
            "--web.enable-remote-write-receiver".to_owned(),
        ];
        let program = parts.join("prometheus");
        let process =
            Process::start(&parts, folder.path(), false, "prometheus", &program, &arguments);
        let url: Url = format!("http://127.0.0.1:{port}").parse().expect("a URL");
        let client = Client::new();
        eventually("Prometheus is ready", Duration::from_secs(60), async || {
            let ready = client.get(url.join("-/ready").expect("a URL")).send().await;
            match ready {
                Ok(response) if response.status().is_success() => Ok(()),
                other => Err(format!("{other:?}\n{}", process.tail())),
            }
        })
        .await;
        Self { url, client, _process: process, _folder: folder }
    }

    async fn write(&self, body: &[u8]) {
        let request = self
            .client
            .post(self.url.join("api/v1/write").expect("a URL"))
            .header("Content-Encoding", "snappy")
            .header("Content-Type", "application/x-protobuf")
            .header("X-Prometheus-Remote-Write-Version", "0.1.0")
            .body(body.to_vec());
        let response = request.send().await.expect("a response");
        let status = response.status();
        assert!(status.is_success(), "{status}: {:?}", response.text().await);
    }

    async fn ask(&self, path: &str, form: &[(&str, &str)]) -> (u16, Value) {
        let request = self.client.post(self.url.join(path).expect("a URL")).form(form);
        let response = request.send().await.expect("a response");
        let status = response.status().as_u16();
        (status, serde_json::from_str(&response.text().await.expect("a body")).expect("JSON"))
    }
}

fn ask(simulated: &mut Prometheus, path: &str, form: &[(&str, &str)], now: i64) -> (u16, Value) {
    let form: Vec<_> = form.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    let (status, body) = simulated.handle(path, &form, now);
    (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
}

/// The kind of an error.
fn kind(body: &Value) -> (Option<&str>, Option<&str>) {
    (body["status"].as_str(), body["errorType"].as_str())
}

/// What was compared.
#[derive(Default)]
struct Compared {
    queries: u128,
    found: u128,
    refused: u128,
    took: Duration,
    differences: Vec<String>,
    /// How many of the queries with a word found something.
    by_word: BTreeMap<String, usize>,
}

impl Compared {
    async fn query(&mut self, real: &Real, simulated: &mut Prometheus, query: &str, at: i64) {
        let time = format!("{}.{:03}", at / 1000, at % 1000);
        let form = [("query", query), ("time", &time)];
        let (status, body) = real.ask("api/v1/query", &form).await;
        let own = ask(simulated, "api/v1/query", &form, at);
        // Again, as it is compiled now.
        let began = Instant::now();
        let _ = simulated.evaluate(query, at);
        self.took += began.elapsed();
        self.queries += 1;
        if let Err(difference) = same_answer(query, (status, &body), (own.0, &own.1)) {
            let (own, body) = (own.1, &body);
            let all =
                format!("{query}\n at {time}: {difference}\n real: {body}\n simulated: {own}");
            self.differences.push(all);
        }
        if status != 200 {
            self.refused += 1;
            return;
        }
        let found = !rows(&body).is_empty();
        self.found += u128::from(found);
        for word in queries::words(query) {
            *self.by_word.entry(word).or_default() += usize::from(found);
        }
    }

    async fn series(&self, real: &Real, simulated: &mut Prometheus, selector: &str, since: i64) {
        let start = format!("{}.{:03}", since / 1000, since % 1000);
        let form = [("match[]", selector), ("start", start.as_str())];
        let (status, body) = real.ask("api/v1/series", &form).await;
        let own = ask(simulated, "api/v1/series", &form, since);
        assert_eq!(own, (status, body), "{selector} since {start}");
    }
}

/// Whether both answers to a query are the same; else what is not.
fn same_answer(query: &str, real: (u16, &Value), own: (u16, &Value)) -> Result<(), String> {
    if (real.0, kind(real.1)) != (own.0, kind(own.1)) {
        return Err("another status".to_owned());
    }
    let precision = Precision::of(query);
    let (mut rows, mut own_rows) = (rows(real.1), rows(own.1));
    if !precision.ordered {
        rows.sort();
        own_rows.sort();
    }
    if real.1["data"]["resultType"] != own.1["data"]["resultType"] || rows.len() != own_rows.len() {
        return Err("another number of series".to_owned());
    }
    for ((labels, value), (own_labels, own_value)) in rows.iter().zip(&own_rows) {
        if labels != own_labels {
            return Err(format!("{labels} is not {own_labels}"));
        }
        if !precision.same(value, own_value) {
            return Err(format!("{value} is not {own_value}"));
        }
    }
    Ok(())
}

/// The labels, and the time and value, of each series.
fn rows(body: &Value) -> Vec<(String, String)> {
    let result = &body["data"]["result"];
    if result.is_null() {
        return Vec::new();
    }
    if body["data"]["resultType"] == "scalar" {
        return vec![(String::new(), result.to_string())];
    }
    let rows = result.as_array().expect("series").iter();
    // The maps of `serde_json` are sorted.
    rows.map(|row| (row["metric"].to_string(), row["value"].to_string())).collect()
}

/// How equal the results of a query are.
struct Precision {
    exact: bool,
    ordered: bool,
}

impl Precision {
    fn of(query: &str) -> Self {
        // Prometheus keeps these in maps of random order, so that also sums of them are random.
        let random = [":", "histogram_quantile", "count_values"];
        let ordered = !random.iter().any(|word| query.contains(word));
        // Libraries differ in the last bit.
        let rounded = ["exp(", "ln(", "log2(", "log10(", "^", "atan2"];
        let exact = ordered && !rounded.iter().any(|word| query.contains(word));
        Self { exact, ordered }
    }

    fn same(&self, one: &str, other: &str) -> bool {
        if one == other {
            return true;
        }
        let number = |text: &str| -> f64 {
            let value: Value = serde_json::from_str(text).expect("a time and a value");
            value[1].as_str().expect("a value").parse().expect("a number")
        };
        let (one, other) = (number(one), number(other));
        !self.exact && (one - other).abs() <= 1e-12 * one.abs().max(other.abs())
    }
}
