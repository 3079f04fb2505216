//! Side by side with prometheus-adapter 0.12: the same cluster, Prometheus,
//! configuration, flags and requests; the answers must agree. Where ours differ
//! on purpose (docs/differences.md) a test says so.

use crate::runtime;
use bed::adapter::{Adapter, Program};
use bed::cluster::Cluster;
use bed::workload::Namespace;
use bed::{Options, eventually};
use plimsoll::k8s::Quantity;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::Duration;

/// A configuration, and what is asked under it.
struct Case {
    name: &'static str,
    config: String,
    paths: Vec<String>,
}

/// What pods expose beside `job`, `instance`, `namespace` and `pod`.
const WEB: &str = "http_requests_total{service=\"web\",kube_apps_deployment=\"web\",ingress=\"main\",zone=\"a\",code=\"200\"} 120\n\
http_requests_total{service=\"web\",kube_apps_deployment=\"web\",ingress=\"main\",zone=\"b\",code=\"500\"} 30\n\
queue_depth{service=\"web\",zone=\"a\"} 7.25\n\
container_memory_bytes{container=\"app\"} 1048576\n\
container_memory_bytes{container=\"proxy\"} 2097153\n\
container_cpu_usage_seconds_total{container=\"app\"} 12\n\
cpu_usage{container=\"app\",node=\"fleet\"} 0.25\n\
cpu_usage{container=\"proxy\",node=\"fleet\"} 0.125\n\
gizmo_load{gizmo=\"first\"} 4\n\
gizmo_load{gizmo=\"second\"} 5\n\
node_load{node=\"fleet\"} 1.5\n\
volume_used{persistentvolume=\"disk\"} 3\n\
tenant_credit{tenant=\"a-b\"} 9";
const BANK: &str = "http_requests_total{service=\"web\",zone=\"c\"} 999\n\
queue_depth{service=\"web\",zone=\"c\"} 41\n\
odd_zero 0\nodd_negative -5.5\nodd_huge 123456789012\nodd_whole 3\nodd_fraction 0.125\nodd_third 0.3333333\nodd_nan NaN\nodd_infinite +Inf\nodd_tiny 0.0004\n\
cpu_usage{container=\"app\",node=\"fleet\"} 0.5\n\
container_memory_bytes{container=\"app\"} 4194304";

async fn world(cluster: &Cluster) {
    let shop = Namespace::new(cluster, "shop").await;
    let bank = Namespace::new(cluster, "bank").await;
    shop.workload("StatefulSet", "web", 3, WEB).await;
    bank.workload("StatefulSet", "web", 2, BANK).await;
    shop.workload("StatefulSet", "idle", 1, "").await;
    cluster
        .apply(
            "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop, labels: {app: web}}\n\
             spec: {ports: [{port: 80}]}\n---\n\
             apiVersion: v1\nkind: Service\nmetadata: {name: other, namespace: shop}\n\
             spec: {ports: [{port: 80}]}\n---\n\
             apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: main, namespace: shop}\n\
             spec: {defaultBackend: {service: {name: web, port: {number: 80}}}}\n---\n\
             apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: disk}\n\
             spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: /nowhere}}\n---\n\
             apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop}\n\
             spec: {replicas: 0, selector: {matchLabels: {app: d}}, template: {metadata: {labels: {app: d}}, spec: {containers: [{name: a, image: b}]}}}\n---\n\
             apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: gizmos.example.com}\n\
             spec:\n  group: example.com\n  scope: Namespaced\n  names: {plural: gizmos, singular: gizmo, kind: Gizmo}\n\
             \x20 versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]\n",
        )
        .await;
    eventually("the CRD is there", Duration::from_secs(30), async || {
        cluster.try_kubectl(&["get", "gizmos", "-A"]).await
    })
    .await;
    for name in ["first", "second", "third"] {
        let manifest = format!(
            "apiVersion: example.com/v1\nkind: Gizmo\nmetadata: {{name: {name}, namespace: shop}}\n"
        );
        cluster.apply(&manifest).await;
    }
    eventually("all is scraped", Duration::from_secs(30), async || {
        let query = [("query", "count({pod!=\"\",__name__=~\"odd_third|node_load\"})")];
        let url = format!("http://127.0.0.1:{}/api/v1/query", cluster.prometheus_port);
        let url = reqwest::Url::parse_with_params(&url, query).expect("a URL");
        let text = async { reqwest::get(url).await?.text().await }.await;
        let text = text.map_err(|error| error.to_string())?;
        if text.contains("\"5\"") { Ok(()) } else { Err(text) }
    })
    .await;
    eventually("there are rates of some seconds", Duration::from_secs(60), async || {
        // One sample is older than the window of the rules is long: it is full.
        let query = [("query", "count(http_requests_total{zone!=\"\"} offset 9s)")];
        let url = format!("http://127.0.0.1:{}/api/v1/query", cluster.prometheus_port);
        let url = reqwest::Url::parse_with_params(&url, query).expect("a URL");
        let text = async { reqwest::get(url).await?.text().await }.await;
        let text = text.map_err(|error| error.to_string())?;
        if text.contains("\"8\"") { Ok(()) } else { Err(text) }
    })
    .await;
}

