//! Label selectors: requirements, matching, and the object form (`matchLabels`, `matchExpressions`).
//!
//! Error texts are those of `k8s.io/apimachinery/pkg/labels`, as they
//! reach users in conditions and events.

use super::label_set::LabelSet;
use super::label_syntax::{validate_key, validate_value};
pub use super::selector_error::ParseSelectorError;
use super::selector_error::error;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// The most requirements of a selector, duplicates included. It is matched against each pod of a
/// namespace.
pub(super) const MAX_REQUIREMENTS: usize = 256;
/// The most values of all requirements of a selector, duplicates included.
pub(super) const MAX_VALUES: usize = 4096;
/// The most bytes of a selector's text. No selector takes more as the API machinery writes it: a
/// requirement has a key of at most 317 bytes (a prefix of 253, `/` and 63) in ` notin (),`, and a
/// value at most 63 bytes and a comma.
pub(super) const MAX_TEXT_BYTES: usize = MAX_REQUIREMENTS * (317 + 10) + MAX_VALUES * 64;

/// The failure of a selector that is beyond one of these limits.
pub(super) fn too_large<T>() -> Result<T, ParseSelectorError> {
    error(format!(
        "the selector is too large: it may have {MAX_REQUIREMENTS} requirements, and {MAX_VALUES} values altogether, in {MAX_TEXT_BYTES} bytes"
    ))
}

/// A conjunction of requirements. Without requirements it selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

/// A condition on one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    /// The label's key.
    pub key: String,
    /// The operator.
    pub operator: Operator,
    /// The values of the operator, sorted.
    pub values: Vec<String>,
    /// Whether it is written with `in` or `notin`, even for one value.
    pub listed: bool,
}

impl Requirement {
    /// The approximate memory in bytes.
    pub fn bytes(&self) -> usize {
        let values = self.values.iter().map(|value| size_of::<String>() + value.len().max(16));
        size_of::<Self>() + self.key.len() + values.sum::<usize>()
    }
}

/// The operator of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// The label is there with one of the values (`=`, `==`, `in`).
    In,
    /// The label is absent or has none of the values (`!=`, `notin`).
    NotIn,
    /// The label is there.
    Exists,
    /// The label is absent.
    DoesNotExist,
    /// The label is an integer above the value.
    GreaterThan,
    /// The label is an integer below the value.
    LessThan,
}

/// The object form as it was written. A map of one label would take ten times the memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "LabelSelector", into = "LabelSelector")]
pub struct WrittenSelector {
    /// `matchLabels`
    pub labels: Option<LabelSet>,
    /// `matchExpressions`
    pub expressions: Option<Box<[LabelSelectorRequirement]>>,
}

impl From<LabelSelector> for WrittenSelector {
    fn from(selector: LabelSelector) -> Self {
        Self {
            labels: selector.match_labels.map(LabelSet::from),
            expressions: selector.match_expressions.map(Vec::into),
        }
    }
}

impl From<WrittenSelector> for LabelSelector {
    fn from(selector: WrittenSelector) -> Self {
        Self {
            match_labels: selector.labels.map(|labels| labels.to_map()),
            match_expressions: selector.expressions.map(Vec::from),
        }
    }
}

impl Selector {
    /// A selector of these requirements, without duplicates.
    pub(super) fn new(mut requirements: Vec<Requirement>) -> Self {
        let mut seen = HashSet::new();
        requirements.retain(|requirement| seen.insert(requirement.clone()));
        requirements.shrink_to_fit();
        Self { requirements }
    }

    /// The conditions, in their order.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether labels, looked up by key, satisfy every requirement.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(label(&requirement.key)))
    }

    /// The selector of an API object's `matchLabels` and `matchExpressions`.
    pub fn from_object(object: &LabelSelector) -> Result<Self, ParseSelectorError> {
        let (labels, expressions) = (&object.match_labels, &object.match_expressions);
        let labels = labels.as_ref().map_or(0, BTreeMap::len);
        let expressions = expressions.as_deref().unwrap_or_default();
        let listed = expressions.iter().filter_map(|expression| expression.values.as_ref());
        let values = labels + listed.map(Vec::len).sum::<usize>();
        if labels + expressions.len() > MAX_REQUIREMENTS || values > MAX_VALUES {
            return too_large();
        }
        let mut requirements = Vec::new();
        for (key, value) in object.match_labels.iter().flatten() {
            requirements.push(Requirement::new(key, Operator::In, vec![value.clone()])?);
        }
        for expression in expressions {
            let operator = match expression.operator.as_str() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => return error(format!("{other:?} is not a valid label selector operator")),
            };
            let values = expression.values.clone().unwrap_or_default();
            requirements.push(Requirement::new(&expression.key, operator, values)?.listed());
        }
        Ok(Self::new(requirements))
    }

    /// The `matchLabels` and `matchExpressions` of the selector; none if a requirement
    /// can't be expressed by them.
    pub fn to_object(&self) -> Option<LabelSelector> {
        let mut object = LabelSelector::default();
        for requirement in &self.requirements {
            let operator = match requirement.operator {
                Operator::In if !requirement.listed => {
                    let labels = object.match_labels.get_or_insert_default();
                    labels.insert(requirement.key.clone(), requirement.values.concat());
                    continue;
                }
                Operator::In => "In",
                Operator::NotIn => "NotIn",
                Operator::Exists => "Exists",
                Operator::DoesNotExist => "DoesNotExist",
                Operator::GreaterThan | Operator::LessThan => return None,
            };
            let values = Some(requirement.values.clone()).filter(|values| !values.is_empty());
            object.match_expressions.get_or_insert_default().push(LabelSelectorRequirement {
                key: requirement.key.clone(),
                operator: operator.to_owned(),
                values,
            });
        }
        Some(object)
    }

    /// The value that each label must have, if every requirement is an
    /// equality with one value; otherwise none.
    pub fn as_equalities(&self) -> Option<LabelSet> {
        self.requirements
            .iter()
            .map(|requirement| match (requirement.operator, requirement.values.as_slice()) {
                (Operator::In, [value]) => Some((requirement.key.clone(), value.clone())),
                _ => None,
            })
            .collect()
    }
}

