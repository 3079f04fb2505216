//! From the queries that are due to the fewest that give exactly the same values.
//!
//! Queries of one [`Form`] can be asked as one: each selector matches the values of all
//! of them, and each finds its own rows in the answer (see [`shape`](super::shape), which
//! has an example). Three ways are there for those who wait:
//!
//! - **alone**, a query each: `sum by (pod, app) (x{app="web",ns="shop"})`;
//! - **joined**, with the values of all: `sum by (pod, app) (x{app=~"api|web",ns="shop"})`, in chunks
//!   where one query would name too many values or give too many series;
//! - **wide**, with one label not matched at all, because so many of its values are asked for:
//!   `sum by (pod, app) (x{ns="shop"})`. It answers whoever asks for any value of that label.
//!
//! [`plan`] takes the one that costs least for each answer, by what earlier answers taught.

pub use super::shape::{Form, OpenLabel, Own, Shape};
use std::collections::BTreeSet;

/// What earlier answers taught of a form.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Learned {
    /// The series of an answer that is exact, for each of its queries.
    pub narrow: Option<f64>,
    /// The series of an answer that is wide, for each of its places (see [`Planned`]).
    pub wide: Option<f64>,
    /// How many queries may be joined: fewer, after a joined one took too long.
    pub most: usize,
}

impl Default for Learned {
    fn default() -> Self {
        Self { narrow: None, wide: None, most: usize::MAX }
    }
}

/// How large a joined query may grow.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The series that an answer should have at most.
    pub series: usize,
    /// The values of one label that a query names at most.
    pub values: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { series: 50_000, values: LOOKED_UP }
    }
}

// What a query costs Prometheus 3.13, in CPU time, by `make query-costs` on 20,000 series: 490 us for
// itself, 3.5 us for each series in its answer (2.2 us where there are many), and 4 to 5.5 us for each
// value that it names. Where a value has a `.` or another sign that a pattern escapes, so
// that all are parsed as a pattern, 12 us each. All are counted in series.

/// What a query costs beside its series, in series.
const QUERY_COST: f64 = 150.0;
/// What one value that a query names costs beside its series, in series.
const VALUE_COST: f64 = 2.0;
/// As many values of a label as Prometheus looks up in its index. From 256 on
/// (`maxSetMatches` in its `model/labels/regexp.go`) it compares every value that the label
/// has with those: of 20,000, that takes 2 ms more, and 15 ms more where one of the values named has a `.`.
/// Four queries of 250 values cost no more than one of 1,000 there, and less where there are more pods.
const LOOKED_UP: usize = 255;
/// A label need not be matched where more than so many of its values are asked for.
const FEW_VALUES: usize = 64;

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    /// Those who wait for an answer.
    pub waiting: &'a BTreeSet<Own>,
    /// Those whose answer grew too old, and who are likely to ask again at once.
    pub expected: &'a BTreeSet<Own>,
    /// All who asked lately, whether they have an answer or not: as many are
    /// likely to ask for something else before long.
    pub lately: &'a BTreeSet<Own>,
}

/// A query to run, and whom it answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Its text.
    pub query: String,
    /// Whom it was made for.
    pub of: Vec<Own>,
    /// All that it answers.
    pub cover: Cover,
    /// How many different values of the labels that it matches it was made for,
    /// where it is wide: where it leaves a label unmatched.
    pub places: Option<usize>,
}

/// For each open label, the values that an answer has all series of; none for any value.
#[derive(Clone, Debug, PartialEq)]
pub struct Cover(Vec<Option<BTreeSet<String>>>);

impl Cover {
    /// Whether an answer has all that is asked for.
    pub fn contains(&self, own: &Own) -> bool {
        let within = |(cover, values): (&Option<BTreeSet<String>>, &Vec<String>)| {
            cover.as_ref().is_none_or(|cover| values.iter().all(|value| cover.contains(value)))
        };
        self.0.iter().zip(own.iter()).all(within)
    }
}

