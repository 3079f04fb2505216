//! The configurations and requests of [`crate::parity`].

use crate::fixture::{OVERRIDES, SUM};

/// A configuration, and the requests that are sent under it.
pub struct Case {
    pub name: &'static str,
    pub config: String,
    pub paths: Vec<String>,
}

const GROUP: &str = "/apis/custom.metrics.k8s.io";

/// The paths in both versions of the API.
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
        // prometheus-adapter fails on `!=` if series match (docs/differences.md).
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

/// All cases.
pub fn cases() -> Vec<Case> {
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
