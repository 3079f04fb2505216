//! From the queries that are due to the fewest that give exactly the same values.
//!
//! A query is taken apart into its [`Form`], in which the values of labels are
//! left open, and those values. Queries of one form can be asked as one: each
//! selector matches the values of all of them, each aggregation keeps the labels
//! that were left open, and each query's series are those with its own values.
//! [`Shape::of`] leaves a label open only where that is exact.

use super::matcher::Matcher;
use promql_parser::label::{self, MatchOp};
use promql_parser::parser::token::{
    T_AVG, T_COUNT, T_GROUP, T_LAND, T_LOR, T_LUNLESS, T_MAX, T_MIN, T_QUANTILE, T_STDDEV,
    T_STDVAR, T_SUM,
};
use promql_parser::parser::{
    self, AggregateExpr, BinaryExpr, Call, Expr, LabelModifier, VectorMatchCardinality,
    VectorSelector,
};
use promql_parser::util::visitor::{ExprVisitorMut, walk_expr_mut};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What queries share that differ in the values of labels alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Form {
    /// The text between the places where the open labels are matched.
    parts: Vec<String>,
    /// The labels left open, sorted.
    pub open: Vec<OpenLabel>,
}

/// A label whose value a form leaves open.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpenLabel {
    /// Its name.
    pub name: String,
    /// Whether the query's own series have it; else it is there for telling
    /// them apart alone.
    pub kept: bool,
}

/// For each open label the values that a query asks for: one, or any of several, sorted.
pub type Own = Arc<[Vec<String>]>;

/// A query taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// What it shares with others.
    pub form: Arc<Form>,
    /// Its own values.
    pub own: Own,
}

/// Stands in a form's text for the matchers of the open labels.
const HOLE: &str = "__plimsoll_open__";
/// What each series matches.
const ANY: &str = "__name__!=\"\"";

impl Shape {
    /// Takes a query apart. One that can't be, or is none, is its own form.
    pub fn of(query: &str) -> Self {
        Self::opened(query).unwrap_or_else(|| Self {
            form: Arc::new(Form { parts: vec![query.to_owned()], open: Vec::new() }),
            own: Arc::from([]),
        })
    }

    fn opened(query: &str) -> Option<Self> {
        // A text that has the name of the hole in it is left as it is.
        let mut expr = parser::parse(query).ok().filter(|_| !query.contains(HOLE))?;
        let mut labels = Candidates::default();
        let Ok(_) = walk_expr_mut(&mut labels, &mut expr);
        let (mut open, mut own) = (Vec::new(), Vec::new());
        for (name, values) in labels.found? {
            let part = part(&expr, &Opened { name: &name, one: values.len() == 1 });
            if let Some(Part::Vector { kept }) = part {
                open.push(OpenLabel { name, kept });
                own.push(values);
            }
        }
        if open.is_empty() {
            return None;
        }
        let Ok(_) = walk_expr_mut(&mut Opening(&open), &mut expr);
        let text = expr.to_string();
        // What is run is the text: it must say what the tree says.
        if parser::parse(&text).ok()? != expr {
            return None;
        }
        let hole = format!("{HOLE}=\"\"");
        let parts = text.split(&hole).map(str::to_owned).collect();
        Some(Self { form: Arc::new(Form { parts, open }), own: own.into() })
    }
}

/// The labels that every selector matches by the same values, with the values.
#[derive(Default)]
struct Candidates {
    found: Option<Vec<(String, Vec<String>)>>,
}

impl ExprVisitorMut for Candidates {
    type Error = std::convert::Infallible;

    fn pre_visit(&mut self, expr: &mut Expr) -> Result<bool, Self::Error> {
        if let Some(selector) = selector(expr) {
            let these = matched(selector);
            match &mut self.found {
                None => self.found = Some(these),
                Some(found) => found.retain(|label| these.contains(label)),
            }
        }
        Ok(true)
    }
}

fn selector(expr: &mut Expr) -> Option<&mut VectorSelector> {
    match expr {
        Expr::VectorSelector(selector) => Some(selector),
        Expr::MatrixSelector(matrix) => Some(&mut matrix.vs),
        _ => None,
    }
}

