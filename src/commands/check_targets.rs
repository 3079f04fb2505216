//! Autoscalers of one target, in the files of `plimsoll check -f`.

use super::objects::{maker, target};
use crate::hpa::{TargetRef, parse_group};
use serde_json::Value;

/// An object that scales a target.
#[derive(PartialEq)]
pub struct Scaler {
    kind: &'static str,
    namespace: String,
    name: String,
    target: Target,
    is_preview: bool,
}

/// What is scaled, in any version of its group.
#[derive(PartialEq)]
struct Target {
    group: String,
    kind: String,
    name: String,
}

impl Scaler {
    /// The object of a file, if it is one, in this namespace. One that another has made scales for that one.
    pub fn read(object: &Value, namespace: &str) -> Option<Self> {
        let group = parse_group(object["apiVersion"].as_str()?).ok()?;
        let kinds = [
            ("plimsoll.dev", "Autoscaler"),
            ("autoscaling", "HorizontalPodAutoscaler"),
            ("keda.sh", "ScaledObject"),
        ];
        let kind = object["kind"].as_str()?;
        let (_, kind) = kinds.into_iter().find(|known| *known == (group, kind))?;
        if maker(object).is_some() {
            return None;
        }
        let TargetRef { api_version, kind: of_kind, name } = target(object)?;
        Some(Self {
            kind,
            namespace: namespace.to_owned(),
            name: object["metadata"]["name"].as_str()?.to_owned(),
            target: Target {
                group: parse_group(&api_version).ok()?.to_owned(),
                kind: of_kind,
                name,
            },
            is_preview: object["spec"]["mode"] == "Preview",
        })
    }

    /// Whether both scale the same, and are two objects.
    fn rivals(&self, other: &Self) -> bool {
        let is_same = (self.kind, &self.name) == (other.kind, &other.name);
        let scale = !self.is_preview && !other.is_preview;
        scale && !is_same && self.namespace == other.namespace && self.target == other.target
    }
}

/// The warnings of Autoscalers whose target another object of the files scales, too.
pub fn warnings(scalers: &[Scaler]) -> Vec<String> {
    let mut texts = Vec::new();
    for one in scalers.iter().filter(|one| one.kind == "Autoscaler") {
        let Target { kind, name, .. } = &one.target;
        let target = format!("{kind} {name}");
        for other in scalers.iter().filter(|other| one.rivals(other)) {
            let text = match other.kind {
                "Autoscaler" => another_autoscaler(&other.name, &target),
                kind => another_scaler(&format!("{kind} {}", other.name), &target, "delete it"),
            };
            texts.push(format!("autoscaler {}/{}: {text}", one.namespace, one.name));
        }
    }
    texts.dedup();
    texts
}

/// That another Autoscaler has the target of one.
pub fn another_autoscaler(name: &str, target: &str) -> String {
    format!(
        "spec.scaleTargetRef: Autoscaler {name} scales {target}, too, so that neither decides (AmbiguousSelector): delete one of them"
    )
}

/// That an object of another kind has it, and what to do instead of both.
pub fn another_scaler(object: &str, target: &str, instead: &str) -> String {
    format!(
        "spec.scaleTargetRef: {object} scales {target}, too, and each overwrites the other: {instead}, or set mode: Preview here until it is gone"
    )
}

#[cfg(test)]
mod tests {
    use super::super::check_files::tests::checked;

    fn object(version: &str, kind: &str, name: &str, more: &str) -> String {
        format!(
            "---\napiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{maxReplicas: 3, {more}}}\n"
        )
    }

    #[test]
    fn what_another_object_has_made_is_no_second_autoscaler() {
        let web = "scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}";
        let made = object("autoscaling/v2", "HorizontalPodAutoscaler", "a", web).replace(
            "namespace: shop",
            "namespace: shop, ownerReferences: [{apiVersion: plimsoll.dev/v1alpha1, kind: Autoscaler, name: a, uid: u}]",
        );
        let both = object("plimsoll.dev/v1alpha1", "Autoscaler", "a", web) + &made;
        let warnings = checked(&both).texts.warnings;
        assert!(warnings.is_empty(), "{warnings:?}");
    }

    #[test]
    fn a_second_autoscaler_of_one_target_in_the_files_is_a_warning() {
        let web = "scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}";
        let preview = &format!("{web}, mode: Preview");
        let elsewhere = "scaleTargetRef: {apiVersion: apps/v1, kind: StatefulSet, name: web}";
        let short = "scaleTargetRef: {name: web}";
        let ours = ("plimsoll.dev/v1alpha1", "Autoscaler");
        let hpa = ("autoscaling/v2", "HorizontalPodAutoscaler");
        for ((version, kind), name, more, expected) in [
            (
                ours,
                "b",
                web,
                &[
                    "shop/a: spec.scaleTargetRef: Autoscaler b",
                    "shop/b: spec.scaleTargetRef: Autoscaler a",
                ][..],
            ),
            (ours, "a", web, &[]),
            (ours, "b", preview, &[]),
            (ours, "b", elsewhere, &[]),
            (
                hpa,
                "a",
                web,
                &[
                    "shop/a: spec.scaleTargetRef: HorizontalPodAutoscaler a scales Deployment web, too",
                ],
            ),
            (
                ("keda.sh/v1alpha1", "ScaledObject"),
                "a",
                short,
                &["shop/a: spec.scaleTargetRef: ScaledObject a"],
            ),
            (("example.com/v1", "ScaledObject"), "a", short, &[]),
        ] {
            let first = object(ours.0, ours.1, "a", web);
            let found = checked(&(first + &object(version, kind, name, more)));
            assert!(found.texts.errors.is_empty(), "{:?}", found.texts.errors);
            let warnings = &found.texts.warnings;
            assert_eq!(warnings.len(), expected.len(), "{kind} {name} {more}: {warnings:?}");
            for (warning, expected) in warnings.iter().zip(expected) {
                assert!(warning.contains(expected), "{warning}");
            }
        }
    }
}
