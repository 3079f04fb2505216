//! Objects that are not what they were meant to be, and how that is told.

use super::tests::{SERVER, converted, scaled, trigger};
use super::*;
use crate::commands::story::is_unsafe;

const TARGET: &str =
    "scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, maxReplicas: 3";

fn object(version: &str, kind: &str, metadata: &str, spec: &str) -> String {
    format!(
        "---\n{{apiVersion: {version}, kind: {kind}, metadata: {{name: web, namespace: shop{metadata}}}, spec: {spec}}}\n"
    )
}

fn hpa(spec: &str) -> String {
    object("autoscaling/v2", "HorizontalPodAutoscaler", "", spec)
}

fn scaled_object(spec: &str) -> String {
    object(
        "keda.sh/v1alpha1",
        "ScaledObject",
        "",
        &format!("{{scaleTargetRef: {{name: web}}, {spec}}}"),
    )
}

/// The only error, without the object that it begins with.
fn error(text: &str) -> String {
    let made = converted(text);
    assert!(made.objects.is_empty() && made.errors.len() == 1, "{text}: {made:?}");
    made.errors[0].split_once(": left out: ").expect("an object").1.to_owned()
}

fn tried(text: &str) -> Result<(Option<Value>, Vec<String>), String> {
    convert_one(&objects::parse(text).expect("YAML")[0], Some(SERVER))
}

#[test]
fn a_spec_or_metadata_that_is_no_map_is_an_error_of_that_object_alone() {
    let metrics = ", annotations: {autoscaling.alpha.kubernetes.io/metrics: '[{\"type\": \"Pods\", \"pods\": \
        {\"metricName\": \"x\", \"targetAverageValue\": \"1\"}}]'}";
    let behavior = ", annotations: {autoscaling.alpha.kubernetes.io/behavior: '{\"ScaleUp\": {}}'}";
    for (version, kind, metadata) in [
        ("autoscaling/v1", "HorizontalPodAutoscaler", metrics),
        ("autoscaling/v1", "HorizontalPodAutoscaler", behavior),
        ("autoscaling/v2", "HorizontalPodAutoscaler", ""),
        ("keda.sh/v1alpha1", "ScaledObject", ""),
        ("plimsoll.dev/v1alpha1", "Autoscaler", ""),
    ] {
        for (spec, expected) in [
            ("x", "spec: a string: expected object"),
            ("5", "spec: a number: expected object"),
            ("[1]", "spec: an array: expected object"),
            ("null", "spec: missing, and required"),
        ] {
            let text = object(version, kind, metadata, spec);
            assert_eq!(error(&text), expected, "{kind}");
            assert!(tried(&text).is_err(), "{text}");
            let both = converted(&(text + &hpa(&format!("{{{TARGET}}}"))));
            assert_eq!((both.objects.len(), both.errors.len()), (1, 1), "{both:?}");
        }
    }
    let named =
        "{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: x, spec: {TARGET}}";
    let error = tried(&named.replace("TARGET", TARGET)).expect_err("no metadata");
    assert!(error.ends_with("metadata: a string: expected object"), "{error}");
}

/// kubectl apply refuses it, and kube-apiserver would scale without it.
#[test]
fn a_field_that_an_hpa_does_not_have_is_an_error() {
    let (v1, v2) = ("autoscaling/v1", "autoscaling/v2");
    for (version, spec, expected) in [
        (
            v2,
            "minReplica: 2",
            "spec.minReplica: unknown field, which kubectl apply refuses and kube-apiserver drops: expected one of behavior, maxReplicas, metrics, minReplicas, scaleTargetRef; did you mean minReplicas?",
        ),
        (v2, "customMetrics: []", "spec.customMetrics: unknown field"),
        (
            v2,
            "targetCPUUtilizationPercentage: 60",
            "spec.targetCPUUtilizationPercentage: unknown field",
        ),
        (
            v1,
            "metrics: []",
            "expected one of maxReplicas, minReplicas, scaleTargetRef, targetCPUUtilizationPercentage",
        ),
        (
            v1,
            "targetCPUUtilizationPercentage: 0",
            "spec.targetCPUUtilizationPercentage: 0: at least 1 expected",
        ),
        (
            v2,
            "behavior: {scaleDown: {stabilizationWindow: 60}}",
            "spec.behavior.scaleDown.stabilizationWindow: unknown field",
        ),
        (
            v2,
            "metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilisation: 60}}}]",
            "spec.metrics[0].resource.target.averageUtilisation: unknown field",
        ),
    ] {
        let text = object(version, "HorizontalPodAutoscaler", "", &format!("{{{TARGET}, {spec}}}"));
        let error = error(&text);
        assert!(error.contains(expected), "{spec}: {error}");
        assert!(tried(&text).is_err_and(|error| error.contains(expected)), "{spec}");
    }
}

