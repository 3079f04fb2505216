//! The MetricRules in force, and the listings of their series, apart from those of the administrator's rules.

use super::super::registry::ObjectMetric;
use super::compiled::{CompiledRule, Guarded, Listing, PodLabels, Source, guarded};
use super::namespace::{NamespaceRules, View};
use super::standing::Standing;
use crate::blocking;
use crate::prometheus::{Client, Flow, decode_series_schemas};
use crate::promql::query::PodQueries;
use crate::reload::Reloadable;
use crate::supervise::Spawner;
use crate::watch::{Cluster, Resources};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{Mutex, oneshot, watch};
use tokio::time::Instant;

/// The most listings in flight, each of another namespace.
const MAX_CONCURRENT_LISTINGS: usize = 8;
/// The longest time that the patterns of a rule may take for its series.
const LISTING_BUDGET: Duration = Duration::from_secs(2);
/// How often it is checked whether the configuration of the labels has changed.
const LABELS_INTERVAL: Duration = Duration::from_secs(1);

/// The MetricRules in force. Cheap to clone.
#[derive(Clone)]
pub struct MetricRules(Arc<Inner>);

struct Inner {
    dependencies: Dependencies,
    views: RwLock<HashMap<String, Arc<View>>>,
    guarded: Guarded,
    /// Held while the patterns of a rule are tried: however many namespaces have slow ones, one core is kept busy.
    computing: Mutex<()>,
}

/// The parts that [`MetricRules`] are made of.
pub struct Dependencies {
    /// The Prometheus of the flags.
    pub prometheus: Client,
    /// The index that the watches fill.
    pub cluster: Cluster,
    /// The resources of the cluster.
    pub resources: Resources,
    /// The labels of namespaces and pods.
    pub pod_queries: Reloadable<PodQueries>,
    /// The interval of listings.
    pub interval: Duration,
    /// Starts listings.
    pub spawner: Spawner,
}

/// A listing that has ended.
struct Ended {
    namespace: String,
    rule: Arc<CompiledRule>,
    listing: Result<Listing, String>,
    /// How long its patterns took.
    took: Duration,
}

impl MetricRules {
    /// Rules of which no series are listed yet.
    pub fn new(dependencies: Dependencies) -> Self {
        Self(Arc::new(Inner {
            dependencies,
            views: RwLock::default(),
            guarded: guarded(),
            computing: Mutex::default(),
        }))
    }

    fn view(&self, namespace: &str) -> Option<Arc<View>> {
        self.0.views.read().unwrap_or_else(PoisonError::into_inner).get(namespace).cloned()
    }

    /// Whether a namespace has any.
    pub fn any(&self, namespace: &str) -> bool {
        self.0.dependencies.cluster.read(|index| index.has_metric_rules(namespace))
    }

    /// What a metric of a namespace is queried from.
    pub fn find(&self, namespace: &str, metric: &ObjectMetric) -> Option<Source> {
        self.view(namespace)?.metrics.get(metric).cloned()
    }

    /// Whether a metric of a namespace is still queried from this.
    pub fn is_current(&self, namespace: &str, metric: &ObjectMetric, source: &Source) -> bool {
        self.find(namespace, metric).is_some_and(|now| {
            Arc::ptr_eq(&now.rule, &source.rule)
                && (&now.series, &now.label) == (&source.series, &source.label)
                && *now.rule.labels() == self.labels()
        })
    }

    /// Whether a metric of this name is known to be served in a namespace.
    pub fn knows(&self, namespace: &str, name: &str) -> bool {
        self.view(namespace).is_some_and(|view| view.metrics.keys().any(|key| key.metric == name))
    }

    /// Whether the series of all rules of a namespace were listed once, or could not be. Until then, a rule may
    /// still turn out to serve an unknown metric.
    pub fn has_synced(&self, namespace: &str) -> bool {
        !self.any(namespace) || self.view(namespace).is_some_and(|view| view.synced)
    }

    /// How the rules stand: the oldest of each namespace first. The same until something of the namespace changes.
    pub fn standings(&self) -> Vec<Arc<Standing>> {
        let views: Vec<Arc<View>> =
            self.0.views.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        let mut standings: Vec<(usize, Arc<Standing>)> =
            views.iter().flat_map(|view| view.standings.iter().cloned().enumerate()).collect();
        // No namespace with many makes the others wait.
        standings.sort_by(|(a, of_a), (b, of_b)| (a, &of_a.key).cmp(&(b, &of_b.key)));
        standings.into_iter().map(|(_, standing)| standing).collect()
    }

    /// The labels of namespaces and pods.
    pub fn labels(&self) -> PodLabels {
        PodLabels::of(&self.0.dependencies.pod_queries.load())
    }

