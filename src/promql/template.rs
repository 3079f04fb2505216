//! Go's template language (`text/template`), as far as the configurations of
//! prometheus-adapter use it, between `<<` and `>>`: fields, variables,
//! pipelines, `if`, `range`, `with`, and the functions of [`call`].

use std::collections::BTreeMap;
use std::fmt::Write;

/// A template, parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    body: Vec<Node>,
}

/// A value that a template works with.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A string.
    Text(String),
    /// Strings in their order.
    List(Vec<String>),
    /// Strings by name.
    Map(BTreeMap<String, String>),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// No value: what a map does not have.
    Nil,
}

/// What is wrong with a template, and where in it.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("template line {line}, column {column}: {message}")]
pub struct TemplateError {
    /// Counted from 1.
    pub line: usize,
    /// Counted from 1, in characters.
    pub column: usize,
    /// What is wrong and what would be right.
    pub message: String,
}

/// A place in a template: bytes from its start.
type At = usize;

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Text(String),
    Print(Pipeline),
    Assign(Pipeline),
    If { condition: Pipeline, then: Vec<Node>, otherwise: Vec<Node> },
    With { value: Pipeline, then: Vec<Node>, otherwise: Vec<Node> },
    Range { over: Pipeline, body: Vec<Node>, otherwise: Vec<Node> },
    Break,
    Continue,
}

/// How a block went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    On,
    Break,
    Continue,
}

#[derive(Clone, Debug, PartialEq)]
struct Pipeline {
    /// The variables that take the value: `$v :=`, and for `range` `$i, $v :=`.
    variables: Vec<String>,
    declares: bool,
    commands: Vec<Vec<Operand>>,
    at: At,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Value(Value),
    /// `.A.B`, from the dot.
    Fields(Vec<String>),
    /// `$v.A.B`.
    Variable(String, Vec<String>),
    Function(String),
    /// `(…).A`.
    Group(Pipeline, Vec<String>),
}

impl Node {
    fn uses(&self, field: &str) -> bool {
        let any = |nodes: &[Self]| nodes.iter().any(|node| node.uses(field));
        match self {
            Self::Text(_) | Self::Break | Self::Continue => false,
            Self::Print(pipeline) | Self::Assign(pipeline) => pipeline.uses(field),
            Self::If { condition: head, then, otherwise }
            | Self::With { value: head, then, otherwise }
            | Self::Range { over: head, body: then, otherwise } => {
                head.uses(field) || any(then) || any(otherwise)
            }
        }
    }
}

impl Pipeline {
    fn uses(&self, field: &str) -> bool {
        self.commands.iter().flatten().any(|operand| match operand {
            Operand::Fields(fields) | Operand::Variable(_, fields) => {
                fields.first().is_some_and(|first| first == field)
            }
            Operand::Group(pipeline, _) => pipeline.uses(field),
            Operand::Value(_) | Operand::Function(_) => false,
        })
    }
}

const FUNCTIONS: [&str; 16] = [
    "and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "index", "len", "print", "printf",
    "println", "slice", "join",
];

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// Where it is none, or uses what is not known here.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let fail = |(at, message): (At, String)| located(text, at, message);
        let pieces = split(text).map_err(fail)?;
        let mut parser = Parser { pieces: pieces.into_iter().peekable() };
        let (body, end) = parser.block().map_err(fail)?;
        match end {
            None => Ok(Self { body }),
            Some((word, at)) => Err(fail((at, format!("unexpected <<{word}>>")))),
        }
    }

    /// Whether it uses a field of the dot.
    pub fn uses(&self, field: &str) -> bool {
        self.body.iter().any(|node| node.uses(field))
    }

    /// Fills a template in for these fields of the dot.
    ///
    /// # Errors
    /// Where it asks for a field that is not there, or for what can't be done.
    pub fn render(&self, fields: &BTreeMap<&'static str, Value>) -> Result<String, String> {
        let mut scope =
            Scope { fields, dots: Vec::new(), variables: Vec::new(), output: String::new() };
        match scope.run(&self.body)? {
            Flow::On => Ok(scope.output),
            Flow::Break | Flow::Continue => Err("break or continue outside of range".to_owned()),
        }
    }
}

fn located(text: &str, at: At, message: String) -> TemplateError {
    let before = &text[..at.min(text.len())];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    TemplateError { line, column, message }
}