#[test]
fn a_field_of_a_behavior_that_keda_does_not_know_is_left_out() {
    let text = scaled_object(&format!(
        "minReplicaCount: 1, advanced: {{horizontalPodAutoscalerConfig: {{behavior: {{scaleDown: {{stabilizationWindow: 0, \
         policies: [{{type: Pods, value: 4, periodSeconds: 15, period: 3}}]}}}}}}}}, triggers: [{}]",
        trigger("")
    ));
    let made = converted(&text);
    assert_eq!(
        made.objects[0]["spec"]["behavior"],
        json!({"scaleDown": {"policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]}})
    );
    let notes = made.notes.join("\n");
    let path = "spec.advanced.horizontalPodAutoscalerConfig.behavior.scaleDown";
    for (field, known) in [
        ("stabilizationWindow", "policies, selectPolicy, stabilizationWindowSeconds, tolerance"),
        ("policies[0].period", "periodSeconds, type, value"),
    ] {
        let note = format!(
            "{path}.{field}: KEDA knows no such field, and it is left out: expected one of {known}"
        );
        assert!(notes.contains(&note), "{note}: {notes}");
    }
    // Whoever tries it would try something else.
    let error = tried(&text).expect_err("an unknown field");
    assert!(error.contains(&format!("{path}.")) && error.contains("unknown field"), "{error}");
}

#[test]
fn an_error_names_the_field_of_the_object_that_was_given() {
    let day = "{type: cron, metadata: {timezone: UTC, start: 0 8 * * *, end: 0 18 * * *, desiredReplicas: '6'}}";
    let load = trigger("");
    let of = |triggers: &str, more: &str| format!("triggers: [{load}, {day}, {triggers}]{more}");
    let zone = day.replace("UTC", "Europe/Berlim");
    let same = day.replace("0 18", "0 8");
    let behavior = |rules: &str| {
        of(day, &format!(", advanced: {{horizontalPodAutoscalerConfig: {{behavior: {rules}}}}}"))
    };
    let cpu = |metadata: &str| {
        format!("{{type: cpu, metricType: Utilization, metadata: {{{metadata}}}}}")
    };
    let long = load.replace("queue", "other").replacen(
        "metadata",
        &format!("name: {}, metadata", "a".repeat(300)),
        1,
    );
    let bytes = "{type: memory, metricType: AverageValue, metadata: {value: many}}";
    for (spec, expected) in [
        (of(&zone, ""), "spec.triggers[2].metadata.timezone: \"Europe/Berlim\": no such time zone"),
        (of(&same, ""), "spec.triggers[2].metadata.end: \"0 8 * * *\": the same times as start"),
        (
            of(&day.replace("0 8 *", "0 25 *"), ""),
            "spec.triggers[2].metadata.start: \"0 25 * * *\": hour 25",
        ),
        (of(&cpu("value: '0'"), ""), "spec.triggers[2].metadata.value: 0: at least 1 expected"),
        (
            of(&cpu("value: '60', containerName: A"), ""),
            "spec.triggers[2].metadata.containerName: \"A\": ",
        ),
        (of(&long, ""), "spec.triggers[2].name: 300 characters: at most"),
        (of(bytes, ""), "spec.triggers[2].metadata.value: \"many\": expected a quantity"),
        (
            of(day, ", minReplicaCount: 9, maxReplicaCount: 5"),
            "spec.maxReplicaCount: must be greater than or equal to minReplicaCount",
        ),
        (
            of(day, ", fallback: {failureThreshold: 3}"),
            "spec.fallback.replicas: missing, and required",
        ),
        (of(day, ", pollingInterval: fast"), "spec.pollingInterval: \"fast\": expected integer"),
        (
            of(day, ", maxReplicaCount: 3000000000"),
            "spec.maxReplicaCount: 3000000000: at most 2147483647 expected",
        ),
        (of("{metadata: {}}", ""), "spec.triggers[2].type: missing, and required"),
        (
            of("{type: cron, metadata: x}", ""),
            "spec.triggers[2].metadata: a string: expected object",
        ),
        ("triggers: {}".to_owned(), "spec.triggers: an object: expected array"),
        (
            behavior("[]"),
            "spec.advanced.horizontalPodAutoscalerConfig.behavior: an array: expected object",
        ),
        (behavior("{scaleDown: fast}"), "behavior.scaleDown: a string: expected object"),
        (
            behavior("{scaleDown: {stabilizationWindowSeconds: 7200}}"),
            "spec.advanced.horizontalPodAutoscalerConfig.behavior.scaleDown.stabilizationWindowSeconds: 7200: at most 3600",
        ),
    ] {
        let error = error(&scaled_object(&spec));
        assert!(error.contains(expected) && error.starts_with("spec."), "{expected}: {error}");
    }
}

#[test]
fn a_trigger_that_is_left_out_is_said_to_be() {
    for (wrong, expected) in [
        (
            "{type: cron, metadata: {timezone: UTC, start: 0 8 * * *, end: 0 18 * * *, desiredReplicas: five}}",
            "metadata.desiredReplicas \"five\" is not a whole number",
        ),
        (
            "{type: memory, metricType: Utilization, metadata: {value: 80%}}",
            "metadata.value \"80%\": a whole number of percent was expected, without %",
        ),
        (
            "{type: prometheus, metadata: {query: 'x{namespace=\"shop\"[1m]', threshold: '5'}}",
            "the query can't be read: ",
        ),
        (
            "{type: prometheus, metadata: {query: 'x{namespace=\"shop\"}', threshold: '0'}}",
            "metadata.threshold \"0\" is not a number between",
        ),
        (
            "{type: prometheus, metadata: {query: 'x{namespace=\"shop\"}'}}",
            "metadata.query and metadata.threshold are needed",
        ),
    ] {
        let (spec, notes) = scaled(&format!("  triggers: [{}, {wrong}]\n", trigger("")));
        assert_eq!(spec["mode"], "Preview");
        let expected = format!("triggers[1] is left out: {expected}");
        assert!(notes.contains(&expected), "{expected}: {notes}");
    }
}

#[test]
fn a_timeout_of_a_trigger_is_noted() {
    for (timeout, is_preview) in [("2000", false), ("60000", true), ("2m", true)] {
        let trigger = trigger(&format!("timeout: '{timeout}'"));
        let (_, notes) = scaled(&format!("  triggers: [{trigger}]\n"));
        let expected = format!("triggers[0]: metadata.timeout \"{timeout}\" is left out: ");
        assert!(notes.contains(&expected) && notes.contains(", 5 s if"), "{notes}");
        assert_eq!(notes.contains("may not scale as before"), is_preview, "{notes}");
    }
}

/// A tenant may write so many, and would keep whoever converts the objects of a cluster waiting.
#[test]
fn thousands_of_triggers_of_one_name_take_seconds_at_most() {
    let named = trigger("").replacen("metadata", "name: a, metadata", 1);
    let triggers = [named.as_str()].repeat(4_000).join(", ");
    let started = tokio::time::Instant::now();
    let error = error(&scaled_object(&format!("triggers: [{triggers}]")));
    assert_eq!(error, "spec.triggers: 4000 items: at most 24 expected");
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
}

#[test]
fn an_object_of_a_known_group_that_is_misspelled_is_an_error() {
    for (version, kind, expected) in [
        ("keda.sh/v1alpha1", "ScaleObject", "kind: \"ScaleObject\": expected ScaledObject"),
        ("keda.sh/v1alpha1", "''", "kind: missing, and required"),
        ("''", "''", "kind: missing, and required"),
        (
            "keda.sh/v1alpha1",
            "scaledobjectlist",
            "kind: \"scaledobjectlist\": expected ScaledObject",
        ),
        ("autoscaling/v2", "HPA", "kind: \"HPA\": expected HorizontalPodAutoscaler"),
        ("plimsoll.dev/v1alpha1", "AutoScalers", "kind: \"AutoScalers\": expected Autoscaler"),
    ] {
        assert_eq!(error(&object(version, kind, "", "{}")), expected);
    }
    for (version, kind) in [
        ("keda.sh/v1alpha1", "TriggerAuthentication"),
        ("plimsoll.dev/v1alpha1", "MetricRule"),
        ("autoscaling/v1", "Scale"),
        ("autoscaling.k8s.io/v1", "VerticalPodAutoscaler"),
    ] {
        let made = converted(&object(version, kind, "", "{}"));
        assert_eq!((made.errors.len(), made.notes.len()), (0, 1), "{made:?}");
    }
    // As `kubectl get --raw` prints it.
    let made = converted(&format!(
        "{{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscalerList, items: [{{metadata: {{name: a}}, spec: {{{TARGET}}}}}]}}"
    ));
    assert_eq!((made.objects.len(), made.errors.len()), (1, 0), "{made:?}");
    let error = error("{apiVersion: v1, kind: List, items: [{metadata: {name: a}, spec: {}}]}");
    assert_eq!(error, "kind: missing, and required");
}

#[test]
fn what_objects_are_yet_to_be_made_of_is_told() {
    for spec in ["minReplicas: '{{ .Values.min }}'", "metrics: [{type: '{{ .Values.metric }}'}]"] {
        let error = error(&hpa(&format!("{{{TARGET}, {spec}}}")));
        assert!(error.starts_with("it is a template of Helm"), "{error}");
    }
    let query = trigger("serverAddress: '{{ .Values.prometheus }}'");
    let error_of = error(&scaled_object(&format!("triggers: [{query}]")));
    assert!(error_of.starts_with("it is a template of Helm"), "{error_of}");
    let made = converted(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [a.yaml]\n",
    );
    assert!(made.errors.is_empty() && made.notes[0].contains("of kustomize"), "{made:?}");
    assert!(error("resources: [a.yaml]\n").starts_with("it is a file of kustomize"));
    // What is applied as it is.
    let made = converted(
        "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: a}\n",
    );
    assert!(made.notes[0].ends_with("it can't be converted"), "{made:?}");
}

/// A query could be read otherwise than it is, where the result is reviewed.
#[test]
fn nothing_of_the_result_is_unseen() {
    let metadata = r#", annotations: {"k\u202e": "a\u202e\tb", l: "a\n\tb\n", m: "x\u2028\ufeff\u200b\u0085\e"}"#;
    let text =
        object("autoscaling/v2", "HorizontalPodAutoscaler", metadata, &format!("{{{TARGET}}}"));
    let made = converted(&text).objects.remove(0);
    let written = yaml(&made);
    let is_seen = |one: char| matches!(one, '\n' | '\t') || !is_unsafe(one);
    assert!(written.chars().all(is_seen) && written.contains("k\\u202e"), "{written:?}");
    assert_eq!(
        objects::parse(&format!("---\n{written}---\n{written}")),
        Ok(vec![made.clone(), made])
    );
    // A tab in a query of several lines is.
    let tab = json!({"query": "sum(\n\tx)\n"});
    assert!(yaml(&tab).starts_with("query: |"), "{}", yaml(&tab));
}
