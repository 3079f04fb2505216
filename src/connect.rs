//! From flags to clients: the API server and Prometheus.

use crate::clock::{Clock, Dated};
use crate::config::{PrometheusFlags, PrometheusVerb, ServeFlags};
use crate::prometheus::{self, Pem, Token};
use crate::telemetry::Metrics;
use futures::future::BoxFuture;
use hyper_util::client::proxy::matcher::Matcher;
use kube::Client;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};
use tower::BoxError;
use tower::buffer::BufferLayer;
use tower::layer::layer_fn;
use tower::limit::RateLimitLayer;
use tower::retry::{Policy, RetryLayer};

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A kubeconfig can't be used.
    #[error("{flag}: {}: {error}", path.display())]
    Kubeconfig {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        error: String,
    },
    /// There is no way to the API server.
    #[error("no way to the API server: {0}; --kubeconfig FILE names one")]
    NoWay(String),
    /// The client could not be made.
    #[error("no client of the API server: {0}")]
    Client(#[from] kube::Error),
    /// Prometheus can't be talked to like this.
    #[error(transparent)]
    Prometheus(#[from] prometheus::Error),
}

/// The files of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The client of the API server that a kubeconfig names, or the one that is
/// found without. It may wait for a server that is not there yet. It makes at most `qps`
/// requests a second, where that is given. The clock sees the dates of its answers.
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
    let mut config = match kubeconfig {
        Some(path) => read_kubeconfig(flag, path).await?,
        None => {
            let inferred = kube::Config::infer().await;
            let mut config = inferred.map_err(|error| ConnectError::NoWay(error.to_string()))?;
            // A pod has no kubeconfig, and reaches the API server without a proxy.
            if let Ok(file) = Kubeconfig::read() {
                choose_proxy(&mut config, &file, None);
            }
            config
        }
    };
    // Less than a leader has to renew its Lease.
    let longest = Duration::from_secs(10);
    config.connect_timeout = Some(longest.min(flags.leader_elect_renew_deadline / 2));
    // A watch has a bookmark each minute: one that is silent for longer is dead.
    config.read_timeout = Some(Duration::from_secs(90));
    // kube's own retries would hide from what counts that a server is overloaded: they are put
    // around it instead, and around the limit of the rate.
    config.default_retry = false;
    let counting = layer_fn(move |inner| Counting { inner, metrics: metrics.clone() });
    let dating = layer_fn(move |inner| Dated::new(inner, clock.clone()));
    let shared = BufferLayer::<http::Request<Body>>::new(BUFFERED);
    let retry = RetryLayer::new(Retries::new());
    let builder = ClientBuilder::try_from(config)?.with_layer(&counting).with_layer(&dating);
    match qps.filter(|qps| *qps > 0.0) {
        None => Ok(builder.with_layer(&shared).with_layer(&retry).build()),
        Some(qps) => {
            let burst = u64::from(flags.client_burst.max(1));
            let period = Duration::from_secs_f64((burst as f64 / qps).clamp(0.001, 86_400.0));
            let limit = RateLimitLayer::new(burst, period);
            Ok(builder.with_layer(&limit).with_layer(&shared).with_layer(&retry).build())
        }
    }
}

/// How many requests wait to be sent.
const BUFFERED: usize = 1024;

/// How long a request waits at most between two tries, and how often it is tried again.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
const RETRIES: u32 = 5;

/// Tries a request again that an overloaded server refused, for a few seconds. Longer waits are for
/// who asked: a watch that is not told of a failure can't say that it is behind.
#[derive(Clone)]
struct Retries(RetryPolicy);

impl Retries {
    fn new() -> Self {
        let policy = RetryPolicy::new(Duration::from_millis(50), LONGEST_WAIT, RETRIES, true);
        Self(policy.expect("the first wait is shorter than the longest"))
    }
}

impl<B> Policy<http::Request<Body>, http::Response<B>, BoxError> for Retries {
    type Future = Sleep;

    fn retry(
        &mut self,
        request: &mut http::Request<Body>,
        result: &mut Result<http::Response<B>, BoxError>,
    ) -> Option<Sleep> {
        let wait = self.0.retry(request, result)?;
        // `Retry-After` may ask for more.
        (wait.deadline() <= Instant::now() + LONGEST_WAIT).then_some(wait)
    }

    fn clone_request(&mut self, request: &http::Request<Body>) -> Option<http::Request<Body>> {
        Policy::<_, http::Response<B>, BoxError>::clone_request(&mut self.0, request)
    }
}

/// Counts requests and their answers, each try by itself.
#[derive(Clone)]
struct Counting<S> {
    inner: S,
    metrics: Arc<Metrics>,
}

