//! Content negotiation: the encoding of a response, by what the client accepts.

use super::protobuf::PROTOBUF;
use axum::extract::Query;
use axum::http::{HeaderMap, Uri, header};
use mediatype::{MediaType, MediaTypeList, Name, ReadParams};
use std::cmp::Reverse;
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

/// The media ranges of `Accept`, in the order in which encodings are tried: by q-value, those with a
/// wildcard last among equals, else as they were written. A range that can't be parsed is skipped.
/// None without the header, which accepts everything.
///
/// Source of the order: `ParseAccept` of `github.com/munnerz/goautoneg`, as kube-apiserver uses it. As
/// there, `q=0` does not exclude.
fn accept(headers: &HeaderMap) -> Option<Vec<MediaType<'_>>> {
    let text = headers.get(header::ACCEPT)?.to_str().ok()?;
    let mut ranges: Vec<_> = MediaTypeList::new(text).filter_map(Result::ok).collect();
    ranges.sort_by_cached_key(|range| (Reverse(thousandths(range)), range.subty == "*"));
    Some(ranges)
}

/// The q-value of a range, in thousandths: 1,000 without one, 0 if it is no number.
fn thousandths(range: &MediaType<'_>) -> u16 {
    let q = parameter(range, "q").map_or(1.0, |q| q.parse().unwrap_or(0.0_f64));
    (q.clamp(0.0, 1.0) * 1000.0) as u16
}

fn parameter(range: &MediaType<'_>, name: &str) -> Option<String> {
    range.get_param(Name::new(name)?).map(|value| value.unquoted_str().into_owned())
}

/// What a range offers to accept, whatever its parameters.
#[derive(Clone, Copy)]
enum Offered {
    Json,
    Yaml,
    Protobuf,
    Any,
}

const OFFERED: [(&str, Offered); 5] = [
    ("application/json", Offered::Json),
    ("application/yaml", Offered::Yaml),
    (PROTOBUF, Offered::Protobuf),
    ("application/*", Offered::Any),
    ("*/*", Offered::Any),
];

fn offered(range: &MediaType<'_>) -> Option<Offered> {
    OFFERED.into_iter().find_map(|(essence, offered)| {
        let (ty, subty) = essence.split_once('/')?;
        (range.ty == ty && range.subty == subty && range.suffix.is_none()).then_some(offered)
    })
}

/// The encoding of a response; none if the client accepts none that there is.
pub fn encoding(headers: &HeaderMap, has_table: bool) -> Option<Encoding> {
    let Some(accept) = accept(headers) else { return Some(Encoding::Json) };
    accept.iter().find_map(|range| match (offered(range)?, parameter(range, "as").as_deref()) {
        (Offered::Json, Some("Table")) if has_table => Some(Encoding::Table),
        // Clients that read discovery accept this besides plain JSON.
        (Offered::Json, None | Some("APIGroupDiscoveryList")) => Some(Encoding::Json),
        (Offered::Any, None) => Some(Encoding::Json),
        (Offered::Yaml, None) => Some(Encoding::Yaml),
        (Offered::Protobuf, None) => Some(Encoding::Protobuf),
        _ => None,
    })
}

/// Whether a client accepts any of the media types, with whatever parameters.
pub fn accepts_any(headers: &HeaderMap) -> bool {
    accept(headers).is_none_or(|accept| accept.iter().any(|range| offered(range).is_some()))
}

/// Whether a client accepts aggregated discovery.
pub fn accepts_aggregated_discovery(headers: &HeaderMap) -> bool {
    accept(headers).is_some_and(|accept| {
        accept.iter().any(|range| {
            matches!(offered(range), Some(Offered::Json))
                && [("g", "apidiscovery.k8s.io"), ("v", "v2"), ("as", "APIGroupDiscoveryList")]
                    .iter()
                    .all(|(name, value)| parameter(range, name).as_deref() == Some(value))
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
    fn the_best_encoding_that_there_is_is_chosen() {
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
        // By q-value; equal ones as they were written, wildcards after the others.
        assert_eq!(of("application/json;q=0.5, application/yaml", true), Some(Encoding::Yaml));
        assert_eq!(
            of("application/json;q=0.9,application/yaml;q=0.95", true),
            Some(Encoding::Yaml)
        );
        assert_eq!(
            of("application/yaml;q=0.2, application/json;q=oops", true),
            Some(Encoding::Yaml)
        );
        assert_eq!(of("application/yaml;q=0.8, */*", true), Some(Encoding::Json));
        assert_eq!(of("*/*, Application/YAML", true), Some(Encoding::Yaml));
        assert_eq!(of("/, *; q=.2, application/yaml", true), Some(Encoding::Yaml));
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
