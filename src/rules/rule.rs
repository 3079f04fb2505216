//! One rule, compiled.

use crate::promql::matcher::{Matcher, is_metric_name};
use crate::promql::query::render;
use crate::promql::template::{Template, Value};
use crate::watch::{GroupResource, ResourceMap};
use regex::{Regex, RegexBuilder};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The series that are listed for a rule, and the server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeriesQuery {
    /// The server's name; none for the server of the flags.
    pub backend: Option<String>,
    /// The selector, in PromQL.
    pub selector: String,
}

impl std::fmt::Display for SeriesQuery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.selector)?;
        self.backend.as_ref().map_or(Ok(()), |backend| write!(f, " (backend {backend})"))
    }
}

/// A rule for metrics of objects, or for external ones.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The series that it applies to.
    pub series: SeriesQuery,
    /// Additional filters of the series by name.
    pub filters: Vec<Filter>,
    /// The name of the metric.
    pub name: MetricName,
    /// The labels that name objects.
    pub labels: ResourceLabels,
    /// Whether a query for an external metric selects only the namespace's series.
    pub namespaced: bool,
    /// The namespace that an external metric is read from, if not the
    /// namespace of the request.
    pub namespace: Option<String>,
    /// The query.
    pub query: Template,
}

/// A filter of series by name.
#[derive(Clone, Debug)]
pub struct Filter {
    /// The pattern.
    pub pattern: Regex,
    /// Whether the name must match, rather than not match.
    pub must_match: bool,
}

/// Renders the name of a metric from that of a series.
#[derive(Clone, Debug)]
pub struct MetricName {
    pattern: Option<Regex>,
    template: String,
}

/// The labels that name objects.
#[derive(Clone, Debug, Default)]
pub struct ResourceLabels {
    template: Option<(Template, Regex)>,
    overrides: BTreeMap<String, GroupResource>,
}

/// Why a part of a rule is invalid.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct RuleError(pub String);

impl MetricName {
    /// From `name.matches` and `name.as`, either of which may be empty. The pattern takes at most `limit` bytes.
    ///
    /// # Errors
    /// If `matches` is not a pattern, or has several groups and `as` is empty.
    pub fn new(matches: &str, template: &str, limit: usize) -> Result<Self, RuleError> {
        let pattern = match matches {
            "" => None,
            text => Some(pattern(text, limit)?),
        };
        let groups = pattern.as_ref().map_or(0, |pattern| pattern.captures_len() - 1);
        let template = match (template, groups) {
            ("", 0) => "$0",
            ("", 1) => "$1",
            ("", _) => {
                return Err(RuleError(format!(
                    "{matches:?} has {groups} groups: `as` must say what the metric is called, such as \"${{1}}_${{2}}\""
                )));
            }
            (given, _) => given,
        };
        Ok(Self { pattern, template: template.to_owned() })
    }

    /// Whether a series of some name can have this metric name.
    fn may_be(&self, metric: &str) -> bool {
        match self.template.split_once('$') {
            None => self.template == metric,
            Some((begin, _)) => metric.starts_with(begin),
        }
    }

    /// What is wrong with a name of a group in `as` that `matches` does not have: there is nothing in its place.
    pub fn unknown_group(&self) -> Option<String> {
        let groups = self.pattern.as_ref().map_or(1, Regex::captures_len);
        let names = || self.pattern.iter().flat_map(Regex::capture_names).flatten();
        let is_known = |name: &str| match name.parse::<usize>() {
            Ok(number) => number < groups,
            Err(_) => names().any(|known| known == name),
        };
        REFERENCE.captures_iter(&self.template).find_map(|found| {
            let (bare, braced) = (found.name("bare"), found.name("braced"));
            let name = bare.or(braced)?.as_str();
            if is_known(name) {
                return None;
            }
            let rest = name.trim_start_matches(|character: char| character.is_ascii_digit());
            let number = &name[..name.len() - rest.len()];
            let instead = match bare.is_some() && is_known(number) {
                true => format!("write ${{{number}}}{rest}"),
                false if groups == 1 => "only ${0} (the whole match) exists".to_owned(),
                false => format!("its last one is ${{{}}}", groups - 1),
            };
            Some(format!("{:?}: matches has no group {name}: {instead}", self.template))
        })
    }

