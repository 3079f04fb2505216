//! Triggers that KEDA reads otherwise than their text alone says.

use super::tests::{converted, scaled, trigger};
use super::*;
use crate::commands::check_files;

const PREVIEW: &str = "may not scale as before";

/// A cron trigger in UTC that asks for so many replicas.
fn cron(start: &str, end: &str, replicas: &str) -> String {
    format!(
        "{{type: cron, metadata: {{timezone: UTC, start: '{start}', end: '{end}', desiredReplicas: '{replicas}'}}}}"
    )
}

/// The ScaledObject of a Prometheus trigger of this query, and with this metadata.
fn of_query(query: &str, metadata: &str) -> Converted {
    let query = query.replace("NS", "{namespace=\"shop\"}");
    converted(&format!(
        "{{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, metadata: {{name: web, namespace: shop}}, spec: \
         {{scaleTargetRef: {{name: web}}, triggers: [{{type: prometheus, metadata: {{query: '{query}', threshold: '5', \
         {metadata}}}}}]}}}}"
    ))
}

/// Without traffic the mean of a latency is NaN, which KEDA reads as 0: a workload goes to zero by it.
#[test]
fn nan_and_infinities_count_as_nothing_where_keda_ignores_them() {
    const MEAN: &str = "sum(rate(a_sumNS[2m])) / sum(rate(a_countNS[2m]))";
    for (query, expected) in [
        (MEAN, Some("(sum(rate(a_sumNS[2m])) / sum(rate(a_countNS[2m]))) < Inf > -Inf")),
        (
            "histogram_quantile(0.9, sum by (le) (rate(a_bucketNS[2m])))",
            Some("histogram_quantile(0.9, sum by (le) (rate(a_bucketNS[2m]))) < Inf > -Inf"),
        ),
        ("avg(rate(a_totalNS[2m]))", Some("avg(rate(a_totalNS[2m])) < Inf > -Inf")),
        ("sum(queueNS)", Some("sum(queueNS) < Inf > -Inf")),
        ("sum(job:latency:p99NS)", Some("sum(job:latency:p99NS) < Inf > -Inf")),
        ("vector(scalar(a_totalNS))", Some("vector(scalar(a_totalNS)) < Inf > -Inf")),
        ("ln(sum(a_totalNS)) or vector(0)", Some("(ln(sum(a_totalNS)) or vector(0)) < Inf > -Inf")),
        ("sum(queueNS) # all", Some("(sum(queueNS) # all\n) < Inf > -Inf")),
        ("sum(a_totalNS) / 0", Some("(sum(a_totalNS) / 0) < Inf > -Inf")),
        ("sum(rate(a_totalNS[2m]))", None),
        ("sum by (app) (increase(a_totalNS[2m])) / 60", None),
        ("sum(rate(a_totalNS[2m])) - 30 or vector(0)", None),
        ("max(a_totalNS) > 7", None),
        ("count(queueNS) + count(jobs_bucketNS)", None),
        ("sum(queueNS > bool 3) * 2", None),
        ("vector(100)", None),
    ] {
        let text = |query: &str| json!(query.replace("NS", "{namespace=\"shop\"}"));
        let made = of_query(query, "");
        let metric = &made.objects[0]["spec"]["customMetrics"][0];
        let query_then = text(expected.unwrap_or(query));
        assert_eq!((&metric["query"], &metric["onEmpty"]), (&query_then, &json!("Zero")));
        let is_noted = made.notes.iter().any(|note| note.contains("leaves NaN and infinities out"));
        assert_eq!(is_noted, expected.is_some(), "{query}: {:?}", made.notes);
        let strict = of_query(query, "ignoreNullValues: 'false'");
        assert_eq!(strict.objects[0]["spec"]["customMetrics"][0]["query"], text(query));
        if expected.is_some() {
            let checked = check_files::tests::checked(&yaml(&made.objects[0])).texts;
            assert!(checked.errors.is_empty() && checked.warnings.is_empty(), "{checked:?}");
        }
    }
}

/// The second metric of an idle workload is of the same values.
#[test]
fn an_idle_workload_has_no_bound_by_nan() {
    let (spec, _) = scaled(
        "  idleReplicaCount: 0\n  minReplicaCount: 3\n  triggers: [{type: prometheus, metadata: {threshold: '5', \
         query: 'avg(x{namespace=\"shop\"})'}}]\n",
    );
    assert_eq!(
        spec["customMetrics"][1]["query"],
        "((avg(x{namespace=\"shop\"}) < Inf > -Inf\n) > bool 0) * 3"
    );
}

