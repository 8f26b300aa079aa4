//! The two forms of an answer.

use std::sync::atomic::Ordering::Relaxed;

use super::{
    paint::{ones, paint},
    seat_table::{SeatTable, slot},
    shared::Shared,
    walk::{Path, Sink},
};
use crate::index::overlap::Answer;

/// Stretches of ones: where each begins, and how many they are.
#[inline(always)]
fn stretches(mut bits: u64) -> impl Iterator<Item = (u32, u32)> {
    std::iter::from_fn(move || {
        if bits == 0 {
            return None;
        }
        let start = bits.trailing_zeros();
        let count = (bits >> start).trailing_ones();
        bits &= u64::MAX.checked_shl(start + count).unwrap_or(0);
        Some((start, count))
    })
}

/// Level sets of slots.
impl Sink for Answer {
    const IS_DENSE: bool = false;

    #[inline(always)]
    fn seats(&mut self, table: &SeatTable, depth: u32, seats: &[(u32, u64)]) {
        for &(word, bits) in seats {
            let tenants = table.tenants(word);
            if bits == 0 || tenants.is_empty() {
                // No tenants: the words of a piece that was recycled meanwhile. The pass will be dropped.
                continue;
            }
            let start = self.begin_level(depth);
            for (from, count) in stretches(bits) {
                let tenants = &tenants[from as usize..(from + count) as usize];
                self.slots.extend(tenants.iter().map(|tenant| slot(tenant.load(Relaxed))));
            }
            self.end_level(depth, start);
        }
    }

    #[inline(always)]
    fn seat(&mut self, table: &SeatTable, depth: u32, seat: u32, _: bool) {
        let start = self.begin_level(depth);
        self.slots.push(table.tenant(seat));
        self.end_level(depth, start);
    }

    fn extend(&mut self, shared: &Shared, path: &mut Path) {
        shared.extend(path, self);
    }

    fn wind_back(&mut self) {
        self.levels.truncate(self.first_level);
        self.slots.truncate(self.first_slot);
        self.extensions.truncate(self.first_extension);
    }
}

/// GPU depths by slot index, 0 where nothing was found.
pub(in crate::index) struct Depths<'a> {
    pub(in crate::index) depths: &'a mut [u32],
    /// The shard being read, and of how many.
    pub(in crate::index) shard: usize,
    pub(in crate::index) shards: usize,
}

impl Depths<'_> {
    /// A tenant that belongs to another shard was read from a recycled piece, in a pass that will be dropped: what that
    /// shard has answered must not be touched.
    #[inline(always)]
    fn set(&mut self, index: u32, depth: u32) {
        let own = self.shards == 1 || index as usize % self.shards == self.shard;
        if let Some(place) = self.depths.get_mut(index as usize).filter(|_| own) {
            *place = depth;
        }
    }

    #[inline(always)]
    fn set_all(&mut self, table: &SeatTable, depth: u32, seats: &[(u32, u64)]) {
        for &(word, bits) in seats {
            // In an index of one shard a seat nearly always has the number of its slot, which is the slot's index.
            let elsewhere = if self.shards == 1 { table.moved(word) & bits } else { bits };
            let here = bits & !elsewhere;
            let first = word as usize * 64;
            match self.depths.get_mut(first..).and_then(|places| places.first_chunk_mut()) {
                Some(places) if here & here.wrapping_sub(1) != 0 => paint(places, here, depth),
                _ => ones(here).for_each(|one| {
                    if let Some(place) = self.depths.get_mut(first + one as usize) {
                        *place = depth;
                    }
                }),
            }
            for one in ones(elsewhere) {
                self.set(table.tenant(word * 64 + one).index, depth);
            }
        }
    }

    /// As [`Self::set_all`].
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    #[target_feature(enable = "avx2,bmi1")]
    fn set_all_with_avx2(&mut self, table: &SeatTable, depth: u32, seats: &[(u32, u64)]) {
        self.set_all(table, depth, seats);
    }
}

impl Sink for Depths<'_> {
    const IS_DENSE: bool = true;

    #[inline(always)]
    fn seats(&mut self, table: &SeatTable, depth: u32, seats: &[(u32, u64)]) {
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        if seats.len() > 1 && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1") {
            // SAFETY: the processor has what the function was compiled for.
            return unsafe { self.set_all_with_avx2(table, depth, seats) };
        }
        self.set_all(table, depth, seats);
    }

    #[inline(always)]
    fn seat(&mut self, table: &SeatTable, depth: u32, seat: u32, moved: bool) {
        let elsewhere = moved || self.shards > 1;
        self.set(if elsewhere { table.tenant(seat).index } else { seat }, depth);
    }

    fn extend(&mut self, _: &Shared, _: &mut Path) {}

    fn wind_back(&mut self) {
        self.depths.iter_mut().skip(self.shard).step_by(self.shards).for_each(|depth| *depth = 0);
    }
}
