//! The form of an answer, by what the client accepts.

use super::protobuf::PROTOBUF;
use axum::http::{HeaderMap, header};

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The object as JSON.
    Json,
    /// A table of it, as JSON.
    Table,
    /// The object as YAML.
    Yaml,
    /// The object as protobuf.
    Protobuf,
}

/// The first form that a client accepts and that there is; none where there is
/// none. Not everything has a table.
pub fn form(headers: &HeaderMap, has_table: bool) -> Option<Form> {
    let Some(accept) = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()) else {
        return Some(Form::Json);
    };
    accept.split(',').find_map(|kind| {
        let mut parts = kind.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        match (name, parts.find_map(|part| part.strip_prefix("as="))) {
            ("application/json", Some("Table")) if has_table => Some(Form::Table),
            // Asked for by those who read discovery.
            ("application/json", None | Some("APIGroupDiscoveryList")) => Some(Form::Json),
            ("*/*" | "application/*", None) => Some(Form::Json),
            ("application/yaml", None) => Some(Form::Yaml),
            (PROTOBUF, None) => Some(Form::Protobuf),
            _ => None,
        }
    })
}

/// Whether a client accepts any of our kinds, whatever it wants made of them.
pub fn has_common_kind(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_none_or(|accept| {
        accept.split(',').any(|kind| {
            let name = kind.split(';').next().unwrap_or_default().trim();
            let ours = ["*/*", "application/*", "application/json", "application/yaml", PROTOBUF];
            ours.contains(&name)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_form_that_there_is_is_given() {
        let of = |accept: &str, has_table| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            form(&headers, has_table)
        };
        assert_eq!(form(&HeaderMap::new(), true), Some(Form::Json));
        assert_eq!(of("*/*", true), Some(Form::Json));
        assert_eq!(
            of("application/vnd.kubernetes.protobuf,application/json", true),
            Some(Form::Protobuf)
        );
        assert_eq!(of("application/yaml, */*", true), Some(Form::Yaml));
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        assert_eq!((of(table, true), of(table, false)), (Some(Form::Table), None));
        assert_eq!(of(&format!("{table},application/json"), false), Some(Form::Json));
        assert_eq!(of("text/html", true), None);
    }
}
