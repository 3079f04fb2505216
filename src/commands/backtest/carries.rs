//! What one pod carries, which an object keeps in an annotation, so that the next recommendation begins with it and not
//! with the target that this one has lowered.

use super::names;
use crate::backtest::Candidate;
use serde_json::Value;
use std::collections::BTreeMap;

/// The annotation: `METRIC=NUMBER,METRIC=NUMBER`, each in the unit of the target.
pub const ANNOTATION: &str = "plimsoll.dev/pod-carries";

/// Sets what a pod carries, by a flag or else by the annotation of the object, and returns whether it is taken from the
/// target of a metric.
///
/// # Errors
/// If either is invalid.
pub fn set(candidate: &mut Candidate, object: &Value, flag: Option<f64>) -> Result<bool, String> {
    if let Some(carries) = flag {
        set_only(candidate, carries)?;
        return Ok(false);
    }
    let given = annotated(candidate, object)?;
    let mut is_taken = false;
    for (metric, given) in candidate.metrics.iter_mut().zip(&given) {
        match given {
            Some(carries) => metric.set_carries_as_target(*carries),
            None => is_taken |= !metric.is_constant(),
        }
    }
    Ok(is_taken)
}

/// Sets what a pod carries of the only metric with a load, in the unit of its target.
///
/// # Errors
/// If there are more.
pub fn set_only(candidate: &mut Candidate, carries: f64) -> Result<(), String> {
    let loads = candidate.metrics.iter_mut().filter(|metric| !metric.is_constant());
    match &mut *loads.collect::<Vec<_>>() {
        [metric] => {
            metric.set_carries_as_target(carries);
            Ok(())
        }
        loads => Err(format!(
            "--pod-carries: {} metrics: one was expected; the annotation {ANNOTATION} says it of each",
            loads.len()
        )),
    }
}

/// What the annotation of an object says of each metric of its candidate, in the order of these.
///
/// # Errors
/// If the annotation is invalid, has a name that is none of its metrics, or says something of a metric twice.
pub fn annotated(candidate: &Candidate, object: &Value) -> Result<Vec<Option<f64>>, String> {
    let annotations = object.pointer("/metadata/annotations");
    let known = match annotations.and_then(|all| all.get(ANNOTATION)) {
        None | Some(Value::Null) => return Ok(vec![None; candidate.metrics.len()]),
        Some(Value::String(text)) => read(text)?,
        Some(other) => return Err(expected(&other.to_string())),
    };
    let wrong = |error: String| format!("the annotation {ANNOTATION}: {error}");
    let known = names::by_key(candidate, known).map_err(wrong)?;
    Ok(candidate.metrics.iter().map(|metric| known.get(&metric.key).copied()).collect())
}

fn read(text: &str) -> Result<Vec<(String, f64)>, String> {
    let one = |part: &str| {
        let (name, number) = part.split_once('=')?;
        let number: f64 = number.parse().ok()?;
        (number > 0.0 && number.is_finite()).then(|| (unescaped(name.trim()), number))
    };
    let all: Option<Vec<(String, f64)>> = text.split(',').map(one).collect();
    all.ok_or_else(|| expected(&format!("{text:?}")))
}

fn expected(found: &str) -> String {
    format!("the annotation {ANNOTATION}: METRIC=NUMBER was expected, not {found}")
}

/// What would end a name is escaped as in URLs.
const ESCAPES: [(&str, &str); 3] = [("%", "%25"), (",", "%2C"), ("=", "%3D")];

fn escaped(name: &str) -> String {
    ESCAPES.iter().fold(name.to_owned(), |name, (plain, escape)| name.replace(plain, escape))
}

fn unescaped(name: &str) -> String {
    let back = ESCAPES.iter().rev();
    back.fold(name.to_owned(), |name, (plain, escape)| name.replace(escape, plain))
}

/// What one pod carries of each metric with a load, by its key.
pub fn of(candidate: &Candidate) -> BTreeMap<String, f64> {
    let of = |metric: &crate::backtest::Measure| (metric.key.clone(), metric.carries_as_target());
    candidate.metrics.iter().filter(|metric| !metric.is_constant()).map(of).collect()
}