/// The labels that a selector matches once, by values that can be told; sorted.
fn matched(selector: &VectorSelector) -> Vec<(String, Vec<String>)> {
    let matchers = &selector.matchers;
    if !matchers.or_matchers.is_empty() {
        return Vec::new();
    }
    let once = |name: &str| matchers.matchers.iter().filter(|m| m.name == name).count() == 1;
    let mut matched: Vec<_> = matchers
        .matchers
        .iter()
        .filter(|m| m.name != "__name__" && once(&m.name))
        .filter_map(|m| {
            let values = match &m.op {
                MatchOp::Equal => vec![m.value.clone()],
                MatchOp::Re(_) => alternatives(&m.value)?,
                MatchOp::NotEqual | MatchOp::NotRe(_) => return None,
            };
            Some((m.name.clone(), values))
        })
        .collect();
    matched.sort_unstable();
    matched
}

/// The texts that a pattern matches, sorted, where it is nothing but a choice of texts.
fn alternatives(pattern: &str) -> Option<Vec<String>> {
    let (mut values, mut value) = (BTreeSet::new(), String::new());
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            '|' => {
                values.insert(std::mem::take(&mut value));
            }
            '\\' => value.push(chars.next().filter(char::is_ascii_punctuation)?),
            '.' | '+' | '*' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '^' | '$' => return None,
            c => value.push(c),
        }
    }
    values.insert(value);
    Some(values.into_iter().collect())
}

/// A label that may be left open.
struct Opened<'a> {
    name: &'a str,
    /// Whether it has one value, the same in every selector.
    one: bool,
}

/// What a part of a query is.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// The same number, whatever the label's value.
    Scalar,
    /// Series that, with the label left open, are those of all its values, each
    /// with its value. `kept` says whether they have it, too, where it is not open.
    Vector { kept: bool },
}

/// What each function does, it does to each series alone.
const BY_SERIES: &[&str] = &[
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "avg_over_time",
    "ceil",
    "changes",
    "clamp",
    "clamp_max",
    "clamp_min",
    "cos",
    "cosh",
    "count_over_time",
    "day_of_month",
    "day_of_week",
    "day_of_year",
    "days_in_month",
    "deg",
    "delta",
    "deriv",
    "exp",
    "floor",
    "histogram_avg",
    "histogram_count",
    "histogram_stddev",
    "histogram_stdvar",
    "histogram_sum",
    "hour",
    "idelta",
    "increase",
    "irate",
    "last_over_time",
    "ln",
    "log10",
    "log2",
    "max_over_time",
    "min_over_time",
    "minute",
    "month",
    "predict_linear",
    "present_over_time",
    "quantile_over_time",
    "rad",
    "rate",
    "resets",
    "round",
    "sgn",
    "sin",
    "sinh",
    "sqrt",
    "stddev_over_time",
    "stdvar_over_time",
    "sum_over_time",
    "tan",
    "tanh",
    "timestamp",
    "year",
];

/// What a part of a query is, with a label left open; none where leaving it
/// open would change a value.
fn part(expr: &Expr, label: &Opened<'_>) -> Option<Part> {
    match expr {
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) => Some(Part::Scalar),
        Expr::VectorSelector(_) | Expr::MatrixSelector(_) => Some(Part::Vector { kept: true }),
        Expr::Paren(paren) => part(&paren.expr, label),
        Expr::Unary(unary) => part(&unary.expr, label),
        Expr::Subquery(subquery) => part(&subquery.expr, label),
        Expr::Call(call) => of_call(call, label),
        Expr::Aggregate(aggregate) => of_aggregate(aggregate, label),
        Expr::Binary(binary) => of_binary(binary, label),
        Expr::Extension(_) => None,
    }
}

fn of_call(call: &Call, label: &Opened<'_>) -> Option<Part> {
    let args = &call.args.args;
    let names = |args: &[Box<Expr>]| args.iter().any(|arg| text(arg) == Some(label.name));
    match call.func.name {
        "time" | "pi" => return Some(Part::Scalar),
        // Which labels are read and written.
        "label_replace" if !names(&args[1..2]) && !names(&args[3..4]) => {}
        "label_join" if !names(&args[1..2]) && !names(&args[3..]) => {}
        "histogram_quantile" | "histogram_fraction" if label.name != "le" => {}
        name if BY_SERIES.contains(&name) => {}
        _ => return None,
    }
    let mut vector = None;
    for arg in args {
        match (part(arg, label)?, vector) {
            (Part::Scalar, _) => {}
            (part, None) => vector = Some(part),
            _ => return None,
        }
    }
    vector
}

