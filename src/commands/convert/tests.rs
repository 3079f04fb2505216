//! Conversions of HorizontalPodAutoscalers and ScaledObjects.

use super::*;

const SERVER: &str = "http://prometheus:9090";

fn converted(text: &str) -> Converted {
    let mut converted = Converted { server: Some(SERVER.to_owned()), ..Converted::default() };
    convert(text, &mut converted).unwrap();
    converted
}

#[test]
fn a_scaled_object_becomes_an_autoscaler_with_a_rule() {
    let made = converted(
        "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\n\
         metadata: {name: web, namespace: shop, labels: {team: a}}\n\
         spec:\n  scaleTargetRef: {name: web}\n  minReplicaCount: 1\n  maxReplicaCount: 20\n\
         \x20 fallback: {failureThreshold: 3, replicas: 6}\n\
         \x20 advanced: {horizontalPodAutoscalerConfig: {behavior: {scaleDown: {stabilizationWindowSeconds: 60}}}}\n\
         \x20 triggers:\n\
         \x20 - type: prometheus\n    metadata:\n      serverAddress: http://prometheus:9090/\n\
         \x20     query: sum(rate(http_requests_total{app=\"web\"}[2m] offset 1m))\n      threshold: '100'\n\
         \x20 - {type: cpu, metricType: Utilization, metadata: {value: '60'}}\n",
    );
    let spec = &made.objects[0]["spec"];
    assert_eq!(made.objects[0]["metadata"]["labels"]["team"], "a");
    assert_eq!(spec["maxReplicas"], 20);
    assert_eq!(spec["fallback"], json!({"failedRounds": 3, "replicas": 6}));
    assert_eq!(spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"], 60);
    assert_eq!(spec["metrics"][0]["external"]["metric"]["name"], "keda_shop_web_0");
    assert_eq!(spec["metrics"][0]["external"]["target"]["averageValue"], "100");
    assert_eq!(spec["metrics"][1]["resource"]["target"]["averageUtilization"], 60);
    assert_eq!(spec.get("paused"), None);
    let rule = &made.rules[0];
    assert_eq!(rule["seriesQuery"], "http_requests_total{app=\"web\"}");
    let notes = made.notes.join("\n");
    assert!(!notes.contains("serverAddress"), "{notes}");
    assert!(!notes.contains("refused"), "{notes}");
    // The rules are a valid configuration.
    let file = yaml(&json!({"externalRules": made.rules}));
    let path = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(path.path(), file).unwrap();
    crate::config::Config::read(path.path()).unwrap();
}

/// The series are those that an aggregation is of, or else those of its parameter.
#[test]
fn the_series_of_a_rule_are_first_those_that_an_aggregation_is_of() {
    for (query, series) in [
        ("quantile(scalar(level), vector(1))", "level"),
        ("topk(scalar(limit), http_requests_total)", "http_requests_total"),
    ] {
        let made = converted(&format!(
            "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {{name: web, namespace: shop}}\n\
             spec:\n  scaleTargetRef: {{name: web}}\n  maxReplicaCount: 20\n  triggers:\n\
             \x20 - type: prometheus\n    metadata:\n      serverAddress: http://prometheus:9090\n\
             \x20     query: {query}\n      threshold: '100'\n",
        ));
        assert_eq!(made.rules[0]["seriesQuery"], series, "{query}");
    }
}

#[test]
fn an_incomplete_conversion_is_noted_and_paused() {
    let made = converted(
        "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {name: worker}\n\
         spec:\n  scaleTargetRef: {name: worker}\n  idleReplicaCount: 0\n\
         \x20 triggers: [{type: kafka, metadata: {topic: x}}, {type: memory, metadata: {value: '80'}}]\n",
    );
    assert_eq!(made.objects[0]["spec"]["paused"], true);
    assert_eq!(made.objects[0]["spec"]["minReplicas"], 1);
    let notes = made.notes.join("\n");
    for expected in ["triggers[0]: a trigger of type kafka", "idleReplicaCount", "`paused: true`"] {
        assert!(notes.contains(expected), "{expected}: {notes}");
    }
}

#[test]
fn an_object_that_would_query_another_server_or_scale_differently_is_paused() {
    let scaled = |spec: &str, metadata: &str, trigger: &str| {
        converted(&format!(
            "{{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, metadata: {{name: web}}, spec: \
             {{scaleTargetRef: {{name: web}}, {spec} triggers: [{{type: prometheus, {trigger} \
             metadata: {{query: up, threshold: '5', {metadata}}}}}]}}}}"
        ))
    };
    let window = |seconds: u32| {
        format!(
            "advanced: {{horizontalPodAutoscalerConfig: {{behavior: {{scaleDown: \
             {{stabilizationWindowSeconds: {seconds}}}}}}}}},"
        )
    };
    let longer = window(60) + "cooldownPeriod: 60,";
    for (spec, metadata, trigger) in [
        ("", "", ""),
        ("", "serverAddress: 'http://prometheus:9090/', unsafeSsl: 'false'", ""),
        ("minReplicaCount: 1, cooldownPeriod: 600,", "", ""),
        (longer.as_str(), "", ""),
        ("fallback: {failureThreshold: 3, replicas: 6, behavior: static},", "", ""),
    ] {
        let made = scaled(spec, metadata, trigger);
        assert_eq!(made.objects[0]["spec"].get("paused"), None, "{:?}", made.notes);
    }
    for (spec, metadata, trigger, expected) in [
        ("", "serverAddress: 'https://other:9090'", "", "serverAddress https://other:9090"),
        ("", "authModes: bearer", "", "authModes"),
        ("", "customHeaders: X-Scope-OrgID=t1", "", "customHeaders"),
        ("", "cortexOrgID: t1", "", "cortexOrgID"),
        ("", "namespace: t1", "", "metadata.namespace"),
        ("", "queryParameters: a=b", "", "queryParameters"),
        ("", "unsafeSsl: 'true'", "", "unsafeSsl"),
        ("", "", "authenticationRef: {name: a},", "authenticationRef"),
        ("cooldownPeriod: 600,", "", "", "cooldownPeriod 600 s"),
        (window(0).as_str(), "", "", "cooldownPeriod 300 s"),
        (
            "fallback: {failureThreshold: 3, replicas: 6, behavior: currentReplicas},",
            "",
            "",
            "fallback.behavior currentReplicas",
        ),
    ] {
        let made = scaled(spec, metadata, trigger);
        assert_eq!(made.objects[0]["spec"]["paused"], true, "{expected}: {:?}", made.notes);
        assert!(made.notes.iter().any(|note| note.contains(expected)), "{:?}", made.notes);
    }
    // Without --prometheus-url, Plimsoll may query another server.
    let mut unknown = Converted::default();
    let text = "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {name: web}\n\
        spec: {scaleTargetRef: {name: web}, triggers: [{type: prometheus, metadata: \
        {serverAddress: 'http://prometheus:9090', query: up, threshold: '5'}}]}\n";
    convert(text, &mut unknown).unwrap();
    assert_eq!(unknown.objects[0]["spec"]["paused"], true);
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
    assert!(made.notes.iter().any(|note| note.contains("Pod /c (v1): left out")));
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
    for expected in [
        "can be read in every namespace",
        "kube-controller-manager scales by it",
        "Set it to false on the ScaledObject",
    ] {
        assert!(notes.contains(expected), "{expected}: {notes}");
    }
}