/// As the annotation has it.
pub fn text(carries: &BTreeMap<String, f64>) -> String {
    // What floating point adds is left out.
    let rounded = |number: &f64| (number * 1e6).round() / 1e6;
    let one = |(name, number): (&String, &f64)| format!("{}={}", escaped(name), rounded(number));
    carries.iter().map(one).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_pod_carries_outlives_a_lower_target() {
        let spec = json!({
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "maxReplicas": 10,
            "resourceMetrics": [{"resourceName": "cpu", "targetType": "Utilization", "averageUtilization": 74}],
            "customMetrics": [{"metricName": "requests", "averageValue": "9250m"}],
        });
        let mut candidate = Candidate::new("web", "shop", spec).unwrap();
        candidate.set_request("cpu", None, 0.5);
        let annotated = |text: Value| json!({"metadata": {"annotations": {ANNOTATION: text}}});
        let object = annotated(json!("cpu=80,requests=10"));
        assert_eq!(set(&mut candidate.clone(), &object, None), Ok(false), "its metricName");
        for (text, expected) in [
            (json!("requestz=10"), "\"requestz\" is no metric of it: cpu or requests was expected"),
            (json!("requestz_74234e98afe7_prod_web=10"), "is no metric of it: cpu or requests"),
            (json!("requests=10,requests=20"), "\"requests\" is given twice"),
            (json!("requests=10,requests_74234e98afe7_shop_web=20"), "\"requests\" is given twice"),
            (json!(10), "METRIC=NUMBER was expected, not 10"),
        ] {
            let error = set(&mut candidate.clone(), &annotated(text), None).unwrap_err();
            assert!(error.contains(ANNOTATION) && error.contains(expected), "{error}");
        }
        let error = set(&mut candidate.clone(), &object, Some(10.0)).unwrap_err();
        assert!(error.contains("--pod-carries: 2 metrics"), "{error}");
        let name = candidate.metrics[1].name.clone();
        let object =
            json!({"metadata": {"annotations": {ANNOTATION: format!("cpu=80,{name}=10")}}});
        assert_eq!(set(&mut candidate, &object, None), Ok(false));
        assert!((candidate.metrics[0].carries() - 0.4).abs() < 1e-9);
        assert!((candidate.metrics[0].headroom() - 8.1).abs() < 0.1);
        assert_eq!(text(&of(&candidate)), "cpu=80,requests=10");
        let odd: Vec<_> = read("a%2Cb%3Dc%25=2").unwrap().into_iter().collect();
        assert_eq!(odd, [("a,b=c%".to_owned(), 2.0)]);
        assert_eq!(text(&odd.into_iter().collect()), "a%2Cb%3Dc%25=2");
        assert!(read("requests").unwrap_err().contains("METRIC=NUMBER"));
        assert!(read("requests=-1").is_err() && read("requests=inf").is_err());
    }

    #[test]
    fn metrics_of_one_name_are_told_apart() {
        let target = |percent: i64| json!({"type": "Utilization", "averageUtilization": percent});
        let pods = |selector: &str| {
            json!({"type": "Pods", "pods": {
                "metric": {"name": "requests", "selector": {"matchLabels": {"path": selector}}},
                "target": {"type": "AverageValue", "averageValue": "8"}}})
        };
        let candidate = |metrics: Value| {
            let spec = json!({
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "maxReplicas": 10, "metrics": metrics,
            });
            Candidate::new("web", "shop", spec).unwrap()
        };
        let annotated = |text: &str| json!({"metadata": {"annotations": {ANNOTATION: text}}});
        let cpu = candidate(json!([
            {"type": "Resource", "resource": {"name": "cpu", "target": target(50)}},
            {"type": "ContainerResource", "containerResource":
                {"name": "cpu", "container": "app", "target": target(90)}},
        ]));
        assert_eq!(text(&of(&cpu)), "cpu=50,cpu/app=90");
        let mut again = cpu.clone();
        assert_eq!(set(&mut again, &annotated("cpu=60,cpu/app=95"), None), Ok(false));
        assert_eq!(text(&of(&again)), "cpu=60,cpu/app=95");
        // One of the pod is none of the container.
        assert_eq!(set(&mut cpu.clone(), &annotated("cpu=60"), None), Ok(true));
        let mut requests = candidate(json!([pods("/a"), pods("/b")]));
        assert_eq!(text(&of(&requests)), "requests#1=8,requests#2=8");
        let error = set(&mut requests, &annotated("requests=10"), None).unwrap_err();
        assert!(error.contains("requests#1 or requests#2"), "{error}");
        assert_eq!(set(&mut requests, &annotated("requests#2=10,requests#1=9"), None), Ok(false));
        assert_eq!(text(&of(&requests)), "requests#1=9,requests#2=10");
    }
    #[test]
    fn what_is_written_is_read_in_any_namespace_under_any_name_and_with_any_labels() {
        let of_labels = |label: &str| json!({"metricName": "requests", "averageValue": "8", "labels": {"path": label}});
        let candidate = |namespace: &str, name: &str, metrics: Value| {
            let spec = json!({
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "maxReplicas": 10, "customMetrics": metrics,
            });
            Candidate::new(name, namespace, spec).unwrap()
        };
        let read = |candidate: &Candidate, text: &str| {
            annotated(candidate, &json!({"metadata": {"annotations": {ANNOTATION: text}}}))
        };
        let [one, other] = ["/a", "/b"].map(|label| json!([of_labels(label)]));
        let both = json!([of_labels("/a"), of_labels("/b")]);
        let everywhere = [("", "web"), ("shop", "web"), ("prod", "api")];
        for (namespace, name) in everywhere {
            let written = candidate(namespace, name, one.clone());
            assert_eq!(text(&of(&written)), "requests=8");
            let generated = format!("{}=9", written.metrics[0].name);
            let two = candidate(namespace, name, both.clone());
            assert_eq!(text(&of(&two)), "requests#1=8,requests#2=8");
            let names = [1, 0].map(|index| two.metrics[index].name.clone());
            let of_two = format!("{}=9,{}=10", names[0], names[1]);
            for (namespace, name) in everywhere {
                for metrics in [&one, &other] {
                    let copied = candidate(namespace, name, metrics.clone());
                    assert_eq!(read(&copied, "requests=9"), Ok(vec![Some(9.0)]));
                    assert_eq!(read(&copied, &generated), Ok(vec![Some(9.0)]), "{generated}");
                }
                let copied = candidate(namespace, name, both.clone());
                let expected = Ok(vec![Some(10.0), Some(9.0)]);
                assert_eq!(read(&copied, "requests#1=10,requests#2=9"), expected);
                assert_eq!(read(&copied, &of_two), expected, "{of_two}");
            }
        }
    }
}
