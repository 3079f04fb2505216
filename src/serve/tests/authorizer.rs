//! `Authorizer`, against an API server that reviews.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// The attributes of reading a non-resource path.
fn read(path: &str) -> Attributes {
    Attributes::NonResource { path: path.to_owned(), verb: "get".to_owned() }
}

#[tokio::test]
async fn decisions_of_either_kind_are_reviewed_once() {
    let (client, log) = reviewer();
    let metrics = Arc::<Metrics>::default();
    let authorizer = authorizer(&client, &metrics);
    let all = |name: &str| {
        let (authorizer, name) = (authorizer.clone(), user(name));
        async move { authorizer.authorize(&name, read("/metrics")).await }
    };
    // Equal requests at the same time share a review, too.
    for _ in 0..2 {
        for result in futures::future::join_all((0..20).map(|_| all("alice"))).await {
            result.unwrap();
        }
        let error = all("mallory").await.unwrap_err();
        assert_eq!((error.code, error.reason), (StatusCode::FORBIDDEN, "Forbidden"));
        let message = "forbidden: User \"mallory\" cannot get path \"/metrics\": no rule allows it";
        assert_eq!(error.message, message);
    }
    assert_eq!(log.of(ACCESS_REVIEWS).len(), 2);
    // Another path is another decision.
    authorizer.authorize(&user("alice"), read("/live")).await.unwrap();
    assert_eq!(log.of(ACCESS_REVIEWS).len(), 3);
    let shown = metrics.openmetrics();
    for (outcome, count) in [("allowed", 2), ("denied", 1)] {
        let line =
            format!("plimsoll_reviews_total{{review=\"access\",outcome=\"{outcome}\"}} {count}\n");
        assert!(shown.contains(&line), "{line}{shown}");
    }
}

#[tokio::test]
async fn a_review_has_all_that_is_known_of_the_user() {
    let (client, log) = reviewer();
    let alice = UserInfo {
        name: "alice".to_owned(),
        uid: "42".to_owned(),
        groups: vec!["dev".to_owned()],
        extra: [("example.com/team".to_owned(), vec!["blue".to_owned()])].into(),
    };
    let pods =
        RequestInfo::parse("/apis/custom.metrics.k8s.io/v1beta2/namespaces/shop/pods/web-0/load");
    let attributes = Attributes::of(
        pods.ok().as_ref(),
        &axum::http::Method::GET,
        &axum::http::Uri::from_static("/"),
    );
    authorizer(&client, &Arc::default()).authorize(&alice, attributes).await.unwrap();
    let spec = json!({"user": "alice", "uid": "42", "groups": ["dev"],
        "extra": {"example.com/team": ["blue"]},
        "resourceAttributes": {"group": "custom.metrics.k8s.io", "version": "v1beta2",
            "verb": "get", "namespace": "shop", "resource": "pods", "subresource": "load",
            "name": "web-0"}});
    assert_eq!(log.of(ACCESS_REVIEWS)[0].body["spec"], spec);
}

#[tokio::test]
async fn a_failed_review_is_not_cached() {
    let away = Arc::new(AtomicBool::new(true));
    let (client, log) = {
        let away = away.clone();
        fake::api(move |request| match away.load(Ordering::SeqCst) {
            true => fake::failure(500, "InternalError", "etcd is down"),
            false => (201, reviewed(request)),
        })
    };
    let authorizer = authorizer(&client, &Arc::default());
    let (alice, metrics) = (user("alice"), read("/metrics"));
    let error = authorizer.authorize(&alice, metrics.clone()).await.unwrap_err();
    assert_eq!((error.code, error.retry_after), (StatusCode::SERVICE_UNAVAILABLE, Some(1)));
    away.store(false, Ordering::SeqCst);
    authorizer.authorize(&alice, metrics).await.unwrap();
    assert_eq!(log.of(ACCESS_REVIEWS).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_does_not_respond_is_waited_for_ten_seconds() {
    let (client, _) = fake::api(|_| (0, Value::Null));
    let begun = tokio::time::Instant::now();
    let authorizer = authorizer(&client, &Arc::default());
    let error = authorizer.authorize(&user("alice"), read("/metrics")).await.unwrap_err();
    assert_eq!((error.code, begun.elapsed().as_secs()), (StatusCode::SERVICE_UNAVAILABLE, 10));
}

#[tokio::test]
async fn the_reviews_of_a_tenant_are_limited_and_those_of_the_control_plane_are_not() {
    let (client, log) = reviewer();
    let metrics = Arc::<Metrics>::default();
    let authorizer = authorizer(&client, &metrics);
    let mut allowed = 0;
    let error = loop {
        assert!(allowed < 20_000, "no review is one too many");
        // All accounts of a namespace are one tenant.
        let account = format!("system:serviceaccount:shop:a{}", allowed % 7);
        match authorizer.authorize(&user(&account), read(&format!("/{allowed}"))).await {
            Ok(()) => allowed += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((error.code, error.retry_after), (StatusCode::TOO_MANY_REQUESTS, Some(1)));
    assert!(allowed >= 400, "{allowed} at once");
    assert_eq!(log.of(ACCESS_REVIEWS).len(), allowed);
    let rejected = "plimsoll_http_requests_rejected_total{reason=\"access_reviews\"} 1\n";
    assert!(metrics.openmetrics().contains(rejected));
    // Cached decisions need no review.
    authorizer.authorize(&user("system:serviceaccount:shop:a0"), read("/0")).await.unwrap();
    authorizer.authorize(&user("system:serviceaccount:bank:a"), read("/0")).await.unwrap();
    for n in 0..1_000 {
        let controller = user("system:kube-controller-manager");
        authorizer.authorize(&controller, read(&format!("/{n}"))).await.unwrap();
    }
}

#[tokio::test]
async fn the_privileged_group_needs_no_review() {
    let (client, log) = reviewer();
    let groups = vec!["system:masters".to_owned()];
    let admin = UserInfo { groups, ..user("mallory") };
    let authorizer = authorizer(&client, &Arc::default());
    authorizer.authorize(&admin, read("/metrics")).await.unwrap();
    assert_eq!(log.of(ACCESS_REVIEWS).len(), 0);
}

#[tokio::test]
async fn paths_are_always_allowed_by_name_or_by_prefix() {
    let (client, _) = reviewer();
    let authorizer = authorizer(&client, &Arc::default());
    for (path, allowed) in [
        ("/apis", true),
        ("/apis/", false),
        ("/apis/metrics.k8s.io", false),
        ("/open", true),
        ("/open/x", true),
        ("/ope", false),
    ] {
        assert_eq!(authorizer.is_always_allowed(path), allowed, "{path}");
    }
}
