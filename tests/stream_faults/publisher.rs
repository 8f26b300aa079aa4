//! An engine's publisher that loses, dies and lies when it is told to.

use std::{
    sync::mpsc::{self, Sender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use kvroute::ingest::{Endpoint, EndpointMode, Feed};

use crate::{PATIENCE, feed};

/// How a publisher answers replays.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Replies {
    /// `["", sequence, payload]`
    Three,
    /// `["", topic, sequence, payload]`
    Four,
    Never,
}

pub(crate) enum Order {
    /// Publishes the next batch, or only remembers it.
    Publish { lost: bool },
    /// Sends these frames as they are.
    Raw(Vec<Vec<u8>>),
}

/// An engine's publisher on its own thread. Dropping it closes its sockets, as a killed process does.
pub(crate) struct Publisher {
    pub(crate) orders: Option<Sender<Order>>,
    pub(crate) thread: Option<JoinHandle<()>>,
    pub(crate) events: String,
    pub(crate) replay: String,
}

impl Publisher {
    /// `name` is in every payload, as an engine's clock is. Addresses may end in `:*`.
    pub(crate) fn start(name: &str, events: &Endpoint, replay: &str, replies: Replies) -> Self {
        let context = zmq::Context::new();
        let socket = context.socket(zmq::PUB).unwrap();
        socket.set_linger(0).unwrap();
        match events.mode {
            // The address is given from the router's side.
            EndpointMode::Connect => bind(&socket, &events.address),
            EndpointMode::Bind => socket.connect(&events.address).unwrap(),
        }
        let router = context.socket(zmq::ROUTER).unwrap();
        router.set_linger(0).unwrap();
        bind(&router, replay);
        let events = socket.get_last_endpoint().unwrap().unwrap();
        let replay = router.get_last_endpoint().unwrap().unwrap();
        let (orders, inbox) = mpsc::channel();
        let name = name.to_owned();
        let thread = thread::spawn(move || {
            let mut said: Vec<Vec<u8>> = Vec::new();
            loop {
                match inbox.recv_timeout(Duration::from_millis(2)) {
                    Ok(Order::Publish { lost }) => {
                        let payload = format!("{name} {}", said.len()).into_bytes();
                        if !lost {
                            let sequence = (said.len() as u64).to_be_bytes().to_vec();
                            socket.send_multipart([b"kv".to_vec(), sequence, payload.clone()], 0).unwrap();
                        }
                        said.push(payload);
                    }
                    Ok(Order::Raw(frames)) => socket.send_multipart(frames, 0).unwrap(),
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                    Err(mpsc::RecvTimeoutError::Disconnected) => return,
                }
                while let Ok(request) = router.recv_multipart(zmq::DONTWAIT) {
                    answer(&router, &request, &said, replies);
                }
            }
        });
        Self { orders: Some(orders), thread: Some(thread), events, replay }
    }

    /// A publisher on ports of its own choice.
    pub(crate) fn anywhere(replies: Replies) -> Self {
        Self::start("a", &Endpoint::connect("tcp://127.0.0.1:*"), "tcp://127.0.0.1:*", replies)
    }

    /// The next engine on the ports of one that was killed.
    pub(crate) fn again(name: &str, events: &str, replay: &str) -> Self {
        Self::start(name, &Endpoint::connect(events), replay, Replies::Four)
    }

    pub(crate) fn order(&self, order: Order) {
        self.orders.as_ref().unwrap().send(order).unwrap();
    }

    pub(crate) fn publish(&self, count: usize) {
        (0..count).for_each(|_| self.order(Order::Publish { lost: false }));
    }

    pub(crate) fn lose(&self, count: usize) {
        (0..count).for_each(|_| self.order(Order::Publish { lost: true }));
    }

    pub(crate) fn feed(&self) -> Feed {
        feed(&self.events).with_replay(&self.replay)
    }

    /// Closes the sockets and returns their addresses.
    pub(crate) fn kill(self) -> (String, String) {
        (self.events.clone(), self.replay.clone())
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.orders = None;
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Binds, waiting for a predecessor's socket to be gone.
pub(crate) fn bind(socket: &zmq::Socket, address: &str) {
    let until = Instant::now() + PATIENCE;
    while let Err(error) = socket.bind(address) {
        assert!(Instant::now() < until, "{address}: {error}");
        thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn answer(router: &zmq::Socket, request: &[Vec<u8>], said: &[Vec<u8>], replies: Replies) {
    let [client, empty, from] = request else { return };
    assert!(empty.is_empty());
    let from = u64::from_be_bytes(from[..].try_into().unwrap());
    let reply = |sequence: [u8; 8], payload: &[u8]| {
        let mut frames = vec![client.clone(), Vec::new()];
        if replies == Replies::Four {
            frames.push(b"kv".to_vec());
        }
        frames.extend([sequence.to_vec(), payload.to_vec()]);
        router.send_multipart(frames, 0).unwrap();
    };
    if replies == Replies::Never {
        return;
    }
    for (sequence, payload) in said.iter().enumerate().skip(usize::try_from(from).unwrap()) {
        reply((sequence as u64).to_be_bytes(), payload);
    }
    reply([0xff; 8], &[]);
}
