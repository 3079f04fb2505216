//! The clients of the API server.

use super::error::ConnectError;
use super::kubeconfig::{self, Found};
use super::prometheus::redact_url;
use super::proxy::choose_proxy;
use crate::causes::causes;
use crate::clock::{Clock, Dated};
use crate::config::{KubectlFlags, ServeFlags};
use crate::kube_error::worded;
use crate::retry::{Counting, Retries};
use crate::telemetry::Metrics;
use bytes::Bytes;
use http::{Request, Response};
use kube::Client;
use kube::client::{AuthError, Body, ClientBuilder};
use kube::config::KubeConfigOptions;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Once};
use std::time::Duration;
use tower::buffer::BufferLayer;
use tower::layer::layer_fn;
use tower::limit::RateLimitLayer;
use tower::retry::RetryLayer;
use tower::{BoxError, Service};

/// The client of the API server of a kubeconfig or, without one, of that which kubectl finds, or of a pod. The server
/// need not be up yet. The client makes at most `qps` requests per second, if given. The clock learns
/// from the dates of the responses.
///
/// # Errors
/// As [`ConnectError`] says.
pub async fn api_server(
    flags: &ServeFlags,
    flag: &'static str,
    kubeconfig: Option<&Path>,
    metrics: Arc<Metrics>,
    clock: Clock,
    qps: Option<f64>,
) -> Result<Client, ConnectError> {
    let found = configuration(flag, kubeconfig).await?;
    let failed = found.failed();
    let mut config = found.client;
    // Shorter than the deadline within which a leader must renew its Lease.
    let longest = Duration::from_secs(10);
    config.connect_timeout = Some(longest.min(flags.leader_elect_renew_deadline / 2));
    config.read_timeout = Some(READ_TIMEOUT);
    // kube's own retries would be below the counting layer, and hide an overloaded server from it.
    // They are above it instead, and above the rate limit.
    config.default_retry = false;
    Ok(layered(ClientBuilder::try_from(config).map_err(failed)?, flags, metrics, clock, qps))
}

/// Where a kubeconfig was looked for.
const NO_KUBECONFIG: &str = "no kubeconfig found (tried $KUBECONFIG and ~/.kube/config)";

/// The configuration of a client, and whose it is.
struct Configuration {
    client: kube::Config,
    /// Such as `context prod, user ann`, for errors.
    of: String,
}

impl Configuration {
    /// That of the service account of a pod, as there is no other way: `why`.
    fn of_pod(why: &str) -> Result<Self, ConnectError> {
        let own = kube::Config::incluster();
        let client = own.map_err(|error| {
            let error = causes(&error);
            ConnectError::NotConfigured(format!("{why}, and no service account of a pod: {error}"))
        })?;
        Ok(Self { client, of: "the service account of the pod".to_owned() })
    }

    /// Why no client can be made of it. Of a plugin for credentials only the program is named.
    fn failed(&self) -> impl Fn(kube::Error) -> ConnectError + use<> {
        let (of, exec) = (self.of.clone(), self.client.auth_info.exec.as_ref());
        let program = exec.and_then(|exec| exec.command.clone()).unwrap_or_default();
        move |error| {
            ConnectError::Client(match &error {
                kube::Error::Auth(AuthError::AuthExecStart(error)) => {
                    format!(
                        "{of}: {program}, the program of its exec plugin, can't be run: {error}"
                    )
                }
                error => format!("{of}: {}", worded(error)),
            })
        }
    }
}

/// The configuration of a kubeconfig or, without one, of that which kubectl finds, or else of a pod. kube's own way to
/// infer it logs the text of a kubeconfig that can't be read.
async fn configuration(
    flag: &'static str,
    kubeconfig: Option<&Path>,
) -> Result<Configuration, ConnectError> {
    const HINT: &str = "`kubectl config use-context NAME` sets it";
    if let Some(path) = kubeconfig {
        return load(&kubeconfig::read(flag, path)?, None, HINT).await.map(|(found, _)| found);
    }
    let found = match kubeconfig::found() {
        Ok(Some(file)) => load(&file, None, HINT).await.map_err(|error| error.to_string()),
        Ok(None) => Err(NO_KUBECONFIG.to_owned()),
        Err(error) => Err(error.to_string()),
    };
    found.map(|(found, _)| found).or_else(|why| Configuration::of_pod(&why))
}

