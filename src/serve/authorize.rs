//! Authorization by the API server (SubjectAccessReview).

use super::admission::{self, tenant};
use super::error::ApiError;
use super::options::{ListOptions, parameters, selected_name};
use super::request::{ApiGroup, RequestInfo, Version};
use super::user::UserInfo;
use crate::cache;
use crate::kube_error::worded;
use crate::telemetry::Metrics;
use axum::http::{Method, Uri};
use governor::clock::DefaultClock;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use moka::Equivalent;
use moka::future::Cache;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

type DecisionKey = (UserInfo, Attributes);

/// The same key, of what is not copied to look a decision up.
#[derive(Hash)]
struct DecisionKeyRef<'a>(&'a UserInfo, &'a Attributes);

impl Equivalent<DecisionKey> for DecisionKeyRef<'_> {
    fn equivalent(&self, (user, attributes): &DecisionKey) -> bool {
        self.0 == user && self.1 == attributes
    }
}

/// Authorizes requests, and caches the decisions of the API server. Cheap to clone.
#[derive(Clone)]
pub struct Authorizer(Arc<Inner>);

struct Inner {
    client: Client,
    metrics: Arc<Metrics>,
    allowed: Cache<DecisionKey, ()>,
    denied: Cache<DecisionKey, String>,
    always_allow_paths: Vec<String>,
    rate_limit: RateLimiter<String, HashMapStateStore<String>, DefaultClock>,
}

/// The options of authorization, named as upstream's flags.
#[derive(Clone, Debug)]
pub struct AuthorizerOptions {
    /// How long an allowed request is cached.
    pub authorized_ttl: Duration,
    /// How long a denied request is cached.
    pub unauthorized_ttl: Duration,
    /// Paths that need no authorization; a trailing `*` matches any suffix.
    pub always_allow_paths: Vec<String>,
}

/// What a request is authorized for, as upstream's `authorizer.Attributes`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attributes {
    /// A request for a resource.
    Resource {
        /// The group.
        group: &'static str,
        /// The version.
        version: &'static str,
        /// `get`, `list` or `watch`.
        verb: &'static str,
        /// The namespace; empty for the whole cluster.
        namespace: String,
        /// The resource.
        resource: String,
        /// The subresource, such as a metric; empty for the resource itself.
        subresource: String,
        /// The object's name, or `*`; empty for all.
        name: String,
    },
    /// A request for a non-resource path.
    NonResource {
        /// The path.
        path: String,
        /// The method in lower case: `get`.
        verb: String,
    },
}

/// The size of the cache of each decision, in bytes.
const DECISION_CACHE_BYTES: u64 = 8 << 20;
/// The rate limit per tenant: reviews per second, and at once. The control plane has none.
const REVIEWS_PER_SECOND: NonZeroU32 = NonZeroU32::new(100).unwrap();
const REVIEW_BURST: NonZeroU32 = NonZeroU32::new(400).unwrap();
/// The number of rate-limited tenants from which on idle ones are dropped.
const MAX_IDLE_TENANTS: usize = 4096;
/// The longest time for a review.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

impl Attributes {
    /// The attributes of a request; `info` is none if the path is not one of the metrics APIs.
    pub fn of(info: Option<&RequestInfo>, method: &Method, uri: &Uri) -> Self {
        let resource = |group: ApiGroup, version: Version, namespace: &str, resource: &str| {
            (group.as_str(), version.as_str(), namespace.to_owned(), resource.to_owned())
        };
        let v1beta1 = Version::V1Beta1;
        let (parts, subresource, name) = match info {
            // The path of a namespace's metric (`namespaces/shop/metrics/load`) is parsed as an object
            // `load` of the resource `metrics`, as in kube-apiserver.
            Some(RequestInfo::Object(object)) if object.of_namespace => {
                let parts = resource(ApiGroup::Custom, object.version, &object.name, "metrics");
                (parts, "", Some(object.metric.as_str()))
            }
            Some(RequestInfo::Object(object)) => (
                resource(ApiGroup::Custom, object.version, &object.namespace, &object.resource),
                object.metric.as_str(),
                Some(object.name.as_str()),
            ),
            Some(RequestInfo::External { namespace, metric }) => {
                (resource(ApiGroup::External, v1beta1, namespace, metric), "", None)
            }
            Some(RequestInfo::Nodes { name }) => {
                (resource(ApiGroup::Resource, v1beta1, "", "nodes"), "", name.as_deref())
            }
            Some(RequestInfo::Decisions { namespace, name }) => {
                let namespace = namespace.as_deref().unwrap_or_default();
                let of = resource(ApiGroup::Decisions, Version::V1Alpha1, namespace, "decisions");
                (of, "", name.as_deref())
            }
            Some(RequestInfo::Pods { namespace, name }) => {
                let namespace = namespace.as_deref().unwrap_or_default();
                (resource(ApiGroup::Resource, v1beta1, namespace, "pods"), "", name.as_deref())
            }
            _ => {
                let (path, verb) = (uri.path().to_owned(), method.as_str().to_ascii_lowercase());
                return Self::NonResource { path, verb };
            }
        };
        let (group, version, namespace, resource) = parts;
        // Source: `RequestInfoFactory` of k8s.io/apiserver.
        let (verb, name) = match name {
            Some(name) => ("get", name.to_owned()),
            None => {
                let options: ListOptions = parameters(uri).unwrap_or_default();
                let verb = if options.is_watch() { "watch" } else { "list" };
                let name = selected_name(options.field_selector.trim()).unwrap_or_default();
                (verb, name.to_owned())
            }
        };
        Self::Resource {
            group,
            version,
            verb,
            namespace,
            resource,
            subresource: subresource.to_owned(),
            name,
        }
    }

