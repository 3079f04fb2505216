//! From the pending queries of a shape to the queries that are sent: the fewest that give exactly
//! the same results.
//!
//! Two pending queries, and the batch that answers both:
//!
//! ```text
//! query A    sum by (pod) (x{app="web",ns="shop"})
//! query B    sum by (pod) (x{app="api",ns="shop"})
//! shape      sum by (pod, app, ns) (x{PLACEHOLDER})         parameters: app, ns
//! arguments  A: [["web"], ["shop"]]                         B: [["api"], ["shop"]]
//! batch      sum by (pod, app, ns) (x{app=~"api|web",ns="shop"})
//! rows       {pod="web-1",app="web",ns="shop"} 7            read by A as {pod="web-1"} 7
//!            {pod="api-1",app="api",ns="shop"} 5            read by B as {pod="api-1"} 5
//! ```
//!
//! [`shape`](super::shape) describes shapes, `exactness` proves that each query gets the rows that it
//! would get by itself. [`plan`] takes the cheapest of three ways for each response, by [`super::cost`]:
//!
//! - **single**: a query each, `sum by (pod, app, ns) (x{app="web",ns="shop"})`.
//! - **batched and filtered**: the values of all queries, as above. Several batches if one would name too many values
//!   or return too many series.
//! - **batched and unfiltered**: one parameter is not matched, because the queries name so many of its values:
//!   `sum by (pod, app, ns) (x{ns="shop"})`. The response also answers queries for any other value of that label. Several
//!   if the values of the other parameters, such as namespaces, have too many series together.

use super::cost::{self, Estimates, Limits};
use super::shape::{Arguments, QueryShape};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A label is left unmatched only if the queries name more values of it than this.
const MIN_UNFILTERED_VALUES: usize = 65;

/// The queries of one shape, by their arguments.
#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'a> {
    /// The queries with callers that wait for the result.
    pub pending: &'a BTreeSet<Arguments>,
    /// The queries whose result has expired, and that are likely to be repeated at once.
    pub expected: &'a BTreeSet<Arguments>,
    /// All recent queries, with a cached result or without: about as many are likely to come before
    /// long.
    pub recent: &'a BTreeSet<Arguments>,
}

/// A query to send, and the queries that it answers.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedQuery {
    /// The text.
    pub query: String,
    /// The queries that it was planned for.
    pub batch: Vec<Arguments>,
    /// All queries that its result answers.
    pub coverage: Coverage,
    /// Whether it leaves required labels unmatched.
    pub omits_required: bool,
    /// For an unfiltered query, the number of distinct values of the other parameters in the batch:
    /// about how many times the series of one object its result has. None if filtered.
    pub argument_sets: Option<usize>,
}

impl PlannedQuery {
    /// Whether a parameter is not matched.
    pub fn is_unfiltered(&self) -> bool {
        self.argument_sets.is_some()
    }
}

/// For each parameter, the values whose series a result has; none stands for all values.
#[derive(Clone, Debug, PartialEq)]
pub struct Coverage(Vec<Option<BTreeSet<String>>>);

impl Coverage {
    /// Whether a result has all series of a query.
    pub fn contains(&self, arguments: &Arguments) -> bool {
        let within = |(covered, values): (&Option<BTreeSet<String>>, &Vec<String>)| {
            covered
                .as_ref()
                .is_none_or(|covered| values.iter().all(|value| covered.contains(value)))
        };
        self.0.iter().zip(arguments.iter()).all(within)
    }
}

