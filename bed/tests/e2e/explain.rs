//! `kubectl plimsoll explain`, `history` and `compare`: what the decision ledger says, in words.

use crate::operating::plugin;
use crate::{FOLLOWS, SOON, on_shared_bed};
use bed::plimsoll::binary;
use bed::workload::Namespace;
use bed::{Bed, eventually};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Waits until a command prints all of these.
async fn says(bed: &Bed, arguments: &[&str], wanted: &[&str]) -> String {
    eventually(&format!("{arguments:?} says {wanted:?}"), FOLLOWS, async || {
        let text = plugin(bed, arguments).await?;
        if wanted.iter().all(|wanted| text.contains(wanted)) { Ok(text) } else { Err(text) }
    })
    .await
}

/// Runs a command as the user of a kubeconfig.
fn as_user(kubeconfig: &Path, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(binary());
    command.args(arguments).arg("--kubeconfig").arg(kubeconfig);
    let output = command.output().expect("it can be run");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

async fn scaled_to_three(ns: &Namespace<'_>) {
    ns.deployment("web", 1, "queue_depth 30").await;
    ns.autoscaler("web", "queue_depth", "10", 3).await;
    ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 3).await;
}

#[test]
fn explain_tells_why_with_the_query_and_what_to_do() {
    on_shared_bed("explained", async |bed, ns| {
        scaled_to_three(ns).await;
        let of = ["explain", "web", "-n", &ns.name];
        let wanted = [
            "Autoscaler explained/web: 3 replicas of Deployment/web (1 to 3 allowed), at ",
            "when Plimsoll scaled it from 1 to 3: queue_depth was 30, target 10",
            "it stays at 3 (ReplicaLimit): the metrics ask for 9, but maxReplicas is 3",
            "Metric    queue_depth: 30 on average of 3 ready pods; target 10: asks for 9, and decides",
            "9 -> 3  TooManyReplicas: maxReplicas is 3",
            "One more  no: maxReplicas is 3",
            "One fewer (2) ",
        ];
        let text = says(bed, &of, &wanted).await;
        assert!(text.lines().count() < 25, "{text}");
        assert!(text.is_ascii() && !text.contains('\u{1b}'), "{text}");
        // The query can be pasted into Prometheus.
        let query = text.lines().find_map(|line| line.strip_prefix("Query     ")).expect("a query");
        let url = format!("http://127.0.0.1:{}/api/v1/query", bed.cluster.prometheus_port);
        let url = reqwest::Url::parse_with_params(&url, [("query", query)]).expect("a URL");
        let result = reqwest::get(url).await.expect("an answer").bytes().await.expect("a body");
        let result: Value = serde_json::from_slice(&result).expect("JSON");
        assert_eq!(result["data"]["result"].as_array().map(Vec::len), Some(3), "{query}: {result}");

        let json = plugin(bed, &[&of[..], &["-o", "json"]].concat()).await.unwrap();
        let json: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["decision"]["reason"], "ReplicaLimit");
        assert_eq!(
            (&json["lastChange"]["from"], &json["lastChange"]["to"]),
            (&1.into(), &3.into())
        );
        // At the time of the scale-up, and before there was anything.
        let at = json["lastChange"]["time"].as_str().expect("a time");
        let then = plugin(bed, &[&of[..], &["--at", at]].concat()).await.unwrap();
        assert!(
            then.contains("Then      it is scaled from 1 to 3 (MetricRecommendation)"),
            "{then}"
        );
        let never = plugin(bed, &[&of[..], &["--at", "-20h"]].concat()).await.unwrap();
        assert!(never.contains("no decision is known at "), "{never}");
        let error = plugin(bed, &[&of[..], &["--at", "noon"]].concat()).await.unwrap_err();
        assert!(error.contains("a time was expected, such as"), "{error}");

        plugin(bed, &["pause", "web", "-n", &ns.name, "--reason", "INC-\u{1b}[31m7"])
            .await
            .unwrap();
        let wanted =
            ["it is left alone (Paused): spec.mode is Paused", "plimsoll resume web -n explained"];
        let text = says(bed, &of, &wanted).await;
        assert!(!text.contains('\u{1b}') && text.contains("INC-"), "{text}");
        // Whoever scales it meanwhile.
        ns.scale("Deployment", "web", 2).await;
        let wanted = [
            "Autoscaler explained/web: 2 replicas of Deployment/web",
            "when another client scaled it from 3 to 2",
        ];
        says(bed, &of, &wanted).await;
        // Without the right to read decisions there is the status.
        let ann = bed.cluster.kubeconfig_of("ann", &[]);
        let role = [
            "-n",
            &ns.name,
            "create",
            "role",
            "look",
            "--verb=get",
            "--resource=autoscalers.plimsoll.dev",
        ];
        bed.cluster.kubectl(&role).await;
        let bound = ["-n", &ns.name, "create", "rolebinding", "look", "--role=look", "--user=ann"];
        bed.cluster.kubectl(&bound).await;
        let text = eventually("ann may read the Autoscaler", SOON, async || {
            let (is_good, text) = as_user(&ann, &of);
            if is_good { Ok(text) } else { Err(text) }
        })
        .await;
        let wanted = [
            "you may not read decisions in namespace explained",
            "Target      Deployment/web",
            "Paused is True",
        ];
        assert!(wanted.iter().all(|wanted| text.contains(wanted)), "{text}");
        let error = plugin(bed, &["explain", "hpa/web", "-n", &ns.name]).await.unwrap_err();
        assert!(error.contains("hpa explained/web") && error.contains("not found"), "{error}");
    });
}

