//! Content negotiation: the encoding of a response, by what the client accepts.

use super::protobuf::PROTOBUF;
use axum::http::{HeaderMap, Uri, header};

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

/// The most clauses of `Accept` that are read.
const MAX_CLAUSES: usize = 64;

/// A clause of `Accept`: a media range with its parameters.
struct Clause<'a> {
    media_type: &'a str,
    subtype: &'a str,
    q: f32,
    parameters: Vec<(&'a str, &'a str)>,
}

/// The text before a separator and the text after it; the whole text and nothing without one.
fn split(text: &str, separator: char) -> (&str, &str) {
    text.split_once(separator).unwrap_or((text, ""))
}

/// Parses a q-value as Go does, which refuses a NaN with a sign.
fn q_value(text: &str) -> f32 {
    let q: f32 = text.parse().unwrap_or(0.0);
    if q.is_nan() && text.starts_with(['+', '-']) { 0.0 } else { q }
}

impl<'a> Clause<'a> {
    /// Parses a clause. Returns none if it is not a media range. Parameters without a value are skipped.
    fn parse(text: &'a str) -> Option<Self> {
        let space = |text: &'a str| text.trim_matches(' ');
        let (range, mut rest) = split(space(text), ';');
        let (media_type, subtype) = match split(range, '/') {
            (media_type, "") if space(media_type) == "*" => ("*", "*"),
            (_, "") => return None,
            (media_type, subtype) => match split(subtype, '/') {
                (subtype, "") => (space(media_type), space(subtype)),
                _ => return None,
            },
        };
        let mut clause = Self { media_type, subtype, q: 1.0, parameters: Vec::new() };
        while !rest.is_empty() {
            let (parameter, others) = split(rest, ';');
            rest = others;
            let Some((name, value)) =
                parameter.split_once('=').filter(|(_, value)| !value.is_empty())
            else {
                continue;
            };
            match split(value, '=') {
                (value, "") if space(name) == "q" => clause.q = q_value(value),
                (value, "") => clause.parameters.push((space(name), space(value))),
                _ => {}
            }
        }
        Some(clause)
    }

    fn parameter(&self, name: &str) -> Option<&'a str> {
        let mut from_last = self.parameters.iter().rev();
        from_last.find_map(|(known, value)| (*known == name).then_some(*value))
    }

    fn matches(&self, media_type: &str) -> bool {
        let Some((media_type, subtype)) = media_type.split_once('/') else { return false };
        match (self.media_type, self.subtype) {
            ("*", "*") => true,
            (accepted, "*") => accepted == media_type,
            accepted => accepted == (media_type, subtype),
        }
    }

    /// The specificity: 2 for one media type, 1 for `text/*`, 0 for `*/*`.
    fn specificity(&self) -> u8 {
        u8::from(self.media_type != "*") + u8::from(self.subtype != "*")
    }

    /// Whether it is tried before another. This is not a total order: of two clauses, each may be before
    /// the other, one for its q-value and one because it has no wildcard.
    fn is_before(&self, other: &Self) -> bool {
        self.q > other.q
            || (self.media_type != "*" && other.media_type == "*")
            || (self.subtype != "*" && other.subtype == "*")
    }

    /// Whether it accepts an object as it is, or as a table. The only server version (`sv`) is `v1`. As in
    /// kube-apiserver, `stream=watch` is ignored for encodings that support watches.
    fn accepts(&self, encoding: Encoding, as_table: bool) -> bool {
        let stream = self.parameter("stream").filter(|stream| !stream.is_empty());
        if stream.is_some_and(|stream| stream != "watch" || encoding == Encoding::Yaml) {
            return false;
        }
        if self.parameter("sv").is_some_and(|version| !["", "v1"].contains(&version)) {
            return false;
        }
        match ["as", "g", "v"].map(|name| self.parameter(name)) {
            [None, None, None] => !as_table,
            [Some("Table"), Some("meta.k8s.io"), Some("v1" | "v1beta1")] => as_table,
            _ => false,
        }
    }
}

/// The text of `Accept`; none without the header, or if it is empty.
fn text(headers: &HeaderMap) -> Option<&str> {
    let header = headers.get(header::ACCEPT).filter(|header| !header.is_empty())?;
    // Up to the first byte that is not UTF-8: no media type that is known contains one.
    Some(header.as_bytes().utf8_chunks().next().map_or("", |chunk| chunk.valid()))
}

