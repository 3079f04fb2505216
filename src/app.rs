//! Puts the parts together and runs them.

use crate::clock::Clock;
use crate::config::{Config, LiveConfig, ServeFlags, TlsVersion};
use crate::connect::{self, without_password};
use crate::control::{ControlLoop, Settings};
use crate::hpa;
use crate::leader::{ElectionSettings, Leader};
use crate::live::LiveStatus;
use crate::rules::{self, Rules};
use crate::samples::Store;
use crate::serve::{
    Authenticator, Authorizer, AuthorizerOptions, Health, OwnTrust, Server, ServingCertificate,
    Slots, TlsError, TlsOptions, Trust, follow_trust, keep_ca_bundles, listen, router,
};
use crate::telemetry::Metrics;
use crate::watch::{Cluster, Resources, Synced, follow_cluster};
use std::net::SocketAddr;
use std::path::Path;
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
    let config = match &flags.config {
        Some(path) => Config::read(path)?,
        None => Config::default(),
    };
    if flags.series_max_age() < flags.metrics_relist_interval && !config.rules.custom.is_empty() {
        return Err("--metrics-max-age must not be less than --metrics-relist-interval".into());
    }
    let metrics = Arc::new(Metrics::default());
    let prometheus =
        connect::prometheus(&flags.prometheus_url, &flags.prometheus)?.counted(metrics.clone());
    let reached = prometheus.clone();
    let certificate = serving_certificate(&flags)?;
    let self_made_ca = certificate.self_made_ca.clone();
    let own_trust = own_trust(&flags)?;
    let clock = Clock::default();
    let connect = async |flag, path: Option<&Path>, clock: Clock| {
        connect::api_server(&flags, flag, path, metrics.clone(), clock).await
    };
    let client = connect("--kubeconfig", flags.kubeconfig.as_deref(), clock.clone()).await?;
    let other_client = async |flag, path: &Option<std::path::PathBuf>| match path {
        // Another server's clock may be another.
        Some(path) => connect(flag, Some(path), Clock::default()).await,
        None => Ok(client.clone()),
    };
    let authentication =
        other_client("--authentication-kubeconfig", &flags.authentication_kubeconfig).await?;
    let authorization =
        other_client("--authorization-kubeconfig", &flags.authorization_kubeconfig).await?;
    let address = SocketAddr::new(flags.bind_address, flags.secure_port);
    let tls = TlsOptions {
        tls13_only: flags.tls_min_version == TlsVersion::VersionTLS13,
        http1_only: flags.disable_http2,
    };
    let listener =
        listen(address, certificate, tls, flags.http2_max_streams_per_connection).await?;
    let address = listener.address()?;

    let (cluster, synced, trust) = (Cluster::default(), Synced::default(), Trust::default());
    if flags.authentication_skip_lookup || flags.authentication_tolerate_lookup_failure {
        trust.set(own_trust.bundle(None));
    }
    let samples = Store::new(prometheus.clone(), flags.sample_max_age);
    let resources = Resources::new(client.clone());
    let rules = Rules::new(
        config.rules.clone(),
        prometheus,
        samples.clone(),
        client.clone(),
        cluster.clone(),
        resources.clone(),
        rules::Settings {
            interval: flags.metrics_relist_interval,
            max_age: flags.series_max_age(),
            sample_max_age: flags.sample_max_age,
        },
    );
    let config = LiveConfig::new(config);
    let live = LiveStatus::default();
    let health = Health {
        synced: synced.clone(),
        trust: trust.clone(),
        config: config.clone(),
        rules: rules.clone(),
    };
    let server = router(Server {
        cluster: cluster.clone(),
        samples: samples.clone(),
        config: config.clone(),
        rules: rules.clone(),
        groups: flags.metrics_apis.clone(),
        authenticator: Authenticator::new(
            authentication.clone(),
            trust.clone(),
            flags.authentication_token_webhook_cache_ttl,
        ),
        authorizer: Authorizer::new(
            authorization,
            AuthorizerOptions {
                allowed_age: flags.authorization_webhook_cache_authorized_ttl,
                refused_age: flags.authorization_webhook_cache_unauthorized_ttl,
                always_allow_paths: flags.authorization_always_allow_paths.clone(),
            },
        ),
        health,
        metrics: metrics.clone(),
        slots: Slots::default(),
        live: live.clone(),
    });
    let leader = Leader::new(client.clone(), election(&flags)?, clock.clone(), metrics.clone());
    let control = ControlLoop::new(
        client.clone(),
        leader.clone(),
        cluster.clone(),
        synced.clone(),
        samples,
        config.clone(),
        rules.clone(),
        settings(&flags),
        metrics.clone(),
        live,
        clock,
    );

    tokio::spawn(follow_cluster(client.clone(), cluster, synced));
    if !flags.authentication_skip_lookup {
        tokio::spawn(follow_trust(authentication, trust, own_trust));
    }
    tokio::spawn(follow_rules(resources, rules.clone(), flags.discovery_interval));
    if let Some(path) = flags.config.clone() {
        let changed = move |taken: Result<&Config, &_>| {
            metrics.reloaded(taken.is_ok());
            if let Ok(config) = taken {
                rules.replace(config.rules.clone());
            }
        };
        tokio::spawn(config.follow(path, changed));
    }
    if let Some(ca) = self_made_ca {
        tokio::spawn(keep_ca_bundles(
            client,
            flags.service_name.clone(),
            flags.service_namespace(),
            ca,
        ));
    }
    let stop = stop_signal()?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), %address, prometheus = without_password(&flags.prometheus_url), "serving");
    let (ended, end) = watch::channel(false);
    // The Lease is given back when the last decision is carried out.
    let decide = async {
        control.run(stopped(stop.clone())).await;
        let _ = ended.send(true);
    };
    tokio::join!(
        listener.serve(server, stopped(stop.clone())),
        decide,
        leader.run(&reached, stopped(end)),
    );
    tracing::info!("stopped");
    Ok(())
}

