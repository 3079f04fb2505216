//! Whether the series of a query's result have a label, as far as its text tells.

use super::bounds;
use super::functions::{self, FunctionKind};
use super::tree::{self, ParseError};
use promql_parser::label::MatchOp;
use promql_parser::parser::token::{T_BOTTOMK, T_LAND, T_LIMIT_RATIO, T_LIMITK, T_LUNLESS, T_TOPK};
use promql_parser::parser::{
    AggregateExpr, BinaryExpr, Call, Expr, LabelModifier, VectorMatchCardinality, VectorSelector,
};

/// What the series of a result have of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResultLabel {
    /// None has it.
    Never,
    /// One value at most.
    Fixed,
    /// Whatever a recording rule has left of it: its text is not here.
    Recorded,
    /// Whatever the series have that are selected.
    AsSelected,
}

/// What the series of a query's result have of a label.
///
/// # Errors
/// If it is no PromQL.
pub fn result_label(query: &str, label: &str) -> Result<ResultLabel, ParseError> {
    Ok(of(&tree::parse(query, &bounds::USER_QUERY)?, label))
}

fn of(expr: &Expr, label: &str) -> ResultLabel {
    match expr {
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) | Expr::Extension(_) => ResultLabel::Never,
        Expr::VectorSelector(selector) => selected(selector, label),
        Expr::MatrixSelector(matrix) => selected(&matrix.vs, label),
        Expr::Paren(paren) => of(&paren.expr, label),
        Expr::Unary(unary) => of(&unary.expr, label),
        Expr::Subquery(subquery) => of(&subquery.expr, label),
        Expr::Call(call) => of_call(call, label),
        Expr::Aggregate(aggregate) => of_aggregate(aggregate, label),
        Expr::Binary(binary) => of_binary(binary, label),
    }
}

fn selected(selector: &VectorSelector, label: &str) -> ResultLabel {
    let VectorSelector { name, matchers, .. } = selector;
    // The convention is `level:metric:operations`, and the names of exporters have no colon.
    let is_recorded = name.as_ref().is_some_and(|name| name.contains(':'));
    match matchers.matchers.iter().any(|one| one.name == label && one.op == MatchOp::Equal) {
        true => ResultLabel::Fixed,
        false if is_recorded => ResultLabel::Recorded,
        false => ResultLabel::AsSelected,
    }
}

fn of_call(call: &Call, label: &str) -> ResultLabel {
    let args = &call.args.args;
    let most = || args.iter().map(|arg| of(arg, label)).max().unwrap_or(ResultLabel::Never);
    match call.func.name {
        "scalar" | "vector" => ResultLabel::Never,
        // These have what their selectors fix.
        "absent" | "absent_over_time" => match most() {
            ResultLabel::Fixed => ResultLabel::Fixed,
            ResultLabel::Never | ResultLabel::Recorded | ResultLabel::AsSelected => {
                ResultLabel::Never
            }
        },
        "label_replace" | "label_join" if args.get(1).is_some_and(|to| is(to, label)) => {
            ResultLabel::AsSelected
        }
        "histogram_quantile" | "histogram_fraction" if label == "le" => ResultLabel::Never,
        name if functions::kind(name) == Some(FunctionKind::Constant) => ResultLabel::Never,
        _ => most(),
    }
}

fn of_aggregate(aggregate: &AggregateExpr, label: &str) -> ResultLabel {
    let inner = of(&aggregate.expr, label);
    let param = aggregate.param.as_deref();
    let is_one = matches!(param, Some(Expr::NumberLiteral(number)) if number.val <= 1.0);
    match aggregate.op.id() {
        T_TOPK | T_BOTTOMK | T_LIMITK if is_one && aggregate.modifier.is_none() => {
            return inner.min(ResultLabel::Fixed);
        }
        T_TOPK | T_BOTTOMK | T_LIMITK | T_LIMIT_RATIO => return inner,
        _ => {}
    }
    // `count_values` writes its parameter, `quantile` has a number.
    if aggregate.param.as_ref().is_some_and(|written| is(written, label)) {
        return ResultLabel::AsSelected;
    }
    match &aggregate.modifier {
        Some(LabelModifier::Include(by)) if by.labels.iter().any(|one| one == label) => inner,
        Some(LabelModifier::Exclude(without)) if !without.labels.iter().any(|one| one == label) => {
            inner
        }
        Some(_) | None => ResultLabel::Never,
    }
}

