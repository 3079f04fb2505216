//! Each step of the handler chain by itself.

use super::super::admission::{Admission, OccupiedSeats};
use super::super::handler_chain::{HandlerChain, check, in_time};
use super::super::trust::{CaFiles, TrustOptions};
use super::*;
use axum::http::request::Parts;
use futures::FutureExt;
use k8s_openapi::api::core::v1::ConfigMap;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::CertificateDer;
use std::future::Future;

const DISCOVERY: &str = "/apis/custom.metrics.k8s.io";

fn parts(request: Request) -> Parts {
    request.into_parts().0
}

/// The response to a user; anonymous, if the path is always allowed.
async fn respond(
    chain: &HandlerChain,
    path: &str,
    user: Option<UserInfo>,
) -> Result<Response<Body>, ApiError> {
    chain.respond(&parts(get(path)), RequestInfo::parse(path), user.as_ref()).await
}

/// The status of the response.
fn code(response: Result<Response<Body>, ApiError>) -> u16 {
    response.map_or_else(|error| error.code, |response| response.status()).as_u16()
}

/// All free seats.
fn all_seats<F: Future<Output = Option<OccupiedSeats>>>(
    acquire: impl Fn() -> F,
) -> Vec<OccupiedSeats> {
    std::iter::from_fn(|| acquire().now_or_never().flatten()).collect()
}

#[tokio::test]
async fn errors_are_encoded_as_the_client_accepts_and_all_responses_counted() {
    let server = server(&reviewer().0);
    let metrics = server.metrics.clone();
    let chain = HandlerChain::new(server, Admission::default());
    let response = chain.serve(on_connection("/metrics", Some("alice"))).await;
    assert_eq!(response.status(), StatusCode::OK);
    let within = text(response).await;
    assert!(within.contains("\nplimsoll_http_requests_in_flight 1\n"), "{within}");
    // Each response that is not read holds a seat.
    let mut unread = Vec::new();
    let refused = loop {
        let response = chain.serve(on_connection("/apis", None)).await;
        if response.status() != StatusCode::OK {
            break response;
        }
        unread.push(response);
    };
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let status: Value = serde_json::from_str(&text(refused).await).unwrap();
    assert_eq!(status["kind"], "Status");
    let mut request = on_connection("/apis", None);
    request.headers_mut().insert("accept", "application/yaml".parse().unwrap());
    let response = chain.serve(request).await;
    assert_eq!(response.headers()["content-type"], "application/yaml");
    assert_eq!(response.headers()["retry-after"], "1");
    assert!(text(response).await.contains("reason: TooManyRequests"));
    let (shown, served) = (metrics.openmetrics(), unread.len());
    for line in [
        "plimsoll_http_requests_in_flight 0\n".to_owned(),
        format!("plimsoll_http_requests_total{{code=\"200\"}} {}\n", 1 + served),
        "plimsoll_http_requests_total{code=\"429\"} 2\n".to_owned(),
        "plimsoll_http_request_duration_seconds_count{kind=\"metrics\"} 1\n".to_owned(),
        format!(
            "plimsoll_http_request_duration_seconds_count{{kind=\"discovery\"}} {}\n",
            2 + served
        ),
    ] {
        assert!(shown.contains(&line), "{line}{shown}");
    }
}

#[test]
fn ambiguous_paths_and_impersonation_are_refused() {
    for path in ["/metrics", "/apis", "/apis/metrics.k8s.io/v1beta1/nodes"] {
        assert_eq!(check(&parts(get(path))), Ok(()), "{path}");
    }
    for path in ["/a//b", "/a/../b", "/a/%2e%2e/b", "/a/b%2fc", "/a/%zz"] {
        let error = check(&parts(get(path))).unwrap_err();
        assert_eq!(error.code, StatusCode::BAD_REQUEST, "{path}");
    }
    for header in ["impersonate-user", "Impersonate-Extra-x"] {
        let request = Request::get("/metrics").header(header, "a").body(Body::empty()).unwrap();
        assert_eq!(check(&parts(request)).unwrap_err().code, StatusCode::FORBIDDEN);
    }
}

