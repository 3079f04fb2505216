//! The autoscaler that a command is about: an Autoscaler, or a native HPA by `hpa/NAME`.

use super::super::shown::{Shown, joined};
use super::super::story::{Standing, Status, Subject, clean};
use super::cluster::Cluster;
use super::decisions::labels;
use super::error::{OperateError, api_error};
use super::missing::with_hint;
use crate::config::{ObjectFlags, OutputFormat};
use crate::crd::{Autoscaler, Executor};
use crate::nearest::nearest;
use crate::time::UnixMillis;
use crate::watch::AutoscalerKind;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::api::{GetParams, ListParams};
use kube::core::{NamespaceResourceScope, Request};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt::Debug;

/// The autoscaler that a command is about, and how it is read.
pub struct Named {
    /// Its cluster.
    pub cluster: Cluster,
    /// Its kind.
    pub kind: AutoscalerKind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What its object says.
pub struct Known {
    /// Whom it is about.
    pub subject: Subject,
    /// Its status.
    pub status: Status,
    /// Whether kube-controller-manager decides, by an HPA that Plimsoll writes.
    pub is_native: bool,
    /// The status as it was read.
    pub json: Value,
}

/// The period of the control loop, if the spec has none, in ms.
const PERIOD: i64 = 15_000;

impl Named {
    /// The autoscalers of the flags.
    ///
    /// # Errors
    /// If there is no way to the cluster, a name is of another kind, or those of a selector can't be listed.
    pub async fn all(flags: &ObjectFlags) -> Result<Vec<Self>, OperateError> {
        let (kind, names) = kinds_and_names(&flags.names, flags.selector.is_some())?;
        let cluster = Cluster::of(&flags.cluster.kubectl).await?;
        let namespace = flags.namespace.clone().unwrap_or_else(|| cluster.namespace.clone());
        if let Some(selector) = &flags.selector {
            let namespace = Some(&*namespace).filter(|_| !flags.all_namespaces);
            let found = match kind {
                AutoscalerKind::Autoscaler => {
                    listed::<Autoscaler>(&cluster, namespace, selector).await
                }
                AutoscalerKind::Hpa => {
                    listed::<HorizontalPodAutoscaler>(&cluster, namespace, selector).await
                }
            };
            let found = found.map_err(|error| cluster.told(api_error(kind.as_str())(error)))?;
            let named =
                |(namespace, name)| Self { cluster: cluster.clone(), kind, namespace, name };
            return Ok(found.into_iter().map(named).collect());
        }
        let named = |(kind, name)| {
            let (cluster, namespace) = (cluster.clone(), namespace.clone());
            Self { cluster, kind, namespace, name }
        };
        Ok(names.into_iter().map(named).collect())
    }

    /// The Autoscaler `web` of the namespace `shop`.
    #[cfg(test)]
    pub fn fake(client: kube::Client) -> Self {
        let (namespace, name) = ("shop".to_owned(), "web".to_owned());
        let cluster = Cluster::fake(client);
        Self { cluster, kind: AutoscalerKind::Autoscaler, namespace, name }
    }

    /// The time by kube-apiserver, or by this machine before its first response.
    pub fn now(&self) -> UnixMillis {
        self.cluster.clock.server_or_wall()
    }

    /// Whose time that is.
    pub fn whose_clock(&self) -> &'static str {
        match self.cluster.clock.server() {
            Some(_) => "the cluster's clock",
            None => "the clock of this machine",
        }
    }

    /// Its name in messages.
    pub fn object(&self) -> String {
        let kind = match self.kind {
            AutoscalerKind::Autoscaler => "autoscaler",
            AutoscalerKind::Hpa => "hpa",
        };
        format!("{kind} {}/{}", self.namespace, self.name)
    }

    /// The label selector of its decisions.
    pub fn labels(&self) -> String {
        labels(&self.name, self.kind)
    }

    /// What its object says, or why it can't be read.
    ///
    /// # Errors
    /// If the API server does not answer.
    pub async fn known(&self) -> Result<Result<Known, OperateError>, OperateError> {
        match self.read().await {
            Err(error) if error.is_unanswered() => Err(error),
            known => Ok(known),
        }
    }