    /// The name of the metric for a series; none if the series' name does not match.
    pub fn render(&self, series: &str) -> Option<String> {
        let Some(pattern) = &self.pattern else {
            // Without a pattern the whole name is group 0.
            return Some(match self.template.as_str() {
                "$0" => series.to_owned(),
                template => expand_whole(template, series),
            });
        };
        let found = pattern.captures(series)?;
        let mut name = String::new();
        found.expand(&self.template, &mut name);
        Some(name)
    }
}

/// A group in the name of a metric, and `$$`, which is none, as Go and [`regex::Captures::expand`] read it: without braces the
/// longest name counts.
static REFERENCE: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"\$(?:\$|\{(?<braced>[^}]*)\}|(?<bare>[0-9A-Za-z_]+))";
    Regex::new(pattern).expect("a pattern")
});

fn expand_whole(template: &str, series: &str) -> String {
    let mut name = String::new();
    let whole = Regex::new("(?s)^.*$").expect("a pattern");
    if let Some(found) = whole.captures(series) {
        found.expand(template, &mut name);
    }
    name
}

/// The most bytes of a compiled pattern of the administrator.
pub const PATTERN_BYTES: usize = 10 << 20;

/// The most bytes of its cache.
const DFA_BYTES: usize = 2 << 20;

/// Compiles a pattern, which takes at most `limit` bytes.
///
/// # Errors
/// If it is invalid; the text shows where.
pub fn pattern(text: &str, limit: usize) -> Result<Regex, RuleError> {
    RegexBuilder::new(text)
        .size_limit(limit)
        // A smaller cache would make a small pattern slow.
        .dfa_size_limit(limit.saturating_mul(8).min(DFA_BYTES))
        .build()
        .map_err(|error| RuleError(format!("{text:?} is no regular expression: {error}")))
}

impl ResourceLabels {
    /// From `resources.template` and `resources.overrides`. The pattern of the template takes at most the first
    /// limit of bytes, and the template works with at most the second.
    ///
    /// # Errors
    /// If the template is invalid, or does not name the resource.
    pub fn new(
        template: &str,
        overrides: BTreeMap<String, GroupResource>,
        limits: (usize, usize),
    ) -> Result<Self, RuleError> {
        let template = match template {
            "" => None,
            text => Some(label_template(text, limits)?),
        };
        Ok(Self { template, overrides })
    }

    /// The first field in the template that is not there, and what is wrong with it.
    pub fn unknown_field(&self) -> Option<String> {
        let (template, _) = self.template.as_ref()?;
        template.unknown_field(&label_fields("", ""))
    }

    /// The label that names the objects of a resource.
    pub fn label(&self, resource: &GroupResource, map: &ResourceMap) -> Option<String> {
        let by_override = self
            .overrides
            .iter()
            .find(|(_, named)| map.normalize(named).as_ref() == Some(resource));
        if let Some((label, _)) = by_override {
            return Some(label.clone());
        }
        let (template, _) = self.template.as_ref()?;
        let group = resource.group.replace(['.', '-'], "_");
        let rendered = template.render(&label_fields(&group, map.singular(&resource.resource)?));
        rendered.ok().filter(|label| !label.is_empty())
    }

    /// The resource whose objects a label names, and whether the label has the form of
    /// one that names objects.
    fn resource(&self, label: &str, map: &ResourceMap) -> (Option<GroupResource>, bool) {
        if let Some(named) = self.overrides.get(label) {
            return (map.normalize(named), true);
        }
        let Some((_, pattern)) = &self.template else { return (None, false) };
        let Some(found) = pattern.captures(label) else { return (None, false) };
        let part = |name| found.name(name).map_or(String::new(), |part| part.as_str().to_owned());
        let named = GroupResource { group: part("group"), resource: part("resource") };
        (map.normalize(&named), true)
    }