#[test]
fn history_lists_the_changes_of_a_day_with_a_chart() {
    on_shared_bed("listed", async |bed, ns| {
        scaled_to_three(ns).await;
        let of = ["history", "web", "-n", &ns.name];
        let wanted = [
            "Autoscaler listed/web (Deployment/web): 1 change in the 24h until ",
            "queue_depth (target 10)",
            "TIME",
            "1     3   Plimsoll  MetricRecommendation  queue_depth was 30, target 10",
        ];
        let text = says(bed, &of, &wanted).await;
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        ns.scale("Deployment", "web", 2).await;
        says(bed, &of, &["another client  ", "the decisions do not say why"]).await;
        let json = plugin(bed, &[&of[..], &["-o", "json", "--since=1h"]].concat()).await.unwrap();
        let json: Value = serde_json::from_str(&json).expect("JSON");
        let changes = json["changes"].as_array().expect("changes");
        assert!(changes.len() >= 2 && changes[0]["to"] == 3, "{json}");
        let error = plugin(bed, &["history", "nobody", "-n", &ns.name]).await.unwrap_err();
        assert!(
            error.contains("autoscaler listed/nobody") && error.contains("not found"),
            "{error}"
        );
    });
}

#[test]
fn compare_says_how_many_decisions_are_equal() {
    on_shared_bed("compared", async |bed, ns| {
        ns.deployment("web", 1, "other 30").await;
        ns.hpa("web", "queue_depth", "15", 8).await;
        // One whose target's kind is not watched.
        let other = "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: other, namespace: compared}\n\
            spec: {maxReplicas: 2, scaleTargetRef: {apiVersion: example.com/v1, kind: Other, name: other}}\n";
        bed.cluster.apply(other).await;
        ns.deployment("api", 1, "queue_depth 15").await;
        ns.hpa("api", "queue_depth", "15", 8).await;
        let json = ["compare", "-n", &ns.name, "-o", "json"];
        let of = |all: &Value, name: &str| {
            let all = all["hpas"].as_array().cloned().unwrap_or_default();
            all.into_iter().find(|one| one["name"] == name).unwrap_or_default()
        };
        eventually("ten decisions are equal", FOLLOWS, async || {
            let text = plugin(bed, &json).await?;
            let all: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            let one = of(&all, "api");
            let is_equal = one["equal"].as_u64() > Some(9) && one["equal"] == one["decisions"];
            if is_equal { Ok(()) } else { Err(text) }
        })
        .await;
        let text = plugin(bed, &["compare", "-n", &ns.name]).await.unwrap();
        assert!(text.contains("compared/api: ") && text.contains(" decisions equal in "), "{text}");
        assert!(text.contains("compared/other: nothing to compare"), "{text}");
        assert!(text.contains("3 HPAs: "), "{text}");
        let explained = plugin(bed, &["explain", "hpa/api", "-n", &ns.name]).await.unwrap();
        assert!(
            explained.contains("kube-controller-manager decides; Plimsoll would stay at 1"),
            "{explained}"
        );
        let hint = plugin(bed, &["explain", "api", "-n", &ns.name]).await.unwrap_err();
        assert!(hint.contains("there is a native HPA of that name: hpa/api"), "{hint}");
    });
}
