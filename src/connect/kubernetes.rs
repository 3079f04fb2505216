//! The clients of the API server.

use super::error::ConnectError;
use super::kubeconfig::{self, Found};
use super::prometheus::redact_url;
use super::proxy::choose_proxy;
use crate::causes::causes;
use crate::clock::{Clock, Dated};
use crate::config::ServeFlags;
use crate::kube_error::worded;
use crate::retry::{Counting, Retries};
use crate::telemetry::Metrics;
use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use kube::Client;
use kube::client::{AuthError, Body, ClientBuilder};
use kube::config::{AuthInfo, KubeConfigOptions};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use secrecy::ExposeSecret;
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
        Ok(None) => Err("no kubeconfig".to_owned()),
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
    if let Some(field) = unsendable(&client.auth_info) {
        let fault = "has control characters, such as a line break";
        return Err(file.wrong(format!("context {name}: {field} of its user {fault}")));
    }
    let of = match context.user.as_deref() {
        None => format!("context {name}"),
        Some(user) => format!("context {name}, user {user}"),
    };
    Ok((Configuration { client, of }, name.to_owned()))
}

/// The field of credentials that no header can have.
fn unsendable(user: &AuthInfo) -> Option<&'static str> {
    let token = user.token.as_ref().map(ExposeSecret::expose_secret);
    let groups = user.impersonate_groups.iter().flatten();
    let texts = [
        ("token", token),
        ("as", user.impersonate.as_deref()),
        ("as-uid", user.impersonate_uid.as_deref()),
    ];
    let texts = texts.into_iter().filter_map(|(field, text)| Some((field, text?)));
    let mut all = texts.chain(groups.map(|group| ("as-groups", &**group)));
    all.find(|(_, text)| HeaderValue::try_from(*text).is_err()).map(|(field, _)| field)
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
        let text = format!("plimsoll: the API server answers {status}: asking again");
        let _ = writeln!(std::io::stderr(), "{text}");
    });
}

