//! The result of one query: its series of a response that may cover many.

use super::caller::Caller;
use super::coalesce::Coalescer;
use super::handle::QueryHandle;
use super::table::{LabelIndex, Table};
use crate::k8s::Quantity;
use crate::prometheus::InvalidSample;
use crate::promql::shape::ShapedQuery;
use crate::time::UnixMillis;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Weak};

/// The series of one query.
#[derive(Clone)]
pub struct QueryResult {
    table: Arc<Table>,
    handle: QueryHandle,
}

/// One series.
#[derive(Clone, Copy)]
pub struct SeriesRef<'a> {
    result: &'a QueryResult,
    row: u32,
}

impl QueryResult {
    pub(super) fn new(table: Arc<Table>, handle: QueryHandle) -> Self {
        Self { table, handle }
    }

    /// The result of a query that no store sent, and that can't be repeated: for tests and benches.
    pub fn detached(table: Arc<Table>, query: Arc<ShapedQuery>) -> Self {
        let coalescer = Coalescer::disconnected();
        Self::new(table, QueryHandle::new(coalescer, Caller::of(""), query))
    }

    pub(super) fn origin(&self) -> Weak<Table> {
        Arc::downgrade(&self.table)
    }

    /// The handle to repeat the query.
    pub fn handle(&self) -> &QueryHandle {
        &self.handle
    }

    fn query(&self) -> &ShapedQuery {
        &self.handle.query
    }

    /// The series, in the order of the response.
    pub fn iter(&self) -> impl Iterator<Item = SeriesRef<'_>> {
        self.first(usize::MAX).into_iter()
    }

    /// The first series, at most so many.
    pub fn first(&self, most: usize) -> Vec<SeriesRef<'_>> {
        Lookup::new(self, None).rows(None).take(most).collect()
    }

    /// Why one of the series has no valid sample, the greatest reason of several; none if all have
    /// one.
    pub fn invalid_sample(&self) -> Option<InvalidSample> {
        let invalid = self.table.invalid();
        if invalid.is_empty() {
            return None;
        }
        let index = |row: u32| invalid.binary_search_by_key(&row, |(row, _)| *row).ok();
        let lookup = Lookup::new(self, None);
        let found = lookup.all_rows(None).filter_map(index);
        found.map(|index| invalid[index].1).max()
    }

    /// Whether there is no series at all, not even one without a valid sample.
    pub fn is_empty(&self) -> bool {
        Lookup::new(self, None).all_rows(None).next().is_none()
    }

    /// A lookup of the series by the value of a label.
    pub fn by<'a>(&'a self, label: &'a str) -> Lookup<'a> {
        Lookup::new(self, Some(label))
    }

    /// Whether the result of the unbatched query may have a label: not if the batch has it only to
    /// tell its rows apart.
    fn may_have(&self, label: &str) -> bool {
        let parameters = &self.query().shape.parameters;
        !parameters.iter().any(|parameter| !parameter.in_result && parameter.name == label)
    }
}

/// Finds the series of a query by the value of a label.
pub struct Lookup<'a> {
    result: &'a QueryResult,
    index: Arc<LabelIndex>,
    /// The argument of each parameter with one value, in the order of the index's first labels.
    values: Vec<&'a str>,
    hash: DefaultHasher,
    /// The parameters with several values, which are no part of the index.
    several: Vec<(&'a str, &'a [String])>,
    /// Whether the index's last label is the one to look up by.
    keyed: bool,
}

impl<'a> Lookup<'a> {
    fn new(result: &'a QueryResult, label: Option<&'a str>) -> Self {
        let (mut labels, mut values, mut several) = (Vec::new(), Vec::new(), Vec::new());
        let ShapedQuery { shape, arguments } = result.query();
        for (parameter, argument) in shape.parameters.iter().zip(arguments.iter()) {
            match argument.as_slice() {
                [value] => {
                    labels.push(parameter.name.as_str());
                    values.push(value.as_str());
                }
                any_of => several.push((parameter.name.as_str(), any_of)),
            }
        }
        // No series has a label that the unbatched result lacks: the empty value finds all.
        let label = label.filter(|label| result.may_have(label));
        let keyed = label.is_some();
        labels.extend(label);
        let index = result.table.index(&labels);
        Self { hash: index.hash_prefix(&values), result, index, values, several, keyed }
    }

    /// The series with this value of the label; for an empty value, those without the label.
    pub fn get<'s>(&'s self, value: &'s str) -> impl Iterator<Item = SeriesRef<'a>> + 's {
        let some = self.keyed || value.is_empty();
        self.rows(self.keyed.then_some(value)).filter(move |_| some)
    }

    fn rows<'s>(&'s self, value: Option<&'s str>) -> impl Iterator<Item = SeriesRef<'a>> + 's {
        let result = self.result;
        let is_valid = |row: &u32| !result.table.value(*row).is_nan();
        self.all_rows(value).filter(is_valid).map(move |row| SeriesRef { result, row })
    }

    /// The rows, including those without a valid sample.
    fn all_rows<'s>(&'s self, value: Option<&'s str>) -> impl Iterator<Item = u32> + 's {
        let Self { result, index, values, hash, several, .. } = self;
        let table = &*result.table;
        let required = &result.query().shape.required;
        let mut hash = hash.clone();
        value.iter().for_each(|value| value.hash(&mut hash));
        let found = index.find(table, hash.finish(), move || values.iter().copied().chain(value));
        let is_selected = move |row: &u32| {
            several.iter().all(|(name, any_of)| {
                let label = table.label(*row, name);
                any_of.binary_search_by(|value| value.as_str().cmp(label)).is_ok()
            }) && required.iter().all(|name| !table.label(*row, name).is_empty())
        };
        found.filter(is_selected)
    }
}