/// The clauses of `Accept`, in the order in which they are tried; none without the header, which
/// accepts everything.
///
/// Source of the syntax and of the order: `ParseAccept` of `github.com/munnerz/goautoneg`, which
/// kube-apiserver uses. It is laxer than RFC 9110, and clients rely on it: a clause that is not a media
/// range is skipped, `q=0` does not exclude, and names are case-sensitive. Differences from kube-apiserver:
///
/// - More than 12 clauses may be tried in another order: Go does not document that of its sort.
/// - Clauses after [`MAX_CLAUSES`] are ignored, as is the text after a byte that is not UTF-8.
/// - Hexadecimal q-values are not parsed.
/// - `pretty=1` is ignored; only the query parameter counts.
/// - `sv=v1` is accepted, which kube-apiserver does only for `metrics.k8s.io`.
/// - For `metrics.k8s.io`, there is no table as YAML, and no `PartialObjectMetadata`.
fn accept(headers: &HeaderMap) -> Option<Vec<Clause<'_>>> {
    let text = text(headers)?;
    let mut clauses: Vec<_> = text.split(',').filter_map(Clause::parse).take(MAX_CLAUSES).collect();
    // An insertion sort, as Go's for a few elements: since `is_before` is not a total order, the result
    // depends on the algorithm.
    for sorted in 1..clauses.len() {
        let mut index = sorted;
        while index > 0 && clauses[index].is_before(&clauses[index - 1]) {
            clauses.swap(index, index - 1);
            index -= 1;
        }
    }
    Some(clauses)
}

const ENCODINGS: [(&str, Encoding); 3] = [
    ("application/json", Encoding::Json),
    ("application/yaml", Encoding::Yaml),
    (PROTOBUF, Encoding::Protobuf),
];

/// The encoding of a response; none if the client accepts none of the encodings.
pub fn encoding(headers: &HeaderMap, has_table: bool) -> Option<Encoding> {
    encoding_among(headers, has_table, &ENCODINGS)
}

/// The encoding of the events of a watch with tables: JSON, or none.
pub fn encoding_of_events(headers: &HeaderMap) -> Option<Encoding> {
    encoding_among(headers, true, &ENCODINGS[..1])
}

fn encoding_among(
    headers: &HeaderMap,
    has_table: bool,
    encodings: &[(&str, Encoding)],
) -> Option<Encoding> {
    let Some(clauses) = accept(headers) else { return Some(Encoding::Json) };
    clauses.iter().find_map(|clause| {
        encodings.iter().filter(|(media_type, _)| clause.matches(media_type)).find_map(
            |&(_, encoding)| {
                let tabular = has_table && encoding == Encoding::Json;
                match tabular && clause.accepts(encoding, true) {
                    true => Some(Encoding::Table),
                    false => clause.accepts(encoding, false).then_some(encoding),
                }
            },
        )
    })
}

/// Whether a client accepts any of the media types, regardless of their parameters. `application/*` and
/// `*` alone do not count.
///
/// Source: `matchesAccept` of `github.com/emicklei/go-restful`, kube-apiserver's router.
pub fn accepts_any(headers: &HeaderMap) -> bool {
    text(headers).is_none_or(|text| {
        text.split(',').any(|range| {
            let media_type = range.split(';').next().unwrap_or_default().trim_matches(' ');
            media_type == "*/*" || ENCODINGS.iter().any(|(known, _)| *known == media_type)
        })
    })
}

/// Whether a client accepts aggregated discovery.
pub fn accepts_aggregated_discovery(headers: &HeaderMap) -> bool {
    accept(headers).is_some_and(|clauses| {
        clauses.iter().any(|clause| {
            clause.matches("application/json")
                && ["g", "v", "as"].map(|name| clause.parameter(name))
                    == [Some("apidiscovery.k8s.io"), Some("v2"), Some("APIGroupDiscoveryList")]
        })
    })
}

/// Whether a scraper prefers Prometheus's text format to OpenMetrics. A format has the q-value of the
/// most specific clause that matches it (RFC 9110, 12.5.1).
pub fn prefers_prometheus_text(headers: &HeaderMap) -> bool {
    let clauses = accept(headers).unwrap_or_default();
    let quality = |media_type: &str| {
        let of_type = clauses.iter().filter(|clause| clause.matches(media_type));
        let ranks = of_type.map(|clause| (clause.specificity(), clause.q));
        ranks.fold((0, 0.0), |best, rank| if rank > best { rank } else { best }).1
    };
    quality("text/plain") > quality("application/openmetrics-text")
}

