//! KV events over ZMQ: a thread of its own that owns the sockets and the replay buffer.

use std::collections::VecDeque;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use zmq::SocketType;

use super::cache_event::{CacheEvent, encode_batch};
use super::settings::{Attach, Endpoint, MockError, MockSettings, Omissions};

/// The handle of the publishing thread. Dropping it ends the thread and closes the sockets before it returns.
///
/// Live messages are `[topic, sequence, payload]`, sequence as 8 bytes, big-endian, from 0. A replay is asked
/// for with `[empty, first sequence]` and answered with one `[empty, topic, sequence, payload]` per batch
/// that is still in the buffer, then `[empty, empty, -1, empty]`.
pub(super) struct Publisher {
    commands: Sender<Command>,
    /// A byte-less message here makes the thread look at its commands; it sleeps in a poll of sockets.
    wake: Mutex<Option<zmq::Socket>>,
    /// Batches handed over so far, which is the next sequence number.
    next: AtomicU64,
    faults: Arc<Faults>,
    thread: Mutex<Option<JoinHandle<()>>>,
    context: Mutex<Option<zmq::Context>>,
    events: Option<String>,
    replay: Option<String>,
}

/// What tests break on purpose. Relaxed: the thread reads them once per batch, and no data hangs on them.
#[derive(Debug, Default)]
struct Faults {
    drop: AtomicU64,
    stalled: AtomicBool,
}

enum Command {
    Publish(u64, Vec<CacheEvent>),
    Stop,
    /// Look at the faults again.
    Nudge,
}

/// As in vLLM: more live messages than this for one slow subscriber are lost for it.
const SEND_HIGH_WATER_MARK: i32 = 100_000;

impl Publisher {
    /// Attaches the sockets, then starts the thread.
    ///
    /// # Errors
    /// When an address cannot be had or the thread cannot be started.
    pub(super) fn start(settings: &MockSettings) -> Result<Self, MockError> {
        let context = zmq::Context::new();
        let events = attach(&context, "events", SocketType::PUB, settings.events.as_ref())?;
        // Whoever asks for a replay comes to the engine: a socket that connects would be asked by nobody.
        let replay = settings.replay.as_ref().map(|replay| Endpoint::bind(replay.address.clone()));
        let replay = attach(&context, "replay", SocketType::ROUTER, replay.as_ref())?;
        let [wake, woken] = wake_pair(&context).map_err(|source| MockError::Zmq {
            socket: "wake",
            address: WAKE.into(),
            source,
        })?;
        let endpoints = (events.as_ref().map(last_endpoint), replay.as_ref().map(last_endpoint));
        let (commands, received) = crossbeam_channel::unbounded();
        let faults = Arc::new(Faults::default());
        let mut worker = Worker {
            events,
            replay,
            woken,
            commands: received,
            faults: Arc::clone(&faults),
            topic: settings.topic.clone(),
            rank: settings.data_parallel_rank,
            omissions: settings.omissions,
            buffer: VecDeque::new(),
            buffer_steps: settings.buffer_steps,
            held_back: VecDeque::new(),
        };
        let thread = std::thread::Builder::new()
            .name("mock-publisher".into())
            .spawn(move || worker.run())
            .map_err(MockError::Thread)?;
        Ok(Self {
            commands,
            wake: Mutex::new(Some(wake)),
            next: AtomicU64::new(0),
            faults,
            thread: Mutex::new(Some(thread)),
            context: Mutex::new(Some(context)),
            events: endpoints.0,
            replay: endpoints.1,
        })
    }

    /// Hands one batch over. Only the engine loop calls this, so sequence numbers go out in order.
    pub(super) fn publish(&self, events: Vec<CacheEvent>) {
        // Relaxed: one writer; a reader that has seen a token of this step has synchronised through its
        // channel.
        let sequence = self.next.fetch_add(1, Ordering::Relaxed);
        self.send(Command::Publish(sequence, events));
    }

    pub(super) fn last_sequence(&self) -> Option<u64> {
        // Relaxed: see `publish`.
        self.next.load(Ordering::Relaxed).checked_sub(1)
    }

    /// The address that subscribers connect to (or, where the engine connects, that address).
    pub(super) fn events_endpoint(&self) -> Option<&str> {
        self.events.as_deref()
    }

    pub(super) fn replay_endpoint(&self) -> Option<&str> {
        self.replay.as_deref()
    }

    /// Keeps the next `count` batches off the live socket; the replay buffer gets them.
    pub(super) fn drop_batches(&self, count: u64) {
        self.faults.drop.fetch_add(count, Ordering::Relaxed);
    }

    /// While stalled, batches pile up unsent and unbuffered; afterwards they go out in order.
    pub(super) fn stall(&self, stalled: bool) {
        self.faults.stalled.store(stalled, Ordering::Relaxed);
        self.send(Command::Nudge);
    }

    /// Ends the thread and closes the sockets; their ports are free when this returns. What was not sent is
    /// lost.
    pub(super) fn close(&self) {
        self.send(Command::Stop);
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
        drop(self.wake.lock().take());
        // The last reference to the context: dropping it waits until every socket is really closed.
        drop(self.context.lock().take());
    }

