//! Matchers of labels.

use super::error::EvaluateError;
use super::labels::METRIC_NAME;
use promql_parser::label;
use regex::Regex;
use std::collections::BTreeSet;

/// A matcher of a label, ready to match.
#[derive(Debug)]
pub(super) struct Matcher {
    /// The name of the label.
    pub label: String,
    test: Test,
}

#[derive(Debug)]
enum Test {
    Is(String),
    IsNot(String),
    AnyOf(BTreeSet<String>),
    NoneOf(BTreeSet<String>),
    Matches(Regex),
    MatchesNot(Regex),
}

impl Matcher {
    /// The matcher that a label equals a value.
    pub fn equal(label: &str, value: &str) -> Self {
        Self { label: label.to_owned(), test: Test::Is(value.to_owned()) }
    }

    /// The matcher that the parser has read.
    ///
    /// # Errors
    /// If Rust can't compile its regular expression.
    pub fn read(matcher: &label::Matcher) -> Result<Self, EvaluateError> {
        let value = &matcher.value;
        let test = match &matcher.op {
            label::MatchOp::Equal => Test::Is(value.clone()),
            label::MatchOp::NotEqual => Test::IsNot(value.clone()),
            label::MatchOp::Re(_) => match alternatives(value) {
                Some(values) => Test::AnyOf(values),
                None => Test::Matches(anchored(value)?),
            },
            label::MatchOp::NotRe(_) => match alternatives(value) {
                Some(values) => Test::NoneOf(values),
                None => Test::MatchesNot(anchored(value)?),
            },
        };
        Ok(Self { label: matcher.name.clone(), test })
    }

    /// Whether the label may have this value; the empty one is that of no label.
    pub fn matches(&self, value: &str) -> bool {
        match &self.test {
            Test::Is(own) => own == value,
            Test::IsNot(own) => own != value,
            Test::AnyOf(own) => own.contains(value),
            Test::NoneOf(own) => !own.contains(value),
            Test::Matches(regex) => regex.is_match(value),
            Test::MatchesNot(regex) => !regex.is_match(value),
        }
    }

    /// The only metric that can match, if there is one.
    pub fn metric(&self) -> Option<&str> {
        match &self.test {
            Test::Is(value) if self.label == METRIC_NAME => Some(value),
            _ => None,
        }
    }
}

/// A regular expression as Prometheus reads it: of the whole text, and `.` matches a line feed.
pub(super) fn anchored(regex: &str) -> Result<Regex, EvaluateError> {
    Regex::new(&format!("^(?s:{regex})$"))
        .map_err(|_| EvaluateError::Unsupported(format!("the regular expression {regex:?}")))
}

/// The texts that a regular expression matches, if it only lists them.
fn alternatives(regex: &str) -> Option<BTreeSet<String>> {
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
    Some(values)
}
