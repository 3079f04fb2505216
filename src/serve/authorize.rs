//! Whether who asks may: the API server decides (SubjectAccessReview).

use super::identity::Identity;
use super::request::{Target, Version};
use super::{CUSTOM_METRICS, response::ApiError};
use crate::aged::Aged;
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
    answers: Arc<Aged<(Identity, Action), Result<(), String>>>,
}

/// What somebody wants to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Read a metric.
    Metric {
        /// The version asked in.
        version: &'static str,
        /// The object's namespace.
        namespace: String,
        /// The object's resource.
        resource: String,
        /// The object's name, or `*`.
        name: String,
        /// The metric.
        metric: String,
    },
    /// Read a path that is no object.
    Path(String),
}

/// How long an answer is believed, as long as upstream does.
const ANSWER_AGE: Duration = Duration::from_secs(10);
/// How many answers are kept.
const ANSWERS: usize = 16_384;
/// How long a review may take.
const REVIEW: Duration = Duration::from_secs(10);

impl Action {
    /// What a request to a path wants to do.
    pub fn of(target: Option<&Target>, path: &str) -> Self {
        match target {
            Some(Target::Object { version, namespace, resource, name, metric }) => Self::Metric {
                version: Version::as_str(*version),
                namespace: namespace.clone(),
                resource: resource.clone(),
                name: name.clone(),
                metric: metric.clone(),
            },
            _ => Self::Path(path.to_owned()),
        }
    }

    fn refusal(&self, user: &str, reason: &str) -> ApiError {
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        ApiError::forbidden(match self {
            Self::Metric { namespace, resource, name, metric, .. } => format!(
                "{resource}.{CUSTOM_METRICS} {name:?} is forbidden: User {user:?} cannot get resource \"{resource}/{metric}\" in API group {CUSTOM_METRICS:?} in the namespace {namespace:?}{reason}"
            ),
            Self::Path(path) => {
                format!("forbidden: User {user:?} cannot get path {path:?}{reason}")
            }
        })
    }
}

impl Authorizer {
    /// One that asks over this client.
    pub fn new(client: Client) -> Self {
        Self { client, answers: Arc::new(Aged::new(ANSWER_AGE, ANSWERS)) }
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
        let answer = match self.answers.get(&key) {
            Some(answer) => answer,
            None => {
                let answer = self.ask(&key.0, &key.1).await?;
                self.answers.put(key.clone(), answer.clone());
                answer
            }
        };
        answer.map_err(|reason| key.1.refusal(&key.0.name, &reason))
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
            Action::Metric { version, namespace, resource, name, metric } => {
                spec.resource_attributes = Some(ResourceAttributes {
                    group: Some(CUSTOM_METRICS.to_owned()),
                    version: Some((*version).to_owned()),
                    namespace: Some(namespace.clone()),
                    resource: Some(resource.clone()),
                    name: Some(name.clone()),
                    subresource: Some(metric.clone()),
                    verb: Some("get".to_owned()),
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
