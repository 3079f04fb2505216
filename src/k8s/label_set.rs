//! Sets of labels.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A set of labels: of a metric, a pod or a node. Most have few labels, and a cluster has many sets: a map would
/// take five times the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(from = "BTreeMap<String, String>")]
pub struct LabelSet(
    /// Names and values, sorted by name.
    Box<[(Box<str>, Box<str>)]>,
);

impl LabelSet {
    /// No labels.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of a label, if it is there.
    pub fn get(&self, name: &str) -> Option<&str> {
        let place = self.0.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        Some(&self.0[place].1)
    }

    /// Names and values, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// The same as a map.
    pub fn to_map(&self) -> BTreeMap<String, String> {
        self.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

impl From<BTreeMap<String, String>> for LabelSet {
    fn from(labels: BTreeMap<String, String>) -> Self {
        Self(labels.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl FromIterator<(String, String)> for LabelSet {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(labels: T) -> Self {
        BTreeMap::from_iter(labels).into()
    }
}

impl<const N: usize> From<[(String, String); N]> for LabelSet {
    fn from(labels: [(String, String); N]) -> Self {
        Self::from_iter(labels)
    }
}

impl Serialize for LabelSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl JsonSchema for LabelSet {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "LabelSet".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<String, String>::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_that_of_its_map() {
        let text = r#"{"app":"web","tier":"x"}"#;
        let labels: LabelSet = serde_json::from_str(r#"{"tier":"x","app":"web"}"#).unwrap();
        assert_eq!(serde_json::to_string(&labels).unwrap(), text);
        assert_eq!((labels.get("tier"), labels.get("a")), (Some("x"), None));
        assert_eq!(LabelSet::from(labels.to_map()), labels);
        assert!(LabelSet::new().is_empty() && !labels.is_empty());
    }
}
