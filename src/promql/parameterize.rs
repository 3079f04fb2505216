//! From the text of a query to its shape and arguments.
//!
//! A label becomes a parameter if every selector of the query matches it by the same values, and
//! [`exactness`] can show that this changes no result.

use super::bounds;
use super::exactness::{self, CandidateLabel, ResultKind};
use super::shape::{self, Parameter, QueryShape, ShapedQuery};
use super::tree::{self, Parts};
use promql_parser::label::{self, MatchOp, Matcher};
use promql_parser::parser::{Expr, LabelModifier, VectorSelector};
use std::collections::BTreeSet;
use std::sync::Arc;

impl ShapedQuery {
    /// The shape and arguments of a query. A text that is not PromQL, or has no label that may be
    /// a parameter, is its own shape, without parameters.
    pub fn of(query: &str) -> Self {
        parameterize(query).unwrap_or_else(|| Self {
            shape: Arc::new(QueryShape::without_parameters(query)),
            arguments: Arc::from([]),
        })
    }
}

fn parameterize(query: &str) -> Option<ShapedQuery> {
    if shape::mentions_placeholder(query) {
        return None;
    }
    let mut tree = tree::parse(query, &bounds::PLANNED_QUERY).ok()?;
    tree::normalize(&mut tree);
    let (mut parameters, mut arguments) = (Vec::new(), Vec::new());
    for (name, values) in common_matchers(&mut tree, plain_matchers)? {
        let candidate = CandidateLabel { name: &name, single_value: values.len() == 1 };
        let result = exactness::analyze(&tree, &candidate);
        if let Some(ResultKind::Vector { has_label }) = result {
            parameters.push(Parameter { name, in_result: has_label });
            arguments.push(values);
        }
    }
    let mut selective = is_selective_without(&mut tree, &parameters);
    if !selective {
        // `{app="web"}` is valid only with the value of the parameter. `{app=""}` alone is invalid, and in
        // a batch it would make `{app=~"|web"}`, which matches everything: `app` is no parameter then.
        let all = (std::mem::take(&mut parameters), std::mem::take(&mut arguments));
        let values = all.0.into_iter().zip(all.1);
        (parameters, arguments) =
            values.filter(|(_, values)| values.iter().all(|v| !v.is_empty())).unzip();
        selective = is_selective_without(&mut tree, &parameters);
    }
    // A selector that has nothing else needs the matcher.
    let required = if selective { required_labels(&mut tree) } else { Vec::new() };
    if parameters.is_empty() && required.is_empty() {
        return None;
    }
    insert_parameters(&mut tree, &parameters, &required);
    let text = tree.to_string();
    // The text is sent, not the tree, so both must mean the same.
    if !tree::parses_to(&text, &tree) {
        return None;
    }
    let shape = Arc::new(QueryShape::new(text, parameters, required, selective));
    Some(ShapedQuery { shape, arguments: arguments.into() })
}

/// The labels that may not be empty in any selector, and need not be matched: that changes no other row.
fn required_labels(tree: &mut Expr) -> Vec<String> {
    let mut labels = common_matchers(tree, nonempty_matchers).unwrap_or_default();
    labels.retain(|name| {
        let candidate = CandidateLabel { name, single_value: false };
        exactness::analyze(tree, &candidate) == Some(ResultKind::Vector { has_label: true })
    });
    labels
}

/// The labels that a selector matches exactly once, by not being empty; sorted.
fn nonempty_matchers(selector: &VectorSelector) -> Vec<String> {
    let nonempty = |m: &&Matcher| m.op == MatchOp::NotEqual && m.value.is_empty();
    let mut labels: Vec<String> =
        matched_once(selector).filter(nonempty).map(|m| m.name.clone()).collect();
    labels.sort_unstable();
    labels
}

/// The matchers of labels that a selector matches exactly once; none where it has alternatives (`or`).
fn matched_once(selector: &VectorSelector) -> impl Iterator<Item = &Matcher> {
    let matchers = match selector.matchers.or_matchers.as_slice() {
        [] => selector.matchers.matchers.as_slice(),
        _ => &[],
    };
    let once = |name: &str| matchers.iter().filter(|m| m.name == name).count() == 1;
    matchers.iter().filter(move |m| m.name != "__name__" && once(&m.name))
}

