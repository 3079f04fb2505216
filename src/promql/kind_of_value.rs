//! What kind of value a query has: by its form, whether it is a load, or a time or a length that follows from it.

use super::bounds;
use super::tree::{self, ParseError, Parts};
use promql_parser::parser::token::T_DIV;
use promql_parser::parser::{BinaryExpr, Call, Expr};

/// What a query has in it that is no load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KindOfValue {
    /// It asks for a quantile of a histogram.
    pub is_quantile: bool,
    /// It divides a `_sum` by the `_count` of the same metric, whose name this is: a mean.
    pub mean_of: Option<String>,
    /// The metrics whose values count as they are, and not by how fast they grow.
    pub levels: Vec<String>,
}

/// Reads it from a query.
///
/// # Errors
/// If it is no PromQL.
pub fn kind_of_value(query: &str) -> Result<KindOfValue, ParseError> {
    let mut kind = KindOfValue::default();
    read(&mut tree::parse(query, &bounds::USER_QUERY)?, &mut kind);
    Ok(kind)
}

fn read(expr: &mut Expr, kind: &mut KindOfValue) {
    match expr {
        Expr::Call(Call { func, .. }) if func.name == "histogram_quantile" => {
            kind.is_quantile = true;
        }
        Expr::Call(Call { func, .. })
            if matches!(func.name, "rate" | "irate" | "increase" | "deriv" | "delta") =>
        {
            return;
        }
        Expr::Binary(BinaryExpr { op, lhs, rhs, .. }) if op.id() == T_DIV => {
            let counts = names(rhs);
            let mean = names(lhs).into_iter().find_map(|name| {
                let of = name.strip_suffix("_sum")?.to_owned();
                counts.contains(&format!("{of}_count")).then_some(of)
            });
            kind.mean_of = kind.mean_of.take().or(mean);
        }
        _ => {}
    }
    let Some(Parts { selector, children }) = tree::parts(expr) else { return };
    kind.levels.extend(selector.and_then(|selector| selector.name.clone()));
    children.into_iter().for_each(|child| read(child, kind));
}

fn names(expr: &mut Expr) -> Vec<String> {
    let mut names = Vec::new();
    tree::selectors(expr, &mut |selector| names.extend(selector.name.clone()));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_lengths_are_told_from_loads() {
        let kind = |query: &str| kind_of_value(query).expect("PromQL");
        assert!(kind("histogram_quantile(0.9, sum by (le) (rate(x_bucket[5m])))").is_quantile);
        let mean = kind("sum(rate(x_seconds_sum[5m])) / sum(rate(x_seconds_count[5m]))");
        assert_eq!(mean.mean_of.as_deref(), Some("x_seconds"));
        assert_eq!(kind("sum(rate(x_total[1m])) / 2"), KindOfValue::default());
        assert_eq!(kind("sum(queue_length) / sum(rate(y_total[1m]))").levels, ["queue_length"]);
        assert_eq!(kind("rate(a_total[1m]) / b").mean_of, None);
        assert!(kind_of_value("sum(").is_err());
    }
}
