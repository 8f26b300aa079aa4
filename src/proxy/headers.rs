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
//! Several `cookie` fields, as HTTP/2 has them, become one (RFC 9113 §8.2.3).
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
    join_cookies(&mut headers);
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
        if is_encoded(headers) {
            Self::Opaque
        } else if are_events(headers) {
            Self::Events
        } else if kind(headers).eq_ignore_ascii_case(b"application/json") {
            Self::Json
        } else {
            Self::Opaque
        }
    }
}

/// What is left of a message's fields without `connection` and those that it names, but for `own`, if it names any that are there. To be
/// used by whoever adds fields of their own before they forward: the other side of the connection has no say in those.
#[must_use]
pub fn without_named(headers: &HeaderMap, own: &[HeaderName]) -> Option<HeaderMap> {
    let named = || named(headers).filter(|name| !own.contains(name) && headers.contains_key(name));
    named().next()?;
    let mut left = headers.clone();
    named().for_each(|name| remove(&mut left, name));
    remove(&mut left, header::CONNECTION);
    Some(left)
}

/// Whether the body is server-sent events, compressed perhaps.
pub(super) fn are_events(headers: &HeaderMap) -> bool {
    kind(headers).eq_ignore_ascii_case(b"text/event-stream")
}

fn is_encoded(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity")
}

/// The media type, without parameters.
fn kind(headers: &HeaderMap) -> &[u8] {
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    kind.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii()
}

fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let mut kept = HeaderMap::with_capacity(headers.len() + 1);
    for (name, value) in headers {
        if !is_hop_by_hop(name) {
            kept.append(name, value.clone());
        }
    }
    named(headers).for_each(|name| remove(&mut kept, name));
    kept
}

/// The fields that `connection` names.
fn named(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> + '_ {
    let lists = headers.get_all(header::CONNECTION).iter();
    let names = lists.flat_map(|list| list.as_bytes().split(|&byte| byte == b','));
    names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
}

/// HTTP/1.1 has one `cookie` field, and a server that reads the first alone would miss the rest.
fn join_cookies(headers: &mut HeaderMap) {
    let crumbs: Vec<_> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if crumbs.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]))
    {
        headers.insert(header::COOKIE, joined);
    }
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
            ("cookie", "b=2; c=3"),
            ("via", "1.1 edge"),
        ]);
        let expected = headers(&[
            ("x-request-id", "rq-9"),
            ("authorization", "Bearer t"),
            ("cookie", "a=1; b=2; c=3"),
            ("via", "1.1 edge"),
            ("via", "2 kvroute"),
        ]);
        assert_eq!(to_worker(&client, Version::HTTP_2), expected);
    }

    #[test]
    fn what_a_connection_names_is_taken_out_but_for_what_is_ours() {
        let own = [HeaderName::from_static("x-request-id")];
        let left = |fields| without_named(&headers(fields), &own);
        assert_eq!(left(&[("connection", "keep-alive, X-Absent"), ("x-mine", "1")]), None);
        assert_eq!(left(&[("connection", "x-request-id"), ("x-request-id", "rq")]), None);
        let sent = [
            ("connection", "close, X-Mine, x-request-id"),
            ("x-mine", "1"),
            ("x-mine", "2"),
            ("x-request-id", "rq"),
            ("x-theirs", "1"),
        ];
        assert_eq!(left(&sent), Some(headers(&[("x-request-id", "rq"), ("x-theirs", "1")])));
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
