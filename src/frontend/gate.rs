//! What a request meets before the routes of the public listener, and what goes along with its answer.
//!
//! Every request gets its name here, and its line in the access log. It is let in if its head is not too large, if it shows
//! a key where keys are in force, and if there is room for one more. Whatever it is refused with, the client can read it.

use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use axum::{Router, body::Body, response::Response};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Version, header, request::Parts};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tower_service::Service as _;

use super::{
    access_log::Line,
    api_keys::NoKey,
    app::App,
    error::{ApiError, ErrorCode},
    request_id::RequestId,
    route,
};
use crate::metrics::Page;

/// Who is in, and who was turned away.
#[derive(Default)]
pub(super) struct Gate {
    /// Relaxed: no other memory depends on it. A request that finds it above the limit takes itself back, so that for a moment
    /// it may be higher, and a request be turned away beside one that is about to be.
    open: AtomicUsize,
    turned_away: [AtomicU64; Reason::ALL.len()],
}

/// Why a request was turned away.
#[derive(Clone, Copy)]
enum Reason {
    HeaderTooLarge,
    NoHost,
    NoKey,
    UnknownKey,
    Full,
}

impl Reason {
    const ALL: [Self; 5] = [Self::HeaderTooLarge, Self::NoHost, Self::NoKey, Self::UnknownKey, Self::Full];

    const fn name(self) -> &'static str {
        match self {
            Self::HeaderTooLarge => "header_too_large",
            Self::NoHost => "no_host",
            Self::NoKey => "no_key",
            Self::UnknownKey => "unknown_key",
            Self::Full => "too_many_requests",
        }
    }

    /// What the client is told.
    fn error(self, app: &App) -> ApiError {
        let settings = &app.settings;
        match self {
            Self::HeaderTooLarge => ApiError::header_too_large(settings.max_header_bytes),
            Self::NoHost => ApiError::bad_request("an HTTP/1.1 request has one Host header"),
            Self::NoKey => ApiError::not_a_client(NoKey::Missing),
            Self::UnknownKey => ApiError::not_a_client(NoKey::Unknown),
            Self::Full => ApiError::full(settings.max_concurrent_requests.unwrap_or(usize::MAX)),
        }
    }
}

/// In the extensions of a request that shows no key where others have to.
#[derive(Clone, Copy)]
pub(super) struct Stranger;

/// What needs no key: orchestrators ask it, and it tells them nothing else.
const OPEN: [&str; 2] = ["/health", "/ready"];