fn of_binary(binary: &BinaryExpr, label: &str) -> ResultLabel {
    let (left, right) = (of(&binary.lhs, label), of(&binary.rhs, label));
    if [T_LAND, T_LUNLESS].contains(&binary.op.id()) {
        return left;
    }
    let Some(modifier) = &binary.modifier else { return left.max(right) };
    let matches = match &modifier.matching {
        None => true,
        Some(LabelModifier::Include(on)) => on.labels.iter().any(|one| one == label),
        Some(LabelModifier::Exclude(ignoring)) => !ignoring.labels.iter().any(|one| one == label),
    };
    match &modifier.card {
        VectorMatchCardinality::ManyToOne(more) | VectorMatchCardinality::OneToMany(more)
            if more.labels.iter().any(|one| one == label) =>
        {
            left.max(right)
        }
        VectorMatchCardinality::ManyToOne(_) => left,
        VectorMatchCardinality::OneToMany(_) => right,
        VectorMatchCardinality::OneToOne if !matches => ResultLabel::Never,
        VectorMatchCardinality::OneToOne | VectorMatchCardinality::ManyToMany => left.max(right),
    }
}

fn is(expr: &Expr, label: &str) -> bool {
    tree::string_literal(expr) == Some(label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ResultLabel::{AsSelected, Fixed, Never, Recorded};

    #[test]
    fn a_result_has_a_label_that_no_operation_drops() {
        for (query, expected) in [
            ("x", AsSelected),
            ("rate(x{pod=~\".+\"}[5m]) * 2", AsSelected),
            ("x{pod=\"web-0\"}", Fixed),
            ("vector(1)", Never),
            ("time() - pi()", Never),
            ("sum(rate(x[5m]))", Never),
            ("sum by (queue) (x)", Never),
            ("sum by (queue, pod) (x)", AsSelected),
            ("sum without (instance) (x)", AsSelected),
            ("sum without (pod) (x)", Never),
            ("max_over_time(sum by (pod) (x)[5m:1m])", AsSelected),
            ("topk(3, x)", AsSelected),
            ("topk by (queue) (3, x)", AsSelected),
            ("topk(1, x)", Fixed),
            ("2 * bottomk(1, sum by (queue) (x))", Never),
            ("limitk(1, x)", Fixed),
            ("topk by (queue) (1, x)", AsSelected),
            ("limit_ratio(1, x)", AsSelected),
            ("job:queue_depth:sum", Recorded),
            ("sum by (pod) (rate(job:x:sum[5m])) + 1", Recorded),
            ("sum(job:x:sum)", Never),
            ("job:x:sum{pod=\"web-0\"}", Fixed),
            ("job:x:sum or y", AsSelected),
            ("count_values(\"pod\", x)", AsSelected),
            ("quantile(0.9, x)", Never),
            ("-(sum(x))", Never),
            ("histogram_quantile(0.9, sum by (le) (rate(x_bucket[5m])))", Never),
            ("histogram_quantile(0.9, sum by (le, pod) (rate(x_bucket[5m])))", AsSelected),
            (
                "label_replace(sum by (instance) (x), \"pod\", \"$1\", \"instance\", \"(.*)\")",
                AsSelected,
            ),
            ("absent(x)", Never),
            ("sum(x) / sum(y)", Never),
            ("x / on (queue) y", Never),
            ("x / on (pod) y", AsSelected),
            ("x / ignoring (pod) y", Never),
            ("x / on (queue) group_left () sum by (queue) (y)", AsSelected),
            ("sum by (queue) (x) / on (queue) group_right () y", AsSelected),
            ("sum by (queue) (x) * on (queue) group_left (pod) y", AsSelected),
            ("sum(x) or y", AsSelected),
            ("sum(x) unless y", Never),
        ] {
            assert_eq!(result_label(query, "pod"), Ok(expected), "{query}");
        }
        assert!(result_label("sum(", "pod").is_err());
    }
}
