//! The tree of a query: parsing within bounds, walking, printing.

use super::bounds::{self, Bounds, OutOfBounds};
use super::quote::quoted;
use super::scan::{self, RegexLiteral};
use promql_parser::label::{MatchOp, Matcher, Matchers};
use promql_parser::parser::{
    self, AggregateExpr, BinModifier, BinaryExpr, Call, Expr, FunctionArgs, MatrixSelector,
    NumberLiteral, ParenExpr, StringLiteral, SubqueryExpr, UnaryExpr, VectorSelector,
};
use std::borrow::Cow;
use std::sync::LazyLock;

/// Why a text can't be parsed.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ParseError {
    /// It is not PromQL; the parser's message.
    #[error("{0}")]
    Syntax(String),
    /// The lexer does not accept it, so that its depth is unknown; the lexer's message.
    #[error("{0}")]
    Lexer(String),
    /// It is out of bounds.
    #[error(transparent)]
    Bounds(#[from] OutOfBounds),
    /// The parser panicked.
    #[error("Plimsoll's parser failed on this query: simplify it, and report it as a bug")]
    Panicked,
}

/// Parses a query. Its depth is bounded, so that the tree can be walked, printed,
/// compared and dropped on any stack.
///
/// # Errors
/// As [`ParseError`] says.
pub fn parse(text: &str, bounds: &Bounds) -> Result<Expr, ParseError> {
    if text.len() > bounds.bytes {
        scan::check(text, bounds)?;
    }
    let text = &*plain_strings(text);
    let caught = std::panic::catch_unwind(|| {
        // The scan finds the ends of strings only in a text that the lexer accepts.
        parser::lexer(text).map(drop).map_err(ParseError::Lexer)?;
        let regexes = scan::check(text, bounds)?;
        let mut tree =
            parser::parse(&with_numbered_regexes(text, &regexes)).map_err(ParseError::Syntax)?;
        restore_regexes(&mut tree, &regexes).then_some(tree).ok_or(ParseError::Panicked)
    });
    caught.unwrap_or(Err(ParseError::Panicked))
}

/// The text with a number in place of each regex. The parser compiles every regex,
/// and each plan parses its query again: numbers take microseconds, regexes milliseconds.
fn with_numbered_regexes(text: &str, regexes: &[RegexLiteral]) -> String {
    let mut numbered = String::with_capacity(text.len());
    let mut end = 0;
    for (number, regex) in regexes.iter().enumerate() {
        numbered.push_str(&text[end..regex.literal.start]);
        // The parser refuses a selector whose matchers all match the empty text.
        let or_nothing = if regex.matches_empty { "|" } else { "" };
        numbered.push_str(&format!("\"{number}{or_nothing}\""));
        end = regex.literal.end;
    }
    numbered.push_str(&text[end..]);
    numbered
}

/// Puts the regexes back in place of their numbers; false if there is another regex, which the
/// parser has compiled without a bound.
fn restore_regexes(tree: &mut Expr, regexes: &[RegexLiteral]) -> bool {
    let (mut all, mut named) = (0, 0);
    selectors(tree, &mut |selector| {
        let Matchers { matchers, or_matchers } = &mut selector.matchers;
        for matcher in matchers.iter_mut().chain(or_matchers.iter_mut().flatten()) {
            let (MatchOp::Re(compiled) | MatchOp::NotRe(compiled)) = &mut matcher.op else {
                continue;
            };
            all += 1;
            if let Ok(number) = matcher.value.trim_end_matches('|').parse::<usize>()
                && let Some(regex) = regexes.get(number)
            {
                *compiled = uncompiled();
                matcher.value.clone_from(&regex.text);
                named += 1;
            }
        }
    });
    named == all && named == regexes.len()
}

/// Raw strings (`` `\d` ``) written with quotes ("\\d"): the parser takes their
/// backslashes for escapes, Prometheus does not.
fn plain_strings(text: &str) -> Cow<'_, str> {
    if !text.contains('`') || !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(at) = rest.find(['"', '\'', '`', '#']) {
        plain.push_str(&rest[..at]);
        rest = &rest[at..];
        let quote = rest.as_bytes()[0] as char;
        let end = match quote {
            '#' => rest.find(['\r', '\n']),
            '`' => rest[1..].find('`').map(|end| end + 2),
            _ => end_of_string(rest, quote),
        };
        let (literal, after) = rest.split_at(end.unwrap_or(rest.len()));
        match quote {
            '`' if literal.contains('\\') && end.is_some() => {
                plain.push_str(&quoted(&literal[1..literal.len() - 1]));
            }
            _ => plain.push_str(literal),
        }
        rest = after;
    }
    plain.push_str(rest);
    Cow::Owned(plain)
}

