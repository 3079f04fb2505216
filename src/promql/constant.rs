//! Queries whose values do not grow with a load.

use super::bounds::USER_QUERY;
use super::tree;
use promql_parser::parser::token::{
    T_ADD, T_COUNT, T_DIV, T_EQLC, T_GTE, T_GTR, T_LSS, T_LTE, T_MUL, T_NEQ, T_SUB, T_SUM, TokenId,
};
use promql_parser::parser::{self, Expr};

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
                && (![T_SUM, T_COUNT].contains(&of.op.id()) || is_one(&of.expr))
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

/// The value of a query, as it follows from that of another one, which is a load.
#[derive(Clone, Debug)]
pub enum OfLoad {
    /// It is the load.
    Load,
    /// It is a number.
    Number(f64),
    /// It is computed of two.
    Of(fn(f64, f64) -> f64, Box<[OfLoad; 2]>),
}

impl OfLoad {
    /// Reads a query beside the one of the load, if that has one. None where its value does not follow from that alone.
    pub fn read(query: &str, load: Option<&str>) -> Option<Self> {
        let read = |query: &str| {
            let mut tree = tree::parse(query, &USER_QUERY).ok()?;
            tree::normalize(&mut tree);
            Some(tree)
        };
        Self::of(&read(query)?, load.and_then(read).as_ref())
    }

    fn of(expr: &Expr, load: Option<&Expr>) -> Option<Self> {
        if load == Some(expr) {
            return Some(Self::Load);
        }
        match expr {
            Expr::NumberLiteral(number) => Some(Self::Number(number.val)),
            Expr::Paren(of) => Self::of(&of.expr, load),
            Expr::Unary(of) => Some(Self::Of(
                |zero, of| zero - of,
                Box::new([Self::Number(0.0), Self::of(&of.expr, load)?]),
            )),
            Expr::Call(of) if of.func.name == "vector" => Self::of(of.args.args.first()?, load),
            Expr::Binary(of) => {
                let is_bool = of.modifier.as_ref().is_some_and(|modifier| modifier.return_bool);
                let operator = operator(of.op.id(), is_bool)?;
                Some(Self::Of(
                    operator,
                    Box::new([Self::of(&of.lhs, load)?, Self::of(&of.rhs, load)?]),
                ))
            }
            _ => None,
        }
    }

    /// The value, where that of the load is this.
    pub fn at(&self, load: f64) -> f64 {
        match self {
            Self::Load => load,
            Self::Number(number) => *number,
            Self::Of(of, two) => {
                let [left, right] = &**two;
                of(left.at(load), right.at(load))
            }
        }
    }
}

/// What an operator makes of two numbers. A comparison without `bool` filters.
fn operator(id: TokenId, is_bool: bool) -> Option<fn(f64, f64) -> f64> {
    Some(match id {
        T_ADD => |left, right| left + right,
        T_SUB => |left, right| left - right,
        T_MUL => |left, right| left * right,
        T_DIV => |left, right| left / right,
        T_EQLC if is_bool => |left, right| f64::from(left == right),
        T_NEQ if is_bool => |left, right| f64::from(left != right),
        T_GTR if is_bool => |left, right| f64::from(left > right),
        T_GTE if is_bool => |left, right| f64::from(left >= right),
        T_LSS if is_bool => |left, right| f64::from(left < right),
        T_LTE if is_bool => |left, right| f64::from(left <= right),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_from_a_load_is_computed_of_it() {
        const LOAD: &str = "sum(rate(a{b=\"c\", d=\"e\"}[2m])) # all";
        for (query, expected) in [
            ("((LOAD\n) > bool 2) * 3", Some([0.0, 3.0])),
            ("-(LOAD\n) + 7", Some([5.0, 4.0])),
            ("vector(5)", Some([5.0, 5.0])),
            ("(4 <= bool sum(rate(a{d=\"e\",b=\"c\"}[2m]))) + 1", Some([1.0, 1.0])),
            ("(LOAD\n) > 2", None),
            ("(sum(rate(other[2m])) > bool 2) * 3", None),
            ("hour() > bool 8", None),
        ] {
            let of = OfLoad::read(&query.replace("LOAD", LOAD), Some(LOAD));
            let values = of.map(|of| [2.0, 3.0].map(|load| of.at(load)));
            assert_eq!(values, expected, "{query}");
        }
        // One of pods has no query.
        assert!(OfLoad::read("vector(5)", None).is_some_and(|of| of.at(2.0) == 5.0));
    }

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
