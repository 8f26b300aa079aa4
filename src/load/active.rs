//! The prompt blocks that a slot's requests in flight use.

use super::tenure::Tenure;
use crate::{hash::SequenceHash, slot::Slot};
use ahash::AHashMap;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::collections::hash_map::Entry;

/// The active blocks of every slot, each behind a mutex of its own.
#[derive(Debug, Default)]
pub(super) struct ActiveBlocks {
    /// The outer lock is written only to make room for a slot index never seen before. Whoever holds
    /// an inner mutex never waits for the outer lock.
    slots: RwLock<Vec<Mutex<Tenure<Forest>>>>,
}

/// What entering a chain did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Entered {
    /// Blocks that no other request of the slot was using.
    pub(super) added: u64,
    /// Where the chain ends: what [`ActiveBlocks::leave`] takes.
    pub(super) end: Option<SequenceHash>,
}

impl ActiveBlocks {
    /// Looks at many slots under one outer lock.
    pub(super) fn read(&self) -> ActiveReader<'_> {
        ActiveReader { slots: self.slots.read() }
    }

    /// Marks the blocks of `chain` as used by one more request of `slot`.
    pub(super) fn enter(&self, slot: Slot, chain: &[SequenceHash]) -> Entered {
        if chain.is_empty() {
            return Entered::default();
        }
        self.make_room(slot);
        self.with(slot, |forest| forest.enter(chain)).unwrap_or_default()
    }

    /// Undoes one [`ActiveBlocks::enter`], and takes as long; says how many blocks nobody uses any more.
    pub(super) fn leave(&self, slot: Slot, end: SequenceHash) -> u64 {
        self.with(slot, |forest| forest.leave(end)).unwrap_or(0)
    }

    /// The chain that ends at `end`, first block first; `None` once the slot's generation is over.
    pub(super) fn chain(&self, slot: Slot, end: SequenceHash) -> Option<Vec<SequenceHash>> {
        self.with(slot, |forest| forest.chain(end))
    }

    /// Ends the generation of `slot`.
    pub(super) fn forget(&self, slot: Slot) {
        self.make_room(slot);
        if let Some(tenure) = self.slots.read().get(slot.index as usize) {
            tenure.lock().end(slot.generation);
        }
    }

    fn with<R>(&self, slot: Slot, act: impl FnOnce(&mut Forest) -> R) -> Option<R> {
        let slots = self.slots.read();
        let mut tenure = slots.get(slot.index as usize)?.lock();
        tenure.of(slot.generation).map(act)
    }

    fn make_room(&self, slot: Slot) {
        let needed = slot.index as usize + 1;
        if self.slots.read().len() < needed {
            let mut slots = self.slots.write();
            if slots.len() < needed {
                slots.resize_with(needed, Mutex::default);
            }
        }
    }
}

/// What of a chain is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Shared {
    /// How many leading blocks.
    pub(crate) blocks: usize,
    /// How many requests use the last of those; 0 if there are none.
    pub(crate) requests: u32,
}

/// A look at the active blocks, for an admission that is about to be decided.
pub(crate) struct ActiveReader<'a> {
    slots: RwLockReadGuard<'a, Vec<Mutex<Tenure<Forest>>>>,
}

impl ActiveReader<'_> {
    /// How many leading blocks of `chain` are in use by requests of `slot`, and by how many. `guess` may be any number;
    /// the answer for another slot is a good one, since slots tend to share the same preambles.
    pub(crate) fn shared(&self, slot: Slot, chain: &[SequenceHash], guess: usize) -> Shared {
        let Some(tenure) = self.slots.get(slot.index as usize) else { return Shared::default() };
        let mut tenure = tenure.lock();
        tenure.of(slot.generation).map_or(Shared::default(), |forest| {
            let blocks = forest.shared(chain, guess);
            let last = chain[..blocks].last().and_then(|last| forest.blocks.get(last));
            Shared { blocks, requests: last.map_or(0, |block| block.requests) }
        })
    }
}

