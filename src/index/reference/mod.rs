//! The literal index: one shard, exact by construction, meant to be read.
//!
//! Four tables hold the truth and nothing is derived lazily: the [`tree`] of places with their holders, each slot's
//! [`holdings`] by its own names, all [`names`] together, and the blocks that wait (`pending.rs`). Every event
//! keeps them consistent before it returns. Lookups walk the tree block by block.

mod holdings;
mod lookup;
mod names;
mod store;
mod tree;

use ahash::AHashMap;

use self::{
    holdings::{Block, Holdings},
    names::Names,
    tree::{PlaceId, Tree},
};
use super::{Applied, Overlaps, Scratch, Totals, pending::Pending};
use crate::{
    event::{EngineHash, Event, Removed, Tier},
    hash::BlockHash,
    slot::Slot,
};

/// The index without shards, threads or haste, with the same face as the real one.
#[derive(Debug)]
pub struct Reference {
    tree: Tree,
    /// By slot index. An index that was seen once keeps its generation here.
    slots: AHashMap<u32, Holdings>,
    names: Names,
    pending: Pending,
    /// Names that began or ceased to lead somewhere while blocks wait for them; empty between events.
    changed: Vec<EngineHash>,
    pending_limit: usize,
    dropped: u64,
    /// The sum of all slots' counts.
    counts: [u64; 4],
}

impl Reference {
    /// An empty one, in which `pending_limit` blocks of a slot may wait.
    #[must_use]
    pub fn new(pending_limit: usize) -> Self {
        Self {
            tree: Tree::new(),
            slots: AHashMap::new(),
            names: Names::default(),
            pending: Pending::default(),
            changed: Vec::new(),
            pending_limit,
            dropped: 0,
            counts: [0; 4],
        }
    }

    /// As [`PrefixIndex::overlap`](super::PrefixIndex::overlap).
    pub fn overlap<'a>(&self, prompt: &[BlockHash], scratch: &'a mut Scratch) -> Overlaps<'a> {
        let answer = &mut scratch.answer;
        answer.clear();
        let has_slower = self.counts[1..].iter().any(|&count| count > 0);
        lookup::overlap(&self.tree, prompt, has_slower, answer);
        Overlaps { answer }
    }

    /// As [`PrefixIndex::blocks`](super::PrefixIndex::blocks).
    #[must_use]
    pub fn blocks(&self, slot: Slot) -> [u64; 4] {
        let current = self.slots.get(&slot.index).filter(|holdings| holdings.generation == slot.generation);
        current.map_or([0; 4], |holdings| holdings.counts)
    }

    /// As [`PrefixIndex::totals`](super::PrefixIndex::totals), without bytes.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals {
            places: self.tree.len() as u64,
            blocks: self.counts,
            pending: self.pending.len() as u64,
            dropped: self.dropped,
            bytes: 0,
        }
    }

    /// As [`IndexWriter::apply`](super::IndexWriter::apply).
    pub fn apply(&mut self, slot: Slot, event: &Event) -> Applied {
        let mut applied = Applied::default();
        if !self.listen(slot, &mut applied) {
            applied.stale = true;
            return applied;
        }
        match event {
            Event::Stored(stored) => self.store(slot, stored, &mut applied),
            Event::Removed(removed) => self.remove(slot, removed, &mut applied),
            Event::Cleared(tier) => self.clear(slot, *tier, &mut applied),
        }
        applied
    }

    /// As [`IndexWriter::retire`](super::IndexWriter::retire).
    pub fn retire(&mut self, slot: Slot) -> Applied {
        let mut applied = Applied::default();
        if self.listen(slot, &mut applied) {
            self.clear(slot, None, &mut applied);
            // A fresh entry also gives back the memory of the old one's tables.
            let over = Holdings { generation: slot.generation, retired: true, ..Holdings::default() };
            self.slots.insert(slot.index, over);
        } else {
            applied.stale = true;
        }
        applied
    }

    /// Whether `slot` is a current incarnation. A newer one than known so far ends the older one.
    fn listen(&mut self, slot: Slot, applied: &mut Applied) -> bool {
        let fresh = || Holdings { generation: slot.generation, ..Holdings::default() };
        let known = self.slots.entry(slot.index).or_insert_with(fresh);
        if known.is_over(slot.generation) {
            return false;
        }
        if known.generation < slot.generation {
            let older = Slot { generation: known.generation, ..slot };
            self.clear(older, None, applied);
            self.slots.insert(slot.index, fresh());
        }
        true
    }

    fn remove(&mut self, slot: Slot, removed: &Removed, applied: &mut Applied) {
        for (at, &name) in removed.hashes.iter().enumerate() {
            let remaining = removed.remaining_copies.as_ref().and_then(|copies| copies.get(at).copied());
            let held = self.copies(slot, name, removed.tier);
            let left = remaining.unwrap_or(held.saturating_sub(1));
            match (held, left) {
                (0, _) => applied.unknown += 1,
                (_, 0) => applied.removed += 1,
                (_, _) => applied.kept += 1,
            }
            // An engine that counts copies of a block we never saw does not make it ours.
            if held > 0 {
                self.set_copies(slot, name, removed.tier, left);
                self.settle(applied);
            }
        }
    }

    /// Drops what `slot` holds, placed or waiting, in one tier or in all.
    fn clear(&mut self, slot: Slot, tier: Option<Tier>, applied: &mut Applied) {
        let mut names = self.pending.names_of(slot);
        names.extend(self.slots.get(&slot.index).into_iter().flat_map(|holdings| holdings.blocks.keys()));
        let tiers = tier.as_ref().map_or(&Tier::ALL[..], std::slice::from_ref);
        for name in names {
            for &tier in tiers {
                if self.copies(slot, name, tier) > 0 {
                    self.set_copies(slot, name, tier, 0);
                    applied.cleared += 1;
                }
            }
        }
        self.settle(applied);
    }

    /// The block that `slot` itself calls `name`.
    fn own(&self, slot: Slot, name: EngineHash) -> Option<&Block> {
        self.slots.get(&slot.index)?.blocks.get(&name)
    }

    /// Where `name` leads, said by `slot`.
    fn known(&self, slot: Slot, name: EngineHash) -> Option<PlaceId> {
        self.own(slot, name).map(|block| block.place).or_else(|| self.names.place(name))
    }

    /// Copies of a block, placed or waiting.
    fn copies(&self, slot: Slot, name: EngineHash, tier: Tier) -> u32 {
        let placed = self.own(slot, name).map(|block| block.copies);
        let copies = placed.or_else(|| self.pending.get(slot, name).map(|waiting| waiting.copies));
        copies.map_or(0, |copies| copies.of(tier))
    }

    /// Changes the copies of a block, placed or waiting, that has some in `tier`. A block without copies in any
    /// tier is gone.
    fn set_copies(&mut self, slot: Slot, name: EngineHash, tier: Tier, left: u32) {
        if let Some(copies) = self.pending.copies_mut(slot, name) {
            copies.set(tier, left);
            if copies.is_empty() {
                self.pending.take(slot, name);
            }
            return;
        }
        let Some(holdings) = self.slots.get_mut(&slot.index) else { return };
        let Some(block) = holdings.blocks.get_mut(&name) else { return };
        block.copies.set(tier, left);
        let Block { place, copies } = *block;
        if left > 0 {
            return;
        }
        holdings.counts[tier.index()] -= 1;
        self.counts[tier.index()] -= 1;
        if copies.is_empty() {
            holdings.blocks.remove(&name);
            self.names.remove(name, place);
            self.changed.push(name);
        }
        self.tree.release(slot, place, tier);
    }
}
