//! Answers: JSON, and errors as Kubernetes `Status` objects.

use super::negotiate::Form;
use super::protobuf;
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use serde::Serialize;
use serde_json::{Value, json};
use std::pin::Pin;
use std::task::{Context, Poll};

/// An error as a Kubernetes client understands it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The HTTP status.
    pub code: StatusCode,
    /// The reason, as one word (`metav1.StatusReason`).
    pub reason: &'static str,
    /// What was wrong.
    pub message: String,
    /// After how many seconds it is worth to try again, where that is known.
    pub retry_after: Option<u32>,
}

impl ApiError {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), retry_after: None }
    }

    /// The request can't be understood.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// Who asks is not known.
    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    /// Who asks may not.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    /// There is no such thing.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", message)
    }

    /// There is no such path.
    pub fn no_such_path() -> Self {
        Self::not_found("the server could not find the requested resource")
    }

    /// Only reading is possible.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    /// It can't be done now, but perhaps later.
    pub fn unavailable(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message);
        Self { retry_after: Some(1), ..error }
    }

    /// There are too many requests now.
    pub fn too_many() -> Self {
        let message = "too many requests at once; try again later";
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
        Self { retry_after: Some(1), ..error }
    }

    /// The selector of a metric's series can't be read. prometheus-adapter has no
    /// word for the reason and answers 500, which clients may count on.
    pub fn broken_selector(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    /// None of the forms that the client takes can be given.
    pub fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf";
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    /// It can't be done, through no fault of the request.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }
}

impl ApiError {
    /// As a `Status` in a form.
    pub fn into_form(self, form: Form) -> Response<Body> {
        let details = self.retry_after.map(|seconds| json!({"retryAfterSeconds": seconds}));
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code.as_u16(),
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if let Some(details) = details {
            status["details"] = details;
        }
        let mut response = match form {
            Form::Json | Form::Table => json_body(&status),
            Form::Yaml => yaml_body(&status),
            Form::Protobuf => protobuf_body(&status),
        };
        *response.status_mut() = self.code;
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// The error is given its form by `layers::observe`, which knows what the client takes.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.code;
        response.extensions_mut().insert(self);
        response
    }
}

/// A body that holds something until all of it was taken by the connection. It is
/// given in pieces, so that a client that takes none holds no more than one of them
/// beside it.
pub struct Held<T> {
    body: Body,
    rest: Bytes,
    _held: T,
}

/// How large a piece is, in bytes.
const PIECE: usize = 64 * 1024;

impl<T: Send + Unpin + 'static> Held<T> {
    /// A response that holds something until it is sent.
    pub fn while_sent(response: Response<Body>, held: T) -> Response<Body> {
        response.map(|body| Body::new(Self { body, rest: Bytes::new(), _held: held }))
    }
}

impl<T: Unpin> http_body::Body for Held<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let held = self.get_mut();
        if held.rest.is_empty() {
            match Pin::new(&mut held.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => held.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                other => return other,
            }
        }
        let piece = held.rest.split_to(held.rest.len().min(PIECE));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut whole = SizeHint::new();
        whole.set_lower(hint.lower() + rest);
        if let Some(upper) = hint.upper() {
            whole.set_upper(upper + rest);
        }
        whole
    }
}

/// A JSON answer.
pub fn json_body(value: &impl Serialize) -> Response<Body> {
    body(serde_json::to_vec(value))
}

/// A JSON answer laid out for a person.
pub fn pretty_body(value: &impl Serialize) -> Response<Body> {
    body(serde_json::to_vec_pretty(value))
}

/// A YAML answer.
pub fn yaml_body(value: &Value) -> Response<Body> {
    let yaml = HeaderValue::from_static("application/yaml");
    match serde_saphyr::to_string(value) {
        Ok(text) => ([(header::CONTENT_TYPE, yaml)], text).into_response(),
        Err(_) => json_body(value),
    }
}

/// A protobuf answer; JSON where the object has no message.
pub fn protobuf_body(value: &Value) -> Response<Body> {
    let kind = HeaderValue::from_static(protobuf::PROTOBUF);
    match protobuf::encode(value) {
        Some(bytes) => ([(header::CONTENT_TYPE, kind)], bytes).into_response(),
        None => json_body(value),
    }
}

fn body(written: serde_json::Result<Vec<u8>>) -> Response<Body> {
    let mut body = written.expect("an API object has nothing that JSON can't say");
    body.push(b'\n');
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], body).into_response()
}
