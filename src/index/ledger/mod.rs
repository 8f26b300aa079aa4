//! What each slot holds, under which names, and how often: one shard as its writer keeps it.
//!
//! Nearly all blocks are *regular*: the slot calls the block as the tree does and holds one copy in each tier it is
//! in. Of those the tree's marks say everything. The ledger adds what they cannot say:
//!
//! * copies beyond the first, of regular blocks ([`Oddities`](oddities::Oddities));
//! * *odd* names: names that lead elsewhere for others, or of which a slot has several for one block. A slot either
//!   holds a block as a regular one or under odd names, never both. Engines that seed their hashes by
//!   chance make the blocks they share with others odd, which costs memory and time but no exactness;
//! * blocks that wait for their place ([`Pending`]).
//!
//! Each kind of event has a short path for slots without oddities while nothing waits, and a literal one, block by
//! block, for all the rest.

mod end;
mod export;
mod free_seats;
mod holder;
mod naming;
mod oddities;
mod remove;
mod store;

use std::sync::{Arc, atomic::Ordering::Relaxed};

use smallvec::SmallVec;

pub use self::export::Export;
use self::{end::Endings, free_seats::FreeSeats, holder::Holder};
use super::{
    Applied,
    pending::Pending,
    raw::{NO_SEAT, SEATS, Shared},
    split_map::SplitMap,
    tree::{Memory, Place, Tree},
};
use crate::{
    event::{EngineHash, Event, Tier},
    slot::Slot,
};

/// The writer's side of a shard.
pub(super) struct Ledger {
    tree: Tree,
    /// By the slot's number in the shard.
    holders: Vec<Holder>,
    /// Which seats of each tier are free.
    free_seats: [FreeSeats; 4],
    /// Who uses a name oddly, and for which block.
    odd: SplitMap<EngineHash, SmallVec<[OddName; 1]>>,
    pending: Pending,
    /// Names that began or ceased to lead somewhere while blocks wait; empty between events.
    changed: Vec<EngineHash>,
    endings: Endings,
    /// Whether there may be anything left to do of clears, or of growing.
    has_work: bool,
    pending_limit: usize,
    dropped: u64,
    counts: [u64; 4],
    next_serial: u64,
    /// Entries the name table is being grown for.
    expected: usize,
    /// Bytes of all oddities, of which those of one slot are counted anew with each look.
    oddities: u64,
    next_counted: usize,
}

/// One slot's odd use of a name.
#[derive(Clone, Copy)]
struct OddName {
    place: Place,
    number: u32,
    serial: u64,
}

impl Ledger {
    pub(super) fn new(shared: Arc<Shared>, key: u64, pending_limit: usize) -> Self {
        Self {
            tree: Tree::new(shared, key),
            holders: Vec::new(),
            free_seats: Default::default(),
            odd: SplitMap::default(),
            pending: Pending::default(),
            changed: Vec::new(),
            endings: Endings::default(),
            has_work: false,
            pending_limit,
            dropped: 0,
            counts: [0; 4],
            next_serial: 1,
            expected: 0,
            oddities: 0,
            next_counted: 0,
        }
    }

    /// How many blocks a slot holds in each tier.
    pub(super) fn blocks(&self, slot: Slot) -> [u64; 4] {
        self.tree.shared.noted(slot)
    }

    /// Applies an event. What the shard holds in all is [shown](Self::show_totals) later.
    #[inline]
    pub(super) fn apply(&mut self, slot: Slot, event: &Event) -> Applied {
        self.apply_with(slot, event, true)
    }

    /// Applies an event of a slot that may hold more after it than before, or not.
    #[inline(always)]
    pub(super) fn apply_with(&mut self, slot: Slot, event: &Event, may_grow: bool) -> Applied {
        let number = self.tree.shared.number(slot);
        // Removals are most of what comes one by one. Nothing of theirs goes through memory that others write.
        if let Event::Removed(removed) = event
            && self.is_plain(number, slot)
        {
            let applied = self.remove_plain(number, removed);
            self.work_off();
            return applied;
        }
        self.apply_any(number, slot, event, may_grow)
    }

    #[inline(never)]
    fn apply_any(&mut self, number: u32, slot: Slot, event: &Event, may_grow: bool) -> Applied {
        let mut applied = Applied::default();
        if number >= SEATS {
            if let Event::Stored(stored) = event {
                applied.refused = u32::try_from(stored.blocks.len()).unwrap_or(u32::MAX);
            }
            return applied;
        }
        if !self.listen(number, slot, &mut applied) {
            applied.stale = true;
            return applied;
        }
        match event {
            Event::Stored(stored) if may_grow => self.store(number, stored, &mut applied),
            Event::Stored(stored) => self.store_known(number, stored, &mut applied),
            Event::Removed(removed) => self.remove(number, removed, &mut applied),
            Event::Cleared(tier) => self.clear(number, *tier, &mut applied),
        }
        self.work_off();
        applied
    }

    /// Whether all that the slot, a current incarnation, holds is regular, and nothing waits.
    #[inline(always)]
    fn is_plain(&self, number: u32, slot: Slot) -> bool {
        let holder = self.holders.get(number as usize);
        let is_plain = |holder: &Holder| holder.is_current(slot) && holder.oddities.has_no_names();
        holder.is_some_and(is_plain) && self.pending.len() == 0
    }

    pub(super) fn retire(&mut self, slot: Slot) -> Applied {
        let mut applied = Applied::default();
        let number = self.tree.shared.number(slot);
        if number < SEATS && self.listen(number, slot, &mut applied) {
            self.clear(number, None, &mut applied);
            self.holders[number as usize].retired = true;
            self.show_totals();
        } else {
            applied.stale = true;
        }
        applied
    }

