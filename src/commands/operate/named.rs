//! The autoscaler that a command is about: an Autoscaler, or a native HPA by `hpa/NAME`.

use super::super::story::{Standing, Status, Subject, clean};
use super::cluster::Cluster;
use super::decisions::labels;
use super::error::{OperateError, api_error};
use crate::config::ObjectFlags;
use crate::crd::{Autoscaler, Executor};
use crate::time::UnixMillis;
use crate::watch::AutoscalerKind;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::Resource;
use kube::api::GetParams;
use kube::core::{NamespaceResourceScope, Request};
use serde::de::DeserializeOwned;
use serde_json::Value;

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
    /// The autoscaler of the flags.
    ///
    /// # Errors
    /// If there is no way to the cluster, or the name is of another kind.
    pub async fn of(flags: &ObjectFlags) -> Result<Self, OperateError> {
        let (kind, name) = kind_and_name(&flags.name)?;
        let cluster = Cluster::of(&flags.cluster).await?;
        let namespace = flags.namespace.clone().unwrap_or_else(|| cluster.namespace.clone());
        Ok(Self { cluster, kind, namespace, name })
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
                Err(kube::Error::Api(status))
                    if status.code == 404 && status.reason == "NotFound" =>
                {
                    let hint = match self.get::<HorizontalPodAutoscaler>().await {
                        Ok(_) => format!("; there is a native HPA of that name: hpa/{}", self.name),
                        Err(_) => String::new(),
                    };
                    Err(OperateError::Refused(format!("{}: not found{hint}", self.object())))
                }
                Err(error) => Err(api_error(self.object())(error)),
            },
            AutoscalerKind::Hpa => {
                let read = self.get::<HorizontalPodAutoscaler>().await;
                let (object, json) = read.map_err(api_error(self.object()))?;
                Ok(self.hpa(&object, json))
            }
        }
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

/// `NAME`, or `KIND/NAME` as kubectl has it.
fn kind_and_name(text: &str) -> Result<(AutoscalerKind, String), OperateError> {
    let (kind, name) = text.split_once('/').unwrap_or(("autoscaler", text));
    let kind = kind.to_ascii_lowercase();
    let kind = kind.split('.').next().unwrap_or_default();
    let kind = match kind {
        "autoscaler" | "autoscalers" | "pas" => AutoscalerKind::Autoscaler,
        "hpa" | "horizontalpodautoscaler" | "horizontalpodautoscalers" => AutoscalerKind::Hpa,
        other => {
            return Err(OperateError::Refused(format!(
                "{other}/{name}: NAME of an Autoscaler or hpa/NAME was expected"
            )));
        }
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
