//! The clients of the API server.

use super::error::ConnectError;
use super::kubeconfig;
use super::proxy::choose_proxy;
use crate::causes::causes;
use crate::clock::{Clock, Dated};
use crate::config::ServeFlags;
use crate::retry::{Counting, Retries};
use crate::telemetry::Metrics;
use bytes::Bytes;
use http::{Request, Response};
use kube::Client;
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
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
    let mut config = configuration(flag, kubeconfig).await?;
    // Shorter than the deadline within which a leader must renew its Lease.
    let longest = Duration::from_secs(10);
    config.connect_timeout = Some(longest.min(flags.leader_elect_renew_deadline / 2));
    config.read_timeout = Some(READ_TIMEOUT);
    // kube's own retries would be below the counting layer, and hide an overloaded server from it.
    // They are above it instead, and above the rate limit.
    config.default_retry = false;
    Ok(layered(ClientBuilder::try_from(config)?, flags, metrics, clock, qps))
}

/// The configuration of a kubeconfig or, without one, of that which kubectl finds, or else of a pod. kube's own way to
/// infer it logs the text of a kubeconfig that can't be read.
async fn configuration(
    flag: &'static str,
    kubeconfig: Option<&Path>,
) -> Result<kube::Config, ConnectError> {
    if let Some(path) = kubeconfig {
        return read_kubeconfig(flag, path).await;
    }
    let found = match kubeconfig::found() {
        Ok(Some(file)) => load(&file, None).await,
        Ok(None) => Err("no kubeconfig".to_owned()),
        Err(error) => Err(causes(&error)),
    };
    found.or_else(|why| {
        let own = kube::Config::incluster();
        own.map_err(|error| ConnectError::NotConfigured(no_way(&why, &error)))
    })
}

