//! One object that is being converted, and the conversion of HorizontalPodAutoscalers.

use super::{fields, given, hpa_v1};
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
    /// What metrics and schedules are told by, and the triggers that they are made of.
    pub origins: Vec<(Value, String)>,
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

    /// Remembers which trigger metrics or schedules are made of.
    pub fn made_of<'a>(&mut self, trigger: &str, made: impl Iterator<Item = &'a Value>) {
        self.origins.extend(made.map(|one| (given::mark(one).clone(), trigger.to_owned())));
    }

    /// Says in the last note, which begins with a path and says why, that what is there is left out.
    pub fn leave_out(&mut self, path: &str) {
        let Some((_, note)) = self.notes.last_mut() else { return };
        if let Some(why) = note.strip_prefix(&format!("{path}: ")) {
            *note = format!("{path} is left out: {why}");
        }
    }

    /// Converts the spec of an Autoscaler of 0.1.0.
    pub fn of_autoscaler(&self, mut spec: Value) -> Value {
        let Some(fields) = spec.as_object_mut() else { return spec };
        if let Some(paused) = fields.remove("paused") {
            // What is no boolean was meant to be one: who pauses does not want a decision meanwhile.
            let mode = if paused == false || paused.is_null() { "Active" } else { "Paused" };
            fields.entry("mode").or_insert(json!(mode));
        }
        if let Some(fallback) = fields.get_mut("fallback").and_then(Value::as_object_mut)
            && let Some(rounds) = fallback.remove("failedRounds")
        {
            fallback.entry("failureThreshold").or_insert(rounds);
        }
        spec
    }

    /// Converts the spec of an `autoscaling/v2` HorizontalPodAutoscaler.
    ///
    /// # Errors
    /// Why kubectl apply refuses it.
    pub fn of_hpa(&mut self, mut spec: Value) -> Result<Value, String> {
        quote_fractions(&mut spec);
        fields::check("autoscaling/v2", &spec)?;
        self.advise(DELETE_HPA);
        let served = served_metrics(&spec);
        if !served.is_empty() {
            self.advise(&format!("{}: Plimsoll must give such a metric, too: a rule, a MetricRule or passOn of its configuration has to have each of these names, or the Autoscaler can't decide by it", served.join(", ")));
        }
        Ok(spec)
    }

    /// Converts the spec of an `autoscaling/v1` HorizontalPodAutoscaler, and what its annotations have in place of fields.
    ///
    /// # Errors
    /// If these can't be read, or why kubectl apply refuses it.
    pub fn of_hpa_v1(&mut self, mut spec: Value, annotations: &Value) -> Result<Value, String> {
        fields::check("autoscaling/v1", &spec)?;
        let mut metrics = hpa_v1::metrics(annotations)?;
        let percent = spec.as_object_mut().and_then(|s| s.remove("targetCPUUtilizationPercentage"));
        if let Some(percent) = percent.filter(|percent| !percent.is_null()) {
            metrics.push(utilization("cpu", None, percent));
        }
        if !metrics.is_empty() {
            spec["metrics"] = json!(metrics);
        }
        if let Some(behavior) = hpa_v1::behavior(annotations)? {
            spec["behavior"] = behavior;
        }
        self.of_hpa(spec)
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