type Parsed<T> = Result<T, (At, String)>;

/// Text, or what stands between the delimiters.
enum Piece<'a> {
    Text(&'a str),
    Action(&'a str, At),
}

/// What Go's templates trim and skip: other spaces are text.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

fn split(text: &str) -> Parsed<Vec<Piece<'_>>> {
    let mut pieces = Vec::new();
    let (mut at, mut trim) = (0, false);
    loop {
        let rest = &text[at..];
        let open = rest.find("<<");
        let mut before = &rest[..open.unwrap_or(rest.len())];
        if trim {
            before = before.trim_start_matches(is_space);
        }
        let Some(open) = open else {
            pieces.push(Piece::Text(before));
            return Ok(pieces);
        };
        let start = at + open + 2;
        let inside = &text[start..];
        let close = end_of_action(inside)
            .ok_or_else(|| (at + open, "<< has no >> that ends it".to_owned()))?;
        let mut action = &inside[..close];
        let mut shift = 0;
        if action.strip_prefix('-').is_some_and(|rest| rest.starts_with(is_space)) {
            before = before.trim_end_matches(is_space);
            action = &action[2..];
            shift = 2;
        }
        trim = action.strip_suffix('-').is_some_and(|rest| rest.ends_with(is_space));
        if trim {
            action = &action[..action.len() - 2];
        }
        pieces.push(Piece::Text(before));
        let comment = action.trim_matches(is_space);
        if !(comment.starts_with("/*") && comment.ends_with("*/")) {
            pieces.push(Piece::Action(action, start + shift));
        }
        at = start + close + 2;
    }
}

/// Where an action ends: at `>>` outside of any literal.
fn end_of_action(text: &str) -> Option<usize> {
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match quote {
            Some(open) => {
                if escaped {
                    escaped = false;
                } else if c == '\\' && open == '"' {
                    escaped = true;
                } else if c == open {
                    quote = None;
                }
            }
            None if c == '"' || c == '`' => quote = Some(c),
            None if text[at..].starts_with(">>") => return Some(at),
            None => {}
        }
    }
    None
}

struct Parser<'a> {
    pieces: std::iter::Peekable<std::vec::IntoIter<Piece<'a>>>,
}

/// What ended a block: `end`, or `else` with what stands after it.
type BlockEnd<'a> = Option<(&'a str, At)>;

impl<'a> Parser<'a> {
    fn block(&mut self) -> Parsed<(Vec<Node>, BlockEnd<'a>)> {
        let mut nodes = Vec::new();
        while let Some(piece) = self.pieces.next() {
            let (action, at) = match piece {
                Piece::Text("") => continue,
                Piece::Text(text) => {
                    nodes.push(Node::Text(text.to_owned()));
                    continue;
                }
                Piece::Action(action, at) => {
                    let lead = action.len() - action.trim_start_matches(is_space).len();
                    (action.trim_matches(is_space), at + lead)
                }
            };
            let (word, rest) = action.split_once(is_space).unwrap_or((action, ""));
            let rest_at = at + action.len() - rest.len();
            match word {
                "end" | "else" => return Ok((nodes, Some((action, at)))),
                "if" | "with" | "range" => nodes.push(self.branch(word, rest, rest_at, at)?),
                "break" => nodes.push(Node::Break),
                "continue" => nodes.push(Node::Continue),
                "define" | "template" | "block" => {
                    return Err((at, format!("{word} is not supported")));
                }
                _ => {
                    let pipeline = Lexer::new(action, at).pipeline(None)?;
                    nodes.push(match pipeline.variables.is_empty() {
                        true => Node::Print(pipeline),
                        false => Node::Assign(pipeline),
                    });
                }
            }
        }
        Ok((nodes, None))
    }

    fn branch(&mut self, word: &str, rest: &str, rest_at: At, at: At) -> Parsed<Node> {
        let condition = Lexer::new(rest, rest_at).pipeline(None)?;
        let (then, end) = self.block()?;
        let otherwise = match end {
            Some(("end", _)) => Vec::new(),
            Some((action, else_at)) => {
                let chained = action["else".len()..].trim_start_matches(is_space);
                match chained.split_once(is_space) {
                    // `else if` is one branch more, ended by the same `end`.
                    Some((chain @ ("if" | "with"), rest)) => {
                        let rest_at = else_at + action.len() - rest.len();
                        vec![self.branch(chain, rest, rest_at, else_at)?]
                    }
                    _ if chained.is_empty() => match self.block()? {
                        (nodes, Some(("end", _))) => nodes,
                        _ => return Err((at, format!("<<{word}>> has no <<end>>"))),
                    },
                    _ => return Err((else_at, format!("<<{action}>> is not known"))),
                }
            }
            None => return Err((at, format!("<<{word}>> has no <<end>>"))),
        };
        Ok(match word {
            "if" => Node::If { condition, then, otherwise },
            "with" => Node::With { value: condition, then, otherwise },
            _ => Node::Range { over: condition, body: then, otherwise },
        })
    }
}

