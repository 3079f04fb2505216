//! How Plimsoll is installed on the node. Tests that need the same have it once.

use crate::node::{Node, PODS};
use bed::{eventually, root};
use tokio::sync::Mutex;

/// What is installed.
pub struct Installation {
    by: Option<By>,
    /// Whether with the configuration of these tests.
    configured: bool,
}

/// What is installed on the node.
static PRESENT: Mutex<Installation> =
    Mutex::const_new(Installation { by: None, configured: false });

/// What it was installed with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum By {
    Kustomize,
    Helm,
    /// Something may be left: it is being changed, or a test failed meanwhile.
    Unknown,
}

/// The values of the chart in these tests.
const VALUES: &str = "bed/tests/node/objects/values.yaml";

impl Installation {
    /// Has it installed by kustomize, with all its APIs and the configuration of these tests.
    pub async fn kustomize(node: &Node) {
        let mut present = PRESENT.lock().await;
        match present.by {
            Some(By::Kustomize) if present.configured => return,
            None | Some(By::Kustomize) => {}
            Some(By::Helm | By::Unknown) => uninstall(node).await,
        }
        *present = Self { by: Some(By::Unknown), configured: false };
        apply_folder(node, "plimsoll").await;
        node.rolled_out("plimsoll", "deployment/plimsoll").await;
        *present = Self { by: Some(By::Kustomize), configured: true };
    }

    /// Has the chart installed, with all its APIs and for a Prometheus that names pods by
    /// `kubernetes_pod_name`.
    pub async fn chart(node: &Node) {
        let mut present = PRESENT.lock().await;
        if present.by == Some(By::Helm) && present.configured {
            return;
        }
        if present.by != Some(By::Helm) {
            uninstall(node).await;
            namespace(node).await;
        }
        *present = Self { by: Some(By::Unknown), configured: false };
        upgrade(node, &[]).await;
        *present = Self { by: Some(By::Helm), configured: true };
    }

    /// A test has changed it.
    pub async fn changed(by: Option<By>) {
        *PRESENT.lock().await = Self { by, configured: false };
    }
}

/// Installs or upgrades the chart with the values of these tests and further arguments of Helm.
pub async fn upgrade(node: &Node, arguments: &[&str]) {
    let [chart, values] =
        ["deploy/chart", VALUES].map(|path| root().join(path).display().to_string());
    let words = ["upgrade", "--install", "plimsoll", &chart, "-n=plimsoll", "-f", &values];
    let done = node.cluster.helm(&[&words, arguments].concat()).await;
    done.unwrap_or_else(|error| panic!("helm: {error}"));
    node.rolled_out("plimsoll", "deployment/plimsoll").await;
}

/// Makes the namespace, which enforces `restricted`.
pub async fn namespace(node: &Node) {
    node.cluster.kubectl(&["create", "namespace", "plimsoll"]).await;
    let label = "pod-security.kubernetes.io/enforce=restricted";
    node.cluster.kubectl(&["label", "namespace", "plimsoll", label]).await;
}

/// Removes Plimsoll, its definitions with their objects, and its namespace. Until a test says what it has
/// installed then, that is unknown.
pub async fn remove(node: &Node) {
    Installation::changed(Some(By::Unknown)).await;
    uninstall(node).await;
}

async fn uninstall(node: &Node) {
    let _ = node.cluster.helm(&["uninstall", "plimsoll", "-n=plimsoll"]).await;
    let folder = root().join("deploy/overlays/all-metrics").display().to_string();
    let words = ["delete", "-k", &folder, "--ignore-not-found", "--timeout=120s"];
    eventually("nothing is left", PODS, async || node.cluster.try_kubectl(&words).await).await;
}

/// Applies a kustomization of `bed/tests/node/objects`.
pub async fn apply_folder(node: &Node, name: &str) {
    let folder = root().join("bed/tests/node/objects").join(name).display().to_string();
    eventually("the objects are applied", PODS, async || {
        // An Autoscaler is unknown until its definition is established.
        node.cluster.try_kubectl(&["apply", "-k", &folder]).await
    })
    .await;
}

/// Has the application `shop/web` beside the installation by kustomize.
pub async fn prepare(node: &Node) {
    Installation::kustomize(node).await;
    apply_folder(node, "shop").await;
    node.rolled_out("shop", "deployment/web").await;
}
