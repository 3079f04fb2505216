//! Each layer by itself, with a stub behind it.

use super::super::admission::OccupiedSeats;
use super::super::error::ApiError;
use super::super::layers;
use super::super::trust::{CaFiles, TrustOptions};
use super::*;
use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use futures::FutureExt;
use k8s_openapi::api::core::v1::ConfigMap;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::CertificateDer;
use std::future::Future;
use tower::ServiceExt;

/// Responds with what the layers before it found: the parsed path and the name of the user.
fn stub() -> Router {
    Router::new().fallback(|request: Request| async move {
        let path = request.extensions().get::<ParsedPath>().map(|path| path.0.clone());
        let user = request.extensions().get::<RequestUser>();
        let user = user.map(|user| user.0.as_ref().map_or("nobody", |user| user.name.as_str()));
        format!("{path:?} {user:?}")
    })
}

/// The status of the response, and the text of its body.
async fn ask(router: &Router, request: Request) -> (StatusCode, String) {
    let response = router.clone().oneshot(request).await.unwrap();
    (response.status(), text(response).await)
}

/// All free seats.
fn all_seats<F: Future<Output = Option<OccupiedSeats>>>(
    acquire: impl Fn() -> F,
) -> Vec<OccupiedSeats> {
    std::iter::from_fn(|| acquire().now_or_never().flatten()).collect()
}

#[tokio::test]
async fn instrument_encodes_errors_as_the_client_accepts_and_counts_all_responses() {
    let metrics = Arc::<Metrics>::default();
    let behind = metrics.clone();
    let router = Router::new()
        .fallback(|request: Request| async move {
            match request.uri().path() {
                "/metrics" => Ok(behind.openmetrics()),
                _ => Err(ApiError::too_many_requests()),
            }
        })
        .layer(from_fn_with_state(metrics.clone(), layers::instrument));
    let (code, within) = ask(&router, get("/metrics")).await;
    assert_eq!(code, StatusCode::OK);
    assert!(within.contains("\nplimsoll_http_requests_in_flight 1\n"), "{within}");
    let (code, body) = ask(&router, get("/apis")).await;
    let status: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, &status["kind"]), (StatusCode::TOO_MANY_REQUESTS, &json!("Status")));
    let mut request = get("/apis");
    request.headers_mut().insert("accept", "application/yaml".parse().unwrap());
    let response = router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/yaml");
    assert_eq!(response.headers()["retry-after"], "1");
    assert!(text(response).await.contains("reason: TooManyRequests"));
    let shown = metrics.openmetrics();
    for line in [
        "plimsoll_http_requests_in_flight 0\n",
        "plimsoll_http_requests_total{code=\"200\"} 1\n",
        "plimsoll_http_requests_total{code=\"429\"} 2\n",
        "plimsoll_http_request_duration_seconds_count{kind=\"metrics\"} 1\n",
        "plimsoll_http_request_duration_seconds_count{kind=\"discovery\"} 2\n",
    ] {
        assert!(shown.contains(line), "{line}{shown}");
    }
}

#[tokio::test]
async fn canonicalize_refuses_ambiguous_paths_and_impersonation_and_parses_the_path() {
    let router = stub().layer(from_fn(layers::canonicalize));
    for path in ["/metrics", "/apis", "/apis/metrics.k8s.io/v1beta1/nodes"] {
        let parsed = format!("{:?} None", Some(RequestInfo::parse(path)));
        assert_eq!(ask(&router, get(path)).await, (StatusCode::OK, parsed));
    }
    for path in ["/a//b", "/a/../b", "/a/%2e%2e/b", "/a/b%2fc", "/a/%zz"] {
        let (code, body) = ask(&router, get(path)).await;
        assert_eq!((code, &*body), (StatusCode::BAD_REQUEST, ""), "{path}");
    }
    for header in ["impersonate-user", "Impersonate-Extra-x"] {
        let request = Request::get("/metrics").header(header, "a").body(Body::empty()).unwrap();
        assert_eq!(ask(&router, request).await, (StatusCode::FORBIDDEN, String::new()));
    }
}

fn authenticating(client: &Client, trust: TrustStore) -> (Router, Arc<Metrics>) {
    let metrics = Arc::<Metrics>::default();
    let (authenticator, authorizer) =
        (authenticator(client, trust, &metrics), authorizer(client, &metrics));
    let layer = AuthenticationLayer::new(authenticator, authorizer, metrics.clone());
    (stub().layer(from_fn_with_state(layer, layers::authenticate)), metrics)
}