/// KEDA's formula gives NaN for 0 / 0, by which nothing is active.
#[test]
fn a_formula_that_divides_by_zero_gives_zero() {
    let [a, b] = ["a", "b"].map(|name| {
        let query = format!("sum({name}{{namespace=\"shop\"}})");
        format!(
            "{{type: prometheus, name: {name}, metadata: {{query: '{query}', threshold: '5'}}}}"
        )
    });
    for (formula, is_doubled) in [
        ("a / b", true),
        ("a > 5 ? a / b : 1", true),
        ("a ** 0.5", true),
        ("(a + b) / 2", false),
        ("max([a, b]) - 7", false),
        ("a > 5 ? a : b * 3", false),
        ("round(a) + ceil(b)", false),
    ] {
        let (spec, notes) = scaled(&format!(
            "  advanced: {{scalingModifiers: {{formula: '{formula}', target: '5'}}}}\n  triggers: [{a}, {b}]\n"
        ));
        let query = spec["customMetrics"][0]["query"].as_str().expect("a query");
        let half =
            query.strip_suffix(") == bool 0").and_then(|query| query.split_once(") >= -Inf or ("));
        let half =
            half.map(|(left, right)| (left.strip_prefix('(').expect("a parenthesis"), right));
        assert_eq!(half.is_some(), is_doubled, "{formula}: {query}");
        assert!(half.is_none_or(|(left, right)| left == right), "{query}");
        assert_eq!(
            notes.contains("NaN, as of 0 / 0, counts as 0"),
            is_doubled,
            "{formula}: {notes}"
        );
    }
}

/// For KEDA it is a window while the next end comes before the next start.
#[test]
fn a_cron_trigger_whose_starts_and_ends_do_not_take_turns_is_a_preview() {
    for (start, end, is_preview) in [
        ("0 8 * * *", "0 18 * * *", false),
        ("0 20 * * *", "0 6 * * *", false),
        ("0 8 * * 1-5", "0 18 * * 1-5", false),
        ("0 22 * * 1-5", "0 6 * * 2-6", false),
        ("0 8 1 * *", "0 8 3 * *", false),
        ("0 8,14 * * *", "0 12,18 * * *", false),
        ("*/2 * * * *", "1-59/2 * * * *", false),
        // It begins once a year.
        ("0 0 20 12 *", "0 0 27 12 *", false),
        ("0 8 * * *", "0 18 * * 1-5", true),
        ("0 8 * * 1-5", "0 20 * * *", true),
        ("0 8,9 * * *", "0 18 * * *", true),
        ("0 8 * * *", "0 8,18 * * *", true),
        // Not each month has a day 31.
        ("0 8 1 * *", "0 8 31 * *", true),
    ] {
        let cron = cron(start, end, "9");
        let (spec, notes) = scaled(&format!("  minReplicaCount: 1\n  triggers: [{cron}]\n"));
        assert_eq!(spec["schedules"][0]["minReplicas"], 9);
        assert_eq!(notes.contains(PREVIEW), is_preview, "{start} {end}: {notes}");
        assert_eq!(
            notes.contains("triggers[0]: its starts and ends do not take turns"),
            is_preview
        );
    }
}

/// The replicas of a schedule and of a fallback are there whatever the policies are, and KEDA's are not.
#[test]
fn what_would_add_replicas_where_scaling_up_is_disabled_is_a_preview() {
    const PAUSED: &str = "autoscaling.keda.sh/paused-scale-out: 'true'";
    const DISABLED: &str = "advanced: {horizontalPodAutoscalerConfig: {behavior: {scaleUp: {selectPolicy: Disabled}}}}";
    let fallback = |replicas: i32, behavior: &str| {
        format!("fallback: {{failureThreshold: 3, replicas: {replicas}, behavior: {behavior}}}")
    };
    let higher = |replicas| fallback(replicas, "currentReplicasIfHigher");
    let (load, nine) = (trigger(""), cron("0 8 * * *", "0 18 * * *", "9"));
    let two = nine.replace("'9'", "'2'");
    let one = |trigger: &str| format!("triggers: [{trigger}]");
    let both = |cron: &str| format!("triggers: [{load}, {cron}]");
    let (alone, nine, two) = (one(&load), both(&nine), both(&two));
    for (annotation, spec, triggers, expected) in [
        (PAUSED, "", &nine, Some("schedules")),
        ("", DISABLED, &nine, Some("schedules")),
        (PAUSED, &*higher(6), &alone, Some("fallback")),
        ("", &*format!("{DISABLED}, {}", higher(6)), &alone, Some("fallback")),
        // No more than there are at least.
        (PAUSED, "", &two, None),
        (PAUSED, &*higher(2), &alone, None),
        // It asks for them as any metric does.
        (PAUSED, &*fallback(6, "static"), &alone, None),
        ("", "", &nine, None),
        // Nothing of KEDA's removes any but policies.
        ("autoscaling.keda.sh/paused-scale-in: 'true'", "", &nine, None),
    ] {
        let comma = if spec.is_empty() { "" } else { ", " };
        let made = converted(&format!(
            "{{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, metadata: {{name: web, namespace: shop, annotations: \
             {{{annotation}}}}}, spec: {{scaleTargetRef: {{name: web}}, minReplicaCount: 2, {triggers}{comma}{spec}}}}}"
        ));
        let notes = made.notes.join("\n");
        let is_preview = made.objects[0]["spec"]["mode"] == "Preview";
        assert_eq!(is_preview, expected.is_some(), "{annotation} {spec} {triggers}: {notes}");
        if let Some(part) = expected {
            let note =
                format!("{part}: replicas are added at once, whatever behavior.scaleUp says");
            assert!(notes.contains(&note), "{note}: {notes}");
        }
    }
}