/// Why neither a kubeconfig nor the service account of a pod leads to the API server.
fn no_way(kubeconfig: &str, own: &(dyn Error + 'static)) -> String {
    format!("{kubeconfig}, and no service account of a pod: {}", causes(own))
}

/// The configuration of a context of a kubeconfig, or of its current one.
async fn load(file: &Kubeconfig, context: Option<String>) -> Result<kube::Config, String> {
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    let loaded = kube::Config::from_custom_kubeconfig(file.clone(), &options).await;
    let mut config = loaded.map_err(|error| causes(&error))?;
    choose_proxy(&mut config, file, options.context.as_deref());
    Ok(config)
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
    let mut config = configuration("--kubeconfig", flags.kubeconfig.as_deref()).await?;
    let invalid = |error: String| ConnectError::NotConfigured(format!("{address}: {error}"));
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
    Ok(Client::try_from(config)?)
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

/// A watch sends a bookmark every minute: one that is silent for longer is dead.
const READ_TIMEOUT: Duration = Duration::from_secs(90);

/// The number of requests that wait to be sent.
const BUFFERED_REQUESTS: usize = 1024;

/// The client of the API server of a kubeconfig, for a command.
///
/// # Errors
/// As [`ConnectError`] says.
pub async fn plain_api_server(kubeconfig: &Path) -> Result<Client, ConnectError> {
    let config = read_kubeconfig("--kubeconfig", kubeconfig).await?;
    Ok(Client::try_from(config)?)
}

/// The API server as kubectl reaches it.
pub struct AsKubectl {
    /// The client.
    pub client: Client,
    /// The namespace of the context.
    pub namespace: String,
    /// The context; none where it is the service account of a pod.
    pub context: Option<String>,
}

/// The client of the API server as kubectl configures it: by the kubeconfig of a flag, or as it finds one, or by the
/// service account of the pod. The clock learns from the dates of the responses.
///
/// # Errors
/// As [`ConnectError`] says.
pub async fn as_kubectl(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
    clock: Clock,
) -> Result<AsKubectl, ConnectError> {
    let context = context.filter(|context| !context.is_empty());
    let file = match kubeconfig {
        Some(path) => kubeconfig::read(path).map(Some),
        None => kubeconfig::found(),
    };
    let file = file.map_err(|error| ConnectError::NotConfigured(causes(&error)))?;
    let (mut config, context) = match (file, context) {
        (Some(file), context) => {
            let context = context.map(str::to_owned).or_else(|| file.current_context.clone());
            let config = load(&file, context.clone()).await;
            (config.map_err(ConnectError::NotConfigured)?, context)
        }
        (None, Some(context)) => {
            let why = format!("no kubeconfig, and the context {context} is in none");
            return Err(ConnectError::NotConfigured(why));
        }
        (None, None) => {
            let own = kube::Config::incluster();
            let missing = |error| ConnectError::NotConfigured(no_way("no kubeconfig", &error));
            (own.map_err(missing)?, None)
        }
    };
    config.connect_timeout = Some(Duration::from_secs(10));
    config.read_timeout = Some(READ_TIMEOUT);
    let namespace = config.default_namespace.clone();
    let dating = layer_fn(move |inner| Dated::new(inner, clock.clone()));
    let client = ClientBuilder::try_from(config)?.with_layer(&dating).build();
    Ok(AsKubectl { client, namespace, context })
}

async fn read_kubeconfig(flag: &'static str, path: &Path) -> Result<kube::Config, ConnectError> {
    let wrong = |error| ConnectError::Kubeconfig { flag, path: path.to_owned(), error };
    let file = kubeconfig::read(path).map_err(|error| wrong(causes(&error)))?;
    load(&file, None).await.map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kubeconfig with this user, from the ninth line on, and why it is of no use to each who reads it.
    async fn refused(user: &str) -> Vec<String> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\n\
             clusters: [{{name: x, cluster: {{server: 'https://localhost:1'}}}}]\n\
             contexts: [{{name: x, context: {{cluster: x, user: x}}}}]\n\
             users:\n- name: x\n  user:\n{user}"
        );
        std::fs::write(&path, text).unwrap();
        let of_command = as_kubectl(Some(&path), None, Clock::default()).await;
        let of_server = plain_api_server(&path).await;
        let errors = [of_command.err(), of_server.err()];
        errors.into_iter().flatten().map(|error| error.to_string()).collect()
    }

    /// `kubectl` prints none of it either.
    #[tokio::test]
    async fn no_error_has_a_text_of_a_kubeconfig_or_of_what_its_plugin_answers() {
        let plugin = |script: &str| {
            format!(
                "    exec:\n      apiVersion: client.authentication.k8s.io/v1\n      command: sh\n      \
                 interactiveMode: Never\n      args: [-c, {script:?}, s3cret]\n"
            )
        };
        let answer = |status: &str| {
            plugin(&format!(
                "echo '{{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":{status}}}'"
            ))
        };
        for (user, expected) in [
            ("    token: s3cret\n    username: [a, b]\n".to_owned(), "line 10, column 15"),
            ("    token: s3cret\n    username: {\n".to_owned(), "line 1"),
            ("    token: s3cret\n    token: s3cret2\n".to_owned(), "line 10"),
            (
                "    client-key-data: s3cret-\n    client-certificate-data: s3cret-\n".to_owned(),
                "base64",
            ),
            (answer("{\"token\":\"s3cret\",\"clientKeyData\":[\"x\"]}"), "line 1"),
            (answer("{\"token\":\"s3cret\",\"expirationTimestamp\":\"s3cret\"}"), "expir"),
            (plugin("echo s3cret; echo no login >&2; exit 3"), "exit status: 3: no login"),
        ] {
            let errors = refused(&user).await;
            assert_eq!(errors.len(), 2, "{user}");
            for error in errors {
                assert!(!error.contains("s3cret"), "{user}: {error}");
                assert!(error.contains(expected), "{user}: {error}");
            }
        }
    }

    #[tokio::test]
    async fn a_kubeconfig_without_a_current_context_is_told_of_in_words() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        for text in ["current-context: ''\n", "{}"] {
            std::fs::write(&path, text).unwrap();
            let of_command = as_kubectl(Some(&path), Some(""), Clock::default()).await;
            let of_server = plain_api_server(&path).await;
            for error in [of_command.err(), of_server.err()] {
                let error = error.unwrap().to_string();
                assert!(error.contains("no current-context"), "{error}");
            }
        }
    }

    #[tokio::test]
    async fn unlimited_requests_do_not_wait_for_rate_limited_ones() {
        use clap::Parser;
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let version = axum::Json(serde_json::json!({
            "major": "1", "minor": "36", "gitVersion": "", "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}));
        let app = axum::Router::new()
            .route("/version", axum::routing::get(move || async move { version.clone() }));
        tokio::spawn(async move { axum::serve(listener, app).await });
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        let kubeconfig = serde_json::json!({"apiVersion": "v1", "kind": "Config",
            "current-context": "x", "users": [],
            "clusters": [{"name": "x", "cluster": {"server": url}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": ""}}]});
        std::io::Write::write_all(&mut file, kubeconfig.to_string().as_bytes()).expect("written");
        let line = "plimsoll serve --prometheus-url=http://x --client-qps=0.001 --client-burst=1";
        let cli = crate::config::Cli::try_parse_from(line.split(' ')).expect("flags");
        let crate::config::Command::Serve(flags) = cli.command else { panic!("another command") };
        let connect = async |qps| {
            let (path, clock) = (Some(file.path()), Clock::default());
            api_server(&flags, "--kubeconfig", path, Arc::default(), clock, qps).await
        };
        let limited = connect(flags.client_qps).await.expect("a client");
        let free = connect(None).await.expect("a client");
        limited.apiserver_version().await.expect("the first is within the limit");
        let waiting = tokio::spawn(async move { limited.apiserver_version().await });
        for _ in 0..20 {
            free.apiserver_version().await.expect("it does not wait");
        }
        assert!(!waiting.is_finished());
    }
}