fn text(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::StringLiteral(literal) => Some(&literal.val),
        Expr::Paren(paren) => text(&paren.expr),
        _ => None,
    }
}

fn of_aggregate(aggregate: &AggregateExpr, label: &Opened<'_>) -> Option<Part> {
    let by_group = [T_SUM, T_AVG, T_MIN, T_MAX, T_COUNT, T_GROUP, T_STDDEV, T_STDVAR, T_QUANTILE];
    if !by_group.contains(&aggregate.op.id()) {
        return None;
    }
    if let Some(parameter) = &aggregate.param
        && part(parameter, label)? != Part::Scalar
    {
        return None;
    }
    let Part::Vector { kept } = part(&aggregate.expr, label)? else { return None };
    match &aggregate.modifier {
        Some(LabelModifier::Include(by)) if has(by, label) => Some(Part::Vector { kept }),
        Some(LabelModifier::Exclude(without)) if has(without, label) => None,
        Some(LabelModifier::Exclude(_)) => Some(Part::Vector { kept }),
        // It is added to the labels that groups are made by.
        _ => label.one.then_some(Part::Vector { kept: false }),
    }
}

fn has(labels: &label::Labels, label: &Opened<'_>) -> bool {
    labels.labels.iter().any(|name| name == label.name)
}

fn of_binary(binary: &BinaryExpr, label: &Opened<'_>) -> Option<Part> {
    let (left, right) = (part(&binary.lhs, label)?, part(&binary.rhs, label)?);
    let (left, right) = match (left, right) {
        (Part::Scalar, other) | (other, Part::Scalar) => return Some(other),
        (Part::Vector { kept: left }, Part::Vector { kept: right }) => (left, right),
    };
    let matching = match &binary.modifier {
        None => None,
        Some(modifier) => {
            let many = VectorMatchCardinality::ManyToMany;
            let plain = [VectorMatchCardinality::OneToOne, many].contains(&modifier.card);
            if !plain || modifier.fill_values != Default::default() {
                return None;
            }
            modifier.matching.as_ref()
        }
    };
    let same = (left == right).then_some(Part::Vector { kept: left });
    let op = binary.op.id();
    match matching {
        Some(LabelModifier::Include(on)) if !has(on, label) => match op {
            // It is added to the labels that are matched on.
            _ if !label.one => None,
            T_LAND | T_LUNLESS => Some(Part::Vector { kept: left }),
            T_LOR => same,
            _ => Some(Part::Vector { kept: false }),
        },
        Some(LabelModifier::Exclude(ignoring)) if has(ignoring, label) => None,
        _ => same,
    }
}

/// Leaves labels open in the whole of a query.
struct Opening<'a>(&'a [OpenLabel]);

impl Opening<'_> {
    fn add(&self, labels: &mut label::Labels) {
        for open in self.0 {
            if !labels.labels.contains(&open.name) {
                labels.labels.push(open.name.clone());
            }
        }
    }
}

impl ExprVisitorMut for Opening<'_> {
    type Error = std::convert::Infallible;

    fn pre_visit(&mut self, expr: &mut Expr) -> Result<bool, Self::Error> {
        if let Some(selector) = selector(expr) {
            let matchers = &mut selector.matchers.matchers;
            matchers.retain(|m| self.0.iter().all(|open| open.name != m.name));
            matchers.push(label::Matcher::new(MatchOp::Equal, HOLE, ""));
            // As they are written.
            matchers.sort_by_cached_key(ToString::to_string);
        }
        match expr {
            Expr::Aggregate(aggregate) => match &mut aggregate.modifier {
                Some(LabelModifier::Include(by)) => self.add(by),
                Some(LabelModifier::Exclude(_)) => {}
                none => {
                    let mut by = label::Labels::new(Vec::new());
                    self.add(&mut by);
                    *none = Some(LabelModifier::Include(by));
                }
            },
            Expr::Binary(binary) => {
                if let Some(modifier) = &mut binary.modifier
                    && let Some(LabelModifier::Include(on)) = &mut modifier.matching
                {
                    self.add(on);
                }
            }
            _ => {}
        }
        Ok(true)
    }
}

