//! `make demo NODE=1`: the demo's story with pods of the node.

use crate::applications::application;
use crate::install::replicas;
use crate::installation::Installation;
use crate::isolation::{binary, outside};
use crate::load::Load;
use crate::node::Node;
use bed::cluster::Cluster;
use bed::pages::commands;
use bed::root;
use bed::story::{self, Stage};
use bed::workload::Namespace;
use serde_json::Value;
use std::collections::HashMap;
use std::time::Instant;
use tokio::sync::Mutex;

/// The port of the page: the same in the namespaces and outside, as the page knows its own address.
const PAGE_PORT: u16 = 8484;

/// The story on a node: applications are pods, and Plimsoll is installed.
struct OnNode<'a> {
    node: &'a Node,
    loads: Mutex<HashMap<String, Load>>,
}

impl Stage for OnNode<'_> {
    fn cluster(&self) -> &Cluster {
        &self.node.cluster
    }

    async fn deployment(&self, namespace: &Namespace<'_>, name: &str, replicas: i32) {
        application(self.node, &namespace.name, "Deployment", name, replicas).await;
    }

    async fn load(&self, name: &str, metric: &str, qps: u32) {
        let url = format!("{}/hit/{metric}", self.node.url("shop", name).await);
        let before = self.loads.lock().await.insert(name.to_owned(), Load::of_url(qps, url));
        if let Some(before) = before {
            before.stop().await;
        }
    }

    async fn query(&self, query: &str) -> Option<Value> {
        self.node.query(query).await.ok()
    }

    async fn processes(&self) -> String {
        format!("{:?}", replicas(self.node).await)
    }
}

/// Tells the story. With `keep` the node runs until this program is ended.
pub fn tell(keep: bool) -> Result<(), String> {
    let started = Instant::now();
    println!(
        "Plimsoll scales a workload, in pods of a real node: kubelet, kube-proxy, containerd, runc and CoreDNS,\n\
         beside a control plane (v1.36.3) and Prometheus, in namespaces of their own.\n"
    );
    let node = Node::shared();
    node.run(async {
        Installation::kustomize(node).await;
        println!("  ready after {:.1} s\n", started.elapsed().as_secs_f64());
        let stage = OnNode { node, loads: Mutex::default() };
        let summary = story::run(&stage).await?;
        println!("\n{summary}  whole demo          {:.0} s", started.elapsed().as_secs_f64());
        println!("\n{}", story::explanation(&node.cluster, &binary()).await?);
        if keep {
            let enter = format!("nsenter --target={}", outside());
            println!("\nThe node keeps running, under load. A shell in its namespaces, as root in another terminal:\n");
            println!("  {enter} --mount --net --pid bash");
            println!("  cd {}", root().display());
            println!("  export KUBECONFIG={}", node.cluster.kubeconfig.display());
            println!("  export PATH={}:$PATH", commands(&node.cluster, &binary()).display());
            println!("\nTry: kubectl plimsoll explain web -n shop");
            println!("For a workload of your own: \"Without a cluster\" in docs/quickstart.md");
            let prometheus = ["-n", "monitoring", "service", "prometheus"];
            let address = node.field(&prometheus, "{.spec.clusterIP}").await?;
            println!("\nPrometheus, in that shell: http://{address}:9090");
            println!("The page, in that shell:\n");
            println!("  kubectl plimsoll ui --no-browser --port={PAGE_PORT}");
            println!(
                "\nand for a browser, which is outside of its network, as root in a third terminal, with socat installed:\n"
            );
            println!(
                "  socat TCP-LISTEN:{PAGE_PORT},bind=127.0.0.1,fork,reuseaddr \
                 EXEC:'{enter} --net socat STDIO \"TCP:127.0.0.1:{PAGE_PORT}\"'"
            );
            println!("\nOpen the address that `ui` has printed. Ctrl-C ends the node, in up to 20 s.");
            // The program is killed with its namespaces. The stage has the load.
            std::future::pending::<()>().await;
        }
        Ok(())
    })
}
