//! One shard, as its readers and its writer share it.

use std::{
    array,
    sync::atomic::{
        AtomicU32, AtomicU64 as Gauge,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use crossbeam_utils::CachePadded;

use super::{
    arena::Arena,
    child_table::{ChildTable, Found},
    name_table::Names,
    prefetch,
    rows::Rows,
    run::{Runs, halves},
    seat_table::SeatTable,
    sync::{AtomicU64, fence},
};
use crate::{index::Totals, slot::Slot};

/// Plane of the blocks' contents.
pub(in crate::index) const CONTENT: usize = 0;
/// Plane of the blocks' names; the writer's.
pub(in crate::index) const NAME: usize = 1;

/// Half a billion blocks, for whose index the child table has no more bits, 16 million runs, and as many words of marks as
/// of contents.
const BLOCK_CHUNKS: usize = if cfg!(loom) { 1 } else { 1 << 14 };
const MARK_CHUNKS: usize = if cfg!(loom) { 1 } else { 1 << 12 };
/// 2^24 runs: the name table and the child table have no more bits for a run's number.
const RUN_CHUNKS: usize = if cfg!(loom) { 1 } else { 1 << 14 };
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

pub(in crate::index) struct Shared {
    pub(in crate::index) runs: Runs,
    pub(in crate::index) blocks: Arena<2>,
    pub(in crate::index) marks: Arena<1>,
    pub(in crate::index) children: ChildTable,
    /// By tier.
    pub(in crate::index) seats: [SeatTable; 4],
    /// Goes up by two each time that seats are left, and is odd meanwhile. A lookup during which it changed starts over.
    endings: AtomicU64,
    /// 1 once anything was marked in a slower tier: from then on lookups follow a prompt beyond what GPUs hold.
    slower: AtomicU64,
    /// Makes which chains collide in the child table unpredictable.
    key: u64,
    /// Shards of the index: a slot is the `index / shards`th of its shard.
    shards: u32,
    counts: Rows<[SlotCounts; ROW]>,
    /// In lines of their own: the writer changes them all the time, and lookups read what is around.
    pub(in crate::index) totals: CachePadded<Counts>,
}

/// What the shard holds in all. Gauges order nothing: Relaxed throughout, and none of the model checker's business.
#[derive(Default)]
pub(in crate::index) struct Counts {
    pub(in crate::index) places: Gauge,
    pub(in crate::index) blocks: [Gauge; 4],
    pub(in crate::index) pending: Gauge,
    pub(in crate::index) dropped: Gauge,
    pub(in crate::index) bytes: Gauge,
}

/// What one slot holds.
struct SlotCounts {
    generation: AtomicU32,
    blocks: [Gauge; 4],
}

/// Slots whose counts are made together.
const ROW: usize = 64;

/// Mixes two words into one whose every bit depends on both.
#[inline(always)]
pub(in crate::index) fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

impl Shared {
    pub(in crate::index) fn new(shards: u32, key: u64) -> Self {
        let rows = super::SEATS as usize / ROW + 1;
        Self {
            runs: Runs::new(RUN_CHUNKS),
            blocks: Arena::new(BLOCK_CHUNKS),
            marks: Arena::new(MARK_CHUNKS),
            children: ChildTable::new(),
            seats: array::from_fn(|_| SeatTable::new()),
            endings: AtomicU64::new(0),
            slower: AtomicU64::new(0),
            // The model checker repeats itself exactly or not at all.
            key: if cfg!(loom) { 0 } else { key },
            shards,
            counts: Rows::new(rows),
            totals: CachePadded::default(),
        }
    }

    /// The slot's number in its shard.
    #[inline(always)]
    pub(in crate::index) fn number(&self, slot: Slot) -> u32 {
        // A division takes longer than the branch that nearly always spares it.
        if self.shards == 1 { slot.index } else { slot.index / self.shards }
    }

    /// Where the child table looks for what goes on at `offset` of `parent` with `content`. It only places entries: what
    /// is found is verified, so a collision costs time and nothing else.
    #[inline(always)]
    pub(in crate::index) fn child_hash(&self, parent: u32, offset: u32, content: u64) -> u64 {
        let link = u64::from(parent) << 32 | u64::from(offset);
        fold(content ^ self.key, link ^ self.key.rotate_left(32) ^ MULTIPLIER)
    }

    /// Where the child table looks for a run that exists; the writer's.
    pub(in crate::index) fn hash_of(&self, run: u32) -> u64 {
        let run = self.runs.get(run);
        let (parent, offset) = halves(run.link.load(Relaxed));
        self.child_hash(parent, offset, run.first.load(Relaxed))
    }

    /// The run that goes on at `offset` of `parent` with `content`; the writer's.
    pub(in crate::index) fn child(&self, parent: u32, offset: u32, content: u64) -> Option<u32> {
        let link = u64::from(parent) << 32 | u64::from(offset);
        let found = self.children.find(self.child_hash(parent, offset, content), |run| {
            let run = self.runs.get(run);
            run.first.load(Relaxed) == content && run.link.load(Relaxed) == link
        });
        match found {
            Found::Run(run) => Some(run),
            Found::Absent | Found::Unsure => None,
        }
    }

    /// Before a lookup. Acquire: pairs with the Release in `end`.
    #[inline(always)]
    pub(in crate::index) fn endings(&self) -> u64 {
        self.endings.load(Acquire)
    }

    /// From now on nothing counts that is marked with these seats, each of a tier, of the `number`th slot. Lookups see all of
    /// them left or none.
    pub(in crate::index) fn end(&self, number: u32, seats: impl Iterator<Item = (usize, u32)>) {
        let endings = self.endings.load(Relaxed);
        self.endings.store(endings + 1, Relaxed);
        // A lookup that sees a seat left, or anything that is swept later, sees at its end that endings have changed: pairs
        // with its Acquire fence.
        fence(Release);
        seats.for_each(|(tier, seat)| self.seats[tier].leave(number, seat));
        // Release: whoever starts a lookup with the new count sees the seats left.
        self.endings.store(endings + 2, Release);
    }

    /// A slot begins, holding nothing.
    pub(in crate::index) fn note_slot(&self, slot: Slot) {
        let number = self.number(slot) as usize;
        let empty = |_| SlotCounts { generation: AtomicU32::new(0), blocks: Default::default() };
        let counts = &self.counts.get_or_make(number / ROW, || array::from_fn(empty))[number % ROW];
        counts.blocks.iter().for_each(|count| count.store(0, Relaxed));
        counts.generation.store(slot.generation, Relaxed);
    }

    /// The `number`th slot of the shard, which was noted, holds so many blocks more, or fewer, in a tier.
    #[inline(always)]
    pub(in crate::index) fn count(&self, number: u32, tier: usize, blocks: i64) {
        if let Some(row) = self.counts.get(number as usize / ROW) {
            let count = &row[number as usize % ROW].blocks[tier];
            count.store(count.load(Relaxed).wrapping_add_signed(blocks), Relaxed);
        }
    }

    /// The `number`th slot of the shard holds no blocks in a tier any more; how many there were.
    pub(in crate::index) fn take_count(&self, number: u32, tier: usize) -> u64 {
        let row = self.counts.get(number as usize / ROW);
        row.map_or(0, |row| row[number as usize % ROW].blocks[tier].swap(0, Relaxed))
    }

    /// What a slot holds, as last noted; zeros if that was another generation.
    pub(in crate::index) fn noted(&self, slot: Slot) -> [u64; 4] {
        let number = self.number(slot) as usize;
        let row = self.counts.get(number / ROW);
        let counts = row.map(|row| &row[number % ROW]);
        let current = counts.filter(|counts| counts.generation.load(Relaxed) == slot.generation);
        current.map_or([0; 4], |counts| counts.blocks.each_ref().map(|count| count.load(Relaxed)))
    }

    /// Whether anything was ever marked in a slower tier. Acquire, but a lookup also compares it at its end.
    #[inline(always)]
    pub(in crate::index) fn slower(&self) -> u64 {
        self.slower.load(Acquire)
    }

    /// Before the first mark in a slower tier is made. The window that makes it has a Release fence after this, so a
    /// lookup that saw the mark, or anything later, sees this at its end.
    pub(in crate::index) fn note_slower(&self) {
        self.slower.store(1, Relaxed);
    }

    pub(in crate::index) fn add_totals(&self, totals: &mut Totals) {
        totals.places += self.totals.places.load(Relaxed);
        totals.pending += self.totals.pending.load(Relaxed);
        totals.dropped += self.totals.dropped.load(Relaxed);
        totals.bytes += self.totals.bytes.load(Relaxed);
        for (total, count) in totals.blocks.iter_mut().zip(&self.totals.blocks) {
            *total += count.load(Relaxed);
        }
    }
}

impl Names for Shared {
    #[inline(always)]
    fn name(&self, run: u32, offset: u32) -> u64 {
        self.blocks.word(NAME, self.runs.get(run).extent().0 + offset).load(Relaxed)
    }

    #[inline(always)]
    fn prefetch_name(&self, run: u32, offset: u32) {
        prefetch(self.blocks.words(NAME, self.runs.get(run).extent().0 + offset));
    }
}
