//! Random samples: gaps, resets, series that end, targets that go away.

use super::queries::{LABELS, METRICS};
use bed::random::Random;
use plimsoll_simulation::prometheus::{Labels, Prometheus};
use std::collections::BTreeSet;

/// How long the samples are, in ms.
pub const DURATION: i64 = SCRAPES * INTERVAL;
const SCRAPES: i64 = 200;
const INTERVAL: i64 = 5_000;
/// The bits of the NaN that ends a series.
const STALE: u64 = 0x7ff0_0000_0000_0002;
const NUMBERS: [f64; 12] =
    [0.0, 1.0, 2.5, 0.1, 0.2, 0.3, -3.0, 1e9, 1e-9, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];

/// A sample, or the end of a series.
#[derive(Clone)]
pub struct Sample {
    labels: Labels,
    at: i64,
    value: Option<f64>,
}

impl Sample {
    pub fn append(&self, simulated: &mut Prometheus) {
        match self.value {
            Some(value) => simulated.append(&self.labels, self.at, value),
            None => simulated.stale(&self.labels, self.at),
        }
    }
}

/// All samples, in the order in which they were measured.
pub struct Recording {
    samples: Vec<Sample>,
    times: Vec<i64>,
}

struct Series {
    labels: Labels,
    target: usize,
    value: f64,
    /// Whether its last scrape had it.
    is_there: bool,
}

/// Whether something is away for a while.
#[derive(Default)]
struct Absence(usize);

impl Absence {
    /// Another scrape: it goes away in one of `odds`, for up to 90 scrapes.
    fn step(&mut self, random: &mut Random, odds: usize) -> bool {
        self.0 = self.0.saturating_sub(1);
        if self.0 == 0 && random.below(odds) == 0 {
            let longest = if random.below(4) == 0 { 90 } else { 8 };
            self.0 = 1 + random.below(longest);
        }
        self.0 > 0
    }
}

impl Recording {
    /// Samples of three targets that are scraped from a time on, in Unix ms.
    pub fn random(seed: u64, start: i64) -> Self {
        let mut random = Random(seed);
        let mut all: Vec<Series> = labels(&mut random)
            .into_iter()
            .map(|labels| Series { labels, target: random.below(3), value: 0.0, is_there: false })
            .collect();
        let mut samples = Vec::new();
        let (mut outage, mut down) = (Absence::default(), <[Absence; 3]>::default());
        let mut ends: Vec<Absence> = all.iter().map(|_| Absence::default()).collect();
        for scrape in 0..SCRAPES {
            // Prometheus itself is away: nothing is scraped, nothing ends.
            if outage.step(&mut random, 60) {
                continue;
            }
            for (target, down) in down.iter_mut().enumerate() {
                let is_down = down.step(&mut random, 60);
                let jitter = if random.below(10) == 0 { random.below(900) } else { 0 };
                let at = start + scrape * INTERVAL + 1_100 * target as i64 + jitter as i64;
                for (series, end) in all.iter_mut().zip(&mut ends) {
                    if series.target != target {
                        continue;
                    }
                    let is_there = !end.step(&mut random, 80) && !is_down;
                    let value = is_there.then(|| series.next(&mut random));
                    if is_there || series.is_there {
                        samples.push(Sample { labels: series.labels.clone(), at, value });
                    }
                    series.is_there = is_there;
                }
            }
        }
        let times = samples.iter().map(|sample| sample.at).collect();
        Self { samples, times }
    }

    /// The samples in parts.
    pub fn parts(&self) -> impl Iterator<Item = &[Sample]> {
        self.samples.chunks(2_000)
    }

    /// A moment at which it matters whether a sample counts or not, in Unix ms.
    pub fn moment(&self, random: &mut Random) -> i64 {
        let edges = [0, 0, 1, 999, 4_000, 10_000, 60_000, 120_000, 300_000, 299_999, 300_001];
        let of = self.times[random.below(self.times.len())];
        of + edges[random.below(edges.len())] - i64::from(random.below(8) == 0)
    }
}

impl Series {
    fn next(&mut self, random: &mut Random) -> f64 {
        let metric = self.labels.metric();
        if metric.ends_with("_total") || metric.ends_with("_bucket") {
            if random.below(40) == 0 {
                self.value = 0.0;
            }
            self.value += [0.0, 1.0, 0.1, 7.0, 1e6][random.below(5)] * random.below(9) as f64;
            return self.value;
        }
        match random.below(3) {
            0 => NUMBERS[random.below(NUMBERS.len())],
            1 => random.below(10) as f64 / 10.0,
            _ => (random.next_u64() % 1_000_003) as f64 / 997.0,
        }
    }
}

/// The labels of all series.
fn labels(random: &mut Random) -> Vec<Labels> {
    let mut all = BTreeSet::new();
    for metric in METRICS {
        let bounds: &[&str] =
            if metric.ends_with("_bucket") { &["0.1", "1", "2.5", "+Inf"] } else { &[""] };
        for _ in 0..24 / bounds.len() {
            let own: Vec<(&str, &str)> =
                LABELS.iter().map(|(label, values)| (*label, random.one_of(values))).collect();
            for bound in bounds {
                let name = [("__name__", *metric), ("le", *bound)];
                all.insert(Labels::new(own.iter().copied().chain(name)));
            }
        }
    }
    // In another order than that of their labels, as where series come and go.
    let mut all: Vec<Labels> = all.into_iter().collect();
    for n in (1..all.len()).rev() {
        all.swap(n, random.below(n + 1));
    }
    all
}

/// A request of remote write, version 1: protobuf in the block format of Snappy.
pub fn write_request(samples: &[Sample]) -> Vec<u8> {
    let mut request = Vec::new();
    for sample in samples {
        let mut series = Vec::new();
        for (name, value) in sample.labels.iter() {
            let mut label = Vec::new();
            field(&mut label, 1, name.as_bytes());
            field(&mut label, 2, value.as_bytes());
            field(&mut series, 1, &label);
        }
        let value = sample.value.unwrap_or(f64::from_bits(STALE));
        let mut measured = vec![1 << 3 | 1];
        measured.extend(value.to_bits().to_le_bytes());
        measured.push(2 << 3);
        varint(&mut measured, u64::try_from(sample.at).expect("after 1970"));
        field(&mut series, 2, &measured);
        field(&mut request, 1, &series);
    }
    // Literals only, each of up to 64 KiB.
    let mut block = Vec::new();
    varint(&mut block, request.len() as u64);
    for literal in request.chunks(1 << 16) {
        block.push(61 << 2);
        let length = u16::try_from(literal.len() - 1).expect("up to 64 KiB");
        block.extend(length.to_le_bytes());
        block.extend(literal);
    }
    block
}

fn field(message: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    message.push(number << 3 | 2);
    varint(message, bytes.len() as u64);
    message.extend(bytes);
}

fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}