    /// What its object says.
    ///
    /// # Errors
    /// If it can't be read. Where there is an HPA of the name of an Autoscaler that is missing, the message names it.
    async fn read(&self) -> Result<Known, OperateError> {
        match self.kind {
            AutoscalerKind::Autoscaler => match self.get::<Autoscaler>().await {
                Ok((object, json)) => Ok(self.autoscaler(object, json)),
                Err(error) => {
                    let error = api_error(self.object())(error);
                    if error.is_missing() && self.get::<HorizontalPodAutoscaler>().await.is_ok() {
                        let name = &self.name;
                        let hint = format!("; there is a native HPA of that name: hpa/{name}");
                        return Err(OperateError::Refused(format!("{error}{hint}")));
                    }
                    Err(self.with_hint::<Autoscaler>(error).await)
                }
            },
            AutoscalerKind::Hpa => match self.get::<HorizontalPodAutoscaler>().await {
                Ok((object, json)) => Ok(self.hpa(&object, json)),
                Err(error) => {
                    let error = api_error(self.object())(error);
                    Err(self.with_hint::<HorizontalPodAutoscaler>(error).await)
                }
            },
        }
    }

    /// An error of its object, with what was probably meant if there is none.
    pub async fn with_hint<K>(&self, error: OperateError) -> OperateError
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + DeserializeOwned
            + Clone
            + Debug,
    {
        let client = &self.cluster.client;
        let apis =
            [Api::<K>::namespaced(client.clone(), &self.namespace), Api::all(client.clone())];
        with_hint(error, client, (&self.namespace, &self.name), apis).await
    }

