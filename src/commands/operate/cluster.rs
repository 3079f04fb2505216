//! The clients of the operators' commands.

use super::error::OperateError;
use crate::clock::Clock;
use crate::config::{ClusterFlags, ObjectFlags};
use crate::connect::{self, ConnectError};
use crate::crd::Autoscaler;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};

/// The client of the flags' cluster, the namespace of its context, and the clock of its API server.
pub async fn client(flags: &ClusterFlags) -> Result<(Client, String, Clock), ConnectError> {
    let clock = Clock::default();
    let (kubeconfig, context) = (flags.kubeconfig.as_deref(), flags.context.as_deref());
    let (client, namespace) = connect::as_kubectl(kubeconfig, context, clock.clone()).await?;
    Ok((client, namespace, clock))
}

/// The user of this command, if the API server tells.
pub async fn user_name(client: &Client) -> Option<String> {
    let api: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = api.create(&PostParams::default(), &SelfSubjectReview::default()).await.ok()?;
    review.status?.user_info?.username
}

/// The Leases of Plimsoll's namespace.
pub fn leases(client: &Client, flags: &ClusterFlags) -> Api<Lease> {
    Api::namespaced(client.clone(), &flags.plimsoll_namespace)
}

/// The Autoscalers of a namespace, the name of the flags' one in messages, and the clock of the API
/// server.
pub async fn autoscalers(
    flags: &ObjectFlags,
) -> Result<(Api<Autoscaler>, String, Clock), OperateError> {
    let (client, namespace, clock) = client(&flags.cluster).await?;
    let namespace = flags.namespace.clone().unwrap_or(namespace);
    let object = format!("autoscaler {namespace}/{}", flags.name);
    Ok((Api::namespaced(client, &namespace), object, clock))
}
