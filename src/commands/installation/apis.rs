//! The API server, Plimsoll's definitions, and the APIServices.

use super::report::Group;
use crate::clock::WallClock;
use crate::commands::operate::Cluster;
use crate::config::ClusterFlags;
use crate::control::within;
use crate::crd::{custom_resource_definition, metric_rule_definition};
use crate::kube_error::worded;
use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The namespace and name of a Service that an APIService names.
pub type ServiceName = (String, String);

/// Whether a Service is in Plimsoll's namespace.
pub fn is_own(service: &ServiceName, flags: &ClusterFlags) -> bool {
    service.0 == flags.plimsoll_namespace
}

/// The oldest minor version of Kubernetes 1 that Plimsoll claims to work with.
const OLDEST_MINOR: u32 = 30;

/// How near the end of a CA is warned of, in seconds.
const NEAR_END: i64 = 7 * 86_400;

/// Whether the API server is reached, and of which version it is.
pub async fn kubernetes(cluster: &Cluster) -> (bool, Group) {
    let mut group = Group::new("kubernetes-api");
    let what = format!("the API server answers ({})", cluster.place_and_server);
    let version = match within(cluster.client.apiserver_version()).await {
        Ok(version) => version,
        Err(error) => {
            group.failed(&what, &worded(&error), "--context and --kubeconfig name another cluster");
            return (false, group);
        }
    };
    group.passed(&what);
    let minor: String = version.minor.chars().take_while(char::is_ascii_digit).collect();
    let is_old = version.major == "1" && minor.parse().is_ok_and(|minor: u32| minor < OLDEST_MINOR);
    let (what, is) = (
        format!("Kubernetes is 1.{OLDEST_MINOR} or newer"),
        format!("it is {}", version.git_version),
    );
    match is_old {
        false => group.passed(&format!("{what} ({})", version.git_version)),
        true => group.failed(&what, &is, "older versions are not supported"),
    }
    (true, group)
}

/// Whether Plimsoll's definitions are installed, established, and those of this version.
pub async fn definitions(cluster: &Cluster) -> Group {
    let mut group = Group::new("plimsoll-definitions");
    const HINT: &str = "kubectl plimsoll crd | kubectl apply --server-side -f -";
    let api: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    for own in [custom_resource_definition(), metric_rule_definition()] {
        let name = own.name_any();
        let what = format!("CustomResourceDefinition {name} is established");
        let found = match within(api.get_opt(&name)).await {
            Ok(Some(found)) => found,
            Ok(None) => {
                group.failed(&what, "it does not exist", HINT);
                continue;
            }
            Err(error) => {
                group.skipped(&what, &worded(&error), "");
                continue;
            }
        };
        let conditions = found.status.as_ref().and_then(|status| status.conditions.as_ref());
        let fault = conditions.into_iter().flatten().find(|condition| {
            matches!(&*condition.type_, "Established" | "NamesAccepted")
                && condition.status != "True"
        });
        if let Some(fault) = fault {
            let message = fault.message.as_deref().unwrap_or_default();
            group.failed(&what, &format!("{} is {}: {message}", fault.type_, fault.status), "");
            continue;
        }
        group.passed(&what);
        let what = format!("{name} has the fields of this version");
        let lacking = lacking(&schema(&json!(own)), &schema(&json!(found)), "");
        match &*lacking {
            [] => group.passed(&what),
            [first, rest @ ..] => {
                let more = if rest.is_empty() { "" } else { " and others" };
                let text = format!("it has no {first}{more}, so that the API server drops them");
                group.warn(&what, &text, HINT);
            }
        }
    }
    group
}

fn schema(definition: &Value) -> Value {
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// The fields of a schema that another one lacks.
fn lacking(own: &Value, other: &Value, path: &str) -> Vec<String> {
    let mut all = Vec::new();
    for (name, field) in own["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        match &other["properties"][name] {
            Value::Null => all.push(path),
            of_other => all.extend(lacking(field, of_other, &path)),
        }
    }
    if own["items"].is_object() {
        all.extend(lacking(&own["items"], &other["items"], &format!("{path}[]")));
    }
    all
}

/// An APIService that an installation has.
struct Expected {
    name: &'static str,
    /// Whether Plimsoll has to be the one that serves it.
    is_own: bool,
    /// What is missing without it.
    without: &'static str,
}

