//! Errors of the API, as Kubernetes `Status` objects.

use crate::prometheus::Error as PrometheusError;
use crate::samples::MetricError;
use axum::http::StatusCode;

/// An error as a Kubernetes client understands it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The HTTP status.
    pub code: StatusCode,
    /// The reason, as one word (`metav1.StatusReason`).
    pub reason: &'static str,
    /// The message.
    pub message: String,
    /// After how many seconds the client should retry, if known.
    pub retry_after: Option<u32>,
}

impl ApiError {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), retry_after: None }
    }

    /// 400: the request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// 401: the request is not authenticated.
    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    /// 403: the user may not do this.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    /// 422: parameters exclude each other.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
    }

    /// 404: there is no such object or metric.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", message)
    }

    /// 404: there is no such path.
    pub fn no_such_path() -> Self {
        Self::not_found("the server could not find the requested resource")
    }

    /// 405: the API is read-only.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    /// 405: the administrator has switched off what is asked for. Clients do not retry, as they do after 503.
    pub fn not_kept(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    /// 410: what is asked for was known once.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// 504: the resource version is not known here yet; the client should retry.
    pub fn too_large_resource_version(wanted: u64, known: u64) -> Self {
        let message = format!("Too large resource version: {wanted}, current: {known}");
        let error = Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message);
        Self { retry_after: Some(1), ..error }
    }

    /// 503: the request can't be served now; the client should retry.
    pub fn unavailable(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message);
        Self { retry_after: Some(1), ..error }
    }

    /// 503: what is needed to serve the request fails, such as Prometheus. Clients are not asked to retry: each of
    /// kube-controller-manager's workers would do so ten times, a second apart, instead of at the next evaluation.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
    }

    /// 429: there are too many requests; the client should retry.
    pub fn too_many_requests() -> Self {
        let message = "too many requests at once; try again later";
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
        Self { retry_after: Some(1), ..error }
    }

    /// 500: a `metricLabelSelector` can't be parsed. prometheus-adapter responds with 500 and no
    /// reason, which clients may depend on.
    pub fn invalid_metric_selector(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    /// 406: the client accepts none of the encodings.
    pub fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf";
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    /// 500: the request failed through no fault of the client.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    /// 503 or 500: a metric could not be fetched.
    pub fn fetch_failed(metric: &str, error: &MetricError) -> Self {
        let message = format!("unable to fetch metric {metric}: {error}");
        match error {
            MetricError::Prometheus(
                PrometheusError::Timeout(_)
                | PrometheusError::Overloaded(_)
                | PrometheusError::Unreachable(_)
                | PrometheusError::BrokenOff(_)
                | PrometheusError::GatewayTimeout
                | PrometheusError::Unavailable { .. },
            ) => Self::failed(message),
            _ => Self::internal(format!("Internal error occurred: {message}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clients of Kubernetes wait for that, ten times: kube-controller-manager, which has five workers for all HPAs, too.
    #[test]
    fn a_metric_that_can_not_be_fetched_is_not_to_be_asked_for_again_at_once() {
        let down = MetricError::Prometheus(PrometheusError::Unreachable("refused".to_owned()));
        let error = ApiError::fetch_failed("hits", &down);
        assert_eq!((error.code, error.retry_after), (StatusCode::SERVICE_UNAVAILABLE, None));
    }
}
