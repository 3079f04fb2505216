//! The MetricRules of one namespace, as plain state: which are listed when, and what they serve.

use super::super::registry::ObjectMetric;
use super::compiled::{CompiledRule, Guarded, Listing, MAX_METRICS, PodLabels, Source};
use super::standing::{Reason, Standing};
use crate::promql::name::GeneratedName;
use crate::watch::{MetricRuleRecord, ObjectKey};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The most rules of a namespace that serve.
const MAX_RULES: usize = 20;
/// How soon a listing is repeated at first that failed, or found nothing.
const FIRST_WAIT: Duration = Duration::from_secs(15);
/// The least time between two listings of a namespace.
const MIN_INTERVAL: Duration = Duration::from_millis(500);

/// The MetricRules of one namespace.
pub(super) struct NamespaceRules {
    namespace: String,
    /// Those that serve, the oldest first.
    rules: Vec<RuleState>,
    /// Those that are too many: name, UID and generation.
    excess: Vec<(String, String, Option<i64>)>,
    /// When the next listing may begin.
    ready: Option<Instant>,
}

struct RuleState {
    name: String,
    uid: String,
    generation: Option<i64>,
    compiled: Result<Arc<CompiledRule>, String>,
    /// What is served: of the rule before an edit until the series of the new one are listed.
    serving: Option<(Arc<CompiledRule>, Listing)>,
    /// How the last listing of the compiled rule ended; none before the first.
    listed: Option<Result<(), String>>,
    due: Instant,
    wait: Duration,
}

/// What the rules of a namespace serve, for its readers.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) metrics: HashMap<ObjectMetric, Source>,
    /// Whether the series of all rules were listed once, or could not be.
    pub(super) synced: bool,
    /// Those of which there is something to say.
    pub(super) standings: Vec<Arc<Standing>>,
}

impl NamespaceRules {
    /// No rules.
    pub(super) fn new(namespace: &str) -> Self {
        let namespace = namespace.to_owned();
        Self { namespace, rules: Vec::new(), excess: Vec::new(), ready: None }
    }

    /// Takes over the objects. A rule that has not changed keeps what it serves.
    pub(super) fn update(
        &mut self,
        records: BTreeMap<String, Arc<MetricRuleRecord>>,
        labels: &PodLabels,
        guarded: &Guarded,
    ) {
        let mut records: Vec<_> = records.into_iter().collect();
        records.sort_by(|(a, of_a), (b, of_b)| (of_a.created, a).cmp(&(of_b.created, b)));
        self.excess.clear();
        let mut valid = 0;
        let mut known: HashMap<String, RuleState> =
            self.rules.drain(..).map(|rule| (rule.uid.clone(), rule)).collect();
        for (name, record) in records {
            // One that is invalid serves nothing, and takes no place.
            if valid == MAX_RULES {
                self.excess.push((name, record.uid.clone(), record.generation));
                continue;
            }
            let before = known.remove(&record.uid).filter(|rule| rule.name == name);
            let same_labels = |rule: &Arc<CompiledRule>| rule.labels() == labels;
            if let Some(rule) = before {
                let same = record.generation.is_some() && rule.generation == record.generation;
                if same && rule.compiled.as_ref().map_or(true, same_labels) {
                    valid += usize::from(rule.compiled.is_ok());
                    self.rules.push(rule);
                    continue;
                }
                let serving = rule.serving.filter(|(rule, _)| same_labels(rule));
                self.rules.push(self.compile(name, &record, labels, guarded, serving));
            } else {
                self.rules.push(self.compile(name, &record, labels, guarded, None));
            }
            valid += usize::from(self.rules.last().is_some_and(|rule| rule.compiled.is_ok()));
        }
    }

    fn compile(
        &self,
        name: String,
        record: &MetricRuleRecord,
        labels: &PodLabels,
        guarded: &Guarded,
        serving: Option<(Arc<CompiledRule>, Listing)>,
    ) -> RuleState {
        let compile = |spec| CompiledRule::new(spec, &self.namespace, labels, guarded);
        let compiled = record.spec.as_ref().map_err(Clone::clone).and_then(compile).map(Arc::new);
        RuleState {
            name,
            uid: record.uid.clone(),
            generation: record.generation,
            // A spec that is invalid serves nothing, and nothing of the spec before.
            serving: serving.filter(|_| compiled.is_ok()),
            compiled,
            listed: None,
            due: Instant::now(),
            wait: Duration::ZERO,
        }
    }

