//! Encodes responses: as JSON, YAML, protobuf or a table, and discovery with an ETag.

use super::error::ApiError;
use super::negotiate::{self, Encoding};
use super::protobuf;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, Uri, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The content of a response, before it is encoded.
#[derive(Debug)]
pub enum ResponseContent {
    /// An API object.
    Object(Value),
    /// An API object as JSON and a newline: what most clients take, and what other encodings are made from.
    Json(Bytes),
    /// An API object, and its form as a table.
    Tabular(Value, fn(&Value) -> Value),
    /// A discovery document. As plain JSON it has an ETag.
    Discovery(Value),
    /// A JSON document with an ETag, of this content type regardless of `Accept`.
    Document(Value, &'static str),
    /// A complete response.
    Response(Response<Body>),
}

/// Encodes the content of a response as the client accepts.
///
/// # Errors
/// 406 if the client accepts no encoding of the content.
pub fn encode(
    content: ResponseContent,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Response<Body>, ApiError> {
    let encoding = negotiate::encoding(headers, matches!(content, ResponseContent::Tabular(..)));
    let pretty = negotiate::is_pretty(uri, headers);
    let (value, table) = match content {
        ResponseContent::Response(response) => return Ok(response),
        ResponseContent::Json(object) if encoding == Some(Encoding::Json) && !pretty => {
            return Ok(json_response(object));
        }
        ResponseContent::Json(object) => {
            (serde_json::from_slice(&object).expect("it was encoded as JSON"), None)
        }
        ResponseContent::Document(document, content_type) => {
            return Ok(with_etag(headers, &document, content_type));
        }
        ResponseContent::Discovery(document) if encoding == Some(Encoding::Json) && !pretty => {
            return Ok(with_etag(headers, &document, "application/json"));
        }
        ResponseContent::Object(value) | ResponseContent::Discovery(value) => (value, None),
        ResponseContent::Tabular(value, table) => (value, Some(table)),
    };
    let encoding = encoding.ok_or_else(ApiError::not_acceptable)?;
    let value = match table {
        Some(table) if encoding == Encoding::Table => table(&value),
        _ => value,
    };
    Ok(match encoding {
        Encoding::Yaml => yaml(&value),
        Encoding::Protobuf => protobuf(&value),
        Encoding::Json | Encoding::Table if pretty => json_body(serde_json::to_vec_pretty(&value)),
        Encoding::Json | Encoding::Table => json(&value),
    })
}

/// Encodes an error as a `Status`.
pub fn encode_error(error: ApiError, encoding: Encoding) -> Response<Body> {
    let details = error.retry_after.map(|seconds| json!({"retryAfterSeconds": seconds}));
    let mut status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.message,
        "code": error.code.as_u16(),
    });
    if !error.reason.is_empty() {
        status["reason"] = error.reason.into();
    }
    if let Some(details) = details {
        status["details"] = details;
    }
    let mut response = match encoding {
        Encoding::Json | Encoding::Table => json(&status),
        Encoding::Yaml => yaml(&status),
        Encoding::Protobuf => protobuf(&status),
    };
    *response.status_mut() = error.code;
    if let Some(seconds) = error.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// A JSON response.
pub fn json(value: &impl Serialize) -> Response<Body> {
    json_body(serde_json::to_vec(value))
}

fn json_body(written: serde_json::Result<Vec<u8>>) -> Response<Body> {
    let mut body = written.expect("an API object can be encoded as JSON");
    body.push(b'\n');
    json_response(body)
}

fn json_response(body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// A YAML response.
fn yaml(value: &Value) -> Response<Body> {
    let yaml = HeaderValue::from_static("application/yaml");
    match serde_saphyr::to_string(value) {
        Ok(text) => ([(header::CONTENT_TYPE, yaml)], text).into_response(),
        Err(_) => json(value),
    }
}

/// A protobuf response; JSON if the object has no protobuf message.
fn protobuf(value: &Value) -> Response<Body> {
    let content_type = HeaderValue::from_static(protobuf::PROTOBUF);
    match protobuf::encode(value) {
        Some(bytes) => ([(header::CONTENT_TYPE, content_type)], bytes).into_response(),
        None => json(value),
    }
}

/// A JSON response with an ETag; 304 if the client's copy has the same.
fn with_etag(headers: &HeaderMap, document: &Value, content_type: &'static str) -> Response<Body> {
    let body = serde_json::to_vec(document).expect("an API object can be encoded as JSON");
    let hash = Sha256::digest(&body);
    let tag: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let content_type = HeaderValue::from_static(content_type);
    let mut response = match is_not_modified(headers, &tag) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(header::CONTENT_TYPE, content_type)], body).into_response(),
    };
    let tag = HeaderValue::from_str(&format!("\"{tag}\"")).expect("hex digits in quotes");
    response.headers_mut().insert(header::ETAG, tag);
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}

