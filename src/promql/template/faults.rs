//! What a template asks for that is not there, in branches that an example does not take, too.

use super::ast::{Node, Operand, Pipeline};
use super::render::{field_of, field_of_whole};
use super::value::Value;
use std::collections::BTreeMap;

/// What the dot is in a part of a template.
#[derive(Clone, Copy)]
enum Dot<'a> {
    /// The fields.
    Whole,
    /// A value, or one that has as many fields.
    Like(&'a Value),
    /// Whatever a pipeline gives.
    Unknown,
}

/// An item of a list or a map: each is a text.
static ITEM: Value = Value::Text(String::new());

/// The first field that none of the dots has, wherever it stands, and what is wrong with it.
pub(super) fn first(nodes: &[Node], fields: &BTreeMap<&'static str, Value>) -> Option<String> {
    Walk { fields }.nodes(nodes, Dot::Whole)
}

struct Walk<'a> {
    fields: &'a BTreeMap<&'static str, Value>,
}

impl Walk<'_> {
    fn nodes(&self, nodes: &[Node], dot: Dot<'_>) -> Option<String> {
        nodes.iter().find_map(|node| self.node(node, dot))
    }

    fn node(&self, node: &Node, dot: Dot<'_>) -> Option<String> {
        let (head, then, otherwise): (_, &[Node], &[Node]) = match node {
            Node::Text(_) | Node::Break | Node::Continue => return None,
            Node::Print(head) | Node::Assign(head) => (head, &[], &[]),
            Node::If { condition: head, then, otherwise }
            | Node::With { value: head, then, otherwise }
            | Node::Range { over: head, body: then, otherwise } => (head, then, otherwise),
        };
        let value = match &*head.commands {
            [command] => match &**command {
                [Operand::Fields(path)] => self.value(path, dot).ok().flatten(),
                _ => None,
            },
            _ => None,
        };
        let inner = match node {
            Node::Range { .. } => Dot::Like(&ITEM),
            Node::With { .. } => value.as_ref().map_or(Dot::Unknown, Dot::Like),
            _ => dot,
        };
        self.pipeline(head, dot)
            .or_else(|| self.nodes(then, inner))
            .or_else(|| self.nodes(otherwise, dot))
    }

    fn pipeline(&self, pipeline: &Pipeline, dot: Dot<'_>) -> Option<String> {
        pipeline.commands.iter().flatten().find_map(|operand| match operand {
            Operand::Fields(path) => self.value(path, dot).err(),
            Operand::Variable(name, path) if name.is_empty() => self.value(path, Dot::Whole).err(),
            Operand::Group(inner, _) => self.pipeline(inner, dot),
            Operand::Variable(..) | Operand::Value(_) | Operand::Function(_) => None,
        })
    }

    /// The value of a field of the dot, if the dot is known.
    fn value(&self, path: &[String], dot: Dot<'_>) -> Result<Option<Value>, String> {
        match dot {
            Dot::Whole => field_of_whole(self.fields, path).map(Some),
            Dot::Like(value) => field_of(value, path).map(Some).map_err(|_| {
                let known = self.fields.keys().next().copied().unwrap_or_default();
                format!(
                    ".{}: in range or with, the dot is the item or value, which has no such field; $ has those outside, as in $.{known}",
                    path.join(".")
                )
            }),
            Dot::Unknown => Ok(None),
        }
    }
}
