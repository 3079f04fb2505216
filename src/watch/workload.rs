//! Conversion of Deployments and StatefulSets to the records of the index.

use super::lean::Lean;
use super::records::ScaleRecord;
use super::rollout::{Revision, Rollout, Seen};
use crate::hpa::Scale;
use crate::k8s::Selector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A workload with only the fields that are used.
pub type LeanWorkload = Lean<LeanWorkloadSpec, LeanWorkloadStatus>;

/// A workload's spec with only the fields that are used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeanWorkloadSpec {
    replicas: Option<i32>,
    selector: LabelSelector,
    /// Of a Deployment.
    paused: bool,
    /// Of a Deployment.
    strategy: LeanStrategy,
    /// Of a StatefulSet.
    update_strategy: LeanUpdateStrategy,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct LeanStrategy {
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LeanUpdateStrategy {
    #[serde(rename = "type")]
    kind: Option<String>,
    rolling_update: Option<LeanRollingUpdate>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct LeanRollingUpdate {
    partition: Option<i32>,
}

/// A workload's status with only the fields that are used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeanWorkloadStatus {
    observed_generation: i64,
    replicas: i32,
    updated_replicas: i32,
    ready_replicas: i32,
    /// Of a StatefulSet.
    current_replicas: i32,
    /// Of a StatefulSet.
    current_revision: Option<String>,
    /// Of a StatefulSet.
    update_revision: Option<String>,
}

/// The scale of a workload, as its `/scale` would show it; none if its selector can't be
/// parsed, so that `/scale` is read instead.
pub fn scale(workload: LeanWorkload) -> Option<ScaleRecord> {
    let selector: Selector = Selector::from_object(&workload.spec.selector).ok()?;
    // Parsed from text, to have the order in which the API machinery writes it.
    let selector: Selector = selector.to_string().parse().ok()?;
    Some(ScaleRecord {
        replicas: Scale {
            // Source: `SetDefaults_Deployment` and `SetDefaults_StatefulSet`.
            spec_replicas: workload.spec.replicas.unwrap_or(1),
            status_replicas: workload.status.replicas,
        },
        selector: selector.to_string(),
        seen: seen(&workload),
        rollout: Rollout::default(),
    })
}

/// What a workload says of rollouts. Source: `calculateStatus` of the Deployment controller, and `updateStatefulSet`
/// of that of StatefulSets.
fn seen(workload: &LeanWorkload) -> Seen {
    let Lean { metadata, spec, status } = workload;
    let wanted = spec.replicas.unwrap_or(1);
    // Until then the status is that of the spec before.
    let is_current = metadata.generation.is_none_or(|now| status.observed_generation >= now);
    let common = Seen {
        wanted,
        updated: status.updated_replicas,
        ready: status.ready_replicas,
        ..Seen::default()
    };
    let Some(update) = status.update_revision.as_ref().filter(|name| !name.is_empty()) else {
        // A Deployment, whose pods that are being deleted don't count. While it is paused, its new template has no
        // ReplicaSet, and no pod counts as updated. An old pod that is drained comes again: only new ones tell progress.
        let annotations = metadata.annotations.as_ref();
        let named = annotations.and_then(|all| all.get("deployment.kubernetes.io/revision"));
        let is_rolling_out = !spec.paused && status.replicas > status.updated_replicas;
        return Seen {
            is_rolling_out,
            is_automatic: !spec.paused,
            tells_progress: is_current && is_rolling_out,
            is_settled: true,
            is_recreated: spec.strategy.kind.as_deref() == Some("Recreate"),
            revision: named.and_then(|number| number.parse().ok()).map(Revision::Number),
            ..common
        };
    };
    let mut hasher = DefaultHasher::new();
    update.hash(&mut hasher);
    let strategy = &spec.update_strategy;
    // Pods below the partition are to keep their template.
    let kept = strategy.rolling_update.as_ref().and_then(|rolling| rolling.partition).unwrap_or(0);
    let is_automatic = strategy.kind.as_deref() != Some("OnDelete") && kept < wanted;
    let is_updating = status.current_revision.as_ref().is_some_and(|current| current != update);
    // Pods that are being deleted count as replicas, and neither as current nor as updated.
    let old = if is_updating { status.current_replicas } else { 0 };
    Seen {
        // Without a partition its revision becomes the present one when all are updated and ready.
        is_rolling_out: is_automatic && is_updating && (kept == 0 || old > kept),
        is_automatic,
        // Otherwise a pod may be added to the part that has the new template.
        tells_progress: is_current && status.replicas == wanted,
        is_settled: status.updated_replicas + old == wanted,
        revision: Some(Revision::Name(hasher.finish())),
        ..common
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn seen_of(object: Value) -> Seen {
        scale(serde_json::from_value(object).expect("a workload")).expect("a scale").seen
    }

    #[test]
    fn a_rollout_of_a_deployment_is_seen_by_its_revision_and_by_its_old_pods() {
        let seen = |revision: Option<&str>, updated: i32, paused: bool| {
            seen_of(json!({
                "metadata": {"name": "web", "generation": 4, "annotations": {
                    "deployment.kubernetes.io/revision": revision, "other": "x"}},
                "spec": {"replicas": 3, "paused": paused,
                    "selector": {"matchLabels": {"app": "web"}}},
                "status": {"observedGeneration": 4, "replicas": 3, "updatedReplicas": updated,
                    "readyReplicas": 2}}))
        };
        let first = seen(Some("1"), 2, false);
        assert!(first.is_rolling_out && first.is_automatic && first.tells_progress);
        assert_eq!((first.wanted, first.updated, first.ready), (3, 2, 2));
        assert!(!seen(Some("1"), 3, false).is_rolling_out);
        assert_eq!(first.revision, seen(Some("1"), 3, false).revision);
        assert_ne!(first.revision, seen(Some("2"), 2, false).revision);
        // A new one has none.
        assert_eq!(seen(None, 3, false).revision, None);
        // Its new template has no ReplicaSet yet.
        let paused = seen(Some("1"), 0, true);
        assert!(!paused.is_rolling_out && !paused.is_automatic && !paused.tells_progress);
    }

    #[test]
    fn a_rollout_of_a_stateful_set_is_seen_by_what_its_strategy_replaces() {
        let seen = |strategy: Value, [replicas, current, updated]: [i32; 3], update: &str| {
            seen_of(json!({
                "metadata": {"name": "web", "generation": 4},
                "spec": {"replicas": 3, "updateStrategy": strategy,
                    "selector": {"matchLabels": {"app": "web"}}},
                "status": {"observedGeneration": 4, "replicas": replicas,
                    "currentReplicas": current, "updatedReplicas": updated, "readyReplicas": 3,
                    "currentRevision": "web-1", "updateRevision": update}}))
        };
        let all = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}});
        let canary = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 2}});
        let by_hand = json!({"type": "OnDelete"});
        for (strategy, counts, update, expected) in [
            (&all, [3, 3, 3], "web-1", false),
            // A pod is deleted.
            (&all, [3, 2, 2], "web-1", false),
            (&all, [3, 3, 0], "web-2", true),
            (&all, [3, 0, 2], "web-2", true),
            // All are new, and not all ready, or its revision would be the present one.
            (&all, [3, 0, 3], "web-2", true),
            (&canary, [3, 3, 0], "web-2", true),
            (&canary, [3, 2, 1], "web-2", false),
            // The updated one is drained.
            (&canary, [3, 2, 0], "web-2", false),
            (&by_hand, [3, 3, 0], "web-2", false),
            (&by_hand, [3, 1, 2], "web-2", false),
            (&json!({"rollingUpdate": {"partition": 3}}), [3, 3, 0], "web-2", false),
        ] {
            let seen = seen(strategy.clone(), counts, update);
            assert_eq!(seen.is_rolling_out, expected, "{strategy} {counts:?}");
            assert_eq!(seen.updated, counts[2]);
            assert_eq!(seen.is_automatic, *strategy == all || *strategy == canary);
        }
        for (counts, update, is_settled) in [
            ([3, 3, 3], "web-1", true),
            ([3, 2, 2], "web-1", false),
            ([3, 2, 1], "web-2", true),
            ([3, 1, 1], "web-2", false),
        ] {
            assert_eq!(seen(canary.clone(), counts, update).is_settled, is_settled, "{counts:?}");
        }
        assert!(seen(all.clone(), [3, 3, 0], "web-2").tells_progress);
        assert!(!seen(all.clone(), [2, 2, 0], "web-2").tells_progress);
        assert_eq!(seen(all, [0, 0, 0], "").revision, None);
    }

    #[test]
    fn a_status_of_the_spec_before_tells_no_progress() {
        let seen = |observed: i64| {
            seen_of(json!({
                "metadata": {"name": "web", "generation": 4},
                "spec": {"selector": {"matchLabels": {"app": "web"}}},
                "status": {"observedGeneration": observed, "replicas": 2, "updatedReplicas": 1}}))
        };
        assert!(seen(4).tells_progress && !seen(3).tells_progress);
    }
}