    /// Whether it has no rules.
    pub(super) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rule whose series are to be listed next, and when.
    pub(super) fn next(&self) -> Option<(Instant, Arc<CompiledRule>)> {
        let valid =
            self.rules.iter().filter_map(|rule| Some((rule.due, rule.compiled.as_ref().ok()?)));
        let (due, rule) = valid.min_by_key(|(due, _)| *due)?;
        Some((self.ready.map_or(due, |ready| due.max(ready)), rule.clone()))
    }

    /// A listing begins.
    pub(super) fn begin(&mut self) {
        self.ready = Some(Instant::now() + MIN_INTERVAL);
    }

    /// A listing has ended, whose patterns took so long: those of the namespace may take a tenth of the time. One
    /// that failed keeps what is known of the same rule.
    pub(super) fn end(
        &mut self,
        rule: &Arc<CompiledRule>,
        listing: Result<Listing, String>,
        interval: Duration,
        took: Duration,
    ) {
        self.ready = self.ready.max(Some(Instant::now() + took * 9));
        let is_of =
            |state: &&mut RuleState| state.compiled.as_ref().is_ok_and(|of| Arc::ptr_eq(of, rule));
        // It may have been edited or deleted in the meantime.
        let Some(state) = self.rules.iter_mut().find(is_of) else { return };
        let found = listing.as_ref().is_ok_and(|listing| !listing.metrics.is_empty());
        state.wait = match found {
            true => Duration::ZERO,
            false => (state.wait * 2).max(FIRST_WAIT).min(interval),
        };
        state.due = Instant::now() + if found { interval } else { state.wait };
        match listing {
            Ok(listing) => {
                state.serving = Some((rule.clone(), listing));
                state.listed = Some(Ok(()));
            }
            Err(error) => {
                state.serving.take_if(|(served, _)| !Arc::ptr_eq(served, rule));
                state.listed = Some(Err(error));
            }
        }
    }

    /// The series of which no label named an object are listed now.
    pub(super) fn list_unnamed_again(&mut self) {
        for rule in &mut self.rules {
            let unnamed = |(_, listing): &(_, Listing)| listing.any_series && listing.total == 0;
            if rule.serving.as_ref().is_some_and(unnamed) {
                (rule.due, rule.wait) = (Instant::now(), Duration::ZERO);
            }
        }
    }

    /// What is served beside the administrator's rules.
    pub(super) fn view(&self, is_administrators: &dyn Fn(&ObjectMetric) -> bool) -> View {
        let mut view = View { synced: true, ..View::default() };
        let mut owners: HashMap<&ObjectMetric, &str> = HashMap::new();
        for rule in &self.rules {
            let mut metrics = Vec::new();
            let mut conflict: Option<String> = None;
            for (metric, source) in rule.serving.iter().flat_map(|(_, listing)| &listing.metrics) {
                let shown = format!("{}/{}", metric.resource, metric.metric);
                let is_generated = GeneratedName::parse(&metric.metric)
                    .is_some_and(|name| name.namespace == self.namespace);
                let other = if is_administrators(metric) {
                    "a rule of the administrator serves it".to_owned()
                } else if let Some(older) = owners.get(metric) {
                    format!("the older MetricRule {older} serves it")
                } else if is_generated {
                    "it has the form of the generated name of an autoscaler's metric".to_owned()
                } else {
                    owners.insert(metric, &rule.name);
                    view.metrics.insert(metric.clone(), source.clone());
                    metrics.push(shown);
                    continue;
                };
                conflict.get_or_insert(format!("{shown} is not served by this rule: {other}"));
            }
            metrics.sort();
            match rule.reason(conflict) {
                Some((reason, message)) => {
                    let key = self.key(&rule.name);
                    let (uid, generation) = (rule.uid.clone(), rule.generation);
                    let standing = Standing { key, uid, generation, reason, message, metrics };
                    view.standings.push(Arc::new(standing));
                }
                None => view.synced = false,
            }
        }
        for (name, uid, generation) in &self.excess {
            view.standings.push(Arc::new(Standing {
                key: self.key(name),
                uid: uid.clone(),
                generation: *generation,
                reason: Reason::TooManyRules,
                message: format!(
                    "{MAX_RULES} older MetricRules of the namespace serve, and no more may: delete one"
                ),
                metrics: Vec::new(),
            }));
        }
        view
    }

    fn key(&self, name: &str) -> ObjectKey {
        ObjectKey { namespace: self.namespace.clone(), name: name.to_owned() }
    }
}