/// Plans the queries that answer all pending ones at the least cost per query: single ones, filtered
/// batches that include the expected queries, or an unfiltered query if the recent ones make it pay.
pub fn plan(
    shape: &QueryShape,
    input: PlanInput<'_>,
    estimates: Estimates,
    limits: Limits,
) -> Vec<PlannedQuery> {
    let PlanInput { pending, expected, recent } = input;
    let match_required = estimates.match_required;
    if shape.parameters.is_empty() {
        let all: Vec<&Arguments> = pending.iter().collect();
        return vec![batch(shape, &all, None, match_required)];
    }
    let series = estimates.filtered_series.unwrap_or(0.0);

    let queries: Vec<&Arguments> = pending.union(expected).collect();
    let values: usize = queries.iter().flat_map(|arguments| arguments.iter().map(Vec::len)).sum();
    let values = values as f64 / queries.len() as f64;
    let single = cost::single(values, series);
    let count = queries.len();
    let batches = limits.batches(queries, series, &estimates);
    let filtered = cost::filtered(count, batches.len(), values, series);

    let likely: Vec<&Arguments> = pending.union(recent).collect();
    let unfiltered = unfiltered_parameter(shape, &likely)
        .and_then(|parameter| Unfiltered::of(parameter, &likely, input, estimates, limits))
        .filter(|unfiltered| unfiltered.cost < filtered.min(single));
    if let Some(Unfiltered { parameter, queries, .. }) = unfiltered {
        let of = |queries: &Vec<_>| batch(shape, queries, Some(parameter), match_required);
        let sent: Vec<PlannedQuery> = queries.iter().map(of).collect();
        let is_left = |one: &&Arguments| !sent.iter().any(|sent| sent.coverage.contains(one));
        let pending = &pending.iter().filter(is_left).cloned().collect();
        let (expected, recent) = (&BTreeSet::new(), &BTreeSet::new());
        let estimates = estimates.filtered_only();
        let rest = match BTreeSet::is_empty(pending) {
            true => Vec::new(),
            false => plan(shape, PlanInput { pending, expected, recent }, estimates, limits),
        };
        return sent.into_iter().chain(rest).collect();
    }
    if filtered < single && count > 1 {
        return batches.iter().map(|of| batch(shape, of, None, match_required)).collect();
    }
    let one = |arguments| batch(shape, &[arguments], None, match_required);
    pending.iter().map(one).collect()
}

/// The queries that differ in one parameter alone.
#[derive(Default)]
struct ArgumentSet<'a> {
    queries: Vec<&'a Arguments>,
    is_pending: bool,
    is_expected: bool,
}

/// Queries that leave a parameter unmatched.
struct Unfiltered<'a> {
    parameter: usize,
    /// What each is sent for.
    queries: Vec<Vec<&'a Arguments>>,
    /// The cost per query that they are sent for.
    cost: f64,
}