/// KEDA's HPA has the formula in the place of all but CPU and memory of whole pods.
#[test]
fn a_metric_of_a_container_beside_a_formula_is_left_out() {
    let cpu = |container: &str| {
        format!("{{type: cpu, metricType: Utilization, metadata: {{value: '50'{container}}}}}")
    };
    let container = cpu(", containerName: app");
    let load = trigger("").replacen("metadata", "name: a, metadata", 1);
    let of = |advanced: &str, triggers: &str| {
        scaled(&format!("  minReplicaCount: 1\n{advanced}  triggers: [{load}, {triggers}]\n"))
    };
    let formula = "  advanced: {scalingModifiers: {formula: a * 2, target: '5'}}\n";
    let (spec, notes) = of(formula, &format!("{container}, {}", cpu("")));
    let kinds: Vec<&Value> = spec["metrics"].as_array().expect("a list").iter().collect();
    assert!(kinds.len() == 1 && kinds[0]["type"] == "Resource", "{kinds:?}");
    assert!(notes.contains("CPU and memory of a container are left out"), "{notes}");
    assert_eq!(spec.get("mode"), None, "{notes}");
    let (spec, _) = of(formula, &container);
    assert_eq!(spec.get("metrics"), None);
    let (spec, notes) = of("", &container);
    assert_eq!(spec["metrics"][0]["type"], "ContainerResource");
    assert!(!notes.contains("of a container"), "{notes}");
}

/// Totals are rounded up to thousandths, and KEDA's are not.
#[test]
fn a_target_of_which_a_thousandth_is_much_is_noted() {
    for (threshold, is_noted, is_preview) in [
        ("0.01", true, true),
        ("0.005", true, true),
        ("0.0101", true, true),
        ("0.011", true, false),
        ("0.049", true, false),
        ("0.05", false, false),
        ("5", false, false),
    ] {
        let load = trigger("").replace("'5'", &format!("'{threshold}'"));
        // What a trigger of a formula has for its own is read by nobody.
        let named = trigger("").replacen("metadata", "name: a, metadata", 1);
        let formula = format!(
            "  advanced: {{scalingModifiers: {{formula: a * 2, target: '{threshold}'}}}}\n"
        );
        for (advanced, one) in [("", &load), (&*formula, &named)] {
            let (_, notes) =
                scaled(&format!("  minReplicaCount: 1\n{advanced}  triggers: [{one}]\n"));
            assert_eq!(
                notes.contains("rounded up to thousandths"),
                is_noted,
                "{threshold}: {notes}"
            );
            assert_eq!(notes.contains(PREVIEW), is_preview, "{threshold}: {notes}");
        }
    }
}

/// KEDA reads it about zero alone.
#[test]
fn an_activation_is_kept_where_zero_is_possible() {
    let load = trigger("activationThreshold: '2'").replacen("metadata", "name: a, metadata", 1);
    let formula =
        "  advanced: {scalingModifiers: {formula: a * 2, target: '5', activationTarget: '2'}}\n";
    for advanced in ["", formula] {
        for (least, activation) in [
            ("", json!("2")),
            ("  minReplicaCount: 3\n  idleReplicaCount: 0\n", json!("2")),
            ("  minReplicaCount: 3\n", Value::Null),
        ] {
            let (spec, _) = scaled(&format!("{least}{advanced}  triggers: [{load}]\n"));
            assert_eq!(spec["customMetrics"][0]["activation"], activation, "{least}{advanced}");
            let object = json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
                "metadata": {"name": "web", "namespace": "shop"}, "spec": spec});
            assert_eq!(check_files::tests::checked(&yaml(&object)).texts.warnings, [""; 0]);
        }
    }
    // Each value is above it, as one below 0 counts as 0.
    for (least, is_noted) in [("", true), ("  minReplicaCount: 1\n", false)] {
        let load = load.replace("'2'", "'-2'");
        for advanced in ["", &*formula.replace("'2'", "'-2'")] {
            let (_, notes) = scaled(&format!("{least}{advanced}  triggers: [{load}]\n"));
            assert_eq!(notes.contains("an activation of -2 is below 0"), is_noted, "{notes}");
        }
    }
}

