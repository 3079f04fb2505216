//! Where KEDA scales otherwise than an Autoscaler could, and what it takes.

use super::tests::{converted, scaled, trigger};
use super::*;

const PREVIEW: &str = "may not scale as before";
const CRON: &str = "{type: cron, metadata: {timezone: UTC, start: 0 8 * * *, end: 0 18 * * *, desiredReplicas: '6'}}";

/// A trigger of this name.
fn named(name: &str) -> String {
    trigger("").replacen("metadata", &format!("name: {name}, metadata"), 1)
}

fn with_behavior(behavior: &str) -> String {
    format!("  advanced: {{horizontalPodAutoscalerConfig: {{behavior: {{{behavior}}}}}}}\n")
}

/// KEDA puts `replicas` in the place of each metric that failed, and its HPA takes the largest.
#[test]
fn a_static_fallback_is_that_of_each_metric() {
    for (fallback, expected) in [
        ("failureThreshold: 3, replicas: 6", json!({"failureDurationSeconds": 30, "replicas": 6})),
        (
            "failureThreshold: 4, replicas: 6, behavior: static",
            json!({"failureDurationSeconds": 40, "replicas": 6}),
        ),
        // KEDA applies it at once, and its HPA has no fewer than one.
        ("failureThreshold: 0, replicas: 0", json!({"failureDurationSeconds": 1, "replicas": 1})),
    ] {
        let (spec, notes) = scaled(&format!(
            "  minReplicaCount: 1\n  fallback: {{{fallback}}}\n  triggers: [{}, {}, {CRON}]\n",
            named("a"),
            named("b")
        ));
        assert_eq!(spec.get("fallback"), None, "{notes}");
        for metric in spec["customMetrics"].as_array().expect("a list") {
            assert_eq!(metric["fallback"], expected);
        }
        assert!(!notes.contains(PREVIEW), "{notes}");
    }
    // KEDA counts its polls, too.
    let (spec, _) = scaled(&format!(
        "  minReplicaCount: 1\n  pollingInterval: 5\n  fallback: {{failureThreshold: 4, replicas: 6}}\n  triggers: [{}]\n",
        trigger("")
    ));
    assert_eq!(spec["customMetrics"][0]["fallback"]["failureDurationSeconds"], 15);
    let (spec, notes) = scaled(&format!(
        "  minReplicaCount: 1\n  fallback: {{failureThreshold: 9000, replicas: 6}}\n  triggers: [{}]\n",
        trigger("")
    ));
    assert_eq!(spec["customMetrics"][0]["fallback"]["failureDurationSeconds"], 86_400);
    assert!(notes.contains(PREVIEW) && notes.contains("failureThreshold 9000"), "{notes}");
    let (spec, notes) = scaled(&format!(
        "  minReplicaCount: 1\n  pollingInterval: 2000000000\n  fallback: {{failureThreshold: 2000000000, replicas: 6}}\n  triggers: [{}]\n",
        trigger("")
    ));
    assert_eq!(spec["customMetrics"][0]["fallback"]["failureDurationSeconds"], 86_400);
    assert!(notes.contains(PREVIEW), "{notes}");
}

#[test]
fn a_fallback_without_an_exact_counterpart_is_a_preview() {
    let one = |behavior: &str, triggers: &str| {
        scaled(&format!(
            "  minReplicaCount: 1\n  fallback: {{failureThreshold: 3, replicas: 6, behavior: {behavior}}}\n  triggers: [{triggers}]\n"
        ))
    };
    let two = format!("{}, {}", named("a"), named("b"));
    let cpu = format!(
        "{}, {{type: cpu, metricType: Utilization, metadata: {{value: '60'}}}}",
        named("a")
    );
    for (behavior, triggers, is_exact) in [
        ("static", &two, true),
        ("currentReplicas", &two, true),
        ("currentReplicasIfHigher", &trigger(""), true),
        ("currentReplicasIfHigher", &two, false),
        ("currentReplicasIfHigher", &cpu, false),
        ("currentReplicasIfLower", &trigger(""), false),
        ("scalingModifiers", &trigger(""), false),
        // A version of KEDA after this one may know it.
        ("triggerScoped", &trigger(""), false),
    ] {
        let (spec, notes) = one(behavior, triggers);
        assert_eq!(notes.contains(PREVIEW), !is_exact, "{behavior}: {notes}");
        assert!(is_exact || notes.contains(behavior), "{behavior}: {notes}");
        let is_whole = behavior == "currentReplicasIfHigher";
        assert_eq!(spec.get("fallback").is_some(), is_whole, "{behavior}: {notes}");
    }
    let (spec, _) = one("currentReplicasIfHigher", &trigger(""));
    assert_eq!(spec["fallback"], json!({"failureThreshold": 3, "replicas": 6}));
    // Neither does KEDA read these.
    for triggers in [
        CRON.to_owned(),
        format!("{CRON}, {{type: memory, metricType: Utilization, metadata: {{value: '80'}}}}"),
    ] {
        let (spec, notes) = one("static", &triggers);
        assert!(notes.contains("fallback is left out"), "{notes}");
        assert!(!spec.to_string().contains("fallback") && !notes.contains(PREVIEW), "{notes}");
    }
    let formula = |target: &str| {
        scaled(&format!(
            "  minReplicaCount: 1\n  fallback: {{failureThreshold: 3, replicas: 6}}\n\
             \x20 advanced: {{scalingModifiers: {{formula: a + 1, target: '{target}'}}}}\n  triggers: [{}]\n",
            named("a")
        ))
    };
    assert_eq!(formula("7").0["customMetrics"][0]["fallback"]["replicas"], 6);
    let (spec, notes) = formula("7.5");
    assert_eq!(spec["customMetrics"][0].get("fallback"), None);
    assert!(notes.contains("fallback is left out") && !notes.contains(PREVIEW), "{notes}");
}

