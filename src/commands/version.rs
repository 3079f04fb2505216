//! `plimsoll version`: that of the command, of Plimsoll in the cluster, and of Kubernetes.

use super::operate::{Cluster, OperateError};
use super::shown::printed;
use super::story::plain;
use crate::config::{OutputFormat, VersionFlags};
use crate::control::within;
use crate::kube_error::worded;
use crate::revision::REVISION;
use kube::Client;
use serde_json::{Value, json};

/// The document in which a server of Plimsoll says its version. All who are authenticated may read it.
const DOCUMENTS: [&str; 2] = [
    "/openapi/v3/apis/decisions.plimsoll.dev/v1alpha1",
    "/openapi/v3/apis/custom.metrics.k8s.io/v1beta2",
];

/// The version of this command, as a line and for programs.
fn of_client(revision: Option<&str>) -> (String, Value) {
    let version = env!("CARGO_PKG_VERSION");
    let platform = format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH);
    let mut client = json!({"version": version, "platform": platform});
    let mut text = format!("Client version: {version} ({platform}");
    if let Some(revision) = revision {
        client["commit"] = revision.into();
        text += &format!(", commit {revision}");
    }
    (text + ")\n", client)
}

/// The versions. That of the server is left out where the cluster is not reached, and why is told.
///
/// # Errors
/// If the cluster is not reached and its version was asked for by a flag that names it.
pub async fn run(flags: &VersionFlags) -> Result<String, OperateError> {
    let (mut text, client) = of_client(REVISION);
    let mut versions = json!({"clientVersion": client});
    if !flags.client {
        let (server, kubernetes) = match Cluster::of(&flags.kubectl).await {
            Ok(cluster) => of_cluster(&cluster.client).await,
            Err(error) if flags.kubectl.is_given() => return Err(error.into()),
            Err(error) => (Err(error.to_string()), Err(String::new())),
        };
        for (name, field, version) in [
            ("Server version", "serverVersion", server),
            ("Kubernetes version", "kubernetesVersion", kubernetes),
        ] {
            match version {
                Ok(version) => {
                    text += &format!("{name}: {}\n", plain(&version));
                    versions[field] = json!({"version": version});
                }
                Err(why) if why.is_empty() => {}
                Err(why) => {
                    text += &format!("{name}: not known: {}\n", plain(&why));
                    versions[field] = json!({"error": why});
                }
            }
        }
    }
    Ok(match flags.output {
        OutputFormat::Text => text,
        OutputFormat::Json | OutputFormat::Yaml => printed(&versions, flags.output),
    })
}

/// The version of Plimsoll and that of Kubernetes.
async fn of_cluster(client: &Client) -> (Result<String, String>, Result<String, String>) {
    let kubernetes = match within(client.apiserver_version()).await {
        Ok(version) => version.git_version,
        // One request tells why.
        Err(error) => return (Err(worded(&error)), Err(String::new())),
    };
    let mut server =
        Err("no replica of Plimsoll serves an APIService: see plimsoll check-cluster".to_owned());
    for path in DOCUMENTS {
        let Ok(request) = http::Request::get(path).body(Vec::new()) else { continue };
        let document = within(client.request::<Value>(request)).await;
        let info = document.map(|document| document["info"].clone()).unwrap_or_default();
        if let (Some("plimsoll"), Some(version)) =
            (info["title"].as_str(), info["version"].as_str())
        {
            server = Ok(version.to_owned());
            break;
        }
    }
    (server, Ok(kubernetes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_of_the_command_is_told_if_its_build_knows_it() {
        let (text, client) = of_client(Some("0a110bb-dirty"));
        assert!(text.ends_with(", commit 0a110bb-dirty)\n"), "{text}");
        assert_eq!(client["commit"], "0a110bb-dirty");
        let (text, client) = of_client(None);
        assert!(text.ends_with(")\n") && !text.contains("commit"), "{text}");
        assert!(client.get("commit").is_none(), "{client}");
    }

    #[tokio::test]
    async fn the_server_says_its_version_in_its_openapi_document() {
        let of = async |title: &'static str| {
            let (client, _) = crate::fake::api(move |request| match request.line.as_str() {
                "GET /version" => (
                    200,
                    json!({"major": "1", "minor": "36", "gitVersion": "v1.36.2",
                    "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "",
                    "compiler": "", "platform": ""}),
                ),
                line if line.contains("decisions") => crate::fake::failure(404, "NotFound", "no"),
                _ => (200, json!({"info": {"title": title, "version": "9.9.9"}})),
            });
            of_cluster(&client).await
        };
        let versions = (Ok("9.9.9".to_owned()), Ok("v1.36.2".to_owned()));
        assert_eq!(of("plimsoll").await, versions);
        assert!(of("prometheus-metrics-adapter").await.0.is_err());
    }
}
