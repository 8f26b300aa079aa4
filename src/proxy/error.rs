//! Why an answer could not be had, with what a retry layer and a person need to know.

use std::{error::Error, fmt, io, time::Duration};

use http::{StatusCode, Uri};

use super::connector::HandshakeError;

/// A request that a worker did not answer, or not to the end.
///
/// `Display` names the worker and is meant for logs; a client is shown [`ProxyError::client_message`].
#[derive(Debug, thiserror::Error)]
#[error("worker {worker}: {kind}{detail}")]
pub struct ProxyError {
    /// What happened.
    pub kind: ErrorKind,
    /// The worker's base URL.
    pub worker: Uri,
    /// More about it, if there is more.
    pub detail: Detail,
}

/// Text that completes an error's message; empty if there is nothing to add.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Detail(String);

impl Detail {
    pub(super) fn new(text: impl fmt::Display) -> Self {
        Self(text.to_string())
    }

    /// The innermost cause, which names the system's reason ("connection refused").
    fn of(error: &(dyn Error + 'static)) -> Self {
        Self::new(causes(error).last().unwrap_or(error))
    }
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ": {}", self.0) }
    }
}

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ErrorKind {
    /// The client's request is not one that can be forwarded.
    Request,
    /// The worker's base URL is not one that can be connected to.
    Upstream,
    /// No connection: refused, unreachable, or the name does not resolve.
    Connect,
    /// No connection within [`PoolSettings::connect_timeout`](super::PoolSettings::connect_timeout).
    ConnectTimeout,
    /// A connection, and no secure one over it: a certificate that does not count, or no TLS at all.
    Tls,
    /// The connection was lost before the request was written to it.
    NotSent,
    /// The connection was lost after the request was written, before the first byte of the answer's body.
    Reset,
    /// No first byte within [`PoolSettings::first_byte_timeout`](super::PoolSettings::first_byte_timeout).
    FirstByteTimeout,
    /// What came back is not HTTP, or not HTTP that was asked for.
    InvalidResponse,
    /// The body broke off after its first byte.
    Cut,
    /// The body stood still for [`PoolSettings::idle_timeout`](super::PoolSettings::idle_timeout).
    IdleTimeout,
    /// The answer was not complete when the request's time was over.
    TotalTimeout,
}

/// Whose doing an error is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The client sent something that no worker could be given.
    Client,
    /// The router or its configuration.
    Router,
    /// The worker, or the network between.
    Worker,
}

/// Whether sending the request again could run it twice, or is of no use. That matters less for a method that is idempotent, which
/// the caller knows, and for a generation that costs time and nothing else, which is the caller's policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retry {
    /// The worker has seen nothing of the request.
    Safe,
    /// The worker may have run it, or the client already has part of the answer.
    Unsafe,
    /// It would fail again: the request is at fault, or what it asks for is not there.
    Never,
}

impl Origin {
    /// The name that clients get as `source`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Router => "router",
            Self::Worker => "worker",
        }
    }
}

impl Retry {
    /// The name that clients get as `retry`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Unsafe => "unsafe",
            Self::Never => "never",
        }
    }

    /// What a worker's answer of that status says of it, if it is an error: one that is turned away has not been run.
    #[must_use]
    pub fn of_status(status: StatusCode) -> Option<Self> {
        match status {
            StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_EARLY
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::SERVICE_UNAVAILABLE => Some(Self::Safe),
            status if status.is_client_error() => Some(Self::Never),
            status if status.is_server_error() => Some(Self::Unsafe),
            _ => None,
        }
    }
}

impl ErrorKind {
    /// Every kind, for tables of counters.
    pub const ALL: [Self; 12] = [
        Self::Request,
        Self::Upstream,
        Self::Connect,
        Self::ConnectTimeout,
        Self::Tls,
        Self::NotSent,
        Self::Reset,
        Self::FirstByteTimeout,
        Self::InvalidResponse,
        Self::Cut,
        Self::IdleTimeout,
        Self::TotalTimeout,
    ];

