//! What one slot holds, by its own names.

use ahash::AHashMap;

use super::tree::PlaceId;
use crate::event::{EngineHash, Tier};

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

/// How often a block lies in each tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Copies([u32; 4]);

impl Copies {
    pub(super) fn one(tier: Tier) -> Self {
        let mut copies = Self::default();
        copies.0[tier.index()] = 1;
        copies
    }

    pub(super) fn of(&self, tier: Tier) -> u32 {
        self.0[tier.index()]
    }

    pub(super) fn set(&mut self, tier: Tier, copies: u32) {
        self.0[tier.index()] = copies;
    }

    pub(super) fn add(&mut self, other: Self) {
        for (mine, more) in self.0.iter_mut().zip(other.0) {
            *mine = mine.saturating_add(more);
        }
    }

    /// Tiers with at least one copy.
    pub(super) fn tiers(self) -> impl Iterator<Item = Tier> {
        Tier::ALL.into_iter().filter(move |&tier| self.of(tier) > 0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }
}

impl Holdings {
    /// Whether events of `generation` come too late.
    pub(super) fn is_over(&self, generation: u32) -> bool {
        generation < self.generation || (generation == self.generation && self.retired)
    }
}
