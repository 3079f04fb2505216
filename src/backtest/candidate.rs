//! An autoscaler that is tried.

use super::stop::Stop;
use crate::hpa::{
    Context, ControllerConfig, MetricSource, PodContainer, Requests, ResourceList, ResourceTarget,
    ScalarTarget, Spec,
};
use crate::k8s::Quantity;
use crate::promql::constant::{OfLoad, is_constant};
use crate::promql::name::metric_of;
use crate::promql::query::PrometheusMetric;
use crate::time::UnixMillis;
use crate::watch::parse_spec;
use k8s_openapi::api::autoscaling::v2::{MetricSpec, MetricTarget};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// The period where neither the flag nor the Autoscaler says another one.
const PERIOD: Duration = Duration::from_secs(15);

/// The range of the rate of CPU, in ms.
const CPU_WINDOW_MS: i64 = 120_000;

/// The most pods that a load needs, so that sums over decisions stay whole numbers.
const MAX_PODS: i64 = 1_000_000_000;

/// Why a metric with a `value` as its target is not tried.
const OF_NO_LOAD: &str = "its target is a value, which the same load is as far from with any number of pods, so that nothing says how many it needs: an averageValue was expected";
/// Why what is found with memory is doubtful.
const MEMORY: &str = "memory is taken for a load that the pods share, which it is not where each holds much of it whatever its load";

/// An autoscaler that is tried.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// Its namespace; empty if it is not known.
    pub namespace: String,
    /// Its spec, as the decision reads it.
    pub spec: Spec,
    /// Its `syncPeriodSeconds`.
    pub period: Option<Duration>,
    /// The metrics of the spec, in its order.
    pub metrics: Vec<Measure>,
    /// Why little that is found can be trusted: metrics that are left out, or are probably no load.
    pub doubts: Vec<String>,
    /// Ends its runs.
    pub stop: Stop,
    /// The requests of each of its pods, in the unit of the resource, by resource and container.
    requests: BTreeMap<(String, Option<String>), f64>,
}

/// A metric of an autoscaler that is tried.
#[derive(Clone, Debug)]
pub struct Measure {
    /// Its name in messages.
    pub name: String,
    /// What tells it from the others, in whatever namespace: its `metricName`, `cpu/app` of a container, or `requests#2` of the
    /// second one of a name.
    pub key: String,
    /// What it is a metric of.
    pub of: Of,
    /// What is queried in Prometheus; none for metrics of rules, and for resources.
    pub query: Option<PrometheusMetric>,
    /// The load of one pod by the target as it is written, in the metric's unit. For a utilization it is the percentage
    /// until the request is known.
    pub(super) target: f64,
    /// What one pod carries, if that is not the target.
    pub pod_carries: Option<f64>,
    /// What the target and what a pod carries are multiples of, in the metric's unit: a hundredth of the request for a
    /// utilization whose request is known.
    unit: f64,
    /// The target is a utilization.
    pub is_utilization: bool,
    /// It is said to be a load, whatever its name says.
    pub is_load: bool,
    /// How its value follows from that of the only metric with a load; none where it does not.
    pub(super) of_load: Option<OfLoad>,
}

/// What a metric has one value for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Of {
    /// Each pod.
    Pods,
    /// The workload as a whole.
    Workload,
    /// An object that stands for the workload, such as its Ingress.
    Object,
    /// CPU or memory of each pod, or of one container of it.
    Resource {
        /// The resource: `cpu` or `memory`.
        resource: String,
        /// The container; none for all of a pod.
        container: Option<String>,
    },
}