    /// The approximate size of its strings in memory, in bytes.
    fn bytes(&self) -> usize {
        match self {
            Self::Resource { namespace, resource, subresource, name, .. } => {
                namespace.len() + resource.len() + subresource.len() + name.len()
            }
            Self::NonResource { path, verb } => path.len() + verb.len(),
        }
    }

    /// 403, with the text of kube-apiserver.
    fn forbidden(&self, user: &str, reason: &str) -> ApiError {
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        ApiError::forbidden(match self {
            Self::Resource { group, verb, namespace, resource, subresource, name, .. } => {
                let name = if name.is_empty() { String::new() } else { format!(" {name:?}") };
                let qualified = match subresource.as_str() {
                    "" => resource.clone(),
                    subresource => format!("{resource}/{subresource}"),
                };
                let scope = match namespace.as_str() {
                    "" => "at the cluster scope".to_owned(),
                    namespace => format!("in the namespace {namespace:?}"),
                };
                format!(
                    "{resource}.{group}{name} is forbidden: User {user:?} cannot {verb} resource {qualified:?} in API group {group:?} {scope}{reason}"
                )
            }
            Self::NonResource { path, verb } => {
                format!("forbidden: User {user:?} cannot {verb} path {path:?}{reason}")
            }
        })
    }
}

/// Why a request is not authorized.
#[derive(Clone, Debug)]
enum AuthorizationError {
    /// The API server denied it, for this reason.
    Denied(String),
    /// The API server could not decide.
    Unavailable(String),
    /// The tenant's rate limit of reviews is exceeded.
    RateLimited,
}

impl Authorizer {
    /// An authorizer with this client.
    pub fn new(client: Client, options: AuthorizerOptions, metrics: Arc<Metrics>) -> Self {
        let bytes = |key: &DecisionKey| size_of::<DecisionKey>() + key.0.bytes() + key.1.bytes();
        let allowed = Cache::builder().weigher(move |key, ()| cache::weight(bytes(key)));
        let denied = Cache::builder()
            .weigher(move |key, reason: &String| cache::weight(bytes(key) + reason.len()));
        Self(Arc::new(Inner {
            client,
            metrics,
            allowed: allowed
                .max_capacity(DECISION_CACHE_BYTES)
                .time_to_live(options.authorized_ttl)
                .build(),
            denied: denied
                .max_capacity(DECISION_CACHE_BYTES)
                .time_to_live(options.unauthorized_ttl)
                .build(),
            always_allow_paths: options.always_allow_paths,
            rate_limit: RateLimiter::hashmap(
                Quota::per_second(REVIEWS_PER_SECOND).allow_burst(REVIEW_BURST),
            ),
        }))
    }

    /// Whether a path needs no authorization, nor authentication.
    pub fn is_always_allowed(&self, path: &str) -> bool {
        self.0.always_allow_paths.iter().any(|allowed| match allowed.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix),
            None => path == allowed,
        })
    }

    /// Authorizes a request of a user.
    ///
    /// # Errors
    /// 403 if the API server denies it, 429 if the tenant's rate limit is exceeded, and 503 if
    /// the API server can't decide.
    pub async fn authorize(&self, user: &UserInfo, attributes: Attributes) -> Result<(), ApiError> {
        // As upstream's privileged group.
        if user.groups.iter().any(|group| group == "system:masters") {
            return Ok(());
        }
        let inner = &*self.0;
        let asked = DecisionKeyRef(user, &attributes);
        if let Some(reason) = inner.denied.get(&asked).await {
            inner.metrics.serving.reviewed("access", "cached", Duration::ZERO);
            return Err(attributes.forbidden(&user.name, &reason));
        }
        if inner.allowed.get(&asked).await.is_some() {
            inner.metrics.serving.reviewed("access", "cached", Duration::ZERO);
            return Ok(());
        }
        let key = (user.clone(), attributes);
        // Single-flight: equal requests at the same time share one review.
        let review = inner.review(&key.0, &key.1);
        // Boxed, as the future of each request would have room for it.
        let reviewed = Box::pin(inner.allowed.try_get_with_by_ref(&key, review));
        let Err(error) = reviewed.await else {
            return Ok(());
        };
        Err(match &*error {
            AuthorizationError::Denied(reason) => {
                inner.denied.insert(key.clone(), reason.clone()).await;
                key.1.forbidden(&key.0.name, reason)
            }
            AuthorizationError::Unavailable(error) => {
                ApiError::unavailable(format!("the request could not be authorized: {error}"))
            }
            AuthorizationError::RateLimited => ApiError::too_many_requests(),
        })
    }
}

