//! Keeps a user's own query within its namespace. All PromQL of users is admitted here.
//!
//! The steps, in this order:
//!
//! 1. Size and depth of the text are bounded (`scan`).
//! 2. It is parsed. A panic of the parser is a refusal ([`tree::parse`]).
//! 3. Each node must be of a known kind, and each function on the list ([`functions`]).
//! 4. Each selector gets a matcher for the namespace.
//! 5. The labels that the query writes must stay short (`written_labels`).
//! 6. The tree is printed and parsed again. It must mean the same, and each selector must have the
//!    namespace. Prometheus gets the printed text.

use super::bounds::{self, OutOfBounds};
use super::functions;
use super::regexes;
use super::tree::{self, ExtensionNode, ParseError, Parts};
use super::written_labels::{self, WrittenLabelsTooLong};
use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::token::{
    T_AVG, T_BOTTOMK, T_COUNT, T_COUNT_VALUES, T_GROUP, T_LIMIT_RATIO, T_LIMITK, T_MAX, T_MIN,
    T_QUANTILE, T_STDDEV, T_STDVAR, T_SUM, T_TOPK, TokenId,
};
use promql_parser::parser::{Expr, VectorSelector};

/// Why a query is refused.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum GuardError {
    /// It is not PromQL; the message of our parser, or of Prometheus if that was queried.
    #[error("{0}")]
    Syntax(String),
    /// Our lexer does not accept it, so that its depth is unknown; the lexer's message.
    #[error("{0}")]
    Lexer(String),
    /// Prometheus accepts it, but our parser does not.
    #[error(
        "Prometheus accepts this query, but Plimsoll's own parser, which keeps it in its \
         namespace, does not: {0}. \"PromQL that Plimsoll's parser refuses\" in \
         docs/troubleshooting.md says what to write instead"
    )]
    UnsupportedByParser(String),
    /// It is larger or deeper than allowed.
    #[error(transparent)]
    Bounds(#[from] OutOfBounds),
    /// It calls a function that may read series that the query does not select.
    #[error("the function {0}() is not allowed in a query: it can't be kept in its namespace")]
    Function(String),
    /// It writes labels that can grow too long.
    #[error(transparent)]
    WrittenLabels(#[from] WrittenLabelsTooLong),
    /// The regular expressions of functions are too many, too long or too large.
    #[error("{0}")]
    FunctionRegexes(String),
    /// The parser panicked.
    #[error("{0}")]
    ParserPanicked(String),
    /// It has a number with too many digits.
    #[error(
        "the number {0} takes more than {MAX_DIGITS} digits when it is written out, as it is for \
         Prometheus: write one that takes fewer"
    )]
    TooManyDigits(String),
    /// It is too long with the namespace added.
    #[error(
        "the query takes {0} bytes when each of its selectors is given the namespace, {MAX_QUERY_BYTES} are \
         allowed: shorten it"
    )]
    TooLong(usize),
    /// It can't be printed without a change of its meaning.
    #[error(
        "Plimsoll can't add the namespace to this query without a change of its meaning: {0}. \
         \"PromQL that Plimsoll's parser refuses\" in docs/troubleshooting.md says what to write instead"
    )]
    Unsupported(String),
}

impl From<ParseError> for GuardError {
    fn from(error: ParseError) -> Self {
        match error {
            ParseError::Syntax(error) => Self::Syntax(error),
            ParseError::Lexer(error) => Self::Lexer(error),
            ParseError::Bounds(error) => Self::Bounds(error),
            ParseError::Panicked => Self::ParserPanicked(error.to_string()),
        }
    }
}

impl From<ExtensionNode> for GuardError {
    fn from(error: ExtensionNode) -> Self {
        Self::Unsupported(error.to_string())
    }
}

/// The aggregations that a user's query may have. They read only their arguments.
const AGGREGATIONS: &[TokenId] = &[
    T_AVG,
    T_BOTTOMK,
    T_COUNT,
    T_COUNT_VALUES,
    T_GROUP,
    T_LIMIT_RATIO,
    T_LIMITK,
    T_MAX,
    T_MIN,
    T_QUANTILE,
    T_STDDEV,
    T_STDVAR,
    T_SUM,
    T_TOPK,
];

/// The most selectors of a user's query. Each grows by a matcher.
const MAX_SELECTORS: usize = 100;
/// The most digits of a number when printed: `1e308` has 309.
const MAX_DIGITS: usize = 32;
/// The most bytes of a user's query with the namespace added. It is cached, and parsed for each plan.
const MAX_QUERY_BYTES: usize = 32 << 10;

