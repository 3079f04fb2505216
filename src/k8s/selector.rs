//! Label selectors: the text form (`a=b,c in (d,e),!f`) and the object form
//! (`matchLabels`, `matchExpressions`).
//!
//! Grammar and error texts follow `k8s.io/apimachinery/pkg/labels`, as they
//! reach users through conditions and events.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;

/// How many requirements a selector may have, and how many values altogether, as they are
/// written: it is looked at for each pod of a namespace.
const REQUIREMENTS: usize = 256;
const VALUES: usize = 4096;
/// The bytes of a text that are read. No selector takes more as the API machinery writes it: a
/// requirement has a key of at most 317 bytes (a prefix of 253, `/` and 63) in ` notin (),`,
/// and a value at most 63 and a comma.
const LONGEST: usize = REQUIREMENTS * (317 + 10) + VALUES * 64;

/// A conjunction of requirements; without any it selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

/// One condition on one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    /// The label's key.
    pub key: String,
    /// What must hold for its value.
    pub operator: Operator,
    /// The values the operator speaks of, sorted.
    pub values: Vec<String>,
    /// Whether it is written with `in` or `notin`, also for one value.
    pub listed: bool,
}

/// What a requirement asks of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// The label is there with one of the values (`=`, `==`, `in`).
    In,
    /// The label is absent or has none of the values (`!=`, `notin`).
    NotIn,
    /// The label is there.
    Exists,
    /// The label is absent.
    DoesNotExist,
    /// The label is an integer above the value.
    GreaterThan,
    /// The label is an integer below the value.
    LessThan,
}

/// Why a text or an object is no selector, in upstream's words where it has them.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct ParseError(String);

fn error<T>(text: impl Into<String>) -> Result<T, ParseError> {
    Err(ParseError(text.into()))
}

fn too_large<T>() -> Result<T, ParseError> {
    error(format!(
        "the selector is too large: it may have {REQUIREMENTS} requirements, and {VALUES} values altogether, in {LONGEST} bytes"
    ))
}

impl Selector {
    /// Of these requirements, of which equal ones are kept once.
    fn new(mut requirements: Vec<Requirement>) -> Self {
        let mut seen = HashSet::new();
        requirements.retain(|requirement| seen.insert(requirement.clone()));
        Self { requirements }
    }

    /// The conditions, in their order.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether labels, looked up by key, satisfy every requirement.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(label(&requirement.key)))
    }

    /// The selector of an API object's `matchLabels` and `matchExpressions`.
    pub fn from_object(object: &LabelSelector) -> Result<Self, ParseError> {
        let (labels, expressions) = (&object.match_labels, &object.match_expressions);
        let labels = labels.as_ref().map_or(0, BTreeMap::len);
        let expressions = expressions.as_deref().unwrap_or_default();
        let listed = expressions.iter().filter_map(|expression| expression.values.as_ref());
        let values = labels + listed.map(Vec::len).sum::<usize>();
        if labels + expressions.len() > REQUIREMENTS || values > VALUES {
            return too_large();
        }
        let mut requirements = Vec::new();
        for (key, value) in object.match_labels.iter().flatten() {
            requirements.push(Requirement::new(key, Operator::In, vec![value.clone()])?);
        }
        for expression in expressions {
            let operator = match expression.operator.as_str() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => return error(format!("{other:?} is not a valid label selector operator")),
            };
            let values = expression.values.clone().unwrap_or_default();
            requirements.push(Requirement::new(&expression.key, operator, values)?.listed());
        }
        Ok(Self::new(requirements))
    }

    /// The same as `matchLabels` and `matchExpressions`; none where a requirement
    /// can't be said in them.
    pub fn to_object(&self) -> Option<LabelSelector> {
        let mut object = LabelSelector::default();
        for requirement in &self.requirements {
            let operator = match requirement.operator {
                Operator::In if !requirement.listed => {
                    let labels = object.match_labels.get_or_insert_default();
                    labels.insert(requirement.key.clone(), requirement.values.concat());
                    continue;
                }
                Operator::In => "In",
                Operator::NotIn => "NotIn",
                Operator::Exists => "Exists",
                Operator::DoesNotExist => "DoesNotExist",
                Operator::GreaterThan | Operator::LessThan => return None,
            };
            let values = Some(requirement.values.clone()).filter(|values| !values.is_empty());
            object.match_expressions.get_or_insert_default().push(LabelSelectorRequirement {
                key: requirement.key.clone(),
                operator: operator.to_owned(),
                values,
            });
        }
        Some(object)
    }

    /// The one value each label must have, where every requirement is such an
    /// equality; none if any asks for something else.
    pub fn as_equalities(&self) -> Option<BTreeMap<String, String>> {
        self.requirements
            .iter()
            .map(|requirement| match (requirement.operator, requirement.values.as_slice()) {
                (Operator::In, [value]) => Some((requirement.key.clone(), value.clone())),
                _ => None,
            })
            .collect()
    }
}