    /// The resources that the labels of a series name, and whether its objects are namespaced.
    ///
    /// Source: `ResourcesForSeries` of prometheus-adapter. There, a series is namespaced if any label names a
    /// namespaced resource, or does not have the form of a resource's label at all.
    pub fn resources<'a>(
        &self,
        labels: impl IntoIterator<Item = &'a str>,
        map: &ResourceMap,
    ) -> (Vec<GroupResource>, bool) {
        let mut found = Vec::new();
        let mut namespaced = false;
        for label in labels {
            let (resource, has_form) = self.resource(label, map);
            namespaced |= match &resource {
                Some(resource) => !is_cluster_wide(resource),
                None => !has_form,
            };
            found.extend(resource);
        }
        (found, namespaced)
    }

    /// Whether no label names a resource.
    pub fn is_empty(&self) -> bool {
        self.template.is_none() && self.overrides.is_empty()
    }

    /// Whether all resources that labels can name are of these.
    pub fn are_of(&self, map: &ResourceMap) -> bool {
        self.template.is_none() && self.unknown(map).is_empty()
    }

    /// The overrides whose resource the cluster lacks.
    pub fn unknown(&self, map: &ResourceMap) -> Vec<(&str, &GroupResource)> {
        let unknown = |named: &GroupResource| map.normalize(named).is_none();
        let overrides = self.overrides.iter().filter(|(_, named)| unknown(named));
        overrides.map(|(label, named)| (label.as_str(), named)).collect()
    }
}

/// Whether metrics of a resource have no namespace, as in prometheus-adapter.
pub fn is_cluster_wide(resource: &GroupResource) -> bool {
    resource.group.is_empty()
        && matches!(resource.resource.as_str(), "namespaces" | "nodes" | "persistentvolumes")
}

fn label_fields(group: &str, resource: &str) -> BTreeMap<&'static str, Value> {
    BTreeMap::from([
        ("Group", Value::Text(group.to_owned())),
        ("Resource", Value::Text(resource.to_owned())),
    ])
}

fn label_template(
    text: &str,
    (pattern_limit, limit): (usize, usize),
) -> Result<(Template, Regex), RuleError> {
    let template = Template::parse(text).map_err(|error| RuleError(error.to_string()))?;
    let template = template.within(limit);
    let form =
        template.render(&label_fields("(?P<group>.+?)", "(?P<resource>.+?)")).map_err(RuleError)?;
    let form = pattern(&format!("^{form}$"), pattern_limit)?;
    if !form.capture_names().flatten().any(|name| name == "resource") {
        return Err(RuleError(
            "<<.Resource>> is missing: no label would name a resource".to_owned(),
        ));
    }
    Ok((template, form))
}

impl Rule {
    /// Whether it applies to a series of this name.
    pub fn matches_series(&self, series: &str) -> bool {
        self.filters.iter().all(|filter| filter.pattern.is_match(series) == filter.must_match)
    }

    /// Whether this rule can give a metric of this name, whichever series there are.
    pub fn may_give(&self, metric: &str) -> bool {
        let name = self.series.selector.split('{').next().unwrap_or_default().trim();
        match is_metric_name(name) {
            true => self.matches_series(name) && self.name.render(name).as_deref() == Some(metric),
            false => self.name.may_be(metric),
        }
    }

