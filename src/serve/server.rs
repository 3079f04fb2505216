//! The state that the handlers of requests share.

use super::authenticate::Authenticator;
use super::authorize::Authorizer;
use super::decisions::Decisions;
use super::discovery::ServedResource;
use super::forward::ForwardTargets;
use super::health::Health;
use super::known_requests::KnownRequests;
use super::request::ApiGroup;
use crate::live::LiveStatus;
use crate::promql::query::PodQueries;
use crate::reload::Reloadable;
use crate::rules::Rules;
use crate::samples::Store;
use crate::telemetry::Metrics;
use crate::watch::Cluster;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The state that the handlers of requests share.
#[derive(Clone)]
pub struct Server {
    /// The state of the cluster.
    pub cluster: Cluster,
    /// The samples of metrics.
    pub samples: Store,
    /// The queries of pod metrics.
    pub pod_queries: Reloadable<PodQueries>,
    /// The adapters that requests for unknown metrics are forwarded to.
    pub forward: Reloadable<ForwardTargets>,
    /// The metrics of rules.
    pub rules: Rules,
    /// The requests for metrics of objects that were made before.
    pub known_requests: KnownRequests,
    /// The API groups that are served.
    pub groups: Vec<ApiGroup>,
    /// Authenticates requests.
    pub authenticator: Authenticator,
    /// Authorizes requests.
    pub authorizer: Authorizer,
    /// The checks of `/readyz` and `/livez`.
    pub health: Health,
    /// The decisions that it has made.
    pub decisions: Decisions,
    /// Plimsoll's own metrics.
    pub metrics: Arc<Metrics>,
    /// The live status of each autoscaler.
    pub live: LiveStatus,
}

impl Server {
    /// Whether an API group is served. A registered group must serve discovery, with or without
    /// rules: discovery that fails blocks the deletion of namespaces in the whole cluster.
    pub fn serves(&self, group: ApiGroup) -> bool {
        self.groups.contains(&group)
    }

    /// The API groups that are served, in their order.
    pub fn served_groups(&self) -> Vec<ApiGroup> {
        ApiGroup::ALL.into_iter().filter(|group| self.serves(*group)).collect()
    }

    /// The resources of a group, with those of the adapter that it forwards to.
    pub async fn served_resources(&self, group: ApiGroup) -> BTreeSet<ServedResource> {
        let mut resources = self.local_resources(group);
        if let Some(target) = self.forward.load().get(&group) {
            resources.extend(target.served_resources(group).await);
        }
        resources
    }

    /// The resources of a group that Plimsoll itself serves.
    fn local_resources(&self, group: ApiGroup) -> BTreeSet<ServedResource> {
        match group {
            ApiGroup::Custom => {
                // Generated names are not listed: each has a namespace and the name of an
                // autoscaler in it, which every user may read here, and there may be ten
                // thousand. Their clients know the names.
                self.rules.read(|registry| {
                    let metric = |metric: &crate::rules::ObjectMetric| {
                        let resource = metric.resource.to_string();
                        let name = metric.metric.clone();
                        ServedResource::object_metric(resource, metric.namespaced, name)
                    };
                    registry.custom_metrics().map(|(key, _)| metric(key)).collect()
                })
            }
            ApiGroup::External => self.rules.read(|registry| {
                let names = registry.external_metrics().map(|(metric, _)| metric.clone());
                names.map(ServedResource::external_metric).collect()
            }),
            ApiGroup::Decisions => match self.decisions.are_kept() {
                true => BTreeSet::from([ServedResource::decisions()]),
                false => BTreeSet::new(),
            },
            ApiGroup::Resource => match self.rules.rules().resource {
                Some(_) => BTreeSet::from(ServedResource::resource_metrics()),
                None => BTreeSet::new(),
            },
        }
    }
}