impl Requirement {
    fn new(key: &str, operator: Operator, mut values: Vec<String>) -> Result<Self, ParseError> {
        validate_key(key)?;
        if matches!(operator, Operator::In | Operator::NotIn) && values.is_empty() {
            return error(
                "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty",
            );
        }
        if matches!(operator, Operator::Exists | Operator::DoesNotExist) && !values.is_empty() {
            return error(format!(
                "values: Invalid value: {values:?}: values set must be empty for exists and does not exist"
            ));
        }
        for value in &values {
            if matches!(operator, Operator::GreaterThan | Operator::LessThan)
                && value.parse::<i64>().is_err()
            {
                return error(format!(
                    "values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer"
                ));
            }
            validate_value(key, value)?;
        }
        values.sort();
        values.dedup();
        Ok(Self { key: key.to_owned(), operator, values, listed: false })
    }

    fn listed(self) -> Self {
        Self { listed: matches!(self.operator, Operator::In | Operator::NotIn), ..self }
    }

    /// Whether a label with this value, or without one, satisfies it.
    pub fn matches(&self, value: Option<&str>) -> bool {
        let listed =
            |value: &str| self.values.binary_search_by(|known| known.as_str().cmp(value)).is_ok();
        let number = |text: &str| text.parse::<i64>().ok();
        let bound = || self.values.first().and_then(|v| number(v));
        match self.operator {
            Operator::In => value.is_some_and(listed),
            Operator::NotIn => !value.is_some_and(listed),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan => {
                value.and_then(number) > bound() && value.and_then(number).is_some()
            }
            Operator::LessThan => value.and_then(number).is_some_and(|v| Some(v) < bound()),
        }
    }
}

/// The text form, which [`str::parse`] reads back.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            let Requirement { key, operator, values, listed } = requirement;
            if i > 0 {
                f.write_str(",")?;
            }
            match (operator, values.as_slice()) {
                (Operator::In, [value]) if !listed => write!(f, "{key}={value}")?,
                (Operator::NotIn, [value]) if !listed => write!(f, "{key}!={value}")?,
                (Operator::In, values) => write!(f, "{key} in ({})", values.join(","))?,
                (Operator::NotIn, values) => write!(f, "{key} notin ({})", values.join(","))?,
                (Operator::Exists, _) => write!(f, "{key}")?,
                (Operator::DoesNotExist, _) => write!(f, "!{key}")?,
                (Operator::GreaterThan, values) => write!(f, "{key}>{}", values.concat())?,
                (Operator::LessThan, values) => write!(f, "{key}<{}", values.concat())?,
            }
        }
        Ok(())
    }
}

impl std::str::FromStr for Selector {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        if text.len() > LONGEST {
            return too_large();
        }
        Parser::new(text).parse()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    End,
    Identifier,
    Open,
    Close,
    Comma,
    Not,
    Equals,
    NotEquals,
    Greater,
    Less,
    In,
    NotIn,
    Error,
}

const SPECIAL: &str = "=!(),><";

fn without_blanks(text: &str) -> &str {
    text.trim_start_matches([' ', '\t', '\r', '\n'])
}