/// KEDA wakes a workload by its fallback.
#[test]
fn a_fallback_at_zero_is_a_preview() {
    for (spec, is_preview) in [
        ("  fallback: {failureThreshold: 3, replicas: 4}\n", true),
        (
            "  fallback: {failureThreshold: 3, replicas: 4, behavior: currentReplicasIfHigher}\n",
            true,
        ),
        (
            "  minReplicaCount: 2\n  idleReplicaCount: 0\n  fallback: {failureThreshold: 3, replicas: 4}\n",
            true,
        ),
        ("  minReplicaCount: 2\n  fallback: {failureThreshold: 3, replicas: 4}\n", false),
        ("", false),
    ] {
        let (_, notes) = scaled(&format!("{spec}  triggers: [{}]\n", trigger("")));
        assert_eq!(notes.contains(PREVIEW), is_preview, "{notes}");
        assert_eq!(notes.contains("fallback: a workload at zero"), is_preview, "{notes}");
    }
    // minReplicaCount is a bound of KEDA's HPA, whatever fails.
    let (spec, _) = scaled(&format!(
        "  minReplicaCount: 2\n  idleReplicaCount: 0\n  fallback: {{failureThreshold: 3, replicas: 4}}\n  triggers: [{}]\n",
        trigger("")
    ));
    let least = json!({"failureDurationSeconds": 30, "replicas": 2});
    assert_eq!(spec["customMetrics"][1]["fallback"], least);
}

/// KEDA writes the first replicas itself, and its HPA knows nothing of it.
#[test]
fn what_keeps_a_workload_at_zero_longer_than_keda_is_a_preview() {
    for (idle, behavior, is_preview) in [
        ("", "", false),
        ("", "scaleUp: {policies: [{type: Pods, value: 1, periodSeconds: 60}]}", false),
        ("", "scaleUp: {policies: [{type: Percent, value: 100, periodSeconds: 15}]}", true),
        ("", "scaleUp: {stabilizationWindowSeconds: 60}", true),
        ("", "scaleUp: {selectPolicy: Disabled}", true),
        ("", "scaleUp: {selectPolicy: Min}", true),
        ("  minReplicaCount: 4\n  idleReplicaCount: 0\n", "", false),
        ("  minReplicaCount: 20\n  idleReplicaCount: 0\n", "", false),
        (
            "  minReplicaCount: 20\n  idleReplicaCount: 0\n",
            "scaleUp: {policies: [{type: Pods, value: 4, periodSeconds: 15}]}",
            true,
        ),
        ("  minReplicaCount: 1\n", "scaleUp: {selectPolicy: Disabled}", false),
    ] {
        let (spec, notes) =
            scaled(&format!("{idle}{}  triggers: [{}]\n", with_behavior(behavior), trigger("")));
        assert_eq!(notes.contains(PREVIEW), is_preview, "{idle}{behavior}: {notes}");
        assert_eq!(
            notes.contains("at once, whatever behavior.scaleUp says"),
            is_preview,
            "{notes}"
        );
        if idle.contains("20") && !is_preview {
            // Those of an HPA without any, and one that is no more than these from minReplicaCount on.
            assert_eq!(
                spec["behavior"]["scaleUp"]["policies"],
                json!([{"type": "Percent", "value": 100, "periodSeconds": 15},
                    {"type": "Pods", "value": 20, "periodSeconds": 15}])
            );
        }
    }
}