/// The end of a string that begins with a quote, and may have escapes.
fn end_of_string(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().skip(1).find_map(|(at, c)| {
        let ends = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        ends.then_some(at + 1)
    })
}

/// The parts of a node.
pub struct Parts<'a> {
    /// Its selector, if it is one.
    pub selector: Option<&'a mut VectorSelector>,
    /// All nodes below it.
    pub children: Vec<&'a mut Expr>,
}

/// The parts of a node; none for an `Expr::Extension`, which no PromQL text produces.
///
/// All walks are built on this function. It has no wildcard and no `..`, so that a
/// new kind of node, or a new field that may have one, does not compile until
/// it is handled here. (The parser's own visitor skips the parameter of
/// an aggregation.)
pub fn parts(expr: &mut Expr) -> Option<Parts<'_>> {
    let mut selector = None;
    let children = match expr {
        Expr::Aggregate(AggregateExpr { op: _, expr, param, modifier: _ }) => {
            std::iter::once(expr).chain(param).map(|child| &mut **child).collect()
        }
        Expr::Unary(UnaryExpr { expr }) => vec![&mut **expr],
        Expr::Binary(BinaryExpr { op: _, lhs, rhs, modifier: _ }) => vec![&mut **lhs, &mut **rhs],
        Expr::Paren(ParenExpr { expr }) => vec![&mut **expr],
        Expr::Subquery(SubqueryExpr { expr, offset: _, at: _, range: _, step: _ }) => {
            vec![&mut **expr]
        }
        Expr::NumberLiteral(NumberLiteral { val: _ })
        | Expr::StringLiteral(StringLiteral { val: _ }) => Vec::new(),
        Expr::VectorSelector(vector) => {
            selector = Some(vector);
            Vec::new()
        }
        Expr::MatrixSelector(MatrixSelector { vs, range: _ }) => {
            selector = Some(vs);
            Vec::new()
        }
        Expr::Call(Call { func: _, args: FunctionArgs { args } }) => {
            args.iter_mut().map(|child| &mut **child).collect()
        }
        // No text produces one, and its `children` are copies.
        Expr::Extension(_) => return None,
    };
    Some(Parts { selector, children })
}

/// The text of a string literal, in parentheses or not.
pub fn string_literal(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::StringLiteral(literal) => Some(&literal.val),
        Expr::Paren(paren) => string_literal(&paren.expr),
        _ => None,
    }
}

/// Calls `each` for every node, parents first, until it fails.
///
/// # Errors
/// If a call fails, or a node is an `Expr::Extension`.
pub fn walk<E: From<ExtensionNode>>(
    expr: &mut Expr,
    each: &mut dyn FnMut(&mut Expr) -> Result<(), E>,
) -> Result<(), E> {
    each(expr)?;
    let Parts { selector: _, children } = parts(expr).ok_or(ExtensionNode)?;
    children.into_iter().try_for_each(|child| walk(child, each))
}

/// Whether an aggregation is in a tree, such as `sum`.
pub fn aggregates(expr: &mut Expr) -> bool {
    let mut found = false;
    let walked: Result<(), ExtensionNode> = walk(expr, &mut |node| {
        found |= matches!(node, Expr::Aggregate(_));
        Ok(())
    });
    walked.is_ok() && found
}

/// Calls `each` for every selector.
pub fn selectors(expr: &mut Expr, each: &mut dyn FnMut(&mut VectorSelector)) {
    let walked: Result<(), ExtensionNode> = walk(expr, &mut |node| {
        if let Some(Parts { selector: Some(selector), children: _ }) = parts(node) {
            each(selector);
        }
        Ok(())
    });
    // Only a tree that was not parsed from a text can have such a node.
    walked.expect("a tree that was parsed from PromQL");
}

/// A node that no PromQL text produces: an `Expr::Extension`.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("a node that is not PromQL's")]
pub struct ExtensionNode;

/// The alternative lists of matchers of a selector (`a="1" or b="2"`).
pub fn or_alternatives(selector: &mut VectorSelector) -> Vec<&mut Vec<Matcher>> {
    let VectorSelector { name: _, matchers, offset: _, at: _ } = selector;
    let Matchers { matchers, or_matchers } = matchers;
    if or_matchers.is_empty() { vec![matchers] } else { or_matchers.iter_mut().collect() }
}

