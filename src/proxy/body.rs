//! The body of a relayed answer.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::Uri;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};

use super::{
    error::{ErrorKind, ProxyError},
    forward::Answer,
    headers::Form,
    limits::{Idle, Total},
    observe::{End, Observer},
    skim::Skim,
    sse::{Observed, SseReader},
    upstream::Upstream,
};

/// How long a cut answer stays open after its last piece, or its error event. A server that is told of the failure drops the
/// connection with whatever it has not written yet, so they need a head start to reach the client.
const CUT_GRACE: Duration = Duration::from_millis(100);

/// The frames of a worker's answer, as they came, with an [`Observer`] looking on.
///
/// If the worker fails in the middle of a stream of events, one more event `data: {"error": ...}` is made, and after
/// it the body ends with an error, never with an end: over HTTP/1.1 the server then leaves out the final zero chunk,
/// over HTTP/2 it resets the stream. Any other body just ends with the error. A stream that breaks off after its
/// `[DONE]` has lost nothing and gets no event, but still does not end well.
///
/// Dropping it closes the upstream connection, unless the answer was complete.
pub struct ProxyBody<O: Observer> {
    /// Gone once the answer is over, so that the connection closes and the observer drops at that moment.
    live: Option<Live<O>>,
    /// The first frame, until it is asked for.
    first: Option<Frame<Bytes>>,
    /// Of a cut answer, after its last piece.
    cut: Option<(ProxyError, Pin<Box<Sleep>>)>,
    /// Something was passed on since there was last nothing to pass on, which is when a server writes.
    unwritten: bool,
    worker: Uri,
    form: Form,
}

struct Live<O: Observer> {
    upstream: Upstream,
    reader: Reader,
    observer: O,
    first_token: bool,
    idle: Idle,
    total: Total,
}

enum Reader {
    Events(SseReader),
    Json(Skim),
    Opaque,
}

// Nothing is pinned in place: the parts that are polled are `Unpin` or boxed.
impl<O: Observer> Unpin for ProxyBody<O> {}

impl<O: Observer> ProxyBody<O> {
    pub(super) fn new(answer: Answer, observer: O) -> Self {
        let reader = match answer.form {
            Form::Events => Reader::Events(SseReader::default()),
            Form::Json => Reader::Json(Skim::default()),
            Form::Opaque => Reader::Opaque,
        };
        let mut live = Live {
            upstream: answer.upstream,
            reader,
            observer,
            first_token: false,
            idle: Idle::new(answer.idle_timeout),
            total: Total::new(answer.time),
        };
        let mut body = Self {
            live: None,
            first: answer.first,
            cut: None,
            unwritten: false,
            worker: answer.worker,
            form: answer.form,
        };
        if let Some(frame) = &body.first {
            live.observer.first_byte();
            live.look(frame);
            body.live = Some(live);
        } else {
            live.end(End::Complete);
        }
        body
    }

    /// Ends a live answer; the upstream connection and the observer go with it.
    fn end(&mut self, end: End) {
        if let Some(live) = self.live.take() {
            live.end(end);
        }
    }

    /// Passes a frame on, and ends the answer with its last one: a server does not ask again for what it knows to
    /// be over.
    fn pass(&mut self, frame: Frame<Bytes>) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        if self.live.as_ref().is_some_and(|live| live.upstream.is_end_stream()) {
            self.end(End::Complete);
        }
        self.unwritten = true;
        Poll::Ready(Some(Ok(frame)))
    }

    fn fail(
        &mut self,
        error: ProxyError,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        let event = self.live.as_ref().and_then(|live| live.error_event(&error));
        self.end(End::Cut(error.kind));
        if event.is_none() && !self.unwritten {
            return Poll::Ready(Some(Err(error)));
        }
        self.cut = Some((error, Box::pin(sleep(CUT_GRACE))));
        match event {
            Some(event) => Poll::Ready(Some(Ok(Frame::data(event)))),
            None => self.poll_cut(cx),
        }
    }

    /// Waits for what was passed on to be written, then says how it ended.
    fn poll_cut(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        if let Some((_, grace)) = &mut self.cut {
            ready!(grace.as_mut().poll(cx));
        }
        Poll::Ready(self.cut.take().map(|(error, _)| Err(error)))
    }
}

