//! The ranges of a query.

use super::bounds;
use super::tree::{self, ExtensionNode, ParseError};
use promql_parser::parser::Expr;
use std::time::Duration;

/// The shortest range of series in a user's query, such as that of `rate(x[2m])`; none if it has none.
///
/// # Errors
/// If it is no PromQL.
pub fn shortest(query: &str) -> Result<Option<Duration>, ParseError> {
    let mut shortest: Option<Duration> = None;
    let mut expr = tree::parse(query, &bounds::USER_QUERY)?;
    let walked: Result<(), ExtensionNode> = tree::walk(&mut expr, &mut |node| {
        if let Expr::MatrixSelector(matrix) = node {
            shortest = Some(shortest.map_or(matrix.range, |least| least.min(matrix.range)));
        }
        Ok(())
    });
    // Only a tree that was not parsed from a text can have such a node.
    walked.expect("a tree that was parsed from PromQL");
    Ok(shortest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_range_of_a_query_is_found() {
        for (query, seconds) in [
            ("sum(x)", None),
            ("rate(x[2m]) / rate(y[30s])", Some(30)),
            ("max_over_time(rate(x[5m])[1m:10s])", Some(300)),
        ] {
            assert_eq!(
                shortest(query).expect("PromQL"),
                seconds.map(Duration::from_secs),
                "{query}"
            );
        }
    }
}