#[tokio::test]
async fn authenticate_finds_the_user_or_refuses_the_request() {
    let (client, log) = reviewer();
    let (router, _) = authenticating(&client, TrustStore::default());
    let ask = async |request| {
        let (code, body) = ask(&router, request).await;
        (code.as_u16(), body)
    };
    let nobody = (200, "None Some(\"nobody\")".to_owned());
    assert_eq!(ask(on_connection("/open/x", Some("wrong"))).await, nobody);
    let refused = (401, String::new());
    assert_eq!(ask(on_connection("/closed", None)).await, refused);
    // Without the listener, there is no peer to authenticate.
    for path in ["/closed", "/open/x"] {
        assert_eq!(ask(get(path)).await, refused, "{path}");
    }
    assert_eq!(log.of(TOKEN_REVIEWS).len(), 0);
    assert_eq!(ask(on_connection("/closed", Some("wrong"))).await, refused);
    let alice = (200, "None Some(\"alice\")".to_owned());
    assert_eq!(ask(on_connection("/closed", Some("alice"))).await, alice);
    // Unknown tokens of one address are limited.
    let mut guesses = Vec::new();
    while !guesses.contains(&429) {
        assert!(guesses.len() < 10_000, "no guess is one too many");
        let mut request = on_connection("/closed", None);
        let guess = format!("Bearer {}", guesses.len()).parse().unwrap();
        request.headers_mut().insert("authorization", guess);
        guesses.push(ask(request).await.0);
    }
    assert_eq!(ask(on_connection("/closed", Some("alice"))).await, alice);
}

/// A CA, and the certificate of a client that it signed.
fn signed(client: &str) -> (String, CertificateDer<'static>) {
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = ca.self_signed(&key).unwrap().pem();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, client);
    let issuer = rcgen::Issuer::new(ca, key);
    let certificate = params.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap();
    (pem, certificate.der().clone())
}

#[tokio::test]
async fn authenticate_believes_the_headers_of_the_front_proxy_alone() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (front_proxy_ca, front_proxy) = signed("front-proxy");
    let (client_ca, client) = signed("carol");
    let (_, unknown) = signed("front-proxy");
    let data = [
        ("requestheader-allowed-names", r#"["front-proxy"]"#),
        ("requestheader-client-ca-file", &front_proxy_ca),
        ("requestheader-username-headers", r#"["X-Remote-User"]"#),
        ("client-ca-file", &client_ca),
    ];
    let data = data.map(|(key, text)| (key.to_owned(), text.to_owned())).into();
    let published = ConfigMap { data: Some(data), ..ConfigMap::default() };
    let trust = TrustStore::default();
    trust.set(TrustOptions::default().bundle(Some(&published), &CaFiles::default()).unwrap());
    let (router, _) = authenticating(&reviewer().0, trust);
    for (certificate, code, found) in [
        (front_proxy, 200, "None Some(\"alice\")"),
        (client, 200, "None Some(\"carol\")"),
        (unknown, 401, ""),
    ] {
        let mut request = on_connection("/closed", None);
        let chain = Arc::new(ClientChain::new(vec![certificate]));
        request.extensions_mut().insert(Peer { chain, ..peer() });
        request.headers_mut().insert("x-remote-user", "alice".parse().unwrap());
        let (status, body) = ask(&router, request).await;
        assert_eq!((status.as_u16(), &*body), (code, found));
    }
}

#[tokio::test]
async fn authenticate_does_not_tell_anonymous_clients_why_a_review_failed() {
    let (client, _) = fake::api(|_| fake::failure(500, "InternalError", "etcd-3.internal is down"));
    let (router, metrics) = authenticating(&client, TrustStore::default());
    let router = router.layer(from_fn_with_state(metrics, layers::instrument));
    let (code, body) = ask(&router, on_connection("/closed", Some("alice"))).await;
    assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
    let status: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status["message"], "the token could not be reviewed");
}

#[tokio::test]
async fn authenticate_serves_no_anonymous_client_on_an_overflow_connection() {
    let (client, log) = reviewer();
    let (router, metrics) = authenticating(&client, TrustStore::default());
    let limiter = ConnectionLimiter::default();
    let source = [10, 0, 0, 1].into();
    let (connection, _evicted) = limiter.admit_overflow(source).await.unwrap();
    for path in ["/open/x", "/closed"] {
        let mut request = on_connection(path, Some("alice"));
        let connection = connection.clone();
        request.extensions_mut().insert(Peer { connection, source, ..peer() });
        assert_eq!(ask(&router, request).await.0, StatusCode::TOO_MANY_REQUESTS, "{path}");
    }
    assert_eq!(log.of(TOKEN_REVIEWS).len(), 0);
    let rejected = "plimsoll_http_requests_rejected_total{reason=\"connections\"} 2\n";
    assert!(metrics.openmetrics().contains(rejected));
}

