//! Bounds the length of the labels that a user's query writes.
//!
//! `label_replace` and `label_join` copy labels, any number of times, and may
//! copy what another call wrote. Three calls with a thousand `$1` each make gigabytes of the 30 bytes of
//! a pod's name. Prometheus has no limit for that.

use super::tree;
use promql_parser::label::Matcher;
use promql_parser::parser::Expr;
use promql_parser::parser::token::T_COUNT_VALUES;
use std::collections::BTreeMap;

/// The most copies of label values in all labels that a query writes to a series.
const MAX_COPIES: usize = 32;
/// The most bytes of text in them, including label names.
const MAX_LABEL_BYTES: usize = 1024;
/// The bytes of a number that is written to a label.
const NUMBER_BYTES: usize = 32;

/// Why a query is refused.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "the labels that this query writes can grow too long: with label_replace(), label_join(), \
     count_values() and absent() it may write at most {MAX_COPIES} values of other labels ($1, or a \
     source) and {MAX_LABEL_BYTES} bytes of text to a series"
)]
pub struct WrittenLabelsTooLong;

/// An upper bound of a label's length.
#[derive(Clone, Copy, Default)]
struct Size {
    /// Copies of labels that the series had before.
    copies: usize,
    /// Bytes of other text.
    bytes: usize,
}

/// The written labels, by name.
type WrittenLabels = BTreeMap<String, Size>;

/// Checks a query whose depth is bounded. Returns the regular expressions of its functions.
///
/// # Errors
/// If the labels that it writes may be longer than is allowed.
pub fn check(expr: &mut Expr) -> Result<Vec<String>, WrittenLabelsTooLong> {
    let mut regexes = Vec::new();
    written(expr, &mut regexes).map(|_| regexes)
}

fn written(
    expr: &mut Expr,
    regexes: &mut Vec<String>,
) -> Result<WrittenLabels, WrittenLabelsTooLong> {
    let mut all = WrittenLabels::new();
    for child in tree::parts(expr).into_iter().flat_map(|parts| parts.children) {
        for (name, size) in written(child, regexes)? {
            record(&mut all, name, size);
        }
    }
    // A written label may still have its old value: the regex may not match, or
    // the series may be of another operand.
    let of = |all: &WrittenLabels, name: &str| {
        let Size { copies, bytes } = all.get(name).copied().unwrap_or_default();
        Size { copies: copies.max(1), bytes }
    };
    match expr {
        Expr::Aggregate(aggregate) if aggregate.op.id() == T_COUNT_VALUES => {
            let name = aggregate
                .param
                .as_deref()
                .and_then(tree::string_literal)
                .ok_or(WrittenLabelsTooLong)?;
            record(&mut all, name.to_owned(), Size { copies: 0, bytes: NUMBER_BYTES });
        }
        // It writes the values of its matchers.
        Expr::Call(call) if matches!(call.func.name, "absent" | "absent_over_time") => {
            for arg in &mut call.args.args {
                tree::selectors(arg, &mut |selector| {
                    for Matcher { name, value, op: _ } in &selector.matchers.matchers {
                        record(&mut all, name.clone(), Size { copies: 0, bytes: value.len() });
                    }
                });
            }
        }
        Expr::Call(call) => {
            let args = &call.args.args;
            let arg = |index: usize| {
                args.get(index)
                    .and_then(|arg| tree::string_literal(arg))
                    .ok_or(WrittenLabelsTooLong)
            };
            let size = match call.func.name {
                "label_replace" => {
                    let (replacement, source) = (arg(2)?, of(&all, arg(3)?));
                    regexes.push(arg(4)?.to_owned());
                    let times = replacement.matches('$').count();
                    let bytes = replacement.len() + times * source.bytes;
                    Size { copies: times * source.copies, bytes }
                }
                "label_join" => {
                    let mut joined = Size::default();
                    for index in 3..args.len() {
                        let Size { copies, bytes } = of(&all, arg(index)?);
                        joined.copies += copies;
                        joined.bytes += bytes + arg(2)?.len();
                    }
                    joined
                }
                "histogram_quantiles" => Size { copies: 0, bytes: NUMBER_BYTES },
                _ => return Ok(all),
            };
            record(&mut all, arg(1)?.to_owned(), size);
        }
        _ => return Ok(all),
    }
    let copies: usize = all.values().map(|size| size.copies).sum();
    let bytes: usize = all.iter().map(|(name, size)| name.len() + size.bytes).sum();
    if copies > MAX_COPIES || bytes > MAX_LABEL_BYTES { Err(WrittenLabelsTooLong) } else { Ok(all) }
}

