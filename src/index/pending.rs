//! Blocks that wait for a place.

use std::collections::{BTreeMap, BTreeSet};

use ahash::AHashMap;

use super::{Applied, copies::Copies, split_map::SplitMap};
use crate::{
    event::{EngineHash, Tier},
    hash::BlockHash,
    slot::Slot,
};

/// All waiting blocks of a shard. A slot's name is either placed or here, never both.
#[derive(Debug, Default)]
pub(in crate::index) struct Pending {
    blocks: SplitMap<(Slot, EngineHash), Waiting>,
    /// The blocks of each slot, oldest first; a slot without any has no entry.
    by_slot: AHashMap<Slot, BTreeMap<Age, EngineHash>>,
    /// Who waits for a name; a name that nobody waits for has no entry.
    by_awaited: SplitMap<EngineHash, BTreeSet<Waiter>>,
    next_age: u64,
}

/// A block that waits.
#[derive(Clone, Copy, Debug)]
pub(in crate::index) struct Waiting {
    /// The parent's name and the block's content; `None` for a block of which only the name was said.
    pub(in crate::index) below: Option<(EngineHash, BlockHash)>,
    pub(in crate::index) copies: Copies,
    age: Age,
}

/// Order of arrival in the shard; lower is older.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Age(u64);

/// A waiting block as its awaited name knows it. Ordered by age first: when a name becomes known, the oldest
/// waiter goes first, so that the outcome does not depend on the order of a hash table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::index) struct Waiter {
    age: Age,
    pub(in crate::index) slot: Slot,
    pub(in crate::index) name: EngineHash,
}

impl Waiting {
    /// Whether the block may be one with this content.
    pub(in crate::index) fn may_be(&self, content: BlockHash) -> bool {
        self.below.is_none_or(|(_, own)| own == content)
    }

    /// The name that gives the block its place once it is known.
    pub(in crate::index) fn awaited(&self, name: EngineHash) -> EngineHash {
        self.below.map_or(name, |(parent, _)| parent)
    }
}

impl Pending {
    pub(in crate::index) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// About how much memory the waiting blocks take: beside their entries, one in each of two trees.
    pub(in crate::index) fn bytes(&self) -> usize {
        self.blocks.bytes() + self.by_awaited.bytes() + self.len() * 160
    }

    pub(in crate::index) fn len_of(&self, slot: Slot) -> usize {
        self.by_slot.get(&slot).map_or(0, BTreeMap::len)
    }

    pub(in crate::index) fn get(&self, slot: Slot, name: EngineHash) -> Option<&Waiting> {
        self.blocks.get(&(slot, name))
    }

    /// The copies of a waiting block. Whoever takes the last one also takes the block out.
    pub(in crate::index) fn copies_mut(&mut self, slot: Slot, name: EngineHash) -> Option<&mut Copies> {
        self.blocks.get_mut(&(slot, name)).map(|waiting| &mut waiting.copies)
    }

    pub(in crate::index) fn names_of(&self, slot: Slot) -> Vec<EngineHash> {
        self.by_slot.get(&slot).map_or_else(Vec::new, |names| names.values().copied().collect())
    }

    pub(in crate::index) fn awaits(&self, awaited: EngineHash) -> impl Iterator<Item = Waiter> + '_ {
        self.by_awaited.get(&awaited).into_iter().flatten().copied()
    }

    /// Every name that a block waits for.
    pub(in crate::index) fn awaited(&self) -> impl Iterator<Item = EngineHash> + '_ {
        self.by_awaited.keys().copied()
    }

    /// Adds a copy of a block in a tier: to the one that waits under this name, if the two may be the same; otherwise as
    /// the youngest, in place of it. Drops the slot's oldest beyond `limit`, and yields how many.
    pub(in crate::index) fn add(
        &mut self,
        slot: Slot,
        name: EngineHash,
        below: Option<(EngineHash, BlockHash)>,
        (tier, limit): (Tier, usize),
        applied: &mut Applied,
    ) -> u64 {
        let mut copies = Copies::one(tier);
        if let Some(waiting) = self.get(slot, name) {
            if below.is_none_or(|(_, content)| waiting.may_be(content)) {
                copies.add(waiting.copies);
                if let Some(below) = below {
                    self.set_below(slot, name, below);
                }
                if let Some(waiting) = self.copies_mut(slot, name) {
                    *waiting = copies;
                }
                return 0;
            }
            self.take(slot, name);
            applied.moved += 1;
        }
        self.insert(slot, name, below, copies);
        let mut dropped = 0;
        while self.len_of(slot) > limit {
            self.take_oldest(slot);
            dropped += 1;
        }
        applied.dropped += dropped;
        u64::from(dropped)
    }

    /// Adds a block that is not here yet, as the youngest.
    fn insert(
        &mut self,
        slot: Slot,
        name: EngineHash,
        below: Option<(EngineHash, BlockHash)>,
        copies: Copies,
    ) {
        let age = Age(self.next_age);
        self.next_age += 1;
        self.link(slot, name, Waiting { below, copies, age });
    }

    /// The block is now known to follow a parent. It keeps its age.
    fn set_below(&mut self, slot: Slot, name: EngineHash, below: (EngineHash, BlockHash)) {
        if let Some(waiting) = self.take(slot, name) {
            self.link(slot, name, Waiting { below: Some(below), ..waiting });
        }
    }

    fn link(&mut self, slot: Slot, name: EngineHash, waiting: Waiting) {
        let waiter = Waiter { age: waiting.age, slot, name };
        self.by_awaited.get_or_default(waiting.awaited(name)).insert(waiter);
        self.by_slot.entry(slot).or_default().insert(waiting.age, name);
        self.blocks.insert((slot, name), waiting);
    }

    pub(in crate::index) fn take(&mut self, slot: Slot, name: EngineHash) -> Option<Waiting> {
        let waiting = self.blocks.remove(&(slot, name))?;
        let awaited = waiting.awaited(name);
        if let Some(waiters) = self.by_awaited.get_mut(&awaited) {
            waiters.remove(&Waiter { age: waiting.age, slot, name });
            if waiters.is_empty() {
                self.by_awaited.remove(&awaited);
            }
        }
        if let Some(names) = self.by_slot.get_mut(&slot) {
            names.remove(&waiting.age);
            if names.is_empty() {
                self.by_slot.remove(&slot);
            }
        }
        Some(waiting)
    }

    fn take_oldest(&mut self, slot: Slot) -> Option<Waiting> {
        let name = *self.by_slot.get(&slot)?.values().next()?;
        self.take(slot, name)
    }
}
