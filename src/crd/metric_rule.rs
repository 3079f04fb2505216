//! `MetricRule`, `plimsoll.dev/v1alpha1`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// spec is a rule in prometheus-adapter's form that a team writes for its own namespace: which series of the namespace
/// are which metrics of its objects.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "plimsoll.dev",
    version = "v1alpha1",
    kind = "MetricRule",
    namespaced,
    status = "MetricRuleStatus",
    shortname = "pmr",
    category = "plimsoll",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Metrics","type":"integer","jsonPath":".status.metricCount","description":"Number of served metrics."}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Message","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type==\"Ready\")].message"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct MetricRuleSpec {
    /// seriesQuery selects series, such as `http_requests_total{pod!=""}`. Only those of the namespace are listed.
    #[schemars(length(min = 1, max = 2048))]
    pub series_query: String,

    /// seriesFilters filters these series by name. All filters must match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub series_filters: Vec<RuleFilter>,

    /// resources maps labels to Kubernetes objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<RuleResources>,

    /// name is the name of the metric. If not set, that of the series.
    #[serde(default, skip_serializing_if = "RuleName::is_empty")]
    pub name: RuleName,

    /// metricsQuery is the template of the query, with the fields `.Series`, `.LabelMatchers`,
    /// `.LabelValuesByName`, `.GroupBy` and `.GroupBySlice`. Each of its selectors is kept in the namespace.
    #[schemars(length(min = 1, max = 4096))]
    pub metrics_query: String,
}

/// A filter of series by name: `is` or `isNot`.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(
    validation = Rule::new("has(self.is) != has(self.isNot)")
        .message("one of is and isNot was expected")
)]
#[serde(rename_all = "camelCase")]
pub struct RuleFilter {
    /// is must match the name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub is: String,
    /// isNot must not match the name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub is_not: String,
}

/// Which labels name objects.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(
    validation = Rule::new("!has(self.overrides) || self.overrides.all(label, label.size() <= 253)")
        .message("labels in overrides may have at most 253 characters")
)]
pub struct RuleResources {
    /// template is the label that names the objects of a resource, such as `kube_<<.Group>>_<<.Resource>>`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub template: String,
    /// overrides are the resources whose objects labels name, by label.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub overrides: BTreeMap<String, RuleResource>,
}

/// A resource, such as `deployments` of the group `apps`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RuleResource {
    /// group is its API group. If not set, the core group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub group: String,
    /// resource is its name, in singular or plural.
    #[schemars(length(min = 1, max = 63))]
    pub resource: String,
}

/// What the metric is called.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RuleName {
    /// matches is a regular expression that the name of the series must match.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub matches: String,
    /// as is the name of the metric, with groups of `matches` such as `${1}_per_second`. If not set, the only
    /// group, or the whole name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub r#as: String,
}

impl RuleName {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// status has the served metrics, and why others are not served.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricRuleStatus {
    /// observedGeneration is the generation of the spec that was read last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// metricCount is the number of served metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric_count: Option<i32>,
    /// metrics are the served metrics, as resource and name, such as `pods/http_requests_per_second`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<String>,
    /// conditions has Ready: whether all metrics of the rule are served.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Option<Vec<Condition>>,
}