/// Records a write. Of several writes to a label, each series has one.
fn record(all: &mut WrittenLabels, name: String, size: Size) {
    let known = all.entry(name).or_default();
    known.copies = known.copies.max(size.copies);
    known.bytes = known.bytes.max(size.bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promql::bounds;

    fn checked(query: &str) -> Result<Vec<String>, WrittenLabelsTooLong> {
        check(&mut tree::parse(query, &bounds::USER_QUERY).expect(query))
    }

    fn replace(of: &str, label: &str, with: &str, source: &str) -> String {
        format!(r#"label_replace({of},"{label}","{with}","{source}","(.*)")"#)
    }

    /// Joins a label with itself, again and again.
    fn grown(of: &str) -> String {
        let sources = [r#""a""#; 600].join(",");
        (0..3).fold(of.to_owned(), |of, _| format!(r#"label_join({of},"a","",{sources})"#))
    }

    #[test]
    fn common_label_functions_are_allowed() {
        let renamed =
            (0..20).fold("x".to_owned(), |of, n| replace(&of, &format!("l{n}"), "$1", "a"));
        let joined = format!("label_join(x,\"all\",\"-\",{})", vec![r#""a""#; 30].join(","));
        for query in [
            &renamed,
            &joined,
            r#"count_values("v", x) or label_join(y, "a", "")"#,
            r#"label_replace(absent(up{job="node",instance="10.0.0.1:9100"}), "a", "$1", "job", "(.*)")"#,
        ] {
            assert!(checked(query).is_ok(), "{query}");
        }
        assert_eq!(checked(&replace("x", "a", "$1-$2", "b")), Ok(vec!["(.*)".to_owned()]));
    }

    #[test]
    fn no_label_grows_beyond_what_it_is_made_of() {
        let many = "$1".repeat(900);
        let nested = replace(&replace("x", "a", "$1$1$1$1$1$1", "pod"), "a", "$1$1$1$1$1$1", "a");
        let text = "t".repeat(1_000);
        let spread = (0..7).fold("x".to_owned(), |of, n| {
            replace(&of, &format!("l{}", n + 1), "$1$1", &format!("l{n}"))
        });
        for query in [
            &replace("x", "a", &many, "pod"),
            &nested,
            &format!("sum by (a) ({nested}) + on (a) y"),
            &format!("label_join(x,\"a\",\"\",{})", vec![r#""a""#; 40].join(",")),
            &format!(
                r#"label_join(label_join(x,"a","","b","b","b","b","b","b"),"c","",{})"#,
                [r#""a""#; 6].join(",")
            ),
            &spread,
            // Text grows with what copies it, and each of several labels counts.
            &replace(&replace("x", "a", &text[..200], ""), "b", "$1$1$1$1$1$1", "a"),
            &replace(&replace("x", "a", &text[..600], ""), "b", &text[..600], ""),
            &replace("x", &text, &text, ""),
            &format!(r#"count_values("{text}{text}", x)"#),
            &format!(r#"label_join(x, ("a"), ("{text}"), "b", "c")"#),
            // A label that is written empty may have its old value: no match, or another operand.
            &grown(&replace("x", "a", "", "")),
            &grown(r#"(label_join(y, "a", "") or x)"#),
            // absent() writes the values of its matchers, and group_left gives them to many series.
            &format!(r#"x * on () group_left (a) absent(y{{a="{text}",b="{text}"}})"#),
            &replace(&format!(r#"absent_over_time((y{{a="{text}"}}[5m]))"#), "a", "$1$1", "a"),
        ] {
            assert_eq!(checked(query), Err(WrittenLabelsTooLong), "{query}");
        }
    }
}
