//! The rules in force, and the listings of the series that they match.

use super::listing::{LISTING_TIMEOUT, Listings};
use super::metric_rules::{self, MetricRules};
use super::objects::ObjectLister;
use super::registry::{KnownSeries, ObjectMetric, Registry};
use super::retries::Retries;
use super::rule::SeriesQuery;
use super::rule_set::RuleSet;
use crate::clock::Clock;
use crate::prometheus::{Client as Prometheus, decode_series_schemas};
use crate::promql::query::PodQueries;
use crate::reload::Reloadable;
use crate::samples::Store;
use crate::supervise::Spawner;
use crate::time::UnixMillis;
use crate::watch::{Cluster, ResourceMap, Resources};
use futures::{StreamExt, stream};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{Mutex, Notify, watch};
use tokio::time::Instant;

/// The most listings of series at the same time.
const MAX_CONCURRENT_LISTINGS: usize = 8;

/// How often it is checked whether the series of all rules were listed.
const SYNC_INTERVAL: Duration = Duration::from_millis(100);

/// How far the wall clock may be ahead of kube-apiserver's to be corrected by it.
const MAX_CORRECTION_MS: UnixMillis = 24 * 3_600_000;

/// The rules of a configuration, with the known series.
#[derive(Clone)]
pub struct Rules(Arc<Inner>);

struct Inner {
    default: Backend,
    lister: ObjectLister,
    resources: Resources,
    clock: Clock,
    settings: ListingSettings,
    state: RwLock<Arc<RulesState>>,
    /// Held while series are listed.
    relisting: Mutex<()>,
    /// The listings for unknown names.
    listings: Arc<Listings>,
    wake: Notify,
    failing: RwLock<BTreeMap<SeriesQuery, String>>,
    metric_rules: MetricRules,
    /// Counts the changes of the registry.
    changes: watch::Sender<u64>,
}

/// A server, and the store of its results.
#[derive(Clone)]
pub(super) struct Backend {
    prometheus: Prometheus,
    pub(super) samples: Store,
}

/// The parts that [`Rules`] are made of.
pub struct Dependencies {
    /// The Prometheus of the flags.
    pub prometheus: Prometheus,
    /// Its query results.
    pub samples: Store,
    /// A client of the API server.
    pub client: kube::Client,
    /// The index that the watches fill.
    pub cluster: Cluster,
    /// The resources of the cluster.
    pub resources: Resources,
    /// The clock that says since when series are listed.
    pub clock: Clock,
    /// Starts listings.
    pub spawner: Spawner,
    /// The labels of namespaces and pods, by which MetricRules are kept in their namespaces.
    pub pod_queries: Reloadable<PodQueries>,
}

/// How often series are listed.
#[derive(Clone, Copy, Debug)]
pub struct ListingSettings {
    /// The interval of listings.
    pub interval: Duration,
    /// The largest age of a series' last sample.
    pub max_age: Duration,
    /// The TTL of query results.
    pub sample_max_age: Duration,
}

#[derive(Default)]
pub(super) struct RulesState {
    pub(super) rules: Arc<RuleSet>,
    backends: Arc<HashMap<String, Backend>>,
    known: KnownSeries,
    /// The queries that were listed once, or failed.
    tried: BTreeSet<SeriesQuery>,
    pub(super) registry: Registry,
}

impl RulesState {
    /// The state for these rules, with the known series that they match.
    fn new(
        rules: Arc<RuleSet>,
        backends: Arc<HashMap<String, Backend>>,
        mut known: KnownSeries,
        mut tried: BTreeSet<SeriesQuery>,
        map: &ResourceMap,
    ) -> Self {
        let queries = series_queries(&rules);
        known.retain(|query, _| queries.contains(query));
        tried.retain(|query| queries.contains(query));
        let registry = Registry::new(&rules, &known, map);
        Self { rules, backends, known, tried, registry }
    }
}

impl Rules {
    /// Rules of which no series are listed yet.
    pub fn new(rules: RuleSet, settings: ListingSettings, dependencies: Dependencies) -> Self {
        let Dependencies {
            prometheus,
            samples,
            client,
            cluster,
            resources,
            clock,
            spawner,
            pod_queries,
        } = dependencies;
        let metric_rules = MetricRules::new(metric_rules::Dependencies {
            prometheus: prometheus.clone(),
            cluster: cluster.clone(),
            resources: resources.clone(),
            pod_queries,
            interval: settings.interval,
            spawner: spawner.clone(),
        });
        let backends = Arc::new(backends(&rules, &prometheus, &samples, settings));
        let state = RulesState { rules: Arc::new(rules), backends, ..RulesState::default() };
        Self(Arc::new(Inner {
            default: Backend { prometheus, samples },
            lister: ObjectLister { client, cluster },
            resources,
            clock,
            settings,
            state: RwLock::new(Arc::new(state)),
            relisting: Mutex::default(),
            listings: Arc::new(Listings::new(spawner)),
            wake: Notify::new(),
            failing: RwLock::default(),
            metric_rules,
            changes: watch::Sender::default(),
        }))
    }

