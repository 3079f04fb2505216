//! Query templates, in the placeholders that prometheus-adapter's users know.

use std::collections::BTreeMap;

/// A query with placeholders to be filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Series,
    LabelMatchers,
    GroupBy,
}

/// What the placeholders of a template stand for.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    /// `<<.Series>>`: the metric's name.
    pub series: &'a str,
    /// `<<.LabelMatchers>>`: what its labels must be.
    pub matchers: &'a BTreeMap<&'a str, Matcher<'a>>,
    /// `<<.GroupBy>>`: the labels of the result.
    pub group_by: &'a [&'a str],
}

/// What a label must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matcher<'a> {
    /// This value.
    Is(&'a str),
    /// Any value but the empty one.
    NotEmpty,
}

/// Why a text is no template.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum TemplateError {
    /// A placeholder that is not known.
    #[error("<<{0}>> is not known; <<.Series>>, <<.LabelMatchers>> and <<.GroupBy>> are")]
    Unknown(String),
    /// A placeholder that does not end.
    #[error("a << has no >> that ends it")]
    Open,
    /// A placeholder that must be there is not.
    #[error("{0} is missing: without it {1}")]
    Missing(&'static str, &'static str),
}

impl Template {
    /// Reads a template.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("<<") {
            let (inside, after) = after.split_once(">>").ok_or(TemplateError::Open)?;
            if !before.is_empty() {
                pieces.push(Piece::Text(before.to_owned()));
            }
            pieces.push(match inside.trim() {
                ".Series" => Piece::Series,
                ".LabelMatchers" => Piece::LabelMatchers,
                ".GroupBy" => Piece::GroupBy,
                other => return Err(TemplateError::Unknown(other.to_owned())),
            });
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        for (piece, name, reason) in [
            (Piece::Series, "<<.Series>>", "every metric would be the same one"),
            (Piece::LabelMatchers, "<<.LabelMatchers>>", "namespaces would mix"),
            (Piece::GroupBy, "<<.GroupBy>>", "the pods could not be told apart"),
        ] {
            if !pieces.contains(&piece) {
                return Err(TemplateError::Missing(name, reason));
            }
        }
        Ok(Self(pieces))
    }

    /// Fills the placeholders in.
    pub fn render(&self, values: &Values<'_>) -> String {
        let mut query = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => query.push_str(text),
                Piece::Series => query.push_str(values.series),
                Piece::GroupBy => query.push_str(&values.group_by.join(",")),
                Piece::LabelMatchers => {
                    for (i, (label, matcher)) in values.matchers.iter().enumerate() {
                        if i > 0 {
                            query.push(',');
                        }
                        query.push_str(label);
                        match matcher {
                            Matcher::Is(value) => {
                                query.push('=');
                                push_string(&mut query, value);
                            }
                            Matcher::NotEmpty => query.push_str("!=\"\""),
                        }
                    }
                }
            }
        }
        query
    }
}

/// Writes a PromQL string literal; nothing in the text can end it.
fn push_string(query: &mut String, text: &str) {
    query.push('"');
    for c in text.chars() {
        match c {
            '"' => query.push_str("\\\""),
            '\\' => query.push_str("\\\\"),
            '\n' => query.push_str("\\n"),
            c if c.is_control() => {
                use std::fmt::Write;
                let _ = write!(query, "\\U{:08x}", u32::from(c));
            }
            _ => query.push(c),
        }
    }
    query.push('"');
}

/// Whether a text is a metric name that needs no quotes.
pub fn is_metric_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_' || b == b':')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':')
}

/// Whether a text is a label name that needs no quotes.
pub fn is_label_name(text: &str) -> bool {
    is_metric_name(text) && !text.contains(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_filled_in() {
        let template =
            Template::parse("sum by (<<.GroupBy>>) (rate(<<.Series>>{<<.LabelMatchers>>}[2m]))")
                .unwrap();
        let matchers =
            BTreeMap::from([("namespace", Matcher::Is("shop")), ("pod", Matcher::NotEmpty)]);
        let values = Values {
            series: "http_requests_total",
            matchers: &matchers,
            group_by: &["namespace", "pod"],
        };
        assert_eq!(
            template.render(&values),
            r#"sum by (namespace,pod) (rate(http_requests_total{namespace="shop",pod!=""}[2m]))"#
        );
    }

    #[test]
    fn a_wrong_template_is_refused_with_what_would_be_right() {
        for (text, expected) in [
            ("sum(<<.Seires>>)", "<<.Seires>> is not known"),
            ("sum(<<.Series", "no >>"),
            ("sum by (<<.GroupBy>>) (<<.Series>>)", "<<.LabelMatchers>> is missing"),
        ] {
            let error = Template::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn no_label_value_can_end_its_literal() {
        for value in ["\"", "\\", "a\"} or vector(1) or up{b=\"", "\n", "\0", "é\u{2028}"] {
            let mut literal = String::new();
            push_string(&mut literal, value);
            let query = format!("up{{a={literal}}}");
            let promql_parser::parser::Expr::VectorSelector(selector) =
                promql_parser::parser::parse(&query).unwrap()
            else {
                panic!("{query} is more than one selector");
            };
            assert_eq!(selector.matchers.matchers.len(), 1, "{query}");
        }
    }
}
