//! Encodes API objects as protobuf, for clients that accept nothing else. The messages are those of
//! `k8s.io/metrics` and `k8s.io/apimachinery`, each in a `runtime.Unknown`.

use serde_json::Value;

/// A field of a message: its JSON name, its number and its type.
struct Field(&'static str, u32, FieldType);

/// The type of a field.
#[derive(Clone, Copy)]
enum FieldType {
    Text,
    Number,
    Bool,
    /// A time in RFC 3339, as a message of its seconds.
    Time,
    /// A Go duration, as a message of nanoseconds.
    Duration,
    /// A quantity, as a message of its string.
    Quantity,
    Message(&'static [Field]),
    /// A message; omitted if the value is null.
    Optional(&'static [Field]),
    Messages(&'static [Field]),
    Texts,
    /// A `metav1.Verbs`: a message of strings.
    Verbs,
    TextMap,
    QuantityMap,
}

use FieldType::{
    Bool, Duration, Message, Messages, Number, Optional, Quantity, QuantityMap, Text, TextMap,
    Texts, Time, Verbs,
};

const LIST_META: &[Field] =
    &[Field("selfLink", 1, Text), Field("resourceVersion", 2, Text), Field("continue", 3, Text)];
const OBJECT_META: &[Field] = &[
    Field("name", 1, Text),
    Field("generateName", 2, Text),
    Field("namespace", 3, Text),
    Field("selfLink", 4, Text),
    Field("uid", 5, Text),
    Field("resourceVersion", 6, Text),
    Field("generation", 7, Number),
    Field("creationTimestamp", 8, Time),
    Field("labels", 11, TextMap),
];
const OBJECT_REFERENCE: &[Field] = &[
    Field("kind", 1, Text),
    Field("namespace", 2, Text),
    Field("name", 3, Text),
    Field("uid", 4, Text),
    Field("apiVersion", 5, Text),
    Field("resourceVersion", 6, Text),
    Field("fieldPath", 7, Text),
];
const REQUIREMENT: &[Field] =
    &[Field("key", 1, Text), Field("operator", 2, Text), Field("values", 3, Texts)];
const LABEL_SELECTOR: &[Field] =
    &[Field("matchLabels", 1, TextMap), Field("matchExpressions", 2, Messages(REQUIREMENT))];
const METRIC_IDENTIFIER: &[Field] =
    &[Field("name", 1, Text), Field("selector", 2, Optional(LABEL_SELECTOR))];
const VALUE_V1BETA1: &[Field] = &[
    Field("describedObject", 1, Message(OBJECT_REFERENCE)),
    Field("metricName", 2, Text),
    Field("timestamp", 3, Time),
    Field("value", 5, Quantity),
    Field("selector", 6, Optional(LABEL_SELECTOR)),
];
const VALUE_V1BETA2: &[Field] = &[
    Field("describedObject", 1, Message(OBJECT_REFERENCE)),
    Field("metric", 2, Message(METRIC_IDENTIFIER)),
    Field("timestamp", 3, Time),
    Field("value", 5, Quantity),
];
const EXTERNAL_VALUE: &[Field] = &[
    Field("metricName", 1, Text),
    Field("metricLabels", 2, TextMap),
    Field("timestamp", 3, Time),
    Field("value", 5, Quantity),
];
const NODE_METRICS: &[Field] = &[
    Field("metadata", 1, Message(OBJECT_META)),
    Field("timestamp", 2, Time),
    Field("window", 3, Duration),
    Field("usage", 4, QuantityMap),
];
const CONTAINER_METRICS: &[Field] = &[Field("name", 1, Text), Field("usage", 2, QuantityMap)];
const POD_METRICS: &[Field] = &[
    Field("metadata", 1, Message(OBJECT_META)),
    Field("timestamp", 2, Time),
    Field("window", 3, Duration),
    Field("containers", 4, Messages(CONTAINER_METRICS)),
];
const API_RESOURCE: &[Field] = &[
    Field("name", 1, Text),
    Field("namespaced", 2, Bool),
    Field("kind", 3, Text),
    Field("verbs", 4, Verbs),
    Field("singularName", 6, Text),
    Field("group", 8, Text),
    Field("version", 9, Text),
    Field("storageVersionHash", 10, Text),
];
const GROUP_VERSION: &[Field] = &[Field("groupVersion", 1, Text), Field("version", 2, Text)];
const API_GROUP: &[Field] = &[
    Field("name", 1, Text),
    Field("versions", 2, Messages(GROUP_VERSION)),
    Field("preferredVersion", 3, Message(GROUP_VERSION)),
];
const STATUS: &[Field] = &[
    Field("metadata", 1, Message(LIST_META)),
    Field("status", 2, Text),
    Field("message", 3, Text),
    Field("reason", 4, Text),
    Field("code", 6, Number),
];

/// The message of a list, by that of its items.
macro_rules! list_of {
    ($items:expr) => {
        &[Field("metadata", 1, Message(LIST_META)), Field("items", 2, Messages($items))]
    };
}

fn message_of(api_version: &str, kind: &str) -> Option<&'static [Field]> {
    Some(match (kind, api_version) {
        ("MetricValueList", "custom.metrics.k8s.io/v1beta1") => list_of!(VALUE_V1BETA1),
        ("MetricValueList", _) => list_of!(VALUE_V1BETA2),
        ("ExternalMetricValueList", _) => list_of!(EXTERNAL_VALUE),
        ("NodeMetricsList", _) => list_of!(NODE_METRICS),
        ("PodMetricsList", _) => list_of!(POD_METRICS),
        ("NodeMetrics", _) => NODE_METRICS,
        ("PodMetrics", _) => POD_METRICS,
        ("APIResourceList", _) => {
            &[Field("groupVersion", 1, Text), Field("resources", 2, Messages(API_RESOURCE))]
        }
        ("APIGroup", _) => API_GROUP,
        ("APIGroupList", _) => &[Field("groups", 1, Messages(API_GROUP))],
        ("Status", _) => STATUS,
        _ => return None,
    })
}

/// The content type.
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// An object as protobuf; none if the message of its kind is not known.
pub fn encode(object: &Value) -> Option<Vec<u8>> {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let raw = message(object, message_of(api_version, kind)?);
    let mut kind_of = Vec::new();
    put_bytes(&mut kind_of, 1, api_version.as_bytes());
    put_bytes(&mut kind_of, 2, kind.as_bytes());
    let mut bytes = b"k8s\0".to_vec();
    put_bytes(&mut bytes, 1, &kind_of);
    put_bytes(&mut bytes, 2, &raw);
    put_bytes(&mut bytes, 3, b"");
    put_bytes(&mut bytes, 4, b"");
    Some(bytes)
}

fn message(object: &Value, fields: &[Field]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for Field(name, number, field_type) in fields {
        put(&mut bytes, *number, *field_type, &object[*name]);
    }
    bytes
}

fn put(bytes: &mut Vec<u8>, number: u32, field_type: FieldType, value: &Value) {
    let text = value.as_str().unwrap_or_default();
    match field_type {
        Text => put_bytes(bytes, number, text.as_bytes()),
        Number => put_number(bytes, number, value.as_u64().unwrap_or(0)),
        Bool => put_number(bytes, number, value.as_bool().unwrap_or(false).into()),
        Time => {
            let mut time = Vec::new();
            if let Ok(at) = text.parse::<jiff::Timestamp>() {
                put_number(&mut time, 1, at.as_second().cast_unsigned());
                put_number(&mut time, 2, 0);
            }
            put_bytes(bytes, number, &time);
        }
        Duration => {
            let mut duration = Vec::new();
            let parsed: jiff::SignedDuration = text.parse().unwrap_or_default();
            let nanos = u64::try_from(parsed.as_nanos()).unwrap_or(0);
            put_number(&mut duration, 1, nanos);
            put_bytes(bytes, number, &duration);
        }
        Quantity => put_bytes(bytes, number, &quantity(text)),
        Message(fields) => put_bytes(bytes, number, &message(value, fields)),
        Optional(_) if value.is_null() => {}
        Optional(fields) => put_bytes(bytes, number, &message(value, fields)),
        Messages(fields) => {
            for item in value.as_array().into_iter().flatten() {
                put_bytes(bytes, number, &message(item, fields));
            }
        }
        Texts => {
            for item in value.as_array().into_iter().flatten() {
                put_bytes(bytes, number, item.as_str().unwrap_or_default().as_bytes());
            }
        }
        Verbs => {
            let mut verbs = Vec::new();
            put(&mut verbs, 1, Texts, value);
            put_bytes(bytes, number, &verbs);
        }
        TextMap | QuantityMap => {
            for (key, value) in value.as_object().into_iter().flatten() {
                let mut entry = Vec::new();
                put_bytes(&mut entry, 1, key.as_bytes());
                let text = value.as_str().unwrap_or_default();
                match field_type {
                    QuantityMap => put_bytes(&mut entry, 2, &quantity(text)),
                    _ => put_bytes(&mut entry, 2, text.as_bytes()),
                }
                put_bytes(bytes, number, &entry);
            }
        }
    }
}

fn quantity(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_bytes(&mut bytes, 1, text.as_bytes());
    bytes
}

fn put_bytes(bytes: &mut Vec<u8>, number: u32, value: &[u8]) {
    put_varint(bytes, u64::from(number) << 3 | 2);
    put_varint(bytes, value.len() as u64);
    bytes.extend_from_slice(value);
}

fn put_number(bytes: &mut Vec<u8>, number: u32, value: u64) {
    put_varint(bytes, u64::from(number) << 3);
    put_varint(bytes, value);
}

fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_object_is_wrapped_with_its_kind() {
        let status =
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404});
        let bytes = encode(&status).unwrap();
        assert!(bytes.starts_with(b"k8s\0\x0a\x0c\x0a\x02v1\x12\x06Status\x12"), "{bytes:?}");
        assert!(bytes.ends_with(b"\x30\x94\x03\x1a\x00\x22\x00"), "{bytes:?}");
        assert_eq!(encode(&json!({"kind": "Table"})), None);
    }
}