impl<'a> Unfiltered<'a> {
    /// Those for the argument sets of pending queries, each for as many sets as are joined, and all within the most series
    /// of a result: those with the most queries first. There is room for sets of expected queries, and for recent ones
    /// that have fewer series together than a query costs. While it is not known how many series a set has, one set
    /// shows it. None if the result for one would be too large.
    fn of(
        parameter: usize,
        likely: &[&'a Arguments],
        input: PlanInput<'a>,
        estimates: Estimates,
        limits: Limits,
    ) -> Option<Self> {
        let PlanInput { pending, expected, .. } = input;
        let mut sets: BTreeMap<Vec<&[String]>, ArgumentSet<'a>> = BTreeMap::new();
        for &arguments in likely {
            let set = sets.entry(others(arguments, parameter)).or_default();
            set.is_pending = set.is_pending || pending.contains(arguments);
            set.is_expected = set.is_expected || expected.contains(arguments);
            set.queries.push(arguments);
        }
        let of_query = estimates.filtered_series.unwrap_or(0.0);
        let guessed = of_query * likely.len() as f64 / sets.len() as f64;
        // A set has at least what was seen of its queries: another one may be empty.
        let per_set = estimates.unfiltered_series.map_or(guessed, |series| series.max(guessed));
        if per_set >= limits.series as f64 {
            return None;
        }
        let fit = |series: f64| (series / per_set.max(1.0)) as usize;
        let joined = fit(limits.joined_series as f64).clamp(1, limits.values);
        let (mut sets, others): (Vec<_>, Vec<_>) =
            sets.into_values().partition(|set| set.is_pending);
        let (count, series) = (sets.len().div_ceil(joined), per_set * sets.len() as f64);
        let all = sets.iter().map(|set| set.queries.len()).sum();
        let cost = cost::unfiltered(all, count, series);
        sets.sort_by_key(|set| Reverse(set.queries.len()));
        if estimates.unfiltered_series.is_none() {
            sets.truncate(1);
        } else {
            let most = fit(limits.series as f64).min(estimates.max_sets).max(1);
            sets.truncate(most);
            let room = (sets.len().div_ceil(joined) * joined).min(most);
            let (expected, recent): (Vec<_>, Vec<_>) =
                others.into_iter().partition(|set| set.is_expected);
            let along = expected.into_iter().chain(recent.into_iter().take(fit(cost::QUERY)));
            sets.extend(along.take(room - sets.len()));
        }
        let sets: Vec<_> = sets.into_iter().map(|set| set.queries).collect();
        let queries = sets.chunks(joined).map(|sets| sets.concat()).collect();
        Some(Self { parameter, queries, cost })
    }
}

/// The parameter to leave unmatched: the one with the most values, if these are many.
///
/// A label that the queries' own results lack is left unmatched only if there is another parameter. In
/// `sum by (pod, app) (x)` without a namespace, many more `app` than the queries name may exist.
fn unfiltered_parameter(shape: &QueryShape, queries: &[&Arguments]) -> Option<usize> {
    if !shape.may_be_unfiltered() {
        return None;
    }
    let values = |index: usize| -> usize {
        queries.iter().flat_map(|arguments| &arguments[index]).collect::<BTreeSet<_>>().len()
    };
    let has_others = shape.parameters.len() > 1;
    let parameters = shape.parameters.iter().enumerate();
    let parameters = parameters.filter(|(_, parameter)| parameter.in_result || has_others);
    let (values, index) = parameters.map(|(index, _)| (values(index), index)).max()?;
    (values >= MIN_UNFILTERED_VALUES).then_some(index)
}

/// The values of all parameters but one.
fn others(arguments: &Arguments, except: usize) -> Vec<&[String]> {
    let others = arguments.iter().enumerate().filter(|(index, _)| *index != except);
    others.map(|(_, values)| values.as_slice()).collect()
}

/// The number of distinct values of all parameters but one.
fn argument_sets(queries: &[&Arguments], except: usize) -> usize {
    queries.iter().map(|of| others(of, except)).collect::<BTreeSet<_>>().len()
}

/// One query for all of these; the parameter with the index `unfiltered` is not matched, and required labels only on
/// demand.
pub fn batch(
    shape: &QueryShape,
    queries: &[&Arguments],
    unfiltered: Option<usize>,
    match_required: bool,
) -> PlannedQuery {
    let values = |index: usize| -> Option<BTreeSet<&String>> {
        (unfiltered != Some(index))
            .then(|| queries.iter().flat_map(|arguments| &arguments[index]).collect())
    };
    let values: Vec<_> = (0..shape.parameters.len()).map(values).collect();
    let query = shape.render(&values, match_required);
    let owned = |values: &Option<BTreeSet<&String>>| {
        values.as_ref().map(|values| values.iter().copied().cloned().collect())
    };
    PlannedQuery {
        query,
        batch: queries.iter().map(|arguments| (*arguments).clone()).collect(),
        coverage: Coverage(values.iter().map(owned).collect()),
        omits_required: !match_required && !shape.required.is_empty(),
        argument_sets: unfiltered.map(|parameter| argument_sets(queries, parameter)),
    }
}

/// The query for one by itself, exactly as it is.
pub fn single(shape: &QueryShape, arguments: &Arguments) -> PlannedQuery {
    batch(shape, &[arguments], None, true)
}

#[cfg(test)]
mod tests {
    use super::super::shape::ShapedQuery;
    use super::*;
    use std::sync::Arc;

    fn parameters(query: &ShapedQuery) -> Vec<(&str, bool)> {
        query.shape.parameters.iter().map(|p| (p.name.as_str(), p.in_result)).collect()
    }

    /// The plan for these queries, when there are no others.
    fn planned(
        shape: &QueryShape,
        pending: &BTreeSet<Arguments>,
        estimates: Estimates,
        limits: Limits,
    ) -> Vec<PlannedQuery> {
        let none = BTreeSet::new();
        let input = PlanInput { pending, expected: &none, recent: pending };
        let planned = plan(shape, input, estimates, limits);
        let answered: BTreeSet<Arguments> = planned.iter().flat_map(|p| p.batch.clone()).collect();
        assert_eq!(&answered, pending);
        planned
    }

