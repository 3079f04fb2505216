//! What each request passes on its way to an answer, from the outside in: it is
//! observed, its form is checked, who asks is told, room of theirs is found, whether
//! they may is asked, and room of the namespace is found. The order is a security
//! property: nothing is spent on a request before it is known whose it is, and nothing
//! of others before it is known that it is allowed.

use super::admission::{Admission, tenant};
use super::authorize::{Action, Authorizer};
use super::identity::{Authenticator, Identity, Unidentified};
use super::listen::Peer;
use super::negotiate::{Form, form};
use super::request::{NoTarget, Target, is_canonical};
use super::response::{ApiError, Held};
use crate::telemetry::Metrics;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Extensions, HeaderMap, Response, header};
use axum::middleware::Next;
use axum::response::IntoResponse;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long answering may take altogether, once there is room.
const PATIENCE: Duration = Duration::from_secs(30);
/// The least time between two warnings that a front proxy is not believed.
const WARNING: Duration = Duration::from_secs(10);

/// What a request asks for, found once by [`canonical`].
#[derive(Clone, Debug)]
pub struct Asked(pub Result<Target, NoTarget>);

/// Who asks; none where the path is open to anybody.
#[derive(Clone, Debug)]
pub struct Who(pub Option<Identity>);

/// Counts, times and logs each request, and gives errors the form that the client takes.
pub async fn observe(
    State(metrics): State<Arc<Metrics>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let errors = form(request.headers(), false).unwrap_or(Form::Json);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let _in_flight = metrics.serving.in_flight();
    let begun = Instant::now();
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        let user = response.extensions_mut().remove::<User>();
        response = error.into_form(errors);
        response.extensions_mut().extend(user.map(extension).unwrap_or_default());
    }
    let (code, took) = (response.status().as_u16(), begun.elapsed());
    metrics.answered(code);
    metrics.serving.answered(kind_of(&path), took);
    let user = response.extensions().get::<User>().map_or("", |user| user.0.as_str());
    tracing::debug!(%method, path, user, code, ?took, "answered");
    response
}

/// The user that a response is for, for the log.
#[derive(Clone)]
struct User(String);

fn extension(user: User) -> axum::http::Extensions {
    let mut extensions = axum::http::Extensions::new();
    extensions.insert(user);
    extensions
}

/// What kind of request a path is, as a label.
fn kind_of(path: &str) -> &'static str {
    match Target::parse(path) {
        Ok(Target::Object(_)) => "custom",
        Ok(Target::External { .. }) => "external",
        Ok(Target::Nodes { .. } | Target::Pods { .. }) => "resource",
        Ok(Target::Groups | Target::Group(_) | Target::Resources(..)) => "discovery",
        Err(_) if path == "/metrics" => "metrics",
        Err(_) => "other",
    }
}

/// Refuses what has no canonical path, and what asks to be taken for somebody else.
pub async fn canonical(mut request: Request, next: Next) -> Response<Body> {
    let path = request.uri().path();
    if !is_canonical(path) {
        let message = "invalid request path: it has an empty segment, or one of . .. / % or control characters";
        return ApiError::bad_request(message).into_response();
    }
    let impersonates =
        request.headers().keys().any(|name| name.as_str().starts_with("impersonate-"));
    if impersonates {
        let message = "impersonation is not supported here: ask by kube-apiserver, which honours Impersonate- headers";
        return ApiError::forbidden(message).into_response();
    }
    let asked = Asked(Target::parse(path));
    request.extensions_mut().insert(asked);
    next.run(request).await
}

/// What telling who asks needs.
#[derive(Clone)]
pub struct Authentication {
    /// Tells who asks.
    pub authenticator: Authenticator,
    /// Tells which paths are open.
    pub authorizer: Authorizer,
    /// Counts what is refused.
    pub metrics: Arc<Metrics>,
    /// When it was last warned of a front proxy that is not believed.
    warned: Arc<Mutex<Option<Instant>>>,
}

impl Authentication {
    /// By these.
    pub fn new(
        authenticator: Authenticator,
        authorizer: Authorizer,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { authenticator, authorizer, metrics, warned: Arc::default() }
    }

    fn warn(&self, peer: &Peer, headers: &HeaderMap) {
        let Some(reason) = self.authenticator.doubt(peer, headers) else { return };
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|at| at.elapsed() >= WARNING) {
            *warned = Some(Instant::now());
            tracing::warn!(source = %peer.source, reason, "front proxy not believed");
        }
    }
}

