//! Side by side with prometheus-adapter 0.12: the same cluster, Prometheus,
//! configuration, flags and requests. The responses must agree; `drop_in.rs` tests where they
//! differ on purpose (docs/differences.md).

use crate::fixture::{Fixture, ask, pair, with_fixture};
use crate::parity_cases::cases;
use plimsoll::k8s::Quantity;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// A response, without what may differ from request to request.
#[derive(Debug, PartialEq)]
struct Response {
    code: u16,
    reason: String,
    kind: String,
    items: BTreeSet<String>,
}

/// An item with values truncated to a thousandth and without timestamps.
fn item(item: &Value) -> String {
    let mut item = item.clone();
    let round = |value: &mut Value| {
        if let Some(quantity) = value.as_str().and_then(|text| text.parse::<Quantity>().ok()) {
            // prometheus-adapter truncates to a thousandth.
            *value = ((quantity.as_f64() * 1000.0 + 1e-6).trunc() as i64).into();
        }
    };
    if let Some(fields) = item.as_object_mut() {
        fields.remove("timestamp");
        if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("creationTimestamp");
        }
        for value in fields.get_mut("value").into_iter() {
            round(value);
        }
        for usage in fields.get_mut("usage").and_then(Value::as_object_mut).into_iter() {
            usage.values_mut().for_each(round);
        }
        for container in
            fields.get_mut("containers").and_then(Value::as_array_mut).into_iter().flatten()
        {
            for usage in container["usage"].as_object_mut().into_iter() {
                usage.values_mut().for_each(round);
            }
        }
        if let Some(containers) = fields.get_mut("containers").and_then(Value::as_array_mut) {
            containers.sort_by_key(|container| container["name"].to_string());
        }
        // Only prometheus-adapter sets it.
        fields.remove("storageVersionHash");
    }
    item.to_string()
}

fn normalized(code: u16, body: &Value) -> Response {
    let items = ["items", "resources", "versions"].iter().find_map(|field| body[field].as_array());
    let items = match items {
        Some(items) => items.iter().map(item).collect(),
        None if code == 200 => BTreeSet::from([item(body)]),
        None => BTreeSet::new(),
    };
    Response {
        code,
        reason: body["reason"].as_str().unwrap_or_default().to_owned(),
        kind: body["kind"].as_str().unwrap_or_default().to_owned(),
        items,
    }
}

#[test]
fn responses_agree_with_those_of_prometheus_adapter() {
    with_fixture(async |Fixture { cluster, token }| {
        let (mut compared, mut found, mut differences) = (0, 0, Vec::new());
        for case in cases() {
            let (theirs, ours) = pair(cluster, token, case.name, &case.config).await;
            // Longer than --metrics-relist-interval.
            tokio::time::sleep(Duration::from_secs(3)).await;
            for path in &case.paths {
                let asked = Instant::now();
                let ((their_code, their_body), (our_code, our_body), a, b) = loop {
                    let theirs = ask(theirs.port, token, path).await;
                    let ours = ask(ours.port, token, path).await;
                    let (a, b) = (normalized(theirs.0, &theirs.1), normalized(ours.0, &ours.1));
                    // prometheus-adapter may not have listed the series yet.
                    let listed = theirs.0 == 200 && !a.items.is_empty();
                    if a == b || listed || asked.elapsed() > Duration::from_secs(15) {
                        break (theirs, ours, a, b);
                    }
                    tokio::time::sleep(Duration::from_millis(200)).await;
                };
                compared += 1;
                found += usize::from(!a.items.is_empty());
                if a != b {
                    differences.push(format!(
                        "{}: {path}\n  theirs: {their_code} {their_body}\n  ours:   {our_code} {our_body}",
                        case.name
                    ));
                }
            }
        }
        let agreed = compared - differences.len();
        println!("{agreed} of {compared} requests agree; {found} of them found something");
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    });
}
