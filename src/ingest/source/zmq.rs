//! The ZMQ sockets of one stream: a subscriber with its monitor, and a replay request.
//!
//! Everything here is non-blocking; the driver polls. Messages are checked for shape only.

use std::sync::atomic::{AtomicU64, Ordering};

use zmq::{Context, DONTWAIT, Message, PollItem, Socket, SocketEvent};

use super::{EndpointMode, Feed, accepted::Accepted};

/// As many batches as vLLM's publisher keeps for a slow subscriber; ZMQ's own default is 1,000.
const RECEIVE_LIMIT: i32 = 100_000;
/// Bytes of a frame at most: whoever announces a longer one is disconnected before it is read. A batch tells what an engine did in a
/// step or so: the tokens of a million and the names and keys of 65,536 blocks take about 15 MB.
const LARGEST_FRAME: i64 = 64 << 20;
/// No real batch has more frames; one that has is not copied together.
const MAX_FRAMES: usize = 8;
/// The sequence number that ends a replay: -1.
const END: u64 = u64::MAX;

/// Why a stream could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The subscriber's address is wrong, or not ours to listen on.
    #[error(
        "event endpoint `{address}` cannot be used ({source}); give it as tcp://HOST:PORT, or ipc://PATH"
    )]
    Subscribe {
        /// The address as given.
        address: String,
        /// What ZMQ says.
        source: zmq::Error,
    },
    /// The replay address is wrong.
    #[error(
        "replay endpoint `{address}` cannot be used ({source}); give it as tcp://HOST:PORT, or ipc://PATH"
    )]
    Replay {
        /// The address as given.
        address: String,
        /// What ZMQ says.
        source: zmq::Error,
    },
    /// The ingestor was started without an index to write to.
    #[error("no index to write events to; start the ingestor with at least one writer")]
    NoWriter,
    /// The process has no thread or file descriptor left for one more stream.
    #[error("no thread for the event stream of `{address}` ({source}); raise the process's limits")]
    Spawn {
        /// The event endpoint.
        address: String,
        /// What the system says.
        source: std::io::Error,
    },
}

/// What a socket had for us.
#[derive(Debug)]
pub(in crate::ingest) enum Arrival {
    /// A batch.
    Batch { sequence: u64, payload: Message },
    /// The end of a replay.
    End,
    /// Something that is no batch, already dropped.
    Malformed,
}

/// What the monitor saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::ingest) enum SubscriberEvent {
    Connected,
    Disconnected,
    /// Whoever listens there does not speak ZMQ. The socket may have given up for good: open a new one.
    Refused,
}

/// A SUB socket and the monitor of its connections.
pub(in crate::ingest) struct Subscriber {
    socket: Socket,
    monitor: Socket,
    mode: EndpointMode,
    topic: Vec<u8>,
    accepted: Accepted,
}

impl Subscriber {
    /// Opens the socket; connections come later, as the monitor tells.
    pub(in crate::ingest) fn open(context: &Context, feed: &Feed) -> Result<Self, zmq::Error> {
        let Feed { endpoint, topic, .. } = feed;
        let socket = context.socket(zmq::SUB)?;
        set_common(&socket)?;
        socket.set_rcvhwm(RECEIVE_LIMIT)?;
        socket.set_reconnect_ivl(100)?;
        socket.set_reconnect_ivl_max(2_000)?;
        // A peer whose host lost power, or whose NAT entry went away, closes nothing: only silence tells.
        socket.set_heartbeat_ivl(5_000)?;
        socket.set_heartbeat_timeout(15_000)?;
        // Everything, and the topic is looked at here: subscriptions of a prefix have been lost on reconnect.
        socket.set_subscribe(b"")?;
        let address = monitor_address();
        let events = SocketEvent::HANDSHAKE_SUCCEEDED as i32
            | SocketEvent::ACCEPTED as i32
            | SocketEvent::DISCONNECTED as i32
            | SocketEvent::HANDSHAKE_FAILED_NO_DETAIL as i32
            | SocketEvent::HANDSHAKE_FAILED_PROTOCOL as i32
            | SocketEvent::HANDSHAKE_FAILED_AUTH as i32;
        socket.monitor(&address, events)?;
        let monitor = context.socket(zmq::PAIR)?;
        monitor.set_linger(0)?;
        monitor.connect(&address)?;
        match endpoint.mode {
            EndpointMode::Connect => socket.connect(&endpoint.address)?,
            EndpointMode::Bind => socket.bind(&endpoint.address)?,
        }
        let (mode, topic) = (endpoint.mode, topic.as_bytes().to_vec());
        Ok(Self { socket, monitor, mode, topic, accepted: Accepted::default() })
    }

    /// The address that the socket really has, with the port that `*` became.
    pub(in crate::ingest) fn address(&self) -> Option<String> {
        self.socket.get_last_endpoint().ok()?.ok()
    }

    pub(in crate::ingest) fn poll_items(&self) -> [PollItem<'_>; 2] {
        [self.socket.as_poll_item(zmq::POLLIN), self.monitor.as_poll_item(zmq::POLLIN)]
    }

