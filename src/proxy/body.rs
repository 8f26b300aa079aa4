//! The body of a relayed answer.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::{error::ProxyError, forward::Answer, observe::Observer, relay::Relay, timed::Timed};

/// The frames of a worker's answer, as they came, with an [`Observer`] looking on.
///
/// If the worker fails in the middle of a stream of events, one more event `data: {"error": ...}` is made, and after
/// it the body ends with an error, never with an end: over HTTP/1.1 the server then leaves out the final zero chunk,
/// over HTTP/2 it resets the stream. Any other body just ends with the error. A stream that breaks off after its
/// `[DONE]` has lost nothing and gets no event, but still does not end well.
///
/// Dropping it closes the upstream connection, unless the answer was complete.
pub struct ProxyBody<O: Observer>(Held<O>);

#[expect(clippy::large_enum_variant, reason = "without a limit it would be one more box a request")]
enum Held<O: Observer> {
    Untimed(Relay<O>),
    Timed(Timed<O>),
}

// Nothing is pinned in place: the parts that are polled are `Unpin` or boxed.
impl<O: Observer> Unpin for ProxyBody<O> {}

impl<O: Observer> ProxyBody<O> {
    pub(super) fn new(answer: Answer, observer: O) -> Self {
        let time = answer.time;
        let relay = Relay::new(answer, observer);
        Self(match time {
            Some(time) if !relay.is_end_stream() => Held::Timed(Timed::new(relay, time)),
            _ => Held::Untimed(relay),
        })
    }
}

impl<O: Observer> Body for ProxyBody<O> {
    type Data = Bytes;
    type Error = ProxyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        match &mut self.0 {
            Held::Untimed(relay) => relay.poll_frame(cx),
            Held::Timed(timed) => timed.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Held::Untimed(relay) => relay.is_end_stream(),
            Held::Timed(timed) => timed.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Held::Untimed(relay) => relay.size_hint(),
            Held::Timed(timed) => timed.size_hint(),
        }
    }
}

impl<O: Observer> fmt::Debug for ProxyBody<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Held::Untimed(relay) => f.debug_tuple("ProxyBody").field(relay).finish(),
            Held::Timed(timed) => f.debug_tuple("ProxyBody").field(&*timed.relay()).finish(),
        }
    }
}