/// Reads the inside of an action.
struct Lexer<'a> {
    text: &'a str,
    base: At,
    at: At,
}

impl<'a> Lexer<'a> {
    fn new(text: &'a str, base: At) -> Self {
        Self { text, base, at: 0 }
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
    fn pipeline(&mut self, close: Option<char>) -> Parsed<Pipeline> {
        let at = self.base + self.at;
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
                return Ok(Pipeline { variables, declares, commands, at });
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
                self.at += 1;
                let inner = self.pipeline(Some(')'))?;
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
            _ => return self.fail(format!("{text:?} is no number")),
        };
        self.at += end;
        Ok(Operand::Value(value))
    }
}

struct Scope<'a> {
    fields: &'a BTreeMap<&'static str, Value>,
    /// What the dot is, where a `range` or `with` changed it.
    dots: Vec<Value>,
    variables: Vec<(String, Value)>,
    output: String,
}

impl Scope<'_> {
    fn run(&mut self, nodes: &[Node]) -> Result<Flow, String> {
        let outer = self.variables.len();
        let mut flow = Flow::On;
        for node in nodes {
            flow = self.step(node)?;
            if flow != Flow::On {
                break;
            }
        }
        self.variables.truncate(outer);
        Ok(flow)
    }

    fn step(&mut self, node: &Node) -> Result<Flow, String> {
        let mut flow = Flow::On;
        match node {
            Node::Break => flow = Flow::Break,
            Node::Continue => flow = Flow::Continue,
            Node::Text(text) => self.output.push_str(text),
            Node::Print(pipeline) => {
                let value = self.value(pipeline)?;
                self.output.push_str(&value.to_string());
            }
            Node::Assign(pipeline) => {
                let value = self.value(pipeline)?;
                let [name] = pipeline.variables.as_slice() else {
                    return Err("only range sets two variables".to_owned());
                };
                self.set(name, value, pipeline.declares)?;
            }
            Node::If { condition, then, otherwise } => {
                let outer = self.variables.len();
                let value = self.declare(condition)?;
                flow = self.run(if value.truth() { then } else { otherwise })?;
                self.variables.truncate(outer);
            }
            Node::With { value, then, otherwise } => {
                let outer = self.variables.len();
                let value = self.declare(value)?;
                if value.truth() {
                    self.dots.push(value);
                    flow = self.run(then)?;
                    self.dots.pop();
                } else {
                    flow = self.run(otherwise)?;
                }
                self.variables.truncate(outer);
            }
            Node::Range { over, body, otherwise } => {
                let items: Vec<(Value, Value)> = match self.value(over)? {
                    Value::List(list) => {
                        let number = |(at, text)| (Value::Int(at as i64), Value::Text(text));
                        list.into_iter().enumerate().map(number).collect()
                    }
                    Value::Map(map) => {
                        map.into_iter().map(|(k, v)| (Value::Text(k), Value::Text(v))).collect()
                    }
                    Value::Nil => Vec::new(),
                    other => return Err(format!("range can't iterate over {other}")),
                };
                if items.is_empty() {
                    return self.run(otherwise);
                }
                for (key, value) in items {
                    let outer = self.variables.len();
                    match over.variables.as_slice() {
                        [] => {}
                        [one] => self.set(one, value.clone(), over.declares)?,
                        [first, second, ..] => {
                            self.set(first, key, over.declares)?;
                            self.set(second, value.clone(), over.declares)?;
                        }
                    }
                    self.dots.push(value);
                    let inner = self.run(body)?;
                    self.dots.pop();
                    self.variables.truncate(outer);
                    if inner == Flow::Break {
                        break;
                    }
                }
            }
        }
        Ok(flow)
    }

    /// Declares a variable (`:=`), or gives one that there is another value (`=`).
    fn set(&mut self, name: &str, value: Value, declares: bool) -> Result<(), String> {
        if declares {
            self.variables.push((name.to_owned(), value));
            return Ok(());
        }
        let known = self.variables.iter_mut().rev().find(|(known, _)| known == name);
        known.ok_or_else(|| format!("undefined variable ${name}"))?.1 = value;
        Ok(())
    }

    /// The value of a condition, kept in the variable that it names.
    fn declare(&mut self, pipeline: &Pipeline) -> Result<Value, String> {
        let value = self.value(pipeline)?;
        if let Some(name) = pipeline.variables.first() {
            self.set(name, value.clone(), pipeline.declares)?;
        }
        Ok(value)
    }

    fn value(&self, pipeline: &Pipeline) -> Result<Value, String> {
        let mut last = None;
        for command in &pipeline.commands {
            last = Some(match &command[0] {
                Operand::Function(name) if name == "and" || name == "or" => {
                    self.first_that_decides(name, &command[1..], last.take())?
                }
                Operand::Function(name) => {
                    let mut arguments = command[1..]
                        .iter()
                        .map(|operand| self.operand(operand))
                        .collect::<Result<Vec<_>, _>>()?;
                    arguments.extend(last.take());
                    call(name, &arguments)
                        .map_err(|error| format!("error calling {name}: {error}"))?
                }
                operand => self.operand(operand)?,
            });
        }
        Ok(last.unwrap_or(Value::Nil))
    }

    /// `and` and `or`: the first argument that decides, else the last. Those after it
    /// are not evaluated, as in Go since 1.18.
    fn first_that_decides(
        &self,
        name: &str,
        operands: &[Operand],
        piped: Option<Value>,
    ) -> Result<Value, String> {
        let mut value = None;
        for operand in operands {
            let next = self.operand(operand)?;
            if next.truth() == (name == "or") {
                return Ok(next);
            }
            value = Some(next);
        }
        piped.or(value).ok_or_else(|| format!("error calling {name}: wrong number of arguments: 0"))
    }

    fn operand(&self, operand: &Operand) -> Result<Value, String> {
        match operand {
            Operand::Value(value) => Ok(value.clone()),
            Operand::Fields(fields) => match self.dots.last() {
                Some(dot) => field_of(dot.clone(), fields),
                None => self.root(fields),
            },
            Operand::Variable(name, fields) if name.is_empty() => self.root(fields),
            Operand::Variable(name, fields) => {
                let known = self.variables.iter().rev().find(|(known, _)| known == name);
                let (_, value) = known.ok_or_else(|| format!("undefined variable ${name}"))?;
                field_of(value.clone(), fields)
            }
            Operand::Function(name) => {
                call(name, &[]).map_err(|e| format!("error calling {name}: {e}"))
            }
            Operand::Group(pipeline, fields) => field_of(self.value(pipeline)?, fields),
        }
    }

    fn root(&self, fields: &[String]) -> Result<Value, String> {
        let [first, rest @ ..] = fields else {
            return Err("the dot is no value that can be used".to_owned());
        };
        let value = self.fields.get(first.as_str()).ok_or_else(|| {
            let known: Vec<_> = self.fields.keys().map(|field| format!(".{field}")).collect();
            format!(".{first} is not known; {} are", known.join(", "))
        })?;
        field_of(value.clone(), rest)
    }
}

