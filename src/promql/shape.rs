//! What a query shares with others: its form, in which the values of labels are left open.
//!
//! Two autoscalers ask:
//!
//! ```promql
//! sum by (pod) (rate(hits_total{app="web",ns="shop"}[2m]))
//! sum by (pod) (rate(hits_total{app="api",ns="shop"}[2m]))
//! ```
//!
//! Both have the form `sum by (pod, app, ns) (rate(hits_total{HOLE}[2m]))`, with
//! `app` and `ns` open: not kept, as the query's own series don't have them. The
//! values of the first are `[["web"], ["shop"]]`. [`Form::query`] fills the hole for both:
//!
//! ```promql
//! sum by (pod, app, ns) (rate(hits_total{app=~"api|web",ns="shop"}[2m]))
//! ```
//!
//! Of the rows of its answer, those with `app="web",ns="shop"` are, without these two
//! labels, the rows of the first query, and those with `app="api",ns="shop"` those of the second.
//! A label is left open only where that can be shown from the tree: see [`part`].

use super::bounds;
use super::functions::{self, Kind};
use super::matcher::pattern_of;
use super::tree::{self, Parts};
use promql_parser::label::{self, MatchOp, Matcher};
use promql_parser::parser::token::{
    T_AVG, T_COUNT, T_GROUP, T_LAND, T_LOR, T_LUNLESS, T_MAX, T_MIN, T_QUANTILE, T_STDDEV,
    T_STDVAR, T_SUM,
};
use promql_parser::parser::{
    AggregateExpr, BinaryExpr, Call, Expr, LabelModifier, VectorMatchCardinality, VectorSelector,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What queries share that differ in the values of labels alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Form {
    /// The tree printed, with a hole in each selector. A tree of its own in each form
    /// would take ten times the memory, and be read but once for a query that is sent.
    text: String,
    /// The labels left open, sorted; none where the query is asked as it is.
    pub open: Vec<OpenLabel>,
    /// Whether each selector is narrowed by a name or a value even where all
    /// open labels are left unmatched.
    narrowed: bool,
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

/// The label of the matcher that stands in a form for those of the open labels.
const HOLE: &str = "__plimsoll_open__";

impl Form {
    /// The form of a query that is asked as it is.
    fn closed(query: &str) -> Self {
        Self { text: query.to_owned(), open: Vec::new(), narrowed: true }
    }

    /// Whether a query of it may leave a label unmatched. A selector needs a name or
    /// a value: without, it is none (`{}`), or selects all series of all objects.
    pub fn may_be_wide(&self) -> bool {
        self.narrowed
    }

    /// About how many bytes of memory it takes.
    pub fn bytes(&self) -> usize {
        let names: usize = self.open.iter().map(|open| open.name.len() + 32).sum();
        size_of::<Self>() + self.text.len() + names
    }

    /// The query for certain values of the open labels; none stands for any.
    pub(super) fn query(&self, of: &[Option<BTreeSet<&String>>]) -> String {
        if self.open.is_empty() {
            return self.text.clone();
        }
        let mut tree = tree::read(&self.text, &bounds::OF_OURS).expect("it was read before");
        tree::settle(&mut tree);
        let matcher = |(open, values): (&OpenLabel, &Option<BTreeSet<&String>>)| {
            let values = values.as_ref()?;
            Some(match values.first() {
                Some(only) if values.len() == 1 => Matcher::new(MatchOp::Equal, &open.name, only),
                _ => {
                    let pattern = pattern_of(values);
                    Matcher::new(MatchOp::Re(tree::uncompiled()), &open.name, &pattern)
                }
            })
        };
        let matchers: Vec<Matcher> = self.open.iter().zip(of).filter_map(matcher).collect();
        tree::selectors(&mut tree, &mut |selector| {
            let own = &mut selector.matchers.matchers;
            own.retain(|matcher| matcher.name != HOLE);
            own.extend(matchers.iter().cloned());
            own.sort_by_cached_key(ToString::to_string);
        });
        let text = tree.to_string();
        debug_assert!(tree::says(&text, &tree), "{text} is not what was planned");
        text
    }
}

impl Shape {
    /// Takes a query apart. One that can't be, or is none, is its own form.
    pub fn of(query: &str) -> Self {
        Self::opened(query)
            .unwrap_or_else(|| Self { form: Arc::new(Form::closed(query)), own: Arc::from([]) })
    }

    fn opened(query: &str) -> Option<Self> {
        // A text that has the name of the hole in it is left as it is.
        if query.contains(HOLE) {
            return None;
        }
        let mut tree = tree::read(query, &bounds::OF_OURS).ok()?;
        tree::settle(&mut tree);
        let (mut open, mut own) = (Vec::new(), Vec::new());
        for (name, values) in candidates(&mut tree)? {
            let part = part(&tree, &Opened { name: &name, one: values.len() == 1 });
            if let Some(Part::Vector { kept }) = part {
                open.push(OpenLabel { name, kept });
                own.push(values);
            }
        }
        let mut narrowed = is_narrowed_without(&mut tree, &open);
        if !narrowed {
            // Where values alone narrow a selector, one that may be empty does not:
            // joined with others it could make a selector that matches everything.
            let (whole_open, whole_own) = (std::mem::take(&mut open), std::mem::take(&mut own));
            let values = whole_open.into_iter().zip(whole_own);
            (open, own) = values.filter(|(_, values)| values.iter().all(|v| !v.is_empty())).unzip();
            narrowed = is_narrowed_without(&mut tree, &open);
        }
        if open.is_empty() {
            return None;
        }
        leave_open(&mut tree, &open);
        let text = tree.to_string();
        // What is run is a text: it must say what the tree says.
        if !tree::says(&text, &tree) {
            return None;
        }
        Some(Self { form: Arc::new(Form { text, open, narrowed }), own: own.into() })
    }

    /// About how many bytes of memory it takes, its form included.
    pub fn bytes(&self) -> usize {
        let values: usize = self.own.iter().flatten().map(|value| value.len() + 24).sum();
        size_of::<Self>() + values + self.form.bytes()
    }
}

/// The labels that every selector matches by the same values, with the values.
fn candidates(tree: &mut Expr) -> Option<Vec<(String, Vec<String>)>> {
    let mut found: Option<Vec<(String, Vec<String>)>> = None;
    tree::selectors(tree, &mut |selector| {
        let these = matched(selector);
        match &mut found {
            None => found = Some(these),
            Some(found) => found.retain(|label| these.contains(label)),
        }
    });
    found
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

/// Whether each selector has a name or a value other than those of the open labels.
fn is_narrowed_without(tree: &mut Expr, open: &[OpenLabel]) -> bool {
    let mut narrowed = true;
    tree::selectors(tree, &mut |selector| {
        let names = |matcher: &Matcher| match matcher.op {
            MatchOp::Equal => !matcher.value.is_empty(),
            // Names, and no pattern: `.+` narrows nothing.
            MatchOp::Re(_) => {
                let values = alternatives(&matcher.value);
                values.is_some_and(|values| values.iter().all(|value| !value.is_empty()))
            }
            MatchOp::NotEqual | MatchOp::NotRe(_) => false,
        };
        let stays = |matcher: &&Matcher| open.iter().all(|open| open.name != matcher.name);
        let mut others = selector.matchers.matchers.iter().filter(stays);
        narrowed &= selector.name.is_some() || others.any(names);
    });
    narrowed
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

/// What a part of a query is, with a label `l` left open; none where leaving it
/// open would change a value.
///
/// Let `E(V)` be the part with `l` matched by the values `V` in each selector, and
/// `E'(W)` what is made of it: `l` matched by `W`, and `l` added to each `by` and `on` that has
/// not got it. The claim, for a part that is `Vector`, and each `V` within `W`: **the series of
/// `E'(W)` whose `l` is in `V` are those of `E(V)`** with the same values, where
/// `E(V)` has `l` (`kept`), or, where it has not, with `l` besides. It holds by
/// induction over the tree:
///
/// - A selector gives for `W` what it gives for `V`, and series with other `l`. Kept.
/// - A function of each series alone keeps that, as it keeps `l`. So does one that reads
///   or writes labels that are not `l`, and a quantile of buckets that are told apart by `le`,
///   where `l` is not `le`.
/// - An aggregation `by` labels with `l` among them, or `without` labels without it, has no
///   group with two values of `l`: the groups with `l` in `V` are made of the series of `E(V)`.
///   Kept as in the operand. With `l` not among the labels it is added: `E(V)`'s groups are split by `l`.
///   They were of one `l` before only if `V` is one value; that is why `one`. Not kept then.
///   `topk` and the like are no such thing: what they leave out depends on the whole.
/// - A binary operation of two such parts matches series with equal `l`, if `l` is
///   matched on: what matches for `V` is what matches for `W` with `l` in `V`. Matched on other
///   labels alone, `l` is added, which tells nothing apart that was one if `V` is one value.
///   `and` and `unless` give series of the left side, others series that have the
///   labels matched on; `or` gives both, so that both must have `l` or both not.
///   `group_left`, `fill`: not shown, not done.
/// - With a scalar, each series alone. A scalar that depends on series (`scalar()`) is none here.
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
    let names = |args: &[Box<Expr>]| args.iter().any(|arg| tree::text(arg) == Some(label.name));
    match call.func.name {
        // Which labels are read and written.
        "label_replace" if !names(&args[1..2]) && !names(&args[3..4]) => {}
        "label_join" if !names(&args[1..2]) && !names(&args[3..]) => {}
        "histogram_quantile" | "histogram_fraction" if label.name != "le" => {}
        name => match functions::kind(name)? {
            Kind::EachSeries => {}
            Kind::Scalar => return Some(Part::Scalar),
            Kind::Whole => return None,
        },
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

/// Leaves labels open in the whole of a query: a hole where selectors match them, and
/// their names wherever series are grouped or matched.
fn leave_open(tree: &mut Expr, open: &[OpenLabel]) {
    let add = |labels: &mut label::Labels| {
        for open in open {
            if !labels.labels.contains(&open.name) {
                labels.labels.push(open.name.clone());
            }
        }
    };
    let walked: Result<(), tree::NotPromQl> = tree::walk(tree, &mut |node| {
        match node {
            Expr::Aggregate(aggregate) => match &mut aggregate.modifier {
                Some(LabelModifier::Include(by)) => add(by),
                Some(LabelModifier::Exclude(_)) => {}
                none => {
                    let mut by = label::Labels::new(Vec::new());
                    add(&mut by);
                    *none = Some(LabelModifier::Include(by));
                }
            },
            Expr::Binary(binary) => {
                if let Some(modifier) = &mut binary.modifier
                    && let Some(LabelModifier::Include(on)) = &mut modifier.matching
                {
                    add(on);
                }
            }
            _ => {}
        }
        if let Some(Parts { selector: Some(selector), children: _ }) = tree::parts(node) {
            let matchers = &mut selector.matchers.matchers;
            matchers.retain(|matcher| open.iter().all(|open| open.name != matcher.name));
            matchers.push(Matcher::new(MatchOp::Equal, HOLE, ""));
            matchers.sort_by_cached_key(ToString::to_string);
        }
        Ok(())
    });
    walked.expect("a tree that was read from PromQL");
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
            // Nothing compiles a pattern, be it larger than any that could be.
            (r#"sum(x{a="1",b=~"\\pL{9000}"})"#, vec![("a", false)]),
            ("up", vec![]),
            ("vector(1)", vec![]),
            ("no query", vec![]),
        ] {
            assert_eq!(open(&Shape::of(query)), expected, "{query}");
        }
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
