//! How events get in.

use std::{borrow::Borrow, fmt, sync::Arc};

use super::{
    Applied,
    ledger::{Asked, Export, Ledger},
    raw::{Shared, prefetch},
    snapshot::Part,
};
use crate::{
    event::{EngineHash, Event, Tier},
    slot::Slot,
};

/// How many events ahead the table entry, the run and the words of a block are asked for.
const AHEAD: [usize; 3] = [32, 20, 10];
/// How many events ahead an event itself is asked for: a long list of them lies in no cache.
const AHEAD_OF_ALL: usize = 96;
const RING: usize = AHEAD[0].next_power_of_two();

/// Applies events to one shard of a [`PrefixIndex`](super::PrefixIndex).
///
/// There is one a shard and it cannot be cloned, so the events of a slot have one order.
pub struct IndexWriter {
    ledger: Ledger,
    shard: u32,
    shards: u32,
}

impl IndexWriter {
    pub(super) fn new(
        shared: Arc<Shared>,
        (shard, shards): (u32, u32),
        key: u64,
        pending_limit: usize,
    ) -> Self {
        Self { ledger: Ledger::new(shared, key, pending_limit), shard, shards }
    }

    /// Applies one event of `slot`. Lookups see the blocks of the event one after another, in order.
    ///
    /// The first event of a newer generation drops everything that older ones held. Events of an older
    /// generation, or of one that was [retired](Self::retire), change nothing.
    ///
    /// # Panics
    /// In debug builds, if `slot` belongs to another writer. In release builds such a slot could be found
    /// twice by one lookup.
    pub fn apply(&mut self, slot: Slot, event: &Event) -> Applied {
        let applied = self.apply_one(slot, event);
        self.ledger.show_totals();
        applied
    }

    #[inline]
    fn apply_one(&mut self, slot: Slot, event: &Event) -> Applied {
        self.debug_assert_mine(slot);
        self.ledger.apply(slot, event)
    }

    /// Applies one event of a slot that may not hold more blocks than it does, because memory is short. Removals and
    /// clears are as ever, and so is what a store says of blocks under names that the slot uses already; other blocks are
    /// [refused](Applied::refused). So the slot holds less than its engine, and nothing that the engine has not.
    ///
    /// # Panics
    /// As [`Self::apply`].
    pub fn apply_without_growth(&mut self, slot: Slot, event: &Event) -> Applied {
        self.debug_assert_mine(slot);
        let applied = self.ledger.apply_with(slot, event, false);
        self.ledger.show_totals();
        applied
    }

    /// How many copies of a block the current incarnation of `slot` has in a tier under a name of its own, placed or waiting.
    #[must_use]
    pub fn copies(&self, slot: Slot, name: EngineHash, tier: Tier) -> u32 {
        self.ledger.copies_of(slot, name, tier)
    }

    /// How many blocks `slot` holds in each tier, as [`PrefixIndex::blocks`](super::PrefixIndex::blocks) counts them.
    #[must_use]
    pub fn blocks(&self, slot: Slot) -> [u64; 4] {
        self.debug_assert_mine(slot);
        self.ledger.blocks(slot)
    }

    /// Bytes that what the shard holds takes, about: what is set aside and free at the moment, and the fixed part of an
    /// empty index, come on top.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.ledger.memory().used
    }

    /// Applies events in order, telling what each one did. Faster than one by one: what later events need is
    /// asked of the memory while earlier ones are applied.
    ///
    /// # Panics
    /// As [`Self::apply`].
    pub fn apply_all<E: Borrow<Event>>(
        &mut self,
        events: &[(Slot, E)],
        mut applied: impl FnMut(&Event, Applied),
    ) {
        let at = |index: usize| events.get(index).map(|(_, event)| event.borrow());
        // What is known of the event `index`, at `index % RING`: where to look, then where that leads.
        let mut asked = [Asked::default(); RING];
        for (asked, (_, event)) in asked.iter_mut().zip(events).take(AHEAD[0]) {
            *asked = self.ledger.ask_for_entry(event.borrow());
        }
        for (index, (slot, event)) in events.iter().enumerate() {
            prefetch(events.as_ptr().wrapping_add(index + AHEAD_OF_ALL));
            if let Some(event) = at(index + AHEAD[0]) {
                asked[(index + AHEAD[0]) % RING] = self.ledger.ask_for_entry(event);
            }
            self.ledger.ask_for_run(&mut asked[(index + AHEAD[1]) % RING]);
            self.ledger.ask_for_block(asked[(index + AHEAD[2]) % RING]);
            let event = event.borrow();
            applied(event, self.apply_one(*slot, event));
        }
        self.ledger.show_totals();
    }

    /// Ends an incarnation: everything that `slot` held or had waiting is gone at once, and later events of
    /// its generation, or of older ones, are ignored. Does nothing if a newer generation has been seen.
    ///
    /// # Panics
    /// As [`Self::apply`].
    pub fn retire(&mut self, slot: Slot) -> Applied {
        self.debug_assert_mine(slot);
        self.ledger.retire(slot)
    }

    /// Makes the tables large enough for `blocks` blocks in all, with the next events: growing while there is little
    /// to move costs less.
    pub fn expect(&mut self, blocks: usize) {
        self.ledger.expect(blocks);
    }

    /// Does a bounded part of the work that clears and retirements leave behind, which events do otherwise; whether there
    /// is more. For when no event comes.
    pub fn tidy(&mut self) -> bool {
        self.ledger.tidy()
    }

    /// Begins to write out what a slot holds: see [`snapshot`](super::snapshot).
    #[must_use]
    pub fn export(&self, slot: Slot) -> Export {
        self.debug_assert_mine(slot);
        self.ledger.export(slot)
    }

    /// Goes on with that for about `blocks` blocks; whether there are more. No event of the slot may have been applied
    /// since the export began; those of others may.
    pub fn export_some(&self, export: &mut Export, blocks: usize, mut out: impl FnMut(Part)) -> bool {
        self.ledger.export_some(export, blocks, &mut out)
    }

    fn debug_assert_mine(&self, slot: Slot) {
        debug_assert_eq!(
            slot.index % self.shards,
            self.shard,
            "slot {slot} belongs to the writer of another shard"
        );
    }
}

impl fmt::Debug for IndexWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndexWriter").field("shard", &self.shard).finish_non_exhaustive()
    }
}