/// The configuration of a context of a kubeconfig, or of its current one, and its name.
async fn load(
    file: &Found,
    context: Option<&str>,
    hint: &str,
) -> Result<(Configuration, String), ConnectError> {
    let (name, context) = file.context(context, hint)?;
    if file.config.clusters.iter().all(|known| known.name != context.cluster) {
        let cluster = &context.cluster;
        return Err(file.wrong(format!("cluster {cluster:?} was not found for context {name:?}")));
    }
    let options = KubeConfigOptions { context: Some(name.to_owned()), ..Default::default() };
    let loaded = kube::Config::from_custom_kubeconfig(file.config.clone(), &options).await;
    let mut client =
        loaded.map_err(|error| file.wrong(format!("context {name}: {}", causes(&error))))?;
    choose_proxy(&mut client, &file.config, Some(name));
    if let Some(field) = kubeconfig::unsendable(&client.auth_info) {
        let fault = "has control characters, such as a line break";
        return Err(file.wrong(format!("context {name}: {field} of its user {fault}")));
    }
    let of = match context.user.as_deref() {
        None => format!("context {name}"),
        Some(user) => format!("context {name}, user {user}"),
    };
    Ok((Configuration { client, of }, name.to_owned()))
}

/// The client of another replica at this address, which authenticates as at the API server. Its certificate
/// must be of this host, and of one of the CAs of a bundle as PEM, or of those of the system if there is none.
///
/// # Errors
/// As [`ConnectError`] says, and if the address or the bundle is invalid.
pub async fn peer(
    flags: &ServeFlags,
    address: &str,
    host: String,
    bundle: Option<&[u8]>,
) -> Result<Client, ConnectError> {
    let found = configuration("--kubeconfig", flags.kubeconfig.as_deref()).await?;
    let failed = found.failed();
    let mut config = found.client;
    let invalid = |error: String| ConnectError::Client(format!("{address}: {error}"));
    let url = format!("https://{address}").parse();
    config.cluster_url = url.map_err(|error: http::uri::InvalidUri| invalid(error.to_string()))?;
    let roots = bundle.map(|bundle| {
        let roots = CertificateDer::pem_slice_iter(bundle);
        roots.map(|root| root.map(|root| root.to_vec())).collect::<Result<Vec<_>, _>>()
    });
    config.root_cert = roots.transpose().map_err(|error| invalid(causes(&error)))?;
    (config.root_cert_file, config.accept_invalid_certs) = (None, false);
    (config.tls_server_name, config.proxy_url) = (Some(host), None);
    config.connect_timeout = Some(Duration::from_secs(10));
    // A watch sends a bookmark every 30 s.
    config.read_timeout = Some(Duration::from_secs(90));
    Client::try_from(config).map_err(failed)
}

/// The client of a service that sends requests to kube-apiserver: each attempt is counted, and an
/// overloaded server is asked again. The client makes at most `qps` requests per second, if given. The
/// clock learns from the dates of the responses.
pub fn layered<S, B>(
    builder: ClientBuilder<S>,
    flags: &ServeFlags,
    metrics: Arc<Metrics>,
    clock: Clock,
    qps: Option<f64>,
) -> Client
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + Send + Sync,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let counting = layer_fn(move |inner| Counting { inner, metrics: metrics.clone() });
    let dating = layer_fn(move |inner| Dated::new(inner, clock.clone()));
    let shared = BufferLayer::<Request<Body>>::new(BUFFERED_REQUESTS);
    let retry = RetryLayer::new(Retries::new());
    let builder = builder.with_layer(&counting).with_layer(&dating);
    match qps.filter(|qps| *qps > 0.0) {
        None => builder.with_layer(&shared).with_layer(&retry).build(),
        Some(qps) => {
            let burst = u64::from(flags.client_burst.max(1));
            let period = Duration::from_secs_f64((burst as f64 / qps).clamp(0.001, 86_400.0));
            let limit = RateLimitLayer::new(burst, period);
            builder.with_layer(&limit).with_layer(&shared).with_layer(&retry).build()
        }
    }
}

/// How long a server may be silent in the answer to a command.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// A watch sends a bookmark every minute: one that is silent for longer is dead.
pub const READ_TIMEOUT: Duration = Duration::from_secs(90);

/// The number of requests that wait to be sent.
const BUFFERED_REQUESTS: usize = 1024;