/// Tells who asks. What came in a crowd is answered only where it is the front proxy's.
pub async fn authenticate(
    State(by): State<Authentication>,
    mut request: Request,
    next: Next,
) -> Response<Body> {
    let Some(peer) = request.extensions().get::<Peer>().cloned() else {
        return ApiError::unauthorized().into_response();
    };
    if by.authenticator.is_front_proxy(&peer.certificates) {
        peer.place.is_of_front_proxy();
    }
    if peer.place.is_crowded() {
        by.metrics.serving.rejected("connections");
        return ApiError::too_many().into_response();
    }
    if by.authorizer.is_open(request.uri().path()) {
        request.extensions_mut().insert(Who(None));
        return next.run(request).await;
    }
    let identity = match by.authenticator.identify(&peer, request.headers()).await {
        Ok(identity) => identity,
        Err(error) => {
            by.warn(&peer, request.headers());
            return match error {
                Unidentified::Unknown => ApiError::unauthorized(),
                Unidentified::TooMany => ApiError::too_many(),
                Unidentified::Unavailable => ApiError::unavailable(error.to_string()),
            }
            .into_response();
        }
    };
    peer.place.is_known(tenant(&identity));
    let user = User(identity.name.clone());
    request.extensions_mut().insert(Who(Some(identity)));
    let mut response = next.run(request).await;
    response.extensions_mut().insert(user);
    response
}

/// Finds room of who asks. It is held until the client has taken the answer.
pub async fn admit(
    State((admission, metrics)): State<(Admission, Arc<Metrics>)>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let Some(admitted) = admission.admit(who(request.extensions())).await else {
        return rejected(&metrics);
    };
    match tokio::time::timeout(PATIENCE, next.run(request)).await {
        Ok(response) => Held::while_sent(response, admitted),
        Err(_) => ApiError::unavailable("the answer took too long").into_response(),
    }
}

/// Finds room of the namespace asked about, and among all. It is held as long.
pub async fn admit_allowed(
    State((admission, metrics)): State<(Admission, Arc<Metrics>)>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let asked = request.extensions().get::<Asked>();
    let namespace = asked.and_then(|asked| asked.0.as_ref().ok()?.namespace());
    match admission.admit_allowed(who(request.extensions()), namespace).await {
        Some(admitted) => Held::while_sent(next.run(request).await, admitted),
        None => rejected(&metrics),
    }
}

/// Who asks; nobody where the path is open to anybody.
fn who(extensions: &Extensions) -> &Identity {
    static NOBODY: LazyLock<Identity> = LazyLock::new(Identity::default);
    extensions.get::<Who>().and_then(|who| who.0.as_ref()).unwrap_or(&NOBODY)
}

fn rejected(metrics: &Metrics) -> Response<Body> {
    metrics.serving.rejected("requests");
    ApiError::too_many().into_response()
}

/// Asks whether they may.
pub async fn authorize(
    State(authorizer): State<Authorizer>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let extensions = request.extensions();
    if let Some(Who(Some(identity))) = extensions.get::<Who>() {
        let target = extensions.get::<Asked>().and_then(|asked| asked.0.as_ref().ok());
        let action = Action::of(target, request.method(), request.uri());
        if let Err(error) = authorizer.authorize(identity, action).await {
            return error.into_response();
        }
    }
    next.run(request).await
}

/// Answers from a client's own copy where it has the same already (RFC 9110, 13.1.2).
pub fn not_modified(headers: &HeaderMap, tag: &str) -> bool {
    let given = headers.get_all(header::IF_NONE_MATCH).into_iter();
    given.filter_map(|tags| tags.to_str().ok()).flat_map(|tags| tags.split(',')).any(|given| {
        let given = given.trim();
        given == "*" || given.trim_start_matches("W/").trim_matches('"') == tag
    })
}

#[cfg(test)]
mod tests {
    use super::super::connections::Connections;
    use super::super::tokens::Tokens;
    use super::super::trust::Trust;
    use super::*;
    use axum::Router;
    use axum::http::StatusCode;
    use axum::middleware::from_fn;
    use axum::middleware::from_fn_with_state;
    use tower::ServiceExt;

