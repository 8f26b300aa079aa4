//! One slot's account.

use super::oddities::Oddities;
use crate::{
    index::{copies::Copies, raw::NO_SEAT, tree::Place},
    slot::Slot,
};

/// What the ledger knows of a slot beyond the marks in the tree. How many blocks it holds is in the shared counts.
pub(super) struct Holder {
    pub(super) slot: Slot,
    /// By tier.
    pub(super) seats: [u32; 4],
    /// Of this holding: another one after each clear. 0: holds nothing yet.
    pub(super) serial: u64,
    pub(super) oddities: Oddities,
    /// The block before the one that was removed last: engines evict chains from their ends.
    pub(super) next_to_go: Place,
    /// Bytes of the oddities when they were last counted.
    pub(super) counted: u64,
    pub(super) is_used: bool,
    /// The incarnation is over; only a newer generation is listened to.
    pub(super) retired: bool,
}

impl Holder {
    /// Whether this is the account of that incarnation, which may be over.
    #[inline(always)]
    pub(super) fn is_of(&self, slot: Slot) -> bool {
        self.is_used && self.slot == slot
    }

    /// Whether this is the account of that incarnation, and it is listened to.
    #[inline(always)]
    pub(super) fn is_current(&self, slot: Slot) -> bool {
        self.is_of(slot) && !self.retired
    }
}

/// A block as one slot holds it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) place: Place,
    pub(super) copies: Copies,
}

impl Default for Holder {
    fn default() -> Self {
        Self {
            slot: Slot { index: 0, generation: 0 },
            seats: [NO_SEAT; 4],
            serial: 0,
            oddities: Oddities::default(),
            next_to_go: Place { run: 0, offset: 0 },
            counted: 0,
            is_used: false,
            retired: false,
        }
    }
}
