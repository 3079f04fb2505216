//! The syntax of the keys and values of labels.

use super::selector_error::{ParseSelectorError, error};

const NAME_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

fn is_name(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    edge(text.chars().next())
        && edge(text.chars().last())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// Whether a text is a name as most objects have it.
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= 253
        && text.split('.').all(|label| {
            is_name(label)
                && label.chars().all(|c| c.is_ascii_digit() || c.is_ascii_lowercase() || c == '-')
        })
}

/// Validates a key as `IsQualifiedName` of apimachinery does.
pub(super) fn validate_key(key: &str) -> Result<(), ParseSelectorError> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let fault = if name.is_empty() {
        "name part must be non-empty".to_owned()
    } else if name.len() > 63 {
        "name part must be no more than 63 bytes".to_owned()
    } else if !is_name(name) {
        format!(
            "name part {NAME_RULE} (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
        )
    } else if prefix.is_some_and(|prefix| !is_subdomain(prefix)) {
        "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character".to_owned()
    } else {
        return Ok(());
    };
    error(format!("<nil>: Invalid value: {key:?}: {fault}"))
}

/// Validates a value as `IsValidLabelValue` of apimachinery does.
pub(super) fn validate_value(key: &str, value: &str) -> Result<(), ParseSelectorError> {
    let fault = if value.len() > 63 {
        "must be no more than 63 bytes".to_owned()
    } else if !value.is_empty() && !is_name(value) {
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')".to_string()
    } else {
        return Ok(());
    };
    error(format!("values[0][{key}]: Invalid value: {value:?}: {fault}"))
}