/// What all selectors have in common of what `of` gives for each; none if there is no selector.
fn common_matchers<M: PartialEq>(
    tree: &mut Expr,
    of: fn(&VectorSelector) -> Vec<M>,
) -> Option<Vec<M>> {
    let mut common: Option<Vec<M>> = None;
    tree::selectors(tree, &mut |selector| {
        let matchers = of(selector);
        match &mut common {
            None => common = Some(matchers),
            Some(common) => common.retain(|label| matchers.contains(label)),
        }
    });
    common
}

/// The labels that a selector matches exactly once, by values that can be listed (`=`, or `=~` with
/// plain alternatives); sorted.
fn plain_matchers(selector: &VectorSelector) -> Vec<(String, Vec<String>)> {
    let mut plain: Vec<_> = matched_once(selector)
        .filter_map(|m| {
            let values = match &m.op {
                MatchOp::Equal => vec![m.value.clone()],
                MatchOp::Re(_) => alternatives(&m.value)?,
                MatchOp::NotEqual | MatchOp::NotRe(_) => return None,
            };
            Some((m.name.clone(), values))
        })
        .collect();
    plain.sort_unstable();
    plain
}

/// Whether each selector has a metric name, or a label value other than those of the parameters.
fn is_selective_without(tree: &mut Expr, parameters: &[Parameter]) -> bool {
    let mut selective = true;
    tree::selectors(tree, &mut |selector| {
        let has_values = |matcher: &Matcher| match matcher.op {
            MatchOp::Equal => !matcher.value.is_empty(),
            // Plain alternatives only: `.+` selects everything.
            MatchOp::Re(_) => {
                let values = alternatives(&matcher.value);
                values.is_some_and(|values| values.iter().all(|value| !value.is_empty()))
            }
            MatchOp::NotEqual | MatchOp::NotRe(_) => false,
        };
        let stays =
            |matcher: &&Matcher| parameters.iter().all(|parameter| parameter.name != matcher.name);
        let mut others = selector.matchers.matchers.iter().filter(stays);
        selective &= selector.name.is_some() || others.any(has_values);
    });
    selective
}

/// The texts that a regex matches, sorted, if it is only a list of alternatives.
fn alternatives(regex: &str) -> Option<Vec<String>> {
    let (mut values, mut value) = (BTreeSet::new(), String::new());
    let mut chars = regex.chars();
    while let Some(c) = chars.next() {
        match c {
            '|' => {
                values.insert(std::mem::take(&mut value));
            }
            '\\' => value.push(chars.next().filter(char::is_ascii_punctuation)?),
            '.' | '+' | '*' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '^' | '$' => return None,
            c => value.push(c),
        }
    }
    values.insert(value);
    Some(values.into_iter().collect())
}

