//! Metrics of requests to kube-apiserver.

use super::registrar::{HistogramFamily, Registrar, seconds};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Unit;
use tokio::time::Instant;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KubeRequestLabels {
    verb: &'static str,
    resource: String,
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerbLabels {
    verb: &'static str,
}

/// Metrics of requests to kube-apiserver.
pub struct KubeMetrics {
    requests: Family<KubeRequestLabels, Counter>,
    duration: HistogramFamily<VerbLabels>,
}

impl KubeMetrics {
    pub(super) fn new(all: &mut Registrar<'_>) -> Self {
        Self {
            requests: all.add(
                ("kube_requests", None, "counter", &["verb", "resource", "code"]),
                "Total number of requests to kube-apiserver, each retry by itself, by verb, resource and HTTP status; code 0 if there was no response",
                Family::default(),
            ),
            duration: all.add(
                ("kube_request_duration", Some(Unit::Seconds), "histogram", &["verb"]),
                "Duration of requests to kube-apiserver until the response headers, or the timeout, in seconds",
                Family::new_with_constructor(seconds),
            ),
        }
    }

    /// Starts a request. It is counted when the timer is dropped.
    pub fn start_request(&self, method: &http::Method, uri: &http::Uri) -> KubeRequestTimer {
        let (verb, resource) = verb_and_resource(method, uri);
        let (requests, duration) = (self.requests.clone(), self.duration.clone());
        KubeRequestTimer { requests, duration, verb, resource, code: 0, begun: Instant::now() }
    }
}

/// A request to kube-apiserver. A cancelled request is counted, too: an API server that hangs must
/// show in the metrics.
pub struct KubeRequestTimer {
    requests: Family<KubeRequestLabels, Counter>,
    duration: HistogramFamily<VerbLabels>,
    verb: &'static str,
    resource: String,
    code: u16,
    begun: Instant,
}

impl KubeRequestTimer {
    /// Sets the HTTP status of the response.
    pub fn responded(&mut self, code: u16) {
        self.code = code;
    }
}

impl Drop for KubeRequestTimer {
    fn drop(&mut self) {
        let (verb, resource) = (self.verb, std::mem::take(&mut self.resource));
        self.requests.get_or_create(&KubeRequestLabels { verb, resource, code: self.code }).inc();
        let took = self.begun.elapsed().as_secs_f64();
        self.duration.get_or_create(&VerbLabels { verb }).observe(took);
    }
}

/// The verb and the resource, with its subresource, of a request to kube-apiserver.
fn verb_and_resource(method: &http::Method, uri: &http::Uri) -> (&'static str, String) {
    let parts: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
    let rest = match parts.as_slice() {
        ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
        _ => &[],
    };
    let rest = match rest {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        rest => rest,
    };
    let named = rest.len() > 1;
    let resource = match rest {
        [] => String::new(),
        [resource] | [resource, _] => (*resource).to_owned(),
        // The subresource of a custom metric is its name: its cardinality is unbounded.
        [resource, _, ..] if uri.path().contains(".metrics.k8s.io/") => (*resource).to_owned(),
        [resource, _, subresource, ..] => format!("{resource}/{subresource}"),
    };
    // The resource of an external metric is its name.
    let external = uri.path().starts_with("/apis/external.metrics.k8s.io/");
    let resource = if external { "metrics".to_owned() } else { resource };
    let watches = uri.query().is_some_and(|query| query.contains("watch=true"));
    let verb = match method.as_str() {
        "GET" if watches => "watch",
        "GET" if named || rest.is_empty() => "get",
        "GET" => "list",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "other",
    };
    (verb, resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_and_resources_are_those_of_kubernetes() {
        for (method, uri, expected) in [
            ("GET", "/api/v1/pods?limit=200", ("list", "pods")),
            ("GET", "/api/v1/pods?watch=true", ("watch", "pods")),
            ("GET", "/api/v1/namespaces/shop/pods/web-0", ("get", "pods")),
            ("GET", "/api/v1/namespaces/shop", ("get", "namespaces")),
            (
                "PUT",
                "/apis/apps/v1/namespaces/shop/deployments/web/scale",
                ("update", "deployments/scale"),
            ),
            (
                "PATCH",
                "/apis/plimsoll.dev/v1alpha1/namespaces/a/autoscalers/b/status",
                ("patch", "autoscalers/status"),
            ),
            ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", ("create", "tokenreviews")),
            ("GET", "/apis/custom.metrics.k8s.io/v1beta2/namespaces/a/pods/*/m", ("get", "pods")),
            ("GET", "/apis/external.metrics.k8s.io/v1beta1/namespaces/a/m", ("list", "metrics")),
            ("GET", "/apis", ("get", "")),
        ] {
            let (verb, resource) =
                verb_and_resource(&method.parse().unwrap(), &uri.parse().unwrap());
            assert_eq!((verb, resource.as_str()), expected, "{uri}");
        }
    }
}