fn field_of(value: Value, fields: &[String]) -> Result<Value, String> {
    fields.iter().try_fold(value, |value, field| match value {
        Value::Map(map) => Ok(map.get(field).cloned().map_or(Value::Nil, Value::Text)),
        other => Err(format!("can't evaluate field {field} in {other}")),
    })
}

impl Value {
    /// What `if` makes of it: anything but zero and empty.
    fn truth(&self) -> bool {
        match self {
            Self::Text(text) => !text.is_empty(),
            Self::List(list) => !list.is_empty(),
            Self::Map(map) => !map.is_empty(),
            Self::Int(int) => *int != 0,
            Self::Float(float) => *float != 0.0,
            Self::Bool(bool) => *bool,
            Self::Nil => false,
        }
    }
}

/// As Go's `%v` prints it.
impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::List(list) => write!(f, "[{}]", list.join(" ")),
            Self::Map(map) => {
                let pairs: Vec<_> = map.iter().map(|(k, v)| format!("{k}:{v}")).collect();
                write!(f, "map[{}]", pairs.join(" "))
            }
            Self::Int(int) => write!(f, "{int}"),
            Self::Float(float) => write!(f, "{float}"),
            Self::Bool(bool) => write!(f, "{bool}"),
            Self::Nil => f.write_str("<no value>"),
        }
    }
}

