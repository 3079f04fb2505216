//! Compiles rules as they are written: those of the configuration file, and those of MetricRules.

use super::rule::{
    Filter, MetricName, PATTERN_BYTES, ResourceLabels, Rule, RuleError, SeriesQuery, pattern,
};
use crate::crd::{MetricRuleSpec, RuleFilter, RuleName, RuleResource, RuleResources};
use crate::promql::template::{self, Template};
use crate::watch::GroupResource;
use serde::Deserialize;
use serde_saphyr::{Location, Spanned};
use std::collections::BTreeMap;

/// An error with its position in the file.
pub struct FieldError {
    /// Line and column, counted from 1, if they are known.
    pub at: Option<(u64, u64)>,
    /// The field's path.
    pub field: String,
    /// What is wrong, and what was expected.
    pub error: String,
}

impl FieldError {
    /// An error at the position of a value.
    pub fn of<T>(value: &Spanned<T>, field: String, error: impl Into<String>) -> Self {
        let position = value.referenced;
        Self { at: Some((position.line(), position.column())), field, error: error.into() }
    }
}

/// A text with its position, if it was given.
pub type OptionalText = Option<Spanned<String>>;

/// A rule of the configuration file, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RawRule {
    #[serde(default)]
    series_query: OptionalText,
    #[serde(default)]
    series_filters: Option<Vec<RawFilter>>,
    #[serde(default)]
    resources: Option<RawResources>,
    #[serde(default)]
    name: Option<RawName>,
    #[serde(default)]
    metrics_query: OptionalText,
    /// An extension: the server of `backends` that has the series.
    #[serde(default)]
    backend: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawFilter {
    #[serde(default)]
    is: OptionalText,
    #[serde(default)]
    is_not: OptionalText,
}