/// Rules speak of the cluster's resources, which are read first.
async fn follow_rules(resources: Resources, rules: Rules, interval: Duration) {
    let read = resources.refresh().await;
    tokio::join!(resources.follow(interval, read), rules.follow());
}

/// The certificate of the flags, or of `--cert-dir`, or a self-made one.
fn serving_certificate(flags: &ServeFlags) -> Result<ServingCertificate, TlsError> {
    if let (Some(certificate), Some(key)) = (&flags.tls_cert_file, &flags.tls_private_key_file) {
        return ServingCertificate::from_files(certificate, key);
    }
    let files = ["apiserver.crt", "apiserver.key"].map(|name| flags.cert_dir.join(name));
    if files.iter().all(|file| file.exists()) {
        return ServingCertificate::from_files(&files[0], &files[1]);
    }
    ServingCertificate::self_made(&flags.service_name, &flags.service_namespace())
}

fn own_trust(flags: &ServeFlags) -> Result<OwnTrust, StartError> {
    let read = |flag: &str, path: &Option<std::path::PathBuf>| -> Result<Option<String>, String> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|e| format!("{flag}: {}: {e}", path.display()))
        };
        path.as_deref().map(read).transpose()
    };
    let given = |names: &[String]| -> Vec<String> {
        names.iter().filter(|name| !name.is_empty()).cloned().collect()
    };
    Ok(OwnTrust {
        client_ca: read("--client-ca-file", &flags.client_ca_file)?,
        front_proxy_ca: read(
            "--requestheader-client-ca-file",
            &flags.requestheader_client_ca_file,
        )?,
        allowed_names: given(&flags.requestheader_allowed_names),
        username_headers: given(&flags.requestheader_username_headers),
        group_headers: given(&flags.requestheader_group_headers),
        extra_header_prefixes: given(&flags.requestheader_extra_headers_prefix),
    })
}

fn election(flags: &ServeFlags) -> Result<ElectionSettings, StartError> {
    let lease = flags.leader_elect_lease_duration;
    let (renew_deadline, retry) =
        (flags.leader_elect_renew_deadline, flags.leader_elect_retry_period);
    if lease.subsec_nanos() != 0 || lease <= renew_deadline || renew_deadline < 2 * retry {
        return Err("--leader-elect-lease-duration must be whole seconds and more than \
                    --leader-elect-renew-deadline, and that at least twice \
                    --leader-elect-retry-period"
            .into());
    }
    let namespace = flags.leader_elect_resource_namespace.as_ref();
    Ok(ElectionSettings {
        elect: flags.leader_elect,
        namespace: namespace.cloned().unwrap_or_else(|| flags.service_namespace()),
        name: flags.leader_elect_resource_name.clone(),
        identity: ElectionSettings::identity(),
        lease,
        renew_deadline,
        retry,
    })
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
        status_interval: flags.status_interval,
        memory_interval: flags.memory_interval,
        // A query may wait for its turn, and be asked twice where it is too large.
        decision_timeout: (flags.prometheus.prometheus_timeout * 3).max(Duration::from_secs(30)),
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