/// Calls a function. `join` is Sprig's, with the separator first.
fn call(name: &str, arguments: &[Value]) -> Result<Value, String> {
    let wrong = || Err(format!("wrong number of arguments: {}", arguments.len()));
    match (name, arguments) {
        ("not", [value]) => Ok(Value::Bool(!value.truth())),
        ("eq", [first, others @ ..]) if !others.is_empty() => {
            Ok(Value::Bool(others.iter().any(|other| other == first)))
        }
        ("ne", [a, b]) => Ok(Value::Bool(a != b)),
        ("lt", [a, b]) => compare(a, b).map(|order| Value::Bool(order.is_lt())),
        ("le", [a, b]) => compare(a, b).map(|order| Value::Bool(order.is_le())),
        ("gt", [a, b]) => compare(a, b).map(|order| Value::Bool(order.is_gt())),
        ("ge", [a, b]) => compare(a, b).map(|order| Value::Bool(order.is_ge())),
        ("len", [Value::Text(text)]) => Ok(Value::Int(text.len() as i64)),
        ("len", [Value::List(list)]) => Ok(Value::Int(list.len() as i64)),
        ("len", [Value::Map(map)]) => Ok(Value::Int(map.len() as i64)),
        ("len", [other]) => Err(format!("len of {other}")),
        ("index", [value]) => Ok(value.clone()),
        ("index", [Value::Map(map), Value::Text(key)]) => {
            Ok(Value::Text(map.get(key).cloned().unwrap_or_default()))
        }
        ("index", [Value::List(list), Value::Int(at)]) => {
            let item = usize::try_from(*at).ok().and_then(|at| list.get(at));
            item.cloned().map(Value::Text).ok_or_else(|| format!("index out of range: {at}"))
        }
        ("index", [value, ..]) => Err(format!("can't index {value} like this")),
        ("slice", [Value::List(list), bounds @ ..]) => {
            let (from, to) = range(bounds, list.len())?;
            Ok(Value::List(list[from..to].to_vec()))
        }
        ("slice", [Value::Text(text), bounds @ ..]) => {
            let (from, to) = range(bounds, text.len())?;
            let part = text.get(from..to).ok_or("the bounds cut a character in two")?;
            Ok(Value::Text(part.to_owned()))
        }
        ("join", [Value::Text(separator), Value::List(list)]) => {
            Ok(Value::Text(list.join(separator)))
        }
        ("print", values) => {
            let mut text = String::new();
            for (at, value) in values.iter().enumerate() {
                let texts = matches!(value, Value::Text(_))
                    || at > 0 && matches!(values[at - 1], Value::Text(_));
                if at > 0 && !texts {
                    text.push(' ');
                }
                let _ = write!(text, "{value}");
            }
            Ok(Value::Text(text))
        }
        ("println", values) => {
            let words: Vec<String> = values.iter().map(ToString::to_string).collect();
            Ok(Value::Text(words.join(" ") + "\n"))
        }
        ("printf", [Value::Text(format), values @ ..]) => printf(format, values).map(Value::Text),
        _ => wrong(),
    }
}

fn compare(a: &Value, b: &Value) -> Result<std::cmp::Ordering, String> {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Ok(a.cmp(b)),
        (Value::Text(a), Value::Text(b)) => Ok(a.cmp(b)),
        (Value::Float(a), Value::Float(b)) => Ok(a.total_cmp(b)),
        _ => Err("incompatible types for comparison".to_owned()),
    }
}

fn range(bounds: &[Value], len: usize) -> Result<(usize, usize), String> {
    let bound = |at: usize, default: usize| match bounds.get(at) {
        None => Ok(default),
        Some(Value::Int(int)) => usize::try_from(*int)
            .ok()
            .filter(|bound| *bound <= len)
            .ok_or_else(|| format!("index out of range: {int}")),
        Some(other) => Err(format!("can't index with {other}")),
    };
    let (from, to) = (bound(0, 0)?, bound(1, len)?);
    if from <= to { Ok((from, to)) } else { Err(format!("invalid slice index: {from} > {to}")) }
}

