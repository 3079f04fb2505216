//! Renders a parsed template.

use super::ast::{Node, Operand, Pipeline};
use super::functions::call;
use super::value::Value;
use std::cell::Cell;
use std::collections::BTreeMap;

/// Renders nodes for these fields of the dot.
pub(super) fn render(
    nodes: &[Node],
    fields: &BTreeMap<&'static str, Value>,
    limit: usize,
) -> Result<String, String> {
    let mut scope = Scope {
        fields,
        dots: Vec::new(),
        variables: Vec::new(),
        output: String::new(),
        limit,
        spent: Cell::new(0),
    };
    match scope.run(nodes)? {
        LoopControl::Next => Ok(scope.output),
        LoopControl::Break | LoopControl::Continue => {
            Err("break or continue outside of range".to_owned())
        }
    }
}

/// How the execution of a block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoopControl {
    Next,
    Break,
    Continue,
}

struct Scope<'a> {
    fields: &'a BTreeMap<&'static str, Value>,
    /// The values of the dot in the enclosing `range` and `with`.
    dots: Vec<Value>,
    variables: Vec<(String, Value)>,
    output: String,
    limit: usize,
    /// The bytes that were written and worked with.
    spent: Cell<usize>,
}

impl Scope<'_> {
    /// Spends bytes of the limit.
    fn spend(&self, bytes: usize) -> Result<(), String> {
        self.spent.set(self.spent.get().saturating_add(bytes));
        match self.spent.get() > self.limit {
            true => Err(format!("the template works with more than {} bytes", self.limit)),
            false => Ok(()),
        }
    }

    fn run(&mut self, nodes: &[Node]) -> Result<LoopControl, String> {
        let outer = self.variables.len();
        let mut control = LoopControl::Next;
        for node in nodes {
            control = self.step(node)?;
            if control != LoopControl::Next {
                break;
            }
        }
        self.variables.truncate(outer);
        Ok(control)
    }

    fn step(&mut self, node: &Node) -> Result<LoopControl, String> {
        let mut control = LoopControl::Next;
        // A loop with nothing in it takes time, too.
        self.spend(16)?;
        match node {
            Node::Break => control = LoopControl::Break,
            Node::Continue => control = LoopControl::Continue,
            Node::Text(text) => {
                self.spend(text.len())?;
                self.output.push_str(text);
            }
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
                control = self.run(if value.truth() { then } else { otherwise })?;
                self.variables.truncate(outer);
            }
            Node::With { value, then, otherwise } => {
                let outer = self.variables.len();
                let value = self.declare(value)?;
                if value.truth() {
                    self.dots.push(value);
                    control = self.run(then)?;
                    self.dots.pop();
                } else {
                    control = self.run(otherwise)?;
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
                    if inner == LoopControl::Break {
                        break;
                    }
                }
            }
        }
        Ok(control)
    }

    /// Declares a variable (`:=`), or assigns to a declared one (`=`).
    fn set(&mut self, name: &str, value: Value, declares: bool) -> Result<(), String> {
        if declares {
            self.variables.push((name.to_owned(), value));
            return Ok(());
        }
        let at = self.find(name)?;
        self.variables[at].1 = value;
        Ok(())
    }

    /// Where a variable is. The search counts: it is the work of a loop with many variables.
    fn find(&self, name: &str) -> Result<usize, String> {
        let found = self.variables.iter().rposition(|(known, _)| known == name);
        self.spend(self.variables.len() - found.unwrap_or(0))?;
        found.ok_or_else(|| format!("undefined variable ${name}"))
    }

    /// The value of a condition, assigned to the variable that it names.
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
                    if let [Value::Text(separator), Value::List(list)] = &arguments[..] {
                        self.spend(separator.len().saturating_mul(list.len()))?;
                    }
                    let value = call(name, &arguments)
                        .map_err(|error| format!("error calling {name}: {error}"))?;
                    self.spend(value.size())?;
                    value
                }
                operand => self.operand(operand)?,
            });
        }
        Ok(last.unwrap_or(Value::Nil))
    }

    /// The value of `and` and `or`: the first argument that decides, else the last. The arguments after it
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
        let value = self.evaluate(operand)?;
        self.spend(value.size())?;
        Ok(value)
    }

    fn evaluate(&self, operand: &Operand) -> Result<Value, String> {
        match operand {
            Operand::Value(value) => Ok(value.clone()),
            Operand::Fields(fields) => match self.dots.last() {
                Some(dot) => field_of(dot, fields),
                None => field_of_whole(self.fields, fields),
            },
            Operand::Variable(name, fields) if name.is_empty() => {
                field_of_whole(self.fields, fields)
            }
            Operand::Variable(name, fields) => {
                field_of(&self.variables[self.find(name)?].1, fields)
            }
            Operand::Function(name) => {
                call(name, &[]).map_err(|e| format!("error calling {name}: {e}"))
            }
            Operand::Group(pipeline, fields) => field_of(&self.value(pipeline)?, fields),
        }
    }
}

/// The value of a field of the dot, outside of `range` and `with`.
pub(super) fn field_of_whole(
    all: &BTreeMap<&'static str, Value>,
    path: &[String],
) -> Result<Value, String> {
    let [first, rest @ ..] = path else {
        return Err("the dot is no value that can be used".to_owned());
    };
    let value = all.get(first.as_str()).ok_or_else(|| {
        let known: Vec<_> = all.keys().map(|field| format!(".{field}")).collect();
        format!(".{first} is not known; {} are", known.join(", "))
    })?;
    field_of(value, rest)
}

pub(super) fn field_of(value: &Value, fields: &[String]) -> Result<Value, String> {
    let [field, rest @ ..] = fields else { return Ok(value.clone()) };
    match value {
        Value::Map(map) => field_of(&map.get(field).cloned().map_or(Value::Nil, Value::Text), rest),
        other => Err(format!("can't evaluate field {field} in {other}")),
    }
}
