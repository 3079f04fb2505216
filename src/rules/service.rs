//! Rules at work: which metrics there are now, and their values.

use super::listing::{Listings, PATIENCE};
use super::registry::{KnownSeries, ObjectMetric, Registry};
use super::rule::{Rule, RuleSet, SeriesQuery};
use super::usage::{ResourceRules, UsageRule};
use crate::hpa::UnixMillis;
use crate::k8s::{Quantity, Selector};
use crate::prometheus::{Client as Prometheus, NoSample, decode_shapes};
use crate::promql::matcher::{Matcher, is_label_name};
use crate::promql::query::{Query, times};
use crate::samples::{Asked, Asker, MetricError, ObjectSample, Samples, Store};
use crate::watch::{Cluster, GroupResource, ObjectKey, ResourceInfo, ResourceMap, Resources};
use futures::{StreamExt, stream};
use kube::Api;
use kube::api::{ListParams, ObjectMeta};
use kube::core::DynamicObject;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tokio::sync::{Mutex, Notify};

/// The rules of a configuration, with what is known of their series.
#[derive(Clone)]
pub struct Rules(Arc<Inner>);

struct Inner {
    default: Backend,
    client: kube::Client,
    cluster: Cluster,
    resources: Resources,
    settings: Settings,
    state: RwLock<Arc<State>>,
    /// One listing runs at a time.
    relisting: Mutex<()>,
    /// Those that unknown names bring on.
    listings: Arc<Listings>,
    wake: Notify,
    failing: RwLock<BTreeMap<SeriesQuery, String>>,
}

/// A server, and the samples that came from it.
#[derive(Clone)]
struct Backend {
    prometheus: Prometheus,
    samples: Store,
}

/// How often series are listed.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The time between two listings.
    pub interval: Duration,
    /// How far back a series may have had its last sample.
    pub max_age: Duration,
    /// How old an answer may be to be used again.
    pub sample_max_age: Duration,
}

#[derive(Default)]
struct State {
    rules: Arc<RuleSet>,
    backends: Arc<HashMap<String, Backend>>,
    known: KnownSeries,
    /// The series that were listed once, or could not be.
    tried: BTreeSet<SeriesQuery>,
    registry: Registry,
}

impl State {
    /// The state under these rules, with what is known of the series they ask for.
    fn new(
        rules: Arc<RuleSet>,
        backends: Arc<HashMap<String, Backend>>,
        mut known: KnownSeries,
        mut tried: BTreeSet<SeriesQuery>,
        map: &ResourceMap,
    ) -> Self {
        let wanted = series_queries(&rules);
        known.retain(|query, _| wanted.contains(query));
        tried.retain(|query| wanted.contains(query));
        let registry = Registry::new(&rules, &known, map);
        Self { rules, backends, known, tried, registry }
    }
}

/// An object's value of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectValue {
    /// The object's name.
    pub name: String,
    /// The value.
    pub value: Quantity,
    /// When it was measured.
    pub time: UnixMillis,
}

/// The values of a metric for objects of one resource.
pub struct ObjectValues {
    /// What the objects are.
    pub resource: ResourceInfo,
    /// Their values, in the order of the objects.
    pub values: Vec<ObjectValue>,
    /// What was asked for them.
    pub asked: Asked,
}

/// Why there is no value.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub enum Failure {
    /// No rule gives the metric, or not with such a selector, or there are no such objects.
    #[error("no rule gives the metric")]
    NotFound,
    /// The metric has no value for the object.
    #[error("the metric has no value for the object")]
    NoValue,
    /// The objects can't be listed.
    #[error("unable to list matching resources: {0}")]
    Unlistable(String),
    /// The request's selector names what is no label of a series.
    #[error("{0:?} is no label of a series")]
    Label(String),
    /// The query can't be made.
    #[error("unable to make the query: {0}")]
    Query(String),
    /// The query failed.
    #[error(transparent)]
    Metric(#[from] MetricError),
}

/// How many listings run at once.
const AT_ONCE: usize = 8;
/// How long listing objects may take.
const LISTING: Duration = Duration::from_secs(10);