    fn send(&self, command: Command) {
        // The channel comes first: when the thread wakes, the command is there.
        let _ = self.commands.send(command);
        if let Some(wake) = &*self.wake.lock() {
            // A full wake socket means that a wake-up is on its way already.
            let _ = wake.send("", zmq::DONTWAIT);
        }
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher")
            .field("events", &self.events)
            .field("replay", &self.replay)
            .finish_non_exhaustive()
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.close();
    }
}

const WAKE: &str = "inproc://wake";

fn wake_pair(context: &zmq::Context) -> zmq::Result<[zmq::Socket; 2]> {
    let pair = [context.socket(SocketType::PAIR)?, context.socket(SocketType::PAIR)?];
    for socket in &pair {
        socket.set_linger(0)?;
    }
    pair[0].bind(WAKE)?;
    pair[1].connect(WAKE)?;
    Ok(pair)
}

fn attach(
    context: &zmq::Context,
    name: &'static str,
    kind: SocketType,
    endpoint: Option<&Endpoint>,
) -> Result<Option<zmq::Socket>, MockError> {
    let Some(endpoint) = endpoint else { return Ok(None) };
    let open = || {
        let socket = context.socket(kind)?;
        socket.set_linger(0)?;
        socket.set_sndhwm(SEND_HIGH_WATER_MARK)?;
        match endpoint.attach {
            Attach::Bind => socket.bind(&endpoint.address)?,
            Attach::Connect => socket.connect(&endpoint.address)?,
        }
        Ok(socket)
    };
    open().map(Some).map_err(|source| MockError::Zmq {
        socket: name,
        address: endpoint.address.clone(),
        source,
    })
}

fn last_endpoint(socket: &zmq::Socket) -> String {
    let address = socket.get_last_endpoint().ok().and_then(Result::ok).unwrap_or_default();
    // Bound to every interface: one that this machine can connect to.
    address.replace("://0.0.0.0:", "://127.0.0.1:")
}

struct Worker {
    events: Option<zmq::Socket>,
    replay: Option<zmq::Socket>,
    woken: zmq::Socket,
    commands: Receiver<Command>,
    faults: Arc<Faults>,
    topic: String,
    rank: u32,
    omissions: Omissions,
    buffer: VecDeque<(u64, Vec<u8>)>,
    buffer_steps: usize,
    held_back: VecDeque<(u64, Vec<CacheEvent>)>,
}

impl Worker {
    fn run(&mut self) {
        loop {
            let mut items = vec![self.woken.as_poll_item(zmq::POLLIN)];
            items.extend(self.replay.as_ref().map(|socket| socket.as_poll_item(zmq::POLLIN)));
            // Interrupted polls look like wake-ups without a cause: everything below finds nothing and
            // returns.
            let _ = zmq::poll(&mut items, -1);
            while self.woken.recv_bytes(zmq::DONTWAIT).is_ok() {}
            if self.take_commands().is_break() || self.answer_replays().is_break() {
                return;
            }
        }
    }

    fn take_commands(&mut self) -> ControlFlow<()> {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Publish(sequence, events) => self.held_back.push_back((sequence, events)),
                Command::Nudge => {}
                Command::Stop => return ControlFlow::Break(()),
            }
        }
        while !self.faults.stalled.load(Ordering::Relaxed) {
            let Some((sequence, events)) = self.held_back.pop_front() else { break };
            self.publish(sequence, &events);
        }
        ControlFlow::Continue(())
    }

    fn publish(&mut self, sequence: u64, events: &[CacheEvent]) {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let payload = encode_batch(seconds, self.rank, events, self.omissions);
        let dropped = self.faults.drop.load(Ordering::Relaxed);
        if dropped > 0 {
            self.faults.drop.fetch_sub(1, Ordering::Relaxed);
        } else if let Some(socket) = &self.events {
            // A subscriber that is too slow loses messages; the engine does not wait for it.
            let frames = [self.topic.as_bytes(), &sequence.to_be_bytes(), &payload];
            let _ = socket.send_multipart(frames, zmq::DONTWAIT);
        }
        self.buffer.push_back((sequence, payload));
        while self.buffer.len() > self.buffer_steps {
            self.buffer.pop_front();
        }
    }

    fn answer_replays(&mut self) -> ControlFlow<()> {
        while let Some(request) = self.replay.as_ref().and_then(receive) {
            // After the request has come, not before: it gets every batch that was handed over before it was sent.
            self.take_commands()?;
            self.answer_replay(&request);
        }
        ControlFlow::Continue(())
    }

    fn answer_replay(&self, request: &[Vec<u8>]) {
        let (Some(socket), [client, empty, start]) = (&self.replay, request) else { return };
        if !empty.is_empty() {
            return;
        }
        let start = start.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        for (sequence, payload) in self.buffer.iter().filter(|(sequence, _)| *sequence >= start) {
            let frames = [client, &[][..], self.topic.as_bytes(), &sequence.to_be_bytes(), payload];
            let _ = socket.send_multipart(frames, 0);
        }
        let _ = socket.send_multipart([client, &[][..], &[], &END, &[]], 0);
    }
}

fn receive(socket: &zmq::Socket) -> Option<Vec<Vec<u8>>> {
    socket.recv_multipart(zmq::DONTWAIT).ok()
}

/// The sequence of the message that ends a replay: -1.
const END: [u8; 8] = (-1_i64).to_be_bytes();
