//! Keeps a rule of a namespace in it: the selector of its series, and the names of objects in its queries.

use super::bounds;
use super::guard::within_namespace;
use super::matcher::regex_of;
use super::tree;
use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::Expr;

/// Stands for the names of several objects in a query until it is known to stay in its namespace: the bounds of a
/// user's query are of what the user wrote, and not of the names of the pods.
pub const OBJECTS: &str = "plimsoll:objects";

/// The most bytes of a query with the names of its objects.
const MAX_QUERY_BYTES: usize = 1 << 20;

/// A selector of series with a matcher for the namespace, for a listing of series.
///
/// # Errors
/// If it is not one selector, or is refused as a user's query would be.
pub fn series_selector(
    selector: &str,
    namespace_label: &str,
    namespace: &str,
) -> Result<String, String> {
    let narrowed = within_namespace(selector, namespace_label, namespace, &[]);
    let narrowed = narrowed.map_err(|error| error.to_string())?;
    match tree::parse(&narrowed, &bounds::PLANNED_QUERY) {
        Ok(Expr::VectorSelector(one)) if one.offset.is_none() && one.at.is_none() => Ok(narrowed),
        _ => Err("one selector of series was expected, such as http_requests_total{pod!=\"\"}"
            .to_owned()),
    }
}

/// A query that was kept in its namespace, with these names in place of [`OBJECTS`]. Only the values of matchers
/// change, so that it stays there.
///
/// # Errors
/// If it becomes too long.
pub fn with_objects(query: &str, names: &[String]) -> Result<String, String> {
    let mut tree = tree::parse(query, &bounds::PLANNED_QUERY).map_err(|error| error.to_string())?;
    let (regex, joined) = (regex_of(names), names.join("|"));
    let mut bytes = query.len();
    tree::selectors(&mut tree, &mut |selector| {
        for matcher in tree::or_alternatives(selector).into_iter().flatten() {
            if !matcher.value.contains(OBJECTS) {
                continue;
            }
            bytes += regex.len();
            match matcher.op {
                _ if bytes > MAX_QUERY_BYTES => {}
                MatchOp::Equal if matcher.value == OBJECTS => {
                    matcher.op = MatchOp::Re(tree::uncompiled());
                    matcher.value.clone_from(&regex);
                }
                MatchOp::NotEqual if matcher.value == OBJECTS => {
                    matcher.op = MatchOp::NotRe(tree::uncompiled());
                    matcher.value.clone_from(&regex);
                }
                // `pod=~"<<index .LabelValuesByName "pod">>"`.
                _ => matcher.value = matcher.value.replacen(OBJECTS, &joined, 1),
            }
        }
    });
    if bytes > MAX_QUERY_BYTES {
        return Err(format!(
            "the query takes more than {MAX_QUERY_BYTES} bytes with the names of {} objects",
            names.len()
        ));
    }
    tree::normalize(&mut tree);
    let text = tree.to_string();
    match tree::parses_to(&text, &tree) {
        true => Ok(text),
        false => Err(format!("the names of objects can't be put into {query}")),
    }
}

/// A query of one of our templates whose selectors take only series with a value of a label that this regular expression
/// matches.
///
/// # Errors
/// If our parser does not read the query.
pub fn with_label(query: &str, label: &str, regex: &str) -> Result<String, String> {
    let mut tree = tree::parse(query, &bounds::PLANNED_QUERY).map_err(|error| error.to_string())?;
    tree::selectors(&mut tree, &mut |selector| {
        for branch in tree::or_alternatives(selector) {
            branch.push(Matcher::new(MatchOp::Re(tree::uncompiled()), label, regex));
        }
    });
    Ok(tree.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_of_series_is_of_one_selector_in_the_namespace() {
        let narrowed = |selector| series_selector(selector, "namespace", "shop");
        for (selector, expected) in [
            ("up", r#"up{namespace="shop"}"#),
            (r#"{__name__=~"^a.*"}"#, r#"{__name__=~"^a.*",namespace="shop"}"#),
            (r#"up{namespace="bank"}"#, r#"up{namespace="bank",namespace="shop"}"#),
        ] {
            assert_eq!(narrowed(selector).unwrap(), expected);
        }
        for wrong in ["up or down", "sum(up)", "up offset 5m", "up @ 5", "up[5m]", "1", "(up)", "{"]
        {
            assert!(narrowed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_label_is_matched_in_each_selector() {
        assert_eq!(
            with_label(r#"sum by (pod) (rate(x{a="1"}[2m]))"#, "pod", "web-.+").unwrap(),
            r#"sum by (pod) (rate(x{a="1",pod=~"web-.+"}[2m]))"#
        );
    }

    #[test]
    fn the_names_of_objects_change_nothing_but_values_of_matchers() {
        let names = ["web-1".to_owned(), "web.2".to_owned()];
        for (query, expected) in [
            (
                r#"sum by (pod) (x{namespace="shop",pod="plimsoll:objects"})"#,
                r#"sum by (pod) (x{namespace="shop",pod=~"web-1|web\\.2"})"#,
            ),
            (r#"x{pod!="plimsoll:objects"}"#, r#"x{pod!~"web-1|web\\.2"}"#),
            (r#"x{pod=~"(plimsoll:objects)"}"#, r#"x{pod=~"(web-1|web.2)"}"#),
            (r#"plimsoll:objects{a="1"}"#, r#"plimsoll:objects{a="1"}"#),
        ] {
            assert_eq!(with_objects(query, &names).unwrap(), expected);
        }
        let many: Vec<String> = (0..200_000).map(|n| format!("web-{n}")).collect();
        assert!(with_objects(r#"x{pod="plimsoll:objects"}"#, &many).is_err());
    }
}