const EXPECTED: [Expected; 4] = [
    Expected {
        name: "v1beta2.custom.metrics.k8s.io",
        is_own: true,
        without: "HorizontalPodAutoscalers have no custom metrics",
    },
    Expected {
        name: "v1beta1.custom.metrics.k8s.io",
        is_own: true,
        without: "clients of v1beta1 have no custom metrics",
    },
    Expected {
        name: "v1alpha1.decisions.plimsoll.dev",
        is_own: true,
        without: "explain, history and compare have no decisions",
    },
    Expected {
        name: "v1beta1.metrics.k8s.io",
        is_own: false,
        without: "targets of CPU and memory can't be read, unless resourceRules serve them",
    },
];

/// Whether the APIServices are available, and who serves them: the Service of each.
pub async fn api_services(
    cluster: &Cluster,
    flags: &ClusterFlags,
) -> (BTreeMap<String, ServiceName>, Group) {
    let mut group = Group::new("plimsoll-apiservices");
    let api: Api<APIService> = Api::all(cluster.client.clone());
    let all = match within(api.list(&ListParams::default())).await {
        Ok(all) => all.items,
        Err(error) => {
            group.skipped("the APIServices are available", &worded(&error), "");
            return (BTreeMap::new(), group);
        }
    };
    let now = WallClock::default().timestamp();
    let mut services = BTreeMap::new();
    for expected in EXPECTED {
        let what = format!("APIService {} is available", expected.name);
        let Some(found) = all.iter().find(|one| one.name_any() == expected.name) else {
            let hint = match expected.is_own {
                true => {
                    "apply deploy/base/apiservice.yaml, or see apiServices of the chart's values"
                }
                false => "install metrics-server, or set resourceRules in the configuration file",
            };
            group.warn(&what, &format!("it does not exist: {}", expected.without), hint);
            continue;
        };
        let service = service_of(found);
        check_one(&mut group, found, service.as_ref(), now);
        let Some(service) = service else { continue };
        if expected.is_own && !is_own(&service, flags) {
            let text = format!("Service {}/{} serves it", service.0, service.1);
            let what = format!("Plimsoll serves {}", expected.name);
            let hint = "leave it so while that adapter is in use, and list only the other groups in --metrics-apis; or name Plimsoll's namespace by --plimsoll-namespace";
            group.warn(&what, &text, hint);
        }
        services.insert(expected.name.to_owned(), service);
    }
    (services, group)
}

/// The Service of an APIService.
fn service_of(found: &APIService) -> Option<ServiceName> {
    let service = found.spec.as_ref()?.service.as_ref()?;
    Some((service.namespace.clone()?, service.name.clone()?))
}

fn check_one(group: &mut Group, found: &APIService, service: Option<&ServiceName>, now: Timestamp) {
    let name = found.name_any();
    let what = format!("APIService {name} is available");
    let spec = found.spec.clone().unwrap_or_default();
    let conditions = found.status.as_ref().and_then(|status| status.conditions.as_ref());
    let available = conditions.into_iter().flatten().find(|one| one.type_ == "Available");
    match available {
        Some(one) if one.status == "True" => {
            let by = service.map(|(namespace, name)| format!(", served by {namespace}/{name}"));
            group.passed(&format!("{what}{}", by.unwrap_or_default()));
        }
        Some(one) => {
            let [reason, message] =
                [&one.reason, &one.message].map(|text| text.as_deref().unwrap_or_default());
            group.failed(&what, &format!("{reason}: {message}"), hint_of(reason, message));
        }
        None => group.failed(&what, "the API server has not tried it yet", ""),
    }
    if spec.insecure_skip_tls_verify == Some(true) || service.is_none() {
        return;
    }
    let what = format!("the caBundle of {name} is valid");
    match spec.ca_bundle.as_ref().map(|bundle| ends(&bundle.0)) {
        None if available.is_some_and(|one| one.status == "True") => {}
        None => group.failed(&what, "there is none", "Plimsoll writes it where it serves with a certificate of its own: see its log for caBundle"),
        Some(Err(error)) => group.failed(&what, &error, "write the CA of the serving certificate as PEM"),
        Some(Ok(ends)) => match ends.iter().max() {
            None => group.failed(&what, "it has no certificate", "delete it: Plimsoll writes it anew"),
            Some(last) if *last < now.as_second() => {
                group.failed(&what, "all its certificates have expired", "renew the serving certificate, and write its CA");
            }
            Some(last) if *last < now.as_second() + NEAR_END => {
                group.warn(&what, "its last certificate expires within a week", "");
            }
            Some(_) => group.passed(&what),
        },
    }
}