impl Form {
    /// The query for certain values of the open labels; none stands for any.
    fn query(&self, of: &[Option<BTreeSet<&String>>]) -> String {
        let matcher = |(open, values): (&OpenLabel, &Option<BTreeSet<&String>>)| {
            let values = values.as_ref()?.iter().copied().cloned().collect();
            Some(Matcher::any_of(values).render(&open.name))
        };
        let matchers: Vec<String> = self.open.iter().zip(of).filter_map(matcher).collect();
        let matchers = if matchers.is_empty() { ANY.to_owned() } else { matchers.join(",") };
        self.parts.join(&matchers)
    }
}

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
        Self { series: 50_000, values: 1_000 }
    }
}

/// What a query costs beside its series, in series: about 1 ms beside 5.5 us each
/// (one query for 10,000 pods takes 55 ms).
const QUERY_COST: f64 = 200.0;
/// What one value that a query names costs, in series: about 43 us (ten queries
/// that name 1,000 pods each take 430 ms more than one that names none).
const VALUE_COST: f64 = 8.0;
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
        let query = form.parts.concat();
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
    fn labels_are_left_open_only_where_that_changes_no_value() {
        for (query, expected) in [
            (r#"sum by (pod) (rate(x_total{a="1",pod!=""}[2m]))"#, vec![("a", false)]),
            (r#"sum(x{a="1",b=~"5.."})"#, vec![("a", false)]),
            (r#"x{a="1"}"#, vec![("a", true)]),
            (r#"sum by (pod) (x{pod=~"p-1|p\\.2"})"#, vec![("pod", true)]),
            (r#"sum(x{pod=~"p|q"})"#, vec![]),
            (r#"sum by (p) (x{a="1"}) / sum by (p) (y{a="1"})"#, vec![("a", false)]),
            (r#"sum by (p) (x{a="1"}) / sum by (p) (y{a="2"})"#, vec![]),
            (r#"sum by (p) (x{a="1"}) / y{a="1"}"#, vec![]),
            (r#"x{a="1"} / on (p) y{a="1"}"#, vec![("a", false)]),
            (r#"x{a="1"} * on (p) group_left () y{a="1"}"#, vec![]),
            (r#"sum by (p) (x{a="1"}) or vector(0)"#, vec![]),
            (r#"absent(x{a="1"})"#, vec![]),
            (r#"topk(3, x{a="1"})"#, vec![]),
            (r#"scalar(x{a="1"})"#, vec![]),
            (r#"sum without (a) (x{a="1"})"#, vec![]),
            (r#"sum without (i) (x{a="1"})"#, vec![("a", true)]),
            (r#"sum by (p) (sum without (i) (x{a="1"})) > 5"#, vec![("a", false)]),
            (r#"label_replace(x{a="1"}, "b", "$1", "a", "(.*)")"#, vec![]),
            (r#"label_replace(x{a="1"}, "a", "2", "", "")"#, vec![]),
            (
                r#"histogram_quantile(0.9, sum by (le) (rate(h_bucket{a="1",le="5"}[1m])))"#,
                vec![("a", false)],
            ),
            (r#"max_over_time(sum(x{a="1"})[5m:1m]) + time()"#, vec![("a", false)]),
            (r#"x{a="1"} or x{a="1",b="2"}"#, vec![("a", true)]),
            (r#"x{__plimsoll_open__="",a="1"}"#, vec![]),
            ("up", vec![]),
            ("vector(1)", vec![]),
            ("no query", vec![]),
        ] {
            assert_eq!(open(&Shape::of(query)), expected, "{query}");
        }
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
        assert_eq!(planned(&form, &all, crowded, Limits::default()).len(), 1);
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
    }

    #[test]
    fn alternatives_are_told_only_of_plain_choices() {
        let told = |pattern| alternatives(pattern);
        assert_eq!(told("b|a"), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(told(r"a\.b\-c"), Some(vec!["a.b-c".to_owned()]));
        assert_eq!(told(""), Some(vec![String::new()]));
        for pattern in ["a.*", "(a|b)", r"\d", "a+", "[ab]", "^a"] {
            assert_eq!(told(pattern), None, "{pattern}");
        }
    }
}
