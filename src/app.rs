//! The shell of a replica: flags, files, TLS, sockets, signals, and the API with its authentication.

use crate::blocking;
use crate::config::{Config, ServeFlags, TlsVersion};
use crate::connect::{self, redact_url};
use crate::leader::ElectionSettings;
use crate::ledger_copy::LedgerCopy;
use crate::replica::{self, Clock, Parts, Replica, Shared, Stop};
use crate::serve::{
    ApiGroup, Authenticator, Authorizer, AuthorizerOptions, CaBundleStatus, Decisions, Health,
    KnownRequests, Listener, Server, ServingCa, ServingCertificate, TlsError, TlsOptions,
    TokenAuthenticator, TrustOptions, TrustStore, listen, router, run_ca_injector,
    run_trust_reflector,
};
use crate::telemetry::Metrics;
use axum::Router;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

/// An error that prevents the start. It says what is wrong and with what.
type StartError = Box<dyn std::error::Error + Send + Sync>;

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// If the server can't start: a flag, a file, the address or the cluster's
/// configuration is wrong.
pub fn run(flags: ServeFlags) -> Result<(), StartError> {
    blocking::run_to_end(serve(flags))?
}

async fn serve(flags: ServeFlags) -> Result<(), StartError> {
    let config = match &flags.config {
        Some(path) => Config::read(path)?,
        None => Config::default(),
    };
    replica::check(&flags, &config)?;
    let metrics = Arc::new(Metrics::default());
    let prometheus =
        connect::prometheus(&flags.prometheus_url, &flags.prometheus)?.counted(metrics.clone());
    let certificate = serving_certificate(&flags)?;
    let self_signed_ca = certificate.self_signed_ca.clone();
    let trust_options = trust_options(&flags);
    let ca_files = trust_options.read()?;
    let clients = Clients::connect(&flags, &metrics).await?;
    let listener = bind(&flags, certificate).await?.counted(&metrics.serving);
    let (trust, ca_bundles) = (TrustStore::default(), CaBundleStatus::default());
    let initial_bundle = trust_options.bundle(None, &ca_files)?;
    if flags.authentication_skip_lookup || flags.authentication_tolerate_lookup_failure {
        trust.set(initial_bundle);
    }
    let mut replica = Replica::new(Parts {
        flags: flags.clone(),
        config,
        identity: ElectionSettings::identity(),
        api: clients.api.clone(),
        leases: clients.leases.clone(),
        prometheus: prometheus.clone(),
        clock: clients.clock.clone(),
        metrics: metrics.clone(),
    })?;
    let own_name = Arc::default();
    let decisions = Decisions::new(replica.shared().ledger.clone(), Arc::clone(&own_name));
    let server =
        server(&flags, &clients.reviewers, replica.shared(), &trust, (&ca_bundles, decisions));

    let lookup =
        (!flags.authentication_skip_lookup).then(|| clients.reviewers.authentication.clone());
    replica.spawn("trust", run_trust_reflector(lookup, trust, trust_options, ca_files));
    replica.spawn("certificate", listener.run_certificate_reloader(&metrics.serving));
    if let Some(ca) = self_signed_ca {
        let (service, namespace) = (flags.service_name.clone(), flags.service_namespace());
        let ca = ServingCa { service, namespace, ca };
        let api = clients.api.clone();
        replica.spawn("caBundles", run_ca_injector(api, ca, ca_bundles, metrics.clone()));
    }
    if let Some(path) = flags.config.clone() {
        let Shared { config, rules, .. } = replica.shared();
        let (config, rules) = (config.clone(), rules.clone());
        let window = config.clone().run_window(prometheus);
        let changed = move |taken: Result<&Config, &_>| {
            metrics.reloaded(taken.is_ok());
            if let Ok(config) = taken {
                rules.replace(config.rules.clone());
            }
        };
        replica.spawn("configuration", config.run_reloader(path, changed));
        replica.spawn("window of counters", window);
    }
    let (signal, address) = (stop_signal()?, listener.address()?);
    if let Some(ip) = advertised(&flags) {
        replica.leader().set_address(SocketAddr::new(ip, address.port()).to_string());
    }
    if flags.leader_elect && replica.shared().ledger.is_on() {
        let (ledger, leader) = (replica.shared().ledger.clone(), replica.leader().clone());
        let (api, flags) = (clients.api, flags.clone());
        let copy = LedgerCopy { ledger, leader, api, flags, own_name };
        replica.spawn("ledger copy", copy.run());
    }
    tracing::info!(version = env!("CARGO_PKG_VERSION"), %address, prometheus = redact_url(&flags.prometheus_url), "Started serving");
    Ok(replica.run(|stop: Stop| listener.serve(server, stop), signal).await?)
}

/// The address at which other replicas reach this one, if it is known.
fn advertised(flags: &ServeFlags) -> Option<IpAddr> {
    let bound = Some(flags.bind_address).filter(|bound| !bound.is_unspecified());
    flags.advertise_address.or(bound)
}

/// The clients of kube-apiserver.
struct Clients {
    api: kube::Client,
    /// The clock of its server.
    clock: Clock,
    /// Without the rate limit: a delayed renewal loses the Lease.
    leases: kube::Client,
    reviewers: Reviewers,
}

/// The API servers that review who a client is, and what it may do.
pub struct Reviewers {
    /// Of tokens.
    pub authentication: kube::Client,
    /// Of access.
    pub authorization: kube::Client,
}

impl Clients {
    async fn connect(flags: &ServeFlags, metrics: &Arc<Metrics>) -> Result<Self, StartError> {
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
        let reviewers = Reviewers { authentication, authorization };
        Ok(Self { clock, leases, reviewers, api })
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

/// The API of a replica, without a listener and its certificates: for benchmarks.
pub fn api(
    replica: &Replica,
    flags: &ServeFlags,
    reviewers: &Reviewers,
    trust: &TrustStore,
) -> Router {
    let decisions = Decisions::new(replica.shared().ledger.clone(), Arc::default());
    server(flags, reviewers, replica.shared(), trust, (&CaBundleStatus::default(), decisions))
}

fn server(
    flags: &ServeFlags,
    reviewers: &Reviewers,
    shared: &Shared,
    trust: &TrustStore,
    (ca_bundles, decisions): (&CaBundleStatus, Decisions),
) -> Router {
    let Shared { cluster, samples, rules, config, metrics, .. } = shared;
    router(Server {
        cluster: cluster.clone(),
        samples: samples.clone(),
        pod_queries: config.pod_queries.clone(),
        forward: config.forward.clone(),
        rules: rules.clone(),
        known_requests: KnownRequests::default(),
        groups: [&flags.metrics_apis[..], &[ApiGroup::Decisions]].concat(),
        decisions,
        authenticator: Authenticator::new(
            trust.clone(),
            TokenAuthenticator::new(
                reviewers.authentication.clone(),
                flags.authentication_token_webhook_cache_ttl,
                metrics.clone(),
            ),
        ),
        authorizer: Authorizer::new(
            reviewers.authorization.clone(),
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
            ca_bundles: ca_bundles.clone(),
            ledger: shared.ledger.clone(),
            heartbeat: shared.heartbeat.clone(),
            config_error: config.error.clone(),
            rules: rules.clone(),
        },
        metrics: metrics.clone(),
        live: shared.live.clone(),
    })
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

/// Ends at SIGTERM or SIGINT.
///
/// # Errors
/// If the signals can't be received.
fn stop_signal() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}
