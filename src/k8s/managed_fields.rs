//! Who owns `spec.replicas` of a workload, by `metadata.managedFields`. A write that changes a field takes it
//! from its other owners; one that applies the value that it has shares it.
//! Source: "Server-Side Apply" of the Kubernetes documentation.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use k8s_openapi::jiff::Timestamp;
use std::fmt;

/// The field manager of Plimsoll's own writes.
pub const FIELD_MANAGER: &str = "plimsoll";

/// A field manager that owns `spec.replicas`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicasOwner {
    /// Its name, which it chose itself: 128 characters at most.
    pub manager: String,
    /// How it wrote.
    pub way: Way,
    /// When it last changed what it owns, in whole seconds.
    pub time: Option<Timestamp>,
}

/// How a field manager wrote `spec.replicas`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By server-side apply of the whole object.
    Apply,
    /// By a write of the whole object, as a client-side apply is one.
    Update,
    /// By the `scale` subresource, as autoscalers and `kubectl scale` do.
    Scale,
}

impl Way {
    /// What to do so that it no longer changes the replicas.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Apply => {
                "remove spec.replicas from its manifest, once another manager owns the field, as it falls to 1 otherwise (Server-Side Apply, Transferring ownership); in Argo CD: ignoreDifferences with RespectIgnoreDifferences=true"
            }
            Self::Update => {
                "remove spec.replicas from its manifest (of kubectl apply by kubectl apply edit-last-applied first, or it falls to 1); in Argo CD: ignoreDifferences with RespectIgnoreDifferences=true. An edit by hand needs nothing more"
            }
            Self::Scale => {
                "a kubectl scale by hand needs nothing more; otherwise another autoscaler or a script scales the workload, too: remove one of the two"
            }
        }
    }
}

impl ReplicasOwner {
    /// Whether these are Plimsoll's own writes.
    pub fn is_plimsoll(&self) -> bool {
        self.manager == FIELD_MANAGER && self.way == Way::Scale
    }
}

impl fmt::Display for ReplicasOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.way {
            Way::Apply => "Apply",
            Way::Update => "Update",
            Way::Scale => "Update of the scale subresource",
        };
        write!(f, "field manager {:?} ({way}", self.manager)?;
        if let Some(time) = self.time {
            write!(f, ", {time}")?;
        }
        f.write_str(")")
    }
}

/// The owners of `spec.replicas`, the latest first.
pub fn replicas_owners(entries: &[ManagedFieldsEntry]) -> Vec<ReplicasOwner> {
    let owner = |entry: &ManagedFieldsEntry| {
        entry.fields_v1.as_ref()?.0.get("f:spec")?.get("f:replicas")?;
        let way = match (entry.subresource.as_deref(), entry.operation.as_deref()) {
            (Some("scale"), _) => Way::Scale,
            (_, Some("Apply")) => Way::Apply,
            _ => Way::Update,
        };
        let manager = entry.manager.clone().unwrap_or_default();
        Some(ReplicasOwner { manager, way, time: entry.time.as_ref().map(|time| time.0) })
    };
    let mut owners: Vec<ReplicasOwner> = entries.iter().filter_map(owner).collect();
    owners.sort_by_key(|owner| std::cmp::Reverse(owner.time));
    owners
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn owners_of_replicas_are_told_from_those_of_other_fields_and_by_their_way_to_write() {
        let entry = |manager: &str, operation: &str, subresource: Option<&str>, minute, spec| {
            json!({"manager": manager, "operation": operation, "subresource": subresource,
                "time": format!("2026-01-01T00:{minute}:00Z"), "apiVersion": "apps/v1",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": spec}})
        };
        let replicas = || json!({"f:replicas": {}});
        let entries = json!([
            entry("argocd-controller", "Apply", None, "10", replicas()),
            entry("helm", "Update", None, "12", replicas()),
            entry("plimsoll", "Update", Some("scale"), "11", replicas()),
            entry("editor", "Update", None, "30", json!({"f:template": {"f:replicas": {}}})),
            entry("status", "Update", Some("status"), "31", json!({})),
            json!({"manager": "empty", "operation": "Update"}),
        ]);
        let entries: Vec<ManagedFieldsEntry> = serde_json::from_value(entries).expect("entries");
        let owners = replicas_owners(&entries);
        let texts: Vec<String> = owners.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                r#"field manager "helm" (Update, 2026-01-01T00:12:00Z)"#,
                r#"field manager "plimsoll" (Update of the scale subresource, 2026-01-01T00:11:00Z)"#,
                r#"field manager "argocd-controller" (Apply, 2026-01-01T00:10:00Z)"#,
            ]
        );
        let ours: Vec<bool> = owners.iter().map(ReplicasOwner::is_plimsoll).collect();
        assert_eq!(ours, [false, true, false]);
        // Whoever calls himself so, but writes the whole object.
        let named = json!([entry("plimsoll", "Update", None, "10", replicas())]);
        let named: Vec<ManagedFieldsEntry> = serde_json::from_value(named).expect("entries");
        assert!(!replicas_owners(&named)[0].is_plimsoll());
    }
}
