//! Errors as clients see them: a status, and the body that OpenAI's clients parse.

use std::{borrow::Cow, time::Duration};

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::{Value, json};

use super::api_keys::NoKey;
use crate::proxy::{ErrorKind, Origin, ProxyError, Retry};

/// An answer that is an error of the router's own.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    /// What was wrong and what is accepted, for a person.
    pub(crate) message: String,
    /// OpenAI's `type`.
    kind: &'static str,
    /// The field at fault.
    param: Option<String>,
    /// OpenAI's `code`, for programs.
    code: Option<&'static str>,
    /// Whose doing it is.
    source: Origin,
    /// Whether it is safe, and of use, to send the request again.
    retry: Retry,
    retry_after_secs: Option<u32>,
    tells: Option<Tells>,
}

/// What a header of the answer tells.
#[derive(Clone, Copy, Debug)]
enum Tells {
    /// The methods that the path accepts.
    Allow(&'static str),
    /// How to show who one is.
    Challenge(&'static str),
}

/// In the extensions of a response that is an error of ours: its `code`, or its `type` where it has none.
#[derive(Clone, Copy, Debug)]
pub(super) struct ErrorCode(pub(super) &'static str);

/// How a client may show who it is.
const CHALLENGE: &str = "Bearer realm=\"kvroute\"";

/// What `retry-after` says at most: an estimate beyond that is none.
const MOST_SECONDS: u32 = 60;

/// Characters of a client's own text that an error repeats at most: names are shorter, and a body that comes back is of no use.
const QUOTED: usize = 200;

/// Characters that a message has at most, whatever it repeats: no answer to a mistake is as large as the mistake.
const LONGEST_MESSAGE: usize = 4000;

#[derive(Serialize)]
struct Body<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: Option<&'a str>,
    // Ours, beside OpenAI's.
    source: &'static str,
    retry: &'static str,
}

/// The headers of an error that say what `source` and `retry` say in its body. Errors of workers, which are passed on as they
/// are, have the headers alone.
const SOURCE: HeaderName = HeaderName::from_static("x-kvroute-error-source");
const RETRY: HeaderName = HeaderName::from_static("x-kvroute-error-retry");

impl ApiError {
    /// One of the client's if the status says so, else the router's, which did nothing of the request.
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if let Cow::Owned(shorter) = cut(&message, LONGEST_MESSAGE) {
            message = shorter;
        }
        let (source, retry) = if status.is_client_error() {
            (Origin::Client, Retry::Never)
        } else {
            (Origin::Router, Retry::Safe)
        };
        Self {
            status,
            message,
            kind,
            param: None,
            code: None,
            source,
            retry,
            retry_after_secs: None,
            tells: None,
        }
    }

    /// 400: the request cannot be served as it is, by anybody.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400 for one field.
    pub(crate) fn bad_field(param: &str, message: impl Into<String>) -> Self {
        Self { param: Some(quoted(param).into_owned()), ..Self::bad_request(message) }
    }

    /// 400: prompt and output do not fit the model.
    pub(crate) fn context_length(param: &str, message: impl Into<String>) -> Self {
        Self { code: Some("context_length_exceeded"), ..Self::bad_field(param, message) }
    }

    /// 401: the admin listener wants its token.
    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message);
        Self { tells: Some(Tells::Challenge(CHALLENGE)), ..error }
    }

    /// 401: the public listener wants a key that it knows.
    pub(super) fn not_a_client(no_key: NoKey) -> Self {
        let (message, challenge) = match no_key {
            NoKey::Missing => (
                "no API key was given; send 'Authorization: Bearer KEY' with a key that the operator of this server gave you",
                CHALLENGE,
            ),
            NoKey::Unknown => (
                "the API key is not known here; send one that the operator of this server gave you",
                "Bearer realm=\"kvroute\", error=\"invalid_token\"",
            ),
        };
        let error = Self::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message);
        Self { code: Some("invalid_api_key"), tells: Some(Tells::Challenge(challenge)), ..error }
    }

    /// 404.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
    }

    /// 404 for a model nobody serves.
    pub(crate) fn model_not_found(model: &str, served: &[&str]) -> Self {
        let served = if served.is_empty() { "none yet".to_owned() } else { served.join(", ") };
        let message = format!("the model '{}' does not exist; models served here: {served}", quoted(model));
        Self { param: Some("model".to_owned()), code: Some("model_not_found"), ..Self::not_found(message) }
    }

    /// 404 for a model that is served, and not at this route.
    pub(crate) fn route_not_served(message: impl Into<String>) -> Self {
        let (param, code) = (Some("model".to_owned()), Some("model_not_found"));
        Self { param, code, ..Self::not_found(message) }
    }

    /// 405. RFC 9110 §15.5.6 asks for the methods that are accepted in a header; `None` leaves it to the caller.
    pub(crate) fn method_not_allowed(method: &str, path: &str, accepted: Option<&'static str>) -> Self {
        let accepting = accepted.unwrap_or("a method that 'allow' lists");
        let (method, path) = (quoted(method), quoted(path));
        let message = format!("{method} is not accepted on {path}; use {accepting}");
        let error = Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message);
        Self { tells: accepted.map(Tells::Allow), ..error }
    }

    /// 409.
    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "invalid_request_error", message)
    }

    /// 403.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    /// 415 for a body of another kind.
    pub(crate) fn not_json() -> Self {
        let message = "only JSON bodies are read here; send them with content-type application/json";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
    }

    /// 413.
    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!("the request body is larger than {limit} bytes (--max-body-bytes)");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// 408: a body that does not come.
    pub(crate) fn too_slow(limit: Duration) -> Self {
        let message = format!(
            "the request body did not arrive within {} s (--request-read-timeout); send it again",
            limit.as_secs_f64()
        );
        let error = Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message);
        Self { retry: Retry::Safe, ..error }
    }

    /// 431.
    pub(crate) fn header_too_large(limit: usize) -> Self {
        let message =
            format!("the request's header fields have more than {limit} bytes (--max-header-bytes)");
        Self::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "invalid_request_error", message)
    }

    /// 503: as many requests are in as may be.
    pub(crate) fn full(limit: usize) -> Self {
        let message = format!(
            "{limit} requests are being served, and no more are let in (--max-concurrent-requests); send the request again \
             later"
        );
        Self { code: Some("too_many_requests"), ..Self::unavailable(message) }
    }

    /// 415: a body that only its sender can read.
    pub(crate) fn encoded() -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "invalid_request_error",
            "compressed request bodies are not accepted; send the JSON as it is, without content-encoding",
        )
    }

    /// 501: a route that is not served by separate prefill and decode workers.
    pub(crate) fn not_split(path: &str, model: &str) -> Self {
        let message = format!(
            "{path} is not served by separate prefill and decode workers, which '{model}' has; use \
             /v1/chat/completions or /v1/completions, or have the frontend started with --prefill-fallback decode, which \
             lets decode workers serve it alone"
        );
        let error = Self::new(StatusCode::NOT_IMPLEMENTED, "invalid_request_error", message);
        Self { retry: Retry::Never, ..error }
    }

    /// 503: nobody can take the request now.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self {
            retry_after_secs: Some(1),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", message)
        }
    }

    /// 429: the request cannot wait, or has waited for too long. `retry_after` is how long the queue is likely to take.
    pub(crate) fn turned_away(code: &'static str, message: impl Into<String>, retry_after: Duration) -> Self {
        let seconds = u32::try_from(retry_after.as_secs()).unwrap_or(u32::MAX).saturating_add(1);
        Self {
            code: Some(code),
            retry_after_secs: Some(seconds.min(MOST_SECONDS)),
            source: Origin::Router,
            retry: Retry::Safe,
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
        }
    }

    /// 529, or what the operator chose in its place: everybody could, but is too busy.
    pub(crate) fn overloaded(status: StatusCode, message: impl Into<String>) -> Self {
        let (source, retry) = (Origin::Router, Retry::Safe);
        Self { source, retry, retry_after_secs: Some(1), ..Self::new(status, "overloaded_error", message) }
    }

    /// 502 or 504, mostly: a worker failed before it answered.
    pub(crate) fn upstream(error: &ProxyError) -> Self {
        let (code, source, retry) = (Some(error.kind.name()), error.origin(), error.retry());
        Self {
            code,
            source,
            retry,
            ..Self::new(error.kind.status(), error.client_type(), error.client_message())
        }
    }

    /// 504: the request's time was over before there was an answer.
    pub(crate) fn out_of_time(limit: Duration) -> Self {
        let kind = ErrorKind::TotalTimeout;
        let message = format!(
            "there was no answer within {} s (--total-timeout); ask for less, or send the request again",
            limit.as_secs_f64()
        );
        let (code, retry) = (Some(kind.name()), kind.retry());
        Self { code, retry, ..Self::new(kind.status(), "router_error", message) }
    }

    /// 502: a worker's answer cannot be used.
    pub(crate) fn bad_gateway(message: impl Into<String>) -> Self {
        let (source, retry) = (Origin::Worker, Retry::Unsafe);
        Self { source, retry, ..Self::new(StatusCode::BAD_GATEWAY, "upstream_error", message) }
    }

    /// 500: something of ours broke.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message);
        Self { retry: Retry::Unsafe, ..error }
    }

    fn body(&self) -> Value {
        let body = Body {
            message: &self.message,
            kind: self.kind,
            param: self.param.as_deref(),
            code: self.code,
            source: self.source.name(),
            retry: self.retry.name(),
        };
        json!({ "error": body })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after_secs {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(tells) = self.tells {
            let (name, value) = match tells {
                Tells::Allow(methods) => (header::ALLOW, methods),
                Tells::Challenge(challenge) => (header::WWW_AUTHENTICATE, challenge),
            };
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        tell(response.headers_mut(), self.source, self.retry);
        response.extensions_mut().insert(ErrorCode(self.code.unwrap_or(self.kind)));
        response
    }
}

/// A client's text as an error repeats it.
pub(super) fn quoted(text: &str) -> Cow<'_, str> {
    cut(text, QUOTED)
}

/// The first `most` characters of a text, and how long it is if there are more.
pub(super) fn cut(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        Some((end, _)) => Cow::Owned(format!("{}... ({} bytes in all)", &text[..end], text.len())),
        None => Cow::Borrowed(text),
    }
}

/// Says of a worker's answer, which is passed on as it is, whose error it is, if it is one. What the worker says itself, as
/// another router would, stands.
pub(super) fn tell_of_answer(status: StatusCode, headers: &mut HeaderMap) {
    let Some(retry) = Retry::of_status(status) else { return };
    if !headers.contains_key(SOURCE) {
        tell(headers, Origin::Worker, retry);
    }
}

/// Whether an error of a worker, of one that is a router itself, says of it that the request may have been run.
pub(super) fn is_unsafe(headers: &HeaderMap) -> bool {
    headers.get(RETRY).is_some_and(|retry| retry == Retry::Unsafe.name())
}

pub(super) fn tell(headers: &mut HeaderMap, source: Origin, retry: Retry) {
    headers.insert(SOURCE, HeaderValue::from_static(source.name()));
    headers.insert(RETRY, HeaderValue::from_static(retry.name()));
}