impl<'a> SeriesRef<'a> {
    /// The value.
    pub fn value(self) -> Quantity {
        let value = self.result.table.value(self.row);
        Quantity::from_f64(value).expect("series without a finite value are left out")
    }

    /// The time of the query.
    pub fn time(self) -> UnixMillis {
        self.result.table.time(self.row)
    }

    /// The value as a time, in Unix seconds.
    pub fn as_time(self) -> UnixMillis {
        (self.result.table.value(self.row) * 1000.0) as UnixMillis
    }

    /// Whether it is a scalar, which has no labels at all.
    pub fn is_scalar(self) -> bool {
        self.result.table.is_scalar()
    }

    /// The value of a label; empty if the series lacks it.
    pub fn label(self, name: &str) -> &'a str {
        if self.result.may_have(name) { self.result.table.label(self.row, name) } else { "" }
    }

    /// The labels that the unbatched query would have returned.
    pub fn labels(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let labels = self.result.table.labels(self.row);
        labels.filter(move |(name, _)| self.result.may_have(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result_of(table: Table, query: &str) -> QueryResult {
        QueryResult::detached(table.into(), ShapedQuery::of(query).into())
    }

    fn result(query: &str, series: &str) -> QueryResult {
        let body = format!(r#"{{"data":{{"resultType":"vector","result":[{series}]}}}}"#);
        result_of(Table::read(body.as_bytes()).unwrap(), query)
    }

    fn values(found: impl Iterator<Item = SeriesRef<'static>>) -> Vec<String> {
        found.map(|series| series.value().to_string()).collect()
    }

    #[test]
    fn a_query_has_only_its_own_series_of_a_batch() {
        let series = r#"{"metric":{"pod":"p","a":"1"},"value":[5,"1"]},
            {"metric":{"a":"2","pod":"p"},"value":[5,"2"]},
            {"metric":{"pod":"q","a":"1"},"value":[5,"3"]},
            {"metric":{"a":"1"},"value":[5,"4"]}"#;
        let one = Box::leak(Box::new(result(r#"sum by (pod) (x{a="1"})"#, series)));
        assert_eq!(values(one.iter()), ["1", "3", "4"]);
        assert_eq!(values(one.by("pod").get("p")), ["1"]);
        assert_eq!(values(one.by("pod").get("")), ["4"]);
        let labels: Vec<_> = one.iter().flat_map(SeriesRef::labels).collect();
        assert_eq!(labels, [("pod", "p"), ("pod", "q")]);
        // The label that tells the rows of the batch apart is not in its result.
        assert!(values(one.by("a").get("1")).is_empty());
        assert_eq!(values(one.by("a").get("")).len(), 3);
        let several = Box::leak(Box::new(result(r#"x{pod=~"q|r"}"#, series)));
        assert_eq!(values(several.iter()), ["3"]);
        assert_eq!(several.iter().next().unwrap().labels().count(), 2);
        let all = Box::leak(Box::new(result("x", series)));
        assert_eq!(values(all.iter()), ["1", "2", "3", "4"]);
    }

    #[test]
    fn indexes_are_few_however_many_label_sets_are_looked_up() {
        let series = |n: usize| {
            let labels = format!(r#""a":"","b":"","c":"","d":"","pod":"p{n}""#);
            format!(r#"{{"metric":{{{labels}}},"value":[1,"{n}"]}}"#)
        };
        let all: Vec<String> = (0..100).map(series).collect();
        let body = format!(r#"{{"data":{{"resultType":"vector","result":[{}]}}}}"#, all.join(","));
        let table = Arc::new(Table::read(body.as_bytes()).unwrap());
        // All have the same shape, and each another set of labels with one value.
        for several in 0..16 {
            let matcher = |label: usize| match several >> label & 1 {
                1 => format!(r#"{}=~"|x""#, ["a", "b", "c", "d"][label]),
                _ => format!(r#"{}="""#, ["a", "b", "c", "d"][label]),
            };
            let matchers: Vec<String> = (0..4).map(matcher).collect();
            let query = ShapedQuery::of(&format!("x{{{}}}", matchers.join(",")));
            let result = QueryResult::detached(table.clone(), query.into());
            for _ in 0..2 {
                let found: Vec<_> = result.by("pod").get("p7").map(SeriesRef::value).collect();
                assert_eq!(found, [Quantity::from_f64(7.0).unwrap()]);
                assert_eq!(result.iter().count(), 100);
            }
            assert!(table.has_few_indexes());
        }
    }

    #[test]
    fn a_scalar_is_a_series_without_labels() {
        let body = br#"{"data":{"resultType":"scalar","result":[1.5,"2"]}}"#;
        let result = result_of(Table::read(body).unwrap(), "time()");
        let [one] = result.iter().collect::<Vec<_>>()[..] else { panic!("not one") };
        assert!(one.is_scalar() && one.labels().next().is_none());
    }
}
