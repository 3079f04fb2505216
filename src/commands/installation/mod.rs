//! `plimsoll check-cluster`: what is wrong with an installation. It reads only, with the rights of its user; what it
//! may not read is named.

mod apis;
mod leader;
mod metrics;
mod prometheus;
mod replicas;
mod report;
mod rights;

use super::operate::{Cluster, OperateError, screen};
use super::shown::printed;
use crate::config::{CheckClusterFlags, OutputFormat};
use report::Report;

/// Checks the installation. Returns what is printed, and whether nothing has failed.
///
/// # Errors
/// If there is no way to the cluster.
pub async fn run(flags: &CheckClusterFlags) -> Result<(String, bool), OperateError> {
    let cluster = Cluster::of(&flags.cluster.kubectl).await?;
    let report = check(&cluster, flags).await;
    let text = match flags.output {
        OutputFormat::Text => report.text(screen()),
        OutputFormat::Json | OutputFormat::Yaml => printed(&report.json(), flags.output),
    };
    Ok((text, report.is_good()))
}

async fn check(cluster: &Cluster, flags: &CheckClusterFlags) -> Report {
    let mut report = Report::default();
    let (is_reached, group) = apis::kubernetes(cluster).await;
    report.groups.push(group);
    if !is_reached {
        return report;
    }
    report.groups.push(apis::definitions(cluster).await);
    let (services, group) = apis::api_services(cluster, &flags.cluster).await;
    report.groups.push(group);
    let (replicas, group) = replicas::check(cluster, &flags.cluster, &services).await;
    report.groups.push(group);
    let account = replicas.service_account.as_deref();
    report.groups.push(rights::check(cluster, &flags.cluster, account).await);
    report.groups.push(leader::check(cluster, &flags.cluster, &replicas).await);
    report.groups.push(prometheus::check(cluster, flags, replicas.prometheus_url.as_deref()).await);
    report.groups.push(metrics::check(cluster, &services).await);
    report
}
