//! Where stored blocks go, at once or later.

use std::collections::BTreeSet;

use super::{Reference, holdings::Block, tree::PlaceId};
use crate::{
    event::{EngineHash, Stored, StoredBlock, Tier},
    hash::BlockHash,
    index::{Applied, copies::Copies, pending::Waiter},
    slot::Slot,
};

impl Reference {
    pub(super) fn store(&mut self, slot: Slot, stored: &Stored, applied: &mut Applied) {
        let mut parent = stored.parent;
        for block in &stored.blocks {
            self.store_block(slot, stored.tier, parent, *block, applied);
            // Lets waiting blocks catch up now: a store of many blocks equals many stores of one.
            self.settle(applied);
            parent = Some(block.engine);
        }
    }

    fn store_block(
        &mut self,
        slot: Slot,
        tier: Tier,
        parent: Option<EngineHash>,
        block: StoredBlock,
        applied: &mut Applied,
    ) {
        let name = block.engine;
        match block.content {
            Some(content) => match self.place_of(slot, parent, name, content) {
                Ok(place) => self.put_one(slot, name, place, tier, applied),
                Err(parent) => self.wait(slot, name, Some((parent, content)), tier, applied),
            },
            // A name that itself waits is not looked up elsewhere: it will know its place from its parent.
            None if self.pending.get(slot, name).is_some() => self.wait(slot, name, None, tier, applied),
            None => match self.known(slot, name) {
                Some(place) => self.put_one(slot, name, place, tier, applied),
                None => self.wait(slot, name, None, tier, applied),
            },
        }
    }

    /// The place of a block with content, made if need be; the parent's name if that is not known.
    fn place_of(
        &mut self,
        slot: Slot,
        parent: Option<EngineHash>,
        name: EngineHash,
        content: BlockHash,
    ) -> Result<PlaceId, EngineHash> {
        let Some(parent) = parent else { return Ok(self.tree.grow(PlaceId::ROOT, content)) };
        if let Some(place) = self.known(slot, parent) {
            return Ok(self.tree.grow(place, content));
        }
        let again = self.own(slot, name).map(|block| block.place);
        again.filter(|&place| self.tree.content(place) == content).ok_or(parent)
    }

    /// One more copy of a block whose place is known.
    fn put_one(&mut self, slot: Slot, name: EngineHash, place: PlaceId, tier: Tier, applied: &mut Applied) {
        let before = self.own(slot, name).filter(|block| block.place == place);
        if before.is_some_and(|block| block.copies.of(tier) > 0) {
            applied.already += 1;
        } else {
            applied.stored += 1;
        }
        let mut copies = Copies::one(tier);
        if let Some(waiting) = self.pending.take(slot, name) {
            if waiting.may_be(self.tree.content(place)) {
                copies.add(waiting.copies);
                applied.attached += 1;
            } else {
                applied.moved += 1;
            }
        }
        self.put(slot, name, place, copies, applied);
    }

    /// Adds copies of a block at `place`, and leaves the place that `name` had before if that is another.
    fn put(&mut self, slot: Slot, name: EngineHash, place: PlaceId, copies: Copies, applied: &mut Applied) {
        let Some(holdings) = self.slots.get_mut(&slot.index) else { return };
        let before = holdings.blocks.get(&name).copied();
        let here = before.filter(|block| block.place == place);
        let mut block = here.unwrap_or(Block { place, copies: Copies::default() });
        for tier in copies.tiers().filter(|&tier| block.copies.of(tier) == 0) {
            self.tree.hold(slot, place, tier);
            holdings.counts[tier.index()] += 1;
            self.counts[tier.index()] += 1;
        }
        block.copies.add(copies);
        holdings.blocks.insert(name, block);
        if here.is_some() {
            return;
        }
        self.names.add(name, place);
        self.changed.push(name);
        // Only now, when the new place is held: it may lie below the old one.
        if let Some(elsewhere) = before {
            self.leave(slot, name, elsewhere);
            applied.moved += 1;
        }
    }

    /// `slot` no longer holds, in any tier, a block that is out of its holdings.
    fn leave(&mut self, slot: Slot, name: EngineHash, block: Block) {
        self.names.remove(name, block.place);
        self.changed.push(name);
        for tier in block.copies.tiers() {
            if let Some(holdings) = self.slots.get_mut(&slot.index) {
                holdings.counts[tier.index()] -= 1;
            }
            self.counts[tier.index()] -= 1;
            self.tree.release(slot, block.place, tier);
        }
    }

    /// One more copy of a block whose place is not known.
    fn wait(
        &mut self,
        slot: Slot,
        name: EngineHash,
        below: Option<(EngineHash, BlockHash)>,
        tier: Tier,
        applied: &mut Applied,
    ) {
        applied.pending += 1;
        // A placed name gets here only with other content: its block is gone, wherever the new one may lie.
        let placed = self.slots.get_mut(&slot.index).and_then(|holdings| holdings.blocks.remove(&name));
        if let Some(elsewhere) = placed {
            self.leave(slot, name, elsewhere);
            applied.moved += 1;
        }
        self.dropped += self.pending.add(slot, name, below, (tier, self.pending_limit), applied);
    }

    /// Gives a place to every waiting block whose awaited name is known by now, the oldest first: each one may
    /// make further names known.
    pub(super) fn settle(&mut self, applied: &mut Applied) {
        let mut woken: BTreeSet<Waiter> = BTreeSet::new();
        loop {
            for name in self.changed.drain(..) {
                woken.extend(self.pending.awaits(name));
            }
            let Some(Waiter { slot, name, .. }) = woken.pop_first() else { return };
            let Some(&waiting) = self.pending.get(slot, name) else { continue };
            let place = match waiting.below {
                None => self.known(slot, name),
                Some((parent, content)) => {
                    self.known(slot, parent).map(|parent| self.tree.grow(parent, content))
                }
            };
            if let Some(place) = place {
                self.pending.take(slot, name);
                self.put(slot, name, place, waiting.copies, applied);
                applied.attached += 1;
            }
        }
    }
}
