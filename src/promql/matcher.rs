//! Label matchers, and names as PromQL writes them.

use super::quote::quoted;
use crate::k8s::selector::{Operator, Requirement};
use std::borrow::Cow;

/// A condition on a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matcher {
    /// This value.
    Is(String),
    /// Any other value, or none.
    IsNot(String),
    /// One of these values.
    AnyOf(Vec<String>),
    /// None of these values.
    NoneOf(Vec<String>),
    /// Any value but the empty one.
    NotEmpty,
    /// Empty, or not there.
    Empty,
}

impl Matcher {
    /// One of these values; `Is` for a single one.
    pub fn any_of(mut values: Vec<String>) -> Self {
        if values.len() == 1 { Self::Is(values.remove(0)) } else { Self::AnyOf(values) }
    }

    /// The matcher for a requirement of a label selector; none for `>` and `<`, which
    /// PromQL does not have for labels.
    pub fn of(requirement: &Requirement) -> Option<Self> {
        let values = requirement.values.clone();
        Some(match (requirement.operator, values.as_slice()) {
            (Operator::In, _) => Self::any_of(values),
            (Operator::NotIn, [value]) => Self::IsNot(value.clone()),
            (Operator::NotIn, _) => Self::NoneOf(values),
            (Operator::Exists, _) => Self::NotEmpty,
            (Operator::DoesNotExist, _) => Self::Empty,
            (Operator::GreaterThan | Operator::LessThan, _) => return None,
        })
    }

    /// The matcher as PromQL. No value can end its literal or act as a regex.
    pub fn render(&self, label: &str) -> String {
        let label = label_name(label);
        let regex = |values: &[String]| quoted(&regex_of(values));
        match self {
            Self::Is(value) => format!("{label}={}", quoted(value)),
            Self::IsNot(value) => format!("{label}!={}", quoted(value)),
            Self::AnyOf(values) => format!("{label}=~{}", regex(values)),
            Self::NoneOf(values) => format!("{label}!~{}", regex(values)),
            Self::NotEmpty => format!("{label}!=\"\""),
            Self::Empty => format!("{label}=\"\""),
        }
    }

    /// The value as prometheus-adapter's `LabelValuesByName` has it.
    pub fn value(&self) -> String {
        match self {
            Self::Is(value) | Self::IsNot(value) => value.clone(),
            Self::AnyOf(values) | Self::NoneOf(values) => values.join("|"),
            Self::NotEmpty | Self::Empty => String::new(),
        }
    }
}

/// The regex that matches these texts and no other.
///
/// Prometheus looks texts up in its index, instead of matching each value of the label with the
/// regex, only if Go's `regexp.QuoteMeta` would leave nothing to escape
/// (`optimizeAlternatingLiterals` in its `model/labels/regexp.go`). So only what Go
/// escapes is escaped: `regex::escape` writes `web\-1`, which
/// costs a hundred times as much as `web-1`.
pub fn regex_of<S: AsRef<str>>(values: impl IntoIterator<Item = S>) -> String {
    let mut regex = String::new();
    for (at, value) in values.into_iter().enumerate() {
        if at > 0 {
            regex.push('|');
        }
        for c in value.as_ref().chars() {
            if matches!(
                c,
                '\\' | '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$'
            ) {
                regex.push('\\');
            }
            regex.push(c);
        }
    }
    regex
}

/// A label name as PromQL writes it, in quotes if it needs them.
pub fn label_name(name: &str) -> Cow<'_, str> {
    if is_label_name(name) { Cow::Borrowed(name) } else { Cow::Owned(quoted(name)) }
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
    use promql_parser::parser::{Expr, parse};

    #[test]
    fn requirements_become_matchers() {
        let selector: crate::k8s::Selector =
            "a=1,b!=2,c in (x.y,z),d notin (p,q),e,!f".parse().unwrap();
        let rendered: Vec<String> = selector
            .requirements()
            .iter()
            .map(|requirement| Matcher::of(requirement).unwrap().render(&requirement.key))
            .collect();
        let expected =
            [r#"a="1""#, r#"b!="2""#, r#"c=~"x\\.y|z""#, r#"d!~"p|q""#, r#"e!="""#, r#"f="""#];
        assert_eq!(rendered, expected);
        let above: crate::k8s::Selector = "a>1".parse().unwrap();
        assert_eq!(Matcher::of(&above.requirements()[0]), None);
    }

    #[test]
    fn only_what_go_escapes_is_escaped() {
        // Prometheus looks plain texts up; any other escape makes it search (labels/regexp.go).
        let values = vec!["web-1&2#3~4".to_owned(), r"\.+*?()|[]{}^$".to_owned()];
        let expected = r#"a=~"web-1&2#3~4|\\\\\\.\\+\\*\\?\\(\\)\\|\\[\\]\\{\\}\\^\\$""#;
        assert_eq!(Matcher::AnyOf(values).render("a"), expected);
    }

    #[test]
    fn a_name_that_needs_quotes_has_them() {
        assert_eq!(Matcher::Is("1".to_owned()).render("k8s.pod.name"), r#""k8s.pod.name"="1""#);
        assert_eq!(Matcher::NotEmpty.render("a\"b"), r#""a\"b"!="""#);
    }

    #[test]
    fn no_value_can_end_its_literal_or_act_as_a_regex() {
        for value in
            ["\"", "\\", "a\"} or vector(1) or up{b=\"", "\n", "\0", "é\u{2028}", ".*", "a|b"]
        {
            let both = vec![value.to_owned(), "other".to_owned()];
            for matcher in [Matcher::Is(value.to_owned()), Matcher::AnyOf(both)] {
                let query = format!("up{{{}}}", matcher.render("a"));
                let Expr::VectorSelector(selector) = parse(&query).unwrap() else {
                    panic!("{query} is more than one selector");
                };
                let [only] = selector.matchers.matchers.as_slice() else {
                    panic!("{query} has more than one matcher");
                };
                assert!(only.is_match(value), "{query}");
                assert!(!only.is_match("anything else"), "{query}");
            }
        }
    }
}
