//! The samples of the last minutes, by series.

use super::labels::{Labels, METRIC_NAME};
use super::matcher::Matcher;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// The bits of the NaN that marks the end of a series, as Prometheus writes it.
const STALE: u64 = 0x7ff0_0000_0000_0002;

/// For how long a sample is the value of its series, in ms: Prometheus's default.
pub(super) const LOOKBACK: i64 = 5 * 60 * 1000;

/// How often series without samples are looked for, in ms.
const SWEEP_INTERVAL: i64 = 60 * 1000;

/// A sample without its series.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    /// When it was measured, in Unix ms.
    pub at: i64,
    /// Its value.
    pub value: f64,
}

impl Point {
    fn is_stale(&self) -> bool {
        self.value.to_bits() == STALE
    }
}

/// A series and its samples, in the order of time.
pub(super) struct Series {
    /// Its labels.
    pub labels: Labels,
    points: VecDeque<Point>,
}

impl Series {
    /// The sample that is its value at a time, if it has one.
    pub fn at(&self, at: i64) -> Option<Point> {
        let end = self.points.partition_point(|point| point.at <= at);
        let last = self.points.get(end.checked_sub(1)?)?;
        (last.at > at - LOOKBACK && !last.is_stale()).then_some(*last)
    }

    /// Adds the samples after `after` and until `until` to `points`.
    pub fn between(&self, after: i64, until: i64, points: &mut Vec<Point>) {
        let start = self.points.partition_point(|point| point.at <= after);
        let end = self.points.partition_point(|point| point.at <= until);
        if start < end {
            let range = self.points.range(start..end);
            points.extend(range.filter(|point| !point.is_stale()));
        }
    }
}

/// All series. The numbers of series grow, so that the order of numbers is that of creation, which is
/// the order in which Prometheus reads the series of its head.
pub(super) struct Storage {
    retention: i64,
    next: u64,
    numbers: HashMap<Labels, u64>,
    series: BTreeMap<u64, Series>,
    /// The numbers of the series of each metric, sorted.
    by_metric: BTreeMap<String, Vec<u64>>,
    swept: i64,
    /// The time of the newest sample that was dropped because of its age.
    dropped: i64,
}

impl Storage {
    /// Without samples; those older than the newest by more than `retention` ms are dropped.
    pub fn new(retention: i64) -> Self {
        Self {
            retention,
            next: 0,
            numbers: HashMap::new(),
            series: BTreeMap::new(),
            by_metric: BTreeMap::new(),
            swept: i64::MIN,
            dropped: i64::MIN,
        }
    }

    /// Adds a sample. One that is not newer than the last of its series is left out, as Prometheus does.
    pub fn append(&mut self, labels: &Labels, at: i64, value: f64) {
        let number = match self.numbers.get(labels) {
            Some(number) => *number,
            None => self.create(labels),
        };
        let series = self.series.get_mut(&number).expect("each number has its series");
        if series.points.back().is_some_and(|last| last.at >= at) {
            return;
        }
        series.points.push_back(Point { at, value });
        while let Some(first) = series.points.front()
            && first.at < at - self.retention
        {
            self.dropped = self.dropped.max(first.at);
            series.points.pop_front();
        }
        if at.saturating_sub(self.swept) >= SWEEP_INTERVAL {
            self.sweep(at);
        }
    }

    /// Adds the marker that says that a series has ended; nothing if it has no sample.
    pub fn stale(&mut self, labels: &Labels, at: i64) {
        if self.numbers.contains_key(labels) {
            self.append(labels, at, f64::from_bits(STALE));
        }
    }

    fn create(&mut self, labels: &Labels) -> u64 {
        let number = self.next;
        self.next += 1;
        self.numbers.insert(labels.clone(), number);
        self.series.insert(number, Series { labels: labels.clone(), points: VecDeque::new() });
        self.by_metric.entry(labels.metric().to_owned()).or_default().push(number);
        number
    }