fn authenticating(client: &Client, trust: TrustStore) -> HandlerChain {
    let server = server(client);
    let authenticator = authenticator(client, trust, &server.metrics);
    HandlerChain::new(Server { authenticator, ..server }, Admission::default())
}

/// The name of the user of a request, none if its path is always allowed, or the status of the refusal.
async fn authenticate(chain: &HandlerChain, request: Request) -> Result<Option<String>, u16> {
    let user = chain.authenticate(&parts(request)).await;
    user.map(|user| user.map(|user| user.name.clone())).map_err(|error| error.code.as_u16())
}

#[tokio::test]
async fn authenticate_finds_the_user_or_refuses_the_request() {
    let (client, log) = reviewer();
    let chain = authenticating(&client, TrustStore::default());
    let ask = async |request| authenticate(&chain, request).await;
    assert_eq!(ask(on_connection("/open/x", Some("wrong"))).await, Ok(None));
    assert_eq!(ask(on_connection("/closed", None)).await, Err(401));
    // Without the listener, there is no peer to authenticate.
    for path in ["/closed", "/open/x"] {
        assert_eq!(ask(get(path)).await, Err(401), "{path}");
    }
    assert_eq!(log.of(TOKEN_REVIEWS).len(), 0);
    assert_eq!(ask(on_connection("/closed", Some("wrong"))).await, Err(401));
    let alice = Ok(Some("alice".to_owned()));
    assert_eq!(ask(on_connection("/closed", Some("alice"))).await, alice);
    // Unknown tokens of one address are limited.
    let mut guesses = Vec::new();
    while !guesses.contains(&Err(429)) {
        assert!(guesses.len() < 10_000, "no guess is one too many");
        let mut request = on_connection("/closed", None);
        let guess = format!("Bearer {}", guesses.len()).parse().unwrap();
        request.headers_mut().insert("authorization", guess);
        guesses.push(ask(request).await);
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
    let chain = authenticating(&reviewer().0, trust);
    for (certificate, found) in [
        (front_proxy, Ok(Some("alice".to_owned()))),
        (client, Ok(Some("carol".to_owned()))),
        (unknown, Err(401)),
    ] {
        let mut request = on_connection("/closed", None);
        let of_client = Arc::new(ClientChain::new(vec![certificate]));
        request.extensions_mut().insert(Peer { chain: of_client, ..peer() });
        request.headers_mut().insert("x-remote-user", "alice".parse().unwrap());
        assert_eq!(authenticate(&chain, request).await, found);
    }
}

#[tokio::test]
async fn authenticate_does_not_tell_anonymous_clients_why_a_review_failed() {
    let (client, _) = fake::api(|_| fake::failure(500, "InternalError", "etcd-3.internal is down"));
    let chain = authenticating(&client, TrustStore::default());
    let response = chain.serve(on_connection("/closed", Some("alice"))).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    let status: Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(status["message"], "the token could not be reviewed");
}

#[tokio::test]
async fn authenticate_serves_no_anonymous_client_on_an_overflow_connection() {
    let (client, log) = reviewer();
    let server = server(&client);
    let metrics = server.metrics.clone();
    let chain = HandlerChain::new(server, Admission::default());
    let limiter = ConnectionLimiter::default();
    let source = [10, 0, 0, 1].into();
    let (connection, _evicted) = limiter.admit_overflow(source).await.unwrap();
    for path in ["/open/x", "/closed"] {
        let mut request = on_connection(path, Some("alice"));
        let connection = connection.clone();
        request.extensions_mut().insert(Peer { connection, source, ..peer() });
        assert_eq!(authenticate(&chain, request).await, Err(429), "{path}");
    }
    assert_eq!(log.of(TOKEN_REVIEWS).len(), 0);
    let rejected = "plimsoll_http_requests_rejected_total{reason=\"connections\"} 2\n";
    assert!(metrics.openmetrics().contains(rejected));
}

#[tokio::test(start_paused = true)]
async fn a_response_holds_a_seat_of_the_tenant_until_it_is_sent() {
    let (server, admission) = (server(&reviewer().0), Admission::default());
    let metrics = server.metrics.clone();
    let chain = HandlerChain::new(server, admission.clone());
    let alice = user("alice");
    let ask = async |name: &str| respond(&chain, DISCOVERY, Some(user(name))).await;
    let has_seat = || admission.admit(&alice).now_or_never().flatten().is_some();
    let mut occupied = all_seats(|| admission.admit(&alice));
    assert!(!occupied.is_empty());
    assert_eq!(code(ask("alice").await), 429);
    assert_eq!(code(ask("bob").await), 200);
    let rejected = "plimsoll_http_requests_rejected_total{reason=\"requests\"} 1\n";
    assert!(metrics.openmetrics().contains(rejected));
    occupied.pop();
    let response = ask("alice").await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    // It is not sent yet.
    assert!(!has_seat());
    drop(response);
    assert!(has_seat());
}

#[tokio::test(start_paused = true)]
async fn a_request_times_out() {
    let begun = tokio::time::Instant::now();
    let error = in_time(std::future::pending::<Result<(), ApiError>>()).await.unwrap_err();
    let took = begun.elapsed().as_secs();
    assert_eq!((error.code, took), (StatusCode::SERVICE_UNAVAILABLE, 30));
}

#[tokio::test]
async fn only_what_a_review_or_an_always_allowed_path_allows_is_handled() {
    let (client, log) = reviewer();
    let chain = HandlerChain::new(server(&client), Admission::default());
    let ask = async |path: &str, user| code(respond(&chain, path, user).await);
    // There are no rules for resource usage.
    let pods = "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods";
    assert_eq!(ask("/open/x", None).await, 404);
    assert_eq!(log.of(ACCESS_REVIEWS).len(), 0);
    assert_eq!(ask(pods, Some(user("alice"))).await, 404);
    assert_eq!(ask(pods, Some(user("mallory"))).await, 403);
    assert_eq!(ask("/metrics", Some(user("mallory"))).await, 403);
    let specs: Vec<Value> =
        log.of(ACCESS_REVIEWS).into_iter().map(|review| review.body["spec"].clone()).collect();
    let of_pods = json!({"group": "metrics.k8s.io", "version": "v1beta1", "verb": "list",
        "namespace": "shop", "resource": "pods"});
    let of_metrics = json!({"path": "/metrics", "verb": "get"});
    assert_eq!(specs[0]["resourceAttributes"], of_pods);
    assert_eq!(specs[2]["nonResourceAttributes"], of_metrics);
}

#[tokio::test(start_paused = true)]
async fn a_response_holds_a_seat_of_all_until_it_is_sent() {
    let (admission, alice) = (Admission::default(), user("alice"));
    let chain = HandlerChain::new(server(&reviewer().0), admission.clone());
    let ask = async |name: &str| respond(&chain, DISCOVERY, Some(user(name))).await;
    let acquire = || admission.admit_authorized(&alice, None);
    let mut occupied = all_seats(acquire);
    assert!(!occupied.is_empty());
    assert_eq!(code(ask("bob").await), 429);
    assert_eq!(code(ask("system:kube-controller-manager").await), 200);
    occupied.pop();
    let response = ask("bob").await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert!(acquire().now_or_never().flatten().is_none());
    drop(response);
    assert!(acquire().now_or_never().flatten().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_request_for_a_namespace_takes_one_of_its_seats() {
    let (admission, alice) = (Admission::default(), user("alice"));
    let chain = HandlerChain::new(server(&reviewer().0), admission.clone());
    let ask = async |namespace: &str, name: &str| {
        // There are no rules for resource usage.
        let path = format!("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods");
        code(respond(&chain, &path, Some(user(name))).await)
    };
    let mut occupied = all_seats(|| admission.admit_authorized(&alice, Some("shop")));
    assert!(!occupied.is_empty());
    assert_eq!(ask("shop", "bob").await, 429);
    assert_eq!(ask("bank", "bob").await, 404);
    assert_eq!(ask("shop", "system:kube-controller-manager").await, 404);
    occupied.pop();
    assert_eq!(ask("shop", "bob").await, 404);
}
