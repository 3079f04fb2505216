//! The layers around the handlers, from the outside in: a request is instrumented, its path is
//! canonicalized, then it is authenticated, admitted by tenant, authorized, and admitted by
//! namespace. The order is a security property: an anonymous request takes no seats, and an
//! unauthorized one takes no seats that other tenants share.

use super::admission::{Admission, OccupiedSeats, tenant};
use super::authenticate::Authenticator;
use super::authorize::{Attributes, Authorizer};
use super::body::GuardedBody;
use super::connections::Peer;
use super::encode::encode_error;
use super::error::ApiError;
use super::negotiate::{Encoding, encoding};
use super::request::{PathError, RequestInfo, is_canonical};
use super::user::{AuthenticationError, UserInfo};
use crate::telemetry::Metrics;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Extensions, HeaderMap, Response, header};
use axum::middleware::Next;
use axum::response::IntoResponse;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The longest time for a request, once it has a seat of its tenant.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The least time between two warnings about an untrusted front proxy.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// The parsed path of a request, as [`canonicalize`] leaves it for the layers within.
#[derive(Clone, Debug)]
pub struct ParsedPath(pub Result<RequestInfo, PathError>);

/// Marks the response of a watch, which takes a seat of its own: it lasts, and would hold those of requests.
#[derive(Clone, Copy, Debug)]
pub struct LongRunning;

/// The same response, which holds its seats until it is sent, unless it is a watch.
fn seated(response: Response<Body>, seats: OccupiedSeats) -> Response<Body> {
    match response.extensions().get::<LongRunning>() {
        Some(_) => response,
        None => GuardedBody::guard(response, seats),
    }
}

/// The user of a request; none if the path is always allowed.
#[derive(Clone, Debug)]
pub struct RequestUser(pub Option<Arc<UserInfo>>);

/// Counts, times and logs each request, and encodes errors as the client accepts.
pub async fn instrument(
    State(metrics): State<Arc<Metrics>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let accept = request.headers().get(header::ACCEPT).cloned();
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let _in_flight = metrics.serving.in_flight();
    let begun = Instant::now();
    let mut response = next.run(request).await;
    let kind = response.extensions_mut().remove::<RequestKind>();
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        let user = response.extensions_mut().remove::<LoggedUser>();
        let accept = accept.map(|accept| (header::ACCEPT, accept));
        let encoding = encoding(&accept.into_iter().collect(), false);
        response = encode_error(error, encoding.unwrap_or(Encoding::Json));
        response.extensions_mut().extend(user.map(extension).unwrap_or_default());
    }
    let (code, took) = (response.status().as_u16(), begun.elapsed());
    metrics.responded(code);
    let path = uri.path();
    let RequestKind(kind) =
        kind.unwrap_or_else(|| RequestKind::of(path, &RequestInfo::parse(path)));
    metrics.serving.responded(kind, took);
    let user = response.extensions().get::<LoggedUser>().map_or("", |user| &user.0.name);
    tracing::debug!(%method, path, user, code, ?took, "Served request");
    response
}

/// A response's user, whose name is for the log.
#[derive(Clone)]
struct LoggedUser(Arc<UserInfo>);

fn extension(user: LoggedUser) -> axum::http::Extensions {
    let mut extensions = axum::http::Extensions::new();
    extensions.insert(user);
    extensions
}

/// The kind of a request, as a metric label. [`canonicalize`] leaves it with the response.
#[derive(Clone, Copy)]
struct RequestKind(&'static str);

impl RequestKind {
    fn of(path: &str, parsed: &Result<RequestInfo, PathError>) -> Self {
        Self(match parsed {
            Ok(RequestInfo::Object(_)) => "custom",
            Ok(RequestInfo::External { .. }) => "external",
            Ok(RequestInfo::Nodes { .. } | RequestInfo::Pods { .. }) => "resource",
            Ok(RequestInfo::Decisions { .. }) => "decisions",
            Ok(RequestInfo::Groups | RequestInfo::Group(_) | RequestInfo::Resources(..)) => {
                "discovery"
            }
            Err(_) if path == "/metrics" => "metrics",
            Err(_) => "other",
        })
    }
}

/// Refuses paths that are not canonical, and impersonation. Parses the path.
pub async fn canonicalize(mut request: Request, next: Next) -> Response<Body> {
    let path = request.uri().path();
    if !is_canonical(path) {
        let message = "invalid request path: it has an empty segment, or one of . .. / % or control characters";
        return ApiError::bad_request(message).into_response();
    }
    let impersonates =
        request.headers().keys().any(|name| name.as_str().starts_with("impersonate-"));
    if impersonates {
        let message = "impersonation is not supported here: send the request through kube-apiserver, which supports it";
        return ApiError::forbidden(message).into_response();
    }
    let parsed = RequestInfo::parse(path);
    let kind = RequestKind::of(path, &parsed);
    request.extensions_mut().insert(ParsedPath(parsed));
    let mut response = next.run(request).await;
    response.extensions_mut().insert(kind);
    response
}

/// The state of [`authenticate`].
#[derive(Clone)]
pub struct AuthenticationLayer {
    authenticator: Authenticator,
    /// Says which paths are always allowed.
    authorizer: Authorizer,
    metrics: Arc<Metrics>,
    /// The time of the last warning about an untrusted front proxy.
    warned: Arc<Mutex<Option<Instant>>>,
}

impl AuthenticationLayer {
    /// The state of the layer.
    pub fn new(
        authenticator: Authenticator,
        authorizer: Authorizer,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { authenticator, authorizer, metrics, warned: Arc::default() }
    }

    /// Warns if the request failed because its front proxy is not trusted.
    fn warn(&self, peer: &Peer, headers: &HeaderMap) {
        let Some(reason) = self.authenticator.untrusted_front_proxy(peer, headers) else { return };
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
            *warned = Some(Instant::now());
            tracing::warn!(source = %peer.source, reason, "Ignored request headers of an untrusted front proxy");
        }
    }
}

