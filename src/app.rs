//! Puts the parts together and runs them.

use crate::clock::Clock;
use crate::config::{Config, LiveConfig, ServeFlags, TlsVersion};
use crate::connect::{self, redact_url};
use crate::control::{ControlLoop, ControllerSettings, Dependencies};
use crate::hpa;
use crate::leader::{ElectionSettings, LeaderElector};
use crate::live::LiveStatus;
use crate::prometheus;
use crate::rules::{self, Rules};
use crate::samples::Store;
use crate::serve::{
    Authenticator, Authorizer, AuthorizerOptions, CaBundleStatus, Health, Listener, Server,
    ServingCa, ServingCertificate, TlsError, TlsOptions, TokenAuthenticator, TrustOptions,
    TrustStore, listen, router, run_ca_injector, run_trust_reflector,
};
use crate::supervise::{Heartbeat, TaskEnded, Tasks};
use crate::telemetry::Metrics;
use crate::watch::{Cluster, Resources, WatchStatuses, run_reflectors};
use axum::Router;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// An error that prevents the start. It says what is wrong and with what.
type StartError = Box<dyn std::error::Error + Send + Sync>;

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// If the server can't start: a flag, a file, the address or the cluster's
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
    let certificate = serving_certificate(&flags)?;
    let self_signed_ca = certificate.self_signed_ca.clone();
    let trust_options = trust_options(&flags);
    let ca_files = trust_options.read()?;
    let clients = Clients::connect(&flags, prometheus, &metrics).await?;
    let listener = bind(&flags, certificate).await?.counted(&metrics.serving);
    let shared = Shared::new(&flags, &config, &clients, metrics.clone());
    let initial_bundle = trust_options.bundle(None, &ca_files)?;
    if flags.authentication_skip_lookup || flags.authentication_tolerate_lookup_failure {
        shared.trust.set(initial_bundle);
    }
    let election = election(&flags)?;
    let leader =
        LeaderElector::new(clients.leases.clone(), election, clients.clock.clone(), metrics);
    let server = server(&flags, &clients, &shared);
    let control = control_loop(&flags, &clients, leader.clone(), &shared);

    let mut tasks = Tasks::default();
    let lookup = (!flags.authentication_skip_lookup).then(|| clients.authentication.clone());
    let trust = run_trust_reflector(lookup, shared.trust.clone(), trust_options, ca_files);
    tasks.spawn("trust", trust);
    tasks.spawn("certificate", listener.run_certificate_reloader(&shared.metrics.serving));
    if let Some(ca) = self_signed_ca {
        let (service, namespace) = (flags.service_name.clone(), flags.service_namespace());
        let ca = ServingCa { service, namespace, ca };
        let (status, metrics) = (shared.ca_bundles.clone(), shared.metrics.clone());
        tasks.spawn("caBundles", run_ca_injector(clients.api.clone(), ca, status, metrics));
    }
    shared.spawn(&flags, &clients, &mut tasks);
    let (failing, stop) = Stop::new(stop_signal()?);
    let address = listener.address()?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), %address, prometheus = redact_url(&flags.prometheus_url), "Started serving");
    let prometheus = clients.prometheus;
    let parts = spawn_parts(
        listener.serve(server, stop.clone().comes()),
        control.run(stop.clone().comes()),
        |end| async move { leader.run(&prometheus, stopped(end)).await },
    );
    Ok(run_until_stopped(stop.signal, failing, tasks, parts).await?)
}

/// Starts the tasks that end in order. They are separate, so that none delays another. The election is
/// given the end of the control loop: the Lease is released after the last evaluation.
fn spawn_parts<E: Future<Output = ()> + Send + 'static>(
    api: impl Future<Output = ()> + Send + 'static,
    control: impl Future<Output = ()> + Send + 'static,
    election: impl FnOnce(watch::Receiver<bool>) -> E,
) -> Tasks {
    let mut parts = Tasks::default();
    let (ended, end) = watch::channel(false);
    parts.spawn("API", api);
    parts.spawn("control loop", async move {
        control.await;
        let _ = ended.send(true);
    });
    parts.spawn("election", election(end));
    parts
}

