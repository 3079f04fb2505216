//! What to do about a decision that can't be explained by its metrics. The words are those of
//! docs/troubleshooting.md, which has them in full.

use super::changes::used;
use crate::ledger::api::Decision;

/// One piece of advice.
struct Advice {
    /// The reason of a condition, metric or decision.
    reason: &'static str,
    /// What its message has to contain, if it is of one message only.
    message: &'static str,
    text: &'static str,
}

const fn of(reason: &'static str, message: &'static str, text: &'static str) -> Advice {
    Advice { reason, message, text }
}

const PROMETHEUS: &str =
    "Prometheus is away or fails: address, DNS, NetworkPolicy, certificate, overload";
const TOKEN: &str = "the token for Prometheus is wrong or has expired";
const RESOURCES: &str = "kubectl top pods -n NAMESPACE: the pods are new, or what serves metrics.k8s.io (metrics-server, or resourceRules in the configuration) has no usage of them";

/// What the published name of a metric without labels has: the hash of no labels.
const WITHOUT_LABELS: &str = "_74234e98afe7_";

/// The first that applies counts: those of a message stand before those of the reason.
const ADVICE: &[Advice] = &[
    of("Paused", "", "kubectl plimsoll resume NAME -n NAMESPACE ends the pause"),
    of(
        "Frozen",
        "",
        "kubectl plimsoll status says who froze the scales, why and until when; kubectl plimsoll thaw ends it",
    ),
    of("Preview", "", "set mode: Active in the spec, and Plimsoll writes the scale"),
    of("ScalingDisabled", "", "another writer has set zero, which is left alone: scale it to 1"),
    of(
        "",
        "no pods returned by selector",
        "no pod has the labels of the target's selector: kubectl get pods -n NAMESPACE --show-labels, and the events of the ReplicaSet if none can be made",
    ),
    of(
        "",
        "pods might be unready",
        "no pod has a sample that counts: the pods are not ready yet, or not scraped",
    ),
    of("", "parse error", "the message has line and column of what is wrong in query"),
    of(
        "",
        "Plimsoll's own parser",
        "Prometheus takes the query, Plimsoll can't keep it in its namespace",
    ),
    of(
        "",
        "aggregate by (pod)",
        "sum by (pod) (...): a namespace in the result is neither needed nor harmful",
    ),
    of("", "one was expected", "per: Workload needs one series: sum(...)"),
    of(
        "",
        "missing request for",
        "resources.requests of each container, such as of an injected sidecar; averageValue",
    ),
    of(
        "",
        "Prometheus refused the query",
        "the query as it is, in Prometheus: a type or a label does not fit, or matching is many-to-many",
    ),
    of(
        "",
        "returned only part of the result",
        "a store of Thanos, a remote read or a node of VictoriaMetrics is down",
    ),
    // Of a metric of any type: the query is right, or not known to be wrong.
    of("", "Prometheus did not answer", PROMETHEUS),
    of("", "Prometheus can't be reached", PROMETHEUS),
    of(
        "",
        "to this request and passes others",
        "a proxy before Prometheus does not pass this request, such as a web application firewall",
    ),
    of("", "Prometheus answered 401", TOKEN),
    of("", "Prometheus answered 403", TOKEN),
    of(
        "",
        "Prometheus answered 404",
        "the path of --prometheus-url is wrong, or an Ingress before it has no backend",
    ),
    of("", "Prometheus answered", PROMETHEUS),
    of("", "invalid response of Prometheus", PROMETHEUS),
    of(
        "FailedGetPodsMetric",
        WITHOUT_LABELS,
        "Prometheus has no metric of this name, or query names one that it does not have; it has no series in this namespace; the pods are not scraped; other label names than namespace and pod (podMetrics in the configuration)",
    ),
    of(
        "FailedGetPodsMetric",
        "",
        "Prometheus has no metric of this name, or query names one that it does not have; no series has its labels in this namespace; the pods are not scraped; other label names than namespace and pod (podMetrics in the configuration)",
    ),
    of(
        "FailedGetExternalMetric",
        "",
        "no series in this namespace; onEmpty: Zero if that means none",
    ),
    of("FailedGetResourceMetric", "", RESOURCES),
    of("FailedGetContainerResourceMetric", "", RESOURCES),
    of(
        "FailedGetObjectMetric",
        "",
        "kubectl get --raw of the metric: no series has the labels of that object",
    ),
    of("InvalidMetricSourceType", "", "a type of metric that this version does not know"),
    of("FailedGetScale", "", "the target does not exist, or its kind has no /scale"),
    of(
        "",
        "get the target's current scale",
        "the target does not exist, or its kind has no /scale",
    ),
    of(
        "InvalidSelector",
        "",
        "a selector may have 256 requirements, and 4,096 values altogether, in 345,856 bytes",
    ),
    of(
        "FailedDeleteHPA",
        "",
        "the native HPA of an Autoscaler that had executor: NativeHPA is still there, and scales; delete it, or allow Plimsoll to",
    ),
    of(
        "AmbiguousSelector",
        "",
        "two autoscalers select the same pods; an HPA that was not deleted",
    ),
    of(
        "FailedGetPodOwners",
        "",
        "allow Plimsoll to get that kind, unless it is a ReplicaSet or StatefulSet, which it may",
    ),
    of("WriteFailed", "", "the scale was not written: an admission webhook, a quota, RBAC"),
    of("FailedUpdateScale", "", "the scale was not written: an admission webhook, a quota, RBAC"),
    of("InvalidSpec", "", "plimsoll check -f AUTOSCALER.yaml names the field"),
];

