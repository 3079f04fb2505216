//! OpenAPI documents without paths: enough for kube-apiserver to aggregate them, and for kubectl.

use super::decisions;
use super::request::ApiGroup;
use serde_json::{Map, Value, json};

/// The prefix of the documents' paths.
pub const BASE: &str = "/openapi/";
const V2: &str = "/openapi/v2";
const V3: &str = "/openapi/v3";

/// The document at a path, if there is one.
pub fn document(path: &str, groups: &[ApiGroup]) -> Option<Value> {
    let info = json!({"title": "plimsoll", "version": env!("CARGO_PKG_VERSION")});
    let has_decisions = groups.contains(&ApiGroup::Decisions);
    if path == V2 {
        let mut document = json!({"swagger": "2.0", "info": info, "paths": {}});
        if has_decisions {
            let (definitions, paths) = decisions::openapi_v2();
            (document["definitions"], document["paths"]) = (definitions, paths);
        }
        return Some(document);
    }
    let below = path.strip_prefix(V3)?.trim_matches('/');
    let versions = || {
        groups.iter().flat_map(|group| {
            group
                .versions()
                .iter()
                .map(move |version| format!("apis/{}/{}", group.as_str(), version.as_str()))
        })
    };
    if below.is_empty() {
        let entry = |path: String| {
            let url = format!("{V3}/{path}?hash={}", env!("CARGO_PKG_VERSION"));
            (path, json!({"serverRelativeURL": url}))
        };
        let paths: Map<String, Value> = versions().map(entry).collect();
        return Some(json!({"paths": paths}));
    }
    let known = versions().any(|known| known == below);
    let mut document = known.then(|| json!({"openapi": "3.0.0", "info": info, "paths": {}}))?;
    if below.starts_with(&format!("apis/{}/", ApiGroup::Decisions.as_str())) {
        let (schemas, paths) = decisions::openapi_v3();
        (document["components"], document["paths"]) = (json!({"schemas": schemas}), paths);
    }
    Some(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_served_groups_have_documents() {
        let served = [ApiGroup::Custom];
        let index = document("/openapi/v3", &served).unwrap();
        let path = "apis/custom.metrics.k8s.io/v1beta2";
        assert!(index["paths"][path]["serverRelativeURL"].is_string());
        assert!(document(&format!("/openapi/v3/{path}"), &served).is_some());
        assert!(document("/openapi/v3/apis/metrics.k8s.io/v1beta1", &served).is_none());
        assert!(document("/openapi/v2", &served).is_some());
    }
}