/// `%v`, `%s`, `%d`, `%q`, `%f`, `%t` and `%%`, with width, precision, `-` and `0`.
fn printf(format: &str, values: &[Value]) -> Result<String, String> {
    let mut text = String::new();
    let mut values = values.iter();
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        text.push_str(before);
        let verb_at = after
            .find(|c: char| c.is_alphabetic() || c == '%')
            .ok_or("a verb was expected after %")?;
        let (flags, verb) = (&after[..verb_at], &after[verb_at..=verb_at]);
        rest = &after[verb_at + 1..];
        if verb == "%" {
            text.push('%');
            continue;
        }
        let value = values.next().ok_or_else(|| format!("%{verb} has no value"))?;
        let left = flags.contains('-');
        let flags = flags.trim_start_matches(['-', '+', ' ']);
        let (width, precision) = flags.split_once('.').unwrap_or((flags, ""));
        let number = |text: &str| text.parse::<usize>().ok();
        let shown = match (verb, value) {
            ("v" | "s", value) => match number(precision) {
                Some(most) => value.to_string().chars().take(most).collect(),
                None => value.to_string(),
            },
            ("d", Value::Int(int)) => int.to_string(),
            ("t", Value::Bool(bool)) => bool.to_string(),
            ("q", Value::Text(text)) => quoted(text),
            ("f", Value::Float(float)) => format!("{float:.*}", number(precision).unwrap_or(6)),
            (verb, value) => return Err(format!("%{verb} can't print {value}")),
        };
        let padding = number(width).unwrap_or(0).saturating_sub(shown.chars().count());
        let fill = if width.starts_with('0') && !left { "0" } else { " " }.repeat(padding);
        if left {
            text.push_str(&shown);
            text.push_str(&fill);
        } else {
            text.push_str(&fill);
            text.push_str(&shown);
        }
    }
    text.push_str(rest);
    match values.next() {
        None => Ok(text),
        Some(extra) => Err(format!("the format has no verb for {extra}")),
    }
}

