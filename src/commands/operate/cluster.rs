//! The cluster of the operators' commands.

use super::super::story::plain;
use super::error::OperateError;
use crate::clock::Clock;
use crate::config::{ClusterFlags, ObjectFlags};
use crate::connect::{self, AsKubectl, ConnectError};
use crate::crd::Autoscaler;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};

/// The cluster of the flags.
pub struct Cluster {
    /// Its client.
    pub client: Client,
    /// The namespace of the context.
    pub namespace: String,
    /// Which one it is, in messages: `context prod`.
    pub place: String,
    /// The clock of its API server.
    pub clock: Clock,
}

impl Cluster {
    /// The cluster of the flags.
    ///
    /// # Errors
    /// As [`ConnectError`] says.
    pub async fn of(flags: &ClusterFlags) -> Result<Self, ConnectError> {
        let clock = Clock::default();
        let (kubeconfig, context) = (flags.kubeconfig.as_deref(), flags.context.as_deref());
        let AsKubectl { client, namespace, context } =
            connect::as_kubectl(kubeconfig, context, clock.clone()).await?;
        let place = match context {
            Some(context) => format!("context {}", plain(&context)),
            None => "the cluster of this pod".to_owned(),
        };
        Ok(Self { client, namespace, place, clock })
    }

    /// The cluster of a client.
    #[cfg(test)]
    pub fn fake(client: Client) -> Self {
        let (namespace, place) = ("shop".to_owned(), "context test".to_owned());
        Self { client, namespace, place, clock: Clock::default() }
    }

    /// The user of this command, if the API server tells.
    pub async fn user_name(&self) -> Option<String> {
        let api: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let review =
            api.create(&PostParams::default(), &SelfSubjectReview::default()).await.ok()?;
        review.status?.user_info?.username
    }

    /// The Leases of Plimsoll's namespace.
    pub fn leases(&self, flags: &ClusterFlags) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &flags.plimsoll_namespace)
    }
}

/// An Autoscaler that a command changes.
pub struct Changed {
    /// Its cluster.
    pub cluster: Cluster,
    /// The Autoscalers of its namespace.
    pub autoscalers: Api<Autoscaler>,
    /// Its name in messages.
    pub object: String,
}

impl Changed {
    /// The Autoscaler of the flags.
    ///
    /// # Errors
    /// If there is no way to the cluster.
    pub async fn of(flags: &ObjectFlags) -> Result<Self, OperateError> {
        let cluster = Cluster::of(&flags.cluster).await?;
        let namespace = flags.namespace.as_deref().unwrap_or(&cluster.namespace);
        let object = plain(&format!("autoscaler {namespace}/{}", flags.name)).into_owned();
        let autoscalers = Api::namespaced(cluster.client.clone(), namespace);
        Ok(Self { cluster, autoscalers, object })
    }
}