/// The query with a matcher for the namespace in every selector, however deep.
///
/// The query's own matchers of that label stay, so that a
/// query for another namespace finds nothing. A selector that names one of
/// the shared namespaces by an equality is not changed.
///
/// Takes time and memory in proportion to the text, which is bounded. Never
/// panics, and needs at most half a MiB of stack.
///
/// # Errors
/// As [`GuardError`] says.
pub fn within_namespace(
    query: &str,
    namespace_label: &str,
    namespace: &str,
    shared: &[String],
) -> Result<String, GuardError> {
    let mut expr = tree::parse(query, &bounds::USER_QUERY)?;
    // Walking and printing partly run code of the parser, which may panic.
    let guarded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let guard = NamespaceGuard { label: namespace_label, namespace, shared };
        let selectors = guard.add_to_all(&mut expr)?;
        if selectors > MAX_SELECTORS {
            return Err(GuardError::Unsupported(format!(
                "it has {selectors} selectors, {MAX_SELECTORS} are allowed"
            )));
        }
        let regexes = written_labels::check(&mut expr)?;
        let regexes: Vec<&str> = regexes.iter().map(String::as_str).collect();
        regexes::check_of_functions(&regexes, &bounds::USER_QUERY)
            .map_err(GuardError::FunctionRegexes)?;
        tree::normalize(&mut expr);
        let text = expr.to_string();
        if text.len() > MAX_QUERY_BYTES {
            return Err(GuardError::TooLong(text.len()));
        }
        let changed = || GuardError::Unsupported(format!("it would be run as {text}"));
        let mut again = tree::parse(&text, &bounds::PLANNED_QUERY).map_err(|_| changed())?;
        tree::normalize(&mut again);
        if again != expr || guard.count_guarded(&mut again) != Some(selectors) {
            return Err(changed());
        }
        Ok(text)
    }));
    guarded.unwrap_or_else(|_| Err(ParseError::Panicked.into()))
}

/// Whether each selector of a user's query has the namespace itself, so that being kept in it changes
/// nothing.
///
/// # Errors
/// As [`within_namespace`].
pub fn names_namespace(query: &str, label: &str, namespace: &str) -> Result<bool, GuardError> {
    within_namespace(query, label, namespace, &[])?;
    let mut expr = tree::parse(query, &bounds::USER_QUERY)?;
    Ok(NamespaceGuard { label, namespace, shared: &[] }.count_guarded(&mut expr).is_some())
}

/// Another namespace that a selector of a user's query names, which is not shared: within its own it finds nothing.
///
/// # Errors
/// If it is no PromQL.
pub fn names_another(
    query: &str,
    label: &str,
    namespace: &str,
    shared: &[String],
) -> Result<Option<String>, GuardError> {
    let mut expr = tree::parse(query, &bounds::USER_QUERY)?;
    let mut another = None;
    tree::selectors(&mut expr, &mut |selector| {
        for branch in tree::or_alternatives(selector) {
            let named = branch.iter().find(|one| one.name == label && one.op == MatchOp::Equal);
            let value = named.map(|one| &one.value).filter(|value| *value != namespace);
            if let Some(value) = value.filter(|value| !shared.contains(value)) {
                another.get_or_insert_with(|| value.clone());
            }
        }
    });
    Ok(another)
}

/// The namespace that a query may read, and the shared ones.
struct NamespaceGuard<'a> {
    label: &'a str,
    namespace: &'a str,
    shared: &'a [String],
}

