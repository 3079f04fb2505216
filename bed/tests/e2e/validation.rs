//! An Autoscaler rejects what autoscaling/v2 rejects, and names the same field.

use crate::{SOON, runtime};
use bed::cluster::Cluster;
use bed::random::Random;
use bed::{Options, eventually, root};
use futures::StreamExt;
use kube::Client;
use plimsoll::crd::AutoscalerSpec;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const SPECS: usize = 5000;
const SEED: u64 = 12;
const MAX_IN_FLIGHT_DRY_RUNS: usize = 8;

/// The result of validation: the stored spec, or the invalid fields; no field if the object could not
/// be decoded.
type Verdict = Result<Value, BTreeSet<String>>;

/// Validates an object by a dry run.
async fn verdict(client: &Client, path: &str, kind: &str, version: &str, spec: &Value) -> Verdict {
    let object =
        json!({"apiVersion": version, "kind": kind, "metadata": {"name": "web"}, "spec": spec});
    let path = format!("/apis/{version}/namespaces/default/{path}?dryRun=All");
    let request = http::Request::post(path)
        .header("Content-Type", "application/json")
        .body(object.to_string().into_bytes())
        .expect("a request");
    match client.request::<Value>(request).await {
        Ok(mut stored) => Ok(stored["spec"].take()),
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => {
            let causes = status.details.map(|details| details.causes).unwrap_or_default();
            // Without a field: rules were skipped because of the errors.
            Err(causes
                .into_iter()
                .map(|cause| cause.field)
                .filter(|f| f.starts_with("spec"))
                .collect())
        }
        Err(error) => panic!("{error}\n{spec}"),
    }
}

/// Whether an Autoscaler is stricter on purpose (docs/differences.md).
fn stricter(spec: &Value, field: &str) -> bool {
    let pointer = field.replace(['.', '['], "/").replace(']', "");
    let value = spec.pointer(pointer.trim_start_matches("spec"));
    let quantity = ["value", "averageValue", "tolerance"].iter().any(|name| field.ends_with(name));
    match value {
        // The schema of a CRD cannot express "number or string" here.
        Some(Value::Number(number)) if quantity => number.is_f64(),
        // Go's parser trims whitespace, and reads a single sign or dot as 0.
        Some(Value::String(text)) if quantity => {
            text.trim() != text || !text.contains(|c: char| c.is_ascii_digit())
        }
        _ => false,
    }
}