/// Puts the placeholder in the place of the matchers of parameters and required labels, and adds the names of
/// parameters to each list of labels that series are grouped or matched by.
fn insert_parameters(tree: &mut Expr, parameters: &[Parameter], required: &[String]) {
    let add = |labels: &mut label::Labels| {
        for parameter in parameters {
            if !labels.labels.contains(&parameter.name) {
                labels.labels.push(parameter.name.clone());
            }
        }
    };
    let walked: Result<(), tree::ExtensionNode> = tree::walk(tree, &mut |node| {
        match node {
            Expr::Aggregate(aggregate) => match &mut aggregate.modifier {
                Some(LabelModifier::Include(by)) => add(by),
                Some(LabelModifier::Exclude(_)) => {}
                none => {
                    let mut by = label::Labels::new(Vec::new());
                    add(&mut by);
                    *none = Some(LabelModifier::Include(by));
                }
            },
            Expr::Binary(binary) => {
                if let Some(modifier) = &mut binary.modifier
                    && let Some(LabelModifier::Include(on)) = &mut modifier.matching
                {
                    add(on);
                }
            }
            _ => {}
        }
        if let Some(Parts { selector: Some(selector), children: _ }) = tree::parts(node) {
            let matchers = &mut selector.matchers.matchers;
            matchers.retain(|matcher| {
                let mut replaced =
                    parameters.iter().map(|parameter| &parameter.name).chain(required);
                replaced.all(|name| *name != matcher.name)
            });
            matchers.push(shape::placeholder());
            matchers.sort_by_cached_key(ToString::to_string);
        }
        Ok(())
    });
    walked.expect("a tree that was read from PromQL");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(query: &ShapedQuery) -> Vec<(&str, bool)> {
        query.shape.parameters.iter().map(|p| (p.name.as_str(), p.in_result)).collect()
    }

    #[test]
    fn a_label_is_a_parameter_only_where_that_changes_no_value() {
        for (query, expected) in [
            (r#"sum by (pod) (rate(x_total{a="1",pod!=""}[2m]))"#, vec![("a", false)]),
            (r#"sum(x{a="1",b=~"5.."})"#, vec![("a", false)]),
            (r#"x{a="1"}"#, vec![("a", true)]),
            (r#"sum by (pod) (x{pod=~"p-1|p\\.2"})"#, vec![("pod", true)]),
            (r#"sum(x{pod=~"p|q"})"#, vec![]),
            (r#"sum by (p) (x{a="1"}) / sum by (p) (y{a="1"})"#, vec![("a", false)]),
            (r#"sum by (p) (x{a="1"}) / sum by (p) (y{a="2"})"#, vec![]),
            (r#"sum by (p) (x{a="1"}) / y{a="1"}"#, vec![]),
            (r#"x{a="1"} / on (p) y{a="1"}"#, vec![("a", false)]),
            (r#"x{a="1"} * on (p) group_left () y{a="1"}"#, vec![]),
            (r#"sum by (p) (x{a="1"}) or vector(0)"#, vec![]),
            (r#"absent(x{a="1"})"#, vec![]),
            (r#"topk(3, x{a="1"})"#, vec![]),
            (r#"scalar(x{a="1"})"#, vec![]),
            (r#"sum without (a) (x{a="1"})"#, vec![]),
            (r#"sum without (i) (x{a="1"})"#, vec![("a", true)]),
            (r#"sum by (p) (sum without (i) (x{a="1"})) > 5"#, vec![("a", false)]),
            (r#"label_replace(x{a="1"}, "b", "$1", "a", "(.*)")"#, vec![]),
            (r#"label_replace(x{a="1"}, "a", "2", "", "")"#, vec![]),
            (
                r#"histogram_quantile(0.9, sum by (le) (rate(h_bucket{a="1",le="5"}[1m])))"#,
                vec![("a", false)],
            ),
            (r#"max_over_time(sum(x{a="1"})[5m:1m]) + time()"#, vec![("a", false)]),
            (r#"x{a="1"} or x{a="1",b="2"}"#, vec![("a", true)]),
            (r#"x{__plimsoll_placeholder__="",a="1"}"#, vec![]),
            // Nothing compiles a regex, be it larger than any that could be.
            (r#"sum(x{a="1",b=~"\\pL{9000}"})"#, vec![("a", false)]),
            // As `plimsoll convert` leaves NaN out.
            (r#"sum(x{a="1"}) / sum(y{a="1"}) < Inf > -Inf"#, vec![("a", false)]),
            ("up", vec![]),
            ("vector(1)", vec![]),
            ("no query", vec![]),
        ] {
            assert_eq!(parameters(&ShapedQuery::of(query)), expected, "{query}");
        }
    }

    #[test]
    fn alternatives_are_listed_only_for_plain_regexes() {
        let listed = |regex| alternatives(regex);
        assert_eq!(listed("b|a"), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(listed(r"a\.b\-c"), Some(vec!["a.b-c".to_owned()]));
        assert_eq!(listed(""), Some(vec![String::new()]));
        for regex in ["a.*", "(a|b)", r"\d", "a+", "[ab]", "^a"] {
            assert_eq!(listed(regex), None, "{regex}");
        }
    }
}
