//! One MetricRule, compiled and kept in its namespace.

use super::super::compile::compile_metric_rule;
use super::super::registry::ObjectMetric;
use super::super::rule::{Rule, is_cluster_wide};
use crate::cache::{self, Cache};
use crate::crd::MetricRuleSpec;
use crate::prometheus::SeriesSchema;
use crate::promql::guard::within_namespace;
use crate::promql::matcher::Matcher;
use crate::promql::narrow::{OBJECTS, series_selector, with_objects};
use crate::promql::query::{PodQueries, Query, render_users, times};
use crate::promql::template::Template;
use crate::watch::{GroupResource, ResourceMap};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The most metrics that one rule serves.
pub(super) const MAX_METRICS: usize = 100;
/// The most kinds of series, by name and labels, that one rule may select.
const MAX_SCHEMAS: usize = 1_000;
/// The most bytes of the name of a series, a metric or a label.
const MAX_NAME_BYTES: usize = 253;

/// What is said of a rule whose patterns take too long.
const TOO_SLOW: &str = "the series take too long to go through: simplify the patterns of seriesFilters, name.matches and resources, or select fewer series";

/// The administrator's labels of namespaces and pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodLabels {
    namespace: String,
    pod: String,
}

impl PodLabels {
    /// Those of a configuration.
    pub fn of(queries: &PodQueries) -> Self {
        Self { namespace: queries.namespace_label.clone(), pod: queries.pod_label.clone() }
    }
}

/// The queries that were kept in their namespaces, by label, namespace and text, or why not. Those of a selector are
/// the same in each evaluation.
pub(super) type Guarded = Cache<(String, String, String), GuardedQuery>;

type GuardedQuery = Result<Arc<str>, String>;

/// An empty cache of guarded queries.
pub(super) fn guarded() -> Guarded {
    let weigh = |(label, namespace, text): &(String, String, String), guarded: &GuardedQuery| {
        let guarded = guarded.as_ref().map_or_else(String::len, |text| text.len());
        label.len() + namespace.len() + text.len() + guarded
    };
    cache::of_bytes(4 << 20, Duration::from_secs(600), weigh)
}

/// A MetricRule that is valid.
#[derive(Debug)]
pub struct CompiledRule {
    guarded: Guarded,
    namespace: String,
    labels: PodLabels,
    spec: Arc<MetricRuleSpec>,
    /// The selector of its series in the namespace.
    pub(super) selector: String,
    query: Template,
}

/// The metrics that a rule makes of series.
#[derive(Debug)]
pub(super) struct Listing {
    /// At most [`MAX_METRICS`], sorted, each with the name of its series and the label that names its objects.
    pub(super) metrics: Vec<(ObjectMetric, Source)>,
    /// How many there are.
    pub(super) total: usize,
    /// Whether there are any series.
    pub(super) any_series: bool,
}

/// What a metric of a MetricRule is queried from.
#[derive(Clone, Debug)]
pub struct Source {
    pub(super) rule: Arc<CompiledRule>,
    pub(super) series: Arc<str>,
    /// The label that names the objects.
    pub(in super::super) label: Arc<str>,
}

impl CompiledRule {
    /// Compiles a rule of a namespace.
    ///
    /// # Errors
    /// If it is invalid; the text names the field.
    pub fn new(
        spec: &Arc<MetricRuleSpec>,
        namespace: &str,
        labels: &PodLabels,
        guarded: &Guarded,
    ) -> Result<Self, String> {
        without_panic(|| {
            let Rule { query, .. } = compile_metric_rule(spec, &labels.namespace, &labels.pod)?;
            let rule = Self {
                guarded: guarded.clone(),
                namespace: namespace.to_owned(),
                labels: labels.clone(),
                spec: spec.clone(),
                selector: series_selector(&spec.series_query, &labels.namespace, namespace)
                    .map_err(|error| format!("spec.seriesQuery: {error}"))?,
                query,
            };
            // What is wrong with every query is told before the first.
            let names = ["first".to_owned(), "second".to_owned()];
            let tried = rule.narrowed("metric", &labels.pod, &names, &[]);
            tried.map_err(|error| format!("spec.metricsQuery: {error}"))?;
            Ok(rule)
        })
    }

