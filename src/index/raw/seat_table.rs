//! Seats: what runs are marked with.
//!
//! A seat stands for one slot in one tier, from the slot's first block there until all its blocks are gone
//! at once (a clear, a new generation, a retirement). Then the slot takes another seat, and the old one stays empty until
//! the last mark with it has been swept out of the runs. That is what makes a clear of ten million
//! blocks a matter of one store.

use std::{
    array,
    sync::atomic::Ordering::{Acquire, Relaxed, Release},
};

use super::{
    rows::Rows,
    sync::{AtomicU32, AtomicU64},
};
use crate::slot::Slot;

/// Seats a tier can have: the last number means none.
pub(in crate::index) const SEATS: u32 = if cfg!(loom) { 64 } else { 65_535 };
/// No seat.
pub(in crate::index) const NO_SEAT: u32 = 65_535;
/// Seats in a row of the table; rows are made when first used.
const ROW: usize = if cfg!(loom) { 64 } else { 1_024 };
const ROWS: usize = 64;
/// Words of 64 seats in a row.
const WORDS: usize = ROW / 64;

/// The seats of one tier of one shard.
pub(in crate::index) struct SeatTable {
    rows: Rows<Row>,
}

struct Row {
    /// By seat: the slot's index | its generation << 32.
    tenants: [AtomicU64; ROW],
    /// By the number of a slot in its shard: its seat.
    seats: [AtomicU32; ROW],
    /// By seat, a bit each: whether it counts.
    live: [AtomicU64; WORDS],
    /// By seat, a bit each: whether its number is another than its slot's.
    moved: [AtomicU64; WORDS],
}

impl SeatTable {
    pub(in crate::index) fn new() -> Self {
        Self { rows: Rows::new(ROWS) }
    }

    fn row(&self, number: u32) -> (&Row, usize) {
        let fresh = || Row {
            tenants: array::from_fn(|_| AtomicU64::new(0)),
            seats: array::from_fn(|_| AtomicU32::new(NO_SEAT)),
            live: array::from_fn(|_| AtomicU64::new(0)),
            moved: array::from_fn(|_| AtomicU64::new(0)),
        };
        (self.rows.get_or_make(number as usize / ROW, fresh), number as usize % ROW)
    }

    /// Gives `seat` to a slot, the `number`th of its shard.
    pub(in crate::index) fn take(&self, number: u32, seat: u32, slot: Slot) {
        let (row, at) = self.row(seat);
        row.tenants[at].store(u64::from(slot.generation) << 32 | u64::from(slot.index), Relaxed);
        let bit = 1 << (at % 64);
        let moved = row.moved[at / 64].load(Relaxed);
        row.moved[at / 64].store(if seat == number { moved & !bit } else { moved | bit }, Relaxed);
        let live = row.live[at / 64].load(Relaxed);
        // Release: pairs with the Acquire in `live`; whoever sees the bit sees the tenant.
        row.live[at / 64].store(live | bit, Release);
        let (row, at) = self.row(number);
        // Release: pairs with the Acquire in `seat_of`.
        row.seats[at].store(seat, Release);
    }

    /// From now on nothing counts that is marked with `seat`.
    pub(in crate::index) fn leave(&self, number: u32, seat: u32) {
        let (row, at) = self.row(seat);
        let live = row.live[at / 64].load(Relaxed);
        // Relaxed: readers compare the shard's count of endings, which is raised after this; see `Shared::end`.
        row.live[at / 64].store(live & !(1 << (at % 64)), Relaxed);
        let (row, at) = self.row(number);
        row.seats[at].store(NO_SEAT, Relaxed);
    }

    /// Which of the 64 seats from `64 * word` on count.
    #[inline(always)]
    pub(in crate::index) fn live(&self, word: u32) -> u64 {
        // Acquire: pairs with the Release in `take`.
        self.rows.get(word as usize / WORDS).map_or(0, |row| row.live[word as usize % WORDS].load(Acquire))
    }

    /// Whether a seat counts, and if so, whether its number is another than its slot's.
    #[inline(always)]
    pub(in crate::index) fn standing(&self, seat: u32) -> Option<bool> {
        let row = self.rows.get(seat as usize / ROW)?;
        let (word, bit) = (seat as usize % ROW / 64, seat % 64);
        // Acquire: pairs with the Release in `take`.
        let is_live = row.live[word].load(Acquire) >> bit & 1 == 1;
        is_live.then(|| row.moved[word].load(Relaxed) >> bit & 1 == 1)
    }

    pub(in crate::index) fn is_live(&self, seat: u32) -> bool {
        self.live(seat / 64) >> (seat % 64) & 1 == 1
    }

    /// The tenants of the 64 seats from `64 * word` on.
    #[inline(always)]
    pub(in crate::index) fn tenants(&self, word: u32) -> &[AtomicU64] {
        let row = self.rows.get(word as usize / WORDS);
        row.map_or(&[], |row| &row.tenants[word as usize % WORDS * 64..][..64])
    }

    /// Which of the 64 seats from `64 * word` on have another number than their slot.
    #[inline(always)]
    pub(in crate::index) fn moved(&self, word: u32) -> u64 {
        self.rows.get(word as usize / WORDS).map_or(0, |row| row.moved[word as usize % WORDS].load(Relaxed))
    }

    /// The slot that a live seat stands for.
    pub(in crate::index) fn tenant(&self, seat: u32) -> Slot {
        let packed = self.tenants(seat / 64).get(seat as usize % 64).map_or(0, |tenant| tenant.load(Relaxed));
        slot(packed)
    }

    /// The seat of the `number`th slot of the shard.
    pub(in crate::index) fn seat_of(&self, number: u32) -> u32 {
        let row = self.rows.get(number as usize / ROW);
        // Acquire: pairs with the Release in `take`.
        row.map_or(NO_SEAT, |row| row.seats[number as usize % ROW].load(Acquire))
    }
}

/// The slot that a tenant's word names.
#[inline(always)]
pub(in crate::index) fn slot(tenant: u64) -> Slot {
    Slot { index: tenant as u32, generation: (tenant >> 32) as u32 }
}
