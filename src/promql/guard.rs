//! Keeps a user's own query within the namespace it was written in.

use promql_parser::label::{MatchOp, Matcher, Matchers};
use promql_parser::parser::{self, Expr, VectorSelector};
use promql_parser::util::visitor::{ExprVisitorMut, walk_expr_mut};

/// Why a query can't be run.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum GuardError {
    /// It is no PromQL; the parser's words.
    #[error("{0}")]
    Syntax(String),
    /// It could not be written back without a change of meaning.
    #[error("this form of query can't be kept within a namespace: {0}")]
    Unsupported(String),
}

/// The query with every selector in it, however deep, narrowed to one
/// namespace. A matcher the query has itself on that label stays, so that a
/// query for another namespace finds nothing. Only a selector that names one of
/// the shared namespaces by an equality is left as it is.
pub fn within_namespace(
    query: &str,
    namespace_label: &str,
    namespace: &str,
    shared: &[String],
) -> Result<String, GuardError> {
    let mut expr = parser::parse(query).map_err(GuardError::Syntax)?;
    let own = Matcher::new(MatchOp::Equal, namespace_label, namespace);
    Narrow(Some((own, shared))).walk(&mut expr);
    let text = expr.to_string();
    // What is run is the text: it must say what the narrowed tree says.
    let same = parser::parse(&text).is_ok_and(|mut again| {
        Narrow(None).walk(&mut again);
        again == expr
    });
    if same { Ok(text) } else { Err(GuardError::Unsupported(query.to_owned())) }
}

/// Adds a matcher to every selector, and puts all matchers in one order.
struct Narrow<'a>(Option<(Matcher, &'a [String])>);

impl Narrow<'_> {
    fn walk(&mut self, expr: &mut Expr) {
        let Ok(_) = walk_expr_mut(self, expr);
    }

    fn selector(&self, selector: &mut VectorSelector) {
        let Matchers { matchers, or_matchers } = &mut selector.matchers;
        let branches: Vec<&mut Vec<Matcher>> =
            if or_matchers.is_empty() { vec![matchers] } else { or_matchers.iter_mut().collect() };
        for branch in branches {
            if let Some((own, shared)) = &self.0 {
                let names_shared = |m: &Matcher| {
                    m.name == own.name && m.op == MatchOp::Equal && shared.contains(&m.value)
                };
                if !branch.iter().any(names_shared) {
                    branch.push(own.clone());
                }
            }
            branch.sort_by_cached_key(ToString::to_string);
        }
    }
}

