//! The project's own requests, for where no trace is at hand: chats that grow turn by turn.

use fastrand::Rng;

use crate::trace::{Request, TOKENS_PER_ID};

/// As many requests as the longest workload takes.
const REQUESTS: usize = 12_031;

/// Chats of few turns: prompts of some 12k tokens, of which most share only the start.
pub(super) fn few_turns() -> Vec<Request> {
    Chats { rng: Rng::with_seed(17), next_id: 1, open: Vec::new(), again: 0.35, first: 4..44, more: 1..8 }
        .talk()
}

/// Chats of many turns: prompts of some 16k tokens, most of which was there before.
pub(super) fn many_turns() -> Vec<Request> {
    Chats { rng: Rng::with_seed(19), next_id: 1, open: Vec::new(), again: 0.85, first: 8..40, more: 1..4 }
        .talk()
}

struct Chats {
    rng: Rng,
    /// Id 0 is what every chat starts with.
    next_id: u64,
    /// Chats that may go on.
    open: Vec<Vec<u64>>,
    /// The probability that one does.
    again: f64,
    /// Pieces of 512 tokens in a first turn, and in each further one.
    first: std::ops::Range<usize>,
    more: std::ops::Range<usize>,
}

impl Chats {
    fn talk(mut self) -> Vec<Request> {
        (0..REQUESTS).map(|_| self.turn()).collect()
    }

    fn turn(&mut self) -> Request {
        let goes_on = !self.open.is_empty() && self.rng.f64() < self.again;
        let mut chat =
            if goes_on { self.open.swap_remove(self.rng.usize(..self.open.len())) } else { vec![0] };
        let pieces = self.rng.usize(if goes_on { self.more.clone() } else { self.first.clone() });
        chat.extend((0..pieces).map(|piece| self.next_id + piece as u64));
        self.next_id += pieces as u64;
        let request = Request {
            input_length: chat.len() * TOKENS_PER_ID - self.rng.usize(..TOKENS_PER_ID),
            output_length: self.rng.usize(30..600),
            hash_ids: chat.clone(),
        };
        self.open.push(chat);
        if self.open.len() > 200 {
            self.open.swap_remove(self.rng.usize(..200));
        }
        request
    }
}
