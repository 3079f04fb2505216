//! Autoscalers of one target, in the files of `plimsoll check -f`.

use super::check_context::named;
use super::objects::{maker, target};
use super::story::enumerated;
use crate::hpa::{TargetRef, parse_group};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

const AUTOSCALER: &str = "Autoscaler";
/// How many of the others a warning names.
const NAMED: usize = 3;
/// What comes of an HPA of the same target.
const HELD_BACK: &str = "so that the Autoscaler does not (AmbiguousSelector), but with --native-hpas=ignore each overwrites the other";

/// An object that scales a target.
pub struct Scaler {
    namespace: String,
    target: Target,
    rival: Rival,
    is_preview: bool,
}

/// What is scaled, in any version of its group.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Target {
    group: String,
    kind: String,
    name: String,
}

/// An object that scales a target beside another one. Autoscalers come first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Rival {
    kind: &'static str,
    name: String,
    /// What has made it, as [`maker`] names that.
    maker: Option<String>,
}

impl Scaler {
    /// The object of a file, if it is one, in this namespace.
    pub fn read(object: &Value, namespace: &str) -> Option<Self> {
        let group = parse_group(object["apiVersion"].as_str()?).ok()?;
        let kinds = [
            ("plimsoll.dev", AUTOSCALER),
            ("autoscaling", "HorizontalPodAutoscaler"),
            ("keda.sh", "ScaledObject"),
        ];
        let kind = object["kind"].as_str()?;
        let (_, kind) = kinds.into_iter().find(|known| *known == (group, kind))?;
        let TargetRef { api_version, kind: of_kind, name } = target(object)?;
        let own_name = object["metadata"]["name"].as_str()?.to_owned();
        Some(Self {
            namespace: namespace.to_owned(),
            target: Target {
                group: parse_group(&api_version).ok()?.to_owned(),
                kind: of_kind,
                name,
            },
            rival: Rival { kind, name: own_name, maker: maker(object) },
            is_preview: object["spec"]["mode"] == "Preview",
        })
    }
}

impl Rival {
    /// An Autoscaler.
    pub fn autoscaler(name: String) -> Self {
        Self { kind: AUTOSCALER, name, maker: None }
    }

    /// An HPA, which another object may have made.
    pub fn hpa(name: String, maker: Option<String>) -> Self {
        Self { kind: "HorizontalPodAutoscaler", name, maker }
    }

    /// The object, as [`maker`] names it.
    pub fn as_maker(&self) -> String {
        format!("{} {}", self.kind, self.name.escape_debug())
    }

    /// Whether one of these has made it: it scales for that one.
    pub fn is_made_by(&self, is_there: impl FnOnce(&str) -> bool) -> bool {
        self.maker.as_deref().is_some_and(is_there)
    }
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.escape_debug(), self.name.escape_debug())?;
        match self.maker.as_deref() {
            Some(maker) if maker.starts_with("ScaledObject") => write!(f, " of KEDA's {maker}"),
            Some(maker) => write!(f, " of {maker}"),
            None => Ok(()),
        }
    }
}

/// The warnings of Autoscalers whose target other objects of the files scale, too: one for each.
pub fn warnings(scalers: &[Scaler]) -> Vec<String> {
    // What is made counts as its maker, where that scales the same target.
    let active = || scalers.iter().filter(|one| !one.is_preview);
    let makers: BTreeSet<(&str, &Target, String)> =
        active().map(|one| (&*one.namespace, &one.target, one.rival.as_maker())).collect();
    let mut of_targets: BTreeMap<(&str, &Target), BTreeSet<&Rival>> = BTreeMap::new();
    for Scaler { namespace, target, rival, .. } in active() {
        let is_there = |maker: &str| makers.contains(&(&**namespace, target, maker.to_owned()));
        if !rival.is_made_by(is_there) {
            of_targets.entry((namespace, target)).or_default().insert(rival);
        }
    }
    let mut texts = Vec::new();
    for ((namespace, target), scalers) in &of_targets {
        let target = format!("{} {}", target.kind, target.name);
        for one in scalers.iter().filter(|one| one.kind == AUTOSCALER) {
            let others = scalers.iter().filter(|other| *other != one).copied();
            if let Some(text) = rivals_text(others, scalers.len() - 1, &target) {
                texts.push(format!("{}: {text}", named("autoscaler", namespace, &one.name)));
            }
        }
    }
    texts
}

/// That so many others, in their order, have the target of an Autoscaler, and what to do; none if there are none.
pub fn rivals_text<'a>(
    others: impl Iterator<Item = &'a Rival>,
    count: usize,
    target: &str,
) -> Option<String> {
    let named: Vec<&Rival> = others.take(NAMED).collect();
    let (first, is_made) = (named.first()?, named.iter().any(|one| one.maker.is_some()));
    let what_to_do = match (first.kind == AUTOSCALER, count) {
        (true, 1) => "so that neither decides (AmbiguousSelector): delete one of them".to_owned(),
        (true, _) => "so that none decides (AmbiguousSelector): delete all but one".to_owned(),
        (false, 1) => {
            let maker = first.maker.as_deref().and_then(|maker| maker.split(' ').next());
            let it = maker.map_or("it".to_owned(), |kind| format!("the {kind}"));
            format!("{HELD_BACK}: delete {it}, or set mode: Preview here until it is gone")
        }
        (false, _) => {
            let them = if is_made { "them and what has made them" } else { "them" };
            format!("{HELD_BACK}: delete {them}, or set mode: Preview here until they are gone")
        }
    };
    let mut names: Vec<String> = named.iter().map(ToString::to_string).collect();
    if count > names.len() {
        names.push(format!("{} more", count - names.len()));
    }
    let names = enumerated(names);
    let verb = if count == 1 { "scales" } else { "scale" };
    Some(format!("spec.scaleTargetRef: {names} {verb} {target}, too, {what_to_do}"))
}