/// KEDA goes to zero whatever its HPA may do.
#[test]
fn what_keeps_a_workload_from_zero_longer_than_keda_is_a_preview() {
    for (spec, behavior, is_preview) in [
        ("", "scaleDown: {stabilizationWindowSeconds: 300}", false),
        ("", "scaleDown: {selectPolicy: Disabled}", true),
        ("", "scaleDown: {policies: [{type: Pods, value: 1, periodSeconds: 60}]}", true),
        ("", "scaleDown: {policies: [{type: Percent, value: 100, periodSeconds: 15}]}", false),
        ("", "scaleDown: {policies: [{type: Pods, value: 100, periodSeconds: 15}]}", false),
        (
            "",
            "scaleDown: {selectPolicy: Min, policies: [{type: Percent, value: 100, periodSeconds: 15}, {type: Pods, value: 4, periodSeconds: 15}]}",
            true,
        ),
        (
            "  minReplicaCount: 2\n  idleReplicaCount: 0\n",
            "scaleDown: {selectPolicy: Disabled}",
            true,
        ),
        ("  minReplicaCount: 1\n", "scaleDown: {selectPolicy: Disabled}", false),
    ] {
        let (_, notes) =
            scaled(&format!("{spec}{}  triggers: [{}]\n", with_behavior(behavior), trigger("")));
        assert_eq!(notes.contains(PREVIEW), is_preview, "{behavior}: {notes}");
        assert_eq!(notes.contains("whatever behavior.scaleDown says"), is_preview, "{notes}");
    }
}

/// KEDA's HPA has the formula in the place of all but CPU and memory.
#[test]
fn cron_triggers_beside_a_formula_are_left_out() {
    let (spec, notes) = scaled(&format!(
        "  minReplicaCount: 1\n  advanced: {{scalingModifiers: {{formula: a * 2, target: '5'}}}}\n  triggers: [{}, {CRON}]\n",
        named("a")
    ));
    assert_eq!((spec.get("schedules"), spec.get("mode")), (None, None), "{notes}");
    assert!(notes.contains("cron triggers are left out"), "{notes}");
    // The object has no onEmpty.
    assert!(!notes.contains("onEmpty"), "{notes}");
    assert_eq!(spec["customMetrics"][0].get("onEmpty"), None);
}

/// `??` takes its right side at once, and KEDA only with fallback.behavior scalingModifiers.
#[test]
fn a_formula_that_replaces_missing_values_is_a_preview() {
    for (trigger, is_preview) in
        [(named("a"), false), (named("a").replace("'5',", "'5', ignoreNullValues: 'false',"), true)]
    {
        let (_, notes) = scaled(&format!(
            "  minReplicaCount: 1\n  advanced: {{scalingModifiers: {{formula: a ?? 5, target: '5'}}}}\n  triggers: [{trigger}]\n"
        ));
        assert_eq!(notes.contains(PREVIEW), is_preview, "{notes}");
    }
}

#[test]
fn cached_metrics_are_noted() {
    let cached = trigger("").replacen("metadata", "useCachedMetrics: true, metadata", 1);
    let (_, notes) = scaled(&format!("  minReplicaCount: 1\n  triggers: [{cached}]\n"));
    assert!(notes.contains("triggers[0]: useCachedMetrics is left out"), "{notes}");
    assert!(!notes.contains(PREVIEW), "{notes}");
}

#[test]
fn cron_expressions_of_keda_are_written_as_schedules_take_them() {
    for (keda, own) in [
        ("0 8 ? * *", "0 8 * * *"),
        ("0/15 8 * * *", "0-59/15 8 * * *"),
        ("*/15 8 1/2,31 * ?", "*/15 8 1-31/2,31 * *"),
        ("0 8 * 2/3 MON/2", "0 8 * 2-12/3 MON-6/2"),
        ("5-9/2 8/4 ?/3 * *", "5-9/2 8-23/4 */3 * *"),
    ] {
        let (spec, _) = scaled(&format!(
            "  triggers: [{{type: cron, metadata: {{timezone: UTC, start: '{keda}', end: 0 18 * * *, desiredReplicas: '6'}}}}]\n"
        ));
        assert_eq!(spec["schedules"][0]["start"], own, "{keda}");
    }
}

/// The second one is without a name, and would be `trigger-1`.
#[test]
fn a_name_that_another_trigger_has_gets_a_number() {
    let (spec, _) = scaled(&format!("  triggers: [{}, {}]\n", named("trigger-1"), trigger("")));
    let names: Vec<&Value> = spec["customMetrics"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|metric| &metric["metricName"])
        .collect();
    assert_eq!(names, [&json!("trigger-1"), &json!("trigger-1-2")]);
}