/// Whether JSON is pretty-printed. Source: `isPrettyPrint` of `k8s.io/apiserver`.
pub fn is_pretty(uri: &Uri, headers: &HeaderMap) -> bool {
    let mut query = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    let pretty = query.find(|(name, _)| name == "pretty").map(|(_, value)| value);
    if let Some(pretty) = pretty.filter(|pretty| !pretty.is_empty()) {
        return matches!(&*pretty, "1" | "t" | "T" | "true" | "TRUE" | "True");
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
        for (accept, expected) in [
            ("application/json;q=0.5, application/yaml", Encoding::Yaml),
            ("application/json;q=0.9,application/yaml;q=0.95", Encoding::Yaml),
            ("application/yaml;q=0.2, application/json;q=oops", Encoding::Yaml),
            ("application/yaml;q=0.8, */*", Encoding::Json),
            ("*/*, application/yaml;q=0.8", Encoding::Yaml),
            ("*/*, Application/YAML", Encoding::Json),
            ("/, *; q=.2, application/yaml", Encoding::Yaml),
            ("*", Encoding::Json),
            ("application/json;charset", Encoding::Json),
            ("application/json;profile=https://x/y", Encoding::Json),
            ("text/html;x=\", application/yaml", Encoding::Yaml),
            ("application/json; q = 0.5", Encoding::Json),
            ("application/json;q=0.5 , application/yaml;q=0.3", Encoding::Json),
            ("application/json;as=", Encoding::Json),
            ("application/json;as=Table=x", Encoding::Json),
            ("application/json;q=, application/yaml;q=0.5", Encoding::Json),
            ("application/yaml;q=0.2, application/json;q=0.5=", Encoding::Json),
            ("application/json/, application/yaml;q=0.5", Encoding::Json),
            ("*/, application/yaml;as=x", Encoding::Json),
            ("application/json;q=0.5, application/yaml;q=0.50000001", Encoding::Json),
            ("application/json;q==, application/yaml;q=0.5", Encoding::Yaml),
            ("application/json;q=+nan, application/yaml;q=0.5", Encoding::Yaml),
            ("application/json;q=nan, application/yaml;q=0.5", Encoding::Json),
            ("application/json;sv=v2, application/yaml", Encoding::Yaml),
            ("application/json;sv=, application/yaml", Encoding::Json),
        ] {
            assert_eq!(of(accept, true), Some(expected), "{accept}");
        }
        assert_eq!(encoding(&headers(""), true), Some(Encoding::Json));
        for refused in [
            "APPLICATION/JSON",
            "application/json/x",
            "application/json;as=Table",
            "application/json;as=Table;g=meta.k8s.io;v=v2",
            "application/json;stream=x",
            "application/json;as==",
            "application/json;sv=v2",
            "application/yaml;stream=watch",
            "text/html;x=é",
        ] {
            assert_eq!(of(refused, true), None, "{refused}");
        }
        let many = format!("{}application/yaml", "a/a,".repeat(16_000));
        assert_eq!(of(&many, true), None);
    }

    #[test]
    fn a_request_is_handled_if_any_media_type_is_accepted() {
        let any = |accept: &str| accepts_any(&headers(accept));
        assert!(accepts_any(&HeaderMap::new()) && any("") && any("a/b, */*;q=0"));
        assert!(any("application/json;as=Table;g=meta.k8s.io;v=v1") && any("x, application/yaml"));
        assert!(
            !any("application/*") && !any("*") && !any("text/html") && !any("Application/json")
        );
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
    fn json_is_pretty_printed_for_people() {
        let of = |uri: &'static str, agent: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::USER_AGENT, agent.parse().unwrap());
            is_pretty(&Uri::from_static(uri), &headers)
        };
        assert!(of("/apis", "curl/8.5.0") && of("/apis?pretty=true", "kubectl/v1.36"));
        assert!(!of("/apis", "kubectl/v1.36") && !of("/apis?pretty=false", "curl/8.5.0"));
        assert!(of("/apis?pretty", "curl/8.5.0") && of("/apis?pretty=", "curl/8.5.0"));
        assert!(!of("/apis?pretty=0&pretty=1", "kubectl/v1.36"), "the first counts");
    }
}
