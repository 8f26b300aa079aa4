//! What of an answer is still to be passed on.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::Uri;
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::{Sleep, sleep};

use super::{
    error::{ErrorKind, ProxyError},
    forward::Answer,
    headers::Form,
    limits::Idle,
    observe::{End, Observer},
    skim::Skim,
    sse::{Observed, SseReader},
    upstream::Upstream,
};

/// How long a cut answer stays open after its last piece, or its error event. A server that is told of the failure drops the
/// connection with whatever it has not written yet, so they need a head start to reach the client.
const CUT_GRACE: Duration = Duration::from_millis(100);

/// The rest of an answer: what [`ProxyBody`](super::ProxyBody) reads.
pub(super) struct Relay<O: Observer> {
    /// Gone once the answer is over, so that the connection closes and the observer drops at that moment.
    live: Option<Live<O>>,
    /// The first frame, until it is asked for.
    first: Option<Frame<Bytes>>,
    /// Of a cut answer, until its end was told.
    cut: Option<Cut>,
    /// Something was passed on since there was last nothing to pass on, which is when a server writes.
    unwritten: bool,
    worker: Uri,
    form: Form,
}

struct Cut {
    error: ProxyError,
    /// What the client is told first.
    event: Option<Bytes>,
    grace: Option<Pin<Box<Sleep>>>,
}

struct Live<O: Observer> {
    upstream: Upstream,
    reader: Reader,
    observer: O,
    first_token: bool,
    idle: Idle,
}

enum Reader {
    Events(SseReader),
    Json(Skim),
    Opaque,
}

type Piece = Option<Result<Frame<Bytes>, ProxyError>>;

impl<O: Observer> Relay<O> {
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
        };
        let mut relay = Self {
            live: None,
            first: answer.first,
            cut: None,
            unwritten: false,
            worker: answer.worker,
            form: answer.form,
        };
        if let Some(frame) = &relay.first {
            live.observer.first_byte();
            live.look(frame);
            relay.live = Some(live);
        } else {
            live.end(End::Complete);
        }
        relay
    }

    /// Ends a live answer; the upstream connection and the observer go with it.
    pub(super) fn end(&mut self, end: End) {
        if let Some(live) = self.live.take() {
            live.end(end);
        }
    }

    /// Passes a frame on, and ends the answer with its last one: a server does not ask again for what it knows to
    /// be over.
    fn pass(&mut self, frame: Frame<Bytes>) -> Poll<Piece> {
        if self.live.as_ref().is_some_and(|live| live.upstream.is_end_stream()) {
            self.end(End::Complete);
        }
        self.unwritten = true;
        Poll::Ready(Some(Ok(frame)))
    }

    /// Ends a live answer with an error, which is told when somebody asks.
    fn cut(&mut self, error: ProxyError) {
        let event = self.live.as_ref().and_then(|live| live.error_event(&error));
        self.end(End::Cut(error.kind));
        self.cut = Some(Cut { error, event, grace: None });
    }

    /// Cuts an answer whose time is over. One of which the client alone has not taken the last piece is whole.
    pub(super) fn time_over(&mut self, limit: Duration) {
        match &self.live {
            None => {}
            Some(live) if live.upstream.is_end_stream() => self.end(End::Complete),
            Some(_) => self.cut(ProxyError::timeout(ErrorKind::TotalTimeout, &self.worker, limit)),
        }
    }

    fn fail(&mut self, error: ProxyError, cx: &mut Context<'_>) -> Poll<Piece> {
        self.cut(error);
        self.poll_cut(cx)
    }

    /// Tells the client why, waits for what was passed on to be written, then says how it ended.
    fn poll_cut(&mut self, cx: &mut Context<'_>) -> Poll<Piece> {
        let Some(cut) = &mut self.cut else { return Poll::Ready(None) };
        if let Some(event) = cut.event.take() {
            self.unwritten = true;
            return Poll::Ready(Some(Ok(Frame::data(event))));
        }
        if self.unwritten {
            let grace = cut.grace.get_or_insert_with(|| Box::pin(sleep(CUT_GRACE)));
            ready!(grace.as_mut().poll(cx));
        }
        Poll::Ready(self.cut.take().map(|cut| Err(cut.error)))
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Piece> {
        if let Some(frame) = self.first.take() {
            return self.pass(frame);
        }
        if self.cut.is_some() {
            return self.poll_cut(cx);
        }
        let Some(live) = &mut self.live else { return Poll::Ready(None) };
        match Pin::new(&mut live.upstream).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                live.idle.touch();
                live.look(&frame);
                self.pass(frame)
            }
            Poll::Ready(Some(Err(error))) => {
                let error = ProxyError::in_body(ErrorKind::Cut, &self.worker, &error);
                self.fail(error, cx)
            }
            Poll::Ready(None) => {
                self.end(End::Complete);
                Poll::Ready(None)
            }
            Poll::Pending => {
                self.unwritten = false;
                let limit = ready!(live.idle.poll(cx));
                let error = ProxyError::timeout(ErrorKind::IdleTimeout, &self.worker, limit);
                self.fail(error, cx)
            }
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.live.is_none() && self.first.is_none() && self.cut.is_none()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
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

impl<O: Observer> Drop for Relay<O> {
    fn drop(&mut self) {
        self.end(End::Dropped);
    }
}

impl<O: Observer> fmt::Debug for Relay<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("worker", &self.worker)
            .field("form", &self.form)
            .field("over", &self.is_end_stream())
            .finish_non_exhaustive()
    }
}