/// The token at the beginning of a text that begins with no blank; at its end, `End`.
fn scan(text: &str) -> (Token, &str) {
    let Some(first) = text.chars().next() else { return (Token::End, "") };
    let (token, length) = if SPECIAL.contains(first) {
        match (first, text.as_bytes().get(1)) {
            ('=', Some(b'=')) => (Token::Equals, 2),
            ('!', Some(b'=')) => (Token::NotEquals, 2),
            ('=', _) => (Token::Equals, 1),
            ('!', _) => (Token::Not, 1),
            ('(', _) => (Token::Open, 1),
            (')', _) => (Token::Close, 1),
            (',', _) => (Token::Comma, 1),
            ('>', _) => (Token::Greater, 1),
            ('<', _) => (Token::Less, 1),
            _ => (Token::Error, 1),
        }
    } else {
        let ends = |c: char| SPECIAL.contains(c) || matches!(c, ' ' | '\t' | '\r' | '\n');
        let length = text.find(ends).unwrap_or(text.len());
        match &text[..length] {
            "in" => (Token::In, length),
            "notin" => (Token::NotIn, length),
            _ => (Token::Identifier, length),
        }
    };
    (token, &text[..length])
}

struct Parser<'a> {
    /// The token ahead, and what follows it.
    ahead: (Token, &'a str),
    rest: &'a str,
    /// How many values were read.
    values: usize,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        let mut parser = Self { ahead: (Token::End, ""), rest: without_blanks(text), values: 0 };
        parser.advance();
        parser
    }

    /// The token ahead, where `in` and `notin` are words like any other.
    fn peek(&self) -> (Token, &'a str) {
        let (token, literal) = self.ahead;
        let token = match token {
            Token::In | Token::NotIn => Token::Identifier,
            other => other,
        };
        (token, literal)
    }

    fn advance(&mut self) {
        self.ahead = scan(self.rest);
        self.rest = without_blanks(&self.rest[self.ahead.1.len()..]);
    }

    fn next(&mut self) -> (Token, &'a str) {
        let taken = self.peek();
        self.advance();
        taken
    }

    /// A value was read: what has too many is read no further.
    fn count_value(&mut self) -> Result<(), ParseError> {
        self.values += 1;
        if self.values > VALUES { too_large() } else { Ok(()) }
    }

    fn parse(mut self) -> Result<Selector, ParseError> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                (Token::End, _) => break,
                (Token::Identifier | Token::Not, _) => {}
                (_, literal) => {
                    return error(format!(
                        "found '{literal}', expected: !, identifier, or 'end of string'"
                    ));
                }
            }
            if requirements.len() == REQUIREMENTS {
                return too_large();
            }
            let requirement = self
                .requirement()
                .map_err(|e| ParseError(format!("unable to parse requirement: {e}")))?;
            requirements.push(requirement);
            match self.next() {
                (Token::End, _) => break,
                (Token::Comma, _) => match self.peek() {
                    (Token::Identifier | Token::Not, _) => {}
                    (_, literal) => {
                        return error(format!("found '{literal}', expected: identifier after ','"));
                    }
                },
                (_, literal) => {
                    return error(format!("found '{literal}', expected: ',' or 'end of string'"));
                }
            }
        }
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Selector::new(requirements))
    }

    fn requirement(&mut self) -> Result<Requirement, ParseError> {
        let absent = self.peek().0 == Token::Not;
        if absent {
            self.advance();
        }
        let (token, key) = self.next();
        if token != Token::Identifier {
            return error(format!("found '{key}', expected: identifier"));
        }
        validate_key(key)?;
        if absent {
            return Requirement::new(key, Operator::DoesNotExist, vec![]);
        }
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Requirement::new(key, Operator::Exists, vec![]);
        }
        let operator = self.operator()?;
        match operator {
            (Operator::In | Operator::NotIn, Token::In | Token::NotIn) => {
                Ok(Requirement::new(key, operator.0, self.values()?)?.listed())
            }
            _ => Requirement::new(key, operator.0, vec![self.exact_value()?]),
        }
    }

    fn operator(&mut self) -> Result<(Operator, Token), ParseError> {
        // The raw token: here `in` and `notin` are operators.
        let (token, literal) = self.ahead;
        self.advance();
        let operator = match token {
            Token::In | Token::Equals => Operator::In,
            Token::NotIn | Token::NotEquals => Operator::NotIn,
            Token::Greater => Operator::GreaterThan,
            Token::Less => Operator::LessThan,
            _ => {
                return error(format!("found '{literal}', expected: in, notin, =, ==, !=, gt, lt"));
            }
        };
        Ok((operator, token))
    }

    fn values(&mut self) -> Result<Vec<String>, ParseError> {
        let (token, literal) = self.next();
        if token != Token::Open {
            return error(format!("found '{literal}' expected: '('"));
        }
        match self.peek() {
            (Token::Identifier | Token::Comma, _) => {}
            (Token::Close, _) => {
                self.advance();
                self.count_value()?;
                return Ok(vec![String::new()]);
            }
            (_, literal) => {
                return error(format!("found '{literal}', expected: ',', ')' or identifier"));
            }
        }
        let mut values = BTreeSet::new();
        loop {
            let (token, literal) = self.next();
            match token {
                Token::Identifier => {
                    self.count_value()?;
                    values.insert(literal.to_owned());
                    match self.peek() {
                        (Token::Comma, _) => {}
                        (Token::Close, _) => break,
                        (_, literal) => {
                            return error(format!("found '{literal}', expected: ',' or ')'"));
                        }
                    }
                }
                Token::Comma => {
                    let ahead = self.peek().0;
                    if values.is_empty() || matches!(ahead, Token::Close | Token::Comma) {
                        self.count_value()?;
                        values.insert(String::new());
                    }
                    if ahead == Token::Close {
                        break;
                    }
                }
                _ => return error(format!("found '{literal}', expected: ',', or identifier")),
            }
        }
        self.advance();
        Ok(values.into_iter().collect())
    }

    fn exact_value(&mut self) -> Result<String, ParseError> {
        self.count_value()?;
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Ok(String::new());
        }
        match self.next() {
            (Token::Identifier, literal) => Ok(literal.to_owned()),
            (_, literal) => error(format!("found '{literal}', expected: identifier")),
        }
    }
}

