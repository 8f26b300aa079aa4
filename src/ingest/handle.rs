//! A running stream, as its owner holds it.

use std::{
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;
use zmq::PollItem;

use super::{
    driver::Driver,
    sink::Sink,
    snapshot::ExportRequest,
    source::{Contexts, Feed, ReplaySocket, SourceError, Subscriber},
    stream::Memory,
};

/// A stream that runs on its own thread until this is dropped. Dropping waits for the thread, which ends
/// promptly even while its sink is blocked.
#[derive(Debug)]
pub struct Stream {
    address: String,
    signals: Arc<Signals>,
    wake: Arc<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

/// What the owner tells the thread. `Relaxed` throughout: each flag is a fact of its own, and the byte that goes
/// through the pipe after it is what makes the thread look.
#[derive(Debug, Default)]
struct Signals {
    stop: AtomicBool,
    engine_started: AtomicBool,
    resync: AtomicBool,
    rebuild: AtomicBool,
    /// Behind a lock, since it is more than a fact.
    export: Mutex<Option<ExportRequest>>,
}

/// Asks a stream to build what the index holds of its rank anew.
#[derive(Debug)]
pub(super) struct Rebuild {
    signals: Arc<Signals>,
    wake: Arc<PipeWriter>,
}

impl Rebuild {
    pub(super) fn ask(&self) {
        self.signals.rebuild.store(true, Ordering::Relaxed);
        wake(&self.wake);
    }
}

fn wake(mut pipe: &PipeWriter) {
    // An error means that the thread has ended, so there is nobody to wake.
    let _ = pipe.write(&[0]);
}

/// The thread's end of it.
pub(super) struct Inbox {
    signals: Arc<Signals>,
    woken: PipeReader,
    wake: Arc<PipeWriter>,
}

impl Inbox {
    pub(super) fn new() -> io::Result<Self> {
        let (woken, wake) = io::pipe()?;
        Ok(Self { signals: Arc::default(), woken, wake: Arc::new(wake) })
    }

    /// For whoever has to make the thread look at something of its own.
    pub(super) fn waker(&self) -> impl Fn() + Send + Sync + use<> {
        let pipe = Arc::clone(&self.wake);
        move || wake(&pipe)
    }

    pub(super) fn stopped(&self) -> bool {
        self.signals.stop.load(Ordering::Relaxed)
    }

    /// The same question, for whoever may block.
    pub(super) fn stop_check(&self) -> impl Fn() -> bool + use<> {
        let signals = Arc::clone(&self.signals);
        move || signals.stop.load(Ordering::Relaxed)
    }

    /// Readable once there is something to look at.
    pub(super) fn poll_item(&self) -> PollItem<'static> {
        PollItem::from_fd(self.woken.as_raw_fd(), zmq::POLLIN)
    }

    /// Takes the bytes out, which only wake. What they woke for is looked at afterwards.
    pub(super) fn empty(&mut self) {
        if zmq::poll(&mut [self.poll_item()], 0) == Ok(1) {
            let _ = self.woken.read(&mut [0; 64]);
        }
    }

    /// Whether the engine's start time has changed since the last time that this was asked.
    pub(super) fn engine_started(&self) -> bool {
        self.signals.engine_started.swap(false, Ordering::Relaxed)
    }

    /// Whether what the index holds is to be built anew, since the last time that this was asked.
    pub(super) fn rebuild_wanted(&self) -> bool {
        self.signals.rebuild.swap(false, Ordering::Relaxed)
    }

    /// Who wants to know what is known of the rank, since the last time that this was asked.
    pub(super) fn export_wanted(&self) -> Option<ExportRequest> {
        self.signals.export.lock().take()
    }

    /// Whether the owner doubts what was heard, since the last time that this was asked.
    pub(super) fn resync_wanted(&self) -> bool {
        self.signals.resync.swap(false, Ordering::Relaxed)
    }
}

impl Stream {
    /// Opens the sockets and starts the thread. An engine that cannot be reached yet is no error: the stream is
    /// unproven until it can.
    ///
    /// # Errors
    /// An address that ZMQ does not understand or that cannot be listened on; no thread or descriptor left.
    pub fn open(contexts: &Contexts, feed: &Feed, sink: impl Sink + 'static) -> Result<Self, SourceError> {
        Self::resume(contexts, feed, sink, None)
    }

    /// The same for a rank whose sink has already what another stream was told, up to where that stood.
    pub(super) fn resume(
        contexts: &Contexts,
        feed: &Feed,
        sink: impl Sink + 'static,
        memory: Option<Memory>,
    ) -> Result<Self, SourceError> {
        let lent = contexts.lend();
        let refused = |source| SourceError::Subscribe { address: feed.endpoint.address.clone(), source };
        let spawn = |source| SourceError::Spawn { address: feed.endpoint.address.clone(), source };
        let subscriber = Subscriber::open(&lent.context, feed).map_err(refused)?;
        if let Some(address) = &feed.replay {
            // Tried once now, so that a misspelt address is refused rather than found out at the first gap.
            ReplaySocket::check(&lent.context, address)
                .map_err(|source| SourceError::Replay { address: address.clone(), source })?;
        }
        let address = subscriber.address().unwrap_or_else(|| feed.endpoint.address.clone());
        let inbox = Inbox::new().map_err(spawn)?;
        let (signals, wake) = (Arc::clone(&inbox.signals), Arc::clone(&inbox.wake));
        let driver = Driver::new(feed.clone(), sink, subscriber, lent, inbox).resuming(memory);
        let thread =
            thread::Builder::new().name("kv-events".into()).spawn(move || driver.run()).map_err(spawn)?;
        Ok(Self { address, signals, wake, thread: Some(thread) })
    }

    /// The address the subscriber really has: for one that listens on port `*`, with the port it was given.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The worker reports another start time of its engine: nothing is credited until it is clear who is there.
    pub fn engine_start_changed(&self) {
        if !self.signals.engine_started.swap(true, Ordering::Relaxed) {
            self.wake();
        }
    }

    /// What the index holds of the rank is doubted: it is dropped and replayed.
    pub fn resync(&self) {
        if !self.signals.resync.swap(true, Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Asks for what is known of the rank; whoever asked before, and was not answered yet, is not.
    pub(super) fn export(&self, request: ExportRequest) {
        *self.signals.export.lock() = Some(request);
        self.wake();
    }

    /// For whoever may ask the stream to begin anew.
    pub(super) fn rebuild(&self) -> Rebuild {
        Rebuild { signals: Arc::clone(&self.signals), wake: Arc::clone(&self.wake) }
    }

    fn wake(&self) {
        wake(&self.wake);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.signals.stop.store(true, Ordering::Relaxed);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A panic was reported where it happened; there is no more to do about it here.
            let _ = thread.join();
        }
    }
}
