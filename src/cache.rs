//! Caches that are bounded by bytes and by age: moka's, with what an entry costs
//! beside its own bytes. When a cache is full, the entries that are used least
//! make room; a whole cache is never cleared.

use std::hash::Hash;
use std::time::Duration;

/// A cache of `K` to `V`, shared by its clones.
pub type Cache<K, V> = moka::sync::Cache<K, V>;

/// What the cache itself needs for an entry, in bytes: its node, its place in the
/// queues of use and of age, and its slot in the hash table.
pub const ENTRY: usize = 256;

/// An empty cache of at most so many bytes. An entry is dropped `ttl` after it was
/// inserted. `weigh` gives the bytes of a key and its value, those on the heap
/// included; [`ENTRY`] is added to them.
pub fn of_bytes<K, V>(
    bytes: usize,
    ttl: Duration,
    weigh: impl Fn(&K, &V) -> usize + Send + Sync + 'static,
) -> Cache<K, V>
where
    K: Eq + Hash + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    moka::sync::Cache::builder()
        .max_capacity(bytes as u64)
        .weigher(move |key, value| weight(weigh(key, value)))
        .time_to_live(ttl)
        .build()
}

/// An entry's weight of so many bytes of its own.
pub fn weight(bytes: usize) -> u32 {
    u32::try_from(bytes.saturating_add(ENTRY)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_kept_until_they_are_old_and_never_more_bytes_than_fit() {
        let cache = of_bytes(10 * (ENTRY + 100), Duration::from_secs(60), |_, v: &String| v.len());
        cache.insert(0, "x".repeat(100));
        assert_eq!(cache.get(&0).map(|text| text.len()), Some(100));
        for n in 1..1_000 {
            cache.insert(n, "x".repeat(100));
        }
        cache.run_pending_tasks();
        assert!(cache.weighted_size() <= 10 * (ENTRY as u64 + 100));
        // Full, and not empty.
        assert_eq!(cache.entry_count(), 10);
        cache.insert(0, "x".repeat(5_000));
        cache.run_pending_tasks();
        assert_eq!(cache.get(&0), None);
    }

    #[test]
    fn the_budgets_of_docs_sizing_are_those_of_the_code_and_fit_in_the_charts_limit() {
        use crate::{prometheus, rules, samples, serve};
        let text = include_str!("../docs/sizing.md");
        let rows = text.lines().filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            Some((cells.next()?, cells.next()?.parse::<usize>().ok()?))
        });
        let mut rows: Vec<(&str, usize)> = rows.collect();
        let of = |name: &str| {
            rows.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name}")).1
        };
        for (name, bytes) in [
            ("answers", prometheus::ANSWERS),
            ("query shapes", samples::SHAPES),
            ("narrowed queries", samples::NARROWED),
            ("forms", samples::FORMS),
            ("callers", samples::REMEMBERED),
            ("metric types", 3 * samples::KINDS),
            ("unknown metrics", rules::NAMES),
            ("connections", serve::INCOMING),
        ] {
            assert_eq!(of(name) << 20, bytes, "{name}");
        }
        let all = of("all");
        rows.retain(|(name, _)| *name != "all");
        assert_eq!(rows.iter().map(|(_, mib)| mib).sum::<usize>(), all);
        let chart = include_str!("../deploy/chart/values.yaml");
        let limit =
            chart.split_once("limits: {memory: ").and_then(|(_, rest)| rest.split_once("Mi"));
        assert!(all < limit.unwrap().0.parse().unwrap(), "{limit:?}");
    }

    #[test]
    fn a_cache_of_no_age_keeps_nothing() {
        let cache = of_bytes(10_000, Duration::ZERO, |_, _: &i32| 0);
        cache.insert("a", 1);
        assert_eq!(cache.get("a"), None);
    }
}