impl<S, B, C> tower::Service<http::Request<B>> for Counting<S>
where
    S: tower::Service<http::Request<B>, Response = http::Response<C>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let mut asking = self.metrics.kube.ask(request.method(), request.uri());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            if let Ok(answer) = &answer {
                asking.answered(answer.status().as_u16());
            }
            answer
        })
    }
}

/// The client of the API server that a kubeconfig names, for a command.
///
/// # Errors
/// As [`ConnectError`] says.
pub async fn plain_api_server(kubeconfig: &Path) -> Result<Client, ConnectError> {
    let config = read_kubeconfig("--kubeconfig", kubeconfig).await?;
    Ok(Client::try_from(config)?)
}

/// The client of the API server as kubectl finds it, and the namespace of its context.
/// The clock sees the dates of its answers.
///
/// # Errors
/// As [`ConnectError`] says.
pub async fn as_kubectl(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
    clock: Clock,
) -> Result<(Client, String), ConnectError> {
    let no_way = |error: kube::config::KubeconfigError| ConnectError::NoWay(error.to_string());
    let file = match kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..Default::default() };
    let file = file.map_err(no_way)?;
    let loaded = kube::Config::from_custom_kubeconfig(file.clone(), &options).await;
    let mut config = loaded.map_err(no_way)?;
    choose_proxy(&mut config, &file, context);
    let namespace = config.default_namespace.clone();
    let dating = layer_fn(move |inner| Dated::new(inner, clock.clone()));
    Ok((ClientBuilder::try_from(config)?.with_layer(&dating).build(), namespace))
}

async fn read_kubeconfig(flag: &'static str, path: &Path) -> Result<kube::Config, ConnectError> {
    let wrong = |error: kube::config::KubeconfigError| ConnectError::Kubeconfig {
        flag,
        path: path.to_owned(),
        error: error.to_string(),
    };
    let file = Kubeconfig::read_from(path).map_err(wrong)?;
    let options = KubeConfigOptions::default();
    let loaded = kube::Config::from_custom_kubeconfig(file.clone(), &options).await;
    let mut config = loaded.map_err(wrong)?;
    choose_proxy(&mut config, &file, None);
    Ok(config)
}

/// Sets the proxy as kubectl does: `proxy-url` of the cluster, or HTTPS_PROXY of the environment
/// unless NO_PROXY names the server. kube 5 compares NO_PROXY with the proxy's own address.
fn choose_proxy(config: &mut kube::Config, file: &Kubeconfig, context: Option<&str>) {
    let context = context.or(file.current_context.as_deref());
    let named = file.contexts.iter().find(|named| Some(named.name.as_str()) == context);
    let cluster = named.and_then(|named| Some(&named.context.as_ref()?.cluster));
    let named = file.clusters.iter().find(|named| Some(&named.name) == cluster);
    let url = named.and_then(|named| named.cluster.as_ref()?.proxy_url.as_deref());
    config.proxy_url = match url.filter(|url| !url.is_empty()) {
        Some(url) => url.parse().ok(),
        None => environment_proxy(&config.cluster_url, |name| std::env::var(name).ok()),
    };
}

/// The proxy that the environment names for a server, as Go's `http.ProxyFromEnvironment`: none for loopback.
fn environment_proxy(
    server: &http::Uri,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<http::Uri> {
    let either = |upper: &str| {
        let names = [upper.to_owned(), upper.to_lowercase()];
        names.iter().find_map(|name| variable(name).filter(|value| !value.is_empty()))
    };
    let proxy = either("HTTPS_PROXY")?;
    let proxy = if proxy.contains("://") { proxy } else { format!("http://{proxy}") };
    let host = server.host()?.trim_start_matches('[').trim_end_matches(']');
    let address = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address: IpAddr| address.is_loopback()) {
        return None;
    }
    let excepted = either("NO_PROXY").unwrap_or_default();
    Matcher::builder().https(&*proxy).no(excepted).build().intercept(server)?;
    proxy.parse().ok()
}