impl NamespaceGuard<'_> {
    /// Adds the namespace to every selector. Returns the number of selectors.
    fn add_to_all(&self, expr: &mut Expr) -> Result<usize, GuardError> {
        let mut selectors = 0;
        tree::walk(expr, &mut |node| {
            match node {
                Expr::Call(call) => {
                    if functions::kind(call.func.name).is_none() {
                        return Err(GuardError::Function(call.func.name.to_owned()));
                    }
                }
                Expr::Aggregate(aggregate) => {
                    if !AGGREGATIONS.contains(&aggregate.op.id()) {
                        return Err(GuardError::Function(aggregate.op.to_string()));
                    }
                }
                Expr::NumberLiteral(number) => {
                    if number.to_string().len() > MAX_DIGITS {
                        return Err(GuardError::TooManyDigits(format!("{:e}", number.val)));
                    }
                }
                Expr::Extension(_) => return Err(ExtensionNode.into()),
                Expr::Unary(_)
                | Expr::Binary(_)
                | Expr::Paren(_)
                | Expr::Subquery(_)
                | Expr::StringLiteral(_)
                | Expr::VectorSelector(_)
                | Expr::MatrixSelector(_) => {}
            }
            if let Some(Parts { selector: Some(selector), children: _ }) = tree::parts(node) {
                selectors += 1;
                self.add(selector);
            }
            Ok(())
        })?;
        Ok(selectors)
    }

    fn add(&self, selector: &mut VectorSelector) {
        for branch in tree::or_alternatives(selector) {
            if !self.is_shared(branch) {
                branch.push(Matcher::new(MatchOp::Equal, self.label, self.namespace));
            }
        }
    }

    fn is_shared(&self, branch: &[Matcher]) -> bool {
        branch.iter().any(|matcher| {
            matcher.name == self.label
                && matcher.op == MatchOp::Equal
                && self.shared.contains(&matcher.value)
        })
    }

    /// The number of selectors; none unless all have the namespace.
    fn count_guarded(&self, expr: &mut Expr) -> Option<usize> {
        let (mut selectors, mut all) = (0, true);
        tree::selectors(expr, &mut |selector| {
            selectors += 1;
            let has = |branch: &[Matcher]| {
                branch.iter().any(|matcher| {
                    matcher.name == self.label
                        && matcher.op == MatchOp::Equal
                        && matcher.value == self.namespace
                })
            };
            let branches = tree::or_alternatives(selector);
            all &= branches.iter().all(|branch| has(branch) || self.is_shared(branch));
        });
        all.then_some(selectors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_selector_gets_the_namespace() {
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
        for (query, selectors) in [
            (r#"label_replace(x, "namespace", "shop", "", "")"#, 1),
            (r#"count_values("v", x) + on () group_left () y"#, 2),
            ("absent(x) or -x ^ 2", 2),
            ("topk(3, x @ end())", 1),
            ("topk(scalar(x), x[5m:1m] @ start())", 0),
            ("quantile_over_time(0.9, x[5m] @ 1700000000)", 1),
            ("sum without (a) (x) > bool 1 unless y", 2),
            ("quantile(scalar(topk(scalar(x), y)), max_over_time(x[5m]))", 3),
            ("time() - vector(1)", 0),
        ] {
            let guarded = within_namespace(query, "namespace", "shop", &[]);
            let count = |text: String| text.matches(r#"{namespace="shop"}"#).count();
            assert_eq!(guarded.map_or(0, count), selectors, "{query}");
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
    fn the_parameter_of_an_aggregation_gets_the_namespace() {
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

    /// The refusal of a query, on a stack as small as a worker's.
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
    fn what_is_sent_is_hardly_longer_than_what_is_written() {
        let sum = |number: &str, count: usize| vec![number; count].join("+");
        let groups = vec![format!("({})", sum("1e308", 50)); 27].join("+");
        assert!(refused(format!("x+{groups}")).contains("the number 1e308 takes"));
        assert!(refused("x+5e-324".to_owned()).contains("the number 5e-324 takes"));
        let groups = vec![format!("({})", sum("1e31", 50)); 27].join("+");
        let error = refused(format!("x+{groups}"));
        assert!(error.contains("given the namespace, 32768 are allowed"), "{error}");
        for number in ["1e30", "-1.5e-9", "0.30000000000000004", "Inf", "NaN", "0x1F"] {
            let query = format!("x > {number}");
            let guarded = within_namespace(&query, "namespace", "shop", &[]);
            assert!(guarded.is_ok(), "{number}: {guarded:?}");
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
    fn what_a_query_makes_of_labels_is_bounded() {
        let replace = |with: &str, regex: &str| {
            format!(r#"label_replace(x, "a", "{with}", "pod", "{regex}")"#)
        };
        assert!(refused(replace(&"$1".repeat(900), "(.*)")).contains("grow too long"));
        let classes = format!("(?i){}", "[b-\u{10FFFF}]".repeat(17));
        assert!(refused(replace("$1", &classes)).contains("more than 16 classes"));
        for regex in [
            "(?:.{100}){1000}".to_owned(),
            "((a{30}){30}){30}".to_owned(),
            "a{1000}".repeat(20),
            ".{1,1000}".repeat(20),
            "a{1000,}".repeat(20),
        ] {
            assert!(refused(replace("$1", &regex)).contains("repeat too much"), "{regex}");
        }
        let many = (0..17).map(|_| replace("", "a")).collect::<Vec<_>>().join(" or ");
        assert!(refused(many).contains("more than 16 regular expressions"));
    }

    /// Only Prometheus compiles the regexes of functions.
    #[test]
    fn regexes_of_functions_may_be_all_that_prometheus_accepts() {
        for regex in [
            "([^[]+).*",
            "[[a](.*)",
            r"\\Qa.b(\\E(.*)",
            r"(\\w{1,63})-(\\w{1,63})-.*",
            r"(.*)-[a-z0-9]{1,63}-[a-z0-9]{6,10}-[a-z0-9]{5}",
            r"([a-z]{1,20}-){2}(.*){id}",
            "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
            "(",
        ] {
            let query = format!(r#"label_replace(x, "a", "$1", "pod", "{regex}")"#);
            let guarded = within_namespace(&query, "namespace", "shop", &[]);
            assert!(guarded.is_ok_and(|text| text.contains(regex)), "{regex}");
        }
    }

    #[test]
    fn an_invalid_query_is_refused() {
        let refusal = |query| within_namespace(query, "namespace", "shop", &[]).unwrap_err();
        assert!(matches!(refusal("sum(rate(x[5m])"), GuardError::Lexer(_)));
        assert!(matches!(refusal("sum x"), GuardError::Syntax(_)));
    }
}