impl Requirement {
    pub(super) fn new(
        key: &str,
        operator: Operator,
        mut values: Vec<String>,
    ) -> Result<Self, ParseSelectorError> {
        validate_key(key)?;
        if matches!(operator, Operator::In | Operator::NotIn) && values.is_empty() {
            return error(
                "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty",
            );
        }
        if matches!(operator, Operator::Exists | Operator::DoesNotExist) && !values.is_empty() {
            return error(format!(
                "values: Invalid value: {values:?}: values set must be empty for exists and does not exist"
            ));
        }
        for value in &values {
            if matches!(operator, Operator::GreaterThan | Operator::LessThan)
                && value.parse::<i64>().is_err()
            {
                return error(format!(
                    "values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer"
                ));
            }
            validate_value(key, value)?;
        }
        values.sort();
        values.dedup();
        Ok(Self { key: key.to_owned(), operator, values, listed: false })
    }

    pub(super) fn listed(self) -> Self {
        Self { listed: matches!(self.operator, Operator::In | Operator::NotIn), ..self }
    }

    /// Whether a label with this value, or without one, satisfies it.
    pub fn matches(&self, value: Option<&str>) -> bool {
        let listed =
            |value: &str| self.values.binary_search_by(|known| known.as_str().cmp(value)).is_ok();
        let number = |text: &str| text.parse::<i64>().ok();
        let bound = || self.values.first().and_then(|v| number(v));
        match self.operator {
            Operator::In => value.is_some_and(listed),
            Operator::NotIn => !value.is_some_and(listed),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan => {
                value.and_then(number) > bound() && value.and_then(number).is_some()
            }
            Operator::LessThan => value.and_then(number).is_some_and(|v| Some(v) < bound()),
        }
    }
}

