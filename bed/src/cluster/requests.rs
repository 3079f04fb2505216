//! Requests to kube-apiserver, as a user with kubectl, Helm or a client sends them.

use super::{Cluster, READY};
use crate::parts::parts;
use crate::process::printed;
use crate::wait::eventually;
use kube::Resource;
use kube::api::{DynamicObject, GroupVersionKind, TypeMeta};
use kube::discovery::Scope;
use serde_json::Value;
use std::path::Path;

impl Cluster {
    /// Runs kubectl as the administrator; panics if it fails.
    pub async fn kubectl(&self, arguments: &[&str]) -> String {
        match self.try_kubectl(arguments).await {
            Ok(output) => output,
            Err(error) => panic!("kubectl {}: {error}", arguments.join(" ")),
        }
    }

    /// Runs kubectl as the administrator. Returns its output, or its error.
    pub async fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.kubectl_as(&self.kubeconfig, arguments, "").await
    }

    /// Runs Helm as the administrator. Returns its output, or its error.
    pub async fn helm(&self, arguments: &[&str]) -> Result<String, String> {
        let folder = tokio::task::spawn_blocking(|| parts(&["helm"])).await;
        let mut command = tokio::process::Command::new(folder.expect("the parts").join("helm"));
        command.args(arguments).env("KUBECONFIG", &self.kubeconfig);
        for folder in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(folder, self.folder.join("helm"));
        }
        printed(&command.output().await.expect("helm can be run"))
    }

    /// Applies a manifest, as `kubectl apply --server-side` does.
    pub async fn apply(&self, manifest: &str) {
        let objects: Vec<Option<Value>> = serde_saphyr::from_multiple(manifest)
            .unwrap_or_else(|error| panic!("{error}\n{manifest}"));
        // kubectl applies the items of a List one by one.
        let each = objects.into_iter().flatten().flat_map(|object| match &object["items"] {
            Value::Array(items) if object["kind"] == "List" => items.clone(),
            _ => vec![object],
        });
        for object in each {
            let applied = eventually("its kind is known", READY, async || {
                match self.apply_one(&object).await {
                    // Discovery lags behind a CRD that was just created.
                    Err(error) if error.contains("NotFound") => Err(error),
                    applied => Ok(applied),
                }
            });
            if let Err(error) = applied.await {
                panic!("{error}\n{manifest}");
            }
        }
    }

    async fn apply_one(&self, object: &Value) -> Result<(), String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let types =
            TypeMeta { api_version: text(&object["apiVersion"]), kind: text(&object["kind"]) };
        let kind = GroupVersionKind::try_from(&types).map_err(|error| error.to_string())?;
        let found = kube::discovery::pinned_kind(&self.client, &kind).await;
        let (resource, capabilities) =
            found.map_err(|error| format!("NotFound: {}", kubectl_error(&error)))?;
        let scope = match capabilities.scope {
            Scope::Cluster => None,
            Scope::Namespaced => {
                Some(object["metadata"]["namespace"].as_str().unwrap_or("default"))
            }
        };
        let path = DynamicObject::url_path(&resource, scope);
        let name = text(&object["metadata"]["name"]);
        let path = format!("{path}/{name}?fieldManager=bed&force=true");
        let kind = "application/apply-patch+yaml";
        self.request("PATCH", &path, kind, object.to_string()).await.map(|_| ())
    }

    /// Sends a merge patch.
    pub async fn patch(&self, path: &str, patch: &Value) -> Result<String, String> {
        self.request("PATCH", path, "application/merge-patch+json", patch.to_string()).await
    }

    /// Sends kube-apiserver a GET request. Returns the body, or the error in kubectl's words.
    pub async fn raw(&self, path: &str) -> Result<String, String> {
        self.request("GET", path, "application/json", String::new()).await
    }

    /// Sends kube-apiserver a request. Returns the body, or the error in kubectl's words. Much cheaper
    /// than running kubectl.
    pub async fn request(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: String,
    ) -> Result<String, String> {
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header("content-type", kind).body(body.into_bytes());
        let response = self.client.request_text(request.expect("a request")).await;
        response.map_err(|error| kubectl_error(&error))
    }

    /// Runs kubectl with another kubeconfig and this standard input.
    pub async fn kubectl_as(
        &self,
        kubeconfig: &Path,
        arguments: &[&str],
        input: &str,
    ) -> Result<String, String> {
        use tokio::io::AsyncWriteExt;
        let mut child = tokio::process::Command::new(self.parts.join("cluster"))
            .arg("kubectl")
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--cache-dir")
            .arg(self.folder.join("kubectl-cache"))
            .args(arguments)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("kubectl can be run");
        let mut stdin = child.stdin.take().expect("an input");
        stdin.write_all(input.as_bytes()).await.expect("kubectl reads its input");
        drop(stdin);
        printed(&child.wait_with_output().await.expect("kubectl ends"))
    }

    /// Sets the requests per second to a path of the pods of a selector, spread evenly; 0 ends them.
    /// A test that waits for N replicas takes a rate well below N times the target, and well above 1.1
    /// times that of N - 1: noise adds one replica as long as it lasts, or is tolerated with one less.
    pub async fn load(&self, namespace: &str, selector: &str, path: &str, qps: f64) {
        let url = format!("http://127.0.0.1:{}/load", self.load_port);
        let query = [
            ("namespace", namespace.to_owned()),
            ("selector", selector.to_owned()),
            ("path", path.to_owned()),
            ("qps", qps.to_string()),
        ];
        let url = reqwest::Url::parse_with_params(&url, query).expect("a URL");
        let set = async || {
            let response = reqwest::Client::new().put(url.clone()).send().await;
            let response = response.map_err(|error| error.to_string())?;
            response.error_for_status().map(|_| ()).map_err(|error| error.to_string())
        };
        eventually("the load generator responds", READY, set).await;
    }
}

/// An error in the words of kubectl.
fn kubectl_error(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.reason.is_empty() => {
            format!("Error from server: {}", status.message)
        }
        kube::Error::Api(status) => {
            format!("Error from server ({}): {}", status.reason, status.message)
        }
        other => other.to_string(),
    }
}
