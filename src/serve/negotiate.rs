//! Content negotiation: the encoding of a response, by what the client accepts.

use super::protobuf::PROTOBUF;
use axum::extract::Query;
use axum::http::{HeaderMap, Uri, header};
use std::collections::HashMap;

/// The encoding of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// The object as JSON.
    Json,
    /// A table of the object, as JSON.
    Table,
    /// The object as YAML.
    Yaml,
    /// The object as protobuf.
    Protobuf,
}

fn accept(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::ACCEPT)?.to_str().ok()
}

/// The first encoding in `Accept` that there is; none if none of them is known. The order of the
/// header decides; q-values are ignored.
pub fn encoding(headers: &HeaderMap, has_table: bool) -> Option<Encoding> {
    let Some(accept) = accept(headers) else { return Some(Encoding::Json) };
    accept.split(',').find_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        match (media_type, parts.find_map(|part| part.strip_prefix("as="))) {
            ("application/json", Some("Table")) if has_table => Some(Encoding::Table),
            // Clients that read discovery accept this besides plain JSON.
            ("application/json", None | Some("APIGroupDiscoveryList")) => Some(Encoding::Json),
            ("*/*" | "application/*", None) => Some(Encoding::Json),
            ("application/yaml", None) => Some(Encoding::Yaml),
            (PROTOBUF, None) => Some(Encoding::Protobuf),
            _ => None,
        }
    })
}

/// Whether a client accepts any of the media types, with whatever parameters.
pub fn accepts_any(headers: &HeaderMap) -> bool {
    accept(headers).is_none_or(|accept| {
        accept.split(',').any(|range| {
            let media_type = range.split(';').next().unwrap_or_default().trim();
            let ours = ["*/*", "application/*", "application/json", "application/yaml", PROTOBUF];
            ours.contains(&media_type)
        })
    })
}

/// Whether a client accepts aggregated discovery.
pub fn accepts_aggregated_discovery(headers: &HeaderMap) -> bool {
    accept(headers).is_some_and(|accept| {
        accept.split(',').any(|range| {
            let parts: Vec<&str> = range.split(';').map(str::trim).collect();
            ["application/json", "g=apidiscovery.k8s.io", "v=v2", "as=APIGroupDiscoveryList"]
                .iter()
                .all(|part| parts.contains(part))
        })
    })
}

/// Whether JSON is laid out for a person. Source: `isPrettyPrint` of `k8s.io/apiserver`.
pub fn is_pretty(uri: &Uri, headers: &HeaderMap) -> bool {
    let query = Query::<HashMap<String, String>>::try_from_uri(uri);
    let query = query.map(|Query(query)| query).unwrap_or_default();
    if let Some(pretty) = query.get("pretty") {
        return matches!(pretty.as_str(), "1" | "t" | "T" | "true" | "TRUE" | "True");
    }
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    let people = ["curl", "Wget", "Mozilla/5.0"];
    agent.is_some_and(|agent| people.iter().any(|person| agent.starts_with(person)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(accept: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, accept.parse().unwrap());
        headers
    }

    #[test]
    fn the_first_encoding_that_there_is_is_chosen() {
        let of = |accept: &str, has_table| encoding(&headers(accept), has_table);
        assert_eq!(encoding(&HeaderMap::new(), true), Some(Encoding::Json));
        assert_eq!(of("*/*", true), Some(Encoding::Json));
        assert_eq!(
            of("application/vnd.kubernetes.protobuf,application/json", true),
            Some(Encoding::Protobuf)
        );
        assert_eq!(of("application/yaml, */*", true), Some(Encoding::Yaml));
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        assert_eq!((of(table, true), of(table, false)), (Some(Encoding::Table), None));
        assert_eq!(of(&format!("{table},application/json"), false), Some(Encoding::Json));
        assert_eq!(of("text/html", true), None);
    }

    #[test]
    fn aggregated_discovery_is_given_to_clients_that_accept_it() {
        const AGGREGATED: &str =
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let accepted = |accept: &str| accepts_aggregated_discovery(&headers(accept));
        assert!(accepted(AGGREGATED));
        assert!(accepted(&format!("{AGGREGATED}, application/json")));
        assert!(accepted(
            "application/json; as=APIGroupDiscoveryList; v=v2; g=apidiscovery.k8s.io"
        ));
        assert!(!accepted("application/json"));
        assert!(!accepted(
            "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
        ));
    }

    #[test]
    fn json_is_laid_out_for_people() {
        let of = |uri: &'static str, agent: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::USER_AGENT, agent.parse().unwrap());
            is_pretty(&Uri::from_static(uri), &headers)
        };
        assert!(of("/apis", "curl/8.5.0") && of("/apis?pretty=true", "kubectl/v1.36"));
        assert!(!of("/apis", "kubectl/v1.36") && !of("/apis?pretty=false", "curl/8.5.0"));
    }
}
