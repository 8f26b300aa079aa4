//! Blocks, or copies of blocks, that are gone.

use super::Ledger;
use crate::{
    event::{EngineHash, Removed, Tier},
    index::{Applied, raw::NO_SEAT, tree::AHEAD},
};

impl Ledger {
    pub(super) fn remove(&mut self, number: u32, removed: &Removed, applied: &mut Applied) {
        let names = &removed.hashes[..];
        if names.len() > 1 {
            names.iter().take(AHEAD[0]).for_each(|name| self.tree.ask_for_entry(name.0));
        }
        let before = applied.removed;
        let copies = removed.remaining_copies.as_deref();
        let remaining = |at: usize| copies.and_then(|copies| copies.get(at).copied());
        if self.pending.len() > 0 || !self.holders[number as usize].oddities.has_no_names() {
            for (at, &name) in names.iter().enumerate() {
                self.look_ahead(names, at);
                self.remove_one(number, name, removed.tier, remaining(at), applied);
            }
            return;
        }
        let mut at = 0;
        while at < names.len() {
            self.look_ahead(names, at);
            // Where copies are counted, each name is a case of its own.
            let names = if copies.is_some() { &names[at..=at] } else { &names[at..] };
            at += self.remove_regular(number, names, removed.tier, remaining(at), applied);
        }
        self.count(number, removed.tier, -i64::from(applied.removed - before));
    }

    #[inline(always)]
    fn look_ahead(&self, names: &[EngineHash], at: usize) {
        if let Some(name) = names.get(at + AHEAD[0]) {
            self.tree.ask_for_entry(name.0);
        }
        if let Some(name) = names.get(at + AHEAD[1]) {
            self.tree.ask_for_run(name.0);
        }
        if let Some(name) = names.get(at + AHEAD[2]) {
            self.tree.ask_for_block(name.0);
        }
    }

    /// A copy less of the first of some blocks of a slot without odd names, while nothing waits; and of those after it too, as
    /// far as they are the blocks before it, from the end of a run on, which is how engines evict. How many. Whoever calls
    /// counts what is removed.
    #[inline(always)]
    fn remove_regular(
        &mut self,
        number: u32,
        names: &[EngineHash],
        tier: Tier,
        remaining: Option<u32>,
        applied: &mut Applied,
    ) -> usize {
        let holder = &self.holders[number as usize];
        let seat = holder.seats[tier.index()];
        let held = |place: &_| seat != NO_SEAT && self.tree.holds(tier.index(), seat, *place);
        let Some(place) = self.tree.named(names[0].0).filter(held) else {
            applied.unknown += 1;
            return 1;
        };
        if tier == Tier::Gpu && holder.oddities.is_empty() && remaining.unwrap_or(0) == 0 {
            let released = self.tree.release_last(seat, place, names);
            if released > 0 {
                applied.removed += released as u32;
                return released;
            }
        }
        let oddities = &mut self.holders[number as usize].oddities;
        let spare = oddities.spare(place, tier);
        match remaining.unwrap_or(spare) {
            0 => {
                if spare > 0 {
                    oddities.set_spare(place, tier, 0);
                }
                self.tree.release(tier.index(), seat, place);
                applied.removed += 1;
            }
            left => {
                oddities.set_spare(place, tier, left - 1);
                applied.kept += 1;
            }
        }
        1
    }

    fn remove_one(
        &mut self,
        number: u32,
        name: EngineHash,
        tier: Tier,
        remaining: Option<u32>,
        applied: &mut Applied,
    ) {
        let held = self.copies(number, name, tier);
        let left = remaining.unwrap_or(held.saturating_sub(1));
        match (held, left) {
            (0, _) => applied.unknown += 1,
            (_, 0) => applied.removed += 1,
            (_, _) => applied.kept += 1,
        }
        // An engine that counts copies of a block we never saw does not make it ours.
        if held > 0 {
            self.set_copies(number, name, tier, left);
            self.settle(applied);
        }
    }
}
