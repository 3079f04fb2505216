//! Plimsoll is installed as docs/install.md says.

use crate::installation::{By, Installation, namespace, prepare, remove};
use crate::load::REQUESTS;
use crate::node::{Node, PODS, Pod};
use bed::eventually;
use bed::pages::Pages;
use std::collections::HashMap;
use std::time::Instant;

/// The pods of Plimsoll.
pub async fn replicas(node: &Node) -> Result<Vec<Pod>, String> {
    node.pods("plimsoll", "app.kubernetes.io/name=plimsoll").await
}

/// Checks that Plimsoll is ready, and that its APIs answer.
pub async fn works(node: &Node) {
    node.rolled_out("plimsoll", "deployment/plimsoll").await;
    eventually("there are two ready pods, and none of before", PODS, async || {
        let pods = replicas(node).await?;
        let all = pods.len() == 2 && pods.iter().all(|pod| pod.ready);
        if all { Ok(()) } else { Err(format!("{pods:?}")) }
    })
    .await;
    let pods = replicas(node).await.expect("pods");
    assert!(pods.iter().all(|pod| pod.restarts == 0), "{pods:?}");
    eventually("the APIServices are available", PODS, async || {
        let path = r#"{range .items[?(@.spec.service.name=="plimsoll")]}{.metadata.name}={.status.conditions[?(@.type=="Available")].status} {end}"#;
        let text = node.field(&["apiservices"], path).await?;
        let mut services = text.split_whitespace();
        let all = services.clone().count() >= 2 && services.all(|one| one.ends_with("=True"));
        if all { Ok(()) } else { Err(text) }
    })
    .await;
    let group = "/apis/custom.metrics.k8s.io/v1beta2";
    let listed = node.cluster.try_kubectl(&["get", "--raw", group]).await;
    assert!(listed.as_ref().is_ok_and(|list| list.contains("APIResourceList")), "{listed:?}");
}

pub fn kustomize(node: &Node) {
    node.run(async {
        let started = Instant::now();
        let pages = Pages::new(&node.cluster);
        pages.run("kubectl apply -k deploy").await.unwrap_or_else(|error| panic!("{error}"));
        works(node).await;
        println!("ready pods and APIs {:.1} s after apply", started.elapsed().as_secs_f64());
        let label = r#"{.metadata.labels.pod-security\.kubernetes\.io/enforce}"#;
        let level = node.field(&["namespace", "plimsoll"], label).await;
        assert_eq!(level.as_deref(), Ok("restricted"));
        Installation::changed(Some(By::Kustomize)).await;
    });
}

pub fn helm(node: &Node) {
    node.run(async {
        remove(node).await;
        namespace(node).await;
        let pages = Pages::new(&node.cluster);
        let started = Instant::now();
        assert!(pages.follow("install.md").await > 3);
        works(node).await;
        println!("docs/install.md done after {:.1} s", started.elapsed().as_secs_f64());
        Installation::changed(Some(By::Helm)).await;
    });
}

pub fn reload(node: &Node) {
    node.run(async {
        prepare(node).await;
        let pods = replicas(node).await.expect("pods");
        let object = ["-n", "plimsoll", "configmap", "plimsoll"];
        let present = node.field(&object, r"{.data.plimsoll\.yaml}").await.expect("it is there");
        // Every value is 7.
        let changed = present.replace("[10s]))\n", "[10s])) * 0 + 7\n");
        assert_ne!(changed, present);
        let mut before = HashMap::new();
        for Pod { name: pod, .. } in &pods {
            let log = node.cluster.kubectl(&["-n", "plimsoll", "logs", pod]).await;
            before.insert(pod, log.matches("Reloaded configuration").count());
        }
        for (change, text, is_seven) in [(1, &changed, true), (2, &present, false)] {
            let patch = serde_json::json!({"data": {"plimsoll.yaml": text}});
            let path = "/api/v1/namespaces/plimsoll/configmaps/plimsoll";
            node.cluster.patch(path, &patch).await.expect("it can be changed");
            let started = Instant::now();
            for Pod { name: pod, .. } in &pods {
                eventually("the ConfigMap is taken up", PODS, async || {
                    let log = node.cluster.try_kubectl(&["-n", "plimsoll", "logs", pod]).await?;
                    let reloads = log.matches("Reloaded configuration").count();
                    if reloads >= before[pod] + change { Ok(()) } else { Err(log) }
                })
                .await;
            }
            println!("taken up by both after {:.1} s", started.elapsed().as_secs_f64());
            eventually("the values are those of the configuration", PODS, async || {
                let values = node.cluster.raw(REQUESTS).await?;
                let seven = values.contains(r#""value":"7""#);
                if seven == is_seven { Ok(()) } else { Err(values) }
            })
            .await;
        }
        assert_eq!(replicas(node).await.expect("pods"), pods);
    });
}
