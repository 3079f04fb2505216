//! Whether who asks may: the API server decides (SubjectAccessReview).

use super::admission::{self, tenant};
use super::identity::Identity;
use super::parameters::{Listing, selected_name};
use super::request::{ApiGroup, Target, Version};
use super::response::ApiError;
use crate::cache;
use crate::telemetry::Metrics;
use axum::extract::Query;
use axum::http::{Method, Uri};
use governor::clock::DefaultClock;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use moka::future::Cache;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Key = (Identity, Action);

/// Asks the API server what users may do, and remembers it for a short time.
#[derive(Clone)]
pub struct Authorizer(Arc<Inner>);

struct Inner {
    client: Client,
    metrics: Arc<Metrics>,
    allowed: Cache<Key, ()>,
    refused: Cache<Key, String>,
    always_allowed: Vec<String>,
    rate: RateLimiter<String, HashMapStateStore<String>, DefaultClock>,
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
        /// `get`, `list` or `watch`.
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
    Path {
        /// The path.
        path: String,
        /// The method, in small letters: `get`.
        verb: String,
    },
}

/// How many bytes of answers are kept of each kind.
const ANSWERS: u64 = 8 << 20;
/// How many reviews a tenant may bring on each second, and at once; the control plane
/// as many as it needs.
const RATE: NonZeroU32 = NonZeroU32::new(100).unwrap();
const BURST: NonZeroU32 = NonZeroU32::new(400).unwrap();
/// Of how many tenants the rate is kept before those that asked long ago are forgotten.
const TENANTS: usize = 4096;
/// How long a review may take.
const REVIEW: Duration = Duration::from_secs(10);

impl Action {
    /// What a request wants to do.
    pub fn of(target: Option<&Target>, method: &Method, uri: &Uri) -> Self {
        let listing = Query::<Listing>::try_from_uri(uri).map(|Query(listing)| listing);
        let listing = listing.unwrap_or_default();
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
            _ => {
                let (path, verb) = (uri.path().to_owned(), method.as_str().to_ascii_lowercase());
                return Self::Path { path, verb };
            }
        };
        let (group, version, namespace, resource) = parts;
        // Source: `RequestInfoFactory` of k8s.io/apiserver.
        let verb = match name {
            Some(_) => "get",
            None if listing.watches() => "watch",
            None => "list",
        };
        let name = name.or_else(|| selected_name(listing.field_selector.trim()));
        Self::Read {
            group,
            version,
            verb,
            namespace,
            resource,
            subresource: subresource.to_owned(),
            name: name.unwrap_or_default().to_owned(),
        }
    }

    /// About how many bytes it takes to keep.
    fn bytes(&self) -> usize {
        match self {
            Self::Read { namespace, resource, subresource, name, .. } => {
                namespace.len() + resource.len() + subresource.len() + name.len()
            }
            Self::Path { path, verb } => path.len() + verb.len(),
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
            Self::Path { path, verb } => {
                format!("forbidden: User {user:?} cannot {verb} path {path:?}{reason}")
            }
        })
    }
}

/// Why there is no leave.
#[derive(Clone, Debug)]
enum No {
    /// The API server says so, and why.
    Refused(String),
    /// It can't be asked.
    Unavailable(String),
    /// Too much was asked lately.
    TooMany,
}

impl Authorizer {
    /// One that asks over this client.
    pub fn new(client: Client, options: AuthorizerOptions, metrics: Arc<Metrics>) -> Self {
        let bytes = |key: &Key| size_of::<Key>() + key.0.bytes() + key.1.bytes();
        let allowed = Cache::builder().weigher(move |key, ()| cache::weight(bytes(key)));
        let refused = Cache::builder()
            .weigher(move |key, reason: &String| cache::weight(bytes(key) + reason.len()));
        Self(Arc::new(Inner {
            client,
            metrics,
            allowed: allowed.max_capacity(ANSWERS).time_to_live(options.allowed_age).build(),
            refused: refused.max_capacity(ANSWERS).time_to_live(options.refused_age).build(),
            always_allowed: options.always_allow_paths,
            rate: RateLimiter::hashmap(Quota::per_second(RATE).allow_burst(BURST)),
        }))
    }

