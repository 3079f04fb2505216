//! The naming scheme of published metrics:
//! `{metricName}_{labelsHash}_{namespace}_{autoscalerName}`.

use crate::k8s::LabelSet;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// The hex digits of the hash in a name.
const HASH_DIGITS: usize = 12;

/// The first 12 hex digits of SHA-256 over the labels as [`labels_json`].
pub fn labels_hash(labels: Option<&LabelSet>) -> String {
    let digest = Sha256::digest(labels_json(labels));
    let mut hash = String::with_capacity(HASH_DIGITS);
    for byte in &digest[..HASH_DIGITS / 2] {
        let _ = write!(hash, "{byte:02x}");
    }
    hash
}

/// The labels as Go's `encoding/json` writes a `map[string]string`: compact, keys
/// sorted bytewise, and `<`, `>`, `&`, U+2028, U+2029 escaped; `null` for no map.
pub fn labels_json(labels: Option<&LabelSet>) -> String {
    let Some(labels) = labels else {
        return "null".to_owned();
    };
    let mut json = String::from("{");
    for (i, (key, value)) in labels.iter().enumerate() {
        if i > 0 {
            json.push(',');
        }
        push_go_string(&mut json, key);
        json.push(':');
        push_go_string(&mut json, value);
    }
    json.push('}');
    json
}

fn push_go_string(json: &mut String, text: &str) {
    json.push('"');
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            '\u{8}' => json.push_str("\\b"),
            '\u{c}' => json.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                let _ = write!(json, "\\u{:04x}", u32::from(c));
            }
            _ => json.push(c),
        }
    }
    json.push('"');
}

/// The name under which a metric of an autoscaler is published.
pub fn generated_name(
    metric: &str,
    labels: Option<&LabelSet>,
    namespace: &str,
    autoscaler: &str,
) -> String {
    format!("{metric}_{}_{namespace}_{autoscaler}", labels_hash(labels))
}

/// The metric of a published name, of whatever namespace and autoscaler it is, known or not; any other name is its own.
pub fn metric_of(name: &str) -> &str {
    let mut parts = name.rsplitn(4, '_').skip(2);
    match (parts.next().is_some_and(is_hash), parts.next()) {
        (true, Some(metric)) if !metric.is_empty() => metric,
        _ => name,
    }
}

fn is_hash(text: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == HASH_DIGITS && text.bytes().all(is_hex)
}

/// A parsed published name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneratedName<'a> {
    /// The metric in Prometheus.
    pub metric: &'a str,
    /// The hash of its labels.
    pub hash: &'a str,
    /// The autoscaler's namespace.
    pub namespace: &'a str,
    /// The autoscaler's name.
    pub autoscaler: &'a str,
}

impl<'a> GeneratedName<'a> {
    /// Parses a name; none if it is not of the scheme. Unambiguous, as
    /// neither namespaces nor object names have underscores.
    pub fn parse(name: &'a str) -> Option<Self> {
        let mut parts = name.rsplitn(4, '_');
        let autoscaler = parts.next()?;
        let namespace = parts.next()?;
        let hash = parts.next()?;
        let metric = parts.next()?;
        let whole = !metric.is_empty() && !namespace.is_empty() && !autoscaler.is_empty();
        (whole && is_hash(hash)).then_some(Self { metric, hash, namespace, autoscaler })
    }

    /// Whether the hash matches these labels. The API server drops empty
    /// maps, so that no map and an empty one are equal here.
    pub fn is_of(&self, labels: Option<&LabelSet>) -> bool {
        match labels.filter(|labels| !labels.is_empty()) {
            Some(labels) => self.hash == labels_hash(Some(labels)),
            None => {
                self.hash == labels_hash(None) || self.hash == labels_hash(Some(&LabelSet::new()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct Vector {
        metric: String,
        labels: Option<LabelSet>,
        json: String,
        hash: String,
        namespace: String,
        hpa: String,
        name: String,
    }

    #[test]
    fn every_published_vector_is_composed_and_parsed() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/generated-names.jsonl");
        let vectors = std::fs::read_to_string(path).unwrap();
        let mut count = 0;
        for line in vectors.lines() {
            let vector: Vector = serde_json::from_str(line).unwrap();
            let labels = vector.labels.as_ref();
            assert_eq!(labels_json(labels), vector.json);
            assert_eq!(labels_hash(labels), vector.hash, "{}", vector.json);
            let name = generated_name(&vector.metric, labels, &vector.namespace, &vector.hpa);
            assert_eq!(name, vector.name);
            let parsed = GeneratedName::parse(&name).unwrap();
            assert_eq!(parsed.metric, vector.metric);
            assert_eq!(parsed.namespace, vector.namespace);
            assert_eq!(parsed.autoscaler, vector.hpa);
            assert!(parsed.is_of(labels));
            count += 1;
        }
        assert_eq!(count, 228);
    }

    #[test]
    fn a_name_that_is_not_of_the_scheme_is_not_parsed() {
        for name in [
            "http_requests_total",
            "m_820193bd2d6_default_web",
            "m_820193BD2D60_default_web",
            "_820193bd2d60_default_web",
            "820193bd2d60_default_web",
            "m_820193bd2d60__web",
            "",
        ] {
            assert_eq!(GeneratedName::parse(name), None, "{name}");
        }
    }
}
