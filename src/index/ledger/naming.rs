//! Which block a name means, and blocks one by one, by their names.

use super::{Ledger, OddName, holder::Block};
use crate::{
    event::{EngineHash, Tier},
    index::{
        Applied,
        copies::Copies,
        raw::{Interval, NO_SEAT},
        tree::Place,
    },
    slot::Slot,
};

impl Ledger {
    /// The block that a slot itself calls `name`.
    pub(super) fn own(&self, number: u32, name: EngineHash) -> Option<Block> {
        if let Some(block) = self.holders[number as usize].oddities.block(name) {
            return Some(block);
        }
        let place = self.tree.named(name.0)?;
        let copies = self.regular_copies(number, place);
        (!copies.is_empty()).then_some(Block { place, copies })
    }

    /// Copies of a block that a slot holds as a regular one.
    pub(super) fn regular_copies(&self, number: u32, place: Place) -> Copies {
        let holder = &self.holders[number as usize];
        let mut copies = Copies::default();
        if !holder.oddities.names(place).is_empty() || self.tree.is_unmapped(place) {
            return copies;
        }
        for tier in Tier::ALL {
            let seat = holder.seats[tier.index()];
            if seat != NO_SEAT && self.tree.holds(tier.index(), seat, place) {
                copies.set(tier, holder.oddities.spare(place, tier).saturating_add(1));
            }
        }
        copies
    }

    /// Where `name` leads, said by a slot: its own block, or the one that all others agree on.
    pub(super) fn known(&self, number: u32, name: EngineHash) -> Option<Place> {
        if let Some(block) = self.own(number, name) {
            return Some(block.place);
        }
        let mut known = self.tree.named(name.0).filter(|&place| self.is_regular(place, None));
        for odd in self.odd.get(&name).into_iter().flatten().filter(|odd| self.is_current(odd)) {
            if known.is_some_and(|place| place != odd.place) {
                return None;
            }
            known = Some(odd.place);
        }
        known
    }

    /// Whether some slot, other than the `besides`th, holds a block as a regular one.
    fn is_regular(&self, place: Place, besides: Option<u32>) -> bool {
        let shared = &self.tree.shared;
        self.tree.is_held(place, |tier, seat| {
            if !shared.seats[tier].is_live(seat) {
                return false;
            }
            let number = shared.number(shared.seats[tier].tenant(seat));
            Some(number) != besides && self.holders[number as usize].oddities.names(place).is_empty()
        })
    }

    fn is_current(&self, odd: &OddName) -> bool {
        self.holders[odd.number as usize].serial == odd.serial
    }

    /// Adds copies of a block at `place`, which exists, and leaves the place that `name` had before if that is another.
    /// Does nothing, and says `false`, if there is no room.
    pub(super) fn put(
        &mut self,
        number: u32,
        name: EngineHash,
        place: Place,
        copies: Copies,
        applied: &mut Applied,
    ) -> bool {
        if !self.has_room(number, place.run, copies) {
            return false;
        }
        let before = self.own(number, name);
        let here = before.filter(|block| block.place == place);
        if here.is_none() {
            self.make_odd(number, place);
        }
        let held = here.map_or_else(Copies::default, |block| block.copies);
        self.hold(number, place, copies, held);
        let mut sum = held;
        sum.add(copies);
        if here.is_some() {
            self.set_block(number, name, Block { place, copies: sum });
            return true;
        }
        if let Some(block) = before {
            self.forget(number, name, block);
        }
        self.enter(number, name, Block { place, copies: sum });
        // Only now, when the new place is held: it may lie below the old one.
        if let Some(block) = before {
            self.let_go(number, block);
            applied.moved += 1;
        }
        true
    }

    /// Whether a slot can be marked on a run in the tiers of some copies.
    pub(super) fn has_room(&mut self, number: u32, run: u32, copies: Copies) -> bool {
        copies
            .tiers()
            .all(|tier| self.seat(number, tier.index()).is_some() && self.tree.has_room(run, tier.index()))
    }

    /// Marks a block in the tiers in which it has copies now and had none. There is room.
    fn hold(&mut self, number: u32, place: Place, copies: Copies, held: Copies) {
        for tier in copies.tiers().filter(|&tier| held.of(tier) == 0) {
            let seat = self.holders[number as usize].seats[tier.index()];
            let block = Interval { start: place.offset, end: place.offset + 1 };
            self.tree.hold(tier.index(), seat, place.run, block);
            self.count(number, tier, 1);
        }
    }

    /// A name new to the slot is entered: as the regular one if nothing speaks against it.
    fn enter(&mut self, number: u32, name: EngineHash, block: Block) {
        let has_others = !self.holders[number as usize].oddities.names(block.place).is_empty();
        if !has_others && (self.tree.carries(block.place, name.0) || self.adopt(number, block.place, name)) {
            self.set_spare(number, block);
        } else {
            self.enter_odd(number, name, block);
        }
        self.name_changed(name);
    }