/// Normalizes a tree, so that trees with the same meaning are equal: matchers are
/// sorted, empty lists of labels left out as when printed, and regexes
/// compared by their text.
pub fn normalize(expr: &mut Expr) {
    selectors(expr, &mut |selector| {
        for branch in or_alternatives(selector) {
            for matcher in branch.iter_mut() {
                if let MatchOp::Re(regex) | MatchOp::NotRe(regex) = &mut matcher.op {
                    *regex = uncompiled();
                }
            }
            branch.sort_by_cached_key(ToString::to_string);
        }
    });
    let walked: Result<(), ExtensionNode> = walk(expr, &mut |node| {
        match node {
            Expr::Aggregate(aggregate) => {
                let by = aggregate.modifier.as_ref();
                if by.is_some_and(|by| by.is_include() && by.labels().is_empty()) {
                    aggregate.modifier = None;
                }
            }
            Expr::Binary(BinaryExpr { modifier: given, .. }) => {
                if let Some(modifier) = given {
                    let list = modifier.matching.as_ref();
                    if list.is_some_and(|list| !list.is_include() && list.labels().is_empty()) {
                        modifier.matching = None;
                    }
                }
                given.take_if(|modifier| *modifier == BinModifier::default());
            }
            _ => {}
        }
        Ok(())
    });
    walked.expect("a tree that was parsed from PromQL");
}

/// Whether a text parses to this [normalized](normalize) tree.
pub fn parses_to(text: &str, tree: &Expr) -> bool {
    parse(text, &bounds::PLANNED_QUERY).is_ok_and(|mut again| {
        normalize(&mut again);
        again == *tree
    })
}

/// Takes the place of every compiled regex in our trees: only the
/// text of a matcher is printed and compared, and a compiled regex takes kilobytes.
pub fn uncompiled() -> regex::Regex {
    static NONE: LazyLock<regex::Regex> =
        LazyLock::new(|| regex::Regex::new("").expect("the empty regex"));
    NONE.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_strings_are_read_as_prometheus_reads_them() {
        for (text, expected) in [
            (r"x{path=~`/v\d+`}", r#"x{path=~"/v\\d+"}"#),
            (r"x{a=`\`,b='`\\'}", r#"x{a="\\",b="`\\"}"#),
            ("x # `\\d\n", "x"),
            ("x{a =~ # `b\n 'c\\\\d', e!~\t`f\\d`,}", r#"x{a=~"c\\d",e!~"f\\d"}"#),
            (r#"x{a="`\\d`"}"#, r#"x{a="`\\d`"}"#),
        ] {
            let tree = parse(text, &bounds::USER_QUERY).unwrap();
            assert_eq!(tree.to_string(), expected, "{text}");
        }
    }

    #[test]
    fn regexes_are_read_as_they_are_written() {
        for text in [
            r#"x{a=~"1",a=~"|2",b!~"0|"}"#,
            r#"sum by (a) (topk(scalar(x{c=~"b"}), {"a.b"=~"\\d"})) + x{c=~"a",d="0"}"#,
            r#"x{a=~"b", c="0" or d!~"e"}"#,
        ] {
            for bounds in [&bounds::USER_QUERY, &bounds::PLANNED_QUERY] {
                assert_eq!(parse(text, bounds).unwrap().to_string(), text);
            }
        }
        let none = |text| parse(text, &bounds::USER_QUERY).unwrap_err().to_string();
        for text in [r#"{a=~".*"}"#, r#"{a!~"b",c=~"d|"}"#] {
            assert!(none(text).contains("at least one"), "{}", none(text));
        }
        assert!(parse(r#"{a!~".*"}"#, &bounds::USER_QUERY).is_ok());
    }

    #[test]
    fn a_tree_as_deep_as_may_be_fits_a_small_stack() {
        let depth = bounds::USER_QUERY.depth;
        let of = |open: &str, close: &str, levels: usize| {
            format!("{}x{}", open.repeat(levels), close.repeat(levels))
        };
        for text in [
            of("-", "", depth),
            of("abs(", ")", depth - 1),
            of("topk(scalar(", "), x)", depth / 2 - 1),
            of("sum by (a, b) (", ")", depth - 1),
            of("(", " + x)", depth / 2),
            of("", " or x", depth),
            of("", "[5m:1m]", 1),
            of("max_over_time(", "[5m:1m])", depth / 2 - 1),
        ] {
            let work = move || {
                let mut tree = parse(&text, &bounds::USER_QUERY).expect("within bounds");
                normalize(&mut tree);
                assert!(parses_to(&tree.to_string(), &tree.clone()), "{text}");
            };
            // A quarter of the stack of tokio's workers.
            let thread = std::thread::Builder::new().stack_size(512 << 10).spawn(work);
            thread.unwrap().join().unwrap();
        }
    }
}