impl Candidate {
    /// The candidate of an Autoscaler's spec.
    ///
    /// # Errors
    /// If the spec is invalid, or the need for pods follows from the value of none of its metrics.
    pub fn new(name: &str, namespace: &str, spec: Value) -> Result<Self, String> {
        let parsed = parse_spec(spec, namespace, name).map_err(|error| error.to_string())?;
        let (crd, scaling) = (parsed.spec, parsed.scaling);
        let written = crd.as_hpa(namespace, name).metrics.unwrap_or_default();
        let (mut metrics, mut tried, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        for (index, metric) in scaling.spec.metrics.iter().enumerate() {
            if let Some(name) = of_no_load(&metric.source) {
                left_out.push(format!("the metric {name}: {OF_NO_LOAD}"));
                continue;
            }
            let written = written.get(index).and_then(written_average);
            let measure = Measure::new(&metric.source, written)?;
            let query =
                scaling.prometheus_metrics.get(index).and_then(|one| one.as_deref().cloned());
            metrics.push(Measure { query, ..measure });
            tried.push(metric.clone());
        }
        set_keys(&mut metrics);
        follow(&mut metrics);
        if metrics.is_empty() {
            return Err(left_out.into_iter().next().unwrap_or_else(|| "it has no metric".into()));
        }
        let doubts = left_out.into_iter().map(|why| format!("left out is {why}"));
        let memory = metrics.iter().any(Measure::is_memory).then(|| MEMORY.to_owned());
        let doubts = doubts.chain(memory).collect();
        let spec = Spec { metrics: tried.into(), ..scaling.spec };
        let period = crd.sync_period_seconds;
        let period = period.map(|seconds| Duration::from_secs(seconds.unsigned_abs().into()));
        Ok(Self {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            spec,
            period,
            metrics,
            doubts,
            stop: Stop::default(),
            requests: BTreeMap::new(),
        })
    }

    /// Its only metric with a load, which a file has. The values of its others follow from that.
    ///
    /// # Errors
    /// If there are more, or its load is in no file.
    pub fn only_metric(&self) -> Result<&Measure, String> {
        let (others, loads): (Vec<&Measure>, Vec<&Measure>) =
            self.metrics.iter().partition(|metric| metric.is_constant());
        let wanted = |metric: &Measure, what: &str| {
            Err(format!("the metric {}: a {what} the load was expected", metric.name))
        };
        match (&*loads, others.iter().find(|metric| metric.of_load.is_none())) {
            ([], _) => wanted(others[0], "query whose values grow with"),
            ([metric], _) if matches!(metric.of, Of::Resource { .. }) => Err("its metric: one of pods, or an Object or External metric with an averageValue was expected: a file of load says nothing of others".to_owned()),
            ([_], Some(other)) => wanted(other, "value that follows from"),
            ([metric], None) => Ok(metric),
            (more, _) => Err(format!("{} metrics: one was expected, with an averageValue", more.len())),
        }
    }

    /// What is given for a metric: by its key, or by its name if no other has it, generated or as it is written.
    ///
    /// # Errors
    /// If it is given by a name that several metrics have.
    pub fn given<'a, T>(
        &self,
        metric: &Measure,
        all: &'a BTreeMap<String, T>,
    ) -> Result<Option<&'a T>, String> {
        if let Some(given) = all.get(&metric.key) {
            return Ok(Some(given));
        }
        let mut given = metric.names().filter_map(|name| Some((name, all.get(name)?)));
        let Some((name, given)) = given.next() else { return Ok(None) };
        // It may be the key of another one.
        Ok(self.named(name)?.filter(|named| named.key == metric.key).map(|_| given))
    }

    /// The metric that a name tells: its key, or a name that no other has; none if none has it.
    ///
    /// # Errors
    /// If several metrics have this name.
    pub fn named(&self, name: &str) -> Result<Option<&Measure>, String> {
        if let Some(metric) = self.metrics.iter().find(|metric| metric.key == name) {
            return Ok(Some(metric));
        }
        let same = self.metrics.iter().filter(|metric| metric.names().any(|one| one == name));
        match &*same.collect::<Vec<_>>() {
            [] => Ok(None),
            [metric] => Ok(Some(metric)),
            same => Err(format!(
                "{name}: {} metrics have this name; {} was expected",
                same.len(),
                same.iter().map(|metric| &*metric.key).collect::<Vec<_>>().join(" or ")
            )),
        }
    }

    /// The metric is the length of a queue, of which a pod completes so many entries in a second: that is what it carries.
    ///
    /// # Errors
    /// If it has not one metric whose load can be that.
    pub(super) fn set_service_rate(&mut self, rate: f64) -> Result<(), String> {
        self.only_metric()?;
        match self.metrics[0].is_constant() {
            true => {
                Err("its first metric: the length of a queue was expected, which is a load".into())
            }
            false => {
                self.metrics[0].pod_carries = Some(rate);
                Ok(())
            }
        }
    }

    /// The request of a resource that each pod has, in the unit of the resource. The utilization of it becomes what a
    /// pod carries.
    pub fn set_request(&mut self, resource: &str, container: Option<&str>, request: f64) {
        let key = (resource.to_owned(), container.map(str::to_owned));
        if self.requests.insert(key, request).is_some() {
            return;
        }
        for metric in &mut self.metrics {
            let Of::Resource { resource: of, container: only } = &metric.of else { continue };
            if of == resource && only.as_deref() == container && metric.is_utilization {
                metric.unit = request / 100.0;
                metric.target *= metric.unit;
                metric.pod_carries = metric.pod_carries.map(|carries| carries * metric.unit);
            }
        }
    }

    /// The requests of each of its pods.
    pub fn requests(&self) -> Requests {
        let mut of_pod = ResourceList::new();
        let mut containers: BTreeMap<&str, ResourceList> = BTreeMap::new();
        for ((resource, container), request) in &self.requests {
            let list = match container {
                Some(container) => containers.entry(container).or_default(),
                None => &mut of_pod,
            };
            let quantity = Quantity::from_milli((request * 1000.0).round() as i64);
            list.insert(resource.clone(), quantity);
        }
        let containers = containers.into_iter();
        let container =
            |(name, requests): (&str, _)| PodContainer { name: name.to_owned(), requests };
        Requests::new(
            containers.map(container).collect(),
            Vec::new(),
            &of_pod,
            &ResourceList::new(),
        )
    }

    /// The period of its decisions in ms, if a flag does not say another one.
    pub fn period_ms(&self, flag: Option<Duration>) -> i64 {
        millis(flag.or(self.period).unwrap_or(PERIOD)).max(1)
    }

    /// The window of samples that Prometheus has for each step, in ms: CPU is a rate.
    pub fn sample_window_ms(&self, step: i64) -> i64 {
        let is_cpu = |of: &Of| matches!(of, Of::Resource { resource, .. } if resource == "cpu");
        match self.metrics.iter().any(|metric| is_cpu(&metric.of)) {
            true => step.max(CPU_WINDOW_MS),
            false => step,
        }
    }

    /// The longest time that its decisions look back, in ms.
    pub fn window_ms(&self) -> i64 {
        let config = ControllerConfig::default();
        let context = Context::new(&self.spec, &config, 0);
        context.windows().into_iter().max().unwrap_or_default()
    }

    /// The least replicas.
    pub fn min(&self) -> i32 {
        self.spec.min_replicas
    }

    /// The least pods that are needed at a time: `minReplicas`, or fewer where a schedule allows fewer. One that asks for more
    /// says nothing of the load.
    pub(super) fn least_needed(&self, context: Context<'_>) -> i32 {
        bounds(context)[0].min(self.spec.min_replicas)
    }

    /// The same at a time.
    pub(super) fn least_needed_at(&self, now: UnixMillis) -> i32 {
        self.least_needed(Context::new(&self.spec, &ControllerConfig::default(), now))
    }

    /// The pods that a load of each metric needs where so many are the least; none if one is unknown.
    pub fn needed(&self, loads: &[Option<f64>], least: i32) -> Option<i64> {
        self.carried_by(loads).map(|pods| pods.max(least.into()))
    }

    /// The same without a least number. Without one of several metrics, fewer pods would be needed than in truth.
    pub fn carried_by(&self, loads: &[Option<f64>]) -> Option<i64> {
        let is_known = loads.iter().all(Option::is_some);
        is_known.then(|| self.pods(loads, Measure::carries)).flatten()
    }

    /// The pods that the targets ask for with a load of each metric where so many are the least; none if all are unknown.
    pub fn asked(&self, loads: &[Option<f64>], least: i32) -> Option<i64> {
        self.pods(loads, |metric| metric.target).map(|pods| pods.max(least.into()))
    }

    /// How much more a pod carries than the target, in percent: of the metric of which it is least.
    pub fn headroom(&self) -> f64 {
        let loads = self.metrics.iter().filter(|metric| !metric.is_constant());
        loads.map(Measure::headroom).fold(f64::INFINITY, f64::min)
    }

    /// The candidate of another spec for the same pods: they request and carry as much as those of this one.
    ///
    /// # Errors
    /// As [`new`](Self::new), or if it has other metrics.
    pub fn with_spec(&self, spec: Value) -> Result<Self, String> {
        let mut other = Self::new(&self.name, &self.namespace, spec)?;
        other.stop = self.stop.clone();
        if other.metrics.len() != self.metrics.len() {
            return Err("as many metrics were expected".to_owned());
        }
        for ((resource, container), request) in &self.requests {
            other.set_request(resource, container.as_deref(), *request);
        }
        for (metric, own) in other.metrics.iter_mut().zip(&self.metrics) {
            metric.pod_carries = Some(own.carries());
        }
        Ok(other)
    }

    fn pods(&self, loads: &[Option<f64>], of_pod: impl Fn(&Measure) -> f64) -> Option<i64> {
        let of = |(metric, load): (&Measure, &Option<f64>)| {
            load.map(|load| ((load / of_pod(metric)).ceil() as i64).min(MAX_PODS))
        };
        self.metrics.iter().zip(loads).filter_map(of).max()
    }
}