/// Whether the client's copy is current (RFC 9110, 13.1.2).
fn is_not_modified(headers: &HeaderMap, tag: &str) -> bool {
    let given = headers.get_all(header::IF_NONE_MATCH).into_iter();
    given.filter_map(|tags| tags.to_str().ok()).flat_map(|tags| tags.split(',')).any(|given| {
        let given = given.trim();
        given == "*" || given.trim_start_matches("W/").trim_matches('"') == tag
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(kinds: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, kinds.parse().unwrap());
        headers
    }

    fn content_type(content: ResponseContent, path: &'static str, headers: &HeaderMap) -> String {
        let response = encode(content, &Uri::from_static(path), headers).unwrap();
        response.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned()
    }

    #[test]
    fn an_object_is_encoded_as_the_client_accepts() {
        let object = || ResponseContent::Object(json!({"kind": "MetricValueList", "items": []}));
        for (accepted, expected) in [
            ("application/json", "application/json"),
            ("application/yaml", "application/yaml"),
            ("application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf"),
            ("text/html, */*", "application/json"),
        ] {
            assert_eq!(content_type(object(), "/", &accept(accepted)), expected);
        }
        let table = accept("application/json;as=Table;v=v1;g=meta.k8s.io");
        let error = encode(object(), &Uri::from_static("/"), &table).unwrap_err();
        assert_eq!(error.code, StatusCode::NOT_ACCEPTABLE);
    }

    #[tokio::test]
    async fn only_an_object_with_a_table_is_encoded_as_one() {
        let content =
            ResponseContent::Tabular(json!({"kind": "PodMetrics"}), |_| json!({"kind": "Table"}));
        let table = accept("application/json;as=Table;v=v1;g=meta.k8s.io");
        let response = encode(content, &Uri::from_static("/?pretty=0"), &table).unwrap();
        let body = axum::body::to_bytes(response.into_body(), 1_000).await.unwrap();
        assert_eq!(&body[..], b"{\"kind\":\"Table\"}\n");
    }

    #[test]
    fn discovery_has_an_etag_unless_it_is_pretty_printed() {
        let discovery = || ResponseContent::Discovery(json!({"kind": "APIGroupList"}));
        let headers = HeaderMap::new();
        let of = |path| encode(discovery(), &Uri::from_static(path), &headers).unwrap();
        assert!(of("/apis").headers().contains_key(header::ETAG));
        assert!(!of("/apis?pretty=true").headers().contains_key(header::ETAG));
    }

    #[test]
    fn a_copy_with_the_same_etag_is_not_modified() {
        let has = |tags: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::IF_NONE_MATCH, tags.parse().unwrap());
            is_not_modified(&headers, "abc")
        };
        assert!(has("\"abc\"") && has("W/\"abc\"") && has("\"x\", \"abc\"") && has("*"));
        assert!(!has("\"x\"") && !is_not_modified(&HeaderMap::new(), "abc"));
    }
}