/// A request's place, until it is dropped. It comes with the head to whoever holds what else a request takes, since a client that does not
/// read its answer must not hold it.
pub(super) struct Place(Arc<Gate>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

/// Lets a request in to `router`, or answers why not.
pub(super) async fn pass(
    app: Arc<App>,
    mut router: Router,
    request: Request<Incoming>,
) -> http::Response<Passed> {
    let (mut head, body) = request.into_parts();
    let name = RequestId::put(&mut head.headers);
    let mut line = app.access_log.begin(&name, &head);
    let (mut response, _place) = match admit(&app, &mut head, line.as_mut()) {
        Ok(place) => {
            // Who is not let in does not get to say what is traced.
            if let Some(span) = app.traces.begin(&name, &head) {
                line.get_or_insert_with(|| Line::unlogged(&name, &head)).trace(span);
            }
            if let Some(line) = &line {
                head.extensions.insert(line.facts());
            }
            if let Some(place) = &place {
                head.extensions.insert(Arc::clone(place));
            }
            let answer: Result<Response, Infallible> = router.call(Request::from_parts(head, body)).await;
            let Ok(response) = answer;
            (response, place)
        }
        Err(reason) => {
            app.gate.turned_away[reason as usize].fetch_add(1, Relaxed);
            (route::turn_away(Request::from_parts(head, body), reason.error(&app)).await, None)
        }
    };
    name.tell(response.headers_mut());
    if let Some(line) = &mut line {
        line.answered(response.status(), response.extensions().get::<ErrorCode>().copied());
    }
    response.map(|body| Passed::new(body, line))
}

fn admit(app: &App, head: &mut Parts, line: Option<&mut Line>) -> Result<Option<Arc<Place>>, Reason> {
    let settings = &app.settings;
    if size(&head.headers) > settings.max_header_bytes {
        return Err(Reason::HeaderTooLarge);
    }
    // RFC 9112 §3.2: who takes it for another host than a proxy in front did could be tricked by it.
    if head.version == Version::HTTP_11 && head.headers.get_all(header::HOST).iter().count() != 1 {
        return Err(Reason::NoHost);
    }
    if let Some(keys) = &settings.api_keys {
        match keys.owner(&head.headers) {
            Ok(owner) => {
                if let Some(line) = line {
                    line.key(&owner);
                }
            }
            Err(_) if OPEN.contains(&head.uri.path()) => {
                head.extensions.insert(Stranger);
            }
            Err(NoKey::Missing) => return Err(Reason::NoKey),
            Err(NoKey::Unknown) => return Err(Reason::UnknownKey),
        }
        // The key is for this router: a worker has no use for it, and whoever reads a worker's log none either.
        head.headers.remove(header::AUTHORIZATION);
    }
    // What is read without a body is answered at once.
    if [Method::GET, Method::HEAD].contains(&head.method) {
        return Ok(None);
    }
    let limit = settings.max_concurrent_requests.unwrap_or(usize::MAX);
    app.gate.enter(limit).map(|place| Some(Arc::new(place))).ok_or(Reason::Full)
}

/// What a head's fields take, as RFC 9113 §6.5.2 counts it for HTTP/2, but for its 32 bytes a field.
fn size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
}

impl Gate {
    fn enter(self: &Arc<Self>, limit: usize) -> Option<Place> {
        let before = self.open.fetch_add(1, Relaxed);
        // Made before the answer is known: it is what takes a request back that is one too many.
        let place = Place(Arc::clone(self));
        (before < limit).then_some(place)
    }

    /// Writes the gate's numbers.
    pub(super) fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        let open = i64::try_from(self.open.load(Relaxed)).unwrap_or(i64::MAX);
        page.gauge("open_requests", "Requests with a body that were let in and are not over", open)?;
        let counts = Reason::ALL.into_iter().zip(&self.turned_away);
        let counts = counts.map(|(reason, count)| (reason.name(), count.load(Relaxed)));
        page.counters_by(
            "reason",
            "turned_away",
            "Requests that were refused before anything of them was read",
            counts,
        )
    }
}

/// The body of an answer, with its line in the access log. The fields are dropped in this order: what the body knows of the end is noted
/// before the line is written.
pub(super) struct Passed {
    body: Body,
    line: Option<Line>,
}

impl Passed {
    fn new(body: Body, line: Option<Line>) -> Self {
        let mut passed = Self { body, line };
        passed.note_end();
        passed
    }

    /// A server does not ask again for what it knows to be over.
    fn note_end(&mut self) {
        if let Some(line) = self.line.as_mut().filter(|_| http_body::Body::is_end_stream(&self.body)) {
            line.over();
        }
    }
}

impl http_body::Body for Passed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(line) = &mut self.line {
            match &frame {
                Some(Ok(frame)) => line.sent(frame.data_ref().map_or(0, |data| data.len() as u64)),
                Some(Err(_)) => {}
                None => line.over(),
            }
            self.note_end();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_given_back_and_one_too_many_takes_none() {
        let gate = Arc::new(Gate::default());
        let (one, two) = (gate.enter(2), gate.enter(2));
        assert!(one.is_some() && two.is_some() && gate.enter(2).is_none());
        drop(one);
        let again = gate.enter(2);
        assert!(again.is_some() && gate.enter(2).is_none());
        drop((two, again));
        assert_eq!(gate.open.load(Relaxed), 0);
    }
}
