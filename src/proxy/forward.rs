//! One request to one worker, up to the first byte of the answer.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header, request, response,
    uri::PathAndQuery,
};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;

use super::{
    body::ProxyBody,
    connection::{Connection, Unanswered},
    error::{ErrorKind, ProxyError},
    headers::{self, Form},
    kept::Destination,
    limits::Time,
    observe::Observer,
    pool::Pool,
    upstream::Upstream,
};

impl Pool {
    /// Sends `body` under the method, path, query and headers of `head` to the worker at `base`, and waits for the
    /// first byte of the answer's body, or for the end of a body that is empty.
    ///
    /// `base` is `http://host:port` or `https://host:port`, with or without a path, which then comes before the request's own. Which
    /// headers are passed on, and which are not, is said in `headers.rs`: all end-to-end ones, in short.
    ///
    /// An answer whose status is an error is an answer like any other: its status is there to be looked at before it
    /// is relayed. Dropping the future cancels the request: the upstream connection is closed.
    ///
    /// # Errors
    ///
    /// When there is no answer. Nothing has been promised to the client then, and [`ProxyError::retry`] says whether
    /// the worker may have run the request.
    pub async fn forward(
        &self,
        base: &Uri,
        head: &request::Parts,
        body: Bytes,
    ) -> Result<Answer, ProxyError> {
        let to = target(base, head)?;
        let mut request = Request::new(Full::new(body));
        *request.uri_mut() = to.path_and_query().cloned().map(Uri::from).unwrap_or_default();
        *request.method_mut() = head.method.clone();
        *request.headers_mut() = headers::to_worker(&head.headers, head.version);
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(header::AUTHORIZATION, authorization.clone());
        }
        request.headers_mut().insert(header::HOST, host(&to)?);
        let answer = self.first_byte(base, &to, request);
        let Some(limit) = self.first_byte_timeout else { return answer.await };
        match tokio::time::timeout(limit, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(ProxyError::timeout(ErrorKind::FirstByteTimeout, base, limit)),
        }
    }

    async fn first_byte(
        &self,
        base: &Uri,
        to: &Uri,
        request: Request<Full<Bytes>>,
    ) -> Result<Answer, ProxyError> {
        let (head, mut upstream) = self.head(base, to, request).await?.into_parts();
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(ProxyError::new(ErrorKind::InvalidResponse, base, "it switches protocols, unasked"));
        }
        let first = match upstream.frame().await {
            Some(Ok(frame)) => Some(frame),
            None => None,
            Some(Err(error)) => return Err(ProxyError::before_first_byte(base, &error)),
        };
        let form = Form::of(&head.headers);
        Ok(Answer {
            head,
            first,
            upstream,
            form,
            worker: base.clone(),
            idle_timeout: self.idle_timeout,
            time: None,
        })
    }
}

impl Pool {
    /// Sends a request over a connection that is kept, or a new one, and waits for the head of the answer.
    async fn head(
        &self,
        base: &Uri,
        to: &Uri,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Upstream>, ProxyError> {
        let lender = self.kept.lender(Destination::of(to));
        loop {
            let kept = lender.take();
            let was_kept = kept.is_some();
            let mut connection = match kept {
                Some(connection) => connection,
                None => self.connect(base, to).await?,
            };
            match connection.exchange(request).await {
                Ok(answer) => return Ok(answer.map(|body| Upstream::new(body, connection, lender))),
                // It was closed while it was kept, and not a byte of the request was written.
                Err(Unanswered { unsent: Some(again), .. }) if was_kept => request = again,
                Err(Unanswered { error, .. }) => return Err(ProxyError::before_response(base, &error)),
            }
        }
    }

    async fn connect(&self, base: &Uri, to: &Uri) -> Result<Box<Connection>, ProxyError> {
        let link = self.connector.connect(to).await;
        let link = link.map_err(|error| ProxyError::before_connection(base, &*error))?;
        let connection = Connection::open(TokioIo::new(link)).await;
        connection.map(Box::new).map_err(|error| ProxyError::before_response(base, &error))
    }
}

/// A worker's answer whose body has begun. Dropping it cancels the request.
#[derive(Debug)]
pub struct Answer {
    head: response::Parts,
    /// The first frame of the body; `None` if it has none.
    pub(super) first: Option<Frame<Bytes>>,
    pub(super) upstream: Upstream,
    pub(super) form: Form,
    pub(super) worker: Uri,
    pub(super) idle_timeout: Option<std::time::Duration>,
    /// Until when it has to be complete.
    pub(super) time: Option<Time>,
}

impl Answer {
    /// The worker's status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.head.status
    }

    /// The worker's headers, as they came.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// Whether it comes event by event.
    pub(crate) fn streams(&self) -> bool {
        headers::are_events(&self.head.headers)
    }