impl Rules {
    /// Rules over these parts; nothing is listed yet.
    pub fn new(
        rules: RuleSet,
        prometheus: Prometheus,
        samples: Store,
        client: kube::Client,
        cluster: Cluster,
        resources: Resources,
        settings: Settings,
    ) -> Self {
        let backends = Arc::new(backends(&rules, &prometheus, &samples, settings));
        let state = State { rules: Arc::new(rules), backends, ..State::default() };
        Self(Arc::new(Inner {
            default: Backend { prometheus, samples },
            client,
            cluster,
            resources,
            settings,
            state: RwLock::new(Arc::new(state)),
            relisting: Mutex::default(),
            listings: Arc::default(),
            wake: Notify::new(),
            failing: RwLock::default(),
        }))
    }

    fn state(&self) -> Arc<State> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The rules in force.
    pub fn rules(&self) -> Arc<RuleSet> {
        self.state().rules.clone()
    }

    /// The resources of the cluster that rules speak of.
    pub fn resources(&self) -> &Resources {
        &self.0.resources
    }

    /// The series queries that fail now, and why.
    pub fn failing(&self) -> BTreeMap<SeriesQuery, String> {
        self.0.failing.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks at the metrics there are.
    pub fn read<T>(&self, look: impl FnOnce(&Registry) -> T) -> T {
        look(&self.state().registry)
    }

    /// Puts other rules in force. What is known of series that both ask for is kept.
    pub fn replace(&self, rules: RuleSet) {
        let rules = Arc::new(rules);
        let map = self.0.resources.map();
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        let Backend { prometheus, samples } = &self.0.default;
        let backends = Arc::new(backends(&rules, prometheus, samples, self.0.settings));
        let (known, tried) = (state.known.clone(), state.tried.clone());
        *state = Arc::new(State::new(rules, backends, known, tried, &map));
        drop(state);
        self.0.wake.notify_one();
    }

    /// The server of a name; that of the flags where there is none.
    fn backend(&self, name: Option<&String>) -> Backend {
        let named = name.and_then(|name| self.state().backends.get(name).cloned());
        named.unwrap_or_else(|| self.0.default.clone())
    }

    /// Lists series every so often, and when rules change, for ever.
    pub async fn follow(self) {
        loop {
            self.relist("interval").await;
            let _ = tokio::time::timeout(self.0.settings.interval, self.0.wake.notified()).await;
        }
    }

    /// Whether the series of all rules were listed, or could not be: until then a
    /// metric that no rule gives may be one that a rule will give.
    pub fn is_settled(&self) -> bool {
        let state = self.state();
        series_queries(&state.rules).into_iter().all(|query| state.tried.contains(query))
    }

    /// Lists the series of all rules; whether all could be listed. A query that
    /// fails keeps what was known of it, and harms no other.
    async fn relist(&self, reason: &'static str) -> bool {
        let _one = self.0.relisting.lock().await;
        self.0.default.prometheus.count_listing(reason);
        let rules = self.rules();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let since = now.saturating_sub(self.0.settings.max_age).as_secs_f64();
        let queries: Vec<SeriesQuery> = series_queries(&rules).into_iter().cloned().collect();
        let list = async |query: SeriesQuery| {
            let prometheus = self.backend(query.backend.as_ref()).prometheus;
            let body = prometheus.series(&query.selector, since).await;
            let shapes = body.and_then(|body| decode_shapes(&body));
            let shapes = shapes.map_err(|error| error.to_string());
            (query, shapes)
        };
        let listed: Vec<_> =
            stream::iter(queries).map(list).buffer_unordered(AT_ONCE).collect().await;
        let tried: BTreeSet<SeriesQuery> = listed.iter().map(|(query, _)| query.clone()).collect();
        let mut failing = BTreeMap::new();
        let mut fresh: HashMap<SeriesQuery, _> = HashMap::new();
        for (query, shapes) in listed {
            match shapes {
                Ok(shapes) => {
                    fresh.insert(query, Arc::new(shapes));
                }
                Err(error) => {
                    tracing::warn!(
                        series_query = %query,
                        error,
                        "could not list series; what is known of them stays"
                    );
                    failing.insert(query, error);
                }
            }
        }
        let whole = failing.is_empty();
        *self.0.failing.write().unwrap_or_else(PoisonError::into_inner) = failing;
        let map = self.0.resources.map();
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        // Other rules may have come meanwhile; they are listed next.
        let mut known = state.known.clone();
        known.extend(fresh);
        let new = State::new(state.rules.clone(), state.backends.clone(), known, tried, &map);
        let changed = new.registry != state.registry;
        *state = Arc::new(new);
        drop(state);
        if changed {
            tracing::debug!("the metrics of rules changed");
        }
        whole
    }

    /// Whether any rule could give metrics at all.
    fn any_custom(&self) -> bool {
        !self.state().rules.custom.is_empty()
    }

    /// What gives a metric, with a listing where it is not known yet.
    async fn known<T>(&self, name: &str, find: impl Fn(&State) -> Option<T>) -> Option<T> {
        if let Some(found) = find(&self.state()) {
            return Some(found);
        }
        let rules = self.clone();
        let listed = self.0.listings.list_for(name, async move { rules.relist("unknown").await });
        let _ = tokio::time::timeout(PATIENCE, listed?).await;
        find(&self.state())
    }

    /// What an asked resource is, and the values of a metric for one object (a
    /// name), or those that a selector selects; where `timed`, with the times at
    /// which they were measured. A request without a namespace is for what has none.
    ///
    /// # Errors
    /// As [`Failure`] says.
    pub async fn objects(
        &self,
        namespace: &str,
        resource: &GroupResource,
        which: Which<'_>,
        metric: &str,
        series: &Selector,
        timed: bool,
    ) -> Result<ObjectValues, Failure> {
        if !self.any_custom() {
            return Err(Failure::NotFound);
        }
        let Some(info) = self.0.resources.find(resource).await else {
            return Err(match which {
                Which::Name(_) => Failure::NotFound,
                Which::Selector(_) => {
                    Failure::Unlistable(format!("the cluster has no resource {resource}"))
                }
            });
        };
        let key = ObjectMetric {
            resource: info.name.clone(),
            namespaced: !namespace.is_empty(),
            metric: metric.to_owned(),
        };
        let name = format!("{}/{metric}", info.name);
        let found = self.known(&name, |state| {
            let source = state.registry.custom(&key)?;
            Some((state.rules.clone(), source.clone()))
        });
        let (rules, source) = found.await.ok_or(Failure::NotFound)?;
        let names = match which {
            Which::Name(name) => vec![name.to_owned()],
            Which::Selector(selector) => self.names(&info, namespace, selector).await?,
        };
        if names.is_empty() {
            return Err(Failure::NotFound);
        }
        let rule = &rules.custom[source.rule];
        let (query, label) =
            self.object_query(rule, &source.series, &info.name, namespace, names.clone(), series)?;
        let samples = self.backend(rule.series.backend.as_ref()).samples;
        let found = samples.objects(&query, label, timed, &Asker::of(namespace)).await?;
        let by_name = found.by_object();
        let value = |name: String| {
            // Of several series the last counts, as in prometheus-adapter.
            let ObjectSample { value, time } = by_name.all(&name).last()?;
            Some(ObjectValue { name, value, time })
        };
        let single = matches!(which, Which::Name(_));
        let values: Vec<ObjectValue> = names.into_iter().filter_map(value).collect();
        if values.is_empty() && single {
            return Err(Failure::NoValue);
        }
        Ok(ObjectValues { resource: info, values, asked: found.samples.asked().clone() })
    }

    fn object_query(
        &self,
        rule: &Rule,
        series: &str,
        resource: &GroupResource,
        namespace: &str,
        names: Vec<String>,
        selector: &Selector,
    ) -> Result<(Query, String), Failure> {
        let map = self.0.resources.map();
        let label = rule.labels.label(resource, &map).ok_or(Failure::NotFound)?;
        let namespaces = rule.labels.label(&GroupResource::core("namespaces"), &map);
        let mut matchers = selector_matchers(selector)?;
        if !namespace.is_empty() {
            let label = namespaces.as_deref().ok_or(Failure::NotFound)?;
            // No part of a selector may stand for the namespace.
            matchers.push((label, Matcher::Is(namespace.to_owned())));
        }
        matchers.push((&label, Matcher::any_of(names)));
        let group_by = std::slice::from_ref(&label);
        let query = rule.render(series, &matchers, group_by).map_err(Failure::Query)?;
        let times = times(series, &matchers, group_by);
        Ok((Query { values: query.into(), times }, label))
    }

    /// The names of the objects that a selector selects.
    async fn names(
        &self,
        info: &ResourceInfo,
        namespace: &str,
        selector: &Selector,
    ) -> Result<Vec<String>, Failure> {
        if info.name == GroupResource::core("pods") && !namespace.is_empty() {
            let pods = self.pods(Some(namespace), None, selector, false).await?;
            return Ok(pods.into_keys().map(|key| key.name).collect());
        }
        let objects = self.list(info, namespace, selector).await?;
        Ok(objects.into_iter().map(|(name, _)| name).collect())
    }

    /// The pods that a selector selects, by namespace and name, with their labels: of one
    /// namespace or all, one of them or all, running or any. They come from the index, or,
    /// as long as not all are known there, from the API server.
    ///
    /// # Errors
    /// Where they can't be listed.
    pub async fn pods(
        &self,
        namespace: Option<&str>,
        name: Option<&str>,
        selector: &Selector,
        running: bool,
    ) -> Result<BTreeMap<ObjectKey, Arc<BTreeMap<String, String>>>, Failure> {
        let key = |namespace: &str, name: &str| ObjectKey {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let known = self.0.cluster.read(|index| {
            let namespaces = namespace.map_or_else(|| index.namespaces(), |one| vec![one]);
            let of = |namespace| {
                let selected = index.select(namespace, selector).into_iter();
                let wanted = selected.filter(|(named, pod)| {
                    name.is_none_or(|name| name == *named)
                        && (!running || pod.phase == crate::hpa::Phase::Running)
                });
                wanted.map(move |(name, pod)| (key(namespace, name), pod.labels.clone()))
            };
            index.pods_known().then(|| namespaces.into_iter().flat_map(of).collect())
        });
        if let Some(known) = known {
            return Ok(known);
        }
        let fields = name.map(|name| format!("metadata.name={name}")).into_iter();
        let fields = fields.chain(running.then(|| "status.phase=Running".to_owned()));
        let fields = fields.collect::<Vec<_>>().join(",");
        let info = pod_info();
        let pods = self.metadata(&info, namespace.unwrap_or_default(), selector, &fields);
        let pods = pods.await?.into_iter().filter_map(|pod| {
            let labels = Arc::new(pod.labels.unwrap_or_default());
            Some((key(&pod.namespace?, &pod.name?), labels))
        });
        Ok(pods.collect())
    }

    /// The names and labels of the objects that a selector selects, from the API server.
    ///
    /// # Errors
    /// Where they can't be listed.
    pub async fn list(
        &self,
        info: &ResourceInfo,
        namespace: &str,
        selector: &Selector,
    ) -> Result<Vec<(String, BTreeMap<String, String>)>, Failure> {
        let objects = self.metadata(info, namespace, selector, "").await?.into_iter();
        Ok(objects.filter_map(|o| Some((o.name?, o.labels.unwrap_or_default()))).collect())
    }

    async fn metadata(
        &self,
        info: &ResourceInfo,
        namespace: &str,
        selector: &Selector,
        fields: &str,
    ) -> Result<Vec<ObjectMeta>, Failure> {
        let resource = info.api_resource();
        let client = self.0.client.clone();
        let api: Api<DynamicObject> = match (namespace, info.namespaced) {
            ("", _) | (_, false) => Api::all_with(client, &resource),
            (namespace, true) => Api::namespaced_with(client, namespace, &resource),
        };
        let parameters = ListParams::default().labels(&selector.to_string()).fields(fields);
        let listing = tokio::time::timeout(LISTING, api.list_metadata(&parameters)).await;
        let unlistable = |error: String| {
            tracing::warn!(resource = %info.name, namespace, error, "could not list objects");
            Failure::Unlistable(error)
        };
        let list = listing
            .map_err(|_| unlistable(format!("the API server did not answer within {LISTING:?}")))?
            .map_err(|error| unlistable(error.to_string()))?;
        Ok(list.items.into_iter().map(|object| object.metadata).collect())
    }

    /// The values of an external metric, as asked for from a namespace.
    ///
    /// # Errors
    /// As [`Failure`] says.
    pub async fn external(
        &self,
        namespace: &str,
        metric: &str,
        selector: &Selector,
    ) -> Result<Samples, Failure> {
        if self.state().rules.external.is_empty() {
            return Err(Failure::NotFound);
        }
        let found = self.known(metric, |state| {
            Some((state.rules.clone(), state.registry.external(metric)?.clone()))
        });
        let (rules, source) = found.await.ok_or(Failure::NotFound)?;
        let rule = &rules.external[source.rule];
        let (asked_from, namespace) = (namespace, rule.namespace.as_deref().unwrap_or(namespace));
        let map = self.0.resources.map();
        let label = rule.labels.label(&GroupResource::core("namespaces"), &map);
        let mut matchers = selector_matchers(selector).map_err(|failure| match failure {
            // Unlike for objects this is a fault of the request, not an unknown metric.
            Failure::NotFound => Failure::Query("the selector can't be asked of series".to_owned()),
            other => other,
        })?;
        if rule.namespaced && !namespace.is_empty() {
            let label = label.as_deref().ok_or_else(|| {
                Failure::Query(
                    "no label names namespaces: resources.overrides or resources.template must, or resources.namespaced be false"
                        .to_owned(),
                )
            })?;
            matchers.push((label, Matcher::Is(namespace.to_owned())));
        }
        let query = rule.render(&source.series, &matchers, &[]).map_err(Failure::Query)?;
        let samples = self.backend(rule.series.backend.as_ref()).samples;
        let found = samples.series(&query.into(), &Asker::of(asked_from)).await?;
        // Their sum without one of them would be too small.
        if found.no_sample() == Some(NoSample::TooLarge) {
            return Err(MetricError::Series(
                "a value of the query is beyond 64 bits of thousandths (9.2e15): divide it in the query"
                    .to_owned(),
            )
            .into());
        }
        Ok(found)
    }
}

/// Which objects are asked for.
#[derive(Clone, Copy, Debug)]
pub enum Which<'a> {
    /// The one of this name.
    Name(&'a str),
    /// Those that it selects.
    Selector(&'a Selector),
}

fn selector_matchers(selector: &Selector) -> Result<Vec<(&str, Matcher)>, Failure> {
    let matcher = |requirement| {
        let matcher = Matcher::of(requirement).ok_or(Failure::NotFound)?;
        let label = requirement.key.as_str();
        if !is_label_name(label) {
            return Err(Failure::Label(label.to_owned()));
        }
        Ok((label, matcher))
    };
    selector.requirements().iter().map(matcher).collect()
}

fn series_queries(rules: &RuleSet) -> BTreeSet<&SeriesQuery> {
    rules.custom.iter().chain(&rules.external).map(|rule| &rule.series).collect()
}

/// The servers that rules name; their answers and caches are counted with those of
/// the one of the flags.
fn backends(
    rules: &RuleSet,
    default: &Prometheus,
    beside: &Store,
    settings: Settings,
) -> HashMap<String, Backend> {
    let backend = |(name, prometheus): (&String, &Prometheus)| {
        let prometheus = prometheus.clone().sharing(default);
        let samples = beside.beside(prometheus.clone(), settings.sample_max_age);
        (name.clone(), Backend { prometheus, samples })
    };
    rules.backends.iter().map(backend).collect()
}

/// What pods use.
pub struct PodsUsage {
    /// By pod.
    pub by_pod: BTreeMap<String, PodUsage>,
    /// What was asked for it.
    pub asked: [Asked; 2],
}

/// What a pod uses, by container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodUsage {
    /// CPU in cores and memory in bytes, by container.
    pub containers: BTreeMap<String, (Quantity, Quantity)>,
    /// The time of the oldest sample.
    pub time: UnixMillis,
}

/// What a node uses.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeUsage {
    /// CPU in cores.
    pub cpu: Quantity,
    /// Memory in bytes.
    pub memory: Quantity,
    /// The time of the older sample.
    pub time: UnixMillis,
}

impl Rules {
    /// What pods of a namespace use, by pod. A pod is there only with samples of
    /// both CPU and memory; a container without one of them has 0 of it.
    ///
    /// # Errors
    /// Where there are no such rules, or a query fails.
    pub async fn pod_usage(
        &self,
        namespace: &str,
        pods: Vec<String>,
    ) -> Result<PodsUsage, Failure> {
        let rules = self.rules();
        let rules = rules.resource.as_ref().ok_or(Failure::NotFound)?;
        let map = self.0.resources.map();
        let query = |rule: &UsageRule| rule.containers(&map, namespace, pods.clone());
        let [(cpu, cpu_label), (memory, memory_label)] =
            self.usage(rules, &Asker::of(namespace), query).await?;
        // Each pod is found by its name: an answer may have those of many others.
        let (by_cpu, by_memory) = (cpu.by(&cpu_label), memory.by(&memory_label));
        let mut by_pod = BTreeMap::new();
        for name in pods {
            let mut pod = PodUsage { time: UnixMillis::MAX, ..PodUsage::default() };
            let mut of_cpu = 0;
            for sampled in by_cpu.get(&name) {
                of_cpu += 1;
                let container = sampled.label(&rules.cpu.container_label).to_owned();
                pod.containers.entry(container).or_default().0 = positive(sampled.value());
                pod.time = pod.time.min(sampled.time());
            }
            let mut of_memory = 0;
            for sampled in by_memory.get(&name) {
                of_memory += 1;
                let container = sampled.label(&rules.memory.container_label).to_owned();
                pod.containers.entry(container).or_default().1 = positive(sampled.value());
                pod.time = pod.time.min(sampled.time());
            }
            if of_cpu > 0 && of_memory > 0 {
                by_pod.insert(name, pod);
            }
        }
        Ok(PodsUsage { by_pod, asked: [cpu.asked().clone(), memory.asked().clone()] })
    }

