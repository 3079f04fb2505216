//! docs/quickstart.md: its commands scale podinfo, which is installed by its own chart. What the page marks by a dagger
//! is not run: it needs the internet or a cluster of the reader. The test does that part in another way.

use crate::applications::remove_namespace;
use crate::images::{Image, write_one};
use crate::installation::remove;
use crate::isolation::{binary, folder};
use crate::load::Load;
use crate::machine::import;
use crate::node::Node;
use bed::pages::{Pages, steps};
use bed::{eventually, podinfo_sources, root};
use serde_json::Value;
use std::time::{Duration, Instant};

const PAGE: &str = "quickstart.md";

/// The image of podinfo, and what its probes run.
const PODINFO: Image = ("localhost/podinfo:1", "podinfo", &[]);
const PODCLI: (&str, &str) = ("/bin/podcli", "podcli");

/// How long scaling may take. The page says at most three and a quarter minutes.
const SCALED: Duration = Duration::from_secs(300);

/// The Service that the Prometheus operator makes, for the Prometheus of the node.
const PROMETHEUS: &str = "apiVersion: v1\nkind: Service\n\
     metadata: {name: prometheus-operated, namespace: monitoring}\n\
     spec: {clusterIP: None, selector: {app: prometheus}, ports: [{port: 9090}]}\n";

pub fn followed(node: &Node) {
    node.run(async {
        remove(node).await;
        let image = write_one(&node.cluster.parts, &folder(), &PODINFO, &[PODCLI]);
        import(&node.cluster, &image).await;
        node.cluster.apply(PROMETHEUS).await;
        let pages = Pages::new(&node.cluster);
        for name in ["plimsoll", "kubectl-plimsoll"] {
            pages.add(name, &binary());
        }
        // Its probes look for podcli in the PATH, which its own image sets.
        let run = async |command: &str| {
            pages.run(command).await.unwrap_or_else(|error| panic!("{command}: {error}"))
        };
        run(&format!(
            "helm install podinfo {}/charts/podinfo -n demo --create-namespace \
             --set image.repository=localhost/podinfo --set-string image.tag=1 \
             --set 'extraEnvs[0].name=PATH' --set 'extraEnvs[0].value=/bin'",
            podinfo_sources().display()
        ))
        .await;
        // Helm does not wait for it: one pod of one may be unavailable.
        run("kubectl -n demo rollout status deployment podinfo --timeout=120s").await;

        let started = Instant::now();
        let mut commands = 0;
        for section in ["5. ", "6. "] {
            commands += pages.follow_section(PAGE, section).await;
        }
        println!("an Autoscaler is ready after {:.1} s", started.elapsed().as_secs_f64());
        let service = ["-n", "demo", "service", "podinfo"];
        let address = node.field(&service, "{.spec.clusterIP}").await.expect("a Service");
        let load = Load::of_url(30, format!("http://{address}:9898/"));
        let changed = Instant::now();
        scaled(node, |replicas| replicas > 1).await;
        println!("scaled up {:.1} s after the load began", changed.elapsed().as_secs_f64());
        scaled(node, |replicas| replicas == 6).await;
        println!("6 replicas {:.1} s after the load began", changed.elapsed().as_secs_f64());
        commands += pages.follow_section(PAGE, "8. ").await;
        load.stop().await;
        let changed = Instant::now();
        commands += pages.follow_section(PAGE, "9. ").await;
        scaled(node, |replicas| replicas == 1).await;
        println!("1 replica {:.1} s after it ended", changed.elapsed().as_secs_f64());
        commands += pages.follow_section(PAGE, "10. ").await;
        println!("docs/{PAGE} done after {:.1} s", started.elapsed().as_secs_f64());
        let text = std::fs::read_to_string(root().join("docs").join(PAGE)).expect("the page");
        assert_eq!(commands, steps(&text).len(), "a section with commands is left out");
        remove_namespace(node, "demo").await;
    });
}

/// Waits until podinfo has such a number of replicas.
async fn scaled(node: &Node, wanted: impl Fn(u64) -> bool) {
    let scale = "/apis/apps/v1/namespaces/demo/deployments/podinfo/scale";
    let autoscaler = "/apis/plimsoll.dev/v1alpha1/namespaces/demo/autoscalers/podinfo";
    eventually("podinfo is scaled", SCALED, async || {
        let object: Value = serde_json::from_str(&node.cluster.raw(scale).await?).expect("JSON");
        if object["spec"]["replicas"].as_u64().is_some_and(&wanted) {
            return Ok(());
        }
        Err(format!("{}\n{}", object["spec"], node.cluster.raw(autoscaler).await?))
    })
    .await;
}