#[tokio::test(start_paused = true)]
async fn admit_holds_a_seat_of_the_tenant_until_the_response_is_sent() {
    let (admission, metrics) = (Admission::default(), Arc::<Metrics>::default());
    let state = (admission.clone(), metrics.clone());
    let router = stub().layer(from_fn_with_state(state, layers::admit));
    let alice = user("alice");
    let ask = async |name: &str| {
        router.clone().oneshot(authenticated("/x", Some(user(name)))).await.unwrap()
    };
    let has_seat = || admission.admit(&alice).now_or_never().flatten().is_some();
    let mut occupied = all_seats(|| admission.admit(&alice));
    assert!(!occupied.is_empty());
    assert_eq!(ask("alice").await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(ask("bob").await.status(), StatusCode::OK);
    let rejected = "plimsoll_http_requests_rejected_total{reason=\"requests\"} 1\n";
    assert!(metrics.openmetrics().contains(rejected));
    occupied.pop();
    let response = ask("alice").await;
    assert_eq!(response.status(), StatusCode::OK);
    // It is not sent yet.
    assert!(!has_seat());
    drop(response);
    assert!(has_seat());
}

#[tokio::test(start_paused = true)]
async fn admit_times_a_request_out() {
    let admission = Admission::default();
    let state = (admission.clone(), Arc::default());
    let router = Router::new()
        .fallback(std::future::pending::<()>)
        .layer(from_fn_with_state(state, layers::admit));
    let begun = tokio::time::Instant::now();
    let (code, _) = ask(&router, authenticated("/x", Some(user("alice")))).await;
    assert_eq!((code, begun.elapsed().as_secs()), (StatusCode::SERVICE_UNAVAILABLE, 30));
}

#[tokio::test]
async fn authorize_passes_on_only_what_a_review_or_an_always_allowed_path_allows() {
    let (client, log) = reviewer();
    let layer = authorizer(&client, &Arc::default());
    let router = stub().layer(from_fn_with_state(layer, layers::authorize));
    let ask = async |request| ask(&router, request).await.0.as_u16();
    let pods = "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods";
    assert_eq!(ask(authenticated("/open/x", None)).await, 200);
    assert_eq!(log.of(ACCESS_REVIEWS).len(), 0);
    assert_eq!(ask(authenticated(pods, Some(user("alice")))).await, 200);
    assert_eq!(ask(authenticated(pods, Some(user("mallory")))).await, 403);
    assert_eq!(ask(authenticated("/metrics", Some(user("mallory")))).await, 403);
    let specs: Vec<Value> =
        log.of(ACCESS_REVIEWS).into_iter().map(|review| review.body["spec"].clone()).collect();
    let of_pods = json!({"group": "metrics.k8s.io", "version": "v1beta1", "verb": "list",
        "namespace": "shop", "resource": "pods"});
    let of_metrics = json!({"path": "/metrics", "verb": "get"});
    assert_eq!(specs[0]["resourceAttributes"], of_pods);
    assert_eq!(specs[2]["nonResourceAttributes"], of_metrics);
    // Without one of the layers before it, a request is refused, even if its path is always allowed.
    let mut unauthenticated = authenticated(pods, None);
    unauthenticated.extensions_mut().remove::<RequestUser>();
    assert_eq!(ask(unauthenticated).await, 500);
    let mut unparsed = authenticated(pods, Some(user("alice")));
    unparsed.extensions_mut().remove::<ParsedPath>();
    assert_eq!(ask(unparsed).await, 500);
    assert_eq!(ask(get("/open/x")).await, 500);
}

#[tokio::test(start_paused = true)]
async fn admit_authorized_holds_a_seat_of_the_namespace_until_the_response_is_sent() {
    let (admission, alice) = (Admission::default(), user("alice"));
    let state = (admission.clone(), Arc::default());
    let router = stub().layer(from_fn_with_state(state, layers::admit_authorized));
    let ask = async |namespace: &str, name: &str| {
        let path = format!("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods");
        router.clone().oneshot(authenticated(&path, Some(user(name)))).await.unwrap()
    };
    let acquire = || admission.admit_authorized(&alice, Some("shop"));
    let mut occupied = all_seats(acquire);
    assert!(!occupied.is_empty());
    assert_eq!(ask("shop", "bob").await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(ask("bank", "bob").await.status(), StatusCode::OK);
    let controller = "system:kube-controller-manager";
    assert_eq!(ask("shop", controller).await.status(), StatusCode::OK);
    occupied.pop();
    let response = ask("shop", "bob").await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(acquire().now_or_never().flatten().is_none());
    drop(response);
    assert!(acquire().now_or_never().flatten().is_some());
}
