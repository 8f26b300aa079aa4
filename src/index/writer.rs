//! How events get in.

use std::sync::Arc;

use parking_lot::RwLock;

use super::{Applied, reference::Reference};
use crate::{event::Event, slot::Slot};

/// Applies events to one shard of a [`PrefixIndex`](super::PrefixIndex).
///
/// There is one a shard and it cannot be cloned, so the events of a slot have one order.
#[derive(Debug)]
pub struct IndexWriter {
    shards: Arc<[RwLock<Reference>]>,
    shard: usize,
}

impl IndexWriter {
    pub(super) fn new(shards: Arc<[RwLock<Reference>]>, shard: usize) -> Self {
        Self { shards, shard }
    }

    /// Applies one event of `slot`; lookups see all of it or nothing.
    ///
    /// The first event of a newer generation drops everything that older ones held. Events of an older
    /// generation, or of one that was [retired](Self::retire), change nothing.
    ///
    /// # Panics
    /// In debug builds, if `slot` belongs to another writer. In release builds such a slot could be found
    /// twice by one lookup.
    pub fn apply(&mut self, slot: Slot, event: &Event) -> Applied {
        self.debug_assert_mine(slot);
        self.shards[self.shard].write().apply(slot, event)
    }

    /// Ends an incarnation: everything that `slot` held or had waiting is gone at once, and later events of
    /// its generation, or of older ones, are ignored. Does nothing if a newer generation has been seen.
    ///
    /// # Panics
    /// As [`Self::apply`].
    pub fn retire(&mut self, slot: Slot) -> Applied {
        self.debug_assert_mine(slot);
        self.shards[self.shard].write().retire(slot)
    }

    fn debug_assert_mine(&self, slot: Slot) {
        debug_assert_eq!(
            slot.index as usize % self.shards.len(),
            self.shard,
            "slot {slot} belongs to the writer of another shard"
        );
    }
}
