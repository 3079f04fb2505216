//! The order of the steps: each is distinguished from the next by a request that both refuse.

use super::super::router::router;
use super::*;
use tower::ServiceExt;

/// As many as a tenant may have at once (`admission.rs`).
const SEATS: usize = 100;
const DISCOVERY: &str = "/apis/custom.metrics.k8s.io";

#[tokio::test(start_paused = true)]
async fn a_request_passes_the_steps_in_their_order() {
    let (client, log) = reviewer();
    let server = server(&client);
    let metrics = server.metrics.clone();
    let router = router(server);
    let ask = async |path: &str, token: Option<&str>| {
        router.clone().oneshot(on_connection(path, token)).await.unwrap()
    };
    let code = async |path: &str, token: Option<&str>| ask(path, token).await.status().as_u16();
    // As many responses as a client may leave unread at once.
    let mut unread = Vec::new();
    let mut fill = async |path: &str, token: Option<&str>| {
        for _ in 0..SEATS {
            let response = ask(path, token).await;
            assert_eq!(response.status(), StatusCode::OK, "{path} {token:?}");
            unread.push(response);
        }
    };

    // Instrumented before `check`: a path that is refused is counted, and the error encoded.
    let refused = ask("/a//b", None).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    assert!(text(refused).await.contains("\"kind\":\"Status\""));
    assert!(metrics.openmetrics().contains("plimsoll_http_requests_total{code=\"400\"} 1\n"));
    // `check` before `authenticate`: 400 and not 401.
    assert_eq!(code("/a//b", Some("wrong")).await, 400);
    assert_eq!(log.of("POST").len(), 0);
    // `authenticate` before a seat of the tenant: 401 and not 429, as anonymous users have no seat left.
    fill("/apis", None).await;
    assert_eq!(code("/apis", None).await, 429);
    assert_eq!(code(DISCOVERY, None).await, 401);
    // That seat before `authorize`: a user without a seat causes no review.
    fill(DISCOVERY, Some("alice")).await;
    let reviews = log.of(ACCESS_REVIEWS).len();
    assert_eq!(code("/nowhere", Some("alice")).await, 429);
    assert_eq!(log.of(ACCESS_REVIEWS).len(), reviews);
    // `authorize` before the other seats: 403 and not 429, as nobody has a seat left.
    fill(DISCOVERY, Some("bob")).await;
    fill(DISCOVERY, Some("carol")).await;
    assert_eq!(code(DISCOVERY, Some("mallory")).await, 403);
    assert_eq!(code(DISCOVERY, Some("dave")).await, 429);
    // These before the handler: with a seat, the same request is served.
    unread.pop();
    assert_eq!(code(DISCOVERY, Some("dave")).await, 200);
}