/// Authenticates a request. On an overflow connection, only requests of the front proxy are
/// served.
pub async fn authenticate(
    State(layer): State<AuthenticationLayer>,
    mut request: Request,
    next: Next,
) -> Response<Body> {
    let Some(peer) = request.extensions().get::<Peer>().cloned() else {
        return ApiError::unauthorized().into_response();
    };
    if layer.authenticator.is_front_proxy(&peer.chain) {
        peer.connection.mark_front_proxy();
    }
    if peer.connection.is_overflow() {
        layer.metrics.serving.rejected("connections");
        return ApiError::too_many_requests().into_response();
    }
    if layer.authorizer.is_always_allowed(request.uri().path()) {
        request.extensions_mut().insert(RequestUser(None));
        return next.run(request).await;
    }
    let user = match layer.authenticator.authenticate(&peer, request.headers()).await {
        Ok(user) => Arc::new(user),
        Err(error) => {
            layer.warn(&peer, request.headers());
            return match error {
                AuthenticationError::InvalidCredentials => ApiError::unauthorized(),
                AuthenticationError::TooManyReviews => ApiError::too_many_requests(),
                AuthenticationError::Unavailable => ApiError::unavailable(error.to_string()),
            }
            .into_response();
        }
    };
    peer.connection.mark_authenticated(tenant(&user));
    let logged = LoggedUser(user.clone());
    request.extensions_mut().insert(RequestUser(Some(user)));
    let mut response = next.run(request).await;
    response.extensions_mut().insert(logged);
    response
}

/// Waits for a seat of the user's tenant. A response occupies it until it is sent, an
/// [`ApiError`] only until [`instrument`] encodes it.
pub async fn admit(
    State((admission, metrics)): State<(Admission, Arc<Metrics>)>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let Some(seats) = admission.admit(user(request.extensions())).await else {
        return rejected(&metrics);
    };
    match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => seated(response, seats),
        Err(_) => ApiError::unavailable("the request timed out").into_response(),
    }
}

/// Waits for a seat of the request's namespace, and for one of the total seats. They are
/// occupied as long as the tenant's.
pub async fn admit_authorized(
    State((admission, metrics)): State<(Admission, Arc<Metrics>)>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let parsed = request.extensions().get::<ParsedPath>();
    let namespace = parsed.and_then(|parsed| parsed.0.as_ref().ok()?.namespace());
    match admission.admit_authorized(user(request.extensions()), namespace).await {
        Some(seats) => seated(next.run(request).await, seats),
        None => rejected(&metrics),
    }
}

/// The user of a request; anonymous if the path is always allowed.
fn user(extensions: &Extensions) -> &UserInfo {
    static ANONYMOUS: LazyLock<UserInfo> = LazyLock::new(UserInfo::default);
    extensions.get::<RequestUser>().and_then(|user| user.0.as_deref()).unwrap_or(&ANONYMOUS)
}

fn rejected(metrics: &Metrics) -> Response<Body> {
    metrics.serving.rejected("requests");
    ApiError::too_many_requests().into_response()
}

/// Authorizes a request, unless its path is always allowed. A request that [`canonicalize`] and
/// [`authenticate`] have not seen is refused.
pub async fn authorize(
    State(authorizer): State<Authorizer>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let extensions = request.extensions();
    let (Some(ParsedPath(path)), Some(RequestUser(user))) = (extensions.get(), extensions.get())
    else {
        return ApiError::internal("the request was not authenticated").into_response();
    };
    if let Some(user) = user {
        let attributes = Attributes::of(path.as_ref().ok(), request.method(), request.uri());
        if let Err(error) = authorizer.authorize(user, attributes).await {
            return error.into_response();
        }
    }
    next.run(request).await
}