    #[test]
    fn queries_that_differ_only_in_values_are_one() {
        let query = |ns: &str, a: &str| {
            format!(
                r#"sum by (namespace,pod) (rate(x_total{{a={a:?},namespace={ns:?},pod!=""}}[2m]))"#
            )
        };
        let queries =
            [ShapedQuery::of(&query("shop", "1")), ShapedQuery::of(&query("ba\"nk", "x.y"))];
        assert_eq!(queries[0].shape, queries[1].shape);
        assert_eq!(parameters(&queries[0]), [("a", false), ("namespace", true)]);
        let pending: BTreeSet<Arguments> =
            queries.iter().map(|query| query.arguments.clone()).collect();
        let planned = planned(&queries[0].shape, &pending, Estimates::default(), Limits::default());
        let [batch] = &planned[..] else { panic!("more than one query") };
        let selector = r#"x_total{a=~"1|x\\.y",namespace=~"ba\"nk|shop"}"#;
        let expected = format!(r#"sum by (namespace, pod, a) (rate({selector}[2m]))"#);
        assert_eq!(batch.query, expected);
        assert!(pending.iter().all(|arguments| batch.coverage.contains(arguments)));
        assert!(!batch.coverage.contains(&ShapedQuery::of(&query("mint", "1")).arguments));
    }

    #[test]
    fn totals_of_workloads_of_two_namespaces_are_one_query() {
        let totals = ["shop", "bank"]
            .map(|ns| ShapedQuery::of(&format!(r#"sum(jobs{{namespace={ns:?},queue="mail"}})"#)));
        let pending: BTreeSet<Arguments> =
            totals.iter().map(|query| query.arguments.clone()).collect();
        let planned = planned(&totals[0].shape, &pending, Estimates::default(), Limits::default());
        let [batch] = &planned[..] else { panic!("more than one query") };
        assert!(pending.iter().all(|arguments| batch.coverage.contains(arguments)));
    }

    #[test]
    fn queries_are_batched_and_split_where_batches_grow_too_large() {
        let arguments =
            |n: usize| ShapedQuery::of(&format!(r#"sum by (pod) (x{{a="{n}"}})"#)).arguments;
        let shape = ShapedQuery::of(r#"sum by (pod) (x{a="0"})"#).shape;
        let all: BTreeSet<Arguments> = (0..100).map(arguments).collect();
        let count = |estimates, limits| planned(&shape, &all, estimates, limits).len();
        let (first, limits) = (Estimates::default(), Limits::default());
        assert_eq!(count(first, limits), 1);
        let large = Estimates { filtered_series: Some(1_000.0), ..first };
        assert_eq!(count(large, limits), 2);
        assert_eq!(count(first, Limits { values: 30, ..limits }), 4);
        assert_eq!(count(Estimates { max_batch: 10, ..first }, limits), 10);
        assert_eq!(count(Estimates { max_batch: 1, ..first }, limits), 100);
        // A query that is pending by itself is sent by itself, unless others are expected.
        let (one, none) = (BTreeSet::from([arguments(7)]), BTreeSet::new());
        let input = PlanInput { pending: &one, expected: &none, recent: &all };
        let [single] = &plan(&shape, input, first, limits)[..] else { panic!("not one") };
        assert_eq!(single.query, r#"sum by (pod, a) (x{a="7"})"#);
        let input = PlanInput { expected: &all, ..input };
        assert_eq!(plan(&shape, input, first, limits)[0].batch.len(), 100);
    }

    /// The queries of ten pods each of so many workloads in each of so many namespaces.
    fn of_namespaces(
        namespaces: usize,
        workloads: usize,
    ) -> (Arc<QueryShape>, BTreeSet<Arguments>) {
        let query = |namespace: usize, app: usize| {
            ShapedQuery::of(&format!(r#"sum by (pod) (x{{app="{app}",ns="n-{namespace:03}"}})"#))
        };
        let of = |namespace| (0..workloads).map(move |app| query(namespace, app).arguments);
        (query(0, 0).shape, (0..namespaces).flat_map(of).collect())
    }

    #[test]
    fn a_response_is_of_as_many_namespaces_as_fit_into_it() {
        let (shape, all) = of_namespaces(10, 600);
        let estimates = |per_namespace| Estimates {
            filtered_series: Some(10.0),
            unfiltered_series: Some(per_namespace),
            ..Estimates::default()
        };
        let sets = |planned: &[PlannedQuery]| -> Vec<Option<usize>> {
            planned.iter().map(|planned| planned.argument_sets).collect()
        };
        let limits = Limits::default();
        let (small, few) = of_namespaces(10, 200);
        assert_eq!(sets(&planned(&small, &few, estimates(2_000.0), limits)), [Some(10)]);
        // Sets that nobody waits for come along while they have fewer series together than a query costs.
        let recent = of_namespaces(20, 70).1;
        let pending = recent.iter().filter(|one| one[1] == ["n-000"]).cloned().collect();
        let input = PlanInput { pending: &pending, expected: &BTreeSet::new(), recent: &recent };
        let tiny = Estimates { filtered_series: Some(1.0), ..estimates(70.0) };
        assert_eq!(sets(&plan(&shape, input, tiny, limits)), [Some(3)]);
        // Within 50,000 series: the queries of the other two namespaces name their values.
        let many = planned(&shape, &all, estimates(6_000.0), limits);
        assert_eq!(sets(&many)[..4], [Some(3), Some(3), Some(2), None]);
        // No more than were seen allow.
        let few = Estimates { max_sets: 3, ..estimates(6_000.0) };
        assert_eq!(sets(&planned(&shape, &all, few, limits))[..2], [Some(3), None]);
        // One that is empty says nothing of the others.
        assert_eq!(sets(&planned(&shape, &all, estimates(0.0), limits)), sets(&many));
        // One by itself may be larger than what is joined, but not than a result.
        let large = planned(&shape, &all, estimates(20_001.0), Limits { values: 1, ..limits });
        assert_eq!(sets(&large)[..3], [Some(1), Some(1), None]);
        assert!(!planned(&shape, &all, estimates(50_000.0), limits)[0].is_unfiltered());

        // Where one namespace is asked for, those whose results have expired come along.
        let of = |namespaces: std::ops::Range<usize>| -> BTreeSet<Arguments> {
            let of = |namespace: usize| format!("n-{namespace:03}");
            let names: BTreeSet<String> = namespaces.map(of).collect();
            let is_of = |arguments: &&Arguments| names.contains(&arguments[1][0]);
            all.iter().filter(is_of).cloned().collect()
        };
        for (expired, expected) in [(4..4, 1), (4..5, 2), (4..9, 3)] {
            let (pending, expired) = (of(3..4), of(expired));
            let input = PlanInput { pending: &pending, expected: &expired, recent: &all };
            let planned = plan(&shape, input, estimates(6_000.0), limits);
            assert_eq!(sets(&planned), [Some(expected)]);
        }
    }

    #[test]
    fn the_first_unfiltered_query_is_of_one_namespace_as_its_size_is_not_known() {
        let (shape, mut all) = of_namespaces(10, 100);
        let removed = all.pop_first();
        assert!(removed.is_some_and(|arguments| arguments[1] == ["n-000"]));
        let first = Estimates { filtered_series: Some(10.0), ..Estimates::default() };
        let planned = planned(&shape, &all, first, Limits::default());
        assert_eq!(planned[0].argument_sets, Some(1));
        // That with the most queries.
        assert_eq!((planned[0].batch.len(), planned[0].batch[0][1][0].as_str()), (100, "n-001"));
        assert!(planned[1..].iter().all(|planned| !planned.is_unfiltered()));
        let named: usize = planned[1..].iter().map(|planned| planned.batch.len()).sum();
        assert_eq!(named, 899);
    }

    #[test]
    fn objects_are_named_or_not_whichever_costs_less() {
        let pods = |app: usize| {
            let names: Vec<String> = (0..10).map(|pod| format!("p-{app}-{pod}")).collect();
            ShapedQuery::of(&format!(r#"sum by (pod) (x{{ns="n",pod=~"{}"}})"#, names.join("|")))
        };
        let shape = pods(0).shape;
        let all: BTreeSet<Arguments> = (0..100).map(|app| pods(app).arguments).collect();
        let first = Estimates { filtered_series: Some(10.0), ..Estimates::default() };
        let [unfiltered] = &planned(&shape, &all, first, Limits::default())[..] else {
            panic!("not one")
        };
        assert_eq!(
            (unfiltered.query.as_str(), unfiltered.argument_sets),
            (r#"sum by (pod, ns) (x{ns="n"})"#, Some(1))
        );
        assert!(unfiltered.coverage.contains(&pods(1_000).arguments));
        // If the namespace has many more pods, they are named, as many as a query may.
        let crowded = Estimates { unfiltered_series: Some(40_000.0), ..first };
        assert_eq!(planned(&shape, &all, crowded, Limits::default()).len(), 4);
        let named = planned(&shape, &all, crowded, Limits { values: 500, ..Limits::default() });
        assert!(named.len() == 2 && !named[0].is_unfiltered());
        // A single pending query is unfiltered if many are recent, as more will come.
        let (one, none) = (BTreeSet::from([pods(500).arguments]), BTreeSet::new());
        let input = PlanInput { pending: &one, expected: &none, recent: &all };
        assert!(plan(&shape, input, first, Limits::default())[0].is_unfiltered());
        let input = PlanInput { recent: &none, ..input };
        assert!(!plan(&shape, input, first, Limits::default())[0].is_unfiltered());
    }

    #[test]
    fn a_label_that_tells_queries_apart_is_not_named_where_another_narrows_the_result() {
        let query = |app: usize| format!(r#"sum by (pod) (x{{app="{app}",ns="n"}})"#);
        let shape = ShapedQuery::of(&query(0)).shape;
        let all: BTreeSet<Arguments> =
            (0..100).map(|app| ShapedQuery::of(&query(app)).arguments).collect();
        let planned = planned(&shape, &all, Estimates::default(), Limits::default());
        let [unfiltered] = &planned[..] else { panic!("not one") };
        assert_eq!(unfiltered.query, r#"sum by (pod, app, ns) (x{ns="n"})"#);
    }

    #[test]
    fn a_quoted_name_stays_quoted() {
        let query = r#"sum by (pod) ({"http.requests","k8s.deployment.name"="web",ns="shop"})"#;
        let shaped = ShapedQuery::of(query);
        assert_eq!(parameters(&shaped), [("k8s.deployment.name", false), ("ns", false)]);
        let sent = single(&shaped.shape, &shaped.arguments).query;
        let selector = r#"{"k8s.deployment.name"="web",__name__="http.requests",ns="shop"}"#;
        assert_eq!(sent, format!(r#"sum by (pod, "k8s.deployment.name", ns) ({selector})"#));
    }

    #[test]
    fn an_unfiltered_query_without_other_parameters_is_valid() {
        let node =
            |n: usize| ShapedQuery::of(&format!(r#"sum by (node) (x{{mode!="idle",node="{n}"}})"#));
        let bare = |n: usize| ShapedQuery::of(&format!(r#"x{{node="{n}"}}"#));
        let sent = |query: &dyn Fn(usize) -> ShapedQuery| {
            let all: BTreeSet<Arguments> = (0..100).map(|n| query(n).arguments).collect();
            let planned = planned(&query(0).shape, &all, Estimates::default(), Limits::default());
            let [unfiltered] = &planned[..] else { panic!("not one") };
            unfiltered.query.clone()
        };
        assert_eq!(sent(&node), r#"sum by (node) (x{mode!="idle"})"#);
        assert_eq!(sent(&bare), "x");
    }

    #[test]
    fn a_selector_without_a_name_always_names_values() {
        let query = |n: usize| ShapedQuery::of(&format!(r#"{{namespace="{n}",pod!=""}}"#));
        let all: BTreeSet<Arguments> = (0..100).map(|n| query(n).arguments).collect();
        let planned = planned(&query(0).shape, &all, Estimates::default(), Limits::default());
        assert!(planned.iter().all(|planned| planned.query.contains("namespace")));
        let any = |n: usize| ShapedQuery::of(&format!(r#"{{__name__=~".+",node="{n}"}}"#));
        assert!(!any(1).shape.may_be_unfiltered());
    }
}