    /// The labels that it was compiled for.
    pub(super) fn labels(&self) -> &PodLabels {
        &self.labels
    }

    /// The metrics that it makes of series of the namespace.
    ///
    /// # Errors
    /// If there are too many kinds of series, or it takes until `deadline`.
    pub(super) fn listing(
        self: &Arc<Self>,
        schemas: &[SeriesSchema],
        map: &ResourceMap,
        deadline: Instant,
    ) -> Result<Listing, String> {
        if schemas.len() > MAX_SCHEMAS {
            return Err(format!(
                "spec.seriesQuery selects series of more than {MAX_SCHEMAS} names and sets of labels: select fewer"
            ));
        }
        // Compiled again: compiled patterns would take more memory than all else.
        let compile = || compile_metric_rule(&self.spec, &self.labels.namespace, &self.labels.pod);
        let rule = without_panic(compile)?;
        let (mut metrics, mut seen) = (BTreeMap::new(), HashSet::new());
        // Each resource's label is made once, and kept once.
        let mut labels: HashMap<GroupResource, Option<Arc<str>>> = HashMap::new();
        let hasher = RandomState::new();
        let in_time = || Instant::now() < deadline;
        for schema in schemas {
            if !in_time() {
                return Err(TOO_SLOW.to_owned());
            }
            let is_named = schema.name.len() <= MAX_NAME_BYTES && rule.matches_series(&schema.name);
            let Some(metric) = is_named.then(|| rule.name.render(&schema.name)).flatten() else {
                continue;
            };
            if metric.is_empty() || metric.len() > MAX_NAME_BYTES {
                continue;
            }
            let series: Arc<str> = schema.name.as_str().into();
            let short = schema.labels.iter().filter(|label| label.len() <= MAX_NAME_BYTES);
            let short = short.map(String::as_str).take_while(|_| in_time());
            let (resources, _) = rule.labels.resources(short, map);
            for resource in resources {
                if !in_time() {
                    return Err(TOO_SLOW.to_owned());
                }
                let namespaced = map.find(&resource).is_some_and(|info| info.namespaced);
                if !namespaced || is_cluster_wide(&resource) {
                    continue;
                }
                let label = labels.entry(resource.clone()).or_insert_with(|| {
                    rule.labels.label(&resource, map).map(|label| label.as_str().into())
                });
                let Some(label) = label.clone() else { continue };
                if label.len() > MAX_NAME_BYTES {
                    return Err(format!(
                        "spec.resources: the label of {resource} takes {} bytes, at most {MAX_NAME_BYTES} were expected",
                        label.len()
                    ));
                }
                let source = Source { rule: self.clone(), series: series.clone(), label };
                let key = ObjectMetric { resource, namespaced, metric: metric.clone() };
                // Of those that are not served only a hash is kept, to count them.
                seen.insert(hasher.hash_one(&key));
                metrics.insert(key, source);
                if metrics.len() > MAX_METRICS {
                    metrics.pop_last();
                }
            }
        }
        if !in_time() {
            return Err(TOO_SLOW.to_owned());
        }
        let (total, any_series) = (seen.len(), !schemas.is_empty());
        Ok(Listing { metrics: metrics.into_iter().collect(), total, any_series })
    }

    /// The query for these objects of its namespace, each of whose selectors is kept there. Several names are left
    /// to be put in.
    fn narrowed(
        &self,
        series: &str,
        label: &str,
        names: &[String],
        selector: &[(&str, Matcher)],
    ) -> Result<Query, String> {
        let mut matchers = selector.to_vec();
        // Last, so that no requirement of the selector can replace them.
        matchers.push((&self.labels.namespace, Matcher::Is(self.namespace.clone())));
        let object = if let [one] = names { one } else { OBJECTS };
        matchers.push((label, Matcher::Is(object.to_owned())));
        let group_by = [label.to_owned()];
        let values = self.guard(&render_users(&self.query, series, &matchers, &group_by)?)?;
        let times = times(series, &matchers, &group_by);
        Ok(Query { values, times: times.and_then(|query| self.guard(&query).ok()) })
    }

