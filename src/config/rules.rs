//! The rules of prometheus-adapter's configuration for `metrics.k8s.io` (`resourceRules`), as its version 0.12 reads
//! them, and the servers that rules name.

use crate::prometheus::{self, Client, Names, Pem, Token};
use crate::rules::{
    ADMINISTRATOR, FieldError, OptionalText, RawResources, ResourceRules, RuleSet, UsageRule, at,
    compile_labels, template, text,
};
use serde::Deserialize;
use serde_saphyr::Spanned;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// An extension: another Prometheus-compatible server.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RawBackend {
    url: Spanned<String>,
    #[serde(default)]
    ca_file: Option<PathBuf>,
    #[serde(default)]
    client_cert_file: Option<PathBuf>,
    #[serde(default)]
    client_key_file: Option<PathBuf>,
    #[serde(default)]
    token_file: Option<PathBuf>,
    #[serde(default)]
    headers: Vec<String>,
    #[serde(default)]
    timeout: OptionalText,
}

/// Creates the clients of the backends.
pub fn compile_backends(
    raw: BTreeMap<String, RawBackend>,
) -> Result<BTreeMap<String, Client>, FieldError> {
    raw.into_iter()
        .map(|(name, raw)| {
            let client = compile_backend(&format!("backends.{name}"), &raw)?;
            Ok((name, client))
        })
        .collect()
}

fn compile_backend(path: &str, raw: &RawBackend) -> Result<Client, FieldError> {
    // The text begins with the field.
    let wrong = |error: prometheus::Error| {
        let error = error.to_string();
        match error.split_once(": ") {
            Some((field, error)) => FieldError::of(&raw.url, format!("{path}.{field}"), error),
            None => FieldError::of(&raw.url, path.to_owned(), error),
        }
    };
    let pem = |field: &str, file: &PathBuf| Pem::read(field, file).map_err(wrong);
    let identity = match (&raw.client_cert_file, &raw.client_key_file) {
        (Some(certificate), Some(key)) => {
            Some(pem("clientCertFile", certificate)?.and(pem("clientKeyFile", key)?))
        }
        _ => None,
    };
    let timeout = match text(&raw.timeout) {
        "" => DEFAULT_BACKEND_TIMEOUT,
        timeout => prometheus_duration(timeout).ok_or_else(|| {
            let error = "a duration was expected, such as 10s";
            at(&raw.timeout, format!("{path}.timeout"), error)
        })?,
    };
    Client::new(prometheus::Options {
        url: raw.url.value.clone(),
        timeout,
        roots: raw.ca_file.as_ref().map(|file| pem("caFile", file)).transpose()?,
        identity,
        token: raw.token_file.clone().map(Token::File),
        headers: raw.headers.clone(),
        get: false,
        max_response_bytes: MAX_BACKEND_RESPONSE_BYTES,
        names: &Names::BACKEND,
    })
    .map_err(wrong)
}

/// The default timeout of a request to a backend.
const DEFAULT_BACKEND_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest response of a backend, in bytes.
const MAX_BACKEND_RESPONSE_BYTES: usize = 64 << 20;

/// Checks that the backend of each rule exists.
pub fn check_backends(rules: &RuleSet) -> Result<(), FieldError> {
    let named = rules.with_paths().map(|(path, rule)| (path, rule.series.backend.as_ref()));
    let usage = rules.resource.as_ref().and_then(|rules| rules.backend.as_ref());
    for (path, name) in named.chain([("resourceRules".to_owned(), usage)]) {
        if let Some(name) = name.filter(|name| !rules.backends.contains_key(*name)) {
            let error = format!("{name:?} is not among the backends");
            return Err(at(&None, format!("{path}.backend"), error));
        }
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawResourceRules {
    #[serde(default)]
    cpu: Option<RawUsageRule>,
    #[serde(default)]
    memory: Option<RawUsageRule>,
    #[serde(default)]
    window: OptionalText,
    #[serde(default)]
    backend: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct RawUsageRule {
    container_query: OptionalText,
    node_query: OptionalText,
    resources: Option<RawResources>,
    container_label: OptionalText,
}

/// Compiles the rules of `metrics.k8s.io`.
pub fn compile_resource_rules(raw: RawResourceRules) -> Result<ResourceRules, FieldError> {
    let window = prometheus_duration(text(&raw.window)).ok_or_else(|| {
        let error = format!(
            "{:?} is no duration of Prometheus, such as 30s or 5m: a duration was expected",
            text(&raw.window)
        );
        at(&raw.window, "resourceRules.window".to_owned(), error)
    })?;
    Ok(ResourceRules {
        cpu: compile_usage("resourceRules.cpu", raw.cpu.unwrap_or_default())?,
        memory: compile_usage("resourceRules.memory", raw.memory.unwrap_or_default())?,
        window,
        backend: raw.backend,
    })
}

fn compile_usage(path: &str, raw: RawUsageRule) -> Result<UsageRule, FieldError> {
    let field = |name: &str| format!("{path}.{name}");
    Ok(UsageRule {
        container_query: template(&raw.container_query, field("containerQuery"))?,
        node_query: template(&raw.node_query, field("nodeQuery"))?,
        labels: compile_labels(
            &field("resources"),
            raw.resources.unwrap_or_default(),
            &ADMINISTRATOR,
        )?,
        container_label: text(&raw.container_label).to_owned(),
    })
}

/// A duration as Prometheus writes it: `1d12h`, `5m`, `1500ms`, `0`.
pub(super) fn prometheus_duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, u64); 7] = [
        ("ms", 1),
        ("y", 365 * 86_400_000),
        ("w", 7 * 86_400_000),
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1000),
    ];
    if text.is_empty() || text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut millis) = (text, 0_u64);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        let (unit, scale) = UNITS.iter().find(|(unit, _)| rest[digits..].starts_with(unit))?;
        millis = millis.checked_add(number.checked_mul(*scale)?)?;
        rest = &rest[digits + unit.len()..];
    }
    Some(Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_prometheus_reads_them() {
        for (text, millis) in
            [("5m", 300_000), ("1d12h", 129_600_000), ("1500ms", 1500), ("0", 0), ("", 0)]
        {
            assert_eq!(prometheus_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["5", "m", "5x", "-1s", "1.5s"] {
            assert_eq!(prometheus_duration(text), None, "{text}");
        }
    }
}