/// The chains of one slot as a forest of blocks, each with the number of requests that use it. A block is here as long
/// as there are any.
#[derive(Debug, Default)]
struct Forest {
    blocks: AHashMap<SequenceHash, Block>,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    parent: Option<SequenceHash>,
    /// Place in its chain. Two hashes that collide at different places are told apart by it; without
    /// that, a chain could become its own ancestor and never be released.
    depth: u32,
    requests: u32,
}

impl Forest {
    fn enter(&mut self, chain: &[SequenceHash]) -> Entered {
        let shared =
            (0..chain.len()).rev().find(|&depth| self.holds(chain, depth)).map_or(0, |depth| depth + 1);
        let mut end = chain[..shared].last().copied();
        // By the parents, which is the way that `leave` takes: whatever is counted up here is counted down there.
        let mut next = end;
        while let Some(block) = next.and_then(|hash| self.blocks.get_mut(&hash)) {
            block.requests = block.requests.saturating_add(1);
            next = block.parent;
        }
        let mut added = 0;
        for (depth, &hash) in chain.iter().enumerate().skip(shared) {
            // An occupied entry is a collision with a block at another depth; the block goes uncounted.
            if let Entry::Vacant(entry) = self.blocks.entry(hash) {
                entry.insert(Block { parent: end, depth: at(depth), requests: 1 });
                end = Some(hash);
                added += 1;
            }
        }
        Entered { added, end }
    }

    fn leave(&mut self, end: SequenceHash) -> u64 {
        let mut removed = 0;
        let mut next = Some(end);
        while let Some(hash) = next {
            let Some(block) = self.blocks.get_mut(&hash) else { break };
            block.requests = block.requests.saturating_sub(1);
            next = block.parent;
            if block.requests == 0 {
                self.blocks.remove(&hash);
                removed += 1;
            }
        }
        removed
    }

    fn chain(&self, end: SequenceHash) -> Vec<SequenceHash> {
        let ancestors = std::iter::successors(Some(end), |hash| self.blocks.get(hash)?.parent);
        let mut chain: Vec<_> = ancestors.collect();
        chain.reverse();
        chain
    }

    /// Every ancestor of an active block is active, so the active blocks of a chain are a prefix of it.
    /// Starts from `guess`, doubles the step while it holds, then bisects: a right guess takes two probes.
    fn shared(&self, chain: &[SequenceHash], guess: usize) -> usize {
        let guess = guess.min(chain.len());
        let right = guess > 0 && self.holds(chain, guess - 1);
        let mut held = if right { guess } else { 0 };
        let mut beyond = if right || guess == 0 { chain.len() + 1 } else { guess };
        let mut step = 1;
        while held + step < beyond {
            if !self.holds(chain, held + step - 1) {
                beyond = held + step;
                break;
            }
            held += step;
            step *= 2;
        }
        while held + 1 < beyond {
            let middle = held.midpoint(beyond);
            if self.holds(chain, middle - 1) {
                held = middle;
            } else {
                beyond = middle;
            }
        }
        held
    }

    fn holds(&self, chain: &[SequenceHash], depth: usize) -> bool {
        self.blocks.get(&chain[depth]).is_some_and(|block| block.depth == at(depth))
    }
}