/// The text form, which [`str::parse`] reads back.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            let Requirement { key, operator, values, listed } = requirement;
            if i > 0 {
                f.write_str(",")?;
            }
            match (operator, values.as_slice()) {
                (Operator::In, [value]) if !listed => write!(f, "{key}={value}")?,
                (Operator::NotIn, [value]) if !listed => write!(f, "{key}!={value}")?,
                (Operator::In, values) => write!(f, "{key} in ({})", values.join(","))?,
                (Operator::NotIn, values) => write!(f, "{key} notin ({})", values.join(","))?,
                (Operator::Exists, _) => write!(f, "{key}")?,
                (Operator::DoesNotExist, _) => write!(f, "!{key}")?,
                (Operator::GreaterThan, values) => write!(f, "{key}>{}", values.concat())?,
                (Operator::LessThan, values) => write!(f, "{key}<{}", values.concat())?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selects(selector: &str, labels: &[(&str, &str)]) -> bool {
        let selector: Selector = selector.parse().unwrap();
        let again: Selector = selector.to_string().parse().unwrap();
        assert_eq!(selector, again);
        selector.matches(|key| labels.iter().find(|(k, _)| *k == key).map(|(_, v)| *v))
    }

    #[test]
    fn every_operator_selects_what_upstream_selects() {
        let labels = [("app", "web"), ("tier", "3")];
        for (selector, expected) in [
            ("", true),
            ("app=web", true),
            ("app == web , tier=3", true),
            ("app!=web", false),
            ("gone!=web", true),
            ("app in (api, web)", true),
            ("app notin (api,web)", false),
            ("gone notin (x)", true),
            ("app", true),
            ("!app", false),
            ("!gone", true),
            ("tier>2", true),
            ("tier<3", false),
            ("gone>2", false),
            ("app in ()", false),
            ("in in (in)", false),
        ] {
            assert_eq!(selects(selector, &labels), expected, "{selector}");
        }
    }

    #[test]
    fn a_broken_selector_is_refused_in_upstream_words() {
        for (selector, expected) in [
            ("a in (", "unable to parse requirement: found '', expected: ',', ')' or identifier"),
            ("a=b,", "found '', expected: identifier after ','"),
            ("=b", "found '=', expected: !, identifier, or 'end of string'"),
            (
                "a b",
                "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
            ),
            ("a=b c", "found 'c', expected: ',' or 'end of string'"),
        ] {
            assert_eq!(selector.parse::<Selector>().unwrap_err().to_string(), expected);
        }
        assert!("a{}=b".parse::<Selector>().is_err());
        assert!("a=\"b\"".parse::<Selector>().is_err());
    }

    #[test]
    fn a_selector_is_read_no_further_than_its_limits() {
        let error = |text: &str| text.parse::<Selector>().unwrap_err().to_string();
        let too_large = |text: &str| {
            let error = error(text);
            assert!(error.contains("may have 256 requirements, and 4096 values"), "{error:.200}");
        };
        // The rest of the text would be another error.
        too_large(&("!a,".repeat(MAX_REQUIREMENTS + 1) + "="));
        too_large(&format!("a in ({}=", "v,".repeat(MAX_VALUES + 1)));
        too_large(&format!("a in ({}=", ",".repeat(MAX_VALUES + 2)));
        too_large(&("a=b,".repeat(10) + &" ".repeat(1 << 20) + "c=d"));
        let expression = |values: usize, operator: &str| LabelSelectorRequirement {
            key: "a".to_owned(),
            operator: operator.to_owned(),
            values: Some(vec!["v".to_owned(); values]),
        };
        let object = |expressions| LabelSelector {
            match_expressions: Some(expressions),
            match_labels: None,
        };
        let many = object(vec![expression(MAX_VALUES, "In"), expression(1, "none")]);
        assert!(Selector::from_object(&many).unwrap_err().to_string().contains("4096 values"));
    }

    #[test]
    fn the_longest_selector_within_the_limits_is_read() {
        let key = |n: usize| {
            let prefix = ["p".repeat(63), "p".repeat(63), "p".repeat(63), "p".repeat(61)].join(".");
            format!("{prefix}/{n:063}")
        };
        let values = MAX_VALUES / MAX_REQUIREMENTS;
        let expression = |n: usize| LabelSelectorRequirement {
            key: key(n),
            operator: "NotIn".to_owned(),
            values: Some((0..values).map(|value| format!("{value:063}")).collect()),
        };
        let object = LabelSelector {
            match_expressions: Some((0..MAX_REQUIREMENTS).map(expression).collect()),
            match_labels: None,
        };
        let text = Selector::from_object(&object).unwrap().to_string();
        assert!(text.len() > 340_000, "{}", text.len());
        assert_eq!(text.parse::<Selector>().unwrap().to_string(), text);
    }

    #[test]
    fn a_selector_has_only_so_many_requirements_and_values() {
        let parsed = |text: &str| text.parse::<Selector>();
        let of = |parts: &mut dyn Iterator<Item = String>| parts.collect::<Vec<_>>().join(",");
        let absent = |count: usize| of(&mut (0..count).map(|n| format!("!a{n}")));
        assert_eq!(
            parsed(&absent(MAX_REQUIREMENTS)).unwrap().requirements().len(),
            MAX_REQUIREMENTS
        );
        let error = parsed(&absent(MAX_REQUIREMENTS + 1)).unwrap_err().to_string();
        assert!(error.contains("may have 256 requirements, and 4096 values"), "{error}");
        // Duplicates are kept once, but count.
        let same = |count: usize| parsed(&vec!["!a"; count].join(","));
        assert_eq!(same(MAX_REQUIREMENTS).unwrap(), parsed("!a").unwrap());
        assert!(same(MAX_REQUIREMENTS + 1).is_err());
        let values = |count: usize| of(&mut (0..count).map(|n| format!("v{n}")));
        let listed = parsed(&format!("a in ({})", values(MAX_VALUES))).unwrap();
        let known = |n: usize| format!("v{n}");
        assert!((0..MAX_VALUES).map(known).all(|value| listed.matches(|_| Some(&value))));
        assert!(!listed.matches(|_| Some("v")));
        assert!(parsed(&format!("a in ({}),b=c", values(MAX_VALUES))).is_err());
        let expression = |n: usize| LabelSelectorRequirement {
            key: format!("a{n}"),
            operator: "Exists".to_owned(),
            values: None,
        };
        let object = |count: usize| LabelSelector {
            match_expressions: Some((0..count).map(expression).collect()),
            match_labels: None,
        };
        assert!(Selector::from_object(&object(MAX_REQUIREMENTS)).is_ok());
        assert!(Selector::from_object(&object(MAX_REQUIREMENTS + 1)).is_err());
    }
}
