//! The cluster of the operators' commands.

use super::super::story::plain;
use super::error::{OperateError, error_before_write};
use crate::clock::Clock;
use crate::config::{ClusterFlags, KubectlFlags};
use crate::connect::{self, ANSWER_TIMEOUT, AsKubectl, ConnectError};
use crate::leader::NAME_LABEL;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};

/// The cluster of the flags.
#[derive(Clone)]
pub struct Cluster {
    /// Its client.
    pub client: Client,
    /// The namespace of the context.
    pub namespace: String,
    /// Which one it is, in messages: `context prod`.
    pub place: String,
    /// The same with its server, in errors.
    pub place_and_server: String,
    /// The clock of its API server.
    pub clock: Clock,
}

impl Cluster {
    /// The cluster of the flags.
    ///
    /// # Errors
    /// As [`ConnectError`] says.
    pub async fn of(flags: &KubectlFlags) -> Result<Self, ConnectError> {
        let clock = Clock::default();
        let connected = connect::as_kubectl(flags, ANSWER_TIMEOUT, clock.clone()).await?;
        let [place, place_and_server] =
            [connected.place(), connected.place_and_server()].map(|text| plain(&text).into_owned());
        let AsKubectl { client, namespace, .. } = connected;
        Ok(Self { client, namespace, place, place_and_server, clock })
    }

    /// An error of a command, with the cluster that it is of, unless it says that already.
    pub fn told(&self, error: OperateError) -> OperateError {
        match error {
            OperateError::FrozenUnheard(_) => error,
            error => OperateError::In { place: self.place_and_server.clone(), error: error.into() },
        }
    }

    /// The cluster of a client.
    #[cfg(test)]
    pub fn fake(client: Client) -> Self {
        let (namespace, place) = ("shop".to_owned(), "context test".to_owned());
        let place_and_server = format!("{place} (https://test)");
        Self { client, namespace, place, place_and_server, clock: Clock::default() }
    }

    /// The user of this command, which is about to write, if the API server tells.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn user_name(&self) -> Result<Option<String>, OperateError> {
        let api: Api<SelfSubjectReview> = Api::all(self.client.clone());
        match api.create(&PostParams::default(), &SelfSubjectReview::default()).await {
            Ok(review) => Ok(review.status.and_then(|status| status.user_info?.username)),
            Err(kube::Error::Api(_) | kube::Error::SerdeError(_)) => Ok(None),
            Err(error) => Err(error_before_write("the name of your user")(error)),
        }
    }

    /// The Leases of Plimsoll's namespace.
    pub fn leases(&self, flags: &ClusterFlags) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &flags.plimsoll_namespace)
    }

    /// The namespaces and names of Plimsoll's Leases, where the named one is none; none if they can't be listed.
    pub async fn other_leases(&self) -> Vec<(String, String)> {
        let api: Api<Lease> = Api::all(self.client.clone());
        let ours = ListParams::default().labels(&format!("{}={}", NAME_LABEL.0, NAME_LABEL.1));
        let Ok(found) = api.list(&ours).await else { return Vec::new() };
        let name = |lease: &Lease| (lease.namespace().unwrap_or_default(), lease.name_any());
        found.iter().map(name).collect()
    }
}

/// The flags that name these Leases, as a hint behind another text; empty without any.
pub fn named_leases(leases: &[(String, String)]) -> String {
    let flags = |(namespace, name): &(String, String)| {
        plain(&format!("--plimsoll-namespace={namespace} --lease={name}")).into_owned()
    };
    match leases {
        [] => String::new(),
        leases => {
            format!("; there is {}", leases.iter().map(flags).collect::<Vec<_>>().join(" and "))
        }
    }
}

/// Plimsoll's Lease in messages.
pub fn lease_name(flags: &ClusterFlags) -> String {
    format!("Lease {}/{}", flags.plimsoll_namespace, flags.lease)
}