#[cfg(test)]
mod tests {
    use super::super::check_files::tests::checked;

    const OURS: &str = "plimsoll.dev/v1alpha1";
    const KEDA: &str = "keda.sh/v1alpha1";
    const WEB: &str = "scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}";

    /// The warnings of targets; none of the objects has a metric.
    fn of_targets(mut warnings: Vec<String>) -> Vec<String> {
        warnings.retain(|warning| !warning.contains(": spec: no metric, "));
        warnings
    }

    fn object(version: &str, kind: &str, name: &str, more: &str) -> String {
        format!(
            "---\napiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{maxReplicas: 3, {more}}}\n"
        )
    }

    /// An HPA with this target that another object has made.
    fn made(name: &str, version: &str, kind: &str, maker: &str) -> String {
        let owner = format!("{{apiVersion: {version}, kind: {kind}, name: {maker}, uid: u}}");
        object("autoscaling/v2", "HorizontalPodAutoscaler", name, WEB)
            .replace("namespace: shop", &format!("namespace: shop, ownerReferences: [{owner}]"))
    }

    #[test]
    fn what_another_object_has_made_counts_only_without_that() {
        let autoscaler = object(OURS, "Autoscaler", "a", WEB);
        let scaled_object = object(KEDA, "ScaledObject", "b", "scaleTargetRef: {name: web}");
        let hpa = made("keda-hpa-b", KEDA, "ScaledObject", "b");
        let by_keda = "shop/a: spec.scaleTargetRef: HorizontalPodAutoscaler keda-hpa-b of KEDA's ScaledObject b scales Deployment web, too, so that the Autoscaler does not (AmbiguousSelector), but with --native-hpas=ignore each overwrites the other: delete the ScaledObject, or";
        let by_other =
            "shop/a: spec.scaleTargetRef: HorizontalPodAutoscaler b of Autoscaler b scales";
        for (objects, expected) in [
            (autoscaler.clone() + &made("a", OURS, "Autoscaler", "a"), None),
            (autoscaler.clone() + &hpa + &scaled_object, Some("ScaledObject b scales")),
            (autoscaler.clone() + &hpa, Some(by_keda)),
            (autoscaler.clone() + &made("b", OURS, "Autoscaler", "b"), Some(by_other)),
            // Its maker scales another workload now, or none.
            (
                autoscaler.clone() + &hpa + &scaled_object.replace("name: web", "name: worker"),
                Some(by_keda),
            ),
            (
                autoscaler.clone()
                    + &made("b", OURS, "Autoscaler", "b")
                    + &object(OURS, "Autoscaler", "b", &format!("{WEB}, mode: Preview")),
                Some(by_other),
            ),
            // Of another namespace.
            (autoscaler.clone() + &hpa + &scaled_object.replace("shop", "bank"), Some(by_keda)),
        ] {
            let warnings = of_targets(checked(&objects).texts.warnings);
            assert_eq!(warnings.len(), usize::from(expected.is_some()), "{warnings:?}");
            let found = expected.is_none_or(|expected| warnings[0].contains(expected));
            assert!(found, "{expected:?}: {warnings:?}");
        }
    }

    /// A generator, or a tenant, may make any number of them.
    #[test]
    fn many_of_one_target_are_one_warning_each() {
        let mut objects: String =
            (0..300).map(|n| object(OURS, "Autoscaler", &format!("a{n:03}"), WEB)).collect();
        objects += &object("autoscaling/v2", "HorizontalPodAutoscaler", "h", WEB);
        // The same object again is no other one.
        objects += &object(OURS, "Autoscaler", "a001", WEB);
        let warnings = of_targets(checked(&objects).texts.warnings);
        assert_eq!(warnings.len(), 300);
        assert!(warnings[1].starts_with("autoscaler shop/a001: spec.scaleTargetRef: Autoscaler a000, Autoscaler a002, Autoscaler a003 and 297 more scale Deployment web, too"), "{}", warnings[1]);
        assert!(warnings[9].contains(" Autoscaler a002 and 297 more "), "{}", warnings[9]);
        for warning in &warnings {
            assert!(warning.len() < 300, "{warning}");
        }
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
            let warnings = of_targets(found.texts.warnings);
            assert_eq!(warnings.len(), expected.len(), "{kind} {name} {more}: {warnings:?}");
            for (warning, expected) in warnings.iter().zip(expected) {
                assert!(warning.contains(expected), "{warning}");
            }
        }
    }
}
