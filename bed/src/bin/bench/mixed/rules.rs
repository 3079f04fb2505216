//! The rules of Prometheus, and those of prometheus-adapter, which Plimsoll takes as they are.

use super::mix::{App, CPU_WINDOW, Kind, WINDOWS};
use std::collections::BTreeSet;
use std::fmt::Write;

/// The groups of recording rules of Prometheus.
pub fn recording(apps: &[App]) -> String {
    let mut text = "groups:\n- name: calls\n  rules:\n".to_owned();
    for (metric, window) in drawn(apps, Kind::Recorded) {
        let _ = write!(
            text,
            "  - record: pod:calls_{metric}:rate{window}\n\
             \x20   expr: sum by (namespace, pod, app) (rate(calls_{metric}_total[{window}]))\n"
        );
    }
    text
}

/// The metrics and windows of a kind.
fn drawn(apps: &[App], kind: Kind) -> BTreeSet<(usize, &'static str)> {
    let of = apps.iter().filter(|app| app.kind == kind);
    of.map(|app| (app.metric, app.window())).collect()
}

/// The configuration of prometheus-adapter: a rule for each kind and window, as its own examples have
/// them, and one for each ratio, whose two names no pattern can give.
pub fn adapter(apps: &[App]) -> String {
    let mut rules = "rules:\n".to_owned();
    let mut rule = |series: &str, matches: &str, name: &str, query: &str| {
        let _ = write!(
            rules,
            "- seriesQuery: '{series}'\n\
             \x20 resources: {{overrides: {{namespace: {{resource: namespace}}, pod: {{resource: pod}}}}}}\n\
             \x20 name: {{matches: '{matches}', as: '{name}'}}\n\
             \x20 metricsQuery: '{query}'\n"
        );
    };
    let all = |name: &str| format!("{{__name__=~\"^{name}$\",namespace!=\"\",pod!=\"\"}}");
    for (window, ..) in WINDOWS {
        rule(
            &all("requests_.*_total"),
            "^(.*)_total$",
            &format!("${{1}}_per_second_{window}"),
            &format!("sum(rate(<<.Series>>{{<<.LabelMatchers>>}}[{window}])) by (<<.GroupBy>>)"),
        );
        rule(
            &all("latency_.*_seconds_bucket"),
            "^(.*)_seconds_bucket$",
            &format!("${{1}}_p90_{window}"),
            &format!(
                "histogram_quantile(0.9, sum(rate(<<.Series>>{{<<.LabelMatchers>>}}[{window}])) by (<<.GroupBy>>, le))"
            ),
        );
    }
    rule(
        &all("in_flight_.*"),
        "^(.*)$",
        "${1}",
        "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)",
    );
    rule(
        &all("pod:calls_.*"),
        "^pod:(.*):rate(.*)$",
        "${1}_per_second_${2}",
        "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)",
    );
    for (metric, window) in drawn(apps, Kind::Ratio) {
        let rate = |of: &str| {
            format!(
                "sum(rate({of}_{metric}_seconds_total{{<<.LabelMatchers>>}}[{window}])) by (<<.GroupBy>>)"
            )
        };
        rule(
            &format!("busy_{metric}_seconds_total{{namespace!=\"\",pod!=\"\"}}"),
            "^busy_(.*)_seconds_total$",
            &format!("utilization_${{1}}_{window}"),
            &format!("{} / {}", rate("busy"), rate("worker")),
        );
    }
    rules += "externalRules:\n";
    for (window, ..) in WINDOWS {
        let _ = write!(
            rules,
            "- seriesQuery: '{{__name__=~\"^jobs_.*_total$\",namespace!=\"\"}}'\n\
             \x20 resources: {{overrides: {{namespace: {{resource: namespace}}}}}}\n\
             \x20 name: {{matches: '^(.*)_total$', as: '${{1}}_per_second_{window}'}}\n\
             \x20 metricsQuery: 'sum(rate(<<.Series>>{{<<.LabelMatchers>>}}[{window}]))'\n"
        );
    }
    rules + &usage()
}

/// The rules of CPU and memory, as prometheus-adapter's manifests have them, with `rate` over the
/// window. There are no nodes.
pub fn usage() -> String {
    let resources = "resources: {overrides: {namespace: {resource: namespace}, node: {resource: node}, pod: {resource: pod}}}";
    let rule = |name: &str, container: &str, node: &str| {
        format!(
            "  {name}:\n    containerLabel: container\n    {resources}\n\
             \x20   containerQuery: 'sum by (<<.GroupBy>>) ({container})'\n\
             \x20   nodeQuery: 'sum by (<<.GroupBy>>) ({node})'\n"
        )
    };
    let cpu = format!(
        "rate(container_cpu_usage_seconds_total{{<<.LabelMatchers>>,container!=\"\",pod!=\"\"}}[{CPU_WINDOW}])"
    );
    let of_node = format!("rate(node_cpu_usage_seconds_total{{<<.LabelMatchers>>}}[{CPU_WINDOW}])");
    let memory = "container_memory_working_set_bytes{<<.LabelMatchers>>,container!=\"\",pod!=\"\"}";
    format!(
        "resourceRules:\n  window: {CPU_WINDOW}\n{}{}",
        rule("cpu", &cpu, &of_node),
        rule("memory", memory, "node_memory_working_set_bytes{<<.LabelMatchers>>}")
    )
}
