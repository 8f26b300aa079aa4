//! What one slot holds, by its own names.

use ahash::AHashMap;

use super::tree::PlaceId;
use crate::{event::EngineHash, index::copies::Copies};

/// The blocks of one slot's current incarnation.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    pub(super) generation: u32,
    /// The incarnation is over; only a newer generation is listened to.
    pub(super) retired: bool,
    pub(super) blocks: AHashMap<EngineHash, Block>,
    /// Entries of `blocks` with copies in each tier.
    pub(super) counts: [u64; 4],
}

/// A block that a slot holds, in one tier at least.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) place: PlaceId,
    pub(super) copies: Copies,
}

impl Holdings {
    /// Whether events of `generation` come too late.
    pub(super) fn is_over(&self, generation: u32) -> bool {
        generation < self.generation || (generation == self.generation && self.retired)
    }
}
