//! Which labels may become parameters: the proof that a batched query is exact.
//!
//! Let `E(V)` be an expression whose selectors all match the label `l` by the values `V`. Let `E'(W)` be its
//! parameterized form: the selectors match `l` by `W`, the values of all queries in the batch, and `l` is
//! added to each `by` and `on` list that lacks it.
//!
//! **Claim:** for each `V` within `W`, the rows of `E'(W)` whose `l` is in `V` are the rows of `E(V)`, with the same
//! values. If the result of `E(V)` has `l` (`has_label`), their labels are the same, too.
//! If not, they have `l` in addition, and it is removed when the rows are read.
//!
//! The proof is by induction over the tree, with a rule for each kind of node. In the examples `l` is `app`.
//!
//! - **Selector.** `x{app=~"api|web"}` returns the series of `x{app="web"}`, and others with another `app`. Has `l`.
//! - **Function of each series** (`rate`, `abs`, ...). It sees one series at a time and keeps `l`. So does
//!   `label_replace` or `label_join` if it neither reads nor writes `l`. `histogram_quantile` and
//!   `histogram_fraction` put the buckets together that differ only in `le`, and keep the other labels: exact unless `l` is `le`.
//! - **Parentheses, unary minus and subqueries** are exact if the expression in them is: a sign changes each series by itself, and a
//!   subquery evaluates the same expression at several times.
//! - **Aggregation that keeps `l`** (`by` with `l`, or `without` that does not name `l`). `sum by (app) (x)` has no
//!   group with two values of `app`, so the groups of one query don't change when others are in the batch.
//! - **Aggregation that drops `l`** (`by` without `l`). `sum by (pod) (x{app="web"})` becomes `sum by (pod, app) (...)`: one
//!   group per `app`. Exact only if `V` is a single value: `sum by (pod) (x{app=~"api|web"})` wants one sum of both
//!   apps, and the added label would split it in two. The result lacks `l`. `sum without (app) (x)` also drops it, and is not
//!   parameterized.
//! - **`topk`, `limitk`, `count_values` and the like** are never exact: `topk(3, x{app=~"api|web"})` may return no series of `web`.
//! - **Operation of two vectors that matches on `l`** (no list, `on` with `l`, or `ignoring` without `l`). Only series with equal
//!   `l` match, so the matches of one query don't change when others are in the batch. Both sides must have `l`, or both lack
//!   it: in `sum by (pod) (x{app="web"}) / y{app="web"}` only the right side has `app`, so nothing matches; with `app` added to
//!   `by` on the left, series would.
//! - **Operation that matches without `l`** (`on` without `l`). `x{app="web"} / on (pod) y{app="web"}` becomes `on (pod, app)`. If `V` is
//!   a single value, all series have the same `app`, and matching on it changes nothing. `and` and `unless` return series of the left
//!   side. `or` returns series of both, so both must have `l` or both lack it. Other operators return only the labels of
//!   `on`, so the result lacks `l`. `ignoring (app)` would match series of different queries: not exact.
//! - **`group_left`, `group_right`, `fill`**: no proof, not parameterized.
//! - **Operation with a constant** sees one series at a time. `scalar(x)` is not a constant: it depends on series.

use super::functions::{self, FunctionKind};
use super::tree;
use promql_parser::label;
use promql_parser::parser::token::{
    T_AVG, T_COUNT, T_GROUP, T_LAND, T_LOR, T_LUNLESS, T_MAX, T_MIN, T_QUANTILE, T_STDDEV,
    T_STDVAR, T_SUM,
};
use promql_parser::parser::{
    AggregateExpr, BinaryExpr, Call, Expr, LabelModifier, VectorMatchCardinality,
};

/// A label that may become a parameter.
pub(super) struct CandidateLabel<'a> {
    /// The label's name.
    pub name: &'a str,
    /// Whether the query matches it by a single value (`V` has one element).
    pub single_value: bool,
}

/// The result of an expression once the candidate is a parameter.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ResultKind {
    /// A number that depends on no series.
    Constant,
    /// The rows of all values, each with its value of the candidate.
    Vector {
        /// Whether the result also has the label if it is not a parameter.
        has_label: bool,
    },
}