/// What to do about an APIService that is not available.
fn hint_of(reason: &str, message: &str) -> &'static str {
    match reason {
        "ServiceNotFound" => "create the Service that it names",
        "EndpointsNotFound" | "MissingEndpoints" | "ServiceEndpointsNotReady" => {
            "no pod of the Service is ready: see plimsoll-replicas below"
        }
        _ if message.contains("x509") || message.contains("certificate") => {
            "the caBundle is not of the serving certificate: delete it, and Plimsoll writes it anew; or write the CA of --tls-cert-file"
        }
        _ if message.contains("timeout") || message.contains("deadline") => {
            "the API server does not reach the pods: allow it in the firewall and in NetworkPolicies (port 6443 of the pods)"
        }
        _ => "see the log of Plimsoll, and kubectl get --raw /readyz?verbose of its pods",
    }
}

/// When the certificates of a bundle end, in Unix seconds.
fn ends(bundle: &[u8]) -> Result<Vec<i64>, String> {
    let certificates = CertificateDer::pem_slice_iter(bundle);
    let end = |certificate: Result<CertificateDer<'_>, _>| {
        let certificate = certificate.map_err(|_| "it is not PEM".to_owned())?;
        let parsed = x509_parser::parse_x509_certificate(&certificate);
        let (_, parsed) = parsed.map_err(|_| "it has what is no certificate".to_owned())?;
        Ok(parsed.validity().not_after.timestamp())
    };
    certificates.map(end).collect()
}

#[cfg(test)]
mod tests {
    use super::super::report::Outcome::{Failed, Passed, Warning};
    use super::*;

    fn service(name: &str, namespace: &str, status: &str, bundle: &str) -> Value {
        json!({"metadata": {"name": name}, "spec": {"group": "x", "version": "v1", "caBundle": bundle,
            "groupPriorityMinimum": 1, "versionPriority": 1,
            "service": {"namespace": namespace, "name": "plimsoll"}},
            "status": {"conditions": [{"type": "Available", "status": status, "reason": "FailedDiscoveryCheck",
                "message": "x509: certificate signed by unknown authority"}]}})
    }

    #[tokio::test]
    async fn an_api_service_that_is_not_available_or_of_others_is_told() {
        let ca = rcgen::generate_simple_self_signed(["plimsoll".to_owned()]).unwrap();
        let bundle = json!(k8s_openapi::ByteString(ca.cert.pem().into_bytes()));
        let bundle = bundle.as_str().unwrap();
        let items = json!([
            service(EXPECTED[0].name, "plimsoll", "True", bundle),
            service(EXPECTED[1].name, "monitoring", "True", bundle),
            service(EXPECTED[2].name, "plimsoll", "False", "eA=="),
        ]);
        let (client, _) = crate::fake::api(move |_| {
            (200, json!({"kind": "APIServiceList", "metadata": {}, "items": items}))
        });
        let flags = ClusterFlags {
            kubectl: Default::default(),
            plimsoll_namespace: "plimsoll".to_owned(),
            lease: "plimsoll".to_owned(),
        };
        let (services, group) = api_services(&Cluster::fake(client), &flags).await;
        // Available and a CA; the same, but of another; neither, and no metrics-server.
        let expected = [Passed, Passed, Passed, Passed, Warning, Failed, Failed, Warning];
        assert_eq!(group.outcomes(), expected);
        assert_eq!(services[EXPECTED[1].name].0, "monitoring");
    }

    #[tokio::test]
    async fn definitions_of_an_older_version_are_told() {
        let (client, _) = crate::fake::api(|request| {
            let own = match request.line.ends_with("/autoscalers.plimsoll.dev") {
                true => custom_resource_definition(),
                false => return crate::fake::failure(404, "NotFound", "no"),
            };
            let mut own = json!(own);
            let fields = &mut own["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
            fields["spec"]["properties"].as_object_mut().unwrap().remove("mode");
            (200, own)
        });
        let group = definitions(&Cluster::fake(client)).await;
        assert_eq!(group.outcomes(), [Passed, Warning, Failed]);
    }
}
