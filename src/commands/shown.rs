//! What a command prints: text for a person, or data for a program.

use super::convert::yaml;
use super::story::clean;
use crate::config::OutputFormat;
use serde_json::{Value, json};

/// What is printed of one object.
#[derive(Debug)]
pub enum Shown {
    /// Text.
    Text(String),
    /// Data, for JSON or YAML.
    Data(Value),
}

/// Data in a format, which is JSON unless it is YAML, without what controls a terminal.
pub fn printed(value: &Value, format: OutputFormat) -> String {
    let mut value = value.clone();
    clean(&mut value);
    match format {
        OutputFormat::Yaml => yaml(&value),
        OutputFormat::Json | OutputFormat::Text => format!("{value:#}\n"),
    }
}

/// Several objects: texts one below the other, and data as a list, as kubectl has it. The only object of a name is none.
pub fn joined(all: Vec<Shown>, is_list: bool, format: OutputFormat) -> String {
    let (mut text, mut items) = (String::new(), Vec::new());
    for one in all {
        match one {
            Shown::Text(one) => {
                if !text.is_empty() && one.lines().nth(1).is_some() {
                    text.push('\n');
                }
                text += &one;
            }
            Shown::Data(one) => items.push(one),
        }
    }
    match (format, &mut *items) {
        (OutputFormat::Text, _) => text,
        (_, [one]) if !is_list => printed(one, format),
        _ => printed(&json!({"apiVersion": "v1", "kind": "List", "items": items}), format),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_object_is_printed_as_itself_and_several_as_a_list() {
        let shown = |all: &[i32], is_list, format| {
            let all = all.iter().map(|one| Shown::Data(json!({"one": one}))).collect();
            joined(all, is_list, format)
        };
        assert_eq!(shown(&[1], false, OutputFormat::Yaml), "one: 1\n");
        assert!(shown(&[1], true, OutputFormat::Json).contains("\"kind\": \"List\""));
        assert!(shown(&[1, 2], false, OutputFormat::Yaml).contains("items:\n"));
        let texts = |texts: [&str; 2]| {
            let all = texts.map(|text| Shown::Text(text.to_owned())).into();
            joined(all, true, OutputFormat::Text)
        };
        assert_eq!(texts(["a\n", "b\n"]), "a\nb\n");
        assert_eq!(texts(["a\n1\n", "b\n2\n"]), "a\n1\n\nb\n2\n");
    }
}