const GROUP: &str = "/apis/custom.metrics.k8s.io";

/// Paths in both versions.
fn both(paths: &[&str]) -> Vec<String> {
    let versions = ["v1beta1", "v1beta2"];
    versions
        .iter()
        .flat_map(|version| paths.iter().map(move |path| format!("{GROUP}/{version}/{path}")))
        .collect()
}

fn rule(series: &str, rest: &str) -> String {
    format!("rules:\n- seriesQuery: '{series}'\n{rest}")
}

const SUM: &str = "  metricsQuery: 'sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)'\n";
const OVERRIDES: &str =
    "  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}\n";

const SELECTORS: [&str; 16] = [
    "zone=a",
    "zone==a",
    "zone!=a",
    "zone in (a)",
    "zone in (a,b)",
    "zone notin (a)",
    "zone notin (a,b)",
    "zone",
    "!zone",
    "zone=none",
    "zone=a,code=200",
    "zone>1",
    "zone<1",
    "app.kubernetes.io/name=x",
    "zone=a,zone=b",
    "zone in (a,b),code notin (500)",
];
const LABEL_SELECTORS: [&str; 8] = [
    "app=web",
    "app in (web,idle)",
    "app!=web",
    "app",
    "!app",
    "app=none",
    "statefulset.kubernetes.io/pod-name=web-1",
    "apps.kubernetes.io/pod-index>0",
];

fn encode(text: &str) -> String {
    let bytes = text.bytes().map(|b| match b {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(b).to_string(),
        _ => format!("%{b:02X}"),
    });
    bytes.collect()
}

fn selectors() -> Vec<String> {
    let mut paths = Vec::new();
    for selector in SELECTORS {
        // The peer fails on `!=` where it finds something; see `differences`.
        if selector.contains("!=") {
            continue;
        }
        let selector = encode(selector);
        paths.extend(both(&[
            &format!("namespaces/shop/pods/*/http_requests_total?metricLabelSelector={selector}"),
            &format!(
                "namespaces/shop/pods/web-0/http_requests_total?metricLabelSelector={selector}"
            ),
        ]));
    }
    for selector in LABEL_SELECTORS {
        let selector = encode(selector);
        paths.extend(both(&[&format!(
            "namespaces/shop/pods/*/queue_depth?labelSelector={selector}"
        )]));
    }
    for broken in ["a b", "a in b", "=", "a=b=c", "a in (", "-x"] {
        let broken = encode(broken);
        paths.extend(both(&[
            &format!("namespaces/shop/pods/*/queue_depth?labelSelector={broken}"),
            &format!("namespaces/shop/pods/*/queue_depth?metricLabelSelector={broken}"),
        ]));
    }
    paths
}

