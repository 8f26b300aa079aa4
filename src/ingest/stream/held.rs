//! Live batches that wait for a replay to catch up with them.

use std::{collections::VecDeque, ops::Deref};

/// A queue of batches in rising order of their numbers, bounded in count and bytes.
#[derive(Debug)]
pub(super) struct Held<P> {
    batches: VecDeque<(u64, P)>,
    bytes: usize,
    max_batches: usize,
    max_bytes: usize,
}

impl<P: Deref<Target = [u8]>> Held<P> {
    pub(super) const fn new(max_batches: usize, max_bytes: usize) -> Self {
        Self { batches: VecDeque::new(), bytes: 0, max_batches, max_bytes }
    }

    /// Adds a batch; `false` when that went over the limit, in which case the caller empties the queue. The
    /// batch is taken either way: it must not become the next gap.
    #[must_use]
    pub(super) fn push(&mut self, sequence: u64, payload: P) -> bool {
        self.bytes += payload.len();
        self.batches.push_back((sequence, payload));
        self.batches.len() <= self.max_batches && self.bytes <= self.max_bytes
    }

    pub(super) fn first(&self) -> Option<u64> {
        self.batches.front().map(|&(sequence, _)| sequence)
    }

    pub(super) fn pop(&mut self) -> Option<(u64, P)> {
        let (sequence, payload) = self.batches.pop_front()?;
        self.bytes -= payload.len();
        Some((sequence, payload))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.batches.clear();
        self.bytes = 0;
    }
}