/// Whether two field names mean the same error: for a missing object the schema of a CRD names the
/// object, and autoscaling/v2 the fields that it lacks.
fn same(ours: &str, theirs: &str) -> bool {
    let below = |field: &str, above: &str| {
        field
            .strip_prefix(above)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    below(theirs, ours)
}

/// autoscaling/v2 validates only one source of a metric with several.
fn in_a_second_source(spec: &Value, field: &str) -> bool {
    let Some(rest) = field.strip_prefix("spec.metrics[") else { return false };
    let index: usize = rest.split(']').next().and_then(|index| index.parse().ok()).unwrap_or(0);
    let sources = ["object", "external", "pods", "resource", "containerResource"];
    sources.iter().filter(|source| !spec["metrics"][index][**source].is_null()).count() > 1
}

/// Why the two results differ, if they do.
fn difference(spec: &Value, theirs: &Verdict, ours: &Verdict) -> Option<String> {
    match (theirs, ours) {
        (Ok(_), Ok(_)) => None,
        (Err(_), Ok(_)) => Some("taken, and refused as an HPA".to_owned()),
        (Ok(_), Err(fields)) => {
            let unexpected = fields.is_empty() || !fields.iter().any(|field| stricter(spec, field));
            unexpected.then(|| "refused, and taken as an HPA".to_owned())
        }
        // autoscaling/v2 names no field if the object cannot be decoded.
        (Err(theirs), Err(_)) if theirs.is_empty() => None,
        (Err(theirs), Err(ours)) => {
            let known = |field: &String| {
                theirs.iter().any(|their| same(field, their))
                    || stricter(spec, field)
                    || in_a_second_source(spec, field)
            };
            let unknown: Vec<&String> = ours.iter().filter(|field| !known(field)).collect();
            let none = ours.is_empty();
            (none || !unknown.is_empty()).then(|| format!("other fields: {unknown:?}"))
        }
    }
}

#[test]
fn what_autoscaling_v2_refuses_an_autoscaler_refuses_with_the_same_field() {
    runtime().block_on(async {
        let options = Options {
            apiserver: vec!["--feature-gates=HPAScaleToZero=true".to_owned()],
            ..Options::default()
        };
        let cluster = Cluster::control_plane(&options).await;
        let definition = root().join("deploy/base/crd.yaml").display().to_string();
        cluster.kubectl(&["create", "-f", &definition]).await;
        eventually("the definition is served", SOON, async || {
            cluster.try_kubectl(&["get", "autoscalers", "-A"]).await
        })
        .await;
        let mut random = Random(SEED);
        let specs: Vec<Value> = (0..SPECS).map(|_| mutated(&mut random)).collect();
        let client = &cluster.client;
        let asked = futures::stream::iter(&specs).map(|spec| async move {
            let theirs = verdict(
                client,
                "horizontalpodautoscalers",
                "HorizontalPodAutoscaler",
                "autoscaling/v2",
                spec,
            );
            let ours = verdict(client, "autoscalers", "Autoscaler", "plimsoll.dev/v1alpha1", spec);
            let (theirs, ours) = futures::join!(theirs, ours);
            // The process validates, too: an older CRD may have accepted the object.
            let stored = ours.as_ref().unwrap_or(spec).clone();
            let read = AutoscalerSpec::read(stored).map_err(|error| {
                let text = error.to_string();
                let field = text.split(": ").next().unwrap_or_default();
                BTreeSet::from([field.to_owned()])
            });
            (spec, theirs, ours, read)
        });
        let answers: Vec<_> = asked.buffer_unordered(MAX_IN_FLIGHT_DRY_RUNS).collect().await;
        let (mut refused, mut named, mut faults) = (0, BTreeSet::new(), Vec::new());
        for (spec, theirs, ours, read) in &answers {
            if let Err(fields) = theirs {
                refused += 1;
                named.extend(
                    fields.iter().map(|field| field.replace(|c: char| c.is_ascii_digit(), "")),
                );
            }
            if let Some(why) = difference(spec, theirs, ours) {
                let [theirs, ours] =
                    [theirs, ours].map(|verdict| verdict.as_ref().map(|_| "takes it"));
                faults.push(format!("{why}\n  {spec}\n  HPA {theirs:?}\n  Autoscaler {ours:?}"));
            }
            if let (Err(fields), Ok(_)) = (theirs, read) {
                faults.push(format!("read, and refused as an HPA\n  {spec}\n  HPA {fields:?}"));
            }
            // The process must be able to read what both accept.
            if let (Ok(_), Ok(_), Err(why)) = (theirs, ours, read) {
                faults.push(format!("taken by both, and not read: {why:?}\n  {spec}"));
            }
        }
        let shown = faults.iter().take(12).cloned().collect::<Vec<_>>().join("\n");
        assert!(faults.is_empty(), "{} of {SPECS} differ:\n{shown}", faults.len());
        println!("{SPECS} specs, {refused} refused by both, by {} fields", named.len());
        // The sample is meaningful: many are accepted, and many rejected for many reasons.
        assert!((SPECS / 4..SPECS * 9 / 10).contains(&refused), "{refused} refused");
        assert!(named.len() >= 40, "{named:#?}");
    });
}

#[test]
fn the_random_specs_are_reproducible() {
    let specs = || {
        let mut random = Random(SEED);
        (0..SPECS).map(|_| mutated(&mut random).to_string()).collect::<Vec<_>>()
    };
    let once = specs();
    assert_eq!(once, specs());
    assert!(once.iter().collect::<BTreeSet<_>>().len() > SPECS * 8 / 10);
}

/// A random spec with some errors.
fn mutated(random: &mut Random) -> Value {
    let mut spec = valid(random);
    for _ in 0..random.below(3) {
        mutate(random, &mut spec);
    }
    spec
}

fn valid(random: &mut Random) -> Value {
    let kind = random.one_of(&["Deployment", "StatefulSet", "ReplicationController", "Rollout"]);
    let version = match kind {
        "ReplicationController" => random.one_of(&["v1", "", "apps/v1"]),
        _ => random.one_of(&["apps/v1", "argoproj.io/v1alpha1"]),
    };
    let mut spec = json!({
        "scaleTargetRef": {"apiVersion": version, "kind": kind, "name": "web"},
        "maxReplicas": 1 + random.below(20),
    });
    if random.below(2) == 0 {
        spec["minReplicas"] = json!(random.below(8));
    }
    if random.below(4) > 0 {
        let metrics: Vec<Value> = (0..random.below(3) + 1).map(|_| metric(random)).collect();
        spec["metrics"] = json!(metrics);
    }
    if random.below(2) == 0 {
        spec["behavior"] = json!({});
        for direction in ["scaleUp", "scaleDown"] {
            if random.below(3) > 0 {
                spec["behavior"][direction] = rules(random);
            }
        }
    }
    spec
}

fn rules(random: &mut Random) -> Value {
    let mut rules = json!({});
    if random.below(2) == 0 {
        rules["selectPolicy"] = json!(random.one_of(&["Max", "Min", "Disabled"]));
    }
    if random.below(2) == 0 {
        rules["stabilizationWindowSeconds"] = json!(random.below(3601));
    }
    if random.below(2) == 0 {
        rules["tolerance"] = quantity(random);
    }
    if random.below(3) > 0 {
        let policy = |random: &mut Random| {
            json!({"type": random.one_of(&["Pods", "Percent"]), "value": 1 + random.below(100),
                "periodSeconds": 1 + random.below(1800)})
        };
        let policies: Vec<Value> = (0..random.below(2) + 1).map(|_| policy(random)).collect();
        rules["policies"] = json!(policies);
    }
    rules
}

fn quantity(random: &mut Random) -> Value {
    match random.below(3) {
        0 => json!(1 + random.below(50)),
        _ => json!(
            random.one_of(&["1", "100m", "1.5", "2k", "1Gi", "1e3", ".5", "+3", "1n", "0.05"])
        ),
    }
}

fn metric(random: &mut Random) -> Value {
    let identifier = |random: &mut Random| {
        let mut identifier = json!({"name": random.one_of(&["qps", "a.b", "a:b_c", "...", "x y"])});
        if random.below(3) == 0 {
            identifier["selector"] = json!({"matchLabels": {"view": "default"}});
        }
        identifier
    };
    let (field, source) = source(random, identifier);
    let kind = format!("{}{}", field[..1].to_uppercase(), &field[1..]);
    json!({"type": kind, field: source})
}

fn source(random: &mut Random, identifier: impl Fn(&mut Random) -> Value) -> (&'static str, Value) {
    let scalar = |random: &mut Random| match random.below(2) {
        0 => json!({"type": "Value", "value": quantity(random)}),
        _ => json!({"type": "AverageValue", "averageValue": quantity(random)}),
    };
    let usage = |random: &mut Random| match random.below(2) {
        0 => json!({"type": "Utilization", "averageUtilization": 1 + random.below(200)}),
        _ => json!({"type": "AverageValue", "averageValue": quantity(random)}),
    };
    match random.below(5) {
        0 => {
            let kind = random.one_of(&["Ingress", "Service"]);
            let version = random.one_of(&["networking.k8s.io/v1", "v1", ""]);
            let object = json!({"apiVersion": version, "kind": kind, "name": "main"});
            (
                "object",
                json!({"describedObject": object, "metric": identifier(random), "target": scalar(random)}),
            )
        }
        1 => ("external", json!({"metric": identifier(random), "target": scalar(random)})),
        2 => {
            let target = json!({"type": "AverageValue", "averageValue": quantity(random)});
            ("pods", json!({"metric": identifier(random), "target": target}))
        }
        3 => (
            "resource",
            json!({"name": random.one_of(&["cpu", "memory", "any/thing at all"]), "target": usage(random)}),
        ),
        _ => {
            let name = random.one_of(&[
                "cpu",
                "memory",
                "ephemeral-storage",
                "hugepages-2Mi",
                "nvidia.com/gpu",
                "kubernetes.io/batch-cpu",
                "requests.kubernetes.io/x",
            ]);
            (
                "containerResource",
                json!({"name": name, "container": "app", "target": usage(random)}),
            )
        }
    }
}

/// Inserts a possible error.
fn mutate(random: &mut Random, spec: &mut Value) {
    let second = random.below(8) == 0;
    if let Some(metrics) = spec.get_mut("metrics").and_then(Value::as_array_mut)
        && second
        && !metrics.is_empty()
    {
        let at = random.below(metrics.len());
        let (field, source) = source(random, |_| json!({"name": "other"}));
        if let Some(metric) = metrics[at].as_object_mut() {
            metric.insert(field.to_owned(), source);
        }
        return;
    }
    let mut places = Vec::new();
    walk(spec, String::new(), &mut places);
    if places.is_empty() {
        return;
    }
    let place = places[random.below(places.len())].clone();
    let (parent, name) = place.rsplit_once('/').expect("a place below the spec");
    let parent = spec.pointer_mut(parent).expect("it is there");
    if random.below(4) == 0
        && let Some(fields) = parent.as_object_mut()
    {
        fields.remove(name);
        return;
    }
    let old = match parent {
        Value::Array(items) => &mut items[name.parse::<usize>().expect("an index")],
        fields => &mut fields[name],
    };
    *old = instead(random, name, old);
}

/// The paths of a spec, without those in selectors, which autoscaling/v2 does not validate.
fn walk(value: &Value, path: String, places: &mut Vec<String>) {
    let fields: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(name, field)| (name.clone(), field)).collect(),
        Value::Array(items) => {
            items.iter().enumerate().map(|(i, item)| (i.to_string(), item)).collect()
        }
        _ => return,
    };
    for (name, field) in fields {
        let path = format!("{path}/{name}");
        places.push(path.clone());
        if name != "selector" {
            walk(field, path, places);
        }
    }
}