    /// The series of CPU and of memory, each with the label that names its object.
    async fn usage(
        &self,
        rules: &ResourceRules,
        asker: &Asker,
        query: impl Fn(&UsageRule) -> Result<(String, String), String>,
    ) -> Result<[(Samples, String); 2], Failure> {
        let samples = self.backend(rules.backend.as_ref()).samples;
        let ask = async |rule| -> Result<_, Failure> {
            let (query, label) = query(rule).map_err(Failure::Query)?;
            Ok((samples.series(&query.into(), asker).await?, label))
        };
        let (cpu, memory) = tokio::try_join!(ask(&rules.cpu), ask(&rules.memory))?;
        Ok([cpu, memory])
    }

    /// What nodes use, by node; those alone that have samples of both.
    ///
    /// # Errors
    /// Where there are no such rules, or a query fails.
    pub async fn node_usage(
        &self,
        nodes: Vec<String>,
    ) -> Result<BTreeMap<String, NodeUsage>, Failure> {
        let rules = self.rules();
        let rules = rules.resource.as_ref().ok_or(Failure::NotFound)?;
        let map = self.0.resources.map();
        let query = |rule: &UsageRule| rule.nodes(&map, nodes.clone());
        let [(cpu, cpu_label), (memory, memory_label)] =
            self.usage(rules, &Asker::of(""), query).await?;
        let (cpu, memory) = (cpu.by(&cpu_label), memory.by(&memory_label));
        let usage = nodes.into_iter().filter_map(|node| {
            let (cpu, memory) = (cpu.get(&node).next()?, memory.get(&node).next()?);
            let usage = NodeUsage {
                cpu: positive(cpu.value()),
                memory: positive(memory.value()),
                time: cpu.time().min(memory.time()),
            };
            Some((node, usage))
        });
        Ok(usage.collect())
    }
}

/// Usage is never below nothing.
fn positive(value: Quantity) -> Quantity {
    if value.is_positive() { value } else { Quantity::default() }
}

/// Pods, as discovery describes them.
pub fn pod_info() -> ResourceInfo {
    ResourceInfo {
        name: GroupResource::core("pods"),
        version: "v1".to_owned(),
        singular: "pod".to_owned(),
        kind: "Pod".to_owned(),
        namespaced: true,
    }
}
