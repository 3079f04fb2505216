//! What an Autoscaler has of the metadata of the object that it was.

use super::super::check_schema;
use super::super::objects::{name_fault, text};
use super::conversion::Conversion;
use serde_json::{Map, Value, json};

/// The labels and annotations by which Argo CD, Helm, kapp and others know what is theirs. Most of them prune an object
/// that has them and is not in what they apply.
const OWNERSHIP: [&str; 19] = [
    "addonmanager.kubernetes.io/mode",
    "app.kubernetes.io/instance",
    "applyset.kubernetes.io/part-of",
    "argocd.argoproj.io/instance",
    "argocd.argoproj.io/tracking-id",
    "argocd.argoproj.io/installation-id",
    "config.k8s.io/owning-inventory",
    "configmanagement.gke.io/managed",
    "helm.toolkit.fluxcd.io/name",
    "helm.toolkit.fluxcd.io/namespace",
    "kapp.k14s.io/app",
    "kapp.k14s.io/association",
    "kapp.k14s.io/identity",
    "kapp.k14s.io/original",
    "kapp.k14s.io/original-diff-md5",
    "kustomize.toolkit.fluxcd.io/name",
    "kustomize.toolkit.fluxcd.io/namespace",
    "meta.helm.sh/release-name",
    "meta.helm.sh/release-namespace",
];
/// The prefixes of those of Rancher and Config Sync.
const OF_OWNERS: [&str; 2] = ["objectset.rio.cattle.io", "configsync.gke.io"];

/// Why the metadata of an object can't be that of an Autoscaler. One that is only tried needs no name.
pub fn fault(object: &Value, is_tried: bool) -> Option<String> {
    let fields = ["name", "namespace", "labels", "annotations"];
    let fields = fields.map(|field| (field.to_owned(), object["metadata"][field].clone()));
    let metadata = match &object["metadata"] {
        Value::Object(_) | Value::Null => json!({"metadata": Map::from_iter(fields)}),
        other => json!({"metadata": other}),
    };
    let faults = check_schema::check("Autoscaler", &metadata).invalid;
    let of_schema = faults.into_iter().find(|fault| fault.starts_with("metadata"));
    let of_name = || match text(object, "/metadata/name") {
        "" => Some("metadata.name: missing, and required".to_owned()),
        name => name_fault(name).map(|fault| format!("metadata.name: {fault}")),
    };
    of_schema.or_else(|| if is_tried { None } else { of_name() })
}

/// The metadata that an Autoscaler keeps.
pub fn kept(object: &Value, conversion: &mut Conversion) -> Value {
    let mut metadata = json!({"name": conversion.name});
    if !conversion.namespace.is_empty() {
        metadata["namespace"] = json!(conversion.namespace);
    }
    // An Autoscaler stays the object that they own.
    let is_another = object["kind"] != "Autoscaler";
    let mut owned = Vec::new();
    for field in ["labels", "annotations"] {
        let all = object["metadata"][field].as_object().into_iter().flatten();
        let mut of_field = Map::new();
        for (name, value) in all.filter(|(name, _)| is_kept(name)) {
            match is_another && is_ownership(name, value) {
                true => owned.push(name.as_str()),
                false => {
                    of_field.insert(name.clone(), value.clone());
                }
            }
        }
        if !of_field.is_empty() {
            metadata[field] = Value::Object(of_field);
        }
    }
    if !owned.is_empty() {
        conversion.advise(&format!("{} left out: by {} Argo CD, Helm, kapp and others know what they own, and most may prune an object that has them and is not in what they apply", owned.join(", "), if owned.len() == 1 { "it" } else { "them" }));
    }
    metadata
}

/// Not kubectl's copy of the object, nor what is KEDA's: `kubectl apply` would remove the others, which it once wrote
/// itself.
fn is_kept(name: &str) -> bool {
    let prefix = prefix(name);
    let is_of_keda = prefix == "keda.sh" || prefix.ends_with(".keda.sh");
    !is_of_keda
        && prefix != "autoscaling.alpha.kubernetes.io"
        && name != "kubectl.kubernetes.io/last-applied-configuration"
}

fn is_ownership(name: &str, value: &Value) -> bool {
    OWNERSHIP.contains(&name)
        || OF_OWNERS.contains(&prefix(name))
        || (name == "app.kubernetes.io/managed-by" && value == "Helm")
}