impl ExprVisitorMut for Narrow<'_> {
    type Error = std::convert::Infallible;

    fn pre_visit(&mut self, expr: &mut Expr) -> Result<bool, Self::Error> {
        match expr {
            Expr::VectorSelector(selector) => self.selector(selector),
            Expr::MatrixSelector(matrix) => self.selector(&mut matrix.vs),
            _ => {}
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_selector_is_narrowed() {
        for (query, expected) in [
            ("up", r#"up{namespace="shop"}"#),
            (
                r#"sum by (pod) (rate(x_total{code="500"}[2m]))"#,
                r#"sum by (pod) (rate(x_total{code="500",namespace="shop"}[2m]))"#,
            ),
            (r#"x{namespace="bank"}"#, r#"x{namespace="bank",namespace="shop"}"#),
            ("a / on (pod) b", r#"a{namespace="shop"} / on (pod) b{namespace="shop"}"#),
            (
                "max_over_time(rate(x_total[1m])[5m:10s])",
                r#"max_over_time(rate(x_total{namespace="shop"}[1m])[5m:10s])"#,
            ),
            (
                r#"{__name__=~".+"} or vector(1)"#,
                r#"{__name__=~".+",namespace="shop"} or vector(1)"#,
            ),
            ("x offset 5m", r#"x{namespace="shop"} offset 5m"#),
            (r#"{__name__="x"}"#, r#"{__name__="x",namespace="shop"}"#),
            (r#"x{a="1" or b="2"}"#, r#"x{a="1", namespace="shop" or b="2", namespace="shop"}"#),
        ] {
            assert_eq!(within_namespace(query, "namespace", "shop", &[]).unwrap(), expected);
        }
    }

    #[test]
    fn no_selector_escapes() {
        for query in [
            r#"label_replace(x, "namespace", "shop", "", "")"#,
            r#"count_values("v", x) + on () group_left () y"#,
            "absent(x) or -x ^ 2",
            "topk(3, x @ end())",
            "quantile_over_time(0.9, x[5m] @ 1700000000)",
            "sum without (a) (x) > bool 1 unless y",
        ] {
            let text = within_namespace(query, "namespace", "shop", &[]).unwrap();
            let selectors = text.matches(['x', 'y']).count();
            assert!(selectors >= 1, "{text}");
            let guarded = text.matches(r#"namespace="shop""#).count();
            let names = query.matches('x').count() - usize::from(query.contains("max"));
            assert!(guarded >= 1 && guarded <= names.max(2), "{query} -> {text}");
        }
    }

    #[test]
    fn only_shared_namespaces_named_outright_may_be_read_too() {
        let shared = ["infra".to_owned()];
        for (query, expected) in [
            (
                r#"a * on () group_left () b{namespace="infra"}"#,
                r#"a{namespace="shop"} * on () group_left () b{namespace="infra"}"#,
            ),
            (r#"b{namespace=~"infra|bank"}"#, r#"b{namespace="shop",namespace=~"infra|bank"}"#),
            (r#"b{namespace!="shop"}"#, r#"b{namespace!="shop",namespace="shop"}"#),
            (r#"b{namespace="bank"}"#, r#"b{namespace="bank",namespace="shop"}"#),
            (
                r#"b{namespace="infra" or c="1"}"#,
                r#"b{namespace="infra" or c="1", namespace="shop"}"#,
            ),
        ] {
            assert_eq!(within_namespace(query, "namespace", "shop", &shared).unwrap(), expected);
        }
    }

    #[test]
    fn a_parameter_is_narrowed_as_all_else() {
        for (query, expected) in [
            (
                r#"topk(scalar(secret{namespace="vault"}), own)"#,
                r#"topk(scalar(secret{namespace="spies",namespace="vault"}), own{namespace="spies"})"#,
            ),
            (
                r#"quantile by (pod) (scalar(secret{namespace="vault"}) / 10000, own * 0)"#,
                r#"quantile by (pod) (scalar(secret{namespace="spies",namespace="vault"}) / 10000, own{namespace="spies"} * 0)"#,
            ),
            (
                "bottomk(scalar(a), b) or limitk(scalar(a), b)",
                r#"bottomk(scalar(a{namespace="spies"}), b{namespace="spies"}) or limitk(scalar(a{namespace="spies"}), b{namespace="spies"})"#,
            ),
        ] {
            assert_eq!(within_namespace(query, "namespace", "spies", &[]).unwrap(), expected);
        }
    }

    #[test]
    fn functions_that_read_other_series_are_refused() {
        let error = within_namespace("info(own)", "namespace", "spies", &[]).unwrap_err();
        assert!(error.to_string().contains("info"), "{error}");
    }

    /// On a stack as small as a worker's.
    fn refused(query: String) -> String {
        let ask = move || within_namespace(&query, "namespace", "shop", &[]);
        let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(ask).unwrap();
        thread.join().expect("no panic").expect_err("a refusal").to_string()
    }

    #[test]
    fn no_text_panics() {
        for query in ["up offset Inf", "x[99999999999999999999]", "x offset NaN", "x[5m:1e300]"] {
            assert!(refused(query.to_owned()).contains("duration"), "{query}");
        }
    }

    #[test]
    fn no_text_overflows_the_stack() {
        for text in [
            "-".repeat(8_190) + "x",
            "+".repeat(8_190) + "x",
            "(".repeat(4_000) + "x" + &")".repeat(4_000),
            "x+".repeat(4_000) + "x",
            "x or ".repeat(1_600) + "x",
            "x".to_owned() + &"[5m:1m]".repeat(1_000),
            "abs(".repeat(1_600) + "x" + &")".repeat(1_600),
        ] {
            assert!(refused(text).contains("nested"));
        }
    }

    #[test]
    fn an_empty_list_of_labels_is_none() {
        for (query, expected) in [
            ("sum by () (x)", r#"sum(x{namespace="shop"})"#),
            ("a / ignoring () b", r#"a{namespace="shop"} / b{namespace="shop"}"#),
        ] {
            assert_eq!(within_namespace(query, "namespace", "shop", &[]).unwrap(), expected);
        }
    }

    #[test]
    fn what_is_no_query_is_refused() {
        assert!(matches!(
            within_namespace("sum(rate(x[5m])", "namespace", "shop", &[]),
            Err(GuardError::Syntax(_))
        ));
    }
}