const NAME_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

fn is_name(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    edge(text.chars().next())
        && edge(text.chars().last())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= 253
        && text.split('.').all(|label| {
            is_name(label)
                && label.chars().all(|c| c.is_ascii_digit() || c.is_ascii_lowercase() || c == '-')
        })
}

/// Source: `IsQualifiedName` of apimachinery.
fn validate_key(key: &str) -> Result<(), ParseError> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let fault = if name.is_empty() {
        "name part must be non-empty".to_owned()
    } else if name.len() > 63 {
        "name part must be no more than 63 bytes".to_owned()
    } else if !is_name(name) {
        format!(
            "name part {NAME_RULE} (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
        )
    } else if prefix.is_some_and(|prefix| !is_subdomain(prefix)) {
        "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character".to_owned()
    } else {
        return Ok(());
    };
    error(format!("<nil>: Invalid value: {key:?}: {fault}"))
}

/// Source: `IsValidLabelValue` of apimachinery.
fn validate_value(key: &str, value: &str) -> Result<(), ParseError> {
    let fault = if value.len() > 63 {
        "must be no more than 63 bytes".to_owned()
    } else if !value.is_empty() && !is_name(value) {
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')".to_string()
    } else {
        return Ok(());
    };
    error(format!("values[0][{key}]: Invalid value: {value:?}: {fault}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selects(selector: &str, labels: &[(&str, &str)]) -> bool {
        let selector: Selector = selector.parse().unwrap();
        let again: Selector = selector.to_string().parse().unwrap();
        assert_eq!(selector, again);
        selector.matches(|key| labels.iter().find(|(k, _)| *k == key).map(|(_, v)| *v))
    }

    #[test]
    fn every_operator_selects_what_upstream_selects() {
        let labels = [("app", "web"), ("tier", "3")];
        for (selector, expected) in [
            ("", true),
            ("app=web", true),
            ("app == web , tier=3", true),
            ("app!=web", false),
            ("gone!=web", true),
            ("app in (api, web)", true),
            ("app notin (api,web)", false),
            ("gone notin (x)", true),
            ("app", true),
            ("!app", false),
            ("!gone", true),
            ("tier>2", true),
            ("tier<3", false),
            ("gone>2", false),
            ("app in ()", false),
            ("in in (in)", false),
        ] {
            assert_eq!(selects(selector, &labels), expected, "{selector}");
        }
    }

    #[test]
    fn a_broken_selector_is_refused_in_upstream_words() {
        for (selector, expected) in [
            ("a in (", "unable to parse requirement: found '', expected: ',', ')' or identifier"),
            ("a=b,", "found '', expected: identifier after ','"),
            ("=b", "found '=', expected: !, identifier, or 'end of string'"),
            (
                "a b",
                "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
            ),
            ("a=b c", "found 'c', expected: ',' or 'end of string'"),
        ] {
            assert_eq!(selector.parse::<Selector>().unwrap_err().to_string(), expected);
        }
        assert!("a{}=b".parse::<Selector>().is_err());
        assert!("a=\"b\"".parse::<Selector>().is_err());
    }

    #[test]
    fn a_selector_is_read_no_further_than_it_may_go() {
        let error = |text: &str| text.parse::<Selector>().unwrap_err().to_string();
        let too_large = |text: &str| {
            let error = error(text);
            assert!(error.contains("may have 256 requirements, and 4096 values"), "{error:.200}");
        };
        // What follows is none.
        too_large(&("!a,".repeat(REQUIREMENTS + 1) + "="));
        too_large(&format!("a in ({}=", "v,".repeat(VALUES + 1)));
        too_large(&format!("a in ({}=", ",".repeat(VALUES + 2)));
        too_large(&("a=b,".repeat(10) + &" ".repeat(1 << 20) + "c=d"));
        let expression = |values: usize, operator: &str| LabelSelectorRequirement {
            key: "a".to_owned(),
            operator: operator.to_owned(),
            values: Some(vec!["v".to_owned(); values]),
        };
        let object = |expressions| LabelSelector {
            match_expressions: Some(expressions),
            match_labels: None,
        };
        let many = object(vec![expression(VALUES, "In"), expression(1, "none")]);
        assert!(Selector::from_object(&many).unwrap_err().to_string().contains("4096 values"));
    }

    #[test]
    fn the_longest_selector_that_may_be_is_read() {
        let key = |n: usize| {
            let prefix = ["p".repeat(63), "p".repeat(63), "p".repeat(63), "p".repeat(61)].join(".");
            format!("{prefix}/{n:063}")
        };
        let values = VALUES / REQUIREMENTS;
        let expression = |n: usize| LabelSelectorRequirement {
            key: key(n),
            operator: "NotIn".to_owned(),
            values: Some((0..values).map(|value| format!("{value:063}")).collect()),
        };
        let object = LabelSelector {
            match_expressions: Some((0..REQUIREMENTS).map(expression).collect()),
            match_labels: None,
        };
        let text = Selector::from_object(&object).unwrap().to_string();
        assert!(text.len() > 340_000, "{}", text.len());
        assert_eq!(text.parse::<Selector>().unwrap().to_string(), text);
    }

    #[test]
    fn a_selector_has_only_so_many_requirements_and_values() {
        let parsed = |text: &str| text.parse::<Selector>();
        let of = |parts: &mut dyn Iterator<Item = String>| parts.collect::<Vec<_>>().join(",");
        let absent = |count: usize| of(&mut (0..count).map(|n| format!("!a{n}")));
        assert_eq!(parsed(&absent(REQUIREMENTS)).unwrap().requirements().len(), REQUIREMENTS);
        let error = parsed(&absent(REQUIREMENTS + 1)).unwrap_err().to_string();
        assert!(error.contains("may have 256 requirements, and 4096 values"), "{error}");
        // Equal ones are one, and count as they are written.
        let same = |count: usize| parsed(&vec!["!a"; count].join(","));
        assert_eq!(same(REQUIREMENTS).unwrap(), parsed("!a").unwrap());
        assert!(same(REQUIREMENTS + 1).is_err());
        let values = |count: usize| of(&mut (0..count).map(|n| format!("v{n}")));
        let listed = parsed(&format!("a in ({})", values(VALUES))).unwrap();
        let known = |n: usize| format!("v{n}");
        assert!((0..VALUES).map(known).all(|value| listed.matches(|_| Some(&value))));
        assert!(!listed.matches(|_| Some("v")));
        assert!(parsed(&format!("a in ({}),b=c", values(VALUES))).is_err());
        let expression = |n: usize| LabelSelectorRequirement {
            key: format!("a{n}"),
            operator: "Exists".to_owned(),
            values: None,
        };
        let object = |count: usize| LabelSelector {
            match_expressions: Some((0..count).map(expression).collect()),
            match_labels: None,
        };
        assert!(Selector::from_object(&object(REQUIREMENTS)).is_ok());
        assert!(Selector::from_object(&object(REQUIREMENTS + 1)).is_err());
    }
}