    /// What is known of it where its object can't be read.
    pub fn unknown(&self) -> Subject {
        Subject {
            kind: self.kind.as_str().to_owned(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            period: PERIOD,
            ..Subject::default()
        }
    }

    async fn get<K>(&self) -> Result<(K, Value), kube::Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned,
    {
        let request = Request::new(K::url_path(&(), Some(&self.namespace)));
        let request = request.get(&self.name, &GetParams::default());
        let request = request.map_err(kube::Error::BuildRequest)?;
        let mut value: Value = self.cluster.client.request(request).await?;
        clean(&mut value);
        let status = value.get("status").cloned().unwrap_or_default();
        Ok((serde_json::from_value(value).map_err(kube::Error::SerdeError)?, status))
    }

    fn autoscaler(&self, object: Autoscaler, json: Value) -> Known {
        let (spec, status) = (object.spec, object.status.unwrap_or_default());
        let bounds = status.schedule.as_ref().map(|now| (now.min_replicas, now.max_replicas));
        let conditions = status.conditions.unwrap_or_default().into_iter().map(|one| Standing {
            kind: one.type_,
            status: one.status,
            reason: one.reason,
            message: one.message,
            since: Some(one.last_transition_time.0.as_millisecond()),
        });
        let status = Status {
            current: status.current_replicas,
            desired: status.desired_replicas,
            bounds: bounds.unwrap_or((spec.min_replicas, spec.max_replicas)),
            metrics: Some(status.targets.unwrap_or_else(|| "not looked at yet".to_owned())),
            last_scaled: status.last_scale_time.map(|time| time.0.as_millisecond()),
            conditions: conditions.collect(),
        };
        let target = format!("{}/{}", spec.scale_target_ref.kind, spec.scale_target_ref.name);
        let period = spec.sync_period_seconds.map_or(PERIOD, |seconds| i64::from(seconds) * 1000);
        let subject = subject_of(self.unknown(), target, period, &status);
        Known { subject, status, is_native: spec.executor == Executor::NativeHPA, json }
    }

    fn hpa(&self, object: &HorizontalPodAutoscaler, json: Value) -> Known {
        let (spec, status) = (object.spec.clone(), object.status.clone());
        let status = status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default().into_iter().map(|one| Standing {
            kind: one.type_,
            status: one.status,
            reason: one.reason.unwrap_or_default(),
            message: one.message.unwrap_or_default(),
            since: one.last_transition_time.map(|time| time.0.as_millisecond()),
        });
        let status = Status {
            current: status.current_replicas,
            desired: Some(status.desired_replicas),
            bounds: (spec.min_replicas.unwrap_or(1), spec.max_replicas),
            metrics: None,
            last_scaled: status.last_scale_time.map(|time| time.0.as_millisecond()),
            conditions: conditions.collect(),
        };
        let target = format!("{}/{}", spec.scale_target_ref.kind, spec.scale_target_ref.name);
        let subject = subject_of(self.unknown(), target, PERIOD, &status);
        Known { subject, status, is_native: false, json }
    }
}

/// The label selector of the decisions for an autoscaler. The label of a long name is cut.
/// The subject with what its conditions say.
fn subject_of(subject: Subject, target: String, period: i64, status: &Status) -> Subject {
    let healthy = ["AbleToScale", "ScalingActive"];
    let is_fault = |one: &&Standing| one.status != "True" && healthy.contains(&&*one.kind);
    let faults = status.conditions.iter().filter(is_fault);
    let faults = faults.map(|one| (one.reason.clone(), one.message.clone()));
    let said = ["ConfigurationWarning", "MetricTypeUnknown", "Frozen"];
    let notes = status.conditions.iter().filter(|one| one.status == "True");
    let notes = notes.filter(|one| said.contains(&&*one.kind));
    let notes = notes.map(|one| format!("{} ({}): {}", one.kind, one.reason, one.message));
    let (faults, notes) = (faults.collect(), notes.collect());
    Subject { target: Some(target), period, faults, notes, ..subject }
}

/// Has each autoscaler of the flags told, also where others fail.
///
/// # Errors
/// If there is no way to the cluster, and with what is told of the others where it fails for some.
pub async fn each(
    flags: &ObjectFlags,
    output: OutputFormat,
    tell: impl AsyncFn(&Named) -> Result<Shown, OperateError>,
) -> Result<String, OperateError> {
    let (mut shown, mut errors) = (Vec::new(), Vec::new());
    let all = Named::all(flags).await?;
    for named in &all {
        match tell(named).await {
            Ok(one) => shown.push(one),
            Err(error) => errors.push(named.cluster.told(error)),
        }
    }
    if let [_] = &*all
        && let Some(error) = errors.pop()
    {
        return Err(error);
    }
    if all.is_empty() && output == OutputFormat::Text {
        return Err(OperateError::Refused("No resources found".to_owned()));
    }
    let is_list = flags.selector.is_some() || all.len() > 1;
    let shown = joined(shown, is_list, output);
    if errors.is_empty() {
        return Ok(shown);
    }
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    Err(OperateError::Partly { shown, error: errors.join("\n") })
}

/// The namespaces and names of the objects of a kind with these labels, of all namespaces if there is none.
async fn listed<K>(
    cluster: &Cluster,
    namespace: Option<&str>,
    labels: &str,
) -> Result<Vec<(String, String)>, kube::Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + DeserializeOwned
        + Clone
        + Debug,
{
    let client = cluster.client.clone();
    let api: Api<K> = match namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let list = api.list_metadata(&ListParams::default().labels(labels)).await?;
    let namespace = |namespace: Option<String>| namespace.unwrap_or_default();
    Ok(list.iter().map(|one| (namespace(one.namespace()), one.name_any())).collect())
}

/// A type as kubectl has it.
fn kind_of(text: &str) -> Option<AutoscalerKind> {
    match text.to_ascii_lowercase().split('.').next().unwrap_or_default() {
        "autoscaler" | "autoscalers" | "pas" => Some(AutoscalerKind::Autoscaler),
        "hpa" | "horizontalpodautoscaler" | "horizontalpodautoscalers" => Some(AutoscalerKind::Hpa),
        _ => None,
    }
}

/// `NAME ...`, `TYPE/NAME ...` or `TYPE NAME ...`, as kubectl has it; with a selector only `TYPE`, if anything. The type
/// is that of the selector.
fn kinds_and_names(
    words: &[String],
    has_selector: bool,
) -> Result<(AutoscalerKind, Vec<(AutoscalerKind, String)>), OperateError> {
    let kind = words.first().and_then(|word| kind_of(word));
    let kind = kind.filter(|_| has_selector || words.len() > 1);
    let names = if kind.is_some() { &words[1..] } else { words };
    if has_selector && !names.is_empty() {
        let error = "name cannot be provided when a selector is specified";
        return Err(OperateError::Refused(error.to_owned()));
    }
    let of_kind = |name: &String| match kind {
        Some(_) if name.contains('/') => Err(OperateError::Refused(format!(
            "{name}: there is no need to specify a type as a separate argument when passing arguments in TYPE/NAME form"
        ))),
        Some(kind) => Ok((kind, name.clone())),
        None => kind_and_name(name),
    };
    let names = names.iter().map(of_kind).collect::<Result<_, _>>()?;
    Ok((kind.unwrap_or(AutoscalerKind::Autoscaler), names))
}

/// `NAME`, or `TYPE/NAME` as kubectl has it.
fn kind_and_name(text: &str) -> Result<(AutoscalerKind, String), OperateError> {
    let (kind, name) = text.split_once('/').unwrap_or(("autoscaler", text));
    let Some(kind) = kind_of(kind) else {
        let types = ["autoscaler", "hpa", "horizontalpodautoscaler"].map(str::to_owned);
        let hint = nearest(&kind.to_ascii_lowercase(), types.into_iter());
        let hint = match (hint, &*kind.to_ascii_lowercase()) {
            (Some(known), _) => format!("; did you mean {known}/{name}?"),
            (None, "deployment" | "deployments" | "deploy" | "statefulset" | "sts") => {
                "; kubectl get autoscalers lists which Autoscaler scales it".to_owned()
            }
            (None, _) => format!("; did you mean {name} -n {kind}?"),
        };
        return Err(OperateError::Refused(format!(
            "{kind}/{name}: NAME of an Autoscaler or hpa/NAME was expected{hint}"
        )));
    };
    match name.is_empty() || name.contains('/') {
        false => Ok((kind, name.to_owned())),
        true => {
            let error = format!("{text:?}: NAME of an Autoscaler or hpa/NAME was expected");
            Err(OperateError::Refused(error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::api::AUTOSCALER_LABEL;
    use crate::ledger::autoscaler_label;

    #[test]
    fn names_are_given_as_to_kubectl() {
        use AutoscalerKind::{Autoscaler, Hpa};
        let of = |text: &str, has_selector| {
            let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            kinds_and_names(&words, has_selector).map_err(|error| error.to_string())
        };
        let named = |kind, name: &str| (kind, name.to_owned());
        let expected = vec![named(Autoscaler, "web"), named(Hpa, "api")];
        assert_eq!(of("web hpa/api", false), Ok((Autoscaler, expected)));
        let expected = vec![named(Hpa, "web"), named(Hpa, "api")];
        assert_eq!(of("hpa web api", false), Ok((Hpa, expected)));
        // The only word is a name.
        assert_eq!(of("hpa", false), Ok((Autoscaler, vec![named(Autoscaler, "hpa")])));
        assert_eq!(of("hpa", true), Ok((Hpa, Vec::new())));
        assert!(of("web", true).unwrap_err().contains("when a selector is specified"));
        assert!(of("hpa hpa/web", false).unwrap_err().contains("TYPE/NAME form"));
    }

    #[test]
    fn a_name_is_of_an_autoscaler_or_of_a_native_hpa() {
        for (text, expected) in [
            ("web", AutoscalerKind::Autoscaler),
            ("autoscaler/web", AutoscalerKind::Autoscaler),
            ("pas/web", AutoscalerKind::Autoscaler),
            ("hpa/web", AutoscalerKind::Hpa),
            ("horizontalpodautoscalers.autoscaling/web", AutoscalerKind::Hpa),
        ] {
            let (kind, name) = kind_and_name(text).unwrap();
            assert_eq!((kind, &*name), (expected, "web"), "{text}");
        }
        let error = kind_and_name("autoscalr/web").unwrap_err().to_string();
        assert!(error.ends_with("did you mean autoscaler/web?"), "{error}");
        let error = kind_and_name("shop/web").unwrap_err().to_string();
        assert!(error.ends_with("did you mean web -n shop?"), "{error}");
        let error = kind_and_name("deploy/web").unwrap_err().to_string();
        assert!(error.ends_with("lists which Autoscaler scales it"), "{error}");
        let long = "x".repeat(100);
        let selector = labels(&long, AutoscalerKind::Autoscaler);
        let expected = format!("{AUTOSCALER_LABEL}={}", autoscaler_label(&long));
        assert!(selector.starts_with(&expected) && !selector.contains(&long), "{selector}");
        for wrong in ["deployment/web", "hpa/", "hpa/a/b", ""] {
            let error = kind_and_name(wrong).unwrap_err().to_string();
            assert!(error.contains("hpa/NAME was expected"), "{error}");
        }
    }
}