/// Plans the queries for those who wait, in the way that costs least for each
/// answer: one each, joined with those who are expected, or wide, without the
/// label that names objects, where so many ask lately that it pays.
pub fn plan(form: &Form, asking: Asking<'_>, learned: Learned, limits: Limits) -> Vec<Planned> {
    let Asking { waiting, expected, lately } = asking;
    if form.open.is_empty() {
        let query = form.query(&[]);
        let of = waiting.iter().cloned().collect();
        return vec![Planned { query, of, cover: Cover(Vec::new()), places: None }];
    }
    let narrow = learned.narrow.unwrap_or(0.0);
    let most = |series: f64, values: usize| {
        let by_series = limits.series as f64 / series.max(1.0);
        (limits.values / values.max(1)).min(by_series as usize).min(learned.most).max(1)
    };
    let queries = |count: usize, most: usize| count.div_ceil(most) as f64 * QUERY_COST;

    let joined: Vec<&Own> = waiting.union(expected).collect();
    let named: usize = joined.iter().flat_map(|own| own.iter().map(Vec::len)).sum();
    // Those that ask for the most values of a label fill a query first.
    let largest = joined.iter().flat_map(|own| own.iter().map(Vec::len)).max().unwrap_or(1);
    let named = named as f64 * VALUE_COST / joined.len() as f64;
    let alone = QUERY_COST + named + narrow;
    let at_once = most(narrow, largest);
    let exact = queries(joined.len(), at_once) / joined.len() as f64 + named + narrow;

    let all: Vec<&Own> = waiting.union(lately).collect();
    let wide = many_valued(form, &all).and_then(|label| {
        let places = places(&all, label);
        let series = learned.wide.map_or(narrow * all.len() as f64, |wide| wide * places as f64);
        let fits = places <= limits.values && series <= limits.series as f64;
        fits.then_some((label, (QUERY_COST + series) / all.len() as f64))
    });
    match wide {
        Some((label, cost)) if cost < exact.min(alone) => {
            vec![join(form, &all, Some(label))]
        }
        _ if exact < alone && joined.len() > 1 => {
            // Chunks of one size, so that none is left over that is hardly worth a query.
            let size = joined.len().div_ceil(joined.len().div_ceil(at_once));
            joined.chunks(size).map(|chunk| join(form, chunk, None)).collect()
        }
        _ => waiting.iter().map(|own| join(form, &[own], None)).collect(),
    }
}

/// The label of which the queries ask for the most values, where those are many.
/// One that the queries' own series don't have is left unmatched only where
/// another narrows the answer: it may be had by many more than ask.
fn many_valued(form: &Form, of: &[&Own]) -> Option<usize> {
    if !form.may_be_wide() {
        return None;
    }
    let values = |place: usize| -> usize {
        of.iter().flat_map(|own| &own[place]).collect::<BTreeSet<_>>().len()
    };
    let narrowed = form.open.len() > 1;
    let open = form.open.iter().enumerate().filter(|(_, open)| open.kept || narrowed);
    let (values, place) = open.map(|(place, _)| (values(place), place)).max()?;
    (values > FEW_VALUES).then_some(place)
}

/// How many different values of all labels but one there are.
fn places(of: &[&Own], without: usize) -> usize {
    let others = |own: &&Own| -> Vec<Vec<String>> {
        let others = own.iter().enumerate().filter(|(place, _)| *place != without);
        others.map(|(_, values)| values.clone()).collect()
    };
    of.iter().map(others).collect::<BTreeSet<_>>().len()
}