/// A string literal that both Go and PromQL read.
pub fn quoted(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('"');
    for c in text.chars() {
        match c {
            '"' => literal.push_str("\\\""),
            '\\' => literal.push_str("\\\\"),
            '\n' => literal.push_str("\\n"),
            c if c.is_control() => {
                let _ = write!(literal, "\\U{:08x}", u32::from(c));
            }
            c => literal.push(c),
        }
    }
    literal.push('"');
    literal
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> BTreeMap<&'static str, Value> {
        let names = BTreeMap::from([
            ("namespace".to_owned(), "shop".to_owned()),
            ("pod".to_owned(), "a|b".to_owned()),
        ]);
        BTreeMap::from([
            ("Series", Value::Text("hits_total".to_owned())),
            ("LabelMatchers", Value::Text(r#"namespace="shop",pod=~"a|b""#.to_owned())),
            ("LabelValuesByName", Value::Map(names)),
            ("GroupBy", Value::Text("pod,container".to_owned())),
            ("GroupBySlice", Value::List(vec!["pod".to_owned(), "container".to_owned()])),
        ])
    }

    #[test]
    fn templates_are_filled_in_as_go_does() {
        for (template, expected) in [
            ("sum(<<.Series>>) by (<<.GroupBy>>)", "sum(hits_total) by (pod,container)"),
            ("<< .Series >>-<<- /* gone */ ->> x", "hits_total-x"),
            ("a <<- .Series ->> b", "ahits_totalb"),
            ("a\n<<-\t.Series\n->>\n b", "ahits_totalb"),
            ("<<index .LabelValuesByName \"pod\">>/<<index .GroupBySlice 1>>", "a|b/container"),
            ("<<.LabelValuesByName.namespace>><<.LabelValuesByName.none>>", "shop<no value>"),
            ("<<index .LabelValuesByName \"none\">>", ""),
            (
                "<<range $k, $v := .LabelValuesByName>><<$k>>=<<$v>>;<<end>>",
                "namespace=shop;pod=a|b;",
            ),
            ("<<range .GroupBySlice>>[<<.>>]<<else>>none<<end>>", "[pod][container]"),
            ("<<range $i, $l := .GroupBySlice>><<if $i>>,<<end>><<$l>><<end>>", "pod,container"),
            ("<<if eq .Series \"a\">>1<<else if eq .Series \"hits_total\">>2<<else>>3<<end>>", "2"),
            ("<<with $x := .Series>><<$x>><<.>><<end>>", "hits_totalhits_total"),
            ("<<printf \"%s-%05d-%q\" .Series 42 \"a\\\"b\">>", "hits_total-00042-\"a\\\"b\""),
            ("<<.Series | printf \"%-12s|\">>", "hits_total  |"),
            ("<<if and .Series (not (eq .GroupBy \"x\"))>>y<<end>>", "y"),
            (
                "<<len .GroupBySlice>> <<.GroupBySlice>> <<.GroupBySlice | join \"+\">>",
                "2 [pod container] pod+container",
            ),
            (
                "<<$s := .Series>><<range .GroupBySlice>><<$s>>.<<.>> <<$.Series>> <<end>>",
                "hits_total.pod hits_total hits_total.container hits_total ",
            ),
            ("<<$n := 0>><<range .GroupBySlice>><<$n = 7>><<end>><<$n>>", "7"),
            ("<<range $i, $l := .GroupBySlice>><<if eq $i 1>><<break>><<end>><<$l>><<end>>", "pod"),
            (
                "<<range $i, $l := .GroupBySlice>><<if eq $i 0>><<continue>><<end>><<$l>><<end>>",
                "container",
            ),
            ("<<slice .Series 0 4>> <<`raw >> \"x\"`>>", "hits raw >> \"x\""),
            // As Go since 1.18: what decides is the last to be evaluated.
            ("<<if and (gt (len .GroupBySlice) 2) (index .GroupBySlice 2)>>a<<else>>b<<end>>", "b"),
            ("<<if or .Series (index .GroupBySlice 2)>>a<<else>>b<<end>>", "a"),
            ("<<or false (index .GroupBySlice 1) (index .GroupBySlice 2)>>", "container"),
            ("<<.Series | and true>><<.Series | or \"x\">>", "hits_totalx"),
            // Go trims space, tab, carriage return and newline, and no other space.
            ("a<<.Series ->>\u{a0}\u{2003} b", "ahits_total\u{a0}\u{2003} b"),
            ("a<<.Series ->> \t\r\n\u{b}b", "ahits_total\u{b}b"),
            (
                "<<$i := 9>><<$l := 9>><<range $i, $l = .GroupBySlice>><<end>><<$i>><<$l>>",
                "1container",
            ),
            ("<<$l := 9>><<range $l = .GroupBySlice>><<end>><<$l>>", "container"),
            ("<<$x := 1>><<if $x = 2>><<end>><<with $x = 3>><<end>><<$x>>", "3"),
        ] {
            let rendered = Template::parse(template).unwrap().render(&fields()).unwrap();
            assert_eq!(rendered, expected, "{template}");
        }
    }

    #[test]
    fn a_wrong_template_says_where_and_what() {
        for (template, line, column, message) in [
            ("sum(<<.Series", 1, 5, "has no >>"),
            ("a\n  <<if .Series>>x", 2, 5, "no <<end>>"),
            ("<<end>>", 1, 3, "unexpected <<end>>"),
            ("<<toUpper .Series>>", 1, 3, "function \"toUpper\" is not known; and, or"),
            ("<<.Series \"x\">>", 1, 14, "takes no arguments"),
            ("<<template \"x\">>", 1, 3, "not supported"),
            ("<<\"x>>", 1, 1, "has no >>"),
            ("<<>>", 1, 3, "a value was expected"),
        ] {
            let error = Template::parse(template).unwrap_err();
            assert_eq!((error.line, error.column), (line, column), "{template}: {error}");
            assert!(error.message.contains(message), "{template}: {error}");
        }
        for (template, message) in [
            ("<<.Nothing>>", ".Nothing is not known; .GroupBy"),
            ("<<.Series.X>>", "can't evaluate field X"),
            ("<<index .GroupBySlice 9>>", "out of range"),
            ("<<$x>>", "undefined variable $x"),
            ("<<range $i, $l = .GroupBySlice>><<end>>", "undefined variable $i"),
            ("<<and true (index .GroupBySlice 9)>>", "out of range"),
            ("<<range .Series>><<end>>", "can't iterate"),
        ] {
            let error = Template::parse(template).unwrap().render(&fields()).unwrap_err();
            assert!(error.contains(message), "{template}: {error}");
        }
    }
}