    async fn status(router: Router, request: Request) -> StatusCode {
        router.oneshot(request).await.unwrap().status()
    }

    fn get(path: &str) -> Request {
        Request::get(path).body(Body::empty()).unwrap()
    }

    #[tokio::test]
    async fn odd_paths_and_impersonation_reach_nothing_further_in() {
        let metrics = Arc::new(Metrics::default());
        let router = Router::new()
            .fallback(|| async { "in" })
            .layer(from_fn(canonical))
            .layer(from_fn_with_state(metrics, observe));
        assert_eq!(status(router.clone(), get("/metrics")).await, StatusCode::OK);
        for path in ["/a//b", "/a/../b", "/a/%2e%2e/b", "/a/b%2fc", "/a/%zz"] {
            assert_eq!(status(router.clone(), get(path)).await, StatusCode::BAD_REQUEST, "{path}");
        }
        for header in ["impersonate-user", "Impersonate-Extra-x"] {
            let request = Request::get("/metrics").header(header, "a").body(Body::empty());
            assert_eq!(status(router.clone(), request.unwrap()).await, StatusCode::FORBIDDEN);
        }
    }

    #[tokio::test]
    async fn who_is_not_known_takes_no_room_and_who_is_has_it_until_the_answer_is_sent() {
        let client = || {
            let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
                Err::<http::Response<kube::client::Body>, _>(tower::BoxError::from(
                    "nobody is asked",
                ))
            });
            kube::Client::new(service, "default")
        };
        let metrics = Arc::new(Metrics::default());
        let tokens = Tokens::new(client(), Duration::ZERO, metrics.clone());
        let authenticator = Authenticator::new(Trust::default(), tokens);
        let options = super::super::AuthorizerOptions {
            allowed_age: Duration::ZERO,
            refused_age: Duration::ZERO,
            always_allow_paths: vec!["/open".to_owned()],
        };
        let authorizer = Authorizer::new(client(), options, metrics.clone());
        let admission = Admission::default();
        let authentication = Authentication::new(authenticator, authorizer, metrics.clone());
        let router = Router::new()
            .fallback(|| async { "in" })
            .layer(from_fn_with_state((admission.clone(), metrics.clone()), admit))
            .layer(from_fn_with_state(authentication, authenticate))
            .layer(from_fn_with_state(metrics, observe));
        let (place, _ended) = Connections::default().admit([10, 0, 0, 1].into()).unwrap();
        let peer = Peer { certificates: Arc::new([]), place, source: [10, 0, 0, 1].into() };
        let ask_as = async |path: &str, token: Option<&str>| {
            let mut request = get(path);
            if let Some(token) = token {
                let bearer = format!("Bearer {token}").parse().unwrap();
                request.headers_mut().insert(header::AUTHORIZATION, bearer);
            }
            request.extensions_mut().insert(peer.clone());
            router.clone().oneshot(request).await.unwrap()
        };
        let ask = async |path: &str| ask_as(path, None).await;
        // All the room of those who are nobody is taken.
        let mut held = Vec::new();
        while let Some(one) =
            futures::FutureExt::now_or_never(admission.admit(&Identity::default())).flatten()
        {
            held.push(one);
        }
        assert_eq!(ask("/closed").await.status(), StatusCode::UNAUTHORIZED);
        // Why the API server was not asked is for the log alone.
        let answer = ask_as("/closed", Some("x")).await;
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        let body = axum::body::to_bytes(answer.into_body(), 10_000).await.unwrap();
        let status: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(status["message"], "the token could not be reviewed");
        held.pop();
        let answer = ask("/open").await;
        assert_eq!(answer.status(), StatusCode::OK);
        // It is not sent yet.
        let nobody = Identity::default();
        let room = || admission.admit(&nobody);
        assert!(futures::FutureExt::now_or_never(room()).flatten().is_none());
        drop(answer);
        assert!(futures::FutureExt::now_or_never(room()).flatten().is_some());
    }

    #[test]
    fn a_client_that_has_it_already_is_told_so() {
        let has = |tags: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::IF_NONE_MATCH, tags.parse().unwrap());
            not_modified(&headers, "abc")
        };
        assert!(has("\"abc\"") && has("W/\"abc\"") && has("\"x\", \"abc\"") && has("*"));
        assert!(!has("\"x\"") && !not_modified(&HeaderMap::new(), "abc"));
    }
}