/// The clients of Prometheus and of kube-apiserver.
struct Clients {
    prometheus: prometheus::Client,
    api: kube::Client,
    /// The clock of its server.
    clock: Clock,
    /// Without the rate limit: a delayed renewal loses the Lease.
    leases: kube::Client,
    authentication: kube::Client,
    authorization: kube::Client,
}

impl Clients {
    async fn connect(
        flags: &ServeFlags,
        prometheus: prometheus::Client,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, StartError> {
        let (clock, qps) = (Clock::default(), flags.client_qps);
        let connect = async |flag, path: Option<&Path>, clock: Clock, qps| {
            connect::api_server(flags, flag, path, metrics.clone(), clock, qps).await
        };
        let kubeconfig = flags.kubeconfig.as_deref();
        let api = connect("--kubeconfig", kubeconfig, clock.clone(), qps).await?;
        let leases = connect("--kubeconfig", kubeconfig, clock.clone(), None).await?;
        let other = async |flag, path: &Option<PathBuf>| match path {
            // The clock of another server may differ.
            Some(path) => connect(flag, Some(path), Clock::default(), qps).await,
            None => Ok(api.clone()),
        };
        let authentication =
            other("--authentication-kubeconfig", &flags.authentication_kubeconfig).await?;
        let authorization =
            other("--authorization-kubeconfig", &flags.authorization_kubeconfig).await?;
        Ok(Self { prometheus, clock, leases, authentication, authorization, api })
    }
}

async fn bind(flags: &ServeFlags, certificate: ServingCertificate) -> Result<Listener, StartError> {
    let address = SocketAddr::new(flags.bind_address, flags.secure_port);
    let tls = TlsOptions {
        tls13_only: flags.tls_min_version == TlsVersion::VersionTLS13,
        http1_only: flags.disable_http2,
    };
    Ok(listen(address, certificate, tls, flags.http2_max_streams_per_connection).await?)
}

/// What the parts share, each of which keeps clones.
struct Shared {
    cluster: Cluster,
    synced: WatchStatuses,
    trust: TrustStore,
    ca_bundles: CaBundleStatus,
    heartbeat: Heartbeat,
    samples: Store,
    resources: Resources,
    rules: Rules,
    config: LiveConfig,
    live: LiveStatus,
    metrics: Arc<Metrics>,
}

impl Shared {
    fn new(flags: &ServeFlags, config: &Config, clients: &Clients, metrics: Arc<Metrics>) -> Self {
        let (cluster, synced) = (Cluster::default(), WatchStatuses::default());
        metrics.show(synced.clone());
        let prometheus = clients.prometheus.clone();
        let samples = Store::new(prometheus.clone(), flags.sample_max_age);
        let resources = Resources::new(clients.api.clone());
        let rules = Rules::new(
            config.rules.clone(),
            rules::ListingSettings {
                interval: flags.metrics_relist_interval,
                max_age: flags.series_max_age(),
                sample_max_age: flags.sample_max_age,
            },
            rules::Dependencies {
                prometheus,
                samples: samples.clone(),
                client: clients.api.clone(),
                cluster: cluster.clone(),
                resources: resources.clone(),
                clock: clients.clock.clone(),
            },
        );
        Self {
            cluster,
            synced,
            trust: TrustStore::default(),
            ca_bundles: CaBundleStatus::default(),
            heartbeat: Heartbeat::default(),
            samples,
            resources,
            rules,
            config: LiveConfig::new(config),
            live: LiveStatus::default(),
            metrics,
        }
    }

