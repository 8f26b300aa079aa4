//! Blocks, or copies of blocks, that are gone.

use super::Ledger;
use crate::{
    event::{EngineHash, Removed, Tier},
    index::{Applied, raw::NO_SEAT},
};

/// How many names ahead the entry, the run and the words of a block are asked for.
const AHEAD: [usize; 3] = [24, 14, 7];

impl Ledger {
    pub(super) fn remove(&mut self, number: u32, removed: &Removed, applied: &mut Applied) {
        let simple = self.pending.len() == 0 && self.holders[number as usize].oddities.has_no_names();
        if removed.hashes.len() > 1 {
            removed.hashes.iter().take(AHEAD[0]).for_each(|name| self.tree.ask_for_entry(name.0));
        }
        let before = applied.removed;
        for (at, &name) in removed.hashes.iter().enumerate() {
            self.look_ahead(&removed.hashes, at);
            let remaining = removed.remaining_copies.as_ref().and_then(|copies| copies.get(at).copied());
            if simple {
                self.remove_regular(number, name, removed.tier, remaining, applied);
            } else {
                self.remove_one(number, name, removed.tier, remaining, applied);
            }
        }
        if simple {
            self.count(number, removed.tier, -i64::from(applied.removed - before));
        }
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

    /// A copy less of a block of a slot without odd names, while nothing waits. Whoever calls counts what is removed.
    #[inline(always)]
    fn remove_regular(
        &mut self,
        number: u32,
        name: EngineHash,
        tier: Tier,
        remaining: Option<u32>,
        applied: &mut Applied,
    ) {
        let seat = self.holders[number as usize].seats[tier.index()];
        let held = |place: &_| seat != NO_SEAT && self.tree.holds(tier.index(), seat, *place);
        let Some(place) = self.tree.named(name.0).filter(held) else {
            applied.unknown += 1;
            return;
        };
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