/// Plans one query for these, without matching one of the labels where one is named.
pub fn join(form: &Form, of: &[&Own], unmatched: Option<usize>) -> Planned {
    let values = |place: usize| -> Option<BTreeSet<&String>> {
        (unmatched != Some(place)).then(|| of.iter().flat_map(|own| &own[place]).collect())
    };
    let values: Vec<_> = (0..form.open.len()).map(values).collect();
    let query = form.query(&values);
    let owned = |values: &Option<BTreeSet<&String>>| {
        values.as_ref().map(|values| values.iter().copied().cloned().collect())
    };
    Planned {
        query,
        of: of.iter().map(|own| (*own).clone()).collect(),
        cover: Cover(values.iter().map(owned).collect()),
        places: unmatched.map(|label| places(of, label)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(shape: &Shape) -> Vec<(&str, bool)> {
        shape.form.open.iter().map(|open| (open.name.as_str(), open.kept)).collect()
    }

    #[test]
    fn queries_that_differ_in_values_alone_are_one() {
        let query = |ns: &str, a: &str| {
            format!(
                r#"sum by (namespace,pod) (rate(x_total{{a={a:?},namespace={ns:?},pod!=""}}[2m]))"#
            )
        };
        let shapes = [Shape::of(&query("shop", "1")), Shape::of(&query("ba\"nk", "x.y"))];
        assert_eq!(shapes[0].form, shapes[1].form);
        assert_eq!(open(&shapes[0]), [("a", false), ("namespace", true)]);
        let waiting: BTreeSet<Own> = shapes.iter().map(|shape| shape.own.clone()).collect();
        let planned = planned(&shapes[0].form, &waiting, Learned::default(), Limits::default());
        let [joined] = &planned[..] else { panic!("more than one query") };
        let selector = r#"x_total{a=~"1|x\\.y",namespace=~"ba\"nk|shop",pod!=""}"#;
        let expected = format!(r#"sum by (namespace, pod, a) (rate({selector}[2m]))"#);
        assert_eq!(joined.query, expected);
        assert!(waiting.iter().all(|own| joined.cover.contains(own)));
        assert!(!joined.cover.contains(&Shape::of(&query("mint", "1")).own));
    }

    /// The plan for those who wait, where nobody else asks.
    fn planned(
        form: &Form,
        waiting: &BTreeSet<Own>,
        learned: Learned,
        limits: Limits,
    ) -> Vec<Planned> {
        let nobody = BTreeSet::new();
        let asking = Asking { waiting, expected: &nobody, lately: waiting };
        let planned = plan(form, asking, learned, limits);
        let answered: BTreeSet<Own> = planned.iter().flat_map(|p| p.of.clone()).collect();
        assert_eq!(&answered, waiting);
        planned
    }

    #[test]
    fn queries_are_joined_and_split_where_they_grow_too_large() {
        let own = |n: usize| Shape::of(&format!(r#"sum by (pod) (x{{a="{n}"}})"#)).own;
        let form = Shape::of(r#"sum by (pod) (x{a="0"})"#).form;
        let all: BTreeSet<Own> = (0..100).map(own).collect();
        let count = |learned, limits| planned(&form, &all, learned, limits).len();
        let (first, limits) = (Learned::default(), Limits::default());
        assert_eq!(count(first, limits), 1);
        let large = Learned { narrow: Some(1_000.0), ..first };
        assert_eq!(count(large, limits), 2);
        assert_eq!(count(first, Limits { values: 30, ..limits }), 4);
        assert_eq!(count(Learned { most: 10, ..first }, limits), 10);
        assert_eq!(count(Learned { most: 1, ..first }, limits), 100);
        // One who waits alone is answered alone, unless others are expected.
        let (one, nobody) = (BTreeSet::from([own(7)]), BTreeSet::new());
        let asking = Asking { waiting: &one, expected: &nobody, lately: &all };
        let [alone] = &plan(&form, asking, first, limits)[..] else { panic!("not one") };
        assert_eq!(alone.query, r#"sum by (pod, a) (x{a="7"})"#);
        let asking = Asking { expected: &all, ..asking };
        assert_eq!(plan(&form, asking, first, limits)[0].of.len(), 100);
    }

    #[test]
    fn objects_are_named_or_not_whichever_costs_less() {
        let pods = |app: usize| {
            let names: Vec<String> = (0..10).map(|pod| format!("p-{app}-{pod}")).collect();
            Shape::of(&format!(r#"sum by (pod) (x{{ns="n",pod=~"{}"}})"#, names.join("|")))
        };
        let form = pods(0).form;
        let all: BTreeSet<Own> = (0..100).map(|app| pods(app).own).collect();
        let first = Learned { narrow: Some(10.0), ..Learned::default() };
        let [wide] = &planned(&form, &all, first, Limits::default())[..] else { panic!("not one") };
        assert_eq!(
            (wide.query.as_str(), wide.places),
            (r#"sum by (pod, ns) (x{ns="n"})"#, Some(1))
        );
        assert!(wide.cover.contains(&pods(1_000).own));
        // Where the place has many more, they are named, as many as a query may.
        let crowded = Learned { wide: Some(40_000.0), ..first };
        assert_eq!(planned(&form, &all, crowded, Limits::default()).len(), 4);
        let named = planned(&form, &all, crowded, Limits { values: 500, ..Limits::default() });
        assert!(named.len() == 2 && named[0].places.is_none());
        // One who waits is answered wide where many asked lately, as more will.
        let (one, nobody) = (BTreeSet::from([pods(500).own]), BTreeSet::new());
        let asking = Asking { waiting: &one, expected: &nobody, lately: &all };
        assert!(plan(&form, asking, first, Limits::default())[0].places.is_some());
        let asking = Asking { lately: &nobody, ..asking };
        assert!(plan(&form, asking, first, Limits::default())[0].places.is_none());
    }

    #[test]
    fn a_label_that_tells_queries_apart_is_not_named_where_another_narrows_the_answer() {
        let query = |app: usize| format!(r#"sum by (pod) (x{{app="{app}",ns="n"}})"#);
        let form = Shape::of(&query(0)).form;
        let all: BTreeSet<Own> = (0..100).map(|app| Shape::of(&query(app)).own).collect();
        let [wide] = &planned(&form, &all, Learned::default(), Limits::default())[..] else {
            panic!("not one")
        };
        assert_eq!(wide.query, r#"sum by (pod, app, ns) (x{ns="n"})"#);
    }

    #[test]
    fn a_quoted_name_stays_quoted() {
        let query = r#"sum by (pod) ({"http.requests","k8s.deployment.name"="web",ns="shop"})"#;
        let shape = Shape::of(query);
        assert_eq!(open(&shape), [("k8s.deployment.name", false), ("ns", false)]);
        let joined = join(&shape.form, &[&shape.own], None).query;
        let selector = r#"{"k8s.deployment.name"="web",__name__="http.requests",ns="shop"}"#;
        assert_eq!(joined, format!(r#"sum by (pod, "k8s.deployment.name", ns) ({selector})"#));
    }

    #[test]
    fn a_wide_query_in_which_nothing_else_is_open_is_valid() {
        let node =
            |n: usize| Shape::of(&format!(r#"sum by (node) (x{{mode!="idle",node="{n}"}})"#));
        let form = node(0).form;
        let all: BTreeSet<Own> = (0..100).map(|n| node(n).own).collect();
        let [wide] = &planned(&form, &all, Learned::default(), Limits::default())[..] else {
            panic!("not one")
        };
        assert_eq!(wide.query, r#"sum by (node) (x{mode!="idle"})"#);
        let bare = |n: usize| Shape::of(&format!(r#"x{{node="{n}"}}"#));
        let all: BTreeSet<Own> = (0..100).map(|n| bare(n).own).collect();
        let [wide] = &planned(&bare(0).form, &all, Learned::default(), Limits::default())[..]
        else {
            panic!("not one")
        };
        assert_eq!(wide.query, "x");
    }

    #[test]
    fn a_selector_without_a_name_always_names_values() {
        let query = |n: usize| Shape::of(&format!(r#"{{namespace="{n}",pod!=""}}"#));
        let all: BTreeSet<Own> = (0..100).map(|n| query(n).own).collect();
        let planned = planned(&query(0).form, &all, Learned::default(), Limits::default());
        assert!(planned.iter().all(|planned| planned.query.contains("namespace")));
        let any = |n: usize| Shape::of(&format!(r#"{{__name__=~".+",node="{n}"}}"#));
        assert!(!any(1).form.may_be_wide());
    }
}
