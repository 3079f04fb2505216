//! Answers without what differs between two servers that behave alike.

use serde_json::Value;
use std::collections::HashMap;

/// The UIDs and versions that one server has shown: two servers that behave alike show theirs for the
/// first time in the same order.
#[derive(Default)]
pub struct Names(HashMap<String, usize>);

impl Names {
    fn of(&mut self, text: &str) -> String {
        let next = self.0.len();
        format!("#{}", self.0.entry(text.to_owned()).or_insert(next))
    }

    /// A body in which UIDs, versions, times and tokens are replaced.
    pub fn normalized(&mut self, mut body: Value) -> Value {
        let is_list = body["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
        if is_list {
            body["metadata"]["resourceVersion"] = "of the list".into();
        }
        self.visit(&mut body);
        body
    }

    fn visit(&mut self, value: &mut Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| self.visit(item)),
            Value::Object(fields) => {
                fields.retain(|field, value| field != "managedFields" && !value.is_null());
                for (field, value) in fields.iter_mut() {
                    match (field.as_str(), &*value) {
                        ("uid", Value::String(uid)) => *value = self.of(uid).into(),
                        ("resourceVersion", Value::String(version)) if version != "of the list" => {
                            *value = self.of(version).into();
                        }
                        ("creationTimestamp" | "deletionTimestamp", _) => *value = "a time".into(),
                        ("continue", Value::String(token)) => {
                            *value = (!token.is_empty()).into();
                        }
                        ("message", Value::String(message)) => {
                            *value = self.without_names(message).into();
                        }
                        _ => self.visit(value),
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// A message without UIDs and versions.
    fn without_names(&self, message: &str) -> String {
        let is_name = |c: char| c.is_ascii_hexdigit() || c == '-';
        let mut text = String::new();
        let mut rest = message;
        while !rest.is_empty() {
            let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            let (word, after) =
                rest.split_at(end.max(rest.chars().next().map_or(0, char::len_utf8)));
            let is_uid = word.len() == 36;
            let is_version = !word.is_empty() && word.chars().all(|c| c.is_ascii_digit());
            text.push_str(match (is_uid, is_version) {
                (true, _) => "a UID",
                (_, true) => "a number",
                _ => word,
            });
            rest = after;
        }
        text
    }
}