    /// Follows the objects, and lists their series: few at a time, one of a namespace, at each interval, soon after
    /// a change, and ever less often after a failure. `is_administrators` says whether a rule of the administrator
    /// serves a metric, and `changes` when that changes; `since` gives the time since when series are listed. Never
    /// ends.
    pub async fn run(
        self,
        is_administrators: impl Fn(&ObjectMetric) -> bool,
        mut changes: watch::Receiver<u64>,
        since: impl Fn() -> f64,
    ) {
        let Dependencies { cluster, interval, .. } = &self.0.dependencies;
        let mut namespaces: HashMap<String, NamespaceRules> = HashMap::new();
        let mut labels = self.labels();
        let (mut listings, mut busy) = (FuturesUnordered::new(), HashSet::new());
        // Kept from turn to turn: a namespace that is busy must not put it off.
        let mut compare = Instant::now() + LABELS_INTERVAL;
        let mut resources = self.0.dependencies.resources.changes();
        loop {
            if Instant::now() >= compare {
                compare = Instant::now() + LABELS_INTERVAL;
                let now = self.labels();
                if now != labels {
                    labels = now;
                    for namespace in namespaces.keys().cloned().collect::<Vec<_>>() {
                        self.update(&mut namespaces, &namespace, &labels);
                        self.publish(&mut namespaces, &namespace, &is_administrators);
                    }
                }
            }
            let mut wake = compare;
            while listings.len() < MAX_CONCURRENT_LISTINGS {
                let idle = namespaces.iter().filter(|(namespace, _)| !busy.contains(*namespace));
                let next = idle.filter_map(|(namespace, rules)| Some((rules.next()?, namespace)));
                let Some(((due, rule), namespace)) = next.min_by_key(|((due, _), _)| *due) else {
                    break;
                };
                if due > Instant::now() {
                    wake = wake.min(due);
                    break;
                }
                let namespace = namespace.clone();
                if let Some(rules) = namespaces.get_mut(&namespace) {
                    rules.begin();
                }
                busy.insert(namespace.clone());
                listings.push(self.start(namespace, rule, since()));
            }
            tokio::select! {
                changed = cluster.metric_rule_changes() => {
                    for namespace in changed {
                        self.update(&mut namespaces, &namespace, &labels);
                        self.publish(&mut namespaces, &namespace, &is_administrators);
                    }
                }
                Some(Ended { namespace, rule, listing, took }) = listings.next() => {
                    busy.remove(&namespace);
                    if let Some(rules) = namespaces.get_mut(&namespace) {
                        rules.end(&rule, listing, *interval, took);
                    }
                    self.publish(&mut namespaces, &namespace, &is_administrators);
                }
                Ok(()) = changes.changed() => {
                    for namespace in namespaces.keys().cloned().collect::<Vec<_>>() {
                        self.publish(&mut namespaces, &namespace, &is_administrators);
                    }
                }
                // Of series that named no objects, a label may be a resource's now.
                Ok(()) = resources.changed() => {
                    namespaces.values_mut().for_each(NamespaceRules::list_unnamed_again);
                }
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    /// Takes over the objects of a namespace.
    fn update(
        &self,
        namespaces: &mut HashMap<String, NamespaceRules>,
        namespace: &str,
        labels: &PodLabels,
    ) {
        let records = self.0.dependencies.cluster.read(|index| index.metric_rules(namespace));
        let rules = namespaces
            .entry(namespace.to_owned())
            .or_insert_with(|| NamespaceRules::new(namespace));
        blocking::run(|| rules.update(records, labels, &self.0.guarded));
    }

    /// Shows readers what a namespace serves by now.
    fn publish(
        &self,
        namespaces: &mut HashMap<String, NamespaceRules>,
        namespace: &str,
        is_administrators: &impl Fn(&ObjectMetric) -> bool,
    ) {
        let view = namespaces.get(namespace).filter(|rules| !rules.is_empty());
        let view = view.map(|rules| Arc::new(rules.view(is_administrators)));
        let mut views = self.0.views.write().unwrap_or_else(PoisonError::into_inner);
        match view {
            Some(view) => {
                views.insert(namespace.to_owned(), view);
            }
            None => {
                views.remove(namespace);
                namespaces.remove(namespace);
            }
        }
    }

    /// Lists the series of a rule in a task of its own: what its patterns cost must not hold up the loop, which serves
    /// all namespaces.
    fn start(
        &self,
        namespace: String,
        rule: Arc<CompiledRule>,
        since: f64,
    ) -> impl Future<Output = Ended> + use<> {
        let (sender, ended) = oneshot::channel();
        let (rules, of, name) = (self.clone(), rule.clone(), namespace.clone());
        self.0.dependencies.spawner.spawn(async move {
            let _ = sender.send(rules.list(&name, &of, since).await);
        });
        async move {
            let failed =
                || (Err("Plimsoll failed on this rule: simplify it".to_owned()), LISTING_BUDGET);
            let (listing, took) = ended.await.unwrap_or_else(|_| failed());
            Ended { namespace, rule, listing, took }
        }
    }

    async fn list(
        &self,
        namespace: &str,
        rule: &Arc<CompiledRule>,
        since: f64,
    ) -> (Result<Listing, String>, Duration) {
        let Dependencies { prometheus, resources, .. } = &self.0.dependencies;
        prometheus.count_listing("metric_rule");
        let flows = [Flow::User(namespace.into())];
        let body = match prometheus.series(&rule.selector, since, &flows).await {
            Ok(body) => body,
            Err(error) => return (Err(error.to_string()), Duration::ZERO),
        };
        let _guard = self.0.computing.lock().await;
        let began = Instant::now();
        let listing = blocking::run(|| {
            let schemas = body.read(decode_series_schemas).map_err(|error| error.to_string())?;
            rule.listing(&schemas, &resources.map(), began + LISTING_BUDGET)
        });
        (listing, began.elapsed())
    }
}
