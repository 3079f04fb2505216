//! The queries of triggers, as operands of a formula.

use super::number::Number;
use crate::promql::bounds::USER_QUERY;
use crate::promql::query::{MetricType, type_by_name};
use crate::promql::tree;
use promql_parser::parser::token::{
    T_ADD, T_AVG, T_BOTTOMK, T_COUNT, T_DIV, T_GROUP, T_GTR, T_LAND, T_LOR, T_LSS, T_LUNLESS,
    T_MAX, T_MIN, T_MOD, T_MUL, T_QUANTILE, T_STDDEV, T_STDVAR, T_SUB, T_SUM, T_TOPK,
};
use promql_parser::parser::value::ValueType;
use promql_parser::parser::{BinaryExpr, Call, Expr, LabelModifier};
use std::collections::BTreeSet;

/// The value that KEDA's Prometheus scaler reads from a query: NaN and infinities are as an empty
/// result, and that is 0 with `ignoreNullValues`. So is a value below 0.
pub fn trigger_value(query: &str, ignore_null_values: bool) -> String {
    let value = format!("clamp_min({}, 0)", bounded(query));
    if !ignore_null_values {
        return value;
    }
    // Without `on()`, a result that has labels would get a second series.
    format!("{value} or on() vector(0)")
}

/// A query without NaN and infinities in its result, which KEDA's Prometheus scaler reads as an empty one with
/// `ignoreNullValues`. None of a query that has neither, for certain, or is no instant vector.
pub fn without_nan(query: &str) -> Option<String> {
    let tree = tree::parse(query, &USER_QUERY).ok()?;
    let may_have = tree.value_type() == ValueType::Vector && !is_finite(&tree);
    may_have.then(|| bounded(query))
}

/// A query of one series without labels, with 0 in place of NaN, which 0 / 0 is. None of one that is never NaN, for
/// certain.
pub fn nan_as_zero(query: &str) -> Option<String> {
    let tree = tree::parse(query, &USER_QUERY).ok()?;
    (!is_finite(&tree)).then(|| format!("({query}) >= -Inf or ({query}) == bool 0"))
}

/// A query whose NaN and infinities are left out.
fn bounded(query: &str) -> String {
    let (text, open) = operand_text(query);
    let query = if open { format!("({text})") } else { text };
    format!("{query} < Inf > -Inf")
}

/// The text of a query, and whether it is enclosed where it is an operand.
fn operand_text(query: &str) -> (String, bool) {
    let query = query.trim();
    if query.contains('#') {
        // A comment would hide the parenthesis.
        return (format!("({query}\n)"), false);
    }
    let closed = matches!(
        tree::parse(query, &USER_QUERY),
        Ok(Expr::Aggregate(_) | Expr::Call(_) | Expr::Paren(_) | Expr::VectorSelector(_))
    );
    (query.to_owned(), !closed)
}

/// A trigger's query in a formula.
pub struct Operand<'a> {
    /// Its value, of one series without labels.
    pub number: Number<'a>,
    /// Whether it always has a value.
    pub never_empty: bool,
}

impl<'a> Operand<'a> {
    /// The operand of a trigger's name and its query. Prometheus fails on several series.
    ///
    /// # Errors
    /// If the query is not an instant vector.
    pub fn new(name: &'a str, query: &str) -> Result<Self, String> {
        let tree = tree::parse(query, &USER_QUERY)
            .map_err(|error| format!("the query of trigger `{name}`: {error}"))?;
        if tree.value_type() != ValueType::Vector {
            return Err(format!("the query of trigger `{name}` is not an instant vector"));
        }
        let (text, open) = operand_text(query);
        let query = Number { text, open, ..Number::default() };
        let (text, open) = if has_no_labels(&tree) {
            (query.text, query.open)
        } else {
            // Matching takes away the labels, and fails on several series; sum() would add them.
            (format!("{} * on() vector(1)", query.atom()), true)
        };
        let names = BTreeSet::from([name]);
        let number = Number {
            text,
            open,
            nullable: true,
            reads: names.clone(),
            proves: names,
            ..Number::default()
        };
        Ok(Self { number, never_empty: never_empty(&tree) })
    }
}

