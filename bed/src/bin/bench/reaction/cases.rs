//! What is measured, and on which side.

/// How often the pods are scraped, and the window of the rate, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    pub scrape: u64,
    pub window: u64,
}

pub const CASES: [Case; 4] = [
    Case { scrape: 15, window: 120 },
    Case { scrape: 15, window: 60 },
    Case { scrape: 5, window: 120 },
    Case { scrape: 5, window: 20 },
];
/// Who decides.
pub const SIDES: [&str; 2] = ["Plimsoll", "prometheus-adapter, HPA"];
pub const PODS: usize = 10;
/// What the load of each pod is multiplied by: 19.5 pods carry it.
pub const FACTOR: f64 = 1.95;
/// The replicas that a step takes.
pub const REPLICAS: i64 = 20;