/// The API server as kubectl reaches it.
pub struct AsKubectl {
    /// The client.
    pub client: Client,
    /// The namespace of the context.
    pub namespace: String,
    /// The context; none where it is the service account of a pod.
    pub context: Option<String>,
    /// The URL of the server, without what may be secret.
    server: String,
}

impl AsKubectl {
    /// Which cluster it is, in messages: `context prod`.
    pub fn place(&self) -> String {
        match &self.context {
            Some(context) => format!("context {context}"),
            None => "the cluster of this pod".to_owned(),
        }
    }

    /// What an error of a command begins with: the cluster and its server, as in `context prod (https://10.0.0.1:6443)`.
    pub fn place_and_server(&self) -> String {
        format!("{} ({})", self.place(), self.server)
    }
}

/// Says once that a request is repeated, so that nobody takes the command for one that hangs.
fn tell_of_retry(status: u16) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        let text = format!("plimsoll: the API server responded with {status}, retrying");
        let _ = writeln!(std::io::stderr(), "{text}");
    });
}

/// The contexts of the kubeconfig.
///
/// # Errors
/// If it can't be read.
pub fn contexts(flags: &KubectlFlags) -> Result<Vec<String>, ConnectError> {
    let file = match flags.kubeconfig.as_deref() {
        Some(path) => Some(kubeconfig::read("--kubeconfig", path)?),
        None => kubeconfig::found()?,
    };
    let all = file.into_iter().flat_map(|file| file.config.contexts);
    Ok(all.map(|context| context.name).collect())
}

/// The client of the API server as kubectl configures it: by the kubeconfig of a flag, or as it finds one, or by the
/// service account of the pod. A server that is silent for so long in an answer, unless a flag says otherwise, has failed, and one that is overloaded is
/// asked again for a few seconds. The clock learns from the dates of the responses.
///
/// # Errors
/// As [`ConnectError`] says.
pub async fn as_kubectl(
    flags: &KubectlFlags,
    silence: Duration,
    clock: Clock,
) -> Result<AsKubectl, ConnectError> {
    let context = flags.context.as_deref().filter(|context| !context.is_empty());
    let file = match flags.kubeconfig.as_deref() {
        Some(path) => Some(kubeconfig::read("--kubeconfig", path)?),
        None => kubeconfig::found()?,
    };
    let (mut found, context) = match (file, context) {
        (Some(file), context) => {
            let (found, name) = load(&file, context, "--context NAME names one").await?;
            (found, Some(name))
        }
        (None, Some(context)) => {
            let why = format!("{NO_KUBECONFIG}, and the context {context} is in none");
            return Err(ConnectError::NotConfigured(why));
        }
        (None, None) => (Configuration::of_pod(NO_KUBECONFIG)?, None),
    };
    let user = &mut found.client.auth_info;
    if flags.impersonate.is_some() {
        user.impersonate.clone_from(&flags.impersonate);
        user.impersonate_groups = Some(flags.impersonate_groups.clone());
        (user.impersonate_uid, user.impersonate_user_extra) = Default::default();
    }
    if let Some(field) = kubeconfig::unsendable(user) {
        return Err(ConnectError::Client(format!("--{field} has control characters")));
    }
    let failed = found.failed();
    let mut config = found.client;
    config.connect_timeout = Some(Duration::from_secs(10));
    config.read_timeout = match flags.request_timeout {
        None => Some(silence),
        Some(timeout) => Some(timeout).filter(|timeout| !timeout.is_zero()),
    };
    // Not counted is how long a connection was not used.
    config.reset_reader_on_write = true;
    // kube's own take minutes.
    config.default_retry = false;
    let namespace = config.default_namespace.clone();
    let server = redact_url(&config.cluster_url.to_string()).trim_end_matches('/').to_owned();
    let dating = layer_fn(move |inner| Dated::new(inner, clock.clone()));
    let shared = BufferLayer::<Request<Body>>::new(BUFFERED_REQUESTS);
    let retry = RetryLayer::new(Retries::telling(tell_of_retry));
    let builder = ClientBuilder::try_from(config).map_err(failed)?;
    let client = builder.with_layer(&dating).with_layer(&shared).with_layer(&retry).build();
    Ok(AsKubectl { client, namespace, context, server })
}

#[cfg(test)]
mod tests;