    /// Lets a block carry the name that a slot has for it, if no other slot goes by the names in the way.
    fn adopt(&mut self, number: u32, place: Place, name: EngineHash) -> bool {
        if self.is_regular(place, Some(number)) {
            return false;
        }
        if let Some(other) = self.tree.named(name.0) {
            if self.is_regular(other, Some(number)) {
                return false;
            }
            self.tree.unmap(other);
        }
        self.tree.rename(place, name.0)
    }

    /// A block that a slot holds as a regular one, if so, becomes one under an odd name: another name is coming.
    fn make_odd(&mut self, number: u32, place: Place) {
        let copies = self.regular_copies(number, place);
        if copies.is_empty() {
            return;
        }
        for tier in Tier::ALL {
            self.holders[number as usize].oddities.set_spare(place, tier, 0);
        }
        self.enter_odd(number, EngineHash(self.tree.name(place)), Block { place, copies });
    }

    fn enter_odd(&mut self, number: u32, name: EngineHash, block: Block) {
        let holder = &mut self.holders[number as usize];
        let odd = OddName { place: block.place, number, serial: holder.serial };
        holder.oddities.insert(name, block);
        self.odd.get_or_default(name).push(odd);
    }

    /// Takes a name off a slot's account; the marks stay.
    pub(super) fn forget(&mut self, number: u32, name: EngineHash, block: Block) {
        let holder = &mut self.holders[number as usize];
        if holder.oddities.remove(name) {
            let serial = holder.serial;
            self.forget_odd(name, number, serial);
        } else {
            for tier in Tier::ALL {
                holder.oddities.set_spare(block.place, tier, 0);
            }
        }
        self.name_changed(name);
    }

    pub(super) fn forget_odd(&mut self, name: EngineHash, number: u32, serial: u64) {
        if let Some(uses) = self.odd.get_mut(&name) {
            uses.retain(|odd| (odd.number, odd.serial) != (number, serial));
            if uses.is_empty() {
                self.odd.remove(&name);
            }
        }
    }

    /// Takes marks off a block that is off the account, in the tiers in which no other name of the slot holds it.
    pub(super) fn let_go(&mut self, number: u32, block: Block) {
        for tier in block.copies.tiers() {
            self.count(number, tier, -1);
            self.release_unless_named(number, block.place, tier);
        }
    }

    fn release_unless_named(&mut self, number: u32, place: Place, tier: Tier) {
        let holder = &self.holders[number as usize];
        let held_by = |name: &EngineHash| holder.oddities.block(*name).is_some_and(|b| b.copies.of(tier) > 0);
        if !holder.oddities.names(place).iter().any(held_by) {
            let seat = holder.seats[tier.index()];
            self.tree.release(tier.index(), seat, place);
        }
    }

    /// Changes the copies of a block that has some in `tier`, and drops it if that were the last.
    pub(super) fn set_copies(&mut self, number: u32, name: EngineHash, tier: Tier, left: u32) {
        let slot = self.holders[number as usize].slot;
        if let Some(copies) = self.pending.copies_mut(slot, name) {
            copies.set(tier, left);
            if copies.is_empty() {
                self.pending.take(slot, name);
            }
            return;
        }
        let Some(mut block) = self.own(number, name) else { return };
        block.copies.set(tier, left);
        if left > 0 {
            self.set_block(number, name, block);
            return;
        }
        self.count(number, tier, -1);
        if block.copies.is_empty() {
            self.forget(number, name, block);
        } else {
            self.set_block(number, name, block);
        }
        self.release_unless_named(number, block.place, tier);
    }

    /// Writes down the copies of a block that is on the account.
    fn set_block(&mut self, number: u32, name: EngineHash, block: Block) {
        if !self.holders[number as usize].oddities.set(name, block.copies) {
            self.set_spare(number, block);
        }
    }

    fn set_spare(&mut self, number: u32, block: Block) {
        for tier in Tier::ALL {
            let spare = block.copies.of(tier).saturating_sub(1);
            self.holders[number as usize].oddities.set_spare(block.place, tier, spare);
        }
    }

    /// Copies of a block, placed or waiting.
    pub(super) fn copies(&self, number: u32, name: EngineHash, tier: Tier) -> u32 {
        let placed = self.own(number, name).map(|block| block.copies);
        let slot = self.holders[number as usize].slot;
        let copies = placed.or_else(|| self.pending.get(slot, name).map(|waiting| waiting.copies));
        copies.map_or(0, |copies| copies.of(tier))
    }

    /// The same for whoever knows slots only. An incarnation that is not the current one has none.
    pub(in crate::index) fn copies_of(&self, slot: Slot, name: EngineHash, tier: Tier) -> u32 {
        let number = self.tree.shared.number(slot);
        let holder = self.holders.get(number as usize).filter(|holder| holder.is_of(slot));
        holder.map_or(0, |_| self.copies(number, name, tier))
    }

    fn name_changed(&mut self, name: EngineHash) {
        if self.pending.len() > 0 {
            self.changed.push(name);
        }
    }
}