    /// Whether its observer will hear of the first token: of events that are compressed nothing can be told.
    pub(crate) fn tells_first_token(&self) -> bool {
        self.form == Form::Events
    }

    /// The same, to be cut when the time is over.
    #[must_use]
    pub(crate) fn within(self, time: Option<Time>) -> Self {
        Self { time, ..self }
    }

    /// Turns the answer into the response for the client. `observer` hears of the body from now on, the first byte
    /// included, and is dropped when the body is over.
    #[must_use]
    pub fn relay<O: Observer>(self, observer: O) -> Response<ProxyBody<O>> {
        let mut head = Response::new(()).into_parts().0;
        head.status = self.head.status;
        head.headers = headers::to_client(&self.head.headers);
        if self.form == Form::Events && !self.upstream.is_end_stream() {
            // A stream that is cut ends with an event more than the worker sent, for which a length has no room.
            head.headers.remove(header::CONTENT_LENGTH);
        }
        Response::from_parts(head, ProxyBody::new(self, observer))
    }
}

/// The URL of a request on a worker.
fn target(base: &Uri, head: &request::Parts) -> Result<Uri, ProxyError> {
    let unusable = |why: &str| ProxyError::new(ErrorKind::Upstream, base, why);
    let (Some(scheme @ ("http" | "https")), Some(authority)) = (base.scheme_str(), base.authority()) else {
        return Err(unusable("use http://host:port or https://host:port, with or without a path"));
    };
    if base.query().is_some() {
        return Err(unusable("a base URL has no query"));
    }
    let refused = |why: &str| ProxyError::new(ErrorKind::Request, base, why);
    let path = head.uri.path_and_query().map_or("", PathAndQuery::as_str);
    if head.method == Method::CONNECT || !path.starts_with('/') {
        return Err(refused("only requests for a path on this server are, and no CONNECT"));
    }
    let path = match base.path().trim_end_matches('/') {
        "" => head.uri.path_and_query().cloned().ok_or_else(|| refused("it has no path"))?,
        prefix => format!("{prefix}{path}").parse().map_err(|_| refused("its path is too long"))?,
    };
    let target = Uri::builder().scheme(scheme).authority(authority.clone()).path_and_query(path).build();
    target.map_err(|error| ProxyError::new(ErrorKind::Request, base, error))
}

/// The port of a URL that names none.
pub(crate) fn usual_port(of: &Uri) -> u16 {
    if of.scheme_str() == Some("https") { 443 } else { 80 }
}

/// The name of the host that a request is for, with its port where that is not the scheme's own (RFC 9110 §7.2).
fn host(to: &Uri) -> Result<HeaderValue, ProxyError> {
    let host = to.host().unwrap_or_default();
    let value = match to.port_u16() {
        Some(port) if port != usual_port(to) => HeaderValue::try_from(format!("{host}:{port}")),
        _ => HeaderValue::try_from(host),
    };
    value.map_err(|error| ProxyError::new(ErrorKind::Upstream, to, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_named_with_its_port_where_that_is_not_the_usual_one() {
        for (to, named) in [
            ("http://w:8000/v1", "w:8000"),
            ("http://w:80/v1", "w"),
            ("https://w:443/v1", "w"),
            ("https://w:80/v1", "w:80"),
            ("http://user@w/v1", "w"),
            ("http://[::1]:8000/v1", "[::1]:8000"),
        ] {
            assert_eq!(host(&Uri::from_static(to)).unwrap(), named);
        }
    }

    fn joined(base: &'static str, uri: &'static str) -> Result<String, ErrorKind> {
        let head = Request::builder().uri(uri).body(()).unwrap().into_parts().0;
        target(&Uri::from_static(base), &head).map(|uri| uri.to_string()).map_err(|error| error.kind)
    }

    #[test]
    fn a_path_goes_behind_the_path_of_the_base() {
        let expected = "http://w:1/v1/models?a=%20b";
        for uri in ["/v1/models?a=%20b", "http://router/v1/models?a=%20b"] {
            assert_eq!(joined("http://w:1", uri).as_deref(), Ok(expected));
            assert_eq!(joined("http://w:1/", uri).as_deref(), Ok(expected));
        }
        assert_eq!(joined("http://w:1/pod/7/", "/v1").as_deref(), Ok("http://w:1/pod/7/v1"));
        assert_eq!(joined("http://w:1/pod/7", "/").as_deref(), Ok("http://w:1/pod/7/"));
        assert_eq!(joined("https://w", "/v1").as_deref(), Ok("https://w/v1"));
    }

    #[test]
    fn what_cannot_be_sent_is_refused_by_the_name_of_who_erred() {
        for base in ["ftp://w:1", "/only/a/path", "http://w:1/?x=1"] {
            assert_eq!(joined(base, "/v1"), Err(ErrorKind::Upstream), "{base}");
        }
        assert_eq!(joined("http://w:1", "*"), Err(ErrorKind::Request));
    }
}