    /// Whether the slot, the `number`th of the shard, is a current incarnation. A newer one than known so far ends the
    /// older one.
    #[inline(always)]
    fn listen(&mut self, number: u32, slot: Slot, applied: &mut Applied) -> bool {
        if let Some(holder) = self.holders.get(number as usize)
            && holder.is_of(slot)
        {
            return !holder.retired;
        }
        self.meet(number, slot, applied)
    }

    /// As [`Self::listen`], for a slot that is not the one that the ledger knows.
    fn meet(&mut self, number: u32, slot: Slot, applied: &mut Applied) -> bool {
        while self.holders.len() <= number as usize {
            self.holders.push(Holder::default());
        }
        let holder = &self.holders[number as usize];
        if holder.is_used {
            if slot.generation < holder.slot.generation {
                return false;
            }
            self.clear(number, None, applied);
        }
        let holder = &mut self.holders[number as usize];
        holder.is_used = true;
        holder.slot = slot;
        holder.retired = false;
        self.tree.shared.note_slot(slot);
        true
    }

    /// The seat that a slot's blocks in a tier are marked with; `None` if there is none left.
    fn seat(&mut self, number: u32, tier: usize) -> Option<u32> {
        let seat = self.holders[number as usize].seats[tier];
        if seat != NO_SEAT {
            return Some(seat);
        }
        if self.free_seats[tier].is_full() {
            // Those that nobody sits in are still being swept out.
            self.sweep_all();
        }
        let seat = self.free_seats[tier].take(number)?;
        let holder = &mut self.holders[number as usize];
        holder.seats[tier] = seat;
        if holder.serial == 0 {
            holder.serial = self.next_serial;
            self.next_serial += 1;
        }
        self.tree.shared.seats[tier].take(number, seat, holder.slot);
        Some(seat)
    }

    /// `blocks` more, or fewer, names of a slot are held in a tier.
    fn count(&mut self, number: u32, tier: Tier, blocks: i64) {
        let tier = tier.index();
        self.tree.shared.count(number, tier, blocks);
        self.counts[tier] = self.counts[tier].wrapping_add_signed(blocks);
    }

    /// Bytes of the shard, about.
    pub(super) fn memory(&self) -> Memory {
        let Memory { used, free } = self.tree.memory();
        let side = self.oddities + (self.odd.bytes() + self.pending.bytes()) as u64;
        Memory { used: used + side, free }
    }

    fn count_oddities(&mut self) {
        let Some(holder) = self.holders.get_mut(self.next_counted) else {
            self.next_counted = 0;
            return;
        };
        let now = holder.oddities.bytes();
        self.oddities = self.oddities - std::mem::replace(&mut holder.counted, now) + now;
        self.next_counted += 1;
    }

    /// Shows what the shard holds.
    pub(super) fn show_totals(&mut self) {
        self.count_oddities();
        let memory = self.memory();
        let totals = &self.tree.shared.totals;
        totals.places.store(self.tree.places(), Relaxed);
        totals.pending.store(self.pending.len() as u64, Relaxed);
        totals.dropped.store(self.dropped, Relaxed);
        totals.bytes.store(memory.used + memory.free, Relaxed);
        for (total, count) in totals.blocks.iter().zip(self.counts) {
            total.store(count, Relaxed);
        }
    }

    /// Does a bounded part of what clears have left to do, and of growing; whether there is more.
    pub(super) fn tidy(&mut self) -> bool {
        let more = self.work();
        self.show_totals();
        more
    }

    /// The tables are made large enough for `blocks` blocks in all, step by step.
    pub(super) fn expect(&mut self, blocks: usize) {
        self.expected = blocks;
        self.has_work = true;
    }
}

/// What the name that an event looks up first leads to, as far as that was found out ahead.
#[derive(Clone, Copy, Default)]
pub(super) enum Asked {
    #[default]
    Nothing,
    /// The name's hash.
    Entry(u64, Use),
    Run(Place, Use),
}

/// What for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Store,
    Removal,
}

/// What an event needs, asked for ahead.
impl Ledger {
    #[inline(always)]
    pub(super) fn ask_for_entry(&self, event: &Event) -> Asked {
        match event {
            Event::Stored(stored) => {
                // Where the first new name will go. The rest of a chain is asked for while it is stored.
                if let Some(block) = stored.blocks.first() {
                    self.tree.ask_for_entry(block.engine.0);
                }
                let entry = |parent: EngineHash| Asked::Entry(self.tree.ask_for_entry(parent.0), Use::Store);
                stored.parent.map_or(Asked::Nothing, entry)
            }
            Event::Removed(removed) => {
                let entry = |name: &EngineHash| Asked::Entry(self.tree.ask_for_entry(name.0), Use::Removal);
                removed.hashes.first().map_or(Asked::Nothing, entry)
            }
            Event::Cleared(_) => Asked::Nothing,
        }
    }

    /// Finds out which run the name's entry names, and asks for it.
    #[inline(always)]
    pub(super) fn ask_for_run(&self, asked: &mut Asked) {
        if let Asked::Entry(hash, what_for) = *asked {
            let place = self.tree.ask_for_run(hash);
            *asked = place.map_or(Asked::Nothing, |place| Asked::Run(place, what_for));
        }
    }

    #[inline(always)]
    pub(super) fn ask_for_block(&self, asked: Asked) {
        if let Asked::Run(place, what_for) = asked {
            self.tree.ask_for_block(place, what_for == Use::Store);
        }
    }
}
