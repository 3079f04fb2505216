//! Requests over HTTP: from a request to its answer, at once.

use super::failure::Failure;
use super::request::{Path, Query};
use super::selection::{Form, Selection};
use super::state::Stored;
use super::watch::Watch;
use super::writes::{DeleteOptions, Part, PatchForm, Target};
use super::{ApiServer, discovery};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, DATE, RETRY_AFTER, USER_AGENT};
use http::{HeaderValue, Method, Request, Response};
use serde_json::{Value, json};
use std::sync::Arc;

/// The answer to a request.
pub enum Answer {
    /// A response with its whole body.
    Response(Response<Bytes>),
    /// A response with status 200 and the header, and a body of events.
    Watch {
        /// The response without its body.
        head: Response<()>,
        /// Its events.
        watch: Box<Watch>,
    },
}

/// What a request leads to, if it is not refused.
enum Outcome {
    Object(u16, Bytes),
    Json(u16, Value),
    Watch(Box<Watch>),
}

impl Outcome {
    fn object(form: Form, stored: &Stored, created: bool) -> Self {
        Self::Object(if created { 201 } else { 200 }, form.of(stored))
    }
}

impl ApiServer {
    /// Handles one request, at once. Writes are by the `User-Agent` of the request.
    pub fn handle(&self, request: Request<Bytes>) -> Answer {
        let (code, body) = match self.outcome(&request) {
            Ok(Outcome::Object(code, text)) => (code, text),
            Ok(Outcome::Json(code, value)) => (code, value.to_string().into()),
            Ok(Outcome::Watch(watch)) => {
                return Answer::Watch { head: self.respond(200, ()), watch };
            }
            Err(failure) => {
                if failure.code == 501 {
                    let line = format!("{} {}: {failure}", request.method(), request.uri());
                    self.state().unmodelled.push(line);
                }
                return Answer::Response(self.refusal(&failure, None));
            }
        };
        Answer::Response(self.respond(code, body))
    }

    /// The response that refuses a request, with the time to wait before another one, in seconds.
    pub fn refusal(&self, failure: &Failure, retry_after: Option<u32>) -> Response<Bytes> {
        let mut response = self.respond(failure.code, failure.status().to_string().into());
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        response
    }

    fn respond<B>(&self, code: u16, body: B) -> Response<B> {
        let mut response = Response::new(body);
        *response.status_mut() = http::StatusCode::from_u16(code).expect("a valid status");
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(DATE, self.state().date());
        response
    }

    fn outcome(&self, request: &Request<Bytes>) -> Result<Outcome, Failure> {
        let header = |name| {
            let value = request.headers().get(name).map(HeaderValue::to_str);
            value.and_then(Result::ok).unwrap_or_default()
        };
        let path = request.uri().path();
        if request.method() == Method::GET
            && let Some(document) = discovery::document(path, header(ACCEPT))
        {
            return Ok(Outcome::Json(200, document));
        }
        let path = Path::parse(path)?;
        let query = Query::parse(request.uri().query().unwrap_or_default())?;
        let who: Arc<str> = match header(USER_AGENT) {
            "" => self.who.clone(),
            agent if agent == &*self.who => self.who.clone(),
            agent => agent.into(),
        };
        let form = Form::accepted(header(ACCEPT))?;
        let Path { resource, namespace, name, part } = path;
        let target = Target { who: &who, resource, namespace, name, part };
        let refuses = || Failure::unmodelled(format_args!("{} of this path", request.method()));
        self.state().expire_events(&who);
        match (request.method(), name.is_empty()) {
            (&Method::GET, true) => self.read_many(&path, &query, form),
            (&Method::GET, false) => self.read(&target, form),
            (&Method::POST, true) if resource.namespaced != namespace.is_empty() => {
                let created = self.state().create(&target, parse(request.body())?)?;
                Ok(Outcome::object(form, &created, true))
            }
            (&Method::PUT, false) => self.replace(&target, request.body(), form),
            (&Method::PATCH, false) => {
                self.patch(&target, &query, header(CONTENT_TYPE), request.body(), form)
            }
            (&Method::DELETE, false) if part == Part::Main => {
                let options = delete_options(&query, request.body())?;
                self.delete_as(&target, &options, form)
            }
            _ => Err(refuses()),
        }
    }