    /// Renders the query.
    ///
    /// # Errors
    /// If the template can't be rendered, or the query is empty.
    pub fn render(
        &self,
        series: &str,
        matchers: &[(&str, Matcher)],
        group_by: &[String],
    ) -> Result<String, String> {
        let query = render(&self.query, series, matchers, group_by)?;
        if query.is_empty() { Err("the template gives no query".to_owned()) } else { Ok(query) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::ResourceInfo;

    fn map() -> ResourceMap {
        let info = |group: &str, resource: &str, singular: &str| ResourceInfo {
            name: GroupResource { group: group.to_owned(), resource: resource.to_owned() },
            version: "v1".to_owned(),
            singular: singular.to_owned(),
            kind: String::new(),
            namespaced: true,
        };
        ResourceMap::of(vec![
            info("", "namespaces", "namespace"),
            info("", "nodes", "node"),
            info("", "pods", "pod"),
            info("apps", "deployments", "deployment"),
            info("networking.k8s.io", "ingresses", "ingress"),
        ])
    }

    #[test]
    fn names_are_made_as_prometheus_adapter_makes_them() {
        for (matches, template, series, expected) in [
            ("", "", "http_requests_total", Some("http_requests_total")),
            ("", "my_${0}_x", "hits", Some("my_hits_x")),
            ("^(.*)_total$", "", "http_requests_total", Some("http_requests")),
            ("^(.*)_total$", "", "queue", None),
            (
                "^(.*)_total",
                "${1}_per_second",
                "http_requests_total",
                Some("http_requests_per_second"),
            ),
            ("^(.*)_total", "$1_per_second", "http_requests_total", Some("")),
            ("(?P<a>x)(?P<b>y)", "${b}$a", "xy", Some("yx")),
            ("http", "", "my_http_x", Some("http")),
        ] {
            let name = MetricName::new(matches, template, PATTERN_BYTES).unwrap();
            assert_eq!(name.render(series).as_deref(), expected, "{matches} {template} {series}");
        }
        assert!(MetricName::new("(a)(b)", "", PATTERN_BYTES).unwrap_err().0.contains("2 groups"));
        assert!(
            MetricName::new("(", "", PATTERN_BYTES)
                .unwrap_err()
                .0
                .contains("no regular expression")
        );
    }

    #[test]
    fn a_group_of_the_name_that_the_pattern_lacks_is_told_with_what_was_meant() {
        for (matches, template, expected) in [
            ("^(.*)_total$", "${1}_per_second", None),
            ("^(.*)_total$", "", None),
            ("", "my_${0}_$0", None),
            ("(?P<a>x)(?P<b>y)", "${b}$a$2", None),
            ("^(.*)_total$", "$$1_per_second", None),
            (
                "^(.*)_total$",
                "a_$1_per_second",
                Some("no group 1_per_second: write ${1}_per_second"),
            ),
            ("^(.*)_total$", "${2}_per_second", Some("no group 2: its last one is ${1}")),
            ("^(.*)_total$", "$name", Some("no group name: its last one is ${1}")),
            ("", "${1}_x", Some("no group 1: only ${0} (the whole match) exists")),
        ] {
            let error = MetricName::new(matches, template, PATTERN_BYTES).unwrap().unknown_group();
            match (error, expected) {
                (Some(error), Some(expected)) => assert!(error.contains(expected), "{error}"),
                (error, expected) => assert_eq!(error.as_deref(), expected, "{matches} {template}"),
            }
        }
    }

    const LIMITS: (usize, usize) = (PATTERN_BYTES, 1 << 20);

    #[test]
    fn labels_name_resources_by_template_and_override() {
        let map = map();
        let overrides =
            BTreeMap::from([("exported_ns".to_owned(), GroupResource::core("namespace"))]);
        let labels =
            ResourceLabels::new("kube_<<.Group>>_<<.Resource>>", overrides, LIMITS).unwrap();
        let apps = GroupResource::parse("deployments.apps");
        assert_eq!(labels.label(&apps, &map).as_deref(), Some("kube_apps_deployment"));
        let ingresses = GroupResource::parse("ingresses.networking.k8s.io");
        assert_eq!(
            labels.label(&ingresses, &map).as_deref(),
            Some("kube_networking_k8s_io_ingress")
        );
        let namespaces = GroupResource::core("namespaces");
        assert_eq!(labels.label(&namespaces, &map).as_deref(), Some("exported_ns"));
        let (found, namespaced) = labels.resources(["exported_ns", "kube_apps_deployment"], &map);
        assert_eq!((found, namespaced), (vec![namespaces.clone(), apps], true));
        let plain = ResourceLabels::new("<<.Resource>>", BTreeMap::new(), LIMITS).unwrap();
        assert_eq!(plain.resources(["namespace", "zone"], &map), (vec![namespaces], false));
        let node = BTreeMap::from([("instance".to_owned(), GroupResource::core("node"))]);
        let node = ResourceLabels::new("", node, LIMITS).unwrap();
        assert_eq!(node.resources(["instance"], &map), (vec![GroupResource::core("nodes")], false));
        assert!(node.resources(["instance", "job"], &map).1);
        assert!(
            ResourceLabels::new("a", BTreeMap::new(), LIMITS)
                .unwrap_err()
                .0
                .contains("<<.Resource>>")
        );
    }
}