impl<O: Observer> Live<O> {
    fn look(&mut self, frame: &Frame<Bytes>) {
        let Some(bytes) = frame.data_ref() else { return };
        match &mut self.reader {
            Reader::Events(reader) => {
                let Observed { steps, usage } = reader.read(bytes);
                if steps > 0 {
                    if !self.first_token {
                        self.first_token = true;
                        self.observer.first_token();
                    }
                    self.observer.output(steps);
                }
                if let Some(usage) = usage {
                    self.observer.usage(usage);
                }
            }
            Reader::Json(skim) => {
                let known = skim.facts().usage;
                skim.feed(bytes);
                if let (None, Some(usage)) = (known, skim.facts().usage) {
                    self.observer.usage(usage);
                }
            }
            Reader::Opaque => {}
        }
    }

    /// What a client that reads events is told of a cut; `None` where it could not be read or says nothing new.
    fn error_event(&self, error: &ProxyError) -> Option<Bytes> {
        let Reader::Events(reader) = &self.reader else { return None };
        if reader.finished() {
            return None;
        }
        // Half an event may be out: it must not run into this one.
        let gap = if reader.at_boundary() { "" } else { "\n\n" };
        Some(Bytes::from(format!("{gap}data: {}\n\n", error.client_json())))
    }

    fn end(mut self, end: End) {
        self.observer.end(end);
    }
}

impl<O: Observer> Body for ProxyBody<O> {
    type Data = Bytes;
    type Error = ProxyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        let this = &mut *self;
        if let Some(frame) = this.first.take() {
            return this.pass(frame);
        }
        if this.cut.is_some() {
            return this.poll_cut(cx);
        }
        let Some(live) = &mut this.live else { return Poll::Ready(None) };
        // First of all, since a stream that never pauses is as endless as any other.
        if let Poll::Ready(limit) = live.total.poll(cx) {
            let error = ProxyError::timeout(ErrorKind::TotalTimeout, &this.worker, limit);
            return this.fail(error, cx);
        }
        match Pin::new(&mut live.upstream).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                live.idle.touch();
                live.look(&frame);
                this.pass(frame)
            }
            Poll::Ready(Some(Err(error))) => {
                let error = ProxyError::in_body(ErrorKind::Cut, &this.worker, &error);
                this.fail(error, cx)
            }
            Poll::Ready(None) => {
                this.end(End::Complete);
                Poll::Ready(None)
            }
            Poll::Pending => {
                this.unwritten = false;
                let limit = ready!(live.idle.poll(cx));
                let error = ProxyError::timeout(ErrorKind::IdleTimeout, &this.worker, limit);
                this.fail(error, cx)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.live.is_none() && self.first.is_none() && self.cut.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let waiting = self.first.as_ref().and_then(Frame::data_ref).map_or(0, |data| data.len() as u64);
        match &self.live {
            _ if self.cut.is_some() => SizeHint::default(),
            Some(_) if self.form == Form::Events => SizeHint::default(),
            Some(live) => match live.upstream.size_hint().exact() {
                Some(left) => SizeHint::with_exact(left + waiting),
                None => SizeHint::default(),
            },
            None => SizeHint::with_exact(waiting),
        }
    }
}

impl<O: Observer> Drop for ProxyBody<O> {
    fn drop(&mut self) {
        self.end(End::Dropped);
    }
}

impl<O: Observer> fmt::Debug for ProxyBody<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyBody")
            .field("worker", &self.worker)
            .field("form", &self.form)
            .field("over", &self.is_end_stream())
            .finish_non_exhaustive()
    }
}