    /// Whether anybody may read a path, known or not.
    pub fn is_open(&self, path: &str) -> bool {
        self.0.always_allowed.iter().any(|open| match open.strip_suffix('*') {
            Some(start) => path.starts_with(start),
            None => path == open,
        })
    }

    /// Whether a user may.
    ///
    /// # Errors
    /// 403 with who may not do what, 429 where too much was asked lately, or 503 where
    /// the API server can't be asked.
    pub async fn authorize(&self, identity: &Identity, action: Action) -> Result<(), ApiError> {
        // As upstream: nothing limits the group of administrators.
        if identity.groups.iter().any(|group| group == "system:masters") {
            return Ok(());
        }
        let (inner, key) = (&*self.0, (identity.clone(), action));
        if let Some(reason) = inner.refused.get(&key).await {
            inner.metrics.serving.reviewed("access", "cached", Duration::ZERO);
            return Err(key.1.refusal(&key.0.name, &reason));
        }
        if inner.allowed.get(&key).await.is_some() {
            inner.metrics.serving.reviewed("access", "cached", Duration::ZERO);
            return Ok(());
        }
        // Those who ask the same at the same time wait for one review.
        let review = inner.review(&key.0, &key.1);
        let Err(no) = inner.allowed.try_get_with_by_ref(&key, review).await else {
            return Ok(());
        };
        Err(match &*no {
            No::Refused(reason) => {
                inner.refused.insert(key.clone(), reason.clone()).await;
                key.1.refusal(&key.0.name, reason)
            }
            No::Unavailable(error) => {
                ApiError::unavailable(format!("the request could not be authorized: {error}"))
            }
            No::TooMany => ApiError::too_many(),
        })
    }
}

impl Inner {
    async fn review(&self, identity: &Identity, action: &Action) -> Result<(), No> {
        if !admission::is_control_plane(identity) {
            if self.rate.len() >= TENANTS {
                self.rate.retain_recent();
            }
            if self.rate.check_key(&tenant(identity).to_owned()).is_err() {
                self.metrics.serving.rejected("access_reviews");
                return Err(No::TooMany);
            }
        }
        let begun = Instant::now();
        let asked = self.ask(identity, action).await;
        let outcome = match &asked {
            Ok(()) => "allowed",
            Err(No::Refused(_)) => "denied",
            Err(_) => "failed",
        };
        self.metrics.serving.reviewed("access", outcome, begun.elapsed());
        asked
    }

    async fn ask(&self, identity: &Identity, action: &Action) -> Result<(), No> {
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
            Action::Path { path, verb } => {
                spec.non_resource_attributes = Some(NonResourceAttributes {
                    path: Some(path.clone()),
                    verb: Some(verb.clone()),
                });
            }
        }
        let review = SubjectAccessReview { spec, ..Default::default() };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let unavailable = No::Unavailable;
        let review = tokio::time::timeout(REVIEW, api.create(&PostParams::default(), &review))
            .await
            .map_err(|_| unavailable("the API server did not answer in time".to_owned()))?
            .map_err(|error| unavailable(error.to_string()))?;
        let status = review.status.unwrap_or_default();
        if status.allowed { Ok(()) } else { Err(No::Refused(status.reason.unwrap_or_default())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(method: &Method, uri: &str) -> Action {
        let uri: Uri = uri.parse().unwrap();
        Action::of(Target::parse(uri.path()).ok().as_ref(), method, &uri)
    }

    #[test]
    fn what_is_asked_of_the_api_server_is_what_upstream_asks() {
        let pods = "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods";
        for (uri, verb, name) in [
            (pods.to_owned(), "list", ""),
            (format!("{pods}?watch=true"), "watch", ""),
            (format!("{pods}?watch=False"), "list", ""),
            (format!("{pods}?watch"), "watch", ""),
            (format!("{pods}?fieldSelector=metadata.name%3Dweb-0"), "list", "web-0"),
            (format!("{pods}/web-0?watch=1"), "get", "web-0"),
        ] {
            let Action::Read { verb: asked, name: named, .. } = action(&Method::GET, &uri) else {
                panic!("{uri} is an object")
            };
            assert_eq!((asked, named.as_str()), (verb, name), "{uri}");
        }
        let head = Action::Path { path: "/metrics".to_owned(), verb: "head".to_owned() };
        assert_eq!(action(&Method::HEAD, "/metrics"), head);
    }
}
