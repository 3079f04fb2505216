//! Where the fields of a YAML text stand.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Budget, Options, Spanned};
use std::fmt;

/// Line and column, counted from 1.
pub type Place = (u64, u64);

/// The fields of a YAML document, and where they stand.
pub struct Places(Spanned<Node>);

enum Node {
    Fields(Vec<(String, Spanned<Node>)>),
    Items(Vec<Spanned<Node>>),
    Text(String),
    Other,
}

/// The limits of a YAML text of so many bytes, which bound what its aliases stand for.
pub fn options(size: usize) -> Options {
    let usual = Budget::default();
    serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_documents: usual.max_documents.max(size),
            max_events: usual.max_events.max(4 * size),
            max_nodes: usual.max_nodes.max(size),
            max_total_scalar_bytes: usual.max_total_scalar_bytes.max(size),
        },
    }
}

impl Places {
    /// Those of each document of a text; none if it is not YAML.
    pub fn of_documents(text: &str) -> Vec<Self> {
        let read = serde_saphyr::from_multiple_with_options(text, options(text.len()));
        read.unwrap_or_default().into_iter().map(Self).collect()
    }

    /// Those of each object of a text, which may have several documents and lists; none if it is not YAML.
    pub fn of_objects(text: &str) -> Vec<Self> {
        let mut objects = Vec::new();
        Self::of_documents(text).into_iter().for_each(|document| document.flatten(&mut objects));
        objects
    }

    fn flatten(self, objects: &mut Vec<Self>) {
        let Node::Fields(fields) = self.0.value else { return objects.push(self) };
        let is_list = fields.iter().any(|(name, field)| {
            name == "kind" && matches!(&field.value, Node::Text(kind) if kind.ends_with("List"))
        });
        let items = fields.iter().position(|(name, _)| is_list && name == "items");
        let Some(items) = items else {
            return objects.push(Self(Spanned { value: Node::Fields(fields), ..self.0 }));
        };
        if let Some((_, Spanned { value: Node::Items(items), .. })) = fields.into_iter().nth(items)
        {
            items.into_iter().for_each(|item| Self(item).flatten(objects));
        }
    }

    /// Where the document begins.
    pub fn start(&self) -> Place {
        place(&self.0)
    }

    /// The place of the field that a text begins with, such as `spec.metrics[0].type: missing`, or of the innermost one
    /// around it that is there; none if not even the outermost is.
    pub fn of(&self, text: &str) -> Option<Place> {
        let (mut node, mut rest, mut found) = (&self.0, text, None);
        while let Some((inner, after)) = step(&node.value, rest) {
            (node, rest, found) = (inner, after, Some(place(inner)));
        }
        found
    }

    /// The path of the value at a place that is not of the expected kind, such as `spec.metrics[0].type`, which is empty for
    /// the whole document; none if no such value begins there. A list begins where its first item does: it is the
    /// innermost value of another kind.
    pub fn path(&self, at: Place, expected: Option<Kind>) -> Option<String> {
        path(&self.0, at, expected)
    }
}

/// What a value may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A mapping.
    Fields,
    /// A sequence.
    List,
    /// A text.
    Text,
    /// A number, a boolean or null.
    Other,
}

impl Node {
    fn kind(&self) -> Kind {
        match self {
            Self::Fields(_) => Kind::Fields,
            Self::Items(_) => Kind::List,
            Self::Text(_) => Kind::Text,
            Self::Other => Kind::Other,
        }
    }
}

fn place(node: &Spanned<Node>) -> Place {
    (node.referenced.line(), node.referenced.column())
}

/// The value that a path begins with, and the rest of the path.
fn step<'a, 'b>(node: &'a Node, path: &'b str) -> Option<(&'a Spanned<Node>, &'b str)> {
    match node {
        Node::Fields(fields) => {
            let path = path.strip_prefix('.').unwrap_or(path);
            let named = fields.iter().filter_map(|(name, field)| {
                let rest = path.strip_prefix(&**name)?;
                let is_whole = rest.is_empty() || rest.starts_with(['.', '[', ':', ' ']);
                is_whole.then_some((field, rest))
            });
            // Names may have dots.
            named.min_by_key(|(_, rest)| rest.len())
        }
        Node::Items(items) => {
            let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
            Some((items.get(index.parse::<usize>().ok()?)?, rest))
        }
        Node::Text(_) | Node::Other => None,
    }
}

fn path(node: &Spanned<Node>, at: Place, expected: Option<Kind>) -> Option<String> {
    let inner = match &node.value {
        Node::Fields(fields) => fields.iter().find_map(|(name, field)| {
            Some(joined(name.escape_debug(), &path(field, at, expected)?))
        }),
        Node::Items(items) => items.iter().enumerate().find_map(|(index, item)| {
            Some(joined(format_args!("[{index}]"), &path(item, at, expected)?))
        }),
        Node::Text(_) | Node::Other => None,
    };
    let is_other = || place(node) == at && Some(node.value.kind()) != expected;
    inner.or_else(|| is_other().then(String::new))
}

/// The path of a value within a field or an item.
fn joined(of: impl fmt::Display, within: &str) -> String {
    let separator = if within.is_empty() || within.starts_with('[') { "" } else { "." };
    format!("{of}{separator}{within}")
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element()? {
            all.push(item);
        }
        Ok(Node::Items(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Node, A::Error> {
        let mut all = Vec::new();
        while let Some(field) = fields.next_entry()? {
            all.push(field);
        }
        Ok(Node::Fields(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Places {
        Places::of_documents(text).into_iter().next().expect("a document")
    }

    #[test]
    fn a_field_is_found_by_its_path_or_the_innermost_field_around_it() {
        let text = "rules:\n- seriesQuery: x\n  name: {as: y}\npassOn:\n  a.b:\n    url: z\n";
        let places = document(text);
        for (path, expected) in [
            ("rules[0].name.as: wrong", Some((3, 14))),
            ("rules[0].metricsQuery is missing", Some((2, 3))),
            ("rules[1]: none", Some((2, 3))),
            ("rules[0].seriesQueries", Some((2, 3))),
            ("passOn.a.b.url: wrong", Some((6, 10))),
            ("--prometheus-url: no connection", None),
            ("rulesOfThumb: none", None),
        ] {
            assert_eq!(places.of(path), expected, "{path}");
        }
        assert_eq!(places.start(), (1, 1));
        for (at, expected, path) in [
            ((3, 14), None, Some("rules[0].name.as")),
            // The list and its first item begin at one place.
            ((2, 3), None, Some("rules[0]")),
            ((2, 3), Some(Kind::List), Some("rules[0]")),
            ((2, 3), Some(Kind::Fields), Some("rules")),
            ((6, 10), Some(Kind::List), Some("passOn.a.b.url")),
            ((6, 10), Some(Kind::Text), None),
            ((9, 9), None, None),
        ] {
            assert_eq!(places.path(at, expected).as_deref(), path, "{at:?} {expected:?}");
        }
    }

    #[test]
    fn objects_are_those_of_documents_and_lists() {
        let text = "a: 1\n---\nkind: List\nitems:\n- b: 1\n- {kind: PodList, items: [{c: 1}]}\n---\nkind: Pod\nitems: []\n";
        let starts: Vec<Place> = Places::of_objects(text).iter().map(Places::start).collect();
        assert_eq!(starts, [(1, 1), (5, 3), (6, 27), (8, 1)]);
        assert!(Places::of_objects("a: [").is_empty());
    }
}