    /// Keeps a query in the namespace.
    fn guard(&self, query: &str) -> Result<Arc<str>, String> {
        if query.is_empty() {
            return Err("the template gives no query".to_owned());
        }
        let key = (self.labels.namespace.clone(), self.namespace.clone(), query.to_owned());
        if let Some(known) = self.guarded.get(&key) {
            return known;
        }
        let guarded = within_namespace(query, &self.labels.namespace, &self.namespace, &[]);
        let guarded = guarded.map(Arc::from).map_err(|error| error.to_string());
        self.guarded.insert(key, guarded.clone());
        guarded
    }
}

impl Source {
    /// The query for these objects, and whether the rule was compiled for these labels.
    ///
    /// # Errors
    /// If it can't be made.
    pub fn query(
        &self,
        names: &[String],
        selector: &[(&str, Matcher)],
        labels: &PodLabels,
    ) -> Result<Query, String> {
        if self.rule.labels != *labels {
            return Err("the configuration of the labels has just changed".to_owned());
        }
        without_panic(|| {
            let Query { values, times } =
                self.rule.narrowed(&self.series, &self.label, names, selector)?;
            let fill = |query: &str| match names {
                [_] => Ok(query.to_owned()),
                _ => with_objects(query, names),
            };
            let times = times.and_then(|query| fill(&query).ok());
            Ok(Query { values: fill(&values)?.into(), times: times.map(Into::into) })
        })
    }
}

/// Checks a rule of a namespace, by the default labels.
///
/// # Errors
/// If it is invalid; the text names the field.
pub fn check(spec: MetricRuleSpec, namespace: &str) -> Result<(), String> {
    let labels = PodLabels { namespace: "namespace".to_owned(), pod: "pod".to_owned() };
    CompiledRule::new(&Arc::new(spec), namespace, &labels, &guarded()).map(drop)
}

