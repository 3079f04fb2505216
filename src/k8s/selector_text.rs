//! The text form of label selectors (`a=b,c in (d,e),!f`).
//!
//! Grammar and error texts are those of `k8s.io/apimachinery/pkg/labels`, as they
//! reach users in conditions and events.

use super::label_syntax::validate_key;
use super::selector::{
    MAX_REQUIREMENTS, MAX_TEXT_BYTES, MAX_VALUES, Operator, Requirement, Selector, too_large,
};
use super::selector_error::{ParseSelectorError, error};
use std::collections::BTreeSet;

impl std::str::FromStr for Selector {
    type Err = ParseSelectorError;

    fn from_str(text: &str) -> Result<Self, ParseSelectorError> {
        if text.len() > MAX_TEXT_BYTES {
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

/// The first token of a text without leading blanks, with its literal; at the end, `End`.
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
    /// The next token.
    next: (Token, &'a str),
    /// The text after it.
    rest: &'a str,
    /// The values so far.
    values: usize,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        let mut parser = Self { next: (Token::End, ""), rest: without_blanks(text), values: 0 };
        parser.advance();
        parser
    }

    /// The next token; `in` and `notin` are identifiers here.
    fn peek(&self) -> (Token, &'a str) {
        let (token, literal) = self.next;
        let token = match token {
            Token::In | Token::NotIn => Token::Identifier,
            other => other,
        };
        (token, literal)
    }

    fn advance(&mut self) {
        self.next = scan(self.rest);
        self.rest = without_blanks(&self.rest[self.next.1.len()..]);
    }

    fn next(&mut self) -> (Token, &'a str) {
        let taken = self.peek();
        self.advance();
        taken
    }

    /// Counts a value, so that a selector with too many is read no further.
    fn count_value(&mut self) -> Result<(), ParseSelectorError> {
        self.values += 1;
        if self.values > MAX_VALUES { too_large() } else { Ok(()) }
    }

    fn parse(mut self) -> Result<Selector, ParseSelectorError> {
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
            if requirements.len() == MAX_REQUIREMENTS {
                return too_large();
            }
            let requirement = self
                .requirement()
                .map_err(|e| ParseSelectorError(format!("unable to parse requirement: {e}")))?;
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

    fn requirement(&mut self) -> Result<Requirement, ParseSelectorError> {
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

    fn operator(&mut self) -> Result<(Operator, Token), ParseSelectorError> {
        // Not by `peek`, as `in` and `notin` are operators here.
        let (token, literal) = self.next;
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

    fn values(&mut self) -> Result<Vec<String>, ParseSelectorError> {
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

    fn exact_value(&mut self) -> Result<String, ParseSelectorError> {
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