/// The result of an expression once the candidate is a parameter; none if that could change a
/// value (see the [module](self) for the rules).
pub(super) fn analyze(expr: &Expr, candidate: &CandidateLabel<'_>) -> Option<ResultKind> {
    match expr {
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) => Some(ResultKind::Constant),
        Expr::VectorSelector(_) | Expr::MatrixSelector(_) => {
            Some(ResultKind::Vector { has_label: true })
        }
        Expr::Paren(paren) => analyze(&paren.expr, candidate),
        Expr::Unary(unary) => analyze(&unary.expr, candidate),
        Expr::Subquery(subquery) => analyze(&subquery.expr, candidate),
        Expr::Call(call) => analyze_call(call, candidate),
        Expr::Aggregate(aggregate) => analyze_aggregate(aggregate, candidate),
        Expr::Binary(binary) => analyze_binary(binary, candidate),
        Expr::Extension(_) => None,
    }
}

fn analyze_call(call: &Call, candidate: &CandidateLabel<'_>) -> Option<ResultKind> {
    let args = &call.args.args;
    let contains_label = |args: &[Box<Expr>]| {
        args.iter().any(|arg| tree::string_literal(arg) == Some(candidate.name))
    };
    match call.func.name {
        // Argument 1 is the label that is written; 3, or all from 3 on, are read.
        "label_replace" if !contains_label(&args[1..2]) && !contains_label(&args[3..4]) => {}
        "label_join" if !contains_label(&args[1..2]) && !contains_label(&args[3..]) => {}
        "histogram_quantile" | "histogram_fraction" if candidate.name != "le" => {}
        name => match functions::kind(name)? {
            FunctionKind::EachSeries => {}
            FunctionKind::Constant => return Some(ResultKind::Constant),
            FunctionKind::Other => return None,
        },
    }
    let mut vector = None;
    for arg in args {
        match (analyze(arg, candidate)?, vector) {
            (ResultKind::Constant, _) => {}
            (result, None) => vector = Some(result),
            _ => return None,
        }
    }
    vector
}

fn analyze_aggregate(
    aggregate: &AggregateExpr,
    candidate: &CandidateLabel<'_>,
) -> Option<ResultKind> {
    // Each result depends only on the series of its group.
    let by_group = [T_SUM, T_AVG, T_MIN, T_MAX, T_COUNT, T_GROUP, T_STDDEV, T_STDVAR, T_QUANTILE];
    if !by_group.contains(&aggregate.op.id()) {
        return None;
    }
    if let Some(parameter) = &aggregate.param
        && analyze(parameter, candidate)? != ResultKind::Constant
    {
        return None;
    }
    let ResultKind::Vector { has_label } = analyze(&aggregate.expr, candidate)? else {
        return None;
    };
    match &aggregate.modifier {
        Some(LabelModifier::Include(by)) if lists(by, candidate) => {
            Some(ResultKind::Vector { has_label })
        }
        Some(LabelModifier::Exclude(without)) if lists(without, candidate) => None,
        Some(LabelModifier::Exclude(_)) => Some(ResultKind::Vector { has_label }),
        _ => candidate.single_value.then_some(ResultKind::Vector { has_label: false }),
    }
}

fn lists(labels: &label::Labels, candidate: &CandidateLabel<'_>) -> bool {
    labels.labels.iter().any(|name| name == candidate.name)
}

fn analyze_binary(binary: &BinaryExpr, candidate: &CandidateLabel<'_>) -> Option<ResultKind> {
    let (left, right) = (analyze(&binary.lhs, candidate)?, analyze(&binary.rhs, candidate)?);
    let (left, right) = match (left, right) {
        (ResultKind::Constant, other) | (other, ResultKind::Constant) => return Some(other),
        (ResultKind::Vector { has_label: left }, ResultKind::Vector { has_label: right }) => {
            (left, right)
        }
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
    let same = (left == right).then_some(ResultKind::Vector { has_label: left });
    let op = binary.op.id();
    match matching {
        Some(LabelModifier::Include(on)) if !lists(on, candidate) => match op {
            _ if !candidate.single_value => None,
            T_LAND | T_LUNLESS => Some(ResultKind::Vector { has_label: left }),
            T_LOR => same,
            _ => Some(ResultKind::Vector { has_label: false }),
        },
        Some(LabelModifier::Exclude(ignoring)) if lists(ignoring, candidate) => None,
        _ => same,
    }
}