/// A different value.
fn instead(random: &mut Random, name: &str, old: &Value) -> Value {
    const NAMES: [&str; 20] = [
        "",
        ".",
        "..",
        "a/b",
        "a%b",
        "a/b/c",
        "/v1",
        "apps/",
        "v1",
        "Web",
        "web-",
        "-web",
        "CPU",
        "requests.example.com/x",
        "hugepages-",
        "example.com/",
        "Pods",
        "External",
        "Utilization",
        "ü",
    ];
    const WORDS: [&str; 14] = [
        "",
        "Max",
        "max",
        "disabled",
        "Disabled",
        "pods",
        "Pods",
        "percent",
        "Object",
        "Resource",
        "Value",
        "value",
        "AverageValue",
        "Utilization",
    ];
    const QUANTITIES: [&str; 16] = [
        "0",
        "-1",
        "1",
        "abc",
        "",
        "1e3",
        "1e3.5",
        "1.5Ki",
        "5ki",
        "-0",
        "0.0000000001",
        "1E",
        "1.",
        "+",
        "10 m",
        "--1",
    ];
    const NUMBERS: [i64; 16] = [
        -1,
        0,
        1,
        2,
        15,
        1800,
        1801,
        3600,
        3601,
        100,
        -2_147_483_648,
        2_147_483_647,
        2_147_483_648,
        -2_147_483_649,
        9_000_000_000,
        7,
    ];
    match (random.below(8), old) {
        (0, _) => Value::Null,
        (1, _) => {
            [json!("text"), json!(3), json!(true), json!([]), json!({})][random.below(5)].clone()
        }
        (_, Value::Object(_)) => json!({}),
        (_, Value::Array(items)) => match random.below(2) {
            0 => json!([]),
            _ => json!([items.first(), items.first()]),
        },
        _ if matches!(name, "value" | "averageValue" | "tolerance") && old.is_string() => {
            json!(random.one_of(&QUANTITIES))
        }
        (_, Value::Number(_)) => json!(NUMBERS[random.below(NUMBERS.len())]),
        _ if matches!(name, "type" | "selectPolicy") => json!(random.one_of(&WORDS)),
        _ => match random.below(12) {
            0 => json!("a".repeat(64)),
            1 => json!(format!("{}/x", "a".repeat(250))),
            _ => json!(random.one_of(&NAMES)),
        },
    }
}