    /// Forgets the series whose last sample is too old.
    fn sweep(&mut self, now: i64) {
        self.swept = now;
        let oldest = now - self.retention;
        let Self { numbers, series, by_metric, dropped, .. } = self;
        series.retain(|number, series| {
            let last = series.points.back().map_or(i64::MIN, |last| last.at);
            let stays = last >= oldest;
            if !stays {
                *dropped = (*dropped).max(last);
                numbers.remove(&series.labels);
                let metric = series.labels.metric();
                if let Some(all) = by_metric.get_mut(metric) {
                    all.retain(|other| other != number);
                    if all.is_empty() {
                        by_metric.remove(metric);
                    }
                }
            }
            stays
        });
    }

    /// Whether all samples after a time are still there.
    pub fn is_complete_after(&self, after: i64) -> bool {
        after >= self.dropped
    }

    /// The number of series.
    pub fn len(&self) -> usize {
        self.series.len()
    }

    /// The series that all matchers match, in the order of their creation.
    pub fn select<'a>(&'a self, matchers: &[Matcher]) -> Vec<&'a Series> {
        let by_name = |metric: &str| {
            matchers.iter().filter(|m| m.label == METRIC_NAME).all(|m| m.matches(metric))
        };
        let others: Vec<&Matcher> = matchers.iter().filter(|m| m.label != METRIC_NAME).collect();
        let found = |number: &u64| {
            let series = self.series.get(number)?;
            others.iter().all(|m| m.matches(series.labels.get(&m.label))).then_some(series)
        };
        let only = matchers.iter().find_map(Matcher::metric);
        if let Some(metric) = only {
            let numbers = self.by_metric.get(metric).filter(|_| by_name(metric));
            return numbers.into_iter().flatten().filter_map(found).collect();
        }
        let metrics = self.by_metric.iter().filter(|(metric, _)| by_name(metric));
        let mut numbers: Vec<u64> = metrics.flat_map(|(_, numbers)| numbers).copied().collect();
        numbers.sort_unstable();
        numbers.iter().filter_map(found).collect()
    }

    /// Whether a series has a sample, or its end, from `start` until `end`. Prometheus looks at whole
    /// chunks, so only the first and the last sample count.
    pub fn spans(series: &Series, start: i64, end: i64) -> bool {
        let (first, last) = (series.points.front(), series.points.back());
        first.is_some_and(|first| first.at <= end) && last.is_some_and(|last| last.at >= start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pod: &str) -> Labels {
        Labels::new([(METRIC_NAME, "x"), ("pod", pod)])
    }

    #[test]
    fn memory_stays_flat() {
        let mut storage = Storage::new(60_000);
        for minute in 0..1_000 {
            for second in 0..60 {
                let at = (minute * 60 + second) * 1000;
                storage.append(&labels(&format!("p-{}", minute / 5)), at, 1.0);
            }
        }
        assert!(storage.len() <= 2, "{}", storage.len());
        assert!(storage.by_metric["x"].len() == storage.len());
        assert!(storage.series.values().all(|series| series.points.len() <= 61));
        assert!(
            !storage.is_complete_after(0)
                && storage.is_complete_after(999 * 60_000 + 59_000 - 60_000)
        );
    }

    #[test]
    fn a_sample_counts_until_it_is_five_minutes_old_or_its_series_ends() {
        let mut storage = Storage::new(3_600_000);
        storage.append(&labels("p"), 1_000, 7.0);
        storage.append(&labels("p"), 1_000, 8.0);
        storage.append(&labels("p"), 999, 9.0);
        let value = |storage: &Storage, at| storage.select(&[])[0].at(at).map(|point| point.value);
        assert_eq!(value(&storage, 999), None);
        assert_eq!(value(&storage, 1_000), Some(7.0));
        assert_eq!(value(&storage, 300_999), Some(7.0));
        assert_eq!(value(&storage, 301_000), None);
        storage.stale(&labels("p"), 2_000);
        storage.stale(&labels("q"), 2_000);
        assert_eq!((value(&storage, 1_999), value(&storage, 2_000)), (Some(7.0), None));
        assert_eq!(storage.len(), 1);
    }
}