impl RuleState {
    /// Why it serves all of its metrics, or not; none before its series were listed.
    fn reason(&self, conflict: Option<String>) -> Option<(Reason, String)> {
        let rule = match &self.compiled {
            Err(error) => return Some((Reason::Invalid, error.clone())),
            Ok(rule) => rule,
        };
        let failed = self.listed.as_ref()?.as_ref().err();
        let Some((_, listing)) = &self.serving else {
            let error = failed.map_or("", String::as_str);
            let message = format!("the series of {} can't be listed: {error}", rule.selector);
            return Some((Reason::ListingFailed, message));
        };
        Some(if !listing.any_series {
            (Reason::NoSeries, format!("there are no recent series of {}", rule.selector))
        } else if listing.total == 0 {
            let message = format!(
                "there are series of {}, but none whose name passes seriesFilters and name.matches and that has a label which names an object of a namespaced resource",
                rule.selector
            );
            (Reason::NoMetrics, message)
        } else if listing.total > MAX_METRICS {
            let message = format!(
                "it gives {} metrics, and the first {MAX_METRICS} by name are served: select fewer series",
                listing.total
            );
            (Reason::TooManyMetrics, message)
        } else if let Some(conflict) = conflict {
            (Reason::Conflict, conflict)
        } else if let Some(error) = failed {
            (
                Reason::Served,
                format!(
                    "all metrics are served that were known before the last listing failed: {error}"
                ),
            )
        } else {
            (Reason::Served, "all of its metrics are served".to_owned())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::compiled::guarded;
    use super::*;
    use crate::config::Config;
    use crate::crd::{MetricRuleSpec, RuleName};
    use crate::prometheus::SeriesSchema;
    use crate::watch::{GroupResource, ResourceInfo, ResourceMap};

    const INTERVAL: Duration = Duration::from_secs(600);

    fn labels() -> PodLabels {
        PodLabels::of(&Config::default().pod_queries)
    }

    fn record(created: i64, generation: i64, query: &str) -> Arc<MetricRuleRecord> {
        let spec = MetricRuleSpec {
            series_query: "x".to_owned(),
            series_filters: Vec::new(),
            resources: None,
            name: RuleName::default(),
            metrics_query: query.to_owned(),
        };
        Arc::new(MetricRuleRecord {
            uid: format!("uid-{created}"),
            generation: Some(generation),
            created,
            spec: Ok(Arc::new(spec)),
            status: Default::default(),
        })
    }

    fn listing(rule: &Arc<CompiledRule>, names: &[&str]) -> Listing {
        let pods = ResourceMap::of(vec![ResourceInfo {
            name: GroupResource::core("pods"),
            version: "v1".to_owned(),
            singular: "pod".to_owned(),
            kind: "Pod".to_owned(),
            namespaced: true,
        }]);
        let schema =
            |name: &&str| SeriesSchema { name: (*name).to_owned(), labels: vec!["pod".to_owned()] };
        rule.listing(
            &names.iter().map(schema).collect::<Vec<_>>(),
            &pods,
            Instant::now() + INTERVAL,
        )
        .unwrap()
    }

    /// Lists all that is due: the same series for each rule.
    fn list_all(rules: &mut NamespaceRules, names: &[&str]) {
        for state in 0..rules.rules.len() {
            if let Ok(rule) = rules.rules[state].compiled.clone() {
                rules.end(&rule, Ok(listing(&rule, names)), INTERVAL, Duration::ZERO);
            }
        }
    }

    fn of(records: &[(&str, Arc<MetricRuleRecord>)]) -> NamespaceRules {
        let mut rules = NamespaceRules::new("shop");
        update(&mut rules, records);
        rules
    }

    fn update(rules: &mut NamespaceRules, records: &[(&str, Arc<MetricRuleRecord>)]) {
        let records = records.iter().map(|(name, of)| ((*name).to_owned(), of.clone()));
        rules.update(records.collect(), &labels(), &guarded());
    }

    fn told(view: &View, name: &str) -> (Reason, String, Vec<String>) {
        let found = view.standings.iter().find(|standing| standing.key.name == name).unwrap();
        (found.reason, found.message.clone(), found.metrics.clone())
    }

    const SUM: &str = "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)";

    #[tokio::test]
    async fn the_administrators_rule_wins_and_then_the_older_one() {
        let mut rules = of(&[("a-young", record(2, 1, SUM)), ("old", record(1, 1, SUM))]);
        assert!(!rules.view(&|_| false).synced);
        let generated = "hits_0123456789ab_shop_web";
        list_all(&mut rules, &["hits", "queue", generated]);
        let view = rules.view(&|metric| metric.metric == "queue");
        assert!(view.synced && view.metrics.len() == 1);
        let (reason, message, metrics) = told(&view, "old");
        assert_eq!((reason, metrics), (Reason::Conflict, vec!["pods/hits".to_owned()]));
        assert!(message.contains("generated name"), "{message}");
        let (reason, message, metrics) = told(&view, "a-young");
        assert_eq!((reason, metrics), (Reason::Conflict, vec![]));
        assert_eq!(
            message,
            "pods/hits is not served by this rule: the older MetricRule old serves it"
        );
        let view = rules.view(&|metric| metric.metric == "hits");
        let (_, message, _) = told(&view, "old");
        assert!(
            message.ends_with(
                "pods/hits is not served by this rule: a rule of the administrator serves it"
            ),
            "{message}"
        );
    }

    #[tokio::test]
    async fn an_edit_serves_what_was_before_until_it_is_listed_and_nothing_if_it_is_invalid() {
        let mut rules = of(&[("one", record(1, 1, SUM))]);
        list_all(&mut rules, &["hits"]);
        update(
            &mut rules,
            &[("one", record(1, 2, "max(<<.Series>>{<<.LabelMatchers>>}) by (pod)"))],
        );
        let view = rules.view(&|_| false);
        assert_eq!((view.metrics.len(), view.standings.len(), view.synced), (1, 0, false));
        let (_, rule) = rules.next().unwrap();
        rules.end(&rule, Err("no".to_owned()), INTERVAL, Duration::ZERO);
        let view = rules.view(&|_| false);
        assert_eq!(view.metrics.len(), 0);
        assert_eq!(told(&view, "one").0, Reason::ListingFailed);
        list_all(&mut rules, &["hits"]);
        rules.end(&rule, Err("no".to_owned()), INTERVAL, Duration::ZERO);
        let view = rules.view(&|_| false);
        // Of the same rule it keeps what is known.
        assert_eq!((view.metrics.len(), told(&view, "one").0), (1, Reason::Served));
        update(&mut rules, &[("one", record(1, 3, "<<.Nothing>>"))]);
        let view = rules.view(&|_| false);
        assert!(view.metrics.is_empty() && view.synced);
        let (reason, message, _) = told(&view, "one");
        assert!(
            reason == Reason::Invalid && message.starts_with("spec.metricsQuery: "),
            "{message}"
        );
        update(&mut rules, &[]);
        assert!(rules.is_empty() && rules.view(&|_| false).standings.is_empty());
    }

    #[tokio::test]
    async fn the_oldest_rules_of_a_namespace_serve() {
        let names: Vec<String> = (0..25).map(|n| format!("rule-{n}")).collect();
        let records: Vec<_> = names
            .iter()
            .zip(0..)
            // The last ones are the oldest.
            .map(|(name, n)| (name.as_str(), record(100 - n, 1, SUM)))
            .collect();
        let rules = of(&records);
        let view = rules.view(&|_| false);
        assert_eq!(rules.rules.len(), MAX_RULES);
        let excess: Vec<_> = view.standings.iter().map(|one| one.key.name.as_str()).collect();
        assert_eq!(excess, ["rule-4", "rule-3", "rule-2", "rule-1", "rule-0"]);
        assert!(view.standings.iter().all(|one| one.reason == Reason::TooManyRules));
    }

    #[tokio::test]
    async fn an_invalid_rule_takes_no_place() {
        let names: Vec<String> = (0..25).map(|n| format!("rule-{n:02}")).collect();
        let query = |n: i64| if n < 20 { "<<.Nothing>>" } else { SUM };
        let records =
            names.iter().zip(0..).map(|(name, n)| (name.as_str(), record(n, 1, query(n))));
        let rules = of(&records.collect::<Vec<_>>());
        assert_eq!(rules.rules.iter().filter(|rule| rule.compiled.is_ok()).count(), 5);
        let view = rules.view(&|_| false);
        assert!(view.standings.iter().all(|one| one.reason == Reason::Invalid));
        assert_eq!(view.standings.len(), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn a_listing_that_finds_nothing_is_repeated_ever_less_often() {
        let mut rules = of(&[("one", record(1, 1, SUM))]);
        let mut waits = Vec::new();
        for _ in 0..7 {
            let (_, rule) = rules.next().unwrap();
            rules.begin();
            rules.end(&rule, Ok(listing(&rule, &[])), INTERVAL, Duration::ZERO);
            waits.push((rules.next().unwrap().0 - Instant::now()).as_secs());
        }
        assert_eq!(waits, [15, 30, 60, 120, 240, 480, 600]);
        let (_, rule) = rules.next().unwrap();
        rules.end(&rule, Ok(listing(&rule, &["hits"])), INTERVAL, Duration::ZERO);
        assert_eq!(rules.next().unwrap().0 - Instant::now(), INTERVAL);
    }
}
