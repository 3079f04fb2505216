//! What several runs did together, and whether they looked often enough.

use crate::oracle::{Counts, Oracle};
use crate::plan::{DAY, Millis};
use crate::run::Report;
use std::collections::BTreeMap;
use std::time::Duration;

/// What all runs together did.
#[derive(Debug, Default)]
pub struct Total {
    /// How long they were, in simulated time.
    pub length: Millis,
    faults: BTreeMap<String, u64>,
    counts: Counts,
    evaluations: u64,
    writes: u64,
    queries: u64,
}

/// How long runs must be together for rare conditions to have held in them.
const LONG: Millis = 10 * DAY;
/// The least share of evaluations that write a scale, in percent.
const LEAST_SHARE: f64 = 1.0;

impl Total {
    /// Adds a run.
    pub fn add(&mut self, report: &Report) {
        self.length += report.length;
        self.evaluations += report.evaluations;
        self.writes += report.writes;
        self.queries += report.queries;
        for (fault, count) in &report.faults {
            *self.faults.entry(fault.clone()).or_default() += count;
        }
        for (oracle, count) in &report.counts {
            self.counts.entry(*oracle).or_default().add(count);
        }
    }

    /// The share of evaluations that wrote a scale, in percent.
    fn share(&self) -> f64 {
        100.0 * self.writes as f64 / self.evaluations.max(1) as f64
    }

    /// Prints it, after so much real time and so much computing.
    pub fn print(&self, took: Duration, computed: Duration) {
        let days = self.length as f64 / DAY as f64;
        println!(
            "{days:.1} simulated days in {:.0} s, of which one core computes {:.0} in an hour",
            took.as_secs_f64(),
            days * 3600.0 / computed.as_secs_f64()
        );
        println!(
            "{} evaluations, {} queries, {} writes of a scale ({:.2} % of evaluations)",
            self.evaluations,
            self.queries,
            self.writes,
            self.share()
        );
        println!("faults that struck: {}", self.faults.values().sum::<u64>());
        for (fault, count) in &self.faults {
            println!("  {fault:<18} {count:>6}");
        }
        println!("oracles:             looked   withheld  a day, at the workload with the least");
        for &oracle in Oracle::all() {
            // One that never looked has a line, too.
            let count = self.counts.get(&oracle).copied().unwrap_or_default();
            let least = count.least(oracle) as f64 / days.max(f64::MIN_POSITIVE);
            let whole = if oracle.is_of_workloads() { "" } else { "  (no workload)" };
            let (looked, withheld) = (count.checked + count.withheld, count.withheld);
            println!("  {:<14} {looked:>10} {withheld:>10} {least:>9.1}{whole}", oracle.name());
        }
    }

    /// What makes runs of ten days and more worth little: oracles that looked less than once for each simulated
    /// day and workload, and too few writes.
    pub fn shortcomings(&self) -> Vec<String> {
        if self.length < LONG {
            return Vec::new();
        }
        let days = (self.length / DAY).unsigned_abs();
        let least =
            |oracle: &Oracle| self.counts.get(oracle).map_or(0, |count| count.least(*oracle));
        let idle = |oracle: &Oracle| {
            let at = if oracle.is_of_workloads() { " at a workload" } else { "" };
            format!("idle: {oracle} looked{at} {} times in {days} days", least(oracle))
        };
        let all = Oracle::all().iter().filter(|oracle| least(oracle) < days);
        let mut all: Vec<String> = all.map(idle).collect();
        if self.share() < LEAST_SHARE {
            all.push(format!(
                "share: {:.2} % of evaluations wrote a scale, less than {LEAST_SHARE} %",
                self.share()
            ));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::Count;
    use crate::plan::WORKLOADS;

    #[test]
    fn each_oracle_looks_at_each_workload_once_a_day_and_one_evaluation_of_a_hundred_writes() {
        let whole = Count { checked: 50, withheld: 0, of: [10; WORKLOADS] };
        let counts = |windows| {
            let all = Oracle::all().iter().map(|oracle| (*oracle, whole));
            let mut counts: Counts = all.collect();
            counts.insert(Oracle::Windows, windows);
            counts
        };
        let total = |counts, writes| Total {
            length: LONG,
            counts,
            evaluations: 1_000,
            writes,
            ..Total::default()
        };
        assert_eq!(total(counts(whole), 10).shortcomings(), Vec::<String>::new());
        let mut seldom = Count { checked: 500, ..whole };
        seldom.of[2] = 9;
        let found = total(counts(seldom), 9).shortcomings();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("windows looked at a workload 9 times"), "{found:?}");
        let mut counts = counts(whole);
        counts.remove(&Oracle::OneWriter);
        let found = total(counts.clone(), 10).shortcomings();
        assert_eq!(found, ["idle: one writer looked 0 times in 10 days"]);
        let short = Total { length: LONG - 1, ..total(counts, 0) };
        assert_eq!(short.shortcomings(), Vec::<String>::new());
    }
}
