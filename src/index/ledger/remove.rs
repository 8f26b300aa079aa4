//! Blocks, or copies of blocks, that are gone.

use super::Ledger;
use crate::{
    event::{EngineHash, Removed, Tier},
    index::{
        Applied,
        raw::{GPU, NO_SEAT},
        tree::{AHEAD, Place},
    },
};

impl Ledger {
    /// Removes block by block.
    pub(super) fn remove(&mut self, number: u32, removed: &Removed, applied: &mut Applied) {
        for (at, &name) in removed.hashes.iter().enumerate() {
            self.look_ahead(&removed.hashes, at);
            let remaining = removed.remaining_copies.as_ref().and_then(|copies| copies.get(at).copied());
            self.remove_one(number, name, removed.tier, remaining, applied);
        }
    }

    /// Removes blocks of a slot without odd names, while nothing waits.
    #[inline(always)]
    pub(super) fn remove_plain(&mut self, number: u32, removed: &Removed) -> Applied {
        let (names, tier) = (&removed.hashes[..], removed.tier);
        if names.len() > 1 {
            for name in names.iter().take(AHEAD[0]) {
                self.tree.ask_for_entry(name.0);
            }
        }
        let copies = removed.remaining_copies.as_deref();
        let (mut gone, mut kept, mut at) = (0, 0, 0);
        while at < names.len() {
            self.look_ahead(names, at);
            // Where copies are counted, each name is a case of its own.
            if copies.is_none() && tier == Tier::Gpu {
                let released = self.remove_chain(number, &names[at..]);
                if released > 0 {
                    gone += released as u32;
                    at += released;
                    continue;
                }
            }
            let remaining = copies.and_then(|copies| copies.get(at).copied());
            match self.remove_regular(number, names[at], tier, remaining) {
                Some(0) => gone += 1,
                Some(_) => kept += 1,
                None => {}
            }
            at += 1;
        }
        if gone > 0 {
            self.count(number, tier, -i64::from(gone));
        }
        let unknown = names.len() as u32 - gone - kept;
        Applied { removed: gone, kept, unknown, ..Applied::default() }
    }

    /// Removes the first of some blocks, and those after it as far as they are the ones before it, from the end of a run on,
    /// which is how engines evict; how many. 0 if it is another case.
    #[inline(always)]
    fn remove_chain(&mut self, number: u32, names: &[EngineHash]) -> usize {
        let holder = &self.holders[number as usize];
        let (seat, likely) = (holder.seats[GPU], holder.next_to_go);
        if seat == NO_SEAT || !holder.oddities.is_empty() {
            return 0;
        }
        let place = match self.tree.ends_with(likely, names[0].0) {
            true => likely,
            false => match self.tree.named(names[0].0) {
                Some(place) => place,
                None => return 0,
            },
        };
        let released = self.tree.release_last(seat, place, names);
        if released > 0 {
            let offset = place.offset - released as u32;
            self.holders[number as usize].next_to_go = Place { run: place.run, offset };
        }
        released
    }

    #[inline(always)]
    fn look_ahead(&self, names: &[EngineHash], at: usize) {
        if let Some(name) = names.get(at + AHEAD[0]) {
            self.tree.ask_for_entry(name.0);
        }
        if let Some(name) = names.get(at + AHEAD[1]) {
            self.tree.ask_for_run_of(name.0);
        }
        if let Some(name) = names.get(at + AHEAD[2]) {
            self.tree.ask_for_block_of(name.0);
        }
    }

    /// A copy less of a block; how many are left, or `None` if there were none. Whoever calls counts what is removed.
    fn remove_regular(
        &mut self,
        number: u32,
        name: EngineHash,
        tier: Tier,
        remaining: Option<u32>,
    ) -> Option<u32> {
        let holder = &mut self.holders[number as usize];
        let seat = holder.seats[tier.index()];
        let held = |place: &_| seat != NO_SEAT && self.tree.holds(tier.index(), seat, *place);
        let place = self.tree.named(name.0).filter(held)?;
        let spare = holder.oddities.spare(place, tier);
        let left = remaining.unwrap_or(spare);
        if left > 0 || spare > 0 {
            holder.oddities.set_spare(place, tier, left.saturating_sub(1));
        }
        if left == 0 {
            self.tree.release(tier.index(), seat, place);
        }
        Some(left)
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
