//! What holds of the client, over transports of all kinds.

use super::{
    BodyStream, Client, Error, Flow, Options, Token, Transport, TransportError, Within,
    read_query_response,
};
use crate::telemetry::Metrics;
use bytes::Bytes;
use futures::future::{self, BoxFuture};
use futures::{FutureExt, StreamExt, stream};
use http::header::AUTHORIZATION;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A server whose bodies are made by a function.
struct Fake<F>(F);

impl<F> std::fmt::Debug for Fake<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fake")
    }
}

impl<F: Fn(http::Request<Bytes>) -> BodyStream + Send + Sync> Transport for Fake<F> {
    fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'static, Result<http::Response<BodyStream>, TransportError>> {
        future::ready(Ok(http::Response::new((self.0)(request)))).boxed()
    }
}

fn client(
    get: bool,
    body: impl Fn(http::Request<Bytes>) -> BodyStream + Send + Sync + 'static,
) -> Client {
    let options = Options { get, ..Options::new("http://server/base") };
    let token = Some(Token::Text("secret".to_owned()));
    Client::over(Arc::new(Fake(body)), Options { token, ..options }).unwrap()
}

/// A proxy that answers one query with this status.
#[derive(Debug)]
struct Refusing(u16);

impl Transport for Refusing {
    fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'static, Result<http::Response<BodyStream>, TransportError>> {
        let status = match String::from_utf8_lossy(request.body()).contains("passwd") {
            true => self.0,
            false => 200,
        };
        let empty = r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#;
        let body = stream::iter([Ok(Bytes::from(empty))]).boxed();
        future::ready(Ok(http::Response::builder().status(status).body(body).unwrap())).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_limit_is_that_of_the_whole_response_whatever_it_comes_over() {
    let begins = |_| stream::iter([Ok(Bytes::from("{"))]).chain(stream::pending()).boxed();
    let begun = Instant::now();
    let error = client(false, begins).query("up", &[]).await.err();
    assert_eq!(error, Some(Error::Timeout(Duration::from_secs(30))));
    assert_eq!(begun.elapsed().as_secs(), 30);
    for (broken, expected) in [
        (TransportError::Timeout, Error::Timeout(Duration::from_secs(30))),
        (TransportError::Unreachable("cut".into()), Error::BrokenOff("cut".into())),
    ] {
        let breaks = move |_| stream::iter([Err(broken.clone())]).boxed();
        assert_eq!(client(false, breaks).query("up", &[]).await.err(), Some(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn a_users_own_query_that_is_late_says_nothing_about_the_server() {
    let client = client(false, |_| stream::pending().boxed());
    let fails = async |flow: Flow| {
        let error = client.query("up", std::slice::from_ref(&flow)).await.err();
        assert!(matches!(error, Some(Error::Timeout(_))), "{flow:?}: {error:?}");
        client.failing_for().is_some()
    };
    let [user, namespace] = [Flow::User("shop".into()), Flow::Namespace("shop".into())];
    assert!(!fails(user.clone()).await, "it may just be slow");
    assert!(fails(namespace).await);
    assert!(fails(user).await, "nor is it a sign that the server serves again");
}

/// A web application firewall refuses one query of a tenant; else the tenant would unseat the leader.
#[tokio::test(start_paused = true)]
async fn a_refusal_that_may_be_of_a_proxy_says_nothing_about_the_server() {
    for flow in [Flow::User("shop".into()), Flow::Namespace("shop".into()), Flow::Shared] {
        for status in [403, 405, 406] {
            let options = Options::new("http://prometheus");
            let client = Client::over(Arc::new(Refusing(status)), options).unwrap();
            let error = client.query("passwd", std::slice::from_ref(&flow)).await.err();
            let refused = matches!(error, Some(Error::Blocked { .. }));
            assert!(refused && client.failing_for().is_none(), "{flow:?} {error:?}");
        }
    }
}

/// Behind the proxy Prometheus hangs.
#[tokio::test(start_paused = true)]
async fn a_query_that_a_proxy_refuses_is_no_sign_that_prometheus_serves() {
    #[derive(Debug)]
    struct Hanging;
    impl Transport for Hanging {
        fn send(
            &self,
            request: http::Request<Bytes>,
        ) -> BoxFuture<'static, Result<http::Response<BodyStream>, TransportError>> {
            match String::from_utf8_lossy(request.body()).contains("passwd") {
                true => Refusing(403).send(request),
                false => future::pending().boxed(),
            }
        }
    }
    let client = Client::over(Arc::new(Hanging), Options::new("http://prometheus")).unwrap();
    let error = client.query("up", &[Flow::Shared]).await.err();
    assert!(matches!(error, Some(Error::Timeout(_))) && client.failing_for().is_some());
    let error = client.query("passwd", &[Flow::User("shop".into())]).await.err();
    assert!(matches!(error, Some(Error::Blocked { .. })), "{error:?}");
    assert!(client.failing_for().is_some());
}

/// Statuses are written when their text changes.
#[tokio::test(start_paused = true)]
async fn a_proxy_that_gives_up_is_told_alike_however_long_it_waited() {
    #[derive(Debug)]
    struct Proxy(Duration);

    impl Transport for Proxy {
        fn send(
            &self,
            _: http::Request<Bytes>,
        ) -> BoxFuture<'static, Result<http::Response<BodyStream>, TransportError>> {
            let answer = http::Response::builder().status(504).body(stream::empty().boxed());
            let wait = tokio::time::sleep(self.0);
            async move {
                wait.await;
                Ok(answer.unwrap())
            }
            .boxed()
        }
    }

    for (millis, is_late) in [(5, false), (999, false), (1_000, true), (5_123, true)] {
        let proxy = Arc::new(Proxy(Duration::from_millis(millis)));
        let client = Client::over(proxy, Options::new("http://server")).unwrap();
        let error = client.query("up", &[]).await.err().unwrap();
        assert_eq!(error == Error::GatewayTimeout, is_late, "{error}");
        assert!(error.to_string().contains("504"), "{error}");
    }
}

#[tokio::test]
async fn a_response_that_can_not_be_used_is_counted_as_such() {
    let vector = r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#;
    let partial = vector.replace(r#""data""#, r#""warnings":["a store is down"],"data""#);
    let (page, half) = ("<html>Sign in", &vector[..20]);
    for (body, outcome) in
        [(vector, "answered"), (&partial, "unusable"), (page, "unusable"), (half, "unusable")]
    {
        let answer = Bytes::copy_from_slice(body.as_bytes());
        let (metrics, answer) = (Arc::<Metrics>::default(), stream::iter([Ok(answer)]));
        let client = client(false, move |_| answer.clone().boxed()).counted(metrics.clone());
        let body = client.query("up", &[]).await.unwrap();
        let read = body.read(|body| read_query_response(body, |_| ()));
        assert_eq!(read.is_ok(), outcome == "answered");
        let text = metrics.prometheus_text();
        let counted = format!("plimsoll_prometheus_requests_total{{outcome=\"{outcome}\"}} 1");
        assert!(text.contains(&counted), "{outcome}: {text}");
        assert_eq!(text.matches("plimsoll_prometheus_requests_total{").count(), 1);
    }
}

/// Else the part of one that is full would fail the queries of the others, and what is kept for several would count for none.
#[tokio::test]
async fn only_a_shared_request_of_several_users_is_charged_to_none_of_them() {
    let client = client(false, |_| stream::iter([Ok(Bytes::from("{}"))]).boxed());
    let users = ["a", "b"].map(|namespace| Flow::User(namespace.into()));
    let full = users.each_ref().map(|user| {
        let mut reservation = client.reserve(user);
        for bytes in [1 << 20, 1 << 10, 1] {
            while reservation.grow(bytes).is_ok() {}
        }
        reservation
    });
    let within = Some(Within { time: Duration::from_secs(2), bytes: 2 << 20 });
    for (flows, within, is_charged) in
        [(&users[..], None, true), (&users[..1], within, true), (&users[..], within, false)]
    {
        let result = client.query_within("up", flows, within).await;
        assert_eq!(matches!(result, Err(Error::Memory { .. })), is_charged, "{flows:?}");
    }
    drop(full);
    assert!(client.query("up", &users).await.is_ok());
}

#[tokio::test]
async fn a_server_that_no_connection_reaches_is_noticed_by_users_own_queries() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    // It takes the connection, and no TLS handshake comes to an end.
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    for timeout in [1, 3, 5].map(Duration::from_secs) {
        let client = Client::new(Options { timeout, ..Options::new(&url) }).unwrap();
        let error = client.query("up", &[Flow::User("shop".into())]).await.err();
        assert!(matches!(error, Some(Error::Unreachable(_))), "{timeout:?}: {error:?}");
        assert!(client.failing_for().is_some());
    }
}

#[tokio::test]
async fn a_query_is_sent_in_the_url_or_in_the_body() {
    for get in [true, false] {
        let echo = |request: http::Request<Bytes>| {
            let (uri, method) = (request.uri().to_string(), request.method());
            let form = String::from_utf8_lossy(request.body());
            let token = request.headers()[AUTHORIZATION].to_str().unwrap();
            stream::iter([Ok(Bytes::from(format!("{method} {uri} {form} {token}")))]).boxed()
        };
        let body = client(get, echo).query("a + b", &[]).await.unwrap();
        let form = "query=a+%2B+b&timeout=30000ms&partial_response=false";
        let url = "http://server/base/api/v1/query";
        let expected = match get {
            true => format!("GET {url}?{form}  Bearer secret"),
            false => format!("POST {url} {form} Bearer secret"),
        };
        let text = body.read(|body| Ok(String::from_utf8_lossy(body).into_owned()));
        assert_eq!(text.unwrap(), expected);
    }
}
