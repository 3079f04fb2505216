//! Parses the inside of an action: a pipeline.

use super::ast::{Operand, Pipeline, Position};
use super::functions::FUNCTIONS;
use super::split::{Parsed, is_space};
use super::value::Value;

/// The most blocks, and the most parentheses, in each other: templates are parsed, rendered and dropped on any
/// stack.
pub(super) const MAX_DEPTH: usize = 50;

/// Parses the inside of an action.
pub(super) struct PipelineParser<'a> {
    text: &'a str,
    /// The position of the text in the template.
    base: Position,
    at: Position,
    /// The parentheses that are open.
    depth: usize,
}

impl<'a> PipelineParser<'a> {
    pub(super) fn new(text: &'a str, base: Position) -> Self {
        Self { text, base, at: 0, depth: 0 }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start_matches(is_space).len();
    }

    fn take(&mut self, token: &str) -> bool {
        let there = self.rest().starts_with(token);
        if there {
            self.at += token.len();
        }
        there
    }

    fn fail<T>(&self, message: impl Into<String>) -> Parsed<T> {
        Err((self.base + self.at, message.into()))
    }

    /// A pipeline up to the end, or up to a closing parenthesis.
    pub(super) fn pipeline(&mut self, close: Option<char>) -> Parsed<Pipeline> {
        let (variables, declares) = self.variables()?;
        let mut commands = Vec::new();
        loop {
            let mut command: Vec<Operand> = Vec::new();
            loop {
                self.skip_space();
                match self.rest().chars().next() {
                    None | Some('|') => break,
                    Some(')') if close.is_some() => break,
                    Some(_) => command.push(self.operand()?),
                }
            }
            if command.is_empty() {
                return self.fail("a value was expected");
            }
            let callable = matches!(command[0], Operand::Function(_));
            if !callable && command.len() > 1 {
                return self.fail("this is no function and takes no arguments");
            }
            if !callable && !commands.is_empty() {
                return self.fail("only a function can stand after |");
            }
            commands.push(command);
            if !self.take("|") {
                return Ok(Pipeline { variables, declares, commands });
            }
        }
    }

    fn variables(&mut self) -> Parsed<(Vec<String>, bool)> {
        let begin = self.at;
        let mut variables = Vec::new();
        loop {
            self.skip_space();
            if !self.rest().starts_with('$') {
                break;
            }
            self.at += 1;
            variables.push(self.word().to_owned());
            self.skip_space();
            if self.take(":=") {
                return Ok((variables, true));
            }
            if self.rest().starts_with('=') && !self.rest().starts_with("==") {
                self.at += 1;
                return Ok((variables, false));
            }
            if !self.take(",") {
                break;
            }
        }
        self.at = begin;
        Ok((Vec::new(), false))
    }

    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn fields(&mut self) -> Parsed<Vec<String>> {
        let mut fields = Vec::new();
        while self.take(".") {
            match self.word() {
                "" => return self.fail("the name of a field was expected"),
                field => fields.push(field.to_owned()),
            }
        }
        Ok(fields)
    }

    fn operand(&mut self) -> Parsed<Operand> {
        let rest = self.rest();
        let first = rest.chars().next().unwrap_or_default();
        match first {
            '.' => {
                if rest[1..].starts_with(|c: char| c.is_alphabetic() || c == '_') {
                    return Ok(Operand::Fields(self.fields()?));
                }
                self.at += 1;
                Ok(Operand::Fields(Vec::new()))
            }
            '$' => {
                self.at += 1;
                let name = self.word().to_owned();
                Ok(Operand::Variable(name, self.fields()?))
            }
            '(' => {
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return self
                        .fail(format!("more than {MAX_DEPTH} parentheses are in each other"));
                }
                self.at += 1;
                let inner = self.pipeline(Some(')'))?;
                self.depth -= 1;
                if !self.take(")") {
                    return self.fail("a ) was expected");
                }
                Ok(Operand::Group(inner, self.fields()?))
            }
            '"' | '`' => self.literal(first),
            '0'..='9' | '-' | '+' => self.number(),
            c if c.is_alphabetic() || c == '_' => {
                let begin = self.at;
                let word = self.word();
                Ok(match word {
                    "true" => Operand::Value(Value::Bool(true)),
                    "false" => Operand::Value(Value::Bool(false)),
                    "nil" => Operand::Value(Value::Nil),
                    _ if FUNCTIONS.contains(&word) => Operand::Function(word.to_owned()),
                    _ => {
                        self.at = begin;
                        return self.fail(format!(
                            "function {word:?} is not known; {} are",
                            FUNCTIONS.join(", ")
                        ));
                    }
                })
            }
            c => self.fail(format!("{c:?} was not expected")),
        }
    }

    fn literal(&mut self, quote: char) -> Parsed<Operand> {
        let inside = &self.rest()[1..];
        let mut text = String::new();
        let mut chars = inside.char_indices();
        while let Some((at, c)) = chars.next() {
            if c == quote {
                self.at += at + 2;
                return Ok(Operand::Value(Value::Text(text)));
            }
            if c != '\\' || quote == '`' {
                text.push(c);
                continue;
            }
            match chars.next().map(|(_, c)| c) {
                Some('n') => text.push('\n'),
                Some('t') => text.push('\t'),
                Some('r') => text.push('\r'),
                Some(c @ ('"' | '\\' | '\'')) => text.push(c),
                _ => return self.fail("this escape is not known in a string"),
            }
        }
        self.fail("the string has no end")
    }

    fn number(&mut self) -> Parsed<Operand> {
        let rest = self.rest();
        let end = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+')))
            .unwrap_or(rest.len());
        let text = &rest[..end];
        let value = match (text.parse::<i64>(), text.parse::<f64>()) {
            (Ok(int), _) => Value::Int(int),
            (_, Ok(float)) => Value::Float(float),
            _ => return self.fail(format!("{text:?} is not a number")),
        };
        self.at += end;
        Ok(Operand::Value(value))
    }
}
