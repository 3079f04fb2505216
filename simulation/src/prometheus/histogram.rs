//! Quantiles of classic histograms.

use super::eval::Sample;
use super::labels::Labels;
use std::collections::HashMap;

/// The label of a bucket's upper bound.
const BOUND: &str = "le";

/// Relative differences of counts up to this are rounding errors.
const TOLERANCE: f64 = 1e-12;

/// The smallest normal number.
const TINY: f64 = f64::MIN_POSITIVE;

/// The observations up to a bound.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    bound: f64,
    count: f64,
}

/// The quantile of each histogram, in the order in which they first appear.
pub(super) fn quantile(quantile: f64, samples: Vec<Sample>) -> Vec<Sample> {
    let mut places: HashMap<Labels, usize> = HashMap::new();
    let mut histograms: Vec<(Labels, Vec<Bucket>)> = Vec::new();
    for Sample { labels, value } in samples {
        let Ok(bound) = labels.get(BOUND).parse() else { continue };
        let place = *places.entry(labels.with(BOUND, "")).or_insert_with_key(|labels| {
            histograms.push((labels.without_metric(), Vec::new()));
            histograms.len() - 1
        });
        histograms[place].1.push(Bucket { bound, count: value });
    }
    let value = |buckets| of_buckets(quantile, buckets);
    histograms
        .into_iter()
        .map(|(labels, buckets)| Sample { labels, value: value(buckets) })
        .collect()
}

fn of_buckets(quantile: f64, mut buckets: Vec<Bucket>) -> f64 {
    if quantile.is_nan() {
        return f64::NAN;
    }
    if quantile < 0.0 {
        return f64::NEG_INFINITY;
    }
    if quantile > 1.0 {
        return f64::INFINITY;
    }
    buckets.sort_by(|one, other| one.bound.total_cmp(&other.bound));
    if buckets.last().is_none_or(|last| last.bound != f64::INFINITY) {
        return f64::NAN;
    }
    buckets.dedup_by(|next, kept| {
        #[expect(clippy::float_cmp, reason = "the same bound")]
        let same = next.bound == kept.bound;
        if same {
            kept.count += next.count;
        }
        same
    });
    never_falling(&mut buckets);
    let [others @ .., last] = &buckets[..] else { return f64::NAN };
    if others.is_empty() || last.count == 0.0 {
        return f64::NAN;
    }
    let mut rank = quantile * last.count;
    let place = others.iter().position(|bucket| bucket.count >= rank).unwrap_or(others.len());
    if place == others.len() {
        return others[place - 1].bound;
    }
    if place == 0 && buckets[0].bound <= 0.0 {
        return buckets[0].bound;
    }
    let Bucket { bound: end, mut count } = buckets[place];
    let mut start = 0.0;
    if place > 0 {
        start = buckets[place - 1].bound;
        count -= buckets[place - 1].count;
        rank -= buckets[place - 1].count;
    }
    start + (end - start) * (rank / count)
}

/// Counts that fall, or differ by a rounding error, become those before them.
fn never_falling(buckets: &mut [Bucket]) {
    let mut before = buckets[0].count;
    for bucket in &mut buckets[1..] {
        if bucket.count < before || almost_equal(before, bucket.count) {
            bucket.count = before;
        } else {
            before = bucket.count;
        }
    }
}

fn almost_equal(one: f64, other: f64) -> bool {
    #[expect(clippy::float_cmp, reason = "the same number")]
    if one == other || one.is_nan() && other.is_nan() {
        return true;
    }
    let (sum, difference) = (one.abs() + other.abs(), (one - other).abs());
    if one == 0.0 || other == 0.0 || sum < TINY {
        return difference < TOLERANCE * TINY;
    }
    difference / sum.min(f64::MAX) < TOLERANCE
}
