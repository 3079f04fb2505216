//! One Autoscaler, and reading what is around it.

use super::super::check_context::{FileAutoscaler, Findings};
use crate::control::{Targets, message, within};
use crate::hpa::{self, TargetRef};
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use serde_json::Value;

/// The most objects of a kind in a namespace that are looked at.
const MAX_OBJECTS: u32 = 500;

/// A utilization of a resource's requests.
pub struct Utilization {
    /// The field of the spec.
    pub field: String,
    /// Such as `cpu`.
    pub resource: String,
    /// The only container that it is of.
    pub container: Option<String>,
}

/// One Autoscaler and its surroundings.
pub struct Around<'a> {
    /// The cluster.
    pub client: &'a Client,
    /// Its resources and scales.
    pub targets: &'a Targets,
    /// The Autoscaler.
    pub object: &'a FileAutoscaler,
    /// What it scales.
    pub target: TargetRef,
    /// What was found of it, and of those before.
    pub found: &'a mut Findings,
}

impl Around<'_> {
    /// Notes what is probably a mistake; the text begins with the field.
    pub fn warn(&mut self, text: &str) {
        self.found.warnings.push(self.object.about(text));
    }

    /// Notes what could not be looked at, and why.
    pub fn not_checked(&mut self, text: &str) {
        self.found.not_checked.push(self.object.about(text));
    }

    /// Such as `Deployment web`.
    pub fn target_name(&self) -> String {
        format!("{} {}", self.target.kind, self.target.name)
    }

    /// The objects of a kind in the namespace.
    pub fn api(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.object.namespace, resource)
    }

    /// The target; none if it can't be read.
    pub async fn read_target(&mut self) -> Option<DynamicObject> {
        let group = hpa::parse_group(&self.target.api_version).unwrap_or_default();
        let read = match self.targets.resource(group, &self.target.kind).await {
            Ok(resource) => {
                let read = within(self.api(&resource).get(&self.target.name)).await;
                read.map_err(|error| message(&error))
            }
            Err(error) => Err(error),
        };
        read.inspect_err(|error| {
            self.not_checked(&format!(
                "spec.scaleTargetRef: who writes the replicas of {}, and its pods: {error}",
                self.target_name()
            ));
        })
        .ok()
    }

    /// The objects of a kind in the namespace; none if they can't be read.
    pub async fn list(
        &mut self,
        resource: &ApiResource,
        parameters: ListParams,
        what: &str,
    ) -> Option<Vec<DynamicObject>> {
        let parameters = parameters.limit(MAX_OBJECTS);
        match within(self.api(resource).list(&parameters)).await {
            Ok(list) => {
                if list.metadata.continue_.is_some_and(|more| !more.is_empty()) {
                    let plural = &resource.plural;
                    self.not_checked(&format!("{what}: {plural} beyond the first {MAX_OBJECTS}"));
                }
                Some(list.items)
            }
            Err(error) => {
                self.not_checked(&format!("{what}: {}", message(&error)));
                None
            }
        }
    }

    /// Whether a reference is to the target, in any version of its group.
    pub fn is_target(&self, reference: &Value) -> bool {
        let of = |field: &str| reference[field].as_str().unwrap_or_default();
        let group = |version: &str| hpa::parse_group(version).map(str::to_owned);
        of("kind") == self.target.kind
            && of("name") == self.target.name
            && group(of("apiVersion")) == group(&self.target.api_version)
    }
}