    /// The name used in metrics and as `code` in the bodies that clients get.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Request => "request_not_forwardable",
            Self::Upstream => "worker_url_invalid",
            Self::Connect => "worker_unreachable",
            Self::ConnectTimeout => "worker_connect_timeout",
            Self::Tls => "worker_tls_failed",
            Self::NotSent => "worker_connection_lost",
            Self::Reset => "worker_reset",
            Self::FirstByteTimeout => "worker_first_byte_timeout",
            Self::InvalidResponse => "worker_response_invalid",
            Self::Cut => "worker_stream_cut",
            Self::IdleTimeout => "worker_idle_timeout",
            Self::TotalTimeout => "total_timeout",
        }
    }

    /// Whose doing it is.
    #[must_use]
    pub const fn origin(self) -> Origin {
        match self {
            Self::Request => Origin::Client,
            Self::Upstream | Self::TotalTimeout => Origin::Router,
            _ => Origin::Worker,
        }
    }

    /// Whether another try could run the request twice.
    #[must_use]
    pub const fn retry(self) -> Retry {
        match self {
            Self::Upstream | Self::Connect | Self::ConnectTimeout | Self::Tls | Self::NotSent => Retry::Safe,
            Self::Request => Retry::Never,
            _ => Retry::Unsafe,
        }
    }

    /// The status for a client that has been sent nothing yet.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Request => StatusCode::BAD_REQUEST,
            Self::ConnectTimeout | Self::FirstByteTimeout | Self::IdleTimeout | Self::TotalTimeout => {
                StatusCode::GATEWAY_TIMEOUT
            }
            _ => StatusCode::BAD_GATEWAY,
        }
    }

    /// The same of a server that is not known to be a worker's.
    pub(crate) const fn of_any_server(self) -> &'static str {
        match self {
            Self::Upstream => "the URL cannot be used",
            Self::Connect => "no connection",
            Self::Tls => "the TLS handshake failed",
            kind => kind.sentence(),
        }
    }

    const fn sentence(self) -> &'static str {
        match self {
            Self::Request => "the request cannot be forwarded",
            Self::Upstream => "the URL that the worker registered cannot be used",
            Self::Connect => "cannot connect; is the engine running, and its port reachable from the router?",
            Self::ConnectTimeout => "no connection within the connect timeout",
            Self::Tls => {
                "the TLS handshake failed; is its certificate for this host, and from an authority that is trusted?"
            }
            Self::NotSent => "the connection was lost before the request was sent",
            Self::Reset => "the connection was lost before the first byte of the answer",
            Self::FirstByteTimeout => "no answer within the first-byte timeout",
            Self::InvalidResponse => "the answer is not valid HTTP",
            Self::Cut => "the connection was lost in the middle of the answer",
            Self::IdleTimeout => "the answer stood still for longer than the idle timeout",
            Self::TotalTimeout => "the answer was not complete within the total timeout",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sentence())
    }
}

impl ProxyError {
    pub(super) fn new(kind: ErrorKind, worker: &Uri, detail: impl fmt::Display) -> Self {
        Self { kind, worker: worker.clone(), detail: Detail::new(detail) }
    }

    pub(super) fn timeout(kind: ErrorKind, worker: &Uri, limit: Duration) -> Self {
        Self::new(kind, worker, format_args!("{} s", limit.as_secs_f64()))
    }

