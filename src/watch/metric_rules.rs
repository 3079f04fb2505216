//! MetricRules: from API objects to records, of which only so much is kept as a namespace may use.

use super::lean::Lean;
use super::records::MetricRuleRecord;
use crate::crd::MetricRuleSpec;
use crate::time::UnixMillis;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A MetricRule with only the fields that are used.
pub type LeanMetricRule = Lean<Value, Value>;

/// The most bytes of the spec of a MetricRule, as JSON.
const MAX_RULE_BYTES: usize = 16 << 10;
/// The most bytes of its status: Plimsoll writes less.
const MAX_RULE_STATUS_BYTES: usize = 128 << 10;
/// The most bytes of the name of a label.
const MAX_LABEL_BYTES: usize = 253;

/// Reads the spec of a MetricRule. What a user wrote is kept for each, so that it must be short.
fn rule_spec(spec: Value) -> Result<MetricRuleSpec, String> {
    let bytes = spec.to_string().len();
    if bytes > MAX_RULE_BYTES {
        return Err(format!(
            "spec: it takes {bytes} bytes as JSON, at most {MAX_RULE_BYTES} were expected: shorten it, or write several rules"
        ));
    }
    let spec: MetricRuleSpec =
        serde_json::from_value(spec).map_err(|error| format!("spec: {error}"))?;
    let mut labels = spec.resources.iter().flat_map(|resources| resources.overrides.keys());
    match labels.find(|label| label.len() > MAX_LABEL_BYTES) {
        Some(label) => Err(format!(
            "spec.resources.overrides: a label takes {} bytes, at most {MAX_LABEL_BYTES} were expected",
            label.len()
        )),
        None => Ok(spec),
    }
}

/// The record of a MetricRule. The spec of the known record is kept where it is of the same generation.
pub fn metric_rule(rule: LeanMetricRule, known: Option<&MetricRuleRecord>) -> MetricRuleRecord {
    let Lean { metadata, spec, status } = rule;
    let (uid, generation) = (metadata.uid.unwrap_or_default(), metadata.generation);
    let same = known.filter(|known| known.uid == uid && known.generation == generation);
    let spec = match same.filter(|known| known.generation.is_some()) {
        Some(known) => known.spec.clone(),
        None => rule_spec(spec).map(Arc::new),
    };
    let status = Some(status).filter(|status| status.to_string().len() <= MAX_RULE_STATUS_BYTES);
    MetricRuleRecord {
        uid,
        generation,
        created: metadata.creation_timestamp.map_or(0, |time| time.0.as_millisecond()),
        spec,
        status: status.and_then(|status| serde_json::from_value(status).ok()).unwrap_or_default(),
    }
}

/// The most rules of a namespace whose specs are kept: the oldest, which are more than may serve.
const MAX_SPECS: usize = 100;

/// The MetricRules of a namespace.
#[derive(Default)]
pub(super) struct MetricRuleRecords {
    pub(super) by_name: BTreeMap<String, Arc<MetricRuleRecord>>,
    /// Those whose specs are kept, by age.
    with_spec: BTreeSet<(UnixMillis, String)>,
}

impl MetricRuleRecords {
    /// Adds or replaces one. Beyond [`MAX_SPECS`], the youngest loses its spec.
    pub(super) fn put(&mut self, name: String, record: MetricRuleRecord) {
        self.remove(&name);
        if record.spec.is_ok() {
            self.with_spec.insert((record.created, name.clone()));
        }
        self.by_name.insert(name, Arc::new(record));
        if self.with_spec.len() > MAX_SPECS
            && let Some((_, youngest)) = self.with_spec.pop_last()
            && let Some(record) = self.by_name.get_mut(&youngest)
        {
            let spec = Err(format!(
                "the namespace had {MAX_SPECS} older MetricRules when this one was read: delete some, and then edit this one"
            ));
            *record = Arc::new(MetricRuleRecord { spec, ..MetricRuleRecord::clone(record) });
        }
    }

    /// Removes one.
    pub(super) fn remove(&mut self, name: &str) {
        if let Some(record) = self.by_name.remove(name) {
            self.with_spec.remove(&(record.created, name.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_long_spec_of_a_metric_rule_is_not_kept() {
        let read = |resources: Value| {
            let rule = json!({"metadata": {"name": "rule"}, "spec": {
                "seriesQuery": "x", "metricsQuery": "y", "resources": resources}});
            metric_rule(serde_json::from_value(rule).unwrap(), None).spec
        };
        let of = |label: String| json!({"overrides": {label: {"resource": "pods"}}});
        assert!(read(of("l".repeat(253))).is_ok());
        let error = read(of("l".repeat(254))).unwrap_err();
        assert!(error.contains("a label takes 254 bytes"), "{error}");
        for long in [of("l".repeat(1 << 20)), json!("x".repeat(1 << 20))] {
            let error = read(long).unwrap_err();
            assert!(error.len() < 200 && error.contains("at most 16384"), "{error}");
        }
    }

    #[test]
    fn only_the_oldest_rules_of_a_namespace_keep_their_specs() {
        let mut rules = MetricRuleRecords::default();
        // The oldest is read last, as when all are listed.
        for created in (0..300).rev() {
            let spec = json!({"seriesQuery": "x", "metricsQuery": "y"});
            let spec = serde_json::from_value(spec).map(Arc::new).map_err(|_| String::new());
            let (uid, status) = (String::new(), Default::default());
            let record = MetricRuleRecord { uid, generation: Some(1), created, spec, status };
            rules.put(format!("rule-{created}"), record);
        }
        let kept = |rules: &MetricRuleRecords| {
            let kept = rules.by_name.values().filter(|record| record.spec.is_ok());
            (kept.clone().count(), kept.map(|record| record.created).max())
        };
        assert_eq!((rules.by_name.len(), kept(&rules)), (300, (100, Some(99))));
        for created in 0..50 {
            rules.remove(&format!("rule-{created}"));
        }
        assert_eq!((rules.with_spec.len(), kept(&rules)), (50, (50, Some(99))));
    }
}