/// The client of Prometheus.
///
/// # Errors
/// As [`ConnectError`] says.
pub fn prometheus(url: &str, flags: &PrometheusFlags) -> Result<prometheus::Client, ConnectError> {
    let mut roots = None;
    let mut identity = None;
    let mut token = None;
    if let Some(path) = &flags.prometheus_auth_config {
        (roots, identity, token) = from_kubeconfig(path)?;
    }
    if flags.prometheus_auth_incluster {
        let folder = Path::new(SERVICE_ACCOUNT);
        roots = Some(Pem::read("--prometheus-auth-incluster", &folder.join("ca.crt"))?);
        token = Some(Token::File(folder.join("token")));
    }
    if let Some(path) = &flags.prometheus_ca_file {
        roots = Some(Pem::read("--prometheus-ca-file", path)?);
    }
    let files = (&flags.prometheus_client_tls_cert_file, &flags.prometheus_client_tls_key_file);
    if let (Some(certificate), Some(key)) = files {
        let certificate = Pem::read("--prometheus-client-tls-cert-file", certificate)?;
        identity = Some(certificate.and(Pem::read("--prometheus-client-tls-key-file", key)?));
    }
    if let Some(path) = &flags.prometheus_token_file {
        token = Some(Token::File(path.clone()));
    }
    Ok(prometheus::Client::new(prometheus::Options {
        url: url.to_owned(),
        timeout: flags.prometheus_timeout,
        roots,
        identity,
        token,
        headers: flags.prometheus_header.clone(),
        get: flags.prometheus_verb == PrometheusVerb::Get,
        max_response_bytes: flags.prometheus_max_response_bytes,
    })?)
}

type Credentials = (Option<Pem>, Option<Pem>, Option<Token>);

/// The trusted CA and the credentials of the current context of a kubeconfig.
fn from_kubeconfig(path: &Path) -> Result<Credentials, ConnectError> {
    const FLAG: &str = "--prometheus-auth-config";
    let wrong =
        |error: String| ConnectError::Kubeconfig { flag: FLAG, path: path.to_owned(), error };
    let file = Kubeconfig::read_from(path).map_err(|error| wrong(error.to_string()))?;
    let context = file.current_context.clone().unwrap_or_default();
    let named = file.contexts.iter().find(|named| named.name == context);
    let context = named
        .and_then(|named| named.context.as_ref())
        .ok_or_else(|| wrong(format!("it has no context {context:?} (current-context)")))?;
    let cluster = file.clusters.iter().find(|named| named.name == context.cluster);
    let user =
        context.user.as_ref().and_then(|user| file.auth_infos.iter().find(|n| &n.name == user));
    let pem = |data: Option<&str>, file: Option<&String>| -> Result<Option<Pem>, ConnectError> {
        if let Some(data) = data {
            let quoted = serde_json::json!(data);
            let text: k8s_openapi::ByteString =
                serde_json::from_value(quoted).map_err(|error| wrong(error.to_string()))?;
            let origin = format!("{FLAG}: {}", path.display());
            return Ok(Some(Pem::new(origin, text.0)));
        }
        file.map(|file| Pem::read(FLAG, Path::new(file))).transpose().map_err(Into::into)
    };
    let mut credentials: Credentials = (None, None, None);
    if let Some(cluster) = cluster.and_then(|named| named.cluster.as_ref()) {
        let data = cluster.certificate_authority_data.as_deref();
        credentials.0 = pem(data, cluster.certificate_authority.as_ref())?;
    }
    if let Some(user) = user.and_then(|named| named.auth_info.as_ref()) {
        use secrecy::ExposeSecret;
        let data = user.client_certificate_data.as_deref();
        let certificate = pem(data, user.client_certificate.as_ref())?;
        let key_data = user.client_key_data.as_ref().map(|key| key.expose_secret());
        let key = pem(key_data, user.client_key.as_ref())?;
        credentials.1 = certificate.zip(key).map(|(certificate, key)| certificate.and(key));
        credentials.2 = match (&user.token_file, &user.token) {
            (Some(file), _) => Some(Token::File(PathBuf::from(file))),
            (None, Some(token)) => Some(Token::Text(token.expose_secret().to_owned())),
            (None, None) => None,
        };
    }
    Ok(credentials)
}