/// The labels that name objects, as they are written.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct RawResources {
    template: OptionalText,
    overrides: Option<BTreeMap<String, RawGroupResource>>,
    namespaced: Option<bool>,
    /// An extension: an external metric is read from this namespace, whatever the namespace of
    /// the request.
    namespace: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGroupResource {
    #[serde(default)]
    group: Option<String>,
    #[serde(default)]
    resource: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawName {
    matches: OptionalText,
    r#as: OptionalText,
}

/// The text; empty if none was given.
pub fn text(raw: &OptionalText) -> &str {
    raw.as_ref().map_or("", |text| text.value.as_str())
}

/// An error at a text, if the text was given.
pub fn at(raw: &OptionalText, field: String, error: impl ToString) -> FieldError {
    match raw {
        Some(text) => FieldError::of(text, field, error.to_string()),
        None => FieldError { at: None, field, error: error.to_string() },
    }
}

/// How much a rule may take, in bytes.
#[derive(Clone, Copy)]
pub struct Limits {
    /// A compiled pattern.
    pattern: usize,
    /// What the template of labels works with.
    label: usize,
    /// What the template of the query works with.
    query: usize,
}

/// Those of the administrator's rules.
pub const ADMINISTRATOR: Limits =
    Limits { pattern: PATTERN_BYTES, label: template::LIMIT, query: template::LIMIT };

/// Those of a MetricRule: many of its namespace may be compiled together, and each request renders a query.
/// `\w` takes 50 KiB, as it has the letters of all scripts.
const TENANT: Limits = Limits { pattern: 128 << 10, label: 4 << 10, query: 64 << 10 };

/// Compiles a list of rules.
///
/// # Errors
/// If one is invalid; the error names its field.
pub fn compile(list: &str, raw: Vec<RawRule>) -> Result<Vec<Rule>, FieldError> {
    let compile = |(index, rule)| compile_rule(&format!("{list}[{index}]"), rule, &ADMINISTRATOR);
    raw.into_iter().enumerate().map(compile).collect()
}

/// Compiles a rule within these limits.
fn compile_rule(path: &str, raw: RawRule, limits: &Limits) -> Result<Rule, FieldError> {
    let field = |name: &str| format!("{path}.{name}");
    if text(&raw.series_query).is_empty() {
        let error =
            "which series the rule is for is missing, such as 'http_requests_total{pod!=\"\"}'";
        return Err(at(&raw.series_query, field("seriesQuery"), error));
    }
    let mut filters = Vec::new();
    for (index, filter) in raw.series_filters.unwrap_or_default().iter().enumerate() {
        filters.push(compile_filter(
            &field(&format!("seriesFilters[{index}]")),
            filter,
            limits.pattern,
        )?);
    }
    let RawName { matches, r#as } = raw.name.unwrap_or_default();
    let name = MetricName::new(text(&matches), text(&r#as), limits.pattern)
        .map_err(|error| at(&matches, field("name.matches"), error))?;
    if !text(&matches).is_empty() {
        let wrong = |error| at(&matches, field("name.matches"), error);
        let pattern = pattern(text(&matches), limits.pattern).map_err(wrong)?;
        filters.push(Filter { pattern, must_match: true });
    }
    let resources = raw.resources.unwrap_or_default();
    Ok(Rule {
        series: SeriesQuery {
            backend: raw.backend.clone(),
            selector: text(&raw.series_query).to_owned(),
        },
        filters,
        name,
        namespaced: resources.namespaced.unwrap_or(true),
        namespace: resources.namespace.clone().filter(|namespace| !namespace.is_empty()),
        labels: compile_labels(&field("resources"), resources, limits)?,
        query: template(&raw.metrics_query, field("metricsQuery"))?.within(limits.query),
    })
}

/// Parses a template.
///
/// # Errors
/// If it is none.
pub fn template(raw: &OptionalText, field: String) -> Result<Template, FieldError> {
    Template::parse(text(raw)).map_err(|error| at(raw, field, error))
}

fn compile_filter(path: &str, raw: &RawFilter, limit: usize) -> Result<Filter, FieldError> {
    let (is, is_not) = (text(&raw.is), text(&raw.is_not));
    let (source, name, must_match) = match (is, is_not) {
        ("", "") => {
            return Err(at(&None, path.to_owned(), "one of `is` and `isNot` was expected"));
        }
        (_, "") => (&raw.is, "is", true),
        ("", _) => (&raw.is_not, "isNot", false),
        _ => {
            let error = "one of `is` and `isNot` was expected, not both";
            return Err(at(&raw.is_not, path.to_owned(), error));
        }
    };
    let wrong = |error: RuleError| at(source, format!("{path}.{name}"), error);
    Ok(Filter { pattern: pattern(text(source), limit).map_err(wrong)?, must_match })
}

/// Compiles the labels that name objects.
///
/// # Errors
/// If their template is none.
pub fn compile_labels(
    path: &str,
    raw: RawResources,
    limits: &Limits,
) -> Result<ResourceLabels, FieldError> {
    let overrides = raw.overrides.unwrap_or_default().into_iter();
    let overrides = overrides
        .map(|(label, named)| {
            let group = named.group.unwrap_or_default();
            (label, GroupResource { group, resource: named.resource.unwrap_or_default() })
        })
        .collect();
    ResourceLabels::new(text(&raw.template), overrides, (limits.pattern, limits.label))
        .map_err(|error| at(&raw.template, format!("{path}.template"), error))
}

/// Compiles the rule of a MetricRule. Labels that name pods are these, unless it has others.
///
/// # Errors
/// If it is invalid; the text names the field.
pub fn compile_metric_rule(
    spec: &MetricRuleSpec,
    namespace_label: &str,
    pod_label: &str,
) -> Result<Rule, String> {
    let raw = RawRule::of(spec, namespace_label, pod_label);
    let rule = compile_rule("spec", raw, &TENANT)
        .map_err(|FieldError { field, error, .. }| format!("{field}: {error}"))?;
    // prometheus-adapter takes such a name, so that of the administrator's rules only `plimsoll check` tells it.
    match rule.name.unknown_group() {
        Some(error) => Err(format!("spec.name.as: {error}")),
        None => Ok(rule),
    }
}

impl RawRule {
    fn of(spec: &MetricRuleSpec, namespace_label: &str, pod_label: &str) -> Self {
        let given = |text: &str| {
            let (referenced, defined) = (Location::UNKNOWN, Location::UNKNOWN);
            (!text.is_empty()).then(|| Spanned { value: text.to_owned(), referenced, defined })
        };
        let filter = |RuleFilter { is, is_not }: &RuleFilter| RawFilter {
            is: given(is),
            is_not: given(is_not),
        };
        let resource = |label: &str, group: &str, resource: &str| {
            let named = RawGroupResource {
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
            };
            (label.to_owned(), named)
        };
        let overrides = match &spec.resources {
            Some(RuleResources { overrides, .. }) => {
                let one = |(label, named): (&String, &RuleResource)| {
                    resource(label, &named.group, &named.resource)
                };
                overrides.iter().map(one).collect()
            }
            None => BTreeMap::from([
                resource(namespace_label, "", "namespaces"),
                resource(pod_label, "", "pods"),
            ]),
        };
        let template = spec.resources.as_ref().map_or("", |resources| &resources.template);
        let RuleName { matches, r#as } = &spec.name;
        Self {
            series_query: given(&spec.series_query),
            series_filters: Some(spec.series_filters.iter().map(filter).collect()),
            resources: Some(RawResources {
                template: given(template),
                overrides: Some(overrides),
                ..RawResources::default()
            }),
            name: Some(RawName { matches: given(matches), r#as: given(r#as) }),
            metrics_query: given(&spec.metrics_query),
            backend: None,
        }
    }
}