/// What to do about a decision, and about the conditions of its autoscaler that say what is wrong: each a reason and a
/// message. None if nothing has to be done.
pub fn advice(
    decision: Option<&Decision>,
    conditions: &[(String, String)],
    (namespace, name): (&str, &str),
) -> Option<String> {
    let mut asked: Vec<(&str, &str)> = Vec::new();
    if let Some(decision) = decision {
        let message = decision.message.as_deref().unwrap_or_default();
        let carried = decision.carried_out.reason.as_str();
        match carried {
            "Paused" | "Frozen" | "Preview" | "WriteFailed" => asked.push((carried, message)),
            // kube-controller-manager decides; what Plimsoll lacks is told below.
            "Observed" => {}
            _ if decision.reason == "Paused" => asked.push(("ScalingDisabled", message)),
            _ => {}
        }
        // A metric that failed matters where none decided without it, or it holds the replicas, or does not wake them.
        let holds = decision.desired_replicas == Some(0)
            || matches!(&*decision.reason, "InvalidMetrics" | "Fallback" | "RecommendationFailed");
        if holds || used(decision).is_none() {
            let failed = decision.metrics.iter().filter(|metric| metric.status == "Invalid");
            asked.extend(failed.map(|metric| {
                let reason = metric.reason.as_deref().unwrap_or_default();
                (reason, metric.message.as_deref().unwrap_or_default())
            }));
            asked.extend(conditions.iter().map(|(reason, message)| (&**reason, &**message)));
            asked.push(("", message));
        }
    } else {
        asked.extend(conditions.iter().map(|(reason, message)| (&**reason, &**message)));
    }
    let applies = |advice: &&Advice, (reason, message): (&str, &str)| {
        (advice.reason.is_empty() || advice.reason == reason) && message.contains(advice.message)
    };
    let found = asked.iter().find_map(|of| ADVICE.iter().find(|advice| applies(advice, *of)))?;
    let text = found.text.replace("NAMESPACE", namespace);
    Some(text.replace("resume NAME", &format!("resume {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::LabelSet;
    use crate::promql::name::generated_name;
    use serde_json::json;

    #[test]
    fn labels_are_advised_on_only_where_a_metric_has_some() {
        let labels: LabelSet = serde_json::from_value(json!({"code": "500"})).unwrap();
        let to_do = |labels: Option<&LabelSet>| {
            let name = generated_name("http_requests_totl", labels, "shop", "web");
            let message = format!("unable to get metric {name}: no metrics returned");
            advice(None, &[("FailedGetPodsMetric".to_owned(), message)], ("shop", "web")).unwrap()
        };
        for (text, has_labels) in [(to_do(None), false), (to_do(Some(&labels)), true)] {
            assert!(text.starts_with("Prometheus has no metric of this name"), "{text}");
            assert_eq!(text.contains("has its labels"), has_labels, "{text}");
        }
    }

    /// The words of the troubleshooting page are those of `explain`.
    #[test]
    fn each_advice_stands_in_troubleshooting() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/troubleshooting.md");
        let page = std::fs::read_to_string(path).unwrap();
        let words = |text: &str| {
            let text = text.replace('`', "");
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let page = words(&page);
        for advice in ADVICE {
            assert!(page.contains(&words(advice.text)), "{}", advice.text);
            assert!(page.contains(advice.reason), "{}", advice.reason);
        }
    }
}