    /// Sorts why there is no connection.
    pub(super) fn before_connection(worker: &Uri, error: &(dyn Error + 'static)) -> Self {
        let timed_out = find::<io::Error>(error).is_some_and(|io| io.kind() == io::ErrorKind::TimedOut);
        let kind = if timed_out {
            ErrorKind::ConnectTimeout
        } else if find::<HandshakeError>(error).is_some() {
            ErrorKind::Tls
        } else {
            ErrorKind::Connect
        };
        Self { kind, worker: worker.clone(), detail: Detail::of(error) }
    }

    /// Sorts what hyper says of a request that has no response.
    pub(super) fn before_response(worker: &Uri, error: &hyper::Error) -> Self {
        let kind = if error.is_parse() {
            ErrorKind::InvalidResponse
        } else if error.is_canceled() || error.is_closed() {
            // Both mean that the connection was gone before the request got to its front.
            ErrorKind::NotSent
        } else {
            ErrorKind::Reset
        };
        Self { kind, worker: worker.clone(), detail: Detail::of(error) }
    }

    /// Sorts what hyper says of a body whose head is there, and not a byte more. What it cannot read it calls invalid input or invalid
    /// data; a connection that is gone has other names.
    pub(super) fn before_first_byte(worker: &Uri, error: &hyper::Error) -> Self {
        let unreadable = find::<io::Error>(error)
            .is_some_and(|io| matches!(io.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData));
        let kind = if unreadable { ErrorKind::InvalidResponse } else { ErrorKind::Reset };
        Self::in_body(kind, worker, error)
    }

    /// A failure of the body, whose meaning depends on how far it had come.
    pub(super) fn in_body(kind: ErrorKind, worker: &Uri, error: &hyper::Error) -> Self {
        Self { kind, worker: worker.clone(), detail: Detail::of(error) }
    }

    /// Whose doing it is.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.kind.origin()
    }

    /// Whether another try could run the request twice.
    #[must_use]
    pub fn retry(&self) -> Retry {
        self.kind.retry()
    }

    /// What a client may know: the reason, but neither the worker's address nor the system's words.
    #[must_use]
    pub fn client_message(&self) -> String {
        if self.kind == ErrorKind::TotalTimeout {
            return format!("{}{}; ask for less, or send the request again", self.kind, self.detail);
        }
        match self.kind.origin() {
            Origin::Client => format!("{}{}", self.kind, self.detail),
            Origin::Router => "the router cannot reach a worker; this is for its operator to fix".to_owned(),
            Origin::Worker => {
                let what = self.kind.of_any_server();
                format!("the worker chosen for this request failed: {what}; send the request again")
            }
        }
    }

    /// OpenAI's `type` of the error.
    #[must_use]
    pub fn client_type(&self) -> &'static str {
        match self.kind.origin() {
            Origin::Client => "invalid_request_error",
            Origin::Router => "router_error",
            Origin::Worker => "worker_error",
        }
    }

    /// The JSON object of the error, as OpenAI's API shapes one, and beside it whose doing it is and whether it is safe to send the
    /// request again.
    #[must_use]
    pub fn client_json(&self) -> serde_json::Value {
        serde_json::json!({"error": {
            "message": self.client_message(), "type": self.client_type(), "param": null, "code": self.kind.name(),
            "source": self.origin().name(), "retry": self.retry().name(),
        }})
    }
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_names_the_worker_and_a_client_does_not_hear_of_it() {
        let worker = Uri::from_static("http://10.0.0.7:8000/");
        let error = ProxyError::new(ErrorKind::Connect, &worker, "connection refused");
        let logged = error.to_string();
        assert!(logged.starts_with("worker http://10.0.0.7:8000/: cannot connect"), "{logged}");
        assert!(logged.ends_with(": connection refused"), "{logged}");
        let told = error.client_json().to_string();
        assert!(!told.contains("10.0.0.7") && !told.contains("refused"), "{told}");
        assert!(told.contains("worker_unreachable"), "{told}");
    }

    #[test]
    fn names_are_one_per_kind() {
        let mut names: Vec<_> = ErrorKind::ALL.iter().map(|kind| kind.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ErrorKind::ALL.len());
    }

    #[test]
    fn whatever_the_worker_may_have_run_is_unsafe_to_retry() {
        for kind in
            [ErrorKind::Reset, ErrorKind::FirstByteTimeout, ErrorKind::InvalidResponse, ErrorKind::Cut]
        {
            assert_eq!(kind.retry(), Retry::Unsafe, "{kind:?}");
        }
    }
}