    /// The next batch that has arrived: `[topic, sequence, payload]`.
    pub(in crate::ingest) fn receive(&self) -> Option<Arrival> {
        loop {
            let Frames { count, last: [topic, sequence, payload] } = receive(&self.socket)?;
            if count != 3 {
                return Some(Arrival::Malformed);
            }
            if topic.starts_with(&self.topic) {
                return Some(batch(&sequence, payload));
            }
        }
    }

    /// The next thing that happened to a connection.
    pub(in crate::ingest) fn event(&mut self) -> Option<SubscriberEvent> {
        const SUCCEEDED: u16 = SocketEvent::HANDSHAKE_SUCCEEDED as u16;
        const DISCONNECTED: u16 = SocketEvent::DISCONNECTED as u16;
        const ACCEPTED: u16 = SocketEvent::ACCEPTED as u16;
        let listens = self.mode == EndpointMode::Bind;
        loop {
            // [event u16 | value u32, address]
            let frames = receive(&self.monitor)?;
            let [_, head, _] = frames.last;
            let Some(&[low, high, ref value @ ..]) = head.first_chunk::<6>() else { continue };
            let descriptor = u32::from_ne_bytes(*value);
            match u16::from_ne_bytes([low, high]) {
                ACCEPTED => self.accepted.accepted(descriptor),
                SUCCEEDED => {
                    if listens {
                        self.accepted.shaken();
                    }
                    return Some(SubscriberEvent::Connected);
                }
                // A stranger may knock while the engine is connected.
                DISCONNECTED if listens && !self.accepted.ended(descriptor) => {}
                DISCONNECTED => return Some(SubscriberEvent::Disconnected),
                _ if listens => {}
                _ => return Some(SubscriberEvent::Refused),
            }
        }
    }
}

/// One replay request on a DEALER socket of its own, so that no late answer is taken for that to another
/// request. (A REQ socket would read the first reply and no more.)
pub(in crate::ingest) struct ReplaySocket {
    socket: Socket,
}

impl ReplaySocket {
    /// Whether ZMQ understands the address.
    pub(in crate::ingest) fn check(context: &Context, address: &str) -> Result<(), zmq::Error> {
        let socket = context.socket(zmq::DEALER)?;
        set_common(&socket)?;
        socket.connect(address)
    }

    /// Asks for everything from `from` on. The request waits in the socket until a connection stands.
    pub(in crate::ingest) fn ask(context: &Context, address: &str, from: u64) -> Result<Self, zmq::Error> {
        let socket = context.socket(zmq::DEALER)?;
        set_common(&socket)?;
        socket.set_rcvhwm(RECEIVE_LIMIT)?;
        socket.set_reconnect_ivl(100)?;
        socket.connect(address)?;
        socket.send(Message::new(), zmq::SNDMORE | DONTWAIT)?;
        socket.send(&from.to_be_bytes()[..], DONTWAIT)?;
        Ok(Self { socket })
    }

    pub(in crate::ingest) fn poll_item(&self) -> PollItem<'_> {
        self.socket.as_poll_item(zmq::POLLIN)
    }

    /// The next answer: `["", sequence, payload]`, or from vLLM 0.26 on `["", topic, sequence, payload]`.
    pub(in crate::ingest) fn receive(&self) -> Option<Arrival> {
        let frames = receive(&self.socket)?;
        let (3 | 4, [_, sequence, payload]) = (frames.count, frames.last) else {
            return Some(Arrival::Malformed);
        };
        Some(match batch(&sequence, payload) {
            Arrival::Malformed if read(&sequence) == Some(END) => Arrival::End,
            arrival => arrival,
        })
    }
}

/// A name that no other socket of the process has.
fn monitor_address() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only that no two are equal matters.
    format!("inproc://monitor-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn set_common(socket: &Socket) -> Result<(), zmq::Error> {
    socket.set_linger(0)?;
    socket.set_maxmsgsize(LARGEST_FRAME)?;
    // A dead peer is found by heartbeats first; the system's own probes are for those that speak none.
    socket.set_tcp_keepalive(1)?;
    socket.set_tcp_keepalive_idle(30)?;
    socket.set_ipv6(true)
}

fn read(sequence: &Message) -> Option<u64> {
    <[u8; 8]>::try_from(&sequence[..]).ok().map(u64::from_be_bytes)
}

/// The largest number is the end marker's, so no batch has it.
fn batch(sequence: &Message, payload: Message) -> Arrival {
    match read(sequence) {
        Some(sequence) if sequence != END => Arrival::Batch { sequence, payload },
        _ => Arrival::Malformed,
    }
}

/// The last three frames of a message and how many it had.
struct Frames {
    count: usize,
    last: [Message; 3],
}

/// Receives one whole message if there is one, and keeps its last frames without copying them.
fn receive(socket: &Socket) -> Option<Frames> {
    let mut frames = Frames { count: 0, last: [Message::new(), Message::new(), Message::new()] };
    loop {
        let mut frame = Message::new();
        // EAGAIN before the first frame means none; after it cannot happen, for ZMQ delivers messages whole.
        socket.recv(&mut frame, DONTWAIT).ok()?;
        let more = frame.get_more();
        frames.count += 1;
        if frames.count <= MAX_FRAMES {
            frames.last.rotate_left(1);
            frames.last[2] = frame;
        }
        if !more {
            return Some(frames);
        }
    }
}
