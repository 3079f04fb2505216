//! The steps of the handler chain one by one, all of them in their order, and the dispatch at its end.

mod authorizer;
mod dispatch;
mod handler_chain;
mod known_requests;
mod router;

use super::authenticate::Authenticator;
use super::authorize::{Attributes, Authorizer, AuthorizerOptions};
use super::client_chain::ClientChain;
use super::connections::{ConnectionLimiter, Peer};
use super::decisions::Decisions;
use super::error::ApiError;
use super::handle::handle;
use super::health::Health;
use super::request::{ApiGroup, RequestInfo};
use super::server::Server;
use super::token_review::TokenAuthenticator;
use super::trust::TrustStore;
use super::user::UserInfo;
use crate::fake::{self, Log};
use crate::ledger::Ledger;
use crate::live::LiveStatus;
use crate::promql::query::PodQueries;
use crate::promql::template::Template;
use crate::reload::Reloadable;
use crate::supervise::Heartbeat;
use crate::telemetry::Metrics;
use crate::watch::{Cluster, WatchStatuses};
use axum::body::Body;
use axum::extract::Request;
use axum::http::{Response, StatusCode};
use kube::Client;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const TOKEN_REVIEWS: &str = "POST /apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS_REVIEWS: &str = "POST /apis/authorization.k8s.io/v1/subjectaccessreviews";
const MINUTE: Duration = Duration::from_secs(60);

/// An API server for which a token is the name of its user, unless it is `wrong`. It denies `mallory`
/// everything.
fn reviewer() -> (Client, Log) {
    fake::api(|request| (201, reviewed(request)))
}

fn reviewed(request: &fake::Request) -> Value {
    let mut review = request.body.clone();
    review["status"] = match &*request.line {
        TOKEN_REVIEWS => {
            let token = &review["spec"]["token"];
            json!({"authenticated": token != "wrong", "user": {"username": token}})
        }
        ACCESS_REVIEWS => {
            json!({"allowed": review["spec"]["user"] != "mallory", "reason": "no rule allows it"})
        }
        line => panic!("{line} was not expected"),
    };
    review
}

/// Authorizes by this API server, and the paths below `/open` always.
fn authorizer(client: &Client, metrics: &Arc<Metrics>) -> Authorizer {
    let options = AuthorizerOptions {
        authorized_ttl: MINUTE,
        unauthorized_ttl: MINUTE,
        always_allow_paths: vec!["/open*".to_owned(), "/apis".to_owned()],
    };
    Authorizer::new(client.clone(), options, metrics.clone())
}

fn authenticator(client: &Client, trust: TrustStore, metrics: &Arc<Metrics>) -> Authenticator {
    Authenticator::new(trust, TokenAuthenticator::new(client.clone(), MINUTE, metrics.clone()))
}

/// A server without rules and samples, which serves two of the groups.
fn server(client: &Client) -> Server {
    let (cluster, metrics) = (Cluster::default(), Arc::<Metrics>::default());
    let (samples, rules) = fake::samples_and_rules(client, &cluster);
    let pod_queries = PodQueries {
        namespace_label: "namespace".to_owned(),
        pod_label: "pod".to_owned(),
        gauge: Template::parse("<<.Series>>").unwrap(),
        counter: Template::parse("<<.Series>>").unwrap(),
        shared: Vec::new(),
    };
    Server {
        decisions: Decisions::new(Ledger::new(1 << 20, 0), Arc::default()),
        cluster,
        samples,
        pod_queries: Reloadable::new(pod_queries),
        forward: Reloadable::default(),
        rules: rules.clone(),
        known_requests: Default::default(),
        groups: vec![ApiGroup::Custom, ApiGroup::Resource],
        authenticator: authenticator(client, TrustStore::default(), &metrics),
        authorizer: authorizer(client, &metrics),
        health: Health {
            synced: WatchStatuses::default(),
            trust: TrustStore::default(),
            ca_bundles: Default::default(),
            ledger: Ledger::new(1 << 20, 0),
            heartbeat: Heartbeat::default(),
            config_error: Reloadable::default(),
            rules,
        },
        metrics,
        live: LiveStatus::default(),
    }
}

fn user(name: &str) -> UserInfo {
    UserInfo { name: name.to_owned(), ..UserInfo::default() }
}

fn get(path: &str) -> Request {
    Request::get(path).body(Body::empty()).unwrap()
}

/// The client at the other end of a new connection.
fn peer() -> Peer {
    let source = [10, 0, 0, 1].into();
    let (connection, _) = ConnectionLimiter::default().admit(source).unwrap();
    Peer { chain: Arc::new(ClientChain::new(Vec::new())), connection, source }
}

/// A request on a connection, as the listener passes it on.
fn on_connection(path: &str, token: Option<&str>) -> Request {
    let mut request = get(path);
    if let Some(token) = token {
        let bearer = format!("Bearer {token}").parse().unwrap();
        request.headers_mut().insert("authorization", bearer);
    }
    request.extensions_mut().insert(peer());
    request
}

/// The response of the dispatch to a GET.
async fn handled(
    server: &Server,
    (method, path, accept): (&str, &str, &str),
) -> Result<Response<Body>, ApiError> {
    let request = Request::builder().method(method).uri(path).header("accept", accept);
    let (parts, ()) = request.body(()).unwrap().into_parts();
    let parsed = RequestInfo::parse(parts.uri.path());
    handle(server, &parts, parsed, None).await
}

async fn text(response: Response<Body>) -> String {
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}
