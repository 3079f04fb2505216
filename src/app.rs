//! Puts the parts together and runs them.

use crate::config::{Config, ServeFlags};
use crate::control::{ControlLoop, Settings};
use crate::hpa;
use crate::prometheus::{self, Client as Prometheus};
use crate::samples::Store;
use crate::serve::{
    Authenticator, Authorizer, Health, Server, ServingCertificate, Trust, follow_trust,
    keep_ca_bundles, listen, router,
};
use crate::telemetry::Metrics;
use crate::watch::{Cluster, Synced, follow_cluster};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Any reason not to start; each says what is wrong and with what.
type StartError = Box<dyn std::error::Error + Send + Sync>;

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// Where the server can't start: a flag, a file, the address or the cluster's
/// configuration is wrong.
pub async fn serve(flags: ServeFlags) -> Result<(), StartError> {
    let config = Arc::new(match &flags.config {
        Some(path) => Config::read(path)?,
        None => Config::default(),
    });
    let prometheus = Prometheus::new(prometheus::Options {
        url: flags.prometheus_url.clone(),
        timeout: flags.prometheus_timeout,
        ca_file: flags.prometheus_ca_file.clone(),
        token_file: flags.prometheus_token_file.clone(),
        max_response_bytes: flags.prometheus_max_response_bytes,
    })?;
    let certificate = match (&flags.tls_cert_file, &flags.tls_private_key_file) {
        (Some(certificate), Some(key)) => ServingCertificate::from_files(certificate, key)?,
        _ => ServingCertificate::self_made(&flags.service_name, &flags.service_namespace)?,
    };
    let self_made_ca = certificate.self_made_ca.clone();
    let client = connect(&flags).await?;
    let address = SocketAddr::new(flags.bind_address, flags.secure_port);
    let listener = listen(address, certificate).await?;
    let address = listener.address()?;

    let (cluster, synced, trust) = (Cluster::default(), Synced::default(), Trust::default());
    let metrics = Arc::new(Metrics::default());
    let samples = Store::new(prometheus, flags.sample_max_age);
    let server = router(Server {
        cluster: cluster.clone(),
        samples: samples.clone(),
        config: config.clone(),
        authenticator: Authenticator::new(client.clone(), trust.clone()),
        authorizer: Authorizer::new(client.clone()),
        health: Health { synced: synced.clone(), trust: trust.clone() },
        metrics: metrics.clone(),
    });
    let control = ControlLoop::new(
        client.clone(),
        cluster.clone(),
        synced.clone(),
        samples,
        config,
        settings(&flags),
        metrics,
    );

    tokio::spawn(follow_cluster(client.clone(), cluster, synced));
    tokio::spawn(follow_trust(client.clone(), trust));
    if let Some(ca) = self_made_ca {
        tokio::spawn(keep_ca_bundles(client, flags.service_name, flags.service_namespace, ca));
    }
    let stop = stop_signal()?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), %address, prometheus = without_password(&flags.prometheus_url), "serving");
    tokio::join!(listener.serve(server, stopped(stop.clone())), control.run(stopped(stop)));
    tracing::info!("stopped");
    Ok(())
}

/// The client of the API server. It may wait for a server that is not there yet.
async fn connect(flags: &ServeFlags) -> Result<Client, StartError> {
    let mut config = match &flags.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path)
                .map_err(|error| format!("--kubeconfig: {}: {error}", path.display()))?;
            kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .map_err(|error| format!("--kubeconfig: {}: {error}", path.display()))?
        }
        None => kube::Config::infer().await.map_err(|error| {
            format!("no way to the API server: {error}; --kubeconfig FILE names one")
        })?,
    };
    config.connect_timeout = Some(Duration::from_secs(10));
    Ok(Client::try_from(config)?)
}

fn settings(flags: &ServeFlags) -> Settings {
    let seconds = |duration: Duration| i32::try_from(duration.as_secs()).unwrap_or(i32::MAX);
    let millis = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    Settings {
        decisions: hpa::Config {
            tolerance: flags.horizontal_pod_autoscaler_tolerance,
            downscale_stabilization_seconds: seconds(
                flags.horizontal_pod_autoscaler_downscale_stabilization,
            ),
            cpu_initialization_ms: millis(
                flags.horizontal_pod_autoscaler_cpu_initialization_period,
            ),
            initial_readiness_delay_ms: millis(
                flags.horizontal_pod_autoscaler_initial_readiness_delay,
            ),
            scale_to_zero: flags.scale_to_zero,
        },
        native_hpas: flags.native_hpas,
        period: flags.horizontal_pod_autoscaler_sync_period.max(Duration::from_millis(100)),
    }
}

/// An address for a log, without its user and password.
fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => url.to_owned(),
    }
}

fn stop_signal() -> std::io::Result<watch::Receiver<bool>> {
    let (stopping, stop) = watch::channel(false);
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        let _ = stopping.send(true);
    });
    Ok(stop)
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_gets_into_a_log() {
        assert_eq!(without_password("http://a:b@host:9090/x"), "http://host:9090/x");
        assert_eq!(without_password("http://host:9090"), "http://host:9090");
    }
}