impl Measure {
    /// Its name in messages, and that as it is written.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        [&*self.name, self.written()].into_iter()
    }

    /// Its name in Prometheus, which is the `metricName` of an Autoscaler, or else that in messages.
    pub fn written(&self) -> &str {
        self.query.as_ref().map_or(&*self.name, |query| &*query.metric)
    }

    /// Whether its query has no load in its values: it is a bound.
    pub fn is_constant(&self) -> bool {
        self.own_query().is_some_and(is_constant)
    }

    fn own_query(&self) -> Option<&str> {
        self.query.as_ref()?.query.as_deref()
    }

    /// What one pod carries, in the metric's unit.
    pub fn carries(&self) -> f64 {
        self.pod_carries.unwrap_or(self.target)
    }

    /// The same in the unit of the target: percent of the request for a utilization.
    pub fn carries_as_target(&self) -> f64 {
        self.carries() / self.unit
    }

    /// Sets what one pod carries in that unit.
    pub fn set_carries_as_target(&mut self, carries: f64) {
        self.pod_carries = Some(carries * self.unit);
    }

    /// How much more a pod carries than the target, in percent.
    pub fn headroom(&self) -> f64 {
        (self.carries() / self.target - 1.0) * 100.0
    }

    fn new(source: &MetricSource, written: Option<f64>) -> Result<Self, String> {
        let metric = |name: &str, of: Of, target: f64| Self {
            name: name.to_owned(),
            key: name.to_owned(),
            of,
            query: None,
            target,
            pod_carries: None,
            unit: 1.0,
            is_utilization: false,
            is_load: false,
            of_load: None,
        };
        let average = |milli: i64| written.unwrap_or(milli as f64 / 1000.0);
        let resource = |name: &str, container: Option<&String>, target: ResourceTarget| {
            let of = Of::Resource { resource: name.to_owned(), container: container.cloned() };
            match target {
                ResourceTarget::Average(milli) => Ok(metric(name, of, average(milli))),
                ResourceTarget::Utilization(percent) => {
                    Ok(Self { is_utilization: true, ..metric(name, of, percent.into()) })
                }
                ResourceTarget::Invalid => Err(format!("the metric {name}: it has no target")),
            }
        };
        let measure = match source {
            MetricSource::Pods { average_milli, metric: id } => {
                metric(&id.name, Of::Pods, average(*average_milli))
            }
            MetricSource::External { target: ScalarTarget::Average(milli), metric: id } => {
                metric(&id.name, Of::Workload, average(*milli))
            }
            MetricSource::Object { target: ScalarTarget::Average(milli), metric: id, .. } => {
                metric(&id.name, Of::Object, average(*milli))
            }
            MetricSource::Resource { name, target } => resource(name, None, *target)?,
            MetricSource::ContainerResource { name, container, target } => {
                resource(name, Some(container), *target)?
            }
            _ => {
                return Err("its metric: one of pods, CPU or memory, or an Object or External metric with an averageValue was expected: nothing says how others follow from the load".to_owned());
            }
        };
        match measure.target > 0.0 {
            true => Ok(measure),
            false => Err("its averageValue: more than 0 was expected".to_owned()),
        }
    }
}