/// What users write must not end a task, whatever it finds in the code that reads it.
fn without_panic<T>(compute: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let failed = "Plimsoll failed on this rule: simplify it, and report it as a bug";
    catch_unwind(AssertUnwindSafe(compute)).unwrap_or_else(|_| Err(failed.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::{RuleName, RuleResource, RuleResources};
    use crate::watch::ResourceInfo;

    fn labels() -> PodLabels {
        PodLabels { namespace: "namespace".to_owned(), pod: "pod".to_owned() }
    }

    fn spec(series: &str, query: &str) -> MetricRuleSpec {
        MetricRuleSpec {
            series_query: series.to_owned(),
            series_filters: Vec::new(),
            resources: None,
            name: RuleName::default(),
            metrics_query: query.to_owned(),
        }
    }

    fn compiled(spec: MetricRuleSpec) -> Result<Arc<CompiledRule>, String> {
        CompiledRule::new(&Arc::new(spec), "shop", &labels(), &guarded()).map(Arc::new)
    }

    fn map() -> ResourceMap {
        let info = |resource: &str, singular: &str, namespaced| ResourceInfo {
            name: GroupResource::core(resource),
            version: "v1".to_owned(),
            singular: singular.to_owned(),
            kind: String::new(),
            namespaced,
        };
        ResourceMap::of(vec![
            info("namespaces", "namespace", false),
            info("nodes", "node", false),
            info("pods", "pod", true),
            info("services", "service", true),
            info("gizmos", "gizmo", false),
        ])
    }

    fn schema(name: &str, labels: &[&str]) -> SeriesSchema {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        SeriesSchema { name: name.to_owned(), labels }
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    const SUM: &str = "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)";

    #[test]
    fn an_error_names_the_field() {
        let mut named = spec("x", SUM);
        named.name.matches = "(".to_owned();
        let mut group = spec("x_total", SUM);
        group.name =
            RuleName { matches: "^(.*)_total$".to_owned(), r#as: "$1_per_second".to_owned() };
        let mut huge = spec("x", SUM);
        huge.name.matches = "(a{1000}){1000}".to_owned();
        let mut template = spec("x", SUM);
        template.resources =
            Some(RuleResources { template: "a".to_owned(), overrides: BTreeMap::new() });
        for (spec, expected) in [
            (named, "spec.name.matches: \"(\" is no regular expression"),
            (huge, "spec.name.matches: "),
            (
                group,
                "spec.name.as: \"$1_per_second\": matches has no group 1_per_second: write ${1}_per",
            ),
            (template, "spec.resources.template: <<.Resource>> is missing"),
            (spec("x", "<<.Nothing>>"), "spec.metricsQuery: .Nothing is not known"),
            (spec("x", "sum("), "spec.metricsQuery: "),
            (spec("x", "info(x)"), "spec.metricsQuery: the function info()"),
            (spec("x", ""), "spec.metricsQuery: the template gives no query"),
            (spec("sum(x)", SUM), "spec.seriesQuery: one selector"),
        ] {
            let error = compiled(spec).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn only_objects_in_namespaces_are_described() {
        let mut all = spec("{__name__!=\"\"}", SUM);
        all.resources =
            Some(RuleResources { template: "<<.Resource>>".to_owned(), ..Default::default() });
        let rule = compiled(all).unwrap();
        assert_eq!(rule.selector, "{__name__!=\"\",namespace=\"shop\"}");
        let labels = ["namespace", "pod", "node", "gizmo", "service", "zone"];
        let long = "l".repeat(254);
        let schemas = [schema("hits", &labels), schema("hits", &["pod"]), schema(&long, &["pod"])];
        let listing = rule.listing(&schemas, &map(), later()).unwrap();
        let names: Vec<String> = listing
            .metrics
            .iter()
            .map(|(key, _)| format!("{}/{}", key.resource, key.metric))
            .collect();
        assert_eq!(names, ["pods/hits", "services/hits"]);
        let many: Vec<_> = (0..150).map(|n| schema(&format!("m{n}"), &["pod"])).collect();
        let listing = rule.listing(&many, &map(), later()).unwrap();
        assert_eq!((listing.metrics.len(), listing.total), (MAX_METRICS, 150));
        let many: Vec<_> = (0..1_001).map(|n| schema(&format!("m{n}"), &["pod"])).collect();
        assert!(rule.listing(&many, &map(), later()).unwrap_err().contains("select fewer"));
    }

    #[test]
    fn a_label_is_short_and_made_once_for_each_resource() {
        let with_template = |template: &str| {
            let mut spec = spec("{__name__!=\"\"}", SUM);
            let template = template.to_owned();
            spec.resources = Some(RuleResources { template, ..Default::default() });
            compiled(spec).unwrap()
        };
        let schemas: Vec<_> = (0..50).map(|n| schema(&format!("m{n}"), &["pod"])).collect();
        let listing = with_template("<<.Resource>>").listing(&schemas, &map(), later()).unwrap();
        let label = |at: usize| &listing.metrics[at].1.label;
        assert!(Arc::ptr_eq(label(0), label(49)));
        // It is another one than the pattern, which is made of the same template.
        let long =
            "<<if eq .Resource \"pod\">><<printf \"%999s\" .Resource>><<else>><<.Resource>><<end>>";
        let error = with_template(long).listing(&schemas, &map(), later()).unwrap_err();
        assert!(error.contains("the label of pods takes 999 bytes"), "{error}");
        let doubles = "<<if eq .Resource \"pod\">><<$x := printf \"%999s\" .Resource>><<$x = print $x $x $x $x>><<$x = print $x $x $x $x>><<$x>><<else>><<.Resource>><<end>>";
        assert_eq!(with_template(doubles).listing(&schemas, &map(), later()).unwrap().total, 0);
    }

    #[test]
    fn a_listing_ends_in_time() {
        let rule = compiled(spec("hits", SUM)).unwrap();
        let schemas = [schema("hits", &["pod"])];
        let error = rule.listing(&schemas, &map(), Instant::now()).unwrap_err();
        assert!(error.contains("too long"), "{error}");
        let mut bomb = spec("hits", SUM);
        bomb.name.matches = r"(?:[a\u{e9}]?){300}\b!|x{300}".to_owned();
        let bomb = compiled(bomb).unwrap();
        let many: Vec<_> =
            (0..1_000).map(|n| schema(&format!("{}{n}", "\u{e9}".repeat(120)), &["pod"])).collect();
        let deadline = Instant::now() + Duration::from_millis(100);
        assert!(bomb.listing(&many, &map(), deadline).unwrap_err().contains("too long"));
        assert!(deadline.elapsed() < Duration::from_secs(5), "{:?}", deadline.elapsed());
        for usual in [
            r"^(\w+)_total$",
            r"^(\w+)_(\w+)$",
            r"^container_(.*)_seconds_(?:total|sum)$",
            r"^[a-zA-Z_:]{1,100}$",
        ] {
            let mut rule = spec("hits", SUM);
            rule.name = RuleName { matches: usual.to_owned(), r#as: "x".to_owned() };
            compiled(rule).unwrap();
        }
    }

    #[test]
    fn a_query_is_short_before_it_is_parsed() {
        let long = "<<$x := printf \"%999s\" .Series>>".to_owned() + &"<<$x>>".repeat(40);
        let loops = (0..250).map(|n| format!("<<$v{n} := 1>>")).collect::<String>()
            + &"<<range $.LabelValuesByName>>".repeat(13)
            + &"<<$v0>>".repeat(30)
            + &"<<end>>".repeat(13);
        for (template, expected) in [(long, "32768 bytes"), (loops, "65536 bytes")] {
            let error = compiled(spec("hits", &template)).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        // A name that needs quotes is put into a query that was parsed.
        let sum = ["<<.Series>>{<<.LabelMatchers>>}"; 30].join(" or ");
        let rule = compiled(spec("hits", &sum)).unwrap();
        let quoted = format!("a.{}", "b".repeat(250));
        let narrowed = |series: &str| rule.narrowed(series, "pod", &["web".to_owned()], &[]);
        assert!(narrowed("a").is_ok());
        assert!(narrowed("a.b").unwrap().values.contains("a.b"));
        // The names alone take 37 KiB.
        let error = narrowed(&quoted.repeat(5)).unwrap_err();
        assert!(error.contains("32768 bytes"), "{error}");
    }

    #[test]
    fn no_query_leaves_the_namespace() {
        let hostile = r#"sum by (pod) (<<.Series>>{<<.LabelMatchers>>}) or secret{namespace="bank"} or vault"#;
        let mut overridden = spec("hits", hostile);
        let resource =
            |name: &str| RuleResource { group: String::new(), resource: name.to_owned() };
        overridden.resources = Some(RuleResources {
            template: String::new(),
            // The label of the namespace is the administrator's, whatever the rule says.
            overrides: [
                ("other".to_owned(), resource("namespace")),
                ("pod".to_owned(), resource("pod")),
            ]
            .into(),
        });
        for spec in [spec("hits", hostile), overridden] {
            let rule = compiled(spec).unwrap();
            let listing = rule.listing(&[schema("hits", &["pod"])], &map(), later()).unwrap();
            let (_, source) = &listing.metrics[0];
            let selector = [("namespace", Matcher::Is("bank".to_owned()))];
            let names = ["a".to_owned(), "b".to_owned()];
            let Query { values, times } = source.query(&names, &selector, &labels()).unwrap();
            assert_eq!(values.matches(r#"namespace="shop""#).count(), 4, "{values}");
            assert!(values.contains(r#"vault{namespace="shop"}"#), "{values}");
            assert!(values.contains(r#"secret{namespace="bank",namespace="shop"}"#), "{values}");
            assert!(values.contains(r#"pod=~"a|b""#), "{values}");
            assert!(times.unwrap().contains(r#"namespace="shop",pod=~"a|b""#));
            let other = PodLabels { namespace: "ns".to_owned(), ..labels() };
            assert!(source.query(&names, &selector, &other).is_err());
        }
    }

    #[test]
    fn many_pods_are_no_matter_of_the_bounds_of_a_query() {
        let rule = compiled(spec("hits", SUM)).unwrap();
        let listing = rule.listing(&[schema("hits", &["pod"])], &map(), later()).unwrap();
        let names: Vec<String> = (0..2_000).map(|n| format!("web-5d4f8c7d9b-{n:05}")).collect();
        let query = listing.metrics[0].1.query(&names, &[], &labels()).unwrap();
        assert!(query.values.contains("web-5d4f8c7d9b-01999\""), "{}", query.values.len());
    }
}
