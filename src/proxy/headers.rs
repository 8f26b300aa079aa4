//! Which headers cross the router.
//!
//! Everything end-to-end does, `x-request-id`, `traceparent` and `tracestate` included, in both directions, and
//! `authorization`, unless the pool has one of its own for workers. What does not:
//!
//! * Fields of one connection only (RFC 9110 §7.6.1): `connection` and whatever it names, `keep-alive`, `te`,
//!   `transfer-encoding`, `upgrade`, and everything that begins with `proxy-` but `proxy-status`, which is for whoever
//!   reads the answer (RFC 9209).
//! * From the response: `content-length` beside `transfer-encoding`.
//! * From the request: `host` and `content-length`, which the HTTP client sets for the worker's address and the body
//!   at hand; `expect`, since the body is here already; `trailer`, since the body is sent without; and
//!   `accept-encoding`, since a compressed answer could not be observed, and a link to a worker is not worth the
//!   delay that compression adds to a token.
//!
//! To the request is added `via`, which RFC 9110 §7.6.3 asks of a gateway. No `x-forwarded-*` is: engines do nothing
//! with a client's address but log it. Those that a proxy in front of the router has set pass through.

use http::{
    HeaderMap, HeaderName, HeaderValue, Version,
    header::{self, Entry},
};

/// The headers of a worker's request, made from those of the client's.
pub(super) fn to_worker(client: &HeaderMap, version: Version) -> HeaderMap {
    let mut headers = end_to_end(client);
    for name in
        [header::HOST, header::CONTENT_LENGTH, header::EXPECT, header::TRAILER, header::ACCEPT_ENCODING]
    {
        remove(&mut headers, name);
    }
    headers.append(header::VIA, via(version));
    headers
}

/// The headers of a client's response, made from those of the worker's.
pub(super) fn to_client(worker: &HeaderMap) -> HeaderMap {
    let mut headers = end_to_end(worker);
    // Where both are, the length is wrong (RFC 9112 §6.3), and the body is passed on in chunks of our own: cut to it, it would look whole.
    if worker.contains_key(header::TRANSFER_ENCODING) {
        remove(&mut headers, header::CONTENT_LENGTH);
    }
    headers
}

/// How a body can be read in passing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// Server-sent events.
    Events,
    /// One JSON text.
    Json,
    /// Something else, or compressed.
    Opaque,
}

impl Form {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let encoded = headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity");
        let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let kind = kind.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
        if encoded {
            Self::Opaque
        } else if kind.eq_ignore_ascii_case(b"text/event-stream") {
            Self::Events
        } else if kind.eq_ignore_ascii_case(b"application/json") {
            Self::Json
        } else {
            Self::Opaque
        }
    }
}

fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let mut kept = HeaderMap::with_capacity(headers.len() + 1);
    for (name, value) in headers {
        if !is_hop_by_hop(name) {
            kept.append(name, value.clone());
        }
    }
    for value in headers.get_all(header::CONNECTION) {
        for named in value.as_bytes().split(|&byte| byte == b',') {
            if let Ok(named) = HeaderName::from_bytes(named.trim_ascii()) {
                remove(&mut kept, named);
            }
        }
    }
    kept
}

fn is_hop_by_hop(name: &HeaderName) -> bool {
    const NAMES: [HeaderName; 4] =
        [header::CONNECTION, header::TE, header::TRANSFER_ENCODING, header::UPGRADE];
    NAMES.contains(name)
        || name == "keep-alive"
        || (name.as_str().starts_with("proxy-") && name != "proxy-status")
}

fn remove(headers: &mut HeaderMap, name: HeaderName) {
    if let Entry::Occupied(field) = headers.entry(name) {
        field.remove_entry_mult();
    }
}

fn via(version: Version) -> HeaderValue {
    HeaderValue::from_static(match version {
        Version::HTTP_10 => "1.0 kvroute",
        Version::HTTP_2 => "2 kvroute",
        _ => "1.1 kvroute",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for &(name, value) in fields {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn only_end_to_end_fields_cross() {
        let client = headers(&[
            ("connection", "close, X-Mine"),
            ("connection", "x-other"),
            ("x-mine", "1"),
            ("x-other", "1"),
            ("x-other", "2"),
            ("keep-alive", "timeout=5"),
            ("proxy-authorization", "secret"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("transfer-encoding", "chunked"),
            ("host", "router"),
            ("content-length", "7"),
            ("expect", "100-continue"),
            ("accept-encoding", "gzip"),
            ("x-request-id", "rq-9"),
            ("authorization", "Bearer t"),
            ("cookie", "a=1"),
            ("cookie", "b=2"),
            ("via", "1.1 edge"),
        ]);
        let expected = headers(&[
            ("x-request-id", "rq-9"),
            ("authorization", "Bearer t"),
            ("cookie", "a=1"),
            ("cookie", "b=2"),
            ("via", "1.1 edge"),
            ("via", "2 kvroute"),
        ]);
        assert_eq!(to_worker(&client, Version::HTTP_2), expected);
    }

    #[test]
    fn a_response_keeps_its_length_and_its_trailer_field() {
        let worker = headers(&[
            ("content-length", "7"),
            ("trailer", "x-sum"),
            ("connection", "close"),
            ("proxy-authenticate", "Basic"),
            ("proxy-status", "edge; error=http_protocol_error"),
        ]);
        let kept = [
            ("content-length", "7"),
            ("trailer", "x-sum"),
            ("proxy-status", "edge; error=http_protocol_error"),
        ];
        assert_eq!(to_client(&worker), headers(&kept));
    }

    #[test]
    fn forms_are_told_by_type_and_encoding() {
        let form =
            |kind, encoding| Form::of(&headers(&[("content-type", kind), ("content-encoding", encoding)]));
        assert_eq!(form("Text/Event-Stream; charset=utf-8", "identity"), Form::Events);
        assert_eq!(form("application/json", "identity"), Form::Json);
        assert_eq!(form("application/json", "gzip"), Form::Opaque);
        assert_eq!(form("text/plain", "identity"), Form::Opaque);
        assert_eq!(Form::of(&HeaderMap::new()), Form::Opaque);
    }
}
