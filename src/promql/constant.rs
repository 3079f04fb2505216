//! Queries whose values do not grow with a load.

use promql_parser::parser::{self, Expr, token};

/// Whether a query has no load in its values, but numbers and what comparisons say with `bool`: `vector(0)`, and
/// `(sum(rate(requests_total[2m])) > bool 0) * 3`, which is a lower bound of three replicas while there are requests.
pub fn is_constant(query: &str) -> bool {
    parser::parse(query).is_ok_and(|expr| is_of_constants(&expr))
}

fn is_of_constants(expr: &Expr) -> bool {
    match expr {
        Expr::NumberLiteral(_) => true,
        Expr::Paren(of) => is_of_constants(&of.expr),
        Expr::Unary(of) => is_of_constants(&of.expr),
        // How many there are may be the load: `sum(client_up == bool 1)`.
        Expr::Aggregate(of) => {
            is_of_constants(&of.expr)
                && (![token::T_SUM, token::T_COUNT].contains(&of.op.id()) || is_one(&of.expr))
        }
        Expr::Call(of) => of.args.args.iter().all(|argument| is_of_constants(argument)),
        Expr::Binary(of) => {
            of.modifier.as_ref().is_some_and(|modifier| modifier.return_bool)
                || is_of_constants(&of.lhs) && is_of_constants(&of.rhs)
        }
        _ => false,
    }
}

/// Whether an expression of constants has one value whatever series there are.
fn is_one(expr: &Expr) -> bool {
    match expr {
        Expr::NumberLiteral(_) => true,
        Expr::Paren(of) => is_one(&of.expr),
        Expr::Unary(of) => is_one(&of.expr),
        Expr::Aggregate(of) => of.modifier.is_none(),
        Expr::Call(of) => of.args.args.iter().all(|argument| is_one(argument)),
        Expr::Binary(of) => is_one(&of.lhs) && is_one(&of.rhs),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_with_a_load_is_told_from_what_does_not() {
        for query in [
            "vector(0)",
            "3",
            "hour() > bool 8",
            "(sum(rate(a[2m])) > bool 0) * 3",
            "-vector(1) + 2",
            "sum((sum(rate(a[2m])) > bool 0) * 3)",
            "max(up == bool 1) * 3",
        ] {
            assert!(is_constant(query), "{query}");
        }
        for query in [
            "a",
            "sum(rate(a[2m]))",
            "sum(rate(a[2m])) * 3",
            "a > 3",
            "vector(0) + a",
            "a or vector(0)",
            "sum(client_up == bool 1)",
            "count(up == bool 1)",
            "sum(sum by (pod) (a) > bool 0)",
            "(",
        ] {
            assert!(!is_constant(query), "{query}");
        }
    }
}