fn at(depth: usize) -> u32 {
    u32::try_from(depth).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const SLOT: Slot = Slot { index: 2, generation: 0 };

    fn chain(hashes: &[u64]) -> Vec<SequenceHash> {
        hashes.iter().map(|&hash| SequenceHash(hash)).collect()
    }

    #[test]
    fn blocks_of_two_requests_count_once() {
        let active = ActiveBlocks::default();
        let a = active.enter(SLOT, &chain(&[1, 2, 3]));
        let b = active.enter(SLOT, &chain(&[1, 2, 4, 5]));
        assert_eq!((a.added, b.added), (3, 2));
        assert_eq!(active.read().shared(SLOT, &chain(&[1, 2, 4, 9]), 0), Shared { blocks: 3, requests: 1 });
        assert_eq!(active.read().shared(SLOT, &chain(&[1, 2, 9]), 0), Shared { blocks: 2, requests: 2 });
        assert_eq!(active.leave(SLOT, a.end.unwrap()), 1);
        assert_eq!(active.leave(SLOT, b.end.unwrap()), 4);
    }

    #[test]
    fn a_request_that_is_a_prefix_of_another_is_not_released_with_it() {
        let active = ActiveBlocks::default();
        let long = active.enter(SLOT, &chain(&[1, 2, 3]));
        let short = active.enter(SLOT, &chain(&[1, 2]));
        assert_eq!(short.added, 0);
        assert_eq!(active.leave(SLOT, long.end.unwrap()), 1);
        assert_eq!(active.chain(SLOT, short.end.unwrap()), Some(chain(&[1, 2])));
        assert_eq!(active.leave(SLOT, short.end.unwrap()), 2);
    }

    #[test]
    fn a_hash_twice_in_one_chain_is_released() {
        let active = ActiveBlocks::default();
        let entered = active.enter(SLOT, &chain(&[1, 2, 1, 3]));
        assert_eq!(entered.added, 3);
        assert_eq!(active.leave(SLOT, entered.end.unwrap()), 3);
        assert_eq!(active.read().shared(SLOT, &chain(&[1]), 0), Shared::default());
    }

    #[test]
    fn an_older_generation_neither_enters_nor_leaves() {
        let active = ActiveBlocks::default();
        let old = active.enter(SLOT, &chain(&[1, 2]));
        active.forget(SLOT);
        let next = Slot { generation: 1, ..SLOT };
        active.enter(next, &chain(&[1, 2]));
        assert_eq!(active.leave(SLOT, old.end.unwrap()), 0);
        assert_eq!(active.enter(SLOT, &chain(&[7])), Entered::default());
        assert_eq!(active.read().shared(next, &chain(&[1, 2]), 0).blocks, 2);
    }

    proptest! {
        // Blocks are named by the path that leads to them, so chains are prefix-closed as real ones are.
        #[test]
        fn counts_equal_the_union_of_the_chains(paths in prop::collection::vec(prop::collection::vec(0_u64..3, 1..7), 1..12), order in any::<u64>()) {
            let chains: Vec<Vec<SequenceHash>> = paths.iter().map(|path| {
                let mut name = 1;
                path.iter().map(|step| { name = name * 4 + step; SequenceHash(name) }).collect()
            }).collect();
            let mut forest = Forest::default();
            let mut alive = Vec::new();
            let mut total = 0;
            for chain in &chains {
                let union: BTreeSet<_> = alive.iter().flat_map(|(chain, _): &(&Vec<SequenceHash>, _)| chain.iter()).collect();
                let expected = chain.iter().take_while(|hash| union.contains(hash)).count() as u64;
                for guess in 0..9 {
                    prop_assert_eq!(forest.shared(chain, guess) as u64, expected);
                }
                for (depth, hash) in chain.iter().enumerate() {
                    let users = alive.iter().filter(|(other, _)| other.get(depth) == Some(hash)).count();
                    let counted = forest.blocks.get(hash).map_or(0, |block| block.requests as usize);
                    prop_assert_eq!(counted, users);
                }
                let entered = forest.enter(chain);
                prop_assert_eq!(entered.added, chain.len() as u64 - expected);
                total += entered.added;
                alive.push((chain, entered.end));
            }
            fastrand::Rng::with_seed(order).shuffle(&mut alive);
            while let Some((chain, end)) = alive.pop() {
                prop_assert_eq!(&forest.chain(end.unwrap()), chain);
                total -= forest.leave(end.unwrap());
                let union: BTreeSet<_> = alive.iter().flat_map(|(chain, _)| chain.iter()).collect();
                prop_assert_eq!(total, union.len() as u64);
            }
            prop_assert!(forest.blocks.is_empty());
        }
    }
}
