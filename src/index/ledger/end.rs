//! Everything a slot holds is gone at once, and the work that this leaves is done a little at a time.

use smallvec::SmallVec;

use super::{Ledger, holder::Block};
use crate::{
    event::{EngineHash, Tier},
    index::{Applied, raw::NO_SEAT, split_map, tree::Sweep},
};

/// Work that each event takes over: runs to sweep, and odd names to forget.
const RUNS: u32 = 8;
const NAMES: usize = 64;

/// What is left to do of clears.
#[derive(Default)]
pub(super) struct Endings {
    sweep: Sweep,
    /// Odd names that were used by holdings that have ended.
    odd: Vec<OddNames>,
}

struct OddNames {
    names: split_map::IntoIter<EngineHash, Block>,
    number: u32,
    serial: u64,
}

impl Ledger {
    /// Drops what a slot holds, placed or waiting, in one tier or in all. Lookups see it at once.
    pub(super) fn clear(&mut self, number: u32, tier: Option<Tier>, applied: &mut Applied) {
        let tiers = tier.as_ref().map_or(&Tier::ALL[..], std::slice::from_ref);
        self.clear_waiting(number, tiers, applied);
        match tier {
            Some(tier) => self.clear_odd(number, tier),
            None => self.end_holding(number),
        }
        let holder = &mut self.holders[number as usize];
        let left: SmallVec<[(usize, u32); 4]> = tiers
            .iter()
            .map(|tier| (tier.index(), std::mem::replace(&mut holder.seats[tier.index()], NO_SEAT)))
            .filter(|&(_, seat)| seat != NO_SEAT)
            .collect();
        if !left.is_empty() {
            self.tree.shared.end(number, left.iter().copied());
        }
        self.has_work = true;
        for (tier, seat) in left {
            self.endings.sweep.add(tier, seat);
            let blocks = self.tree.shared.take_count(number, tier);
            self.counts[tier] -= blocks;
            applied.cleared = applied.cleared.saturating_add(u32::try_from(blocks).unwrap_or(u32::MAX));
        }
        // Names on which slots disagreed may lead to one place now, and only the names that are awaited matter.
        if self.pending.len() > 0 {
            self.changed.extend(self.pending.awaited());
        }
        self.settle(applied);
    }

    fn clear_waiting(&mut self, number: u32, tiers: &[Tier], applied: &mut Applied) {
        let slot = self.holders[number as usize].slot;
        if self.pending.len_of(slot) == 0 {
            return;
        }
        for name in self.pending.names_of(slot) {
            for &tier in tiers {
                if self.pending.get(slot, name).is_some_and(|waiting| waiting.copies.of(tier) > 0) {
                    self.set_copies(number, name, tier, 0);
                    applied.cleared += 1;
                }
            }
        }
    }

    /// The whole holding ends: nobody looks at its oddities any more.
    fn end_holding(&mut self, number: u32) {
        let holder = &mut self.holders[number as usize];
        let serial = std::mem::take(&mut holder.serial);
        if let Some(odd) = holder.oddities.take() {
            self.endings.odd.push(OddNames { names: odd.into_iter(), number, serial });
        }
    }

    /// Odd names lose their copies in one tier. Not in steps: clears of one tier among several are rare.
    fn clear_odd(&mut self, number: u32, tier: Tier) {
        let gone = self.holders[number as usize].oddities.clear(tier);
        for (name, block) in gone {
            self.forget(number, name, block);
        }
    }

    /// Does a bounded part of what is left to do.
    #[inline(always)]
    pub(super) fn work_off(&mut self) {
        if self.has_work {
            self.work();
        }
    }

    /// As [`Self::work_off`]; whether there is more to do.
    pub(super) fn work(&mut self) -> bool {
        self.sweep_some(RUNS);
        self.forget_some();
        if self.expected > 0 && !self.tree.grow_names_towards(self.expected) {
            self.expected = 0;
        }
        self.has_work = !self.endings.is_done() || self.expected > 0;
        self.has_work
    }

    fn sweep_some(&mut self, runs: u32) {
        let Some(free) = self.tree.sweep(&mut self.endings.sweep, runs) else { return };
        for (seats, tier) in free.iter().zip(&mut self.free_seats) {
            tier.give_back(seats.seats());
        }
    }

    /// Sweeps until no seat is waiting for it.
    pub(super) fn sweep_all(&mut self) {
        while !self.endings.sweep.is_done() {
            self.sweep_some(u32::MAX);
        }
    }

    fn forget_some(&mut self) {
        let Some(last) = self.endings.odd.last_mut() else { return };
        let (number, serial) = (last.number, last.serial);
        let names: Vec<EngineHash> = last.names.by_ref().take(NAMES).map(|(name, _)| name).collect();
        if names.len() < NAMES {
            self.endings.odd.pop();
        }
        for name in names {
            self.forget_odd(name, number, serial);
        }
    }
}

impl Endings {
    fn is_done(&self) -> bool {
        self.odd.is_empty() && self.sweep.is_done()
    }
}
