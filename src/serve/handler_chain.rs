//! What each request passes, in this order: it is instrumented, its path is checked, then it is
//! authenticated, admitted by tenant, authorized, admitted by namespace, and handled. The order is a
//! security property: an anonymous request takes no seats, and an unauthorized one takes no seats that
//! other tenants share.

use super::admission::{Admission, tenant};
use super::authorize::Attributes;
use super::body::{GuardedBody, LongRunning};
use super::connections::Peer;
use super::encode::encode_error;
use super::error::ApiError;
use super::handle::handle;
use super::negotiate::{Encoding, encoding};
use super::request::{PathError, RequestInfo, is_canonical};
use super::server::Server;
use super::user::{AuthenticationError, UserInfo};
use axum::body::Body;
use axum::extract::Request;
use axum::http::Response;
use axum::http::request::Parts;
use futures::FutureExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The longest time for a request, once it has a seat of its tenant.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The least time between two warnings about an untrusted front proxy.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// Serves requests.
pub struct HandlerChain {
    server: Server,
    admission: Admission,
    /// The time of the last warning about an untrusted front proxy.
    warned: Mutex<Option<Instant>>,
}

impl HandlerChain {
    /// The chain of a server.
    pub fn new(server: Server, admission: Admission) -> Self {
        Self { server, admission, warned: Mutex::default() }
    }

    /// Serves a request. Counts, times and logs it, and encodes an error as the client accepts.
    pub async fn serve(&self, request: Request) -> Response<Body> {
        let (request, _) = request.into_parts();
        let metrics = &self.server.metrics;
        let _in_flight = metrics.serving.in_flight();
        let begun = Instant::now();
        let path = request.uri.path();
        let parsed = RequestInfo::parse(path);
        let kind = kind(path, &parsed);
        let (user, response) = match self.accept(&request).await {
            Ok(user) => {
                let response = self.respond(&request, parsed, user.as_deref()).await;
                (user, response)
            }
            Err(error) => (None, Err(error)),
        };
        let response = response.unwrap_or_else(|error| {
            encode_error(error, encoding(&request.headers, false).unwrap_or(Encoding::Json))
        });
        let (code, took) = (response.status().as_u16(), begun.elapsed());
        metrics.responded(code);
        metrics.serving.responded(kind, took);
        let user = user.as_ref().map_or("", |user| &user.name);
        tracing::debug!(method = %request.method, path, user, code, ?took, "Served request");
        response
    }

    /// Checks a request, and then authenticates it.
    async fn accept(&self, request: &Parts) -> Result<Option<Arc<UserInfo>>, ApiError> {
        check(request)?;
        self.authenticate(request).await
    }

    /// The user of a request; none if its path is always allowed. On an overflow connection, only
    /// requests of the front proxy are served.
    ///
    /// # Errors
    /// 401 if the user is not known, 429 on an overflow connection or if too many tokens wait for a review, and 503 if a token could not be reviewed.
    pub async fn authenticate(&self, request: &Parts) -> Result<Option<Arc<UserInfo>>, ApiError> {
        let Server { authenticator, authorizer, metrics, .. } = &self.server;
        let peer = request.extensions.get::<Peer>().ok_or_else(ApiError::unauthorized)?;
        let client = authenticator.verify(peer);
        if client.is_front_proxy() {
            peer.connection.mark_front_proxy();
        }
        if peer.connection.is_overflow() {
            metrics.serving.rejected("connections");
            return Err(ApiError::too_many_requests());
        }
        if authorizer.is_always_allowed(request.uri.path()) {
            return Ok(None);
        }
        let user = client.authenticate(&request.headers).await.map_err(|error| {
            if let Some(reason) = client.untrusted_front_proxy(&request.headers) {
                self.warn(peer, &reason);
            }
            match error {
                AuthenticationError::InvalidCredentials => ApiError::unauthorized(),
                AuthenticationError::TooManyReviews => ApiError::too_many_requests(),
                AuthenticationError::Unavailable => ApiError::unavailable(error.to_string()),
            }
        })?;
        peer.connection.mark_authenticated(tenant(&user));
        Ok(Some(user))
    }