/// `kubectl get hpa,scaledobject` has both.
#[test]
fn an_hpa_that_another_object_has_made_is_left_out() {
    for (version, kind) in
        [("keda.sh/v1alpha1", "ScaledObject"), ("plimsoll.dev/v1alpha1", "Autoscaler")]
    {
        let made = converted(&format!(
            "{{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {{name: keda-hpa-w, namespace: shop, \
             ownerReferences: [{{apiVersion: {version}, kind: {kind}, name: w}}]}}, spec: {{scaleTargetRef: \
             {{apiVersion: apps/v1, kind: Deployment, name: w}}, maxReplicas: 3}}}}"
        ));
        assert!(made.objects.is_empty() && made.errors.is_empty(), "{made:?}");
        let expected =
            format!("HorizontalPodAutoscaler shop/keda-hpa-w: left out: {kind} w made it");
        assert!(made.notes[0].starts_with(&expected), "{made:?}");
    }
}

/// `kubectl apply` would keep the last one alone.
#[test]
fn the_second_autoscaler_of_a_name_is_an_error() {
    let hpa = |metadata: &str, target: &str| {
        format!(
            "---\n{{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {{{metadata}}}, spec: \
             {{scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {target}}}, maxReplicas: 3}}}}\n"
        )
    };
    let shop = "name: w, namespace: shop";
    let text =
        [hpa(shop, "a"), hpa("name: w, namespace: bank", "b"), hpa("name: w", "c"), hpa(shop, "d")];
    let made = converted(&text.concat());
    assert_eq!(made.objects.len(), 3, "{made:?}");
    let [error] = &made.errors[..] else { panic!("{made:?}") };
    assert!(error.starts_with("HorizontalPodAutoscaler shop/w: left out: "), "{error}");
}

#[test]
fn no_label_or_annotation_of_keda_is_kept() {
    let names = "{team: a, my-keda.sh/x: b, scaledobject.keda.sh/name: w, validations.keda.sh/hpa-ownership: 'true', keda.sh/z: c}";
    let made = converted(&format!(
        "{{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, metadata: {{name: w, namespace: shop, labels: {names}, annotations: {names}}}, \
         spec: {{scaleTargetRef: {{name: w}}, triggers: [{}]}}}}",
        trigger("")
    ));
    let metadata = &made.objects[0]["metadata"];
    let kept = json!({"team": "a", "my-keda.sh/x": "b"});
    assert_eq!((&metadata["labels"], &metadata["annotations"]), (&kept, &kept));
}

/// Whoever converts all objects of a cluster reads texts of each tenant.
#[test]
fn no_text_of_an_object_controls_a_terminal() {
    let made = converted(
        r#"{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, metadata: {name: w, namespace: shop}, spec:
           {scaleTargetRef: {name: w}, triggers: [{type: prometheus, metadata: {threshold: '5', query: 'sum(x)',
           serverAddress: "http://x\e]0;pwned\a\u202e"}}]}}
---
{apiVersion: "a\ev1", kind: "Po\ed", metadata: {name: "b\e"}}
---
{apiVersion: keda.sh/v1alpha1, kind: ScaledJob, metadata: {name: "b\e"}}
"#,
    );
    assert!(made.notes.len() > 1 && made.errors.len() == 1, "{made:?}");
    assert!(!yaml(&json!("a\u{1b}[2J")).contains('\u{1b}'));
    for text in made.notes.iter().chain(&made.errors) {
        assert!(!text.contains(super::super::story::is_unsafe), "{text:?}");
    }
}

