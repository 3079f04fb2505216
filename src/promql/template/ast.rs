//! The syntax tree of a template.

use super::value::Value;

/// A position in a template, in bytes from its start.
pub(super) type Position = usize;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Text(String),
    Print(Pipeline),
    Assign(Pipeline),
    If { condition: Pipeline, then: Vec<Node>, otherwise: Vec<Node> },
    With { value: Pipeline, then: Vec<Node>, otherwise: Vec<Node> },
    Range { over: Pipeline, body: Vec<Node>, otherwise: Vec<Node> },
    Break,
    Continue,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pipeline {
    /// The variables that get the value: `$v :=`, and for `range` `$i, $v :=`.
    pub(super) variables: Vec<String>,
    /// Whether it declares them (`:=`) rather than assigns (`=`).
    pub(super) declares: bool,
    pub(super) commands: Vec<Vec<Operand>>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand {
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
    pub(super) fn uses(&self, field: &str) -> bool {
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
    pub(super) fn uses(&self, field: &str) -> bool {
        self.commands.iter().flatten().any(|operand| match operand {
            Operand::Fields(fields) | Operand::Variable(_, fields) => {
                fields.first().is_some_and(|first| first == field)
            }
            Operand::Group(pipeline, _) => pipeline.uses(field),
            Operand::Value(_) | Operand::Function(_) => false,
        })
    }
}