    /// Warns that a request failed because its front proxy is not trusted.
    fn warn(&self, peer: &Peer, reason: &str) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
            *warned = Some(Instant::now());
            tracing::warn!(source = %peer.source, reason, "Ignored request headers of an untrusted front proxy");
        }
    }

    /// The response to a request of this user, anonymous if its path is always allowed. It occupies a seat of the user's tenant, one of the
    /// request's namespace and one of the total seats until it is sent, unless it is that of a watch.
    ///
    /// # Errors
    /// 403 or 503 if the request is not authorized, 429 if there are no seats, 503 if it takes too long, and those of the handler.
    pub async fn respond(
        &self,
        request: &Parts,
        path: Result<RequestInfo, PathError>,
        user: Option<&UserInfo>,
    ) -> Result<Response<Body>, ApiError> {
        let anonymous = UserInfo::default();
        let admitted = user.unwrap_or(&anonymous);
        let of_tenant = self.admission.admit(admitted).await;
        let of_tenant = of_tenant.ok_or_else(|| self.rejected())?;
        let (response, authorized) = in_time(async {
            self.authorize(request, &path, user).await?;
            let namespace = path.as_ref().ok().and_then(RequestInfo::namespace);
            let seats = self.admission.admit_authorized(admitted, namespace).await;
            let seats = seats.ok_or_else(|| self.rejected())?;
            Ok((handle(&self.server, request, path, user).await?, seats))
        })
        .await?;
        Ok(match response.extensions().get::<LongRunning>() {
            Some(_) => response,
            None => GuardedBody::guard(response, (of_tenant, authorized)),
        })
    }

    /// Authorizes a request, unless its path is always allowed.
    async fn authorize(
        &self,
        request: &Parts,
        path: &Result<RequestInfo, PathError>,
        user: Option<&UserInfo>,
    ) -> Result<(), ApiError> {
        let Some(user) = user else { return Ok(()) };
        let attributes = Attributes::of(path.as_ref().ok(), &request.method, &request.uri);
        self.server.authorizer.authorize(user, attributes).await
    }

    fn rejected(&self) -> ApiError {
        self.server.metrics.serving.rejected("requests");
        ApiError::too_many_requests()
    }
}

/// Refuses paths that are not canonical, and impersonation.
///
/// # Errors
/// 400 or 403.
pub fn check(request: &Parts) -> Result<(), ApiError> {
    if !is_canonical(request.uri.path()) {
        let message = "invalid request path: it has an empty segment, or one of . .. / % or control characters";
        return Err(ApiError::bad_request(message));
    }
    let impersonates = request.headers.keys().any(|name| name.as_str().starts_with("impersonate-"));
    if impersonates {
        let message = "impersonation is not supported here: send the request through kube-apiserver, which supports it";
        return Err(ApiError::forbidden(message));
    }
    Ok(())
}

/// What a request gives within its time.
///
/// # Errors
/// Its own, and 503 if it takes longer.
pub fn in_time<T>(
    result: impl Future<Output = Result<T, ApiError>>,
) -> impl Future<Output = Result<T, ApiError>> {
    // Not `async`, which would keep the large future twice.
    tokio::time::timeout(REQUEST_TIMEOUT, result)
        .map(|result| result.unwrap_or_else(|_| Err(ApiError::failed("the request timed out"))))
}

/// The kind of a request, as a metric label.
fn kind(path: &str, parsed: &Result<RequestInfo, PathError>) -> &'static str {
    match parsed {
        Ok(RequestInfo::Object(_)) => "custom",
        Ok(RequestInfo::External { .. }) => "external",
        Ok(RequestInfo::Nodes { .. } | RequestInfo::Pods { .. }) => "resource",
        Ok(RequestInfo::Decisions { .. }) => "decisions",
        Ok(RequestInfo::Groups | RequestInfo::Group(_) | RequestInfo::Resources(..)) => "discovery",
        Err(_) if path == "/metrics" => "metrics",
        Err(_) => "other",
    }
}