    /// Starts what keeps it up to date.
    fn spawn(self, flags: &ServeFlags, clients: &Clients, tasks: &mut Tasks) {
        let Self { cluster, synced, resources, rules, config, metrics, .. } = self;
        tasks.spawn("watches", run_reflectors(clients.api.clone(), cluster, synced));
        let followed = follow_rules(resources, rules.clone(), flags.discovery_interval);
        tasks.spawn("rules", followed);
        if let Some(path) = flags.config.clone() {
            let changed = move |taken: Result<&Config, &_>| {
                metrics.reloaded(taken.is_ok());
                if let Ok(config) = taken {
                    rules.replace(config.rules.clone());
                }
            };
            tasks.spawn("configuration", config.run_reloader(path, changed));
        }
    }
}

fn server(flags: &ServeFlags, clients: &Clients, shared: &Shared) -> Router {
    let Shared { cluster, trust, samples, rules, config, metrics, .. } = shared;
    router(Server {
        cluster: cluster.clone(),
        samples: samples.clone(),
        pod_queries: config.pod_queries.clone(),
        forward: config.forward.clone(),
        rules: rules.clone(),
        groups: flags.metrics_apis.clone(),
        authenticator: Authenticator::new(
            trust.clone(),
            TokenAuthenticator::new(
                clients.authentication.clone(),
                flags.authentication_token_webhook_cache_ttl,
                metrics.clone(),
            ),
        ),
        authorizer: Authorizer::new(
            clients.authorization.clone(),
            AuthorizerOptions {
                authorized_ttl: flags.authorization_webhook_cache_authorized_ttl,
                unauthorized_ttl: flags.authorization_webhook_cache_unauthorized_ttl,
                always_allow_paths: flags.authorization_always_allow_paths.clone(),
            },
            metrics.clone(),
        ),
        health: Health {
            synced: shared.synced.clone(),
            trust: trust.clone(),
            ca_bundles: shared.ca_bundles.clone(),
            heartbeat: shared.heartbeat.clone(),
            config_error: config.error.clone(),
            rules: rules.clone(),
        },
        metrics: metrics.clone(),
        live: shared.live.clone(),
    })
}

fn control_loop(
    flags: &ServeFlags,
    clients: &Clients,
    leader: LeaderElector,
    shared: &Shared,
) -> ControlLoop {
    ControlLoop::new(Dependencies {
        client: clients.api.clone(),
        leader,
        cluster: shared.cluster.clone(),
        synced: shared.synced.clone(),
        samples: shared.samples.clone(),
        pod_queries: shared.config.pod_queries.clone(),
        rules: shared.rules.clone(),
        settings: settings(flags),
        metrics: shared.metrics.clone(),
        live: shared.live.clone(),
        clock: clients.clock.clone(),
        heartbeat: shared.heartbeat.clone(),
    })
}

/// When the tasks that end in order are to stop: at a signal, or because another task has failed.
#[derive(Clone)]
struct Stop {
    signal: watch::Receiver<bool>,
    failed: watch::Receiver<bool>,
}

impl Stop {
    /// With the sender for the second reason.
    fn new(signal: watch::Receiver<bool>) -> (watch::Sender<bool>, Self) {
        let (failing, failed) = watch::channel(false);
        (failing, Self { signal, failed })
    }

    async fn comes(self) {
        tokio::select! { () = stopped(self.signal) => {}, () = stopped(self.failed) => {} }
    }
}

/// Waits for a stop signal, or until a task ends without one, and then until `parts`, which stop in
/// order, have ended.
async fn run_until_stopped(
    signal: watch::Receiver<bool>,
    failing: watch::Sender<bool>,
    mut tasks: Tasks,
    mut parts: Tasks,
) -> Result<(), TaskEnded> {
    let ended = tokio::select! {
        // A task that ends after the stop signal has not failed.
        biased;
        () = stopped(signal) => None,
        ended = tasks.first_end() => Some(ended),
        ended = parts.first_end() => Some(ended),
    };
    if let Some(ended) = &ended {
        tracing::error!(error = %ended, "Stopping: a task ended");
    }
    let _ = failing.send(true);
    // After a failure another task may never end.
    let timeout = if ended.is_some() { FAILED_SHUTDOWN_TIMEOUT } else { Duration::MAX };
    let _ = tokio::time::timeout(timeout, parts.all_ended()).await;
    tracing::info!("Stopped");
    ended.map_or(Ok(()), Err)
}

/// How long the other tasks may take to stop after one has failed.
const FAILED_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(15);

/// Rules refer to the cluster's resources, which are read first.
async fn follow_rules(resources: Resources, rules: Rules, interval: Duration) {
    let read = resources.refresh().await;
    tokio::join!(resources.run_refresher(interval, read), rules.follow());
}

/// The certificate of the flags, or of `--cert-dir`, or a self-signed one.
fn serving_certificate(flags: &ServeFlags) -> Result<ServingCertificate, TlsError> {
    if let (Some(certificate), Some(key)) = (&flags.tls_cert_file, &flags.tls_private_key_file) {
        return ServingCertificate::from_files(certificate, key);
    }
    let files = ["apiserver.crt", "apiserver.key"].map(|name| flags.cert_dir.join(name));
    if files.iter().all(|file| file.exists()) {
        return ServingCertificate::from_files(&files[0], &files[1]);
    }
    ServingCertificate::self_signed(&flags.service_name, &flags.service_namespace())
}

fn trust_options(flags: &ServeFlags) -> TrustOptions {
    let given = |names: &[String]| -> Vec<String> {
        names.iter().filter(|name| !name.is_empty()).cloned().collect()
    };
    TrustOptions {
        client_ca_file: flags.client_ca_file.clone(),
        requestheader_client_ca_file: flags.requestheader_client_ca_file.clone(),
        allowed_names: given(&flags.requestheader_allowed_names),
        username_headers: given(&flags.requestheader_username_headers),
        group_headers: given(&flags.requestheader_group_headers),
        extra_header_prefixes: given(&flags.requestheader_extra_headers_prefix),
        uid_headers: given(&flags.requestheader_uid_headers),
    }
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
        lease_duration: lease,
        renew_deadline,
        retry_period: retry,
    })
}