fn cases() -> Vec<Case> {
    let pods = "{namespace!=\"\",pod!=\"\"}";
    let external = |path: &str| format!("/apis/external.metrics.k8s.io/v1beta1/{path}");
    let resource = |path: &str| format!("/apis/metrics.k8s.io/v1beta1/{path}");
    let mut cases = vec![
        Case {
            name: "template",
            config: rule(pods, &format!("  resources: {{template: '<<.Resource>>'}}\n{SUM}")),
            paths: both(&[
                "", "namespaces/shop/pods/*/queue_depth", "namespaces/shop/pods/web-0/queue_depth",
                "namespaces/shop/pods/web-9/queue_depth", "namespaces/bank/pods/*/queue_depth",
                "namespaces/none/pods/*/queue_depth", "namespaces/shop/pods/*/none",
                "namespaces/shop/pods/idle-0/queue_depth", "namespaces/shop/pod/web-0/queue_depth",
                "namespaces/shop/pod/*/queue_depth", "namespaces/shop/services/web/queue_depth",
                "namespaces/shop/services/*/queue_depth", "namespaces/shop/services/other/queue_depth",
                "namespaces/shop/services/*/queue_depth?labelSelector=app%3Dweb",
                "namespaces/shop/metrics/queue_depth", "namespaces/none/metrics/queue_depth",
                "namespaces/*/metrics/queue_depth", "namespaces/shop/ingresses.networking.k8s.io/main/http_requests_total",
                "namespaces/shop/ingresses/main/http_requests_total", "namespaces/shop/ingress/*/http_requests_total",
                "namespaces/shop/gizmos.example.com/first/gizmo_load", "namespaces/shop/gizmos/*/gizmo_load",
                "namespaces/shop/gizmos.example/second/gizmo_load", "namespaces/shop/gizmos.other.com/second/gizmo_load",
                "nodes/fleet/node_load", "nodes/*/node_load", "nodes/none/node_load", "node/fleet/node_load",
                "persistentvolumes/disk/volume_used", "persistentvolumes/*/volume_used",
                "namespaces/shop/unknowns/x/queue_depth", "namespaces/shop/unknowns/*/queue_depth",
                "pods/web-0/queue_depth", "pods/*/queue_depth", "namespaces/shop/queue_depth",
                "namespaces/shop/pods/web-0/queue_depth/more", "namespaces/shop/jobs.batch/pods/queue_depth",
                "namespaces/shop/nodes/fleet/node_load",
                "namespaces/shop/pods/*/queue_depth?fieldSelector=metadata.name%3Dweb-0",
                "namespaces/shop/pods/web-0/queue_depth?fieldSelector=metadata.name%3Dweb-0",
                "namespaces/shop/pods/web-0/queue_depth?fieldSelector=metadata.name%3Dweb-1",
                "namespaces/shop/pods/web-0/queue_depth?fieldSelector=spec.nodeName%3Dfleet",
                "namespaces/shop/pods/web-0/queue_depth?labelSelector=app%3Dnone",
                "namespaces/shop/pods/web-0/queue_depth/", "namespaces/shop/pods/WEB-0/queue_depth",
                "namespaces/shop/pods/web.0/queue_depth",
                "namespaces/Shop/pods/web-0/queue_depth", "namespaces/shop/PODS/web-0/queue_depth",
                "namespaces/shop/pods/*/queue_depth?limit=1", "namespaces/shop/pods/*/queue_depth?unknown=1", "namespaces/shop/statefulsets.apps/*/queue_depth",
            ]),
        },
        Case {
            name: "rate",
            config: rule(
                "http_requests_total{namespace!=\"\"}",
                &format!("{OVERRIDES}  name: {{matches: '^(.*)_total$', as: '${{1}}_per_second'}}\n\
                  \x20 metricsQuery: 'sum(rate(<<.Series>>{{<<.LabelMatchers>>}}[8s])) by (<<.GroupBy>>)'\n"),
            ),
            paths: both(&[
                "", "namespaces/shop/pods/*/http_requests_per_second",
                "namespaces/shop/pods/web-1/http_requests_per_second",
                "namespaces/shop/pods/*/http_requests_total", "namespaces/shop/metrics/http_requests_per_second",
                "namespaces/bank/pods/*/http_requests_per_second?labelSelector=app%3Dweb",
            ]),
        },
        Case {
            name: "cadvisor",
            config: format!(
                "rules:\n- seriesQuery: '{{__name__=~\"^container_.*\",container!=\"POD\",namespace!=\"\",pod!=\"\"}}'\n\
                 \x20 seriesFilters: []\n{OVERRIDES}  name: {{matches: '^container_(.*)_seconds_total$', as: ''}}\n\
                 \x20 metricsQuery: 'sum(rate(<<.Series>>{{<<.LabelMatchers>>,container!=\"POD\"}}[8s])) by (<<.GroupBy>>)'\n\
                 - seriesQuery: '{{__name__=~\"^container_.*\",container!=\"POD\",namespace!=\"\",pod!=\"\"}}'\n\
                 \x20 seriesFilters: [{{isNot: '^container_.*_seconds_total$'}}, {{is: bytes}}]\n{OVERRIDES}\
                 \x20 name: {{matches: '^container_(.*)$', as: ''}}\n\
                 \x20 metricsQuery: 'sum(<<.Series>>{{<<.LabelMatchers>>,container!=\"POD\"}}) by (<<.GroupBy>>)'\n"
            ),
            paths: both(&[
                "", "namespaces/shop/pods/*/memory_bytes", "namespaces/bank/pods/web-0/memory_bytes",
                "namespaces/shop/pods/*/cpu_usage", "namespaces/shop/pods/*/memory_bytes?metricLabelSelector=container%3Dapp",
                "namespaces/shop/metrics/memory_bytes", "namespaces/shop/pods/*/container_memory_bytes",
            ]),
        },
        Case {
            name: "groups",
            config: rule(
                "http_requests_total{namespace!=\"\"}",
                &format!("  resources: {{template: 'kube_<<.Group>>_<<.Resource>>', overrides: {{namespace: {{resource: namespace}}, service: {{resource: services}}, ingress: {{group: networking.k8s.io, resource: ingress}}}}}}\n{SUM}"),
            ),
            paths: both(&[
                "", "namespaces/shop/deployments.apps/web/http_requests_total",
                "namespaces/shop/deployments/*/http_requests_total", "namespaces/shop/services/web/http_requests_total",
                "namespaces/shop/ingresses.networking.k8s.io/*/http_requests_total", "namespaces/shop/pods/*/http_requests_total",
                "namespaces/bank/services/web/http_requests_total", "namespaces/shop/metrics/http_requests_total",
            ]),
        },
        Case {
            name: "cluster-scoped",
            config: rule(
                "{__name__=~\"node_load|volume_used\"}",
                &format!("  resources: {{overrides: {{node: {{resource: node}}, persistentvolume: {{resource: persistentvolume}}}}}}\n{SUM}"),
            ),
            paths: both(&[
                "", "nodes/fleet/node_load", "nodes/*/node_load?labelSelector=none%3Dx", "persistentvolumes/*/volume_used",
                "namespaces/shop/pods/*/node_load", "nodes/fleet/volume_used",
            ]),
        },
        Case {
            name: "odd-values",
            config: rule("{__name__=~\"^odd_.*\"}", &format!("{OVERRIDES}{SUM}")),
            paths: ["zero", "negative", "huge", "whole", "fraction", "third", "none"]
                .iter()
                .flat_map(|odd| {
                    both(&[
                        &format!("namespaces/bank/pods/*/odd_{odd}"),
                        &format!("namespaces/bank/pods/web-0/odd_{odd}"),
                        &format!("namespaces/bank/metrics/odd_{odd}"),
                    ])
                })
                .collect(),
        },
        Case {
            name: "template-language",
            config: format!(
                "rules:\n- seriesQuery: 'queue_depth'\n{OVERRIDES}  name: {{as: joined}}\n\
                 \x20 metricsQuery: '<<- $c := \"\" ->>sum(<<.Series>>{{<<range $k, $v := .LabelValuesByName>><<$k>>=~\"<<$v>>\",<<end>>}}) by (<<range $i, $l := .GroupBySlice>><<if $i>>,<<end>><<$l>><<end>>)'\n\
                 - seriesQuery: 'queue_depth'\n{OVERRIDES}  name: {{as: indexed}}\n\
                 \x20 metricsQuery: 'sum(<<.Series>>{{namespace=\"<<index .LabelValuesByName \"namespace\">>\",pod=~\"<<.LabelValuesByName.pod>>\"}}) by (<<index .GroupBySlice 0>>)'\n\
                 - seriesQuery: 'queue_depth'\n{OVERRIDES}  name: {{as: conditional}}\n\
                 \x20 metricsQuery: '<<if eq .Series \"queue_depth\">>sum(<<.Series>>{{<<.LabelMatchers>>}}) by (<<.GroupBy>>)<<else>>vector(1)<<end>>'\n\
                 - seriesQuery: 'queue_depth'\n{OVERRIDES}  name: {{as: printed}}\n\
                 \x20 metricsQuery: '<<printf \"sum(%s{{%s}}) by (%s)\" .Series .LabelMatchers .GroupBy>>'\n\
                 - seriesQuery: 'queue_depth'\n{OVERRIDES}  name: {{as: failing}}\n\
                 \x20 metricsQuery: '<<index .GroupBySlice 7>>'\n\
                 - seriesQuery: 'queue_depth'\n{OVERRIDES}  name: {{as: empty}}\n  metricsQuery: ''\n\
                 - seriesQuery: 'queue_depth'\n{OVERRIDES}  name: {{as: broken}}\n  metricsQuery: 'sum(<<.Series>>{{'\n\
                 - seriesQuery: 'queue_depth'\n{OVERRIDES}  name: {{as: ungrouped}}\n  metricsQuery: 'sum(<<.Series>>{{<<.LabelMatchers>>}})'\n\
                 - seriesQuery: 'queue_depth'\n{OVERRIDES}  name: {{as: plain}}\n  metricsQuery: '<<.Series>>{{<<.LabelMatchers>>}}'\n\
                 - seriesQuery: 'queue_depth'\n{OVERRIDES}  name: {{as: matrix}}\n  metricsQuery: '<<.Series>>{{<<.LabelMatchers>>}}[5s]'\n"
            ),
            paths: ["joined", "indexed", "conditional", "printed", "failing", "empty", "broken", "ungrouped", "plain", "matrix"]
                .iter()
                .flat_map(|metric| {
                    both(&[
                        &format!("namespaces/shop/pods/*/{metric}"),
                        &format!("namespaces/shop/pods/web-2/{metric}"),
                    ])
                })
                .chain(both(&[""]))
                .collect(),
        },
        Case {
            name: "names",
            config: format!(
                "rules:\n- seriesQuery: '{{__name__=~\"queue_depth|node_load|gizmo_load\"}}'\n\
                 \x20 resources: {{template: '<<.Resource>>'}}\n  name: {{matches: '(?P<what>.*)_(?P<kind>depth|load)', as: '${{kind}}-of-$what'}}\n{SUM}\
                 - seriesQuery: 'queue_depth'\n{OVERRIDES}  name: {{as: 'x_${{0}}'}}\n{SUM}\
                 - seriesQuery: '{{__name__=~\"odd_.*\"}}'\n{OVERRIDES}  name: {{matches: 'odd_', as: same}}\n\
                 \x20 metricsQuery: 'sum(<<.Series>>{{<<.LabelMatchers>>}}) by (<<.GroupBy>>)'\n"
            ),
            paths: both(&[
                "", "namespaces/shop/pods/*/depth-of-queue", "namespaces/shop/gizmos/*/load-of-gizmo",
                "nodes/*/load-of-node", "namespaces/shop/pods/*/x_queue_depth", "namespaces/shop/pods/*/queue_depth",
            ]),
        },
        Case {
            name: "external",
            config: "externalRules:\n\
                 - seriesQuery: 'queue_depth{namespace!=\"\"}'\n  resources: {overrides: {namespace: {resource: namespace}}}\n\
                 \x20 metricsQuery: 'sum(<<.Series>>{<<.LabelMatchers>>}) by (zone)'\n\
                 - seriesQuery: 'http_requests_total'\n  resources: {namespaced: false}\n  name: {as: all_requests}\n\
                 \x20 metricsQuery: 'sum(<<.Series>>{<<.LabelMatchers>>}) by (service, namespace)'\n\
                 - seriesQuery: 'tenant_credit'\n  resources: {namespaced: false}\n  name: {as: fixed}\n\
                 \x20 metricsQuery: 'scalar(vector(4.5))'\n\
                 - seriesQuery: 'tenant_credit'\n  resources: {namespaced: false}\n  name: {as: raw}\n\
                 \x20 metricsQuery: '<<.Series>>{<<.LabelMatchers>>}'\n\
                 - seriesQuery: 'tenant_credit'\n  name: {as: unmapped}\n\
                 \x20 metricsQuery: '<<.Series>>{<<.LabelMatchers>>}'\n\
                 - seriesQuery: 'tenant_credit'\n  resources: {namespaced: false}\n  name: {as: text}\n\
                 \x20 metricsQuery: '\"words\"'\n".to_owned(),
            paths: {
                let mut paths = vec![external(""), "/apis/external.metrics.k8s.io".to_owned()];
                for metric in ["queue_depth", "all_requests", "fixed", "raw", "unmapped", "text", "none"] {
                    for namespace in ["shop", "bank", "default", "none"] {
                        paths.push(external(&format!("namespaces/{namespace}/{metric}")));
                    }
                }
                for selector in SELECTORS {
                    let selector = encode(selector);
                    paths.push(external(&format!("namespaces/shop/queue_depth?labelSelector={selector}")));
                    paths.push(external(&format!("namespaces/shop/raw?labelSelector={selector}")));
                }
                paths.push(external("namespaces/shop/queue_depth?labelSelector=a%20b"));
                paths.push(external("queue_depth"));
                paths
            },
        },
        Case {
            name: "resource",
            config: {
                let rule = |resource: &str, series: &str| format!(
                    "  {resource}:\n    containerLabel: container\n\
                     \x20   containerQuery: 'sum(<<.Series>>{series}{{<<.LabelMatchers>>}}) by (<<.GroupBy>>)'\n\
                     \x20   nodeQuery: 'sum({series}{{<<.LabelMatchers>>}}) by (<<.GroupBy>>)'\n\
                     \x20   resources: {{overrides: {{namespace: {{resource: namespace}}, pod: {{resource: pod}}, node: {{resource: node}}}}}}\n"
                );
                format!("resourceRules:\n  window: 1m\n{}{}", rule("cpu", "cpu_usage"), rule("memory", "cpu_usage"))
            },
            paths: [
                "", "nodes", "nodes/fleet", "nodes/none", "pods", "namespaces/shop/pods", "namespaces/bank/pods",
                "namespaces/none/pods", "namespaces/shop/pods/web-0", "namespaces/shop/pods/idle-0",
                "namespaces/shop/pods/none", "namespaces/shop/pods?labelSelector=app%3Dweb",
                "namespaces/shop/pods?labelSelector=app%3Dnone", "namespaces/shop/pods?fieldSelector=metadata.name%3Dweb-1",
                "nodes?labelSelector=x%3Dy", "pods?labelSelector=app%20x", "none",
            ].iter().map(|path| resource(path)).collect(),
        },
    ];
    cases.push(Case {
        name: "selectors",
        config: rule(pods, &format!("{OVERRIDES}{SUM}")),
        paths: selectors(),
    });
    cases.push(Case {
        name: "without-namespace-label",
        config: rule(
            "queue_depth",
            &format!("  resources: {{overrides: {{pod: {{resource: pod}}}}}}\n{SUM}"),
        ),
        paths: both(&[
            "",
            "namespaces/shop/pods/*/queue_depth",
            "namespaces/shop/pods/web-0/queue_depth",
        ]),
    });
    cases
}

