//! Whether who asks may: the API server decides (SubjectAccessReview).

use super::identity::Identity;
use super::request::{ApiGroup, Target, Version};
use super::response::ApiError;
use crate::cache::{self, Cache};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use std::sync::Arc;
use std::time::Duration;

/// Asks the API server what users may do, and remembers it for a short time.
#[derive(Clone)]
pub struct Authorizer {
    client: Client,
    allowed: Cache<(Identity, Action), ()>,
    refused: Cache<(Identity, Action), String>,
    always_allowed: Arc<[String]>,
}

/// How reviews are asked for and kept.
#[derive(Clone, Debug)]
pub struct AuthorizerOptions {
    /// How long it is believed that somebody may.
    pub allowed_age: Duration,
    /// How long it is believed that somebody may not.
    pub refused_age: Duration,
    /// Paths that anybody may read; `*` at the end stands for anything.
    pub always_allow_paths: Vec<String>,
}

/// What somebody wants to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Read something of an API group.
    Read {
        /// The group.
        group: &'static str,
        /// The version asked in.
        version: &'static str,
        /// `get` or `list`.
        verb: &'static str,
        /// The namespace; empty for the whole cluster.
        namespace: String,
        /// The resource.
        resource: String,
        /// What of it, such as a metric; empty for itself.
        subresource: String,
        /// The object's name, or `*`; empty for all.
        name: String,
    },
    /// Read a path that is no object.
    Path(String),
}

/// How many bytes of answers of one kind, yes or no, are kept.
const ANSWERS: usize = 8 << 20;
/// How long a review may take.
const REVIEW: Duration = Duration::from_secs(10);

impl Action {
    /// What a request to a path wants to do.
    pub fn of(target: Option<&Target>, path: &str) -> Self {
        let read = |group: ApiGroup, version: Version, namespace: &str, resource: &str| {
            (group.as_str(), version.as_str(), namespace.to_owned(), resource.to_owned())
        };
        let v1beta1 = Version::V1Beta1;
        let (parts, subresource, name) = match target {
            // A metric of a namespace is, by its path, an object called as the metric.
            Some(Target::Object(object)) if object.of_namespace => {
                let parts = read(ApiGroup::Custom, object.version, &object.name, "metrics");
                (parts, "", Some(object.metric.as_str()))
            }
            Some(Target::Object(object)) => (
                read(ApiGroup::Custom, object.version, &object.namespace, &object.resource),
                object.metric.as_str(),
                Some(object.name.as_str()),
            ),
            Some(Target::External { namespace, metric }) => {
                (read(ApiGroup::External, v1beta1, namespace, metric), "", None)
            }
            Some(Target::Nodes { name }) => {
                (read(ApiGroup::Resource, v1beta1, "", "nodes"), "", name.as_deref())
            }
            Some(Target::Pods { namespace, name }) => {
                let namespace = namespace.as_deref().unwrap_or_default();
                (read(ApiGroup::Resource, v1beta1, namespace, "pods"), "", name.as_deref())
            }
            _ => return Self::Path(path.to_owned()),
        };
        let (group, version, namespace, resource) = parts;
        Self::Read {
            group,
            version,
            verb: if name.is_some() { "get" } else { "list" },
            namespace,
            resource,
            subresource: subresource.to_owned(),
            name: name.unwrap_or_default().to_owned(),
        }
    }

    fn refusal(&self, user: &str, reason: &str) -> ApiError {
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        ApiError::forbidden(match self {
            Self::Read { group, verb, namespace, resource, subresource, name, .. } => {
                let name = if name.is_empty() { String::new() } else { format!(" {name:?}") };
                let whole = match subresource.as_str() {
                    "" => resource.clone(),
                    subresource => format!("{resource}/{subresource}"),
                };
                let scope = match namespace.as_str() {
                    "" => "at the cluster scope".to_owned(),
                    namespace => format!("in the namespace {namespace:?}"),
                };
                format!(
                    "{resource}.{group}{name} is forbidden: User {user:?} cannot {verb} resource {whole:?} in API group {group:?} {scope}{reason}"
                )
            }
            Self::Path(path) => {
                format!("forbidden: User {user:?} cannot get path {path:?}{reason}")
            }
        })
    }
}

