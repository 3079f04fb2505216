//! The text form of label selectors (`a=b,c in (d,e),!f`).
//!
//! Grammar and error texts are those of `k8s.io/apimachinery/pkg/labels`, as they
//! reach users in conditions and events.

use super::label_syntax::validate_key;
use super::selector::{Operator, Requirement, Selector};
use super::selector_error::{ParseError, error};
use std::collections::BTreeSet;

impl std::str::FromStr for Selector {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Parser { tokens: scan(text), position: 0 }.parse()
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

/// The tokens of a text with their literals; the last one is always `End`.
fn scan(text: &str) -> Vec<(Token, String)> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches([' ', '\t', '\r', '\n']);
    while let Some(first) = rest.chars().next() {
        let (token, length) = if SPECIAL.contains(first) {
            match (first, rest.as_bytes().get(1)) {
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
            let length = rest.find(ends).unwrap_or(rest.len());
            match &rest[..length] {
                "in" => (Token::In, length),
                "notin" => (Token::NotIn, length),
                _ => (Token::Identifier, length),
            }
        };
        tokens.push((token, rest[..length].to_owned()));
        rest = rest[length..].trim_start_matches([' ', '\t', '\r', '\n']);
    }
    tokens.push((Token::End, String::new()));
    tokens
}

struct Parser {
    tokens: Vec<(Token, String)>,
    position: usize,
}

impl Parser {
    /// The next token; `in` and `notin` are identifiers here.
    fn peek(&self) -> (Token, &str) {
        let (token, literal) = &self.tokens[self.position.min(self.tokens.len() - 1)];
        let token = match token {
            Token::In | Token::NotIn => Token::Identifier,
            other => *other,
        };
        (token, literal)
    }

    fn next(&mut self) -> (Token, String) {
        let (token, literal) = self.peek();
        let taken = (token, literal.to_owned());
        self.position += 1;
        taken
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
        Selector::new(requirements)
    }

    fn requirement(&mut self) -> Result<Requirement, ParseError> {
        let absent = self.peek().0 == Token::Not;
        if absent {
            self.position += 1;
        }
        let (token, key) = self.next();
        if token != Token::Identifier {
            return error(format!("found '{key}', expected: identifier"));
        }
        validate_key(&key)?;
        if absent {
            return Requirement::new(&key, Operator::DoesNotExist, vec![]);
        }
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Requirement::new(&key, Operator::Exists, vec![]);
        }
        let operator = self.operator()?;
        match operator {
            (Operator::In | Operator::NotIn, Token::In | Token::NotIn) => {
                Ok(Requirement::new(&key, operator.0, self.values()?)?.listed())
            }
            _ => Requirement::new(&key, operator.0, vec![self.exact_value()?]),
        }
    }

    fn operator(&mut self) -> Result<(Operator, Token), ParseError> {
        // Not by `peek`, as `in` and `notin` are operators here.
        let (token, literal) = self.tokens[self.position.min(self.tokens.len() - 1)].clone();
        self.position += 1;
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
                self.position += 1;
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
                    values.insert(literal);
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
                        values.insert(String::new());
                    }
                    if ahead == Token::Close {
                        break;
                    }
                }
                _ => return error(format!("found '{literal}', expected: ',', or identifier")),
            }
        }
        self.position += 1;
        Ok(values.into_iter().collect())
    }

    fn exact_value(&mut self) -> Result<String, ParseError> {
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Ok(String::new());
        }
        match self.next() {
            (Token::Identifier, literal) => Ok(literal),
            (_, literal) => error(format!("found '{literal}', expected: identifier")),
        }
    }
}