impl Inner {
    async fn review(
        &self,
        user: &UserInfo,
        attributes: &Attributes,
    ) -> Result<(), AuthorizationError> {
        if !admission::is_control_plane(user) {
            if self.rate_limit.len() >= MAX_IDLE_TENANTS {
                self.rate_limit.retain_recent();
            }
            if self.rate_limit.check_key(&tenant(user).to_owned()).is_err() {
                self.metrics.serving.rejected("access_reviews");
                return Err(AuthorizationError::RateLimited);
            }
        }
        let begun = Instant::now();
        let reviewed = self.create_review(user, attributes).await;
        let outcome = match &reviewed {
            Ok(()) => "allowed",
            Err(AuthorizationError::Denied(_)) => "denied",
            Err(_) => "failed",
        };
        self.metrics.serving.reviewed("access", outcome, begun.elapsed());
        reviewed
    }

    /// Creates a SubjectAccessReview.
    async fn create_review(
        &self,
        user: &UserInfo,
        attributes: &Attributes,
    ) -> Result<(), AuthorizationError> {
        let mut spec = SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            uid: Some(user.uid.clone()).filter(|uid| !uid.is_empty()),
            groups: Some(user.groups.clone()),
            extra: Some(user.extra.clone()),
            ..Default::default()
        };
        match attributes {
            Attributes::Resource {
                group,
                version,
                verb,
                namespace,
                resource,
                subresource,
                name,
            } => {
                let non_empty = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
                spec.resource_attributes = Some(ResourceAttributes {
                    group: Some((*group).to_owned()),
                    version: Some((*version).to_owned()),
                    namespace: non_empty(namespace),
                    resource: Some(resource.clone()),
                    name: non_empty(name),
                    subresource: non_empty(subresource),
                    verb: Some((*verb).to_owned()),
                    ..Default::default()
                });
            }
            Attributes::NonResource { path, verb } => {
                spec.non_resource_attributes = Some(NonResourceAttributes {
                    path: Some(path.clone()),
                    verb: Some(verb.clone()),
                });
            }
        }
        let review = SubjectAccessReview { spec, ..Default::default() };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let unavailable = AuthorizationError::Unavailable;
        let review =
            tokio::time::timeout(REVIEW_TIMEOUT, api.create(&PostParams::default(), &review))
                .await
                .map_err(|_| unavailable("the API server did not respond in time".to_owned()))?
                .map_err(|error| unavailable(worded(&error)))?;
        let status = review.status.unwrap_or_default();
        match status.allowed {
            true => Ok(()),
            false => Err(AuthorizationError::Denied(status.reason.unwrap_or_default())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(method: &Method, uri: &str) -> Attributes {
        let uri: Uri = uri.parse().unwrap();
        Attributes::of(RequestInfo::parse(uri.path()).ok().as_ref(), method, &uri)
    }

    #[test]
    fn the_attributes_of_a_request_are_those_of_upstream() {
        let pods = "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods";
        for (uri, verb, name) in [
            (pods.to_owned(), "list", ""),
            (format!("{pods}?watch=true"), "watch", ""),
            (format!("{pods}?watch=False"), "list", ""),
            (format!("{pods}?watch"), "watch", ""),
            (format!("{pods}?fieldSelector=metadata.name%3Dweb-0"), "list", "web-0"),
            (format!("{pods}/web-0?watch=1"), "get", "web-0"),
        ] {
            let Attributes::Resource { verb: of_uri, name: named, .. } =
                attributes(&Method::GET, &uri)
            else {
                panic!("{uri} is a resource")
            };
            assert_eq!((of_uri, named.as_str()), (verb, name), "{uri}");
        }
        let head = Attributes::NonResource { path: "/metrics".to_owned(), verb: "head".to_owned() };
        assert_eq!(attributes(&Method::HEAD, "/metrics"), head);
    }
}
