//! TTL caches bounded by bytes: moka's, with the overhead of an entry
//! added to its own bytes. A full cache evicts the entries that are used least,
//! and is never cleared as a whole.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::time::Duration;
use tokio::time::Instant;

/// A cache of `K` to `V`, shared by its clones.
pub struct Cache<K, V> {
    /// The values, and when they expire: moka itself reads a clock that does not stop with tokio's.
    entries: moka::sync::Cache<K, (V, Instant)>,
    ttl: Duration,
}

impl<K, V> Clone for Cache<K, V> {
    fn clone(&self) -> Self {
        Self { entries: self.entries.clone(), ttl: self.ttl }
    }
}

impl<K, V> fmt::Debug for Cache<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

impl<K, V> Cache<K, V>
where
    K: Eq + Hash + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// The value of a key, unless it has expired.
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (value, expires) = self.entries.get(key)?;
        (Instant::now() < expires).then_some(value)
    }

    /// Removes the value of a key, and returns it even if it has expired. The cache lets go of it: by itself it would
    /// keep the last 64 that were removed until others come.
    pub fn remove<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (value, _) = self.entries.remove(key)?;
        self.entries.run_pending_tasks();
        Some(value)
    }

    /// Inserts a value for the TTL of the cache.
    pub fn insert(&self, key: K, value: V) {
        self.insert_for(self.ttl, key, value);
    }

    /// Inserts a value that expires after `ttl`, which is at most that of the cache.
    pub fn insert_for(&self, ttl: Duration, key: K, value: V) {
        self.entries.insert(key, (value, Instant::now() + ttl));
    }
}

/// The overhead of an entry in bytes: its node, its positions in the
/// queues of use and of age, and its bucket in the hash table.
pub const ENTRY_OVERHEAD: usize = 256;

/// An empty cache of at most `bytes` bytes. An entry expires `ttl` after it was
/// inserted. `weigh` returns the bytes of a key and its value, including those on the heap;
/// [`ENTRY_OVERHEAD`] is added.
pub fn of_bytes<K, V>(
    bytes: usize,
    ttl: Duration,
    weigh: impl Fn(&K, &V) -> usize + Send + Sync + 'static,
) -> Cache<K, V>
where
    K: Eq + Hash + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    let entries = moka::sync::Cache::builder()
        .max_capacity(bytes as u64)
        .weigher(move |key, (value, _): &(V, Instant)| weight(weigh(key, value)))
        // Expired entries are dropped even if nobody reads them.
        .time_to_live(ttl)
        .build();
    Cache { entries, ttl }
}

/// The weight of an entry of `bytes` bytes.
pub fn weight(bytes: usize) -> u32 {
    u32::try_from(bytes.saturating_add(ENTRY_OVERHEAD)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_cached_until_they_expire_and_never_exceed_the_bytes() {
        let cache =
            of_bytes(10 * (ENTRY_OVERHEAD + 100), Duration::from_secs(60), |_, v: &String| v.len());
        cache.insert(0, "x".repeat(100));
        assert_eq!(cache.get(&0).map(|text| text.len()), Some(100));
        for n in 1..1_000 {
            cache.insert(n, "x".repeat(100));
        }
        cache.entries.run_pending_tasks();
        assert!(cache.entries.weighted_size() <= 10 * (ENTRY_OVERHEAD as u64 + 100));
        // Full, and not empty.
        assert_eq!(cache.entries.entry_count(), 10);
        cache.insert(0, "x".repeat(5_000));
        cache.entries.run_pending_tasks();
        assert_eq!(cache.get(&0), None);
    }

    #[test]
    fn the_budgets_of_docs_sizing_are_those_of_the_code_and_fit_in_the_charts_limit() {
        use crate::config::{Cli, Command};
        use crate::{ledger, prometheus, rules, samples, serve};
        use clap::Parser;
        let text = include_str!("../docs/sizing.md");
        let rows = text.lines().filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            Some((cells.next()?, cells.next()?.parse::<usize>().ok()?))
        });
        let mut rows: Vec<(&str, usize)> = rows.collect();
        let of = |name: &str| {
            rows.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name}")).1
        };
        let cli = Cli::try_parse_from(["plimsoll", "serve", "--prometheus-url=http://x"]);
        let Command::Serve(flags) = cli.expect("flags").command else { panic!("it is serve") };
        // A copy may have an eighth more.
        let ledger = (flags.decision_ledger_bytes * 9 / 8).next_multiple_of(1 << 20);
        for (name, bytes) in [
            ("decision ledger", ledger),
            ("decision log", ledger::MAX_QUEUED_BYTES + ledger::BATCH_BYTES),
            ("answers", prometheus::RESPONSE_BYTES),
            ("query shapes", samples::SHAPED_QUERY_BYTES),
            ("narrowed queries", samples::GUARDED_QUERY_BYTES),
            ("forms", samples::SHAPE_BYTES),
            ("known queries", samples::KNOWN_QUERY_BYTES),
            ("callers", samples::RECENT_QUERY_BYTES),
            ("metric types", 3 * samples::METRIC_TYPE_BYTES),
            ("unknown metrics", rules::UNKNOWN_NAME_BYTES),
            ("known requests", serve::KNOWN_REQUEST_BYTES),
            ("connections", serve::MAX_REQUEST_BYTES),
        ] {
            assert_eq!(of(name) << 20, bytes, "{name}");
        }
        let all = of("all");
        rows.retain(|(name, _)| *name != "all");
        assert_eq!(rows.iter().map(|(_, mib)| mib).sum::<usize>(), all);
        let chart = include_str!("../deploy/chart/values.yaml");
        let limit =
            chart.split_once("limits: {memory: ").and_then(|(_, rest)| rest.split_once("Mi"));
        let limit: usize = limit.unwrap().0.parse().unwrap();
        // The process itself, and what no budget counts.
        let base = all + 32 + 64;
        assert!(
            text.contains(&format!("resources.limits.memory = {base} MiB + 20 KiB x")),
            "{base}"
        );
        let fits =
            |autoscalers: usize, rules: usize| base + autoscalers * 20 / 1024 + rules <= limit;
        assert!(fits(4_700, 0) && fits(1_400, 64), "{base} MiB, and the limit is {limit}");
        assert!(text.contains(&format!("The chart's limit of {limit} MiB is enough for 4,700 ")));
        assert!(text.contains(", and for 1,400 with rules"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_expires_by_the_clock_of_tokio() {
        let cache = of_bytes(10_000, Duration::from_secs(60), |_, _: &i32| 0);
        cache.insert("a", 1);
        cache.insert_for(Duration::from_secs(10), "b", 2);
        for (seconds, found) in [(9, (Some(1), Some(2))), (50, (Some(1), None)), (1, (None, None))]
        {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            assert_eq!((cache.get("a"), cache.get("b")), found);
        }
    }

    #[test]
    fn a_cache_without_ttl_keeps_nothing() {
        let cache = of_bytes(10_000, Duration::ZERO, |_, _: &i32| 0);
        cache.insert("a", 1);
        assert_eq!(cache.get("a"), None);
    }
}