    pub(super) fn state(&self) -> Arc<RulesState> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The rules in force.
    pub fn rules(&self) -> Arc<RuleSet> {
        self.state().rules.clone()
    }

    /// The resources of the cluster.
    pub fn resources(&self) -> &Resources {
        &self.0.resources
    }

    /// The series queries that fail, with the error.
    pub fn failing(&self) -> BTreeMap<SeriesQuery, String> {
        self.0.failing.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the registry of metrics.
    pub fn read<T>(&self, read: impl FnOnce(&Registry) -> T) -> T {
        read(&self.state().registry)
    }

    /// The MetricRules of the namespaces.
    pub fn metric_rules(&self) -> &MetricRules {
        &self.0.metric_rules
    }

    /// Follows the MetricRules, apart from the administrator's rules: what is slow or fails there delays none of
    /// these. Never ends.
    pub async fn follow_metric_rules(self) {
        let is_administrators =
            |metric: &ObjectMetric| self.read(|registry| registry.custom(metric).is_some());
        let (rules, changes) = (self.0.metric_rules.clone(), self.0.changes.subscribe());
        // Until then it is not known what the administrator's rules serve, or what labels name.
        while !self.has_synced() || self.0.resources.map().is_empty() {
            tokio::time::sleep(SYNC_INTERVAL).await;
        }
        rules.run(is_administrators, changes, || self.listed_since()).await;
    }

    /// Replaces the rules. Known series that the new rules match are kept.
    pub fn replace(&self, rules: RuleSet) {
        let rules = Arc::new(rules);
        let Backend { prometheus, samples } = &self.0.default;
        let backends = Arc::new(backends(&rules, prometheus, samples, self.0.settings));
        self.change(|state, map| {
            let (known, tried) = (state.known.clone(), state.tried.clone());
            RulesState::new(rules, backends, known, tried, map)
        });
        self.0.wake.notify_one();
    }

    /// Replaces the state.
    fn change(&self, change: impl FnOnce(&RulesState, &ResourceMap) -> RulesState) {
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        let new = change(&state, &self.0.resources.map());
        let changed = new.registry != state.registry;
        *state = Arc::new(new);
        drop(state);
        if changed {
            self.0.changes.send_modify(|changes| *changes += 1);
            tracing::debug!("Metrics of rules changed");
        }
    }

    /// Serves the metrics of the known series by the resources of the cluster when these change. Never ends.
    pub async fn follow_resources(self) {
        let mut resources = self.0.resources.changes();
        // The sender is its own: it does not end.
        while resources.changed().await.is_ok() {
            self.change(|state, map| {
                let RulesState { rules, backends, known, tried, .. } = state;
                let (rules, backends) = (rules.clone(), backends.clone());
                RulesState::new(rules, backends, known.clone(), tried.clone(), map)
            });
        }
    }

    /// The lister of objects.
    pub(super) fn lister(&self) -> &ObjectLister {
        &self.0.lister
    }

    /// The server that rules of a state name; without a name, the server of the flags.
    pub(super) fn backend(&self, state: &RulesState, name: Option<&String>) -> Backend {
        let named = name.and_then(|name| state.backends.get(name));
        named.unwrap_or(&self.0.default).clone()
    }

    /// The results of the server of the flags.
    pub(super) fn default_store(&self) -> &Store {
        &self.0.default.samples
    }

    /// Lists the series of all rules at each interval and when rules change, and in between those whose
    /// listing failed: what is not listed is unknown. Never ends.
    pub async fn follow(self) {
        let interval = self.0.settings.interval;
        let mut retries = Retries::new(interval);
        loop {
            let failed = self.relist("interval", None).await;
            let next = Instant::now() + interval;
            retries.note(None, failed);
            loop {
                // All are listed at the next interval.
                let retry = retries.next().filter(|at| *at < next);
                let changed = self.0.wake.notified();
                if tokio::time::timeout_at(retry.unwrap_or(next), changed).await.is_ok() {
                    retries = Retries::new(interval);
                    break;
                }
                if retry.is_none() {
                    break;
                }
                let due = retries.due();
                let failed = self.relist("retry", Some(&due)).await;
                retries.note(Some(&due), failed);
            }
        }
    }

    /// Whether listing the series of all rules has succeeded or failed once. Until then, a rule may
    /// still turn out to serve an unknown metric.
    pub fn has_synced(&self) -> bool {
        let state = self.state();
        series_queries(&state.rules).into_iter().all(|query| state.tried.contains(query))
    }

    /// The time since when series are listed, in Unix seconds.
    fn listed_since(&self) -> f64 {
        // From a time that Prometheus has not reached it would list nothing, and every metric would be gone:
        // a wall clock that is ahead is corrected by kube-apiserver's, unless that is implausible.
        let clock = &self.0.clock;
        let wall = clock.wall_ms();
        let corrects = |server: &UnixMillis| (0..=MAX_CORRECTION_MS).contains(&(wall - *server));
        let now = clock.server().filter(corrects).unwrap_or(wall);
        (now as f64 / 1000.0 - self.0.settings.max_age.as_secs_f64()).max(0.0)
    }

    /// Lists the series of these queries, or of all rules. Returns the queries that failed: their known
    /// series are kept, and the others are listed.
    async fn relist(
        &self,
        reason: &'static str,
        only: Option<&BTreeSet<SeriesQuery>>,
    ) -> BTreeSet<SeriesQuery> {
        let _guard = self.0.relisting.lock().await;
        self.0.default.prometheus.count_listing(reason);
        let state = self.state();
        let since = self.listed_since();
        let mut queries = series_queries(&state.rules);
        let count = queries.len();
        queries.retain(|query| only.is_none_or(|only| only.contains(*query)));
        let queries: Vec<SeriesQuery> = queries.into_iter().cloned().collect();
        let list = async |query: SeriesQuery| {
            let prometheus = self.backend(&state, query.backend.as_ref()).prometheus;
            let body = prometheus.series(&query.selector, since, &[]).await;
            let schemas = body.and_then(|body| body.read(decode_series_schemas));
            let schemas = schemas.map_err(|error| error.to_string());
            (query, schemas)
        };
        let listed: Vec<_> = stream::iter(queries)
            .map(list)
            .buffer_unordered(MAX_CONCURRENT_LISTINGS)
            .collect()
            .await;
        let listed_now: BTreeSet<SeriesQuery> =
            listed.iter().map(|(query, _)| query.clone()).collect();
        let mut failed = BTreeMap::new();
        let mut fresh: HashMap<SeriesQuery, _> = HashMap::new();
        for (query, schemas) in listed {
            match schemas {
                Ok(schemas) => {
                    fresh.insert(query, Arc::new(schemas));
                }
                Err(error) => {
                    tracing::warn!(
                        series_query = %query,
                        error,
                        "Failed to list series, keeping the known ones"
                    );
                    failed.insert(query, error);
                }
            }
        }
        let names: BTreeSet<SeriesQuery> = failed.keys().cloned().collect();
        let mut failing = self.0.failing.write().unwrap_or_else(PoisonError::into_inner);
        failing.retain(|query, _| only.is_some() && !listed_now.contains(query));
        failing.extend(failed);
        self.0.default.prometheus.show_series_queries(count, failing.len());
        drop(failing);
        self.change(|state, map| {
            // If rules were replaced in the meantime, theirs are listed next.
            let mut known = state.known.clone();
            known.extend(fresh);
            let tried = &state.tried | &listed_now;
            RulesState::new(state.rules.clone(), state.backends.clone(), known, tried, map)
        });
        names
    }

    /// Whether there are rules for metrics of objects.
    pub(super) fn any_custom(&self) -> bool {
        !self.state().rules.custom.is_empty()
    }

    /// Finds the source of a metric. If it is unknown, series are listed first.
    pub(super) async fn known<T>(
        &self,
        name: &str,
        find: impl Fn(&RulesState) -> Option<T>,
    ) -> Option<T> {
        if let Some(found) = find(&self.state()) {
            return Some(found);
        }
        let rules = self.clone();
        let listed = self
            .0
            .listings
            .list_for(name, async move { rules.relist("unknown", None).await.is_empty() });
        let _ = tokio::time::timeout(LISTING_TIMEOUT, listed?).await;
        find(&self.state())
    }
}

fn series_queries(rules: &RuleSet) -> BTreeSet<&SeriesQuery> {
    rules.custom.iter().chain(&rules.external).map(|rule| &rule.series).collect()
}

/// The servers that rules name. They share the memory budget of
/// the server of the flags.
fn backends(
    rules: &RuleSet,
    default: &Prometheus,
    samples: &Store,
    settings: ListingSettings,
) -> HashMap<String, Backend> {
    let backend = |(name, prometheus): (&String, &Prometheus)| {
        let prometheus = prometheus.clone().sharing_budget(default);
        let samples = samples.sharing_budget(prometheus.clone(), settings.sample_max_age);
        (name.clone(), Backend { prometheus, samples })
    };
    rules.backends.iter().map(backend).collect()
}
