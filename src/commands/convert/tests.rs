//! Conversions of HorizontalPodAutoscalers and ScaledObjects.

use super::*;

pub const SERVER: &str = "http://prometheus:9090";

pub fn converted(text: &str) -> Converted {
    let mut converted = Converted { servers: vec![SERVER.to_owned()], ..Converted::default() };
    convert(text, &mut converted).unwrap();
    converted
}

/// The spec of the one Autoscaler that a ScaledObject in the namespace `shop` becomes, and the notes.
pub fn scaled(spec: &str) -> (Value, String) {
    let made = converted(&format!(
        "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\n\
         metadata: {{name: web, namespace: shop, labels: {{team: a}}}}\nspec:\n  scaleTargetRef: {{name: web}}\n{spec}"
    ));
    assert_eq!(made.errors, [""; 0]);
    assert_eq!(made.objects[0]["metadata"]["labels"]["team"], "a");
    (made.objects[0]["spec"].clone(), made.notes.join("\n"))
}

/// A Prometheus trigger whose query names its namespace, with more metadata.
pub fn trigger(metadata: &str) -> String {
    format!(
        "{{type: prometheus, metadata: {{query: 'sum(queue{{namespace=\"shop\"}})', threshold: '5', {metadata}}}}}"
    )
}

#[test]
fn a_prometheus_trigger_becomes_a_custom_metric_of_the_workload() {
    let (spec, notes) = scaled(
        "  minReplicaCount: 1\n  maxReplicaCount: 20\n\
         \x20 fallback: {failureThreshold: 3, replicas: 6}\n\
         \x20 advanced: {horizontalPodAutoscalerConfig: {behavior: {scaleDown: {stabilizationWindowSeconds: 60}}}}\n\
         \x20 triggers:\n\
         \x20 - type: prometheus\n    name: qps\n    metadata:\n      serverAddress: http://prometheus:9090/\n\
         \x20     query: sum(rate(http_requests_total{namespace=\"shop\"}[2m] offset 1m))\n      threshold: '100.0009'\n\
         \x20     activationThreshold: '2.5'\n      ignoreNullValues: 'false'\n\
         \x20 - {type: cpu, metricType: Utilization, metadata: {value: '60'}}\n",
    );
    assert_eq!(spec["maxReplicas"], 20);
    assert_eq!(spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"], 60);
    assert_eq!(
        spec["customMetrics"],
        json!([{"metricName": "qps", "per": "Workload", "averageValue": "100.001",
            "fallback": {"failureDurationSeconds": 30, "replicas": 6},
            "query": "sum(rate(http_requests_total{namespace=\"shop\"}[2m] offset 1m))"}])
    );
    assert_eq!(spec["metrics"][0]["resource"]["target"]["averageUtilization"], 60);
    assert!(!notes.contains("may not scale as before"), "{notes}");
}

#[test]
fn an_empty_result_is_zero_unless_the_trigger_says_otherwise() {
    for (metadata, expected) in [
        ("", json!("Zero")),
        ("ignoreNullValues: 'true'", json!("Zero")),
        ("ignoreNullValues: 'F'", Value::Null),
    ] {
        let (spec, _) = scaled(&format!("  triggers: [{}]\n", trigger(metadata)));
        assert_eq!(spec["customMetrics"][0]["onEmpty"], expected, "{metadata}");
    }
}

#[test]
fn a_cron_trigger_becomes_a_schedule() {
    let cron = "{type: cron, name: Day, metadata: {timezone: Europe/Berlin, start: 0 8 * * *, end: 0 18 * * *, desiredReplicas: '10'}}";
    let schedule = json!([{"name": "day-0", "timeZone": "Europe/Berlin", "start": "0 8 * * *",
        "end": "0 18 * * *", "minReplicas": 10}]);
    let (spec, _) = scaled(&format!("  triggers: [{cron}, {}]\n", trigger("")));
    assert_eq!((&spec["schedules"], &spec["minReplicas"]), (&schedule, &json!(0)));
    // A schedule takes the place of minReplicas, KEDA's does not.
    let (spec, _) = scaled(&format!("  minReplicaCount: 12\n  triggers: [{cron}]\n"));
    assert_eq!(spec["schedules"][0]["minReplicas"], 12);
    let (spec, notes) = scaled(&format!("  minReplicaCount: 2\n  triggers: [{cron}]\n"));
    assert_eq!(spec["schedules"], schedule);
    assert_eq!(spec["customMetrics"][0]["query"], "vector(0)");
    assert!(notes.contains("always 0"), "{notes}");
}

#[test]
fn a_formula_becomes_one_query() {
    let (spec, notes) = scaled(
        "  advanced: {scalingModifiers: {formula: (a + b) / 2, target: '7', activationTarget: '3'}}\n\
         \x20 triggers:\n\
         \x20 - {type: prometheus, name: a, metadata: {query: 'sum(x{namespace=\"shop\"})', threshold: '5', ignoreNullValues: 'false'}}\n\
         \x20 - {type: prometheus, name: b, metadata: {query: 'sum(y{namespace=\"shop\"})', threshold: '5', ignoreNullValues: 'false'}}\n",
    );
    let [metric] = &spec["customMetrics"].as_array().expect("a list")[..] else { panic!("{spec}") };
    assert_eq!((&metric["averageValue"], &metric["activation"]), (&json!("7"), &json!("3")));
    let query = metric["query"].as_str().expect("a query");
    assert!(
        query.contains("sum(x{namespace=\"shop\"}) < Inf") && query.ends_with("/ 2"),
        "{query}"
    );
    assert!(!notes.contains("may not scale as before"), "{notes}");
    let (_, notes) = scaled(&format!(
        "  advanced: {{scalingModifiers: {{formula: a in b, target: '7'}}}}\n  triggers: [{}]\n",
        trigger("")
    ));
    assert!(notes.contains("may not scale as before"), "{notes}");
    assert!(notes.contains("scalingModifiers.formula is left out: "), "{notes}");
}

#[test]
fn zero_while_idle_and_a_longer_cooldown_are_kept() {
    let (spec, notes) = scaled(&format!(
        "  minReplicaCount: 2\n  idleReplicaCount: 0\n  cooldownPeriod: 600\n  triggers: [{}]\n",
        trigger("activationThreshold: '1'")
    ));
    assert_eq!(spec["minReplicas"], 0);
    assert_eq!(
        spec["customMetrics"][1],
        json!({"metricName": "trigger-0_least", "per": "Workload", "averageValue": "1", "onEmpty": "Zero",
            "query": "((sum(queue{namespace=\"shop\"}) < Inf > -Inf\n) > bool 1) * 2"})
    );
    assert_eq!(spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"], 600);
    assert!(!notes.contains("may not scale as before"), "{notes}");
}

/// A tolerance would leave it a few below minReplicaCount, where KEDA's HPA has a bound.
#[test]
fn a_workload_that_is_not_idle_has_exactly_its_min_replica_count() {
    let tolerance = |direction: &str, min: i32, more: &str| {
        let (spec, notes) = scaled(&format!(
            "  minReplicaCount: {min}\n  idleReplicaCount: 0\n{more}  triggers: [{}]\n",
            trigger("")
        ));
        let tolerance = spec["behavior"][direction]["tolerance"].clone();
        let note = format!("{direction}.tolerance 0");
        assert_eq!(notes.contains(&note), tolerance == "0", "{notes}");
        tolerance
    };
    // Of 10 and 9 replicas the metric asks for 0.9 times as many, which the default tolerance lets be.
    for (direction, max_exact) in [("scaleUp", 10), ("scaleDown", 8)] {
        let own = format!(
            "  advanced: {{horizontalPodAutoscalerConfig: {{behavior: {{{direction}: {{tolerance: '0.2'}}}}}}}}\n"
        );
        assert_eq!(tolerance(direction, 20, "  cooldownPeriod: 600\n"), "0");
        assert_eq!(tolerance(direction, max_exact + 1, ""), "0");
        assert_eq!(tolerance(direction, max_exact, ""), Value::Null);
        assert_eq!(tolerance(direction, 5, &own), "0");
    }
}

/// CPU keeps a replica for as long as there is one, and KEDA scales to zero whatever it asks for.
#[test]
fn a_workload_that_cpu_would_keep_from_zero_is_a_preview() {
    let cron = "{type: cron, metadata: {timezone: UTC, start: 0 8 * * *, end: 0 18 * * *, desiredReplicas: '10'}}";
    let cpu = "{type: cpu, metricType: Utilization, metadata: {value: '60'}}";
    for (triggers, least) in [(cron, 1), (&*trigger(""), 0)] {
        let (spec, notes) = scaled(&format!("  triggers: [{triggers}, {cpu}]\n"));
        assert_eq!((&spec["mode"], &spec["minReplicas"]), (&json!("Preview"), &json!(least)));
        assert!(notes.contains("KEDA scales to zero whatever"), "{notes}");
        assert!(!notes.contains("nothing tells when to leave zero"), "{notes}");
        let (spec, notes) =
            scaled(&format!("  minReplicaCount: 1\n  triggers: [{triggers}, {cpu}]\n"));
        assert_eq!(spec.get("mode"), None, "{notes}");
    }
}

/// KEDA asks about zero only so often: its HPA decides all the time.
#[test]
fn only_a_polling_interval_below_the_sync_period_is_kept() {
    for (interval, period) in [(5, json!(5)), (15, Value::Null), (300, Value::Null)] {
        let (spec, notes) =
            scaled(&format!("  pollingInterval: {interval}\n  triggers: [{}]\n", trigger("")));
        assert_eq!(spec["syncPeriodSeconds"], period);
        assert!(notes.contains(&format!("pollingInterval {interval} s")), "{notes}");
    }
}

#[test]
fn an_incomplete_conversion_is_noted_and_a_preview() {
    let (spec, notes) = scaled(
        "  idleReplicaCount: 0\n  minReplicaCount: 1\n\
         \x20 triggers: [{type: kafka, metadata: {topic: x}}, {type: memory, metadata: {value: '80'}}]\n",
    );
    assert_eq!((&spec["mode"], &spec["minReplicas"]), (&json!("Preview"), &json!(1)));
    for expected in
        ["triggers[0] is left out: a trigger of type kafka", "idleReplicaCount", "`mode: Preview`"]
    {
        assert!(notes.contains(expected), "{expected}: {notes}");
    }
}

#[test]
fn an_object_that_would_read_other_series_or_scale_differently_is_a_preview() {
    let one = |spec: &str, metadata: &str, more: &str| {
        let trigger = trigger(metadata).replacen("metadata", &format!("{more} metadata"), 1);
        scaled(&format!("{spec}  triggers: [{trigger}]\n"))
    };
    for (spec, metadata, more) in [
        ("", "", ""),
        ("", "serverAddress: 'http://prometheus:9090/', unsafeSsl: 'false'", ""),
        ("  minReplicaCount: 1\n  cooldownPeriod: 600\n", "", ""),
        ("  cooldownPeriod: 60\n", "", ""),
    ] {
        let (_, notes) = one(spec, metadata, more);
        assert!(!notes.contains("may not scale as before"), "{notes}");
    }
    for (spec, metadata, more, expected) in [
        ("", "serverAddress: 'https://other:9090'", "", "serverAddress https://other:9090"),
        ("", "authModes: bearer", "", "authModes"),
        ("", "customHeaders: X-Scope-OrgID=t1", "", "customHeaders"),
        ("", "cortexOrgID: t1", "", "cortexOrgID"),
        ("", "namespace: t1", "", "metadata.namespace"),
        ("", "queryParameters: a=b", "", "queryParameters"),
        ("", "unsafeSsl: 'true'", "", "unsafeSsl"),
        ("", "", "authenticationRef: {name: a},", "authenticationRef"),
        ("  cooldownPeriod: 7200\n", "", "", "cooldownPeriod 7200 s"),
        ("  initialCooldownPeriod: 60\n", "", "", "initialCooldownPeriod"),
    ] {
        let (_, notes) = one(spec, metadata, more);
        assert!(notes.contains("may not scale as before"), "{expected}: {notes}");
        assert!(notes.contains(expected), "{notes}");
    }
    // Series of other namespaces are not read.
    for query in ["sum(queue)", "sum(queue{namespace=\"bank\"})", "a{namespace=\"shop\"} + b"] {
        let (_, notes) = scaled(&format!(
            "  triggers: [{{type: prometheus, metadata: {{query: '{query}', threshold: '5'}}}}]\n"
        ));
        assert!(notes.contains("may not scale as before"), "{notes}");
        assert!(notes.contains("not each selector of the query has namespace=\"shop\""), "{notes}");
    }
    // Without --prometheus-url, Plimsoll may query another server.
    let mut unknown = Converted::default();
    let text = format!(
        "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {{name: web, namespace: shop}}\n\
         spec: {{scaleTargetRef: {{name: web}}, triggers: [{}]}}\n",
        trigger("serverAddress: 'http://prometheus:9090'")
    );
    convert(&text, &mut unknown).unwrap();
    assert!(unknown.notes.join("\n").contains("may not scale as before"));
}

#[test]
fn an_unknown_field_of_an_autoscaler_is_an_error() {
    let made = converted(
        "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\nmetadata: {name: web, namespace: shop}\n\
         spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, maxReplicas: 3, \
         behaviour: {scaleDown: {selectPolicy: Disabled}}}\n",
    );
    assert!(made.objects.is_empty() && made.errors.len() == 1, "{made:?}");
    assert!(made.errors[0].contains("left out: spec.behaviour: unknown field"), "{made:?}");
}

#[test]
fn nobody_is_told_to_delete_what_was_left_out() {
    let made = converted(
        "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {name: web, namespace: shop}\n\
         spec: {scaleTargetRef: {name: web}, triggers: [{type: rabbitmq}]}\n",
    );
    let notes = made.notes.join("\n");
    assert!(made.objects.is_empty() && notes.contains("rabbitmq"), "{made:?}");
    assert!(!notes.contains("Delete the ScaledObject"), "{notes}");
}

#[test]
fn annotations_that_pause_are_kept() {
    let object = |annotation: &str| {
        converted(&format!(
            "{{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, metadata: {{name: web, namespace: shop, \
             annotations: {{autoscaling.keda.sh/{annotation}}}}}, spec: {{scaleTargetRef: {{name: web}}, \
             triggers: [{}]}}}}",
            trigger("")
        ))
    };
    let spec = |annotation: &str| object(annotation).objects[0]["spec"].clone();
    assert_eq!(spec("paused: 'true'")["mode"], "Paused");
    assert_eq!(spec("paused: 'F'").get("mode"), None);
    // Whatever else has no counterpart.
    let both = object("paused: 'true', autoscaling.keda.sh/force-activation: 'true'");
    assert_eq!(both.objects[0]["spec"]["mode"], "Paused");
    assert!(both.notes.join("\n").contains("KEDA has it paused"), "{:?}", both.notes);
    let held = object("paused-replicas: '0'");
    assert_eq!(held.objects[0]["spec"]["mode"], "Paused");
    assert!(held.notes.join("\n").contains("holds it at 0 replicas"), "{:?}", held.notes);
    let down = spec("paused-scale-in: 'true'");
    assert_eq!(down["behavior"]["scaleDown"]["selectPolicy"], "Disabled");
}

#[test]
fn an_autoscaler_of_0_1_0_gets_the_present_fields() {
    let made = converted(
        "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\nmetadata: {name: web, namespace: shop}\n\
         spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, maxReplicas: 3, paused: true, \
         fallback: {failedRounds: 3, replicas: 2}}\n",
    );
    let spec = &made.objects[0]["spec"];
    assert_eq!((&spec["mode"], spec.get("paused")), (&json!("Paused"), None));
    assert_eq!(spec["fallback"], json!({"failureThreshold": 3, "replicas": 2}));
}

/// kubectl apply removes the annotations that it once wrote and a file lacks.
#[test]
fn annotations_are_kept_but_those_of_kubectl_and_keda() {
    let annotations = "{team: shop, argocd.argoproj.io/sync-options: Prune=false, \
        kubectl.kubernetes.io/last-applied-configuration: '{}', autoscaling.keda.sh/paused: 'true', \
        autoscaling.alpha.kubernetes.io/conditions: '[]'}";
    let target =
        "scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, maxReplicas: 3";
    let scaled_object = format!("scaleTargetRef: {{name: web}}, triggers: [{}]", trigger(""));
    for (version, kind, spec) in [
        ("plimsoll.dev/v1alpha1", "Autoscaler", target),
        ("autoscaling/v2", "HorizontalPodAutoscaler", target),
        ("keda.sh/v1alpha1", "ScaledObject", &scaled_object),
    ] {
        let made = converted(&format!(
            "{{apiVersion: {version}, kind: {kind}, metadata: {{name: web, namespace: shop, annotations: {annotations}}}, \
             spec: {{{spec}}}}}"
        ));
        assert_eq!(
            made.objects[0]["metadata"]["annotations"],
            json!({"team": "shop", "argocd.argoproj.io/sync-options": "Prune=false"}),
            "{kind}"
        );
    }
    let made = converted(&format!(
        "{{apiVersion: plimsoll.dev/v1alpha1, kind: Autoscaler, metadata: {{name: web}}, spec: {{{target}}}}}"
    ));
    assert_eq!(made.objects[0]["metadata"], json!({"name": "web"}));
}

#[test]
fn the_namespace_of_the_flag_is_that_of_objects_without_one() {
    let made = |metadata: &str, namespace: Option<&str>| {
        let servers = vec![SERVER.to_owned()];
        let namespace = namespace.map(str::to_owned);
        let mut made = Converted { servers, namespace, ..Converted::default() };
        let text = format!(
            "{{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, metadata: {{name: web{metadata}}}, spec: \
             {{scaleTargetRef: {{name: web}}, triggers: [{}]}}}}",
            trigger("")
        );
        convert(&text, &mut made).unwrap();
        made
    };
    for (metadata, flag, expected) in [
        ("", Some("shop"), json!("shop")),
        (", namespace: shop", Some("bank"), json!("shop")),
        (", namespace: shop", None, json!("shop")),
    ] {
        let made = made(metadata, flag);
        assert_eq!(made.objects[0]["metadata"]["namespace"], expected);
        assert_eq!(made.objects[0]["spec"].get("mode"), None, "{:?}", made.notes);
    }
    let made = made("", None);
    assert_eq!(made.objects[0]["spec"]["mode"], "Preview");
    assert!(made.notes.join("\n").contains("the object has no namespace"), "{:?}", made.notes);
}

#[test]
fn a_field_that_keda_does_not_know_is_noted() {
    let (spec, notes) = scaled(&format!(
        "  maxReplicasCount: 9\n  advanced: {{scalingModifier: {{}}}}\n  fallback: {{failureThreshold: 3, replicas: 2, replica: 4}}\n\
         \x20 triggers: [{}, {{type: kafka, metadata: {{topic: x}}}}]\n",
        trigger("serverAdress: 'http://prometheus:9090'")
    ));
    assert_eq!(spec["maxReplicas"], 100);
    for field in [
        "spec.maxReplicasCount",
        "spec.advanced.scalingModifier",
        "spec.fallback.replica",
        "spec.triggers[0].metadata.serverAdress",
    ] {
        let expected = format!("ScaledObject shop/web: {field}: KEDA knows no such field");
        assert!(notes.contains(&expected), "{expected}: {notes}");
    }
    assert_eq!(notes.matches("KEDA knows no such field").count(), 4, "{notes}");
    let utilization = trigger("").replacen("metadata", "metricType: Utilization, metadata", 1);
    let (spec, notes) = scaled(&format!("  triggers: [{utilization}]\n"));
    assert_eq!(spec["mode"], "Preview");
    assert!(notes.contains("metricType Utilization, which KEDA refuses here"), "{notes}");
}

/// Whoever follows a note on what is to be deleted would be left with nothing that scales.
#[test]
fn an_object_that_becomes_no_autoscaler_has_no_notes_on_that() {
    let rabbit = "{type: rabbitmq, metadata: {queueName: x}}";
    let cron = "{type: cron, metadata: {timezone: UTC, start: 0 8 * * *, end: 0 8 * * *, desiredReplicas: '2.5'}}";
    let same = cron.replace("2.5", "2");
    for (triggers, error, note) in [
        (rabbit, "none of its triggers", Some("of type rabbitmq")),
        (cron, "none of its triggers", Some("\"2.5\" is not a whole number")),
        (&same, "left out: spec.triggers[0].metadata.end", None),
    ] {
        let made = converted(&format!(
            "{{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, metadata: {{name: web, namespace: shop}}, \
             spec: {{scaleTargetRef: {{name: web}}, pollingInterval: 5, triggers: [{triggers}]}}}}"
        ));
        assert!(made.objects.is_empty() && made.errors[0].contains(error), "{:?}", made.errors);
        let notes = made.notes.join("\n");
        assert!(!notes.contains("Delete") && !notes.contains("syncPeriodSeconds"), "{notes}");
        assert_eq!(made.notes.len(), usize::from(note.is_some()), "{notes}");
        assert!(note.is_none_or(|note| notes.contains(note)), "{notes}");
    }
    let made = converted(
        "{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: web}, spec: \
         {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, minReplicas: 4, maxReplicas: 3}}",
    );
    assert_eq!((made.errors.len(), made.notes.len()), (1, 0), "{:?}", made.notes);
    let job =
        converted("{apiVersion: keda.sh/v1alpha1, kind: ScaledJob, metadata: {name: a}, spec: {}}");
    assert_eq!((job.errors.len(), job.notes.len()), (1, 0), "{:?}", job.errors);
}

#[test]
fn an_hpa_of_either_version_keeps_its_spec() {
    let made = converted(
        "apiVersion: v1\nkind: List\nitems:\n\
         - {apiVersion: autoscaling/v1, kind: HorizontalPodAutoscaler, metadata: {name: a}, spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: a}, maxReplicas: 3, targetCPUUtilizationPercentage: 70}}\n\
         - {apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: b}, spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: b}, maxReplicas: 3}, status: {}}\n\
         - {apiVersion: v1, kind: Pod, metadata: {name: c}}\n",
    );
    assert_eq!(made.objects.len(), 2);
    let metric = &made.objects[0]["spec"]["metrics"][0];
    assert_eq!(metric["resource"]["target"]["averageUtilization"], 70);
    assert_eq!(made.objects[1].get("status"), None);
    assert!(made.notes.iter().any(|note| note.contains("Pod c (v1): left out")));
}

#[test]
fn an_invalid_object_or_one_without_triggers_is_an_error() {
    let hpa = |change: &str| {
        converted(&format!(
            "{{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {{name: a}}, spec: \
             {{scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: a}}, maxReplicas: 3, {change}}}}}"
        ))
    };
    let made = hpa("behavior: {scaleDown: {selectPolicy: disabled}}");
    assert!(made.objects.is_empty());
    assert!(made.errors[0].contains("spec.behavior.scaleDown.selectPolicy"), "{:?}", made.errors);
    let made = hpa("behavior: {scaleDown: {tolerance: 0.05}}");
    let tolerance = &made.objects[0]["spec"]["behavior"]["scaleDown"]["tolerance"];
    assert_eq!((tolerance, made.errors.len()), (&json!("0.05"), 0));
    let made = converted(
        "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {name: worker}\n\
         spec: {scaleTargetRef: {name: worker}, pollingInterval: 5, triggers: [{type: kafka}]}\n",
    );
    assert!(made.objects.is_empty());
    assert!(made.errors[0].contains("80 % CPU"), "{:?}", made.errors);
}

/// kube-apiserver checks the lengths of texts by the schema of the definition.
#[test]
fn what_the_schema_refuses_is_an_error() {
    let metric = format!(
        "{{type: ContainerResource, containerResource: {{name: cpu, container: {}, target: {{type: Utilization, averageUtilization: 60}}}}}}",
        "a".repeat(64)
    );
    let made = converted(&format!(
        "{{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {{name: a}}, spec: \
         {{scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: a}}, maxReplicas: 3, metrics: [{metric}]}}}}"
    ));
    assert!(made.objects.is_empty());
    let error = &made.errors[0];
    assert!(error.contains("spec.metrics[0].containerResource.container: 64"), "{error}");
}

#[test]
fn differences_of_a_scaled_object_are_noted() {
    let made = converted(
        "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {name: web, namespace: shop}\n\
         spec:\n  scaleTargetRef: {name: web}\n  pollingInterval: 5\n\
         \x20 advanced: {restoreToOriginalReplicaCount: true}\n\
         \x20 triggers: [{type: prometheus, metadata: {query: sum(queue), threshold: '5'}}]\n",
    );
    assert_eq!(made.objects[0]["spec"]["syncPeriodSeconds"], 5);
    let notes = made.notes.join("\n");
    for expected in ["kube-controller-manager scales by it", "Set it to false on the ScaledObject"]
    {
        assert!(notes.contains(expected), "{expected}: {notes}");
    }
}