/// An address for a log: without user, password, query and fragment, any of which may
/// be a secret.
pub fn without_password(url: &str) -> String {
    let Some(mut url) = reqwest::Url::parse(url).ok().filter(reqwest::Url::has_host) else {
        return "(not a URL)".to_owned();
    };
    // Only an address without a host refuses to have no user.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_without_a_limit_wait_for_none_that_has_one() {
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

    #[test]
    fn the_proxy_of_the_environment_is_chosen_by_the_server() {
        for (server, no_proxy, proxied) in [
            ("https://api.example:6443", "", true),
            ("https://api.example:6443", "proxy.corp,.corp", true),
            ("https://api.example:6443", "api.example", false),
            ("https://api.example:6443", "other,.example", false),
            ("https://10.1.2.3:6443", "10.0.0.0/8", false),
            ("https://10.1.2.3:6443", "192.168.0.0/16", true),
            ("https://127.0.0.1:6443", "", false),
            ("https://[::1]:6443", "", false),
            ("https://localhost:6443", "", false),
            ("http://api.example:8001", "", false),
        ] {
            for (name, value) in [
                ("HTTPS_PROXY", "http://me:secret@proxy.corp:3128"),
                ("https_proxy", "proxy.corp:3128"),
            ] {
                let variable = |asked: &str| match asked {
                    "no_proxy" => Some(no_proxy.to_owned()),
                    asked => (asked == name).then(|| value.to_owned()),
                };
                let proxy = environment_proxy(&server.parse().unwrap(), variable);
                let proxy = proxy.map(|proxy| proxy.to_string().replace("http://", ""));
                let expected = proxied.then(|| format!("{}/", value.replace("http://", "")));
                assert_eq!(proxy, expected, "{server} without {no_proxy:?}");
            }
        }
    }

    #[test]
    fn the_proxy_of_a_cluster_is_taken_whatever_the_environment_says() {
        let file: Kubeconfig = serde_saphyr::from_str(
            "current-context: a\n\
             clusters: [{name: a, cluster: {server: 'https://a', proxy-url: 'http://p:1'}}]\n\
             contexts: [{name: a, context: {cluster: a, user: a}}]\n",
        )
        .unwrap();
        let mut config = kube::Config::new("https://a".parse().unwrap());
        choose_proxy(&mut config, &file, None);
        assert_eq!(config.proxy_url.unwrap().to_string(), "http://p:1/");
        let mut config = kube::Config::new("https://localhost".parse().unwrap());
        choose_proxy(&mut config, &file, Some("other"));
        assert_eq!(config.proxy_url, None);
    }

    #[test]
    fn no_secret_of_an_address_gets_into_a_log() {
        for (url, shown) in [
            ("http://a:b@host:9090/x", "http://host:9090/x"),
            ("http://host:9090", "http://host:9090/"),
            ("http://host/x?token=secret", "http://host/x"),
            ("http://host/x?to=a@b", "http://host/x"),
            ("http://host/x@y/z", "http://host/x@y/z"),
            ("http://a:b@host/#secret", "http://host/"),
            ("user:secret@host", "(not a URL)"),
            ("no address, secret", "(not a URL)"),
        ] {
            assert_eq!(without_password(url), shown, "{url}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_refuses_for_long_is_heard_of_within_seconds() {
        use tower::{Layer, ServiceExt};
        for (code, after, longest) in
            [(503, None, 11), (503, Some("1"), 11), (429, Some("2"), 11), (429, Some("600"), 0)]
        {
            let service = tower::service_fn(move |_: http::Request<Body>| async move {
                let mut answer = http::Response::builder().status(code);
                if let Some(after) = after {
                    answer = answer.header("retry-after", after);
                }
                Ok::<_, BoxError>(answer.body(Body::empty()).expect("an answer"))
            });
            let service = RetryLayer::new(Retries::new()).layer(service);
            let request = http::Request::get("/api/v1/pods").body(Body::empty());
            let begun = Instant::now();
            let answer = service.oneshot(request.expect("a request")).await.expect("an answer");
            assert_eq!(answer.status(), code);
            let took = begun.elapsed();
            assert!(took <= Duration::from_secs(longest), "{code} {after:?}: {took:?}");
        }
    }

    /// A server that fails twice, and then hangs.
    #[tokio::test(start_paused = true)]
    async fn each_try_is_counted_and_one_that_is_given_up_too() {
        use tower::{Layer, ServiceExt};
        let metrics = Arc::new(Metrics::default());
        let tries = Arc::new(std::sync::atomic::AtomicU16::new(0));
        let service = tower::service_fn(move |_: http::Request<Body>| {
            let number = tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            async move {
                if number >= 2 {
                    std::future::pending::<()>().await;
                }
                let answer = http::Response::builder().status(503).body(Body::empty());
                Ok::<_, tower::BoxError>(answer.expect("an answer"))
            }
        });
        let counting = Counting { inner: service, metrics: metrics.clone() };
        let retry = RetryLayer::new(Retries::new()).layer(counting);
        let request = http::Request::get("/api/v1/pods").body(Body::empty()).expect("a request");
        let given_up = tokio::time::timeout(Duration::from_secs(600), retry.oneshot(request));
        assert!(given_up.await.is_err());
        let answer = axum::response::IntoResponse::into_response(
            metrics.exposition(&axum::http::HeaderMap::new()),
        );
        let text = axum::body::to_bytes(answer.into_body(), usize::MAX).await.expect("text");
        let text = String::from_utf8(text.to_vec()).expect("text");
        for (code, count) in [(503, 2), (0, 1)] {
            let line = format!(
                "plimsoll_kube_requests_total{{verb=\"list\",resource=\"pods\",code=\"{code}\"}} {count}\n"
            );
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }
}