/// The client of the API server as kubectl configures it: by the kubeconfig of a flag, or as it finds one, or by the
/// service account of the pod. A server that is silent for so long in an answer has failed, and one that is overloaded is
/// asked again for a few seconds. The clock learns from the dates of the responses.
///
/// # Errors
/// As [`ConnectError`] says.
pub async fn as_kubectl(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
    silence: Duration,
    clock: Clock,
) -> Result<AsKubectl, ConnectError> {
    let context = context.filter(|context| !context.is_empty());
    let file = match kubeconfig {
        Some(path) => Some(kubeconfig::read("--kubeconfig", path)?),
        None => kubeconfig::found()?,
    };
    let (found, context) = match (file, context) {
        (Some(file), context) => {
            let (found, name) = load(&file, context, "--context NAME names one").await?;
            (found, Some(name))
        }
        (None, Some(context)) => {
            let why = format!("no kubeconfig, and the context {context} is in none");
            return Err(ConnectError::NotConfigured(why));
        }
        (None, None) => (Configuration::of_pod("no kubeconfig")?, None),
    };
    let failed = found.failed();
    let mut config = found.client;
    config.connect_timeout = Some(Duration::from_secs(10));
    config.read_timeout = Some(silence);
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
mod tests {
    use super::*;

    async fn of_command(path: &Path, context: Option<&str>) -> Result<AsKubectl, ConnectError> {
        as_kubectl(Some(path), context, ANSWER_TIMEOUT, Clock::default()).await
    }

    async fn of_server(path: &Path) -> Result<Client, ConnectError> {
        let found = configuration("--kubeconfig", Some(path)).await?;
        let failed = found.failed();
        Client::try_from(found.client).map_err(failed)
    }

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
        let errors = [of_command(&path, None).await.err(), of_server(&path).await.err()];
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

    /// kubectl reads them as fields that are not there.
    #[tokio::test]
    async fn empty_fields_of_a_kubeconfig_are_none() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        for (cluster, user, namespace) in [
            ("", "", "namespace: ''"),
            ("tls-server-name: ''", "token: ''", ""),
            ("certificate-authority: '', certificate-authority-data: ''", "tokenFile: ''", ""),
            ("proxy-url: ''", "client-certificate-data: '', client-key-data: ''", ""),
            ("", "client-certificate: '', client-key: ''", ""),
            ("", "username: '', password: ''", ""),
            ("", "as: '', as-uid: ''", ""),
        ] {
            let text = format!(
                "current-context: x\nclusters: [{{name: x, cluster: {{server: 'https://localhost:1', {cluster}}}}}]\n\
                 contexts: [{{name: x, context: {{cluster: x, user: x, {namespace}}}}}]\n\
                 users: [{{name: x, user: {{{user}}}}}]\n"
            );
            std::fs::write(&path, &text).unwrap();
            let found = of_command(&path, None).await;
            let found = found.unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(found.namespace, "default", "{text}");
            assert_eq!(found.client.default_namespace(), "default", "{text}");
            of_server(&path).await.unwrap_or_else(|error| panic!("{text}: {error}"));
        }
    }

    /// They can't be sent. A block scalar ends in a line break.
    #[tokio::test]
    async fn credentials_with_control_characters_are_refused() {
        for user in [
            "    token: |\n      s3cret\n",
            "    token: \"s3\\x01cret\"\n",
            "    as: \"a\\nb\"\n",
            "    as-uid: \"a\\nb\"\n    as: a\n",
            "    as-groups: [\"a\\nb\"]\n    as: a\n",
        ] {
            let errors = refused(user).await;
            assert_eq!(errors.len(), 2, "{user}");
            for error in errors {
                assert!(!error.contains("s3cret"), "{user}: {error}");
                assert!(error.contains("control characters"), "{user}: {error}");
            }
        }
    }

    #[tokio::test]
    async fn a_kubeconfig_without_a_current_context_is_told_of_in_words() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        for text in ["current-context: ''\n", "{}"] {
            std::fs::write(&path, text).unwrap();
            let errors = [of_command(&path, Some("")).await.err(), of_server(&path).await.err()];
            for error in errors {
                let error = error.unwrap().to_string();
                assert!(error.contains("no current-context"), "{error}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_wrong_with_a_kubeconfig_is_told_with_its_file_and_what_would_be_right() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        let text = "current-context: gone\n\
            clusters: [{name: c, cluster: {server: 'https://ann:s3cret@localhost:1'}}]\n\
            users:\n- {name: ann, user: {token: s3cret}}\n\
            - {name: plugin, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: no-such-plugin, \
            args: [s3cret], env: [{name: A, value: s3cret}], interactiveMode: Never}}}\n\
            contexts:\n- {name: a, context: {cluster: c, user: ann}}\n\
            - {name: e, context: {cluster: c, user: plugin}}\n\
            - {name: n, context: {cluster: c, user: nobody}}\n\
            - {name: o, context: {cluster: other, user: ann}}\n";
        std::fs::write(&path, text).unwrap();
        let file = path.display();
        for (context, expected) in [
            (None, format!("{file}: current-context: there is no context \"gone\"; its contexts are a, e, n, o")),
            (Some("x"), format!("{file}: --context: there is no context \"x\"; its contexts are a, e, n, o")),
            (Some("n"), format!("{file}: user \"nobody\" was not found for context \"n\"")),
            (Some("o"), format!("{file}: cluster \"other\" was not found for context \"o\"")),
            (Some("e"), "context e, user plugin: no-such-plugin, the program of its exec plugin, can't be run: ".to_owned()),
        ] {
            let error = of_command(&path, context).await.err().unwrap().to_string();
            assert!(error.contains(&expected) && !error.contains("s3cret"), "{context:?}: {error}");
        }
        let found = of_command(&path, Some("a")).await.unwrap();
        assert_eq!(found.place_and_server(), "context a (https://localhost:1)");
    }

    #[tokio::test]
    async fn a_server_that_is_silent_ends_a_request() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        let text = format!(
            "current-context: a\nclusters: [{{name: c, cluster: {{server: 'http://{}'}}}}]\n\
             contexts: [{{name: a, context: {{cluster: c}}}}]\n",
            listener.local_addr().unwrap()
        );
        std::fs::write(&path, text).unwrap();
        let silence = Duration::from_millis(100);
        let found = as_kubectl(Some(&path), None, silence, Clock::default()).await.unwrap();
        let error = worded(&found.client.apiserver_version().await.unwrap_err());
        assert!(error.ends_with("timed out"), "{error}");
        drop(listener);
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