/// What a question takes in memory.
fn bytes((identity, action): &(Identity, Action)) -> usize {
    let action = match action {
        Action::Read { namespace, resource, subresource, name, .. } => {
            namespace.len() + resource.len() + subresource.len() + name.len()
        }
        Action::Path(path) => path.len(),
    };
    size_of::<(Identity, Action)>() + identity.bytes() + action
}

impl Authorizer {
    /// One that asks over this client.
    pub fn new(client: Client, options: AuthorizerOptions) -> Self {
        Self {
            client,
            allowed: cache::of_bytes(ANSWERS, options.allowed_age, |key, ()| bytes(key)),
            refused: cache::of_bytes(ANSWERS, options.refused_age, |key, reason: &String| {
                bytes(key) + reason.len()
            }),
            always_allowed: options.always_allow_paths.into(),
        }
    }

    /// Whether anybody may read a path, known or not.
    pub fn is_open(&self, path: &str) -> bool {
        self.always_allowed.iter().any(|open| match open.strip_suffix('*') {
            Some(start) => path.starts_with(start),
            None => path == open,
        })
    }

    /// Whether a user may.
    ///
    /// # Errors
    /// 403 with who may not do what, or 503 where the API server can't be asked.
    pub async fn authorize(&self, identity: &Identity, action: Action) -> Result<(), ApiError> {
        // As upstream: nothing limits the group of administrators.
        if identity.groups.iter().any(|group| group == "system:masters") {
            return Ok(());
        }
        let key = (identity.clone(), action);
        if self.allowed.get(&key).is_some() {
            return Ok(());
        }
        let refusal = match self.refused.get(&key) {
            Some(reason) => reason,
            None => match self.ask(&key.0, &key.1).await? {
                Ok(()) => {
                    self.allowed.insert(key, ());
                    return Ok(());
                }
                Err(reason) => {
                    self.refused.insert(key.clone(), reason.clone());
                    reason
                }
            },
        };
        Err(key.1.refusal(&key.0.name, &refusal))
    }

    async fn ask(
        &self,
        identity: &Identity,
        action: &Action,
    ) -> Result<Result<(), String>, ApiError> {
        let mut spec = SubjectAccessReviewSpec {
            user: Some(identity.name.clone()),
            uid: Some(identity.uid.clone()).filter(|uid| !uid.is_empty()),
            groups: Some(identity.groups.clone()),
            extra: Some(identity.extra.clone()),
            ..Default::default()
        };
        match action {
            Action::Read { group, version, verb, namespace, resource, subresource, name } => {
                let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
                spec.resource_attributes = Some(ResourceAttributes {
                    group: Some((*group).to_owned()),
                    version: Some((*version).to_owned()),
                    namespace: given(namespace),
                    resource: Some(resource.clone()),
                    name: given(name),
                    subresource: given(subresource),
                    verb: Some((*verb).to_owned()),
                    ..Default::default()
                });
            }
            Action::Path(path) => {
                spec.non_resource_attributes = Some(NonResourceAttributes {
                    path: Some(path.clone()),
                    verb: Some("get".to_owned()),
                });
            }
        }
        let review = SubjectAccessReview { spec, ..Default::default() };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let unavailable = |error: String| {
            ApiError::unavailable(format!("the request could not be authorized: {error}"))
        };
        let review = tokio::time::timeout(REVIEW, api.create(&PostParams::default(), &review))
            .await
            .map_err(|_| unavailable("the API server did not answer in time".to_owned()))?
            .map_err(|error| unavailable(error.to_string()))?;
        let status = review.status.unwrap_or_default();
        if status.allowed { Ok(Ok(())) } else { Ok(Err(status.reason.unwrap_or_default())) }
    }
}