/// An answer, without what may differ from request to request.
#[derive(Debug, PartialEq)]
struct Answer {
    code: u16,
    reason: String,
    kind: String,
    items: BTreeSet<String>,
}

/// A client that takes any certificate: the peer's is its own.
pub fn any_certificate() -> reqwest::ClientBuilder {
    reqwest::Client::builder().tls_danger_accept_invalid_certs(true)
}

pub async fn ask(port: u16, token: &str, path: &str) -> (u16, Value) {
    let http = any_certificate().build().expect("a client");
    let request = http.get(format!("https://127.0.0.1:{port}{path}")).bearer_auth(token);
    let response = request.send().await.expect("an answer");
    let code = response.status().as_u16();
    let body = response.bytes().await.expect("a body");
    (code, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

/// Values to a thousandth, no times.
fn item(item: &Value) -> String {
    let mut item = item.clone();
    let round = |value: &mut Value| {
        if let Some(quantity) = value.as_str().and_then(|text| text.parse::<Quantity>().ok()) {
            // The peer cuts off below a thousandth.
            *value = ((quantity.as_f64() * 1000.0 + 1e-6).trunc() as i64).into();
        }
    };
    if let Some(fields) = item.as_object_mut() {
        fields.remove("timestamp");
        if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("creationTimestamp");
        }
        for value in fields.get_mut("value").into_iter() {
            round(value);
        }
        for usage in fields.get_mut("usage").and_then(Value::as_object_mut).into_iter() {
            usage.values_mut().for_each(round);
        }
        for container in
            fields.get_mut("containers").and_then(Value::as_array_mut).into_iter().flatten()
        {
            for usage in container["usage"].as_object_mut().into_iter() {
                usage.values_mut().for_each(round);
            }
        }
        if let Some(containers) = fields.get_mut("containers").and_then(Value::as_array_mut) {
            containers.sort_by_key(|container| container["name"].to_string());
        }
        // Its place among the fields of an item is the peer's alone.
        fields.remove("storageVersionHash");
    }
    item.to_string()
}

fn normalized(code: u16, body: &Value) -> Answer {
    let items = ["items", "resources", "versions"].iter().find_map(|field| body[field].as_array());
    let items = match items {
        Some(items) => items.iter().map(item).collect(),
        None if code == 200 => BTreeSet::from([item(body)]),
        None => BTreeSet::new(),
    };
    Answer {
        code,
        reason: body["reason"].as_str().unwrap_or_default().to_owned(),
        kind: body["kind"].as_str().unwrap_or_default().to_owned(),
        items,
    }
}

async fn admin_token(cluster: &Cluster) -> String {
    cluster.kubectl(&["-n", "default", "create", "serviceaccount", "asker"]).await;
    let binding = [
        "create",
        "clusterrolebinding",
        "asker",
        "--clusterrole=cluster-admin",
        "--serviceaccount=default:asker",
    ];
    cluster.kubectl(&binding).await;
    cluster.kubectl(&["-n", "default", "create", "token", "asker"]).await.trim().to_owned()
}

/// Starts both with a configuration, and waits until both know its metrics.
pub async fn pair(cluster: &Cluster, token: &str, name: &str, config: &str) -> (Adapter, Adapter) {
    let theirs = format!("{name}-theirs");
    let theirs = Adapter::start(cluster, &theirs, config);
    let ours = format!("{name}-ours");
    let port = cluster.prometheus_port;
    let ours = Adapter::start_as(cluster, Program::Plimsoll, &ours, config, port);
    for adapter in [&theirs, &ours] {
        wait_ready(adapter, token).await;
    }
    (theirs, ours)
}

/// Waits until an adapter can answer.
pub async fn wait_ready(adapter: &Adapter, token: &str) {
    eventually("the adapter is ready", Duration::from_secs(60), async || {
        let url = format!("https://127.0.0.1:{}/readyz", adapter.port);
        let http = any_certificate().build().expect("a client");
        match http.get(url).bearer_auth(token).send().await {
            Ok(response) if response.status() == 200 => Ok(()),
            other => Err(format!("{other:?}\n{}", adapter.process.tail())),
        }
    })
    .await;
}

/// A cluster with all that is asked for here, and a token of one who may ask.
pub struct World {
    pub cluster: Cluster,
    pub token: String,
}

/// The world, made once for all tests that break nothing in it.
pub fn on_world(test: impl AsyncFnOnce(&World)) {
    static WORLD: OnceLock<World> = OnceLock::new();
    let world = WORLD.get_or_init(|| {
        runtime().block_on(async {
            let cluster = Cluster::start(&Options::default()).await;
            let token = admin_token(&cluster).await;
            world(&cluster).await;
            World { cluster, token }
        })
    });
    runtime().block_on(test(world));
}

#[test]
fn answers_agree_with_those_of_prometheus_adapter() {
    on_world(async |World { cluster, token }| {
        let (mut compared, mut found, mut differences) = (0, 0, Vec::new());
        for case in cases() {
            let (theirs, ours) = pair(cluster, token, case.name, &case.config).await;
            // One listing of series.
            tokio::time::sleep(Duration::from_secs(3)).await;
            for path in &case.paths {
                let (their_code, their_body) = ask(theirs.port, token, path).await;
                let (our_code, our_body) = ask(ours.port, token, path).await;
                let (a, b) = (normalized(their_code, &their_body), normalized(our_code, &our_body));
                compared += 1;
                found += usize::from(!a.items.is_empty());
                if a != b {
                    differences.push(format!(
                        "{}: {path}\n  theirs: {their_code} {their_body}\n  ours:   {our_code} {our_body}",
                        case.name
                    ));
                }
            }
        }
        let agreed = compared - differences.len();
        println!("{agreed} of {compared} requests agree; {found} of them found something");
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    });
}