/// The name of a metric of which no number of pods follows from a load.
fn of_no_load(source: &MetricSource) -> Option<&str> {
    match source {
        MetricSource::Object { metric, target: ScalarTarget::Value(_), .. }
        | MetricSource::External { metric, target: ScalarTarget::Value(_) } => Some(&metric.name),
        _ => None,
    }
}

/// Says of metrics without a load how they follow from the only one that has one.
fn follow(metrics: &mut [Measure]) {
    let mut loads = metrics.iter().filter(|metric| !metric.is_constant());
    let (Some(load), None) = (loads.next(), loads.next()) else { return };
    let load = load.own_query().map(str::to_owned);
    for metric in metrics.iter_mut().filter(|metric| metric.is_constant()) {
        let query = metric.own_query();
        metric.of_load = query.and_then(|query| OfLoad::read(query, load.as_deref()));
    }
}

/// A container is part of the key, and a number where that leaves several with the same. The labels, the namespace and the
/// name of the autoscaler, which a generated name has, are not: an object may be copied.
fn set_keys(metrics: &mut [Measure]) {
    for metric in &mut *metrics {
        metric.key = match &metric.of {
            Of::Resource { container: Some(container), .. } => {
                format!("{}/{container}", metric.name)
            }
            _ => metric_of(metric.written()).to_owned(),
        };
    }
    let keys: Vec<String> = metrics.iter().map(|metric| metric.key.clone()).collect();
    for (index, metric) in metrics.iter_mut().enumerate() {
        let same = |keys: &[String]| keys.iter().filter(|key| **key == metric.key).count();
        if same(&keys) > 1 {
            let number = same(&keys[..=index]);
            metric.key = format!("{}#{number}", metric.key);
        }
    }
}

/// The bounds of a decision. Without schedules they are those that are written, also where the least is above the most.
pub(super) fn bounds(context: Context<'_>) -> [i32; 2] {
    match context.spec.schedules.is_empty() {
        true => [context.spec.min_replicas, context.spec.max_replicas],
        false => [context.bounds.min, context.bounds.max],
    }
}

/// The `averageValue` of a metric, which the decision reads in whole thousandths.
fn written_average(metric: &MetricSpec) -> Option<f64> {
    let targets: [Option<&MetricTarget>; 5] = [
        metric.pods.as_ref().map(|pods| &pods.target),
        metric.external.as_ref().map(|external| &external.target),
        metric.object.as_ref().map(|object| &object.target),
        metric.resource.as_ref().map(|resource| &resource.target),
        metric.container_resource.as_ref().map(|resource| &resource.target),
    ];
    let text = &targets.into_iter().flatten().next()?.average_value.as_ref()?.0;
    text.parse().ok().or_else(|| text.parse().ok().map(Quantity::as_f64))
}

/// A duration in ms.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