/// Whether the result is one series without labels, or empty, for certain.
fn has_no_labels(query: &Expr) -> bool {
    match query {
        Expr::Aggregate(aggregate) => {
            let one = matches!(
                aggregate.op.id(),
                T_AVG
                    | T_COUNT
                    | T_GROUP
                    | T_MAX
                    | T_MIN
                    | T_QUANTILE
                    | T_STDDEV
                    | T_STDVAR
                    | T_SUM
            );
            let grouped = match &aggregate.modifier {
                None => false,
                Some(LabelModifier::Include(labels)) => !labels.is_empty(),
                Some(LabelModifier::Exclude(_)) => true,
            };
            one && !grouped
        }
        Expr::Paren(inner) => has_no_labels(&inner.expr),
        Expr::Binary(binary) => [&binary.lhs, &binary.rhs]
            .into_iter()
            .all(|side| side.value_type() == ValueType::Scalar || has_no_labels(side)),
        Expr::Call(call) => match call.func.name {
            "vector" => true,
            "clamp_min" => call.args.args.first().is_some_and(|inner| has_no_labels(inner)),
            _ => false,
        },
        _ => false,
    }
}

/// Whether the result always has a series, for certain.
fn never_empty(query: &Expr) -> bool {
    match query {
        Expr::Paren(inner) => never_empty(&inner.expr),
        Expr::Binary(binary) => binary.op.id() == T_LOR && never_empty(&binary.rhs),
        Expr::Call(call) => call.func.name == "vector",
        _ => false,
    }
}

/// Whether no value of the result is NaN or infinite, for certain: it is made of counters, counts and numbers. A gauge may
/// have either.
fn is_finite(query: &Expr) -> bool {
    match query {
        Expr::NumberLiteral(number) => number.val.is_finite(),
        Expr::Paren(inner) => is_finite(&inner.expr),
        Expr::Unary(inner) => is_finite(&inner.expr),
        Expr::VectorSelector(selector) => {
            selector.name.as_deref().and_then(type_by_name) == Some(MetricType::Counter)
        }
        Expr::Aggregate(aggregate) => match aggregate.op.id() {
            T_COUNT | T_GROUP => true,
            T_SUM | T_MIN | T_MAX | T_TOPK | T_BOTTOMK => is_finite(&aggregate.expr),
            _ => false,
        },
        Expr::Call(call) => is_finite_call(call),
        Expr::Binary(binary) => is_finite_binary(binary),
        _ => false,
    }
}

fn is_finite_call(call: &Call) -> bool {
    let args = &call.args.args;
    match call.func.name {
        "absent" | "absent_over_time" | "changes" | "count_over_time" | "present_over_time"
        | "resets" => true,
        // Of counters.
        "rate" | "irate" | "increase" => {
            args.iter().all(|of| matches!(**of, Expr::MatrixSelector(_)))
        }
        "abs" | "ceil" | "clamp" | "clamp_max" | "clamp_min" | "floor" | "sgn" | "sort"
        | "sort_desc" | "vector" => args.iter().all(|of| is_finite(of)),
        "round" if args.len() == 1 => is_finite(&args[0]),
        // Of one series.
        "scalar" => args.iter().all(|of| is_finite(of) && never_empty(of) && has_no_labels(of)),
        _ => false,
    }
}

fn is_finite_binary(binary: &BinaryExpr) -> bool {
    let BinaryExpr { op, lhs, rhs, modifier } = binary;
    let is_bool = modifier.as_ref().is_some_and(|modifier| modifier.return_bool);
    match op.id() {
        T_ADD | T_SUB | T_MUL | T_LOR => is_finite(lhs) && is_finite(rhs),
        T_DIV | T_MOD => is_finite(lhs) && is_some_number(rhs),
        T_LAND | T_LUNLESS => is_finite(lhs),
        T_GTR if is_below_infinity(lhs) && is_infinity(rhs, -1.0) => true,
        _ if op.is_comparison_operator() => is_bool || is_finite(lhs) && is_finite(rhs),
        _ => false,
    }
}

/// Whether it is `... < Inf`.
fn is_below_infinity(expr: &Expr) -> bool {
    let Expr::Binary(BinaryExpr { op, rhs, .. }) = expr else { return false };
    op.id() == T_LSS && is_infinity(rhs, 1.0)
}

fn is_infinity(expr: &Expr, sign: f64) -> bool {
    match expr {
        Expr::NumberLiteral(number) => number.val == sign * f64::INFINITY,
        Expr::Unary(inner) => is_infinity(&inner.expr, -sign),
        _ => false,
    }
}

/// Whether it is a written number other than 0.
fn is_some_number(expr: &Expr) -> bool {
    match expr {
        Expr::NumberLiteral(number) => number.val.is_finite() && number.val != 0.0,
        Expr::Paren(inner) => is_some_number(&inner.expr),
        _ => false,
    }
}
