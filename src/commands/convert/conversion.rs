//! One object that is being converted, and the conversion of HorizontalPodAutoscalers.

use super::hpa_v1;
use serde_json::{Value, json};

/// The sync period of kube-controller-manager if its flags don't say otherwise, in seconds.
pub const SYNC_PERIOD: i32 = 15;

/// What is to be done with an HPA when its Autoscaler is made.
pub const DELETE_HPA: &str = "delete the HorizontalPodAutoscaler when the Autoscaler is made: while both are there, kube-controller-manager scales by it, and the Autoscaler does not (AmbiguousSelector), but with --native-hpas=ignore both do";

/// What a note is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// How the Autoscaler decides.
    Decisions,
    /// The Prometheus that is asked.
    Server,
    /// What is to be done when it is made.
    Making,
    /// What is left out, or is probably a mistake in the object: it also says why no Autoscaler is made, where none is.
    Fault,
}

/// The conversion of one object.
pub struct Conversion {
    /// The namespace of the object.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// What was left out or has another meaning.
    pub notes: Vec<(About, String)>,
    /// Whether something was left out without which the Autoscaler would scale differently.
    pub incomplete: bool,
    /// The addresses of the Prometheus that Plimsoll queries, if known.
    pub servers: Vec<String>,
}

impl Conversion {
    /// Adds a note on the Autoscaler.
    pub fn note(&mut self, note: &str) {
        self.notes.push((About::Decisions, note.to_owned()));
    }

    /// Adds a note on what is probably a mistake in the object.
    pub fn fault(&mut self, note: &str) {
        self.notes.push((About::Fault, note.to_owned()));
    }

    /// Adds a note on what is to be done when the Autoscaler is made.
    pub fn advise(&mut self, note: &str) {
        self.notes.push((About::Making, note.to_owned()));
    }

    /// Adds a note on the Prometheus that is asked, so that the Autoscaler is created as a preview.
    pub fn other_server(&mut self, note: &str) {
        self.notes.push((About::Server, note.to_owned()));
        self.incomplete = true;
    }

    /// Adds a note on what was left out, so that the Autoscaler is created as a preview.
    pub fn missing(&mut self, note: &str) {
        self.fault(note);
        self.incomplete = true;
    }

    /// Converts the spec of an Autoscaler of 0.1.0.
    pub fn of_autoscaler(&mut self, spec: &Value) -> Value {
        let mut new = spec.clone();
        let Some(fields) = new.as_object_mut() else { return new };
        if let Some(paused) = fields.remove("paused") {
            let mode = if paused == true { "Paused" } else { "Active" };
            fields.entry("mode").or_insert(json!(mode));
        }
        if let Some(fallback) = fields.get_mut("fallback").and_then(Value::as_object_mut)
            && let Some(rounds) = fallback.remove("failedRounds")
        {
            fallback.entry("failureThreshold").or_insert(rounds);
        }
        new
    }

    /// Converts the spec of an `autoscaling/v2` HorizontalPodAutoscaler.
    pub fn of_hpa(&mut self, spec: &Value) -> Value {
        self.advise(DELETE_HPA);
        let served = served_metrics(spec);
        if !served.is_empty() {
            self.advise(&format!("{}: Plimsoll must give such a metric, too: a rule, a MetricRule or passOn of its configuration has to have each of these names, or the Autoscaler can't decide by it", served.join(", ")));
        }
        let mut spec = spec.clone();
        quote_fractions(&mut spec);
        spec
    }

    /// Converts the spec of an `autoscaling/v1` HorizontalPodAutoscaler, and what its annotations have in place of fields.
    ///
    /// # Errors
    /// If these can't be read.
    pub fn of_hpa_v1(&mut self, spec: &Value, annotations: &Value) -> Result<Value, String> {
        let mut new = spec.clone();
        let mut metrics = hpa_v1::metrics(annotations)?;
        if let Some(percent) =
            new.as_object_mut().and_then(|s| s.remove("targetCPUUtilizationPercentage"))
            && !percent.is_null()
        {
            metrics.push(utilization("cpu", None, percent));
        }
        if !metrics.is_empty() {
            new["metrics"] = json!(metrics);
        }
        if let Some(behavior) = hpa_v1::behavior(annotations)? {
            new["behavior"] = behavior;
        }
        Ok(self.of_hpa(&new))
    }
}

/// The metrics of an HPA that an adapter gives, such as `spec.metrics[0] (queue)`.
fn served_metrics(spec: &Value) -> Vec<String> {
    let all = spec["metrics"].as_array().into_iter().flatten().enumerate();
    let served = all.filter_map(|(index, metric)| {
        let sources = ["pods", "object", "external"].into_iter();
        let name = sources.filter_map(|source| metric[source]["metric"]["name"].as_str()).next()?;
        Some(format!("spec.metrics[{index}] ({})", name.escape_debug()))
    });
    served.collect()
}

/// Writes fractional quantities as strings: an HPA may have the number `0.5`, which the schema of a
/// CustomResourceDefinition can't allow.
fn quote_fractions(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let quantity = matches!(name.as_str(), "value" | "averageValue" | "tolerance");
                match field {
                    Value::Number(number) if quantity && number.is_f64() => {
                        *field = json!(number.to_string());
                    }
                    field => quote_fractions(field),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(quote_fractions),
        _ => {}
    }
}

/// A metric of average utilization, in percent.
pub fn utilization(name: &str, container: Option<String>, percent: Value) -> Value {
    resource(name, container, json!({"type": "Utilization", "averageUtilization": percent}))
}

/// A metric of a resource, of the pods or of a container.
pub fn resource(name: &str, container: Option<String>, target: Value) -> Value {
    match container {
        None => json!({"type": "Resource", "resource": {"name": name, "target": target}}),
        Some(container) => json!({"type": "ContainerResource", "containerResource":
            {"name": name, "container": container, "target": target}}),
    }
}
