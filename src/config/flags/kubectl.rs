//! The flags with which a command reaches the API server, as kubectl has them.

use super::parse::request_timeout;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// The heading of these flags in the help.
pub const CLUSTER: &str = "Cluster";

/// How a command reaches the API server, and as whom.
#[derive(Clone, Debug, Default, Args)]
pub struct KubectlFlags {
    /// Path to the kubeconfig file. If not set, $KUBECONFIG, ~/.kube/config, or the service account of a pod.
    #[arg(long, value_name = "FILE", help_heading = CLUSTER)]
    pub kubeconfig: Option<PathBuf>,

    /// Name of the kubeconfig context.
    #[arg(long, value_name = "NAME", help_heading = CLUSTER)]
    pub context: Option<String>,

    /// Username to impersonate for the operation.
    #[arg(long = "as", value_name = "USER", help_heading = CLUSTER)]
    pub impersonate: Option<String>,

    /// Group to impersonate for the operation. May be repeated.
    #[arg(long = "as-group", value_name = "GROUP", requires = "impersonate", help_heading = CLUSTER)]
    pub impersonate_groups: Vec<String>,

    /// How long to wait for a response of the API server, such as 5s or 2m. 0 means no timeout. Default: 15s.
    #[arg(long, value_name = "DURATION", value_parser = request_timeout, help_heading = CLUSTER)]
    pub request_timeout: Option<Duration>,
}

impl KubectlFlags {
    /// Whether a flag names the cluster, or the user with whose rights it is read.
    pub fn is_given(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some() || self.impersonate.is_some()
    }
}