/// Its Autoscaler would scale what is not scaled now.
#[test]
fn what_keda_refuses_is_a_preview() {
    let load = trigger("");
    let eight = "timezone: UTC, start: 0 8 * * *, end: 0 18 * * *, desiredReplicas";
    for (triggers, expected) in [
        (
            "{type: cpu, metricType: Value, metadata: {value: '50'}}",
            "triggers[1]: metricType Value, which KEDA refuses here, is read as Utilization",
        ),
        (
            "{type: memory, metadata: {value: '50'}}",
            "triggers[1]: metricType is missing, which KEDA refuses, and is read as Utilization",
        ),
        (
            "{type: cpu, metadata: {value: '50', type: AverageValue}}",
            "triggers[1]: metricType is missing; metadata.type AverageValue, which KEDA reads no more since 2.18, is read in its place",
        ),
        (
            &*format!("{{type: cron, metricType: Utilization, metadata: {{{eight}: '5'}}}}"),
            "triggers[1]: metricType Utilization of a cron trigger has no counterpart",
        ),
        (
            &*format!("{{type: cron, metadata: {{{eight}: '0'}}}}"),
            "triggers[1] is left out: metadata.desiredReplicas \"0\" is refused by KEDA: expected a number other than 0",
        ),
        (
            &*trigger("ignoreNullValues: maybe"),
            "triggers[1]: metadata.ignoreNullValues \"maybe\", which KEDA refuses, is read as true",
        ),
    ] {
        let (spec, notes) =
            scaled(&format!("  minReplicaCount: 1\n  triggers: [{load}, {triggers}]\n"));
        assert_eq!(spec["mode"], "Preview", "{notes}");
        assert!(notes.contains(expected), "{expected}: {notes}");
    }
    let (spec, notes) = scaled(&format!("  idleReplicaCount: 0\n  triggers: [{load}]\n"));
    assert_eq!((&spec["mode"], &spec["minReplicas"]), (&json!("Preview"), &json!(0)));
    assert!(notes.contains("idleReplicaCount 0 is refused by KEDA"), "{notes}");
    for value in ["true", "T", "1", "f", "False"] {
        let load = trigger(&format!("ignoreNullValues: '{value}'"));
        let (_, notes) = scaled(&format!("  triggers: [{load}]\n"));
        assert!(!notes.contains(PREVIEW), "{notes}");
    }
}

#[test]
fn what_keda_refuses_of_a_whole_object_is_a_preview() {
    let [a, b] = ["x", "y"].map(|name| {
        format!("{{type: prometheus, name: a, metadata: {{query: 'sum({name}{{namespace=\"shop\"}})', threshold: '5'}}}}")
    });
    let modifiers = |fields: &str| {
        format!("  advanced: {{scalingModifiers: {{target: '3', formula: a{fields}}}}}\n")
    };
    for (fields, triggers, expected) in [
        (
            "  fallback: {failureThreshold: 3, replicas: -1}\n".to_owned(),
            a.clone(),
            "fallback is left out: its failureThreshold or replicas is below 0",
        ),
        (
            "  fallback: {failureThreshold: -1, replicas: 6, behavior: currentReplicasIfHigher}\n"
                .to_owned(),
            a.clone(),
            "is below 0, and KEDA has none then",
        ),
        (modifiers(""), format!("{a}, {b}"), "two triggers have the same name"),
        (
            modifiers(", metricType: Utilization"),
            a.clone(),
            "metricType \"Utilization\", which KEDA refuses, is read as AverageValue",
        ),
    ] {
        let (spec, notes) =
            scaled(&format!("{fields}  minReplicaCount: 1\n  triggers: [{triggers}]\n"));
        assert_eq!(spec["mode"], "Preview", "{notes}");
        assert!(notes.contains(expected), "{expected}: {notes}");
        assert!(
            spec["fallback"].is_null() && spec["customMetrics"][0]["fallback"].is_null(),
            "{spec}"
        );
    }
    // A name without a value is none.
    let cpu = "{type: cpu, metricType: Utilization, metadata: {value: '50', containerName: null}}";
    let (spec, notes) = scaled(&format!("  minReplicaCount: 1\n  triggers: [{cpu}]\n"));
    assert_eq!(spec["metrics"][0]["type"], "Resource", "{notes}");
}
