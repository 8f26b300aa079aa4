//! What a listener allows its connections, and how many there are.

use std::{
    fmt, io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use http_body::{Body, Frame, SizeHint};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};
use tokio_rustls::TlsAcceptor;

use super::hangup::Hangup;
use crate::metrics::Page;

/// What a listener does with its connections.
#[derive(Clone)]
pub(super) struct Terms {
    /// TLS, if it is spoken.
    pub(super) tls: Option<TlsAcceptor>,
    /// Beyond so many, connections wait to be accepted.
    pub(super) most: usize,
    /// For how long nothing may come where something has to: a handshake, the first request, the rest of a head, the next
    /// request, unless the client has yet to read what was answered. `None` is for ever.
    pub(super) patience: Option<Duration>,
    /// Largest head that is read over HTTP/2. (Over HTTP/1.1 it is 400 KiB and 100 fields.)
    pub(super) http2_header_bytes: u32,
    pub(super) counts: Arc<Connections>,
}

/// The connections of one listener. Every access is Relaxed: statistics.
#[derive(Debug, Default)]
pub(super) struct Connections {
    open: AtomicI64,
    accepted: AtomicU64,
    failed: [AtomicU64; Failure::ALL.len()],
}

/// Why there was no TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    /// The client took too long.
    Timeout,
    /// What came is no TLS: plain HTTP, most likely.
    NotTls,
    /// The client does not like our certificate.
    Rejected,
    /// The two have no version or no cipher in common, or the client does not keep to the protocol.
    Incompatible,
    /// The client went away.
    Broken,
}

impl Failure {
    const ALL: [Self; 5] = [Self::Timeout, Self::NotTls, Self::Rejected, Self::Incompatible, Self::Broken];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::NotTls => "not_tls",
            Self::Rejected => "rejected",
            Self::Incompatible => "incompatible",
            Self::Broken => "broken",
        }
    }

    /// What a handshake ended with.
    pub(super) fn of(error: &io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(rustls::Error::InvalidMessage(_)) => Self::NotTls,
            Some(rustls::Error::AlertReceived(_)) => Self::Rejected,
            Some(_) => Self::Incompatible,
            None => Self::Broken,
        }
    }
}

/// An open connection, until it is dropped.
pub(super) struct Open(Arc<Connections>);

impl Connections {
    pub(super) fn open(self: &Arc<Self>) -> Open {
        self.accepted.fetch_add(1, Relaxed);
        self.open.fetch_add(1, Relaxed);
        Open(Arc::clone(self))
    }

    pub(super) fn failed(&self, failure: Failure) {
        self.failed[failure as usize].fetch_add(1, Relaxed);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

/// Writes the numbers of all listeners, by their names.
pub(super) fn write(listeners: &[(&str, &Connections)], page: &mut Page<'_>) -> fmt::Result {
    let labels: Vec<_> = listeners.iter().map(|(name, _)| [("listener", *name)]).collect();
    let rows = || labels.iter().map(|labels| &labels[..]).zip(listeners);
    page.gauges(
        "connections",
        "Open connections",
        rows().map(|(labels, (_, of))| (labels, of.open.load(Relaxed))),
    )?;
    page.counters(
        "connections_accepted",
        "Connections accepted",
        rows().map(|(labels, (_, of))| (labels, of.accepted.load(Relaxed))),
    )?;
    let failed: Vec<_> = listeners
        .iter()
        .flat_map(|(name, of)| {
            Failure::ALL.into_iter().zip(&of.failed).map(|(failure, count)| {
                ([("listener", *name), ("reason", failure.name())], count.load(Relaxed))
            })
        })
        .collect();
    page.counters(
        "tls_handshakes_failed",
        "TLS handshakes with clients that failed",
        failed.iter().map(|(labels, count)| (&labels[..], *count)),
    )
}

/// What is going on on one connection. Every access is Relaxed: it is all read by one task, and late is early enough.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// Requests whose answers are not over.
    open: AtomicU64,
    /// How many began or ended, and how often something was written that had to wait.
    changes: AtomicU64,
    /// The client does not read as fast as answers come: the end of one that is over for the server may still have to be written. Over
    /// HTTP/2 that does not show where the client holds back a stream alone.
    unwritten: AtomicBool,
}

/// A request that is being answered, until it is dropped.
pub(super) struct Answering(Arc<Activity>);

/// How much longer a client is waited for that does not read the end of its answer. The system tells of a third of its buffer at a time,
/// about a megabyte, so of a slow one nothing is seen for long.
const UNREAD: u32 = 20;

impl Activity {
    pub(super) fn begin(self: &Arc<Self>) -> Answering {
        self.open.fetch_add(1, Relaxed);
        self.changes.fetch_add(1, Relaxed);
        Answering(Arc::clone(self))
    }