    fn read_many(
        &self,
        path: &Path<'_>,
        query: &Query<'_>,
        form: Form,
    ) -> Result<Outcome, Failure> {
        let selection = Selection::new(path.namespace, &query.labels, &query.fields)?;
        if query.watch {
            let watch = Watch::open(self, path.resource, selection, query, form)?;
            return Ok(Outcome::Watch(Box::new(watch)));
        }
        let text = self.state().list(path.resource, &selection, query, form)?;
        Ok(Outcome::Object(200, text.into()))
    }

    fn read(&self, target: &Target<'_>, form: Form) -> Result<Outcome, Failure> {
        let state = self.state();
        if target.part == Part::Scale {
            return state.scale(target).map(|scale| Outcome::Json(200, scale));
        }
        let found = state.find(target.resource, target.namespace, target.name);
        let found = found.ok_or_else(|| Failure::not_found(target.resource, target.name))?;
        Ok(Outcome::object(form, found, false))
    }

    fn replace(&self, target: &Target<'_>, body: &[u8], form: Form) -> Result<Outcome, Failure> {
        let object = parse(body)?;
        if target.part == Part::Scale {
            let scale = self.state().put_scale(target, &object)?;
            return Ok(Outcome::Json(200, scale));
        }
        let (stored, created) = self.state().replace(target, object)?;
        Ok(Outcome::object(form, &stored, created))
    }

    fn patch(
        &self,
        target: &Target<'_>,
        query: &Query<'_>,
        content: &str,
        body: &[u8],
        form: Form,
    ) -> Result<Outcome, Failure> {
        let patch = parse(body)?;
        match (content, target.part) {
            ("application/merge-patch+json", Part::Main | Part::Status) => {
                let stored = self.state().patch(target, PatchForm::Merge, &patch)?;
                Ok(Outcome::object(form, &stored, false))
            }
            ("application/json-patch+json", Part::Main | Part::Status) => {
                let stored = self.state().patch(target, PatchForm::Json, &patch)?;
                Ok(Outcome::object(form, &stored, false))
            }
            ("application/apply-patch+yaml", Part::Main) if query.force => {
                let applied = self.state().apply(target, &query.field_manager, patch);
                let (stored, created) = applied?;
                Ok(Outcome::object(form, &stored, created))
            }
            _ => {
                let part = target.part.name();
                Err(Failure::unmodelled(format_args!("patch of {part:?} in the form {content:?}")))
            }
        }
    }

    fn delete_as(
        &self,
        target: &Target<'_>,
        options: &DeleteOptions,
        form: Form,
    ) -> Result<Outcome, Failure> {
        let deleted = self.state().delete(target, options)?;
        // Of a pod, the object is returned even though it is gone.
        if !deleted.gone || target.resource.kind == "Pod" {
            return Ok(Outcome::object(form, &deleted.object, false));
        }
        let mut details = json!({"name": target.name, "kind": target.resource.plural,
            "uid": deleted.object.value["metadata"]["uid"]});
        if !target.resource.group.is_empty() {
            details["group"] = target.resource.group.into();
        }
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Success", "details": details});
        Ok(Outcome::Json(200, status))
    }
}

fn parse(body: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(body).map_err(|error| Failure::bad_request(error.to_string()))
}

/// The options of a deletion, from its query and its body.
fn delete_options(query: &Query<'_>, body: &[u8]) -> Result<DeleteOptions, Failure> {
    let body = if body.is_empty() { json!({}) } else { parse(body)? };
    for (field, value) in body.as_object().into_iter().flatten() {
        let known = match field.as_str() {
            "kind" | "apiVersion" | "preconditions" | "gracePeriodSeconds" => true,
            "propagationPolicy" => value == "Background",
            _ => value.is_null(),
        };
        if !known {
            return Err(Failure::unmodelled(format_args!("option {field} of a deletion")));
        }
    }
    let text = |field: &str| body["preconditions"][field].as_str().map(str::to_owned);
    Ok(DeleteOptions {
        uid: text("uid"),
        resource_version: text("resourceVersion"),
        grace_period_seconds: body["gracePeriodSeconds"].as_i64().or(query.grace_period_seconds),
    })
}
