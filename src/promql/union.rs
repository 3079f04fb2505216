//! One query for several that have no shape in common: their union, by `or`.
//!
//! ```text
//! query 0    sum by (pod) (rate(hits_total[1m]))
//! query 1    queue
//! union      (label_replace(sum by (pod) (rate(hits_total[1m])), "__plimsoll_query__", "0", "", "")
//!            or label_replace(queue, "__plimsoll_query__", "1", "", ""))
//! rows       {pod="web-1",__plimsoll_query__="0"} 7         read by query 0 as {pod="web-1"} 7
//!            {__name__="queue",pod="web-1",__plimsoll_query__="1"} 5
//! ```
//!
//! It is exact. `label_replace` whose source label is empty writes the number into every series of a query, and changes
//! neither values nor other labels. No series has had that label before: Prometheus drops labels that begin with two
//! underscores when it scrapes, and a query that mentions it is no member. `or` returns all series of the left side, and those of the right side
//! whose labels are not on the left: that is all of them, as the numbers differ. An error of one query is an error of the union,
//! which is then sent in parts.
//!
//! The `or` are nested as a balanced tree: each looks at all series below it, which takes time by the square of the
//! number of queries in a chain.

use super::bounds;
use super::tree;
use promql_parser::parser::Expr;
use promql_parser::parser::token::{T_BOTTOMK, T_TOPK};
use promql_parser::parser::value::ValueType;
use std::borrow::Cow;
use std::fmt::Write;

/// The label with the number of the query.
pub const QUERY_LABEL: &str = "__plimsoll_query__";

/// The bytes that a member takes in a union besides its text.
pub const MEMBER_OVERHEAD: usize = 64;

/// A query as a member of a union; none if it can't be one. The text is that of the tree that was read, which no
/// comment or literal of an unusual form can end early.
pub fn member(query: &str) -> Option<Cow<'_, str>> {
    if query.contains(QUERY_LABEL) {
        return None;
    }
    let tree = tree::parse(query, &bounds::PLANNED_QUERY).ok()?;
    if tree.value_type() != ValueType::Vector || is_ordered(&tree) {
        return None;
    }
    let text = tree.to_string();
    match text == query {
        true => Some(Cow::Borrowed(query)),
        false => tree::parses_to(&text, &tree).then_some(Cow::Owned(text)),
    }
}

/// Whether the order of the rows is part of the result. Not every server keeps it in an `or`.
fn is_ordered(tree: &Expr) -> bool {
    match tree {
        Expr::Paren(paren) => is_ordered(&paren.expr),
        Expr::Call(call) => call.func.name.starts_with("sort"),
        Expr::Aggregate(aggregate) => matches!(aggregate.op.id(), T_TOPK | T_BOTTOMK),
        _ => false,
    }
}

/// The union of [`member`]s.
pub fn union(members: &[&str]) -> String {
    let length: usize = members.iter().map(|text| text.len() + MEMBER_OVERHEAD).sum();
    let mut text = String::with_capacity(length);
    write_union(&mut text, members, 0);
    text
}

fn write_union(text: &mut String, members: &[&str], first: usize) {
    match members {
        [] => {}
        [member] => {
            let written =
                write!(text, "label_replace({member},\"{QUERY_LABEL}\",\"{first}\",\"\",\"\")");
            written.expect("a text can be written to");
        }
        several => {
            let (left, right) = several.split_at(several.len().div_ceil(2));
            text.push('(');
            write_union(text, left, first);
            text.push_str(" or ");
            write_union(text, right, first + left.len());
            text.push(')');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_union_is_balanced_and_numbers_its_members() {
        let text = union(&["a", "b", "c"]);
        let one = |name: &str, n: usize| {
            format!(r#"label_replace({name},"__plimsoll_query__","{n}","","")"#)
        };
        let expected = format!("(({} or {}) or {})", one("a", 0), one("b", 1), one("c", 2));
        assert_eq!(text, expected);
        let many = vec![r#"sum by (pod) (rate(x_total{app="web"}[1m]))"#; 64];
        let text = union(&many);
        assert!(text.len() < 64 * (many[0].len() + MEMBER_OVERHEAD));
        assert!(tree::parse(&text, &bounds::PLANNED_QUERY).is_ok());
    }

    #[test]
    fn only_vectors_are_members() {
        for (query, expected) in [
            ("x", Some("x")),
            ("sum(rate(x[1m])) by (pod)", Some("sum by (pod) (rate(x[1m]))")),
            ("x # ) or label_replace(y", Some("x")),
            ("x # \r ) or y", None),
            ("vector(1)", Some("vector(1)")),
            ("scalar(x)", None),
            ("1", None),
            ("time()", None),
            ("\"text\"", None),
            ("x[1m]", None),
            ("x) or (y", None),
            // The order of their rows says something, and `or` is free to change it.
            ("sort(x)", None),
            ("(sort_desc(x))", None),
            ("topk(3, x)", None),
            ("sum(topk(3, x))", Some("sum(topk(3, x))")),
            (r#"x{__plimsoll_query__="0"}"#, None),
        ] {
            assert_eq!(member(query).as_deref(), expected, "{query}");
        }
    }
}
