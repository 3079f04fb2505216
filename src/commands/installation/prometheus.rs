//! Whether Prometheus answers, and whether its series have the labels that queries need.

use super::report::Group;
use crate::commands::operate::Cluster;
use crate::config::CheckClusterFlags;
use crate::connect::{prometheus_of_command, redact_url};
use crate::control::within;
use crate::kube_error::worded;
use crate::prometheus::Body;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

/// What is queried: all targets, and those with the default labels of namespace and pod.
const ALL: &str = "count(up)";
const LABELLED: &str = r#"count(up{namespace!="",pod!=""})"#;
/// Any series of containers, which kubelets have.
const USAGE: &str = r#"count(container_cpu_usage_seconds_total{namespace!="",pod!=""})"#;

/// How Prometheus is asked.
enum Way<'a> {
    /// From this machine.
    Direct(Box<crate::prometheus::Client>),
    /// By the proxy of the API server to a Service: the client, and the path before `/api`.
    Proxy(&'a kube::Client, String),
}

impl Way<'_> {
    /// The number that a query gives; none if it gives nothing.
    async fn number(&self, query: &str) -> Result<Option<f64>, String> {
        let body: Value = match self {
            Self::Direct(client) => {
                let body = client.query(query, &[]).await;
                body.and_then(Body::json).map_err(|error| error.to_string())?
            }
            Self::Proxy(client, path) => {
                let query = utf8_percent_encode(query, NON_ALPHANUMERIC);
                let request = http::Request::get(format!("{path}/api/v1/query?query={query}"));
                let request = request.body(Vec::new()).map_err(|error| error.to_string())?;
                within(client.request(request)).await.map_err(|error| worded(&error))?
            }
        };
        if body["status"] != "success" {
            return Err("it is not the HTTP API of a Prometheus".to_owned());
        }
        let value = &body["data"]["result"][0]["value"][1];
        Ok(value.as_str().and_then(|value| value.parse().ok()))
    }
}

/// Checks the Prometheus of a flag, or that of Plimsoll's own flag.
pub async fn check(
    cluster: &Cluster,
    flags: &CheckClusterFlags,
    of_plimsoll: Option<&str>,
) -> Group {
    let mut group = Group::new("prometheus");
    let hint = "kubectl port-forward to it, and give --prometheus-url";
    let (url, way) = match (&flags.prometheus_url, of_plimsoll) {
        (Some(url), _) => match prometheus_of_command(url, &flags.prometheus) {
            Ok(client) => (&**url, Way::Direct(Box::new(client))),
            Err(error) => {
                group.failed("Prometheus answers", &error.to_string(), "");
                return group;
            }
        },
        (None, Some(url)) => match proxied(url) {
            Some(path) => (url, Way::Proxy(&cluster.client, path)),
            None => {
                let found = format!("{} is no Service of this cluster", redact_url(url));
                group.skipped("Prometheus answers", &found, hint);
                return group;
            }
        },
        (None, None) => {
            group.skipped("Prometheus answers", "Plimsoll's --prometheus-url is not known", hint);
            return group;
        }
    };
    let is_direct = matches!(way, Way::Direct(_));
    let what = format!("Prometheus answers ({})", redact_url(url));
    let targets = match way.number(ALL).await {
        Ok(targets) => targets.unwrap_or(0.0),
        Err(error) if is_direct => {
            group.failed(&what, &error, "");
            return group;
        }
        // Plimsoll has other credentials, and another way.
        Err(error) => {
            group.skipped(&what, &format!("by the proxy of the API server: {error}"), hint);
            return group;
        }
    };
    group.passed(&what);
    let what = "it has targets with the labels namespace and pod";
    let labels = "give them by relabelling, or name others in podMetrics.podLabel and podMetrics.namespaceLabel";
    match way.number(LABELLED).await {
        _ if targets == 0.0 => {
            group.failed(what, "it scrapes nothing: up has no series", "see its page of targets")
        }
        Ok(Some(some)) => group.passed(&format!("{what} ({some} of {targets})")),
        Ok(None) => group.warn(what, &format!("none of {targets} targets has them"), labels),
        Err(error) => group.skipped(what, &error, ""),
    }
    let what = "it has the CPU usage of containers";
    match way.number(USAGE).await {
        Ok(Some(_)) => group.passed(what),
        Ok(None) => group.warn(
            what,
            "container_cpu_usage_seconds_total has no series with namespace and pod",
            "only resourceRules need it: scrape the kubelets' /metrics/cadvisor",
        ),
        Err(error) => group.skipped(what, &error, ""),
    }
    group
}

/// The path of the API server's proxy to the Service of a URL such as `http://prometheus.monitoring.svc:9090/prefix`.
fn proxied(url: &str) -> Option<String> {
    let url = reqwest::Url::parse(url).ok()?;
    let mut host = url.host_str()?.split('.');
    let (name, namespace) = (host.next()?, host.next()?);
    if host.next().is_some_and(|next| next != "svc") {
        return None;
    }
    let port = url.port_or_known_default()?;
    let scheme = if url.scheme() == "https" { "https:" } else { "" };
    let prefix = url.path().trim_end_matches('/');
    Some(format!("/api/v1/namespaces/{namespace}/services/{scheme}{name}:{port}/proxy{prefix}"))
}

#[cfg(test)]
mod tests {
    use super::super::report::Outcome::{Passed, Skipped, Warning};
    use super::*;
    use crate::config::{Cli, Command};
    use clap::Parser;
    use serde_json::json;

    fn flags() -> CheckClusterFlags {
        match Cli::try_parse_from(["plimsoll", "check-cluster"]).unwrap().command {
            Command::CheckCluster(flags) => *flags,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn prometheus_is_asked_by_the_proxy_of_the_api_server() {
        let url = "http://prom.monitoring.svc:9090/p";
        let (client, log) = crate::fake::api(|request| {
            let is_labelled = request.query.contains("namespace");
            let result = if is_labelled { json!([]) } else { json!([{"value": [1, "7"]}]) };
            (200, json!({"status": "success", "data": {"result": result}}))
        });
        let group = check(&Cluster::fake(client), &flags(), Some(url)).await;
        assert_eq!(group.outcomes(), [Passed, Warning, Warning]);
        let path = "GET /api/v1/namespaces/monitoring/services/prom:9090/proxy/p/api/v1/query";
        assert_eq!(log.of(path).len(), 3);
        let (client, _) = crate::fake::api(|_| crate::fake::failure(403, "Forbidden", "no"));
        let cluster = Cluster::fake(client);
        for url in [Some(url), Some("https://prometheus.example.com"), None] {
            assert_eq!(check(&cluster, &flags(), url).await.outcomes(), [Skipped], "{url:?}");
        }
    }
}
