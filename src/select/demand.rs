//! What a request asks of a choice.

use super::{Overrides, Tie};
use crate::{
    hash::{BlockSize, SequenceHash},
    slot::{Rank, WorkerId},
};
use std::fmt;

/// One request, as far as choosing a worker goes.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// Tokens of the prompt.
    pub isl_tokens: usize,
    /// Tokens a block, the same for every member.
    pub block_size: BlockSize,
    /// The chained hashes of the prompt's complete blocks. May be empty if the prompt was not hashed; its
    /// blocks then count for this request alone.
    pub sequence: &'a [SequenceHash],
    /// Which part of the work is to be placed.
    pub phase: Phase,
    /// The worker that the request insists on.
    pub pin: Option<Pin>,
    /// Where the request's session went last.
    pub tie: Option<Tie>,
    /// Workers where this request failed already.
    pub avoid: &'a [WorkerId],
    /// Settings that the request replaces.
    pub overrides: Overrides,
    /// Whether its first token will be told of ([`Booking::first_token`](crate::load::Booking::first_token)), as that of an
    /// answer in one piece is not. What nobody tells of is held to be prefilled when its time is over.
    pub first_token_seen: bool,
}

impl<'a> Demand<'a> {
    /// A request for all phases that leaves the choice free.
    #[must_use]
    pub fn new(isl_tokens: usize, block_size: BlockSize, sequence: &'a [SequenceHash]) -> Self {
        Self {
            isl_tokens,
            block_size,
            sequence,
            phase: Phase::default(),
            pin: None,
            tie: None,
            avoid: &[],
            overrides: Overrides::default(),
            first_token_seen: true,
        }
    }

    /// Blocks that the prompt fills or begins: the ceiling.
    pub(super) fn blocks_begun(&self) -> u64 {
        (self.isl_tokens as u64).div_ceil(u64::from(self.block_size.get()))
    }

    /// Complete blocks of the prompt.
    pub(super) fn blocks(&self) -> u64 {
        if self.sequence.is_empty() {
            self.isl_tokens as u64 / u64::from(self.block_size.get())
        } else {
            self.sequence.len() as u64
        }
    }
}

/// Which part of a request's work a worker is chosen for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Phase {
    /// All of it.
    #[default]
    Aggregated,
    /// Computing the prompt, where other workers decode.
    Prefill,
    /// Decoding, where other workers compute the prompt.
    Decode,
}

impl Phase {
    /// The name used in messages and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aggregated => "aggregated",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A worker, or one rank of it, that a request insists on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pin {
    /// The worker.
    pub worker: WorkerId,
    /// Its rank. Mode `kv` needs it where the worker has several; other modes take the least loaded.
    pub rank: Option<Rank>,
    /// Where the request said so.
    pub field: PinField,
}

impl Pin {
    /// Whether the pin admits `rank` of `worker`.
    #[must_use]
    pub fn holds(&self, worker: WorkerId, rank: Rank) -> bool {
        self.worker == worker && self.rank.is_none_or(|pinned| pinned == rank)
    }
}

/// The request field that names a worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum PinField {
    /// `backend_instance_id`: for every phase that has no field of its own.
    #[default]
    BackendInstanceId,
    /// `prefill_worker_id`.
    PrefillWorkerId,
    /// `decode_worker_id`.
    DecodeWorkerId,
}

impl PinField {
    /// The field's name inside `nvext`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BackendInstanceId => "backend_instance_id",
            Self::PrefillWorkerId => "prefill_worker_id",
            Self::DecodeWorkerId => "decode_worker_id",
        }
    }
}

impl fmt::Display for PinField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