fn prefix(name: &str) -> &str {
    name.split_once('/').map_or("", |(prefix, _)| prefix)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{converted, trigger};
    use super::*;

    fn scaled_object(version: &str, kind: &str, metadata: &str) -> super::super::Converted {
        converted(&format!(
            "{{apiVersion: {version}, kind: {kind}, metadata: {{{metadata}}}, spec: {{scaleTargetRef: {{name: web}}, \
             triggers: [{}]}}}}",
            trigger("")
        ))
    }

    #[test]
    fn metadata_that_an_autoscaler_can_not_have_is_an_error() {
        for (metadata, expected) in [
            (
                "name: web, annotations: {autoscaling.keda.sh/paused: true}",
                "metadata.annotations.autoscaling.keda.sh/paused: true: expected string",
            ),
            ("name: web, labels: {v: 1.10}", "metadata.labels.v: 1.1: expected string"),
            ("name: 8080", "metadata.name: 8080: expected string"),
            ("name: ''", "metadata.name: missing"),
            ("namespace: shop", "metadata.name: missing"),
            ("name: My_Worker", "metadata.name: \"My_Worker\": expected lower-case"),
        ] {
            let made = scaled_object("keda.sh/v1alpha1", "ScaledObject", metadata);
            assert!(made.objects.is_empty() && made.errors.len() == 1, "{made:?}");
            assert!(made.errors[0].contains(expected), "{:?}", made.errors);
        }
    }

    #[test]
    fn an_object_of_another_version_or_a_misspelled_kind_is_an_error() {
        for (version, kind, expected) in [
            ("keda.sh/v1", "ScaledObject", "apiVersion: \"keda.sh/v1\": expected keda.sh/v1alpha1"),
            ("keda.k8s.io/v1alpha1", "ScaledObject", "expected keda.sh/v1alpha1"),
            ("keda.sh/v1alpha1", "scaledobject", "kind: \"scaledobject\": expected ScaledObject"),
            (
                "autoscaling/v2beta2",
                "HorizontalPodAutoscaler",
                "apiVersion: \"autoscaling/v2beta2\": expected autoscaling/v2 or autoscaling/v1",
            ),
            ("plimsoll.dev/v1", "Autoscaler", "expected plimsoll.dev/v1alpha1"),
        ] {
            let made = scaled_object(version, kind, "name: web, namespace: shop");
            assert!(made.objects.is_empty() && made.notes.is_empty(), "{made:?}");
            assert!(made.errors.len() == 1 && made.errors[0].contains(expected), "{made:?}");
        }
        // Others are not meant to be converted.
        let made = scaled_object("v1", "Service", "name: web");
        assert_eq!((made.errors.len(), made.notes.len()), (0, 1), "{made:?}");
    }

    /// Argo CD and others would prune it, as it is not in what they apply.
    #[test]
    fn what_says_who_owns_an_object_is_left_out_with_a_note() {
        let metadata = "name: web, namespace: shop, labels: {team: a, app.kubernetes.io/instance: shop, \
            argocd.argoproj.io/instance: shop, app.kubernetes.io/managed-by: Helm, kapp.k14s.io/app: '1', \
            kapp.k14s.io/association: v1.x, objectset.rio.cattle.io/hash: abc, \
            kustomize.toolkit.fluxcd.io/name: shop, applyset.kubernetes.io/part-of: applyset-x-v1}, annotations: \
            {argocd.argoproj.io/tracking-id: 'shop:keda.sh/ScaledObject:shop/web', meta.helm.sh/release-name: web, \
            argocd.argoproj.io/sync-options: Prune=false, kapp.k14s.io/identity: 'v1;shop/keda.sh/ScaledObject/web', \
            kapp.k14s.io/change-group: apps, objectset.rio.cattle.io/id: x, config.k8s.io/owning-inventory: i}";
        let made = scaled_object("keda.sh/v1alpha1", "ScaledObject", metadata);
        let kept = &made.objects[0]["metadata"];
        assert_eq!(kept["labels"], json!({"team": "a"}));
        let others = json!({"argocd.argoproj.io/sync-options": "Prune=false", "kapp.k14s.io/change-group": "apps"});
        assert_eq!(kept["annotations"], others);
        let notes = made.notes.join("\n");
        for name in [
            "app.kubernetes.io/instance",
            "/tracking-id",
            "managed-by",
            "/release-name",
            "kapp.k14s.io/app",
            "/association",
            "/identity",
            "objectset.rio.cattle.io/hash",
            "/id",
            "kustomize.toolkit.fluxcd.io/name",
            "/part-of",
            "/owning-inventory",
        ] {
            assert!(notes.contains(name), "{name}: {notes}");
        }
        let made = converted(&format!(
            "{{apiVersion: plimsoll.dev/v1alpha1, kind: Autoscaler, metadata: {{{metadata}}}, spec: {{scaleTargetRef: \
             {{apiVersion: apps/v1, kind: Deployment, name: web}}, maxReplicas: 3}}}}"
        ));
        let kept = &made.objects[0]["metadata"];
        assert_eq!(kept["labels"].as_object().map(Map::len), Some(9), "{kept}");
        assert_eq!(made.notes, [""; 0]);
        let by_hand = "name: web, labels: {app.kubernetes.io/managed-by: hand}";
        let made = scaled_object("keda.sh/v1alpha1", "ScaledObject", by_hand);
        assert_eq!(made.objects[0]["metadata"]["labels"]["app.kubernetes.io/managed-by"], "hand");
    }
}
