//! Sets of labels.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The label that holds the name of a metric.
pub(super) const METRIC_NAME: &str = "__name__";

/// The labels that describe a metric and are dropped with its name, as Prometheus does.
const METADATA: [&str; 3] = [METRIC_NAME, "__type__", "__unit__"];

/// A set of labels, the name of the metric included (`__name__`): sorted by name, without empty values.
/// A clone costs as much as that of an `Arc`.
#[derive(Clone)]
pub struct Labels(Arc<Inner>);

struct Inner {
    hash: u64,
    pairs: Box<[Pair]>,
    /// The set without what describes the metric, as most queries need it for each series; none if
    /// that is the set itself.
    without_metric: Option<Labels>,
}

/// A name and a value.
type Pair = (Arc<str>, Arc<str>);

impl Labels {
    /// The set of these names and values. Of two values of one name the last stays; empty ones are left
    /// out, which is the same to Prometheus.
    pub fn new<N: AsRef<str>, V: AsRef<str>>(pairs: impl IntoIterator<Item = (N, V)>) -> Self {
        let mut all: Vec<Pair> =
            pairs.into_iter().map(|(n, v)| (n.as_ref().into(), v.as_ref().into())).collect();
        all.reverse();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all.dedup_by(|(one, _), (other, _)| one == other);
        all.retain(|(_, value)| !value.is_empty());
        Self::sorted(all)
    }

    /// The set of pairs that are sorted and not empty.
    fn sorted(pairs: Vec<Pair>) -> Self {
        let mut hash = 0;
        for (name, value) in &pairs {
            hash = mix(mix(hash, name.as_bytes()), value.as_bytes());
        }
        let describes = |(name, _): &Pair| METADATA.contains(&&**name);
        let without_metric = pairs
            .iter()
            .any(describes)
            .then(|| Self::sorted(pairs.iter().filter(|pair| !describes(pair)).cloned().collect()));
        Self(Arc::new(Inner { hash, pairs: pairs.into(), without_metric }))
    }

    /// The empty set.
    pub fn empty() -> Self {
        Self::sorted(Vec::new())
    }

    /// The value of a label; empty if there is none.
    pub fn get(&self, name: &str) -> &str {
        self.0.pairs.iter().find(|(own, _)| **own == *name).map_or("", |(_, value)| value)
    }

    /// The name of the metric; empty if there is none.
    pub fn metric(&self) -> &str {
        self.get(METRIC_NAME)
    }

    /// The names and values, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.pairs.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Only the labels whose names are wanted.
    pub(super) fn filtered(&self, wanted: impl Fn(&str) -> bool) -> Self {
        if self.0.pairs.iter().all(|(name, _)| wanted(name)) {
            return self.clone();
        }
        Self::sorted(self.0.pairs.iter().filter(|(name, _)| wanted(name)).cloned().collect())
    }

    /// Without the name of the metric and what describes it.
    pub(super) fn without_metric(&self) -> Self {
        self.0.without_metric.as_ref().unwrap_or(self).clone()
    }

    /// With another value of a label; an empty one removes it.
    pub(super) fn with(&self, name: &str, value: &str) -> Self {
        if self.get(name) == value {
            return self.clone();
        }
        let own = self.iter().filter(|(own, _)| *own != name);
        Self::new(own.chain(std::iter::once((name, value))))
    }
}

/// A hash that is the same in each run, as the simulation must be: so not that of the standard library.
fn mix(mut hash: u64, bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x517c_c1b7_2722_0a95;
    let mut add = |word: u64| hash = (hash.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        add(u64::from_le_bytes(word));
    }
    add(bytes.len() as u64);
    hash
}

impl PartialEq for Labels {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || self.0.hash == other.0.hash && self.0.pairs == other.0.pairs
    }
}

impl Eq for Labels {}

impl Hash for Labels {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl PartialOrd for Labels {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Labels {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.pairs.cmp(&other.0.pairs)
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_sorted_and_without_empty_values() {
        let labels = Labels::new([("b", "1"), ("a", "2"), ("c", ""), ("a", "3")]);
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("a", "3"), ("b", "1")]);
        assert_eq!(labels, Labels::new([("a", "3"), ("b", "1")]));
        assert_eq!(labels.with("b", ""), Labels::new([("a", "3")]));
        assert_eq!(labels.get("c"), "");
    }
}