    /// Returns once nothing of a request or an answer was open, came or went for `patience`; it may take twice as long to notice. A
    /// client that has yet to read is given [`UNREAD`] times as much.
    pub(super) async fn ceases(&self, patience: Option<Duration>) {
        let Some(patience) = patience else { return std::future::pending().await };
        let (mut before, mut still) = (self.changes.load(Relaxed), 0);
        loop {
            sleep(patience).await;
            let now = self.changes.load(Relaxed);
            let at_rest = now == before && self.open.load(Relaxed) == 0;
            (before, still) = (now, if at_rest { still + 1 } else { 0 });
            if still >= if self.unwritten.load(Relaxed) { UNREAD } else { 1 } {
                return;
            }
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.changes.fetch_add(1, Relaxed);
        self.0.open.fetch_sub(1, Relaxed);
    }
}

/// An answer's body that says when it is over.
pub(super) struct Answer<B> {
    pub(super) body: B,
    pub(super) _answering: Answering,
}

impl<B: Body + Unpin> Body for Answer<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A client's connection that notes how writing to it goes, and breaks when the client has left.
pub(super) struct Noted<Io> {
    io: Io,
    activity: Arc<Activity>,
    /// Of a client that has closed its side: the changes so far, and until when there have to be more.
    leaving: Option<(u64, Pin<Box<Sleep>>)>,
}

/// A client may send several requests, close its side and wait for the answers. For so long none may begin or end.
const HALF_CLOSED: Duration = Duration::from_secs(1);

impl<Io: Hangup> Noted<Io> {
    /// Whether the client has closed its side while a request is open and the server does not see it.
    fn has_left(&mut self, cx: &mut Context<'_>) -> bool {
        if self.activity.open.load(Relaxed) == 0 || !self.io.has_closed(cx) {
            return false;
        }
        let changes = self.activity.changes.load(Relaxed);
        let before = self.leaving.take().filter(|(before, _)| *before == changes);
        let (_, patience) =
            self.leaving.insert(before.unwrap_or_else(|| (changes, Box::pin(sleep(HALF_CLOSED)))));
        patience.as_mut().poll(cx).is_ready()
    }
}

impl<Io> Noted<Io> {
    pub(super) fn new(io: Io, activity: &Arc<Activity>) -> Self {
        Self { io, activity: Arc::clone(activity), leaving: None }
    }

    fn note<T>(&self, polled: Poll<T>) -> Poll<T> {
        let Activity { unwritten, changes, .. } = &*self.activity;
        if polled.is_pending() {
            unwritten.store(true, Relaxed);
        } else if unwritten.load(Relaxed) {
            // Of what is written at once no note is taken: it may be the answer to a ping, by which nobody asks for anything.
            changes.fetch_add(1, Relaxed);
        }
        polled
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for Noted<Io> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, into)
    }
}

impl<Io: AsyncWrite + Hangup + Unpin> AsyncWrite for Noted<Io> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, from);
        self.note(polled)
    }

    /// Called once everything was handed over, and whenever the HTTP/1.1 server has looked around.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_flush(cx);
        self.activity.unwritten.store(polled.is_pending(), Relaxed);
        if self.has_left(cx) { Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())) } else { polled }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(cx, from);
        self.note(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;

    impl Hangup for DuplexStream {
        fn has_closed(&self, _: &mut Context<'_>) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn a_connection_rests_only_when_nothing_is_open_and_nothing_was_lately() {
        let patience = Duration::from_millis(40);
        let activity = Arc::new(Activity::default());
        let request = activity.begin();
        let ceases = activity.ceases(Some(patience));
        tokio::pin!(ceases);
        assert!(tokio::time::timeout(5 * patience, &mut ceases).await.is_err(), "a request is open");
        let ended = Instant::now();
        drop(request);
        ceases.await;
        assert!(ended.elapsed() >= patience, "{:?}", ended.elapsed());
        assert!(tokio::time::timeout(patience, activity.ceases(None)).await.is_err());
    }

    #[tokio::test]
    async fn a_connection_does_not_rest_while_its_client_has_yet_to_read() {
        let patience = Duration::from_millis(20);
        let activity = Arc::new(Activity::default());
        let (io, mut client) = tokio::io::duplex(8);
        let mut noted = Noted::new(io, &activity);
        let writing = tokio::spawn(async move {
            noted.write_all(b"more than there is room for").await.unwrap();
            noted.flush().await.unwrap();
            noted
        });
        let ceases = activity.ceases(Some(patience));
        tokio::pin!(ceases);
        assert!(tokio::time::timeout(UNREAD / 2 * patience, &mut ceases).await.is_err(), "it is not written");
        client.read_exact(&mut [0; 27]).await.unwrap();
        ceases.await;

        let mut noted = writing.await.unwrap();
        let begun = activity.changes.load(Relaxed);
        noted.write_all(b"pong").await.unwrap();
        client.read_exact(&mut [0; 4]).await.unwrap();
        assert_eq!(activity.changes.load(Relaxed), begun, "a ping asks for nothing");
        let stuck = tokio::spawn(async move { noted.write_all(&[0; 9]).await });
        let begun = Instant::now();
        activity.ceases(Some(patience)).await;
        assert!(begun.elapsed() >= UNREAD * patience, "nor for ever, if it never does");
        stuck.abort();
    }
}