/// There is one window for all scaling down, and KEDA waits for `cooldownPeriod` before zero alone.
#[test]
fn a_cooldown_or_window_that_keeps_replicas_for_long_is_a_preview() {
    let window = |seconds: i64| format!("scaleDown: {{stabilizationWindowSeconds: {seconds}}}");
    for (cooldown, behavior, expected, is_preview) in [
        (Some(600), String::new(), json!(600), false),
        (Some(601), String::new(), json!(601), true),
        (Some(3600), window(0), json!(3600), true),
        (Some(310), window(300), json!(310), true),
        // KEDA's is 300 s.
        (None, window(0), json!(300), true),
        (None, window(300), json!(300), false),
        (Some(60), window(0), json!(60), true),
        (Some(60), window(60), json!(60), false),
        (Some(0), window(0), json!(0), false),
        (Some(60), window(120), json!(120), false),
        (Some(30), window(330), json!(330), false),
        (Some(30), window(331), json!(331), true),
        (None, window(3600), json!(3600), true),
        (Some(60), String::new(), Value::Null, false),
    ] {
        let given = cooldown.map(|seconds| format!("  cooldownPeriod: {seconds}\n"));
        let (spec, notes) = scaled(&format!(
            "{}{}  triggers: [{}]\n",
            given.unwrap_or_default(),
            with_behavior(&behavior),
            trigger("")
        ));
        let at = "/behavior/scaleDown/stabilizationWindowSeconds";
        let made = spec.pointer(at).cloned().unwrap_or_default();
        assert_eq!(made, expected, "{cooldown:?} {behavior}: {notes}");
        assert_eq!(notes.contains(PREVIEW), is_preview, "{cooldown:?} {behavior}: {notes}");
        let is_told = notes.contains("any replica is removed") || notes.contains("sooner");
        assert_eq!(spec["mode"] == "Preview" && is_told, is_preview, "{notes}");
    }
    let (_, notes) = scaled(&format!(
        "  minReplicaCount: 1\n  cooldownPeriod: 3600\n  triggers: [{}]\n",
        trigger("")
    ));
    assert!(!notes.contains(PREVIEW), "{notes}");
}

/// It writes them with three digits behind the point; the target of a formula it cuts off.
#[test]
fn thresholds_are_rounded_as_keda_does() {
    for (threshold, expected, is_noted) in [
        ("0.0019", "0.002", true),
        ("100.0009", "100.001", true),
        ("0.0005001", "0.001", true),
        ("0.29", "0.29", false),
        ("1.005", "1.005", false),
        ("1e3", "1000", false),
        ("4.0000", "4", false),
        ("9000000000000000", "9000000000000000", false),
    ] {
        let trigger = trigger("").replace("'5'", &format!("'{threshold}'"));
        let (spec, notes) = scaled(&format!("  minReplicaCount: 1\n  triggers: [{trigger}]\n"));
        assert_eq!(spec["customMetrics"][0]["averageValue"], expected, "{notes}");
        let note = format!("triggers[0]: metadata.threshold \"{threshold}\": ");
        assert_eq!(notes.contains(&note), is_noted, "{notes}");
    }
    for threshold in ["0.0004", "0", "-1", "1e16", "NaN", "x"] {
        let trigger = trigger("").replace("'5'", &format!("'{threshold}'"));
        let more = named("a");
        let (spec, notes) = scaled(&format!("  triggers: [{more}, {trigger}]\n"));
        assert_eq!(spec["customMetrics"].as_array().map(Vec::len), Some(1), "{notes}");
        assert!(notes.contains("is not a number between 0.001 and 9.2e15"), "{notes}");
    }
    for (activation, expected, is_noted) in
        [("0.0019", json!("0.002"), true), ("0.0004", Value::Null, true), ("0", Value::Null, false)]
    {
        let active = trigger(&format!("activationThreshold: '{activation}'"));
        let (spec, notes) = scaled(&format!("  triggers: [{active}]\n"));
        assert_eq!(spec["customMetrics"][0]["activation"], expected, "{notes}");
        let note = format!("triggers[0]: metadata.activationThreshold \"{activation}\": ");
        assert_eq!(notes.contains(&note), is_noted, "{notes}");
    }
    let (spec, notes) = scaled(&format!(
        "  advanced: {{scalingModifiers: {{formula: a + 1, target: '0.0019', activationTarget: '7.0019'}}}}\n  triggers: [{}]\n",
        named("a")
    ));
    let metric = &spec["customMetrics"][0];
    assert_eq!(
        (&metric["averageValue"], &metric["activation"]),
        (&json!("0.001"), &json!("7.001"))
    );
    for field in ["target \"0.0019\"", "activationTarget \"7.0019\""] {
        assert!(notes.contains(&format!("advanced.scalingModifiers.{field}: ")), "{notes}");
    }
}

/// A trigger's total below 0 is 0 for KEDA's HPA and in a formula.
#[test]
fn totals_below_zero_are_read_as_keda_reads_them() {
    let (spec, notes) = scaled(&format!(
        "  minReplicaCount: 1\n  advanced: {{scalingModifiers: {{formula: a - 7, target: '5'}}}}\n  triggers: [{}]\n",
        named("a")
    ));
    let query = spec["customMetrics"][0]["query"].as_str().expect("a query");
    assert!(query.starts_with("(clamp_min("), "{query}");
    assert!(notes.contains("A result below 0 is 0 here"), "{notes}");
}
