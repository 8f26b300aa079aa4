//! What lies between one rank of an engine and the router.

use std::{collections::VecDeque, rc::Rc, time::Duration};

use crate::wire;

/// What travels on the live connection, in order.
#[derive(Clone)]
pub(crate) enum Travelling {
    /// A connection to this incarnation stands.
    Connected(usize),
    Batch {
        incarnation: usize,
        sequence: u64,
        payload: Rc<[u8]>,
    },
    Disconnected,
}

/// A piece of a replay's answer; `None` is its end.
pub(crate) type Piece = Option<(u64, Rc<[u8]>)>;

/// A request for a replay, on a socket of its own.
pub(crate) struct Request {
    pub(crate) from: u64,
    /// It will never be answered.
    pub(crate) lost: bool,
    /// Once the engine has given it.
    pub(crate) answer: Option<VecDeque<Piece>>,
}

/// What goes wrong, in parts of 1.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Faults {
    pub(crate) loss: f64,
    pub(crate) duplication: f64,
    pub(crate) reordering: f64,
    /// Cut on the way, or replaced by noise.
    pub(crate) garbling: f64,
    /// Of requests for a replay.
    pub(crate) silence: f64,
}

/// The connections of one rank.
#[derive(Default)]
pub(crate) struct Link {
    /// As the engine sees it.
    pub(crate) linked: bool,
    /// The other end is gone without a word: when a heartbeat will tell.
    pub(crate) silent_until: Option<Duration>,
    pub(crate) live: VecDeque<Travelling>,
    pub(crate) request: Option<Request>,
    /// What is left of answers to earlier requests.
    pub(crate) abandoned: VecDeque<(u64, Rc<[u8]>)>,
}

impl Link {
    pub(crate) fn connect(&mut self, incarnation: usize) {
        self.linked = true;
        self.live.push_back(Travelling::Connected(incarnation));
    }

    /// A batch sets out; what becomes of it is up to the faults. `spared` ones arrive as they are.
    pub(crate) fn send(
        &mut self,
        (incarnation, sequence): (usize, u64),
        payload: &Rc<[u8]>,
        faults: Option<&Faults>,
        rng: &mut fastrand::Rng,
    ) {
        if !self.linked || self.silent_until.is_some() {
            return;
        }
        let batch = |payload: Rc<[u8]>| Travelling::Batch { incarnation, sequence, payload };
        let Some(faults) = faults else {
            self.live.push_back(batch(Rc::clone(payload)));
            return;
        };
        if rng.f64() < faults.loss {
            return;
        }
        let payload = if rng.f64() < faults.garbling { garbled(payload, rng) } else { Rc::clone(payload) };
        let at = self.live.len();
        let swaps = matches!(self.live.back(), Some(Travelling::Batch { sequence, .. }) if *sequence > 0);
        self.live.push_back(batch(Rc::clone(&payload)));
        if swaps && rng.f64() < faults.reordering {
            self.live.swap(at - 1, at);
        }
        if rng.f64() < faults.duplication {
            self.live.push_back(batch(payload));
        }
    }

    /// The connection breaks. Some of what travelled arrives nevertheless, the last of it late.
    pub(crate) fn cut(&mut self, spares: bool, rng: &mut fastrand::Rng) {
        self.linked = false;
        let keep = if spares { self.live.len() } else { rng.usize(..=self.live.len()) };
        let tail = self.live.split_off(keep);
        self.live
            .extend(tail.into_iter().filter(|travelling| !matches!(travelling, Travelling::Batch { .. })));
        let late = match self.live.back() {
            Some(Travelling::Batch { sequence, .. }) if (!spares || *sequence > 0) && rng.bool() => {
                self.live.pop_back()
            }
            _ => None,
        };
        self.live.push_back(Travelling::Disconnected);
        self.live.extend(late);
    }

    /// Whether the router waits for an answer, or will once it knows of its connection.
    pub(crate) fn expects_answer(&self) -> bool {
        self.request.is_some()
            || self.live.iter().any(|travelling| matches!(travelling, Travelling::Connected(_)))
    }

    /// The other end is gone without a word.
    pub(crate) fn fall_silent(&mut self, until: Duration) {
        if self.linked {
            self.linked = false;
            self.silent_until = Some(until);
        }
    }

    /// A heartbeat was not answered.
    pub(crate) fn pass(&mut self, now: Duration) {
        if self.silent_until.take_if(|until| *until <= now).is_some() {
            self.live.push_back(Travelling::Disconnected);
        }
    }

    /// The router closes its socket: what travelled to it is lost, and somebody has to link the two again.
    pub(crate) fn renew(&mut self) {
        (self.linked, self.silent_until) = (false, None);
        self.live.clear();
    }

    /// The socket of the last request is closed, and a new one asks.
    pub(crate) fn ask(&mut self, from: u64, lost: bool) {
        self.hang_up();
        self.request = Some(Request { from, lost, answer: None });
    }

    pub(crate) fn hang_up(&mut self) {
        let rest = self.request.take().and_then(|request| request.answer);
        self.abandoned.extend(rest.into_iter().flatten().flatten());
    }
}

/// A frame that lost its end, or is noise, which cannot be read to its end; or one that took something away, and does not say what.
pub(crate) fn garbled(payload: &Rc<[u8]>, rng: &mut fastrand::Rng) -> Rc<[u8]> {
    if rng.u8(..3) == 0
        && let Some(spoilt) = wire::without_a_removal(payload)
    {
        return spoilt.into();
    }
    let mut bytes = payload[..rng.usize(..payload.len().max(1))].to_vec();
    if rng.bool() {
        bytes.fill_with(|| rng.u8(0xa0..0xc0));
    }
    bytes.into()
}