fn settings(flags: &ServeFlags) -> ControllerSettings {
    let seconds = |duration: Duration| i32::try_from(duration.as_secs()).unwrap_or(i32::MAX);
    let millis = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    ControllerSettings {
        hpa_config: hpa::ControllerConfig {
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
        checkpoint_interval: flags.memory_interval,
        // A query may wait in the queue, and is sent again in a smaller batch.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A part that stops in order, and whether it has.
    fn orderly(stop: &Stop) -> (Tasks, watch::Receiver<bool>) {
        let (stopping, stopped) = watch::channel(false);
        let (mut parts, stop) = (Tasks::default(), stop.clone());
        parts.spawn("orderly", async move {
            stop.comes().await;
            tokio::time::sleep(FAILED_SHUTDOWN_TIMEOUT / 2).await;
            let _ = stopping.send(true);
        });
        (parts, stopped)
    }

    fn steady() -> Tasks {
        let mut tasks = Tasks::default();
        tasks.spawn("steady", std::future::pending());
        tasks
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_signal_waits_for_all_parts() {
        let (send, signal) = watch::channel(false);
        let (failing, stop) = Stop::new(signal);
        let (parts, stopped) = orderly(&stop);
        let run = tokio::spawn(run_until_stopped(stop.signal, failing, steady(), parts));
        tokio::time::sleep(FAILED_SHUTDOWN_TIMEOUT).await;
        assert!(!run.is_finished() && !*stopped.borrow());
        send.send(true).unwrap();
        assert_eq!(run.await.unwrap(), Ok(()));
        assert!(*stopped.borrow());
    }

    #[tokio::test(start_paused = true)]
    async fn when_a_task_fails_the_parts_stop_in_order_and_a_hanging_one_is_abandoned() {
        let (_send, signal) = watch::channel(false);
        let (failing, stop) = Stop::new(signal);
        let (mut parts, stopped) = orderly(&stop);
        parts.spawn("hanging", std::future::pending());
        let mut tasks = steady();
        tasks.spawn("broken", async { panic!("it can't go on") });
        let begun = tokio::time::Instant::now();
        let ended = run_until_stopped(stop.signal, failing, tasks, parts).await.unwrap_err();
        assert!(ended.to_string().contains("\"broken\" failed"), "{ended}");
        assert!(*stopped.borrow());
        assert_eq!(begun.elapsed().as_secs(), FAILED_SHUTDOWN_TIMEOUT.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn the_lease_is_released_only_after_the_control_loop_has_ended() {
        let (finish, finished) = tokio::sync::oneshot::channel::<()>();
        let (releasing, released) = watch::channel(false);
        let control = async { finished.await.unwrap() };
        let mut parts = spawn_parts(async {}, control, |end| async move {
            stopped(end).await;
            let _ = releasing.send(true);
        });
        tokio::time::sleep(FAILED_SHUTDOWN_TIMEOUT).await;
        assert!(!*released.borrow());
        finish.send(()).unwrap();
        parts.all_ended().await;
        assert!(*released.borrow());
    }
}
