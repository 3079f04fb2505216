//! The values that a template works with.

use std::collections::BTreeMap;

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
    /// No value, such as a missing entry of a map.
    Nil,
}

impl Value {
    /// About how many bytes it takes.
    pub(super) fn size(&self) -> usize {
        const EACH: usize = 16;
        match self {
            Self::Text(text) => EACH + text.len(),
            Self::List(list) => EACH + list.iter().map(|text| EACH + text.len()).sum::<usize>(),
            Self::Map(map) => {
                EACH + map.iter().map(|(k, v)| EACH + k.len() + v.len()).sum::<usize>()
            }
            Self::Int(_) | Self::Float(_) | Self::Bool(_) | Self::Nil => EACH,
        }
    }

    /// Whether `if` takes the branch: anything but zero and empty.
    pub(super) fn truth(&self) -> bool {
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
