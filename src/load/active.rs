//! The prompt blocks that a slot's requests in flight use.

use super::tenure::Tenure;
use crate::{
    hash::{ChainEnd, ChainTree, SequenceHash},
    slot::Slot,
};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

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
    pub(super) end: Option<ChainEnd>,
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

    /// Undoes one [`ActiveBlocks::enter`]; says how many blocks nobody uses any more.
    pub(super) fn leave(&self, slot: Slot, end: ChainEnd) -> u64 {
        self.with(slot, |forest| forest.leave(end)).unwrap_or(0)
    }

    /// The chain that ends at `end`, first block first; `None` once the slot's generation is over.
    pub(super) fn chain(&self, slot: Slot, end: ChainEnd) -> Option<Vec<SequenceHash>> {
        self.with(slot, |forest| forest.0.chain(end))
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
    /// How many leading blocks of `chain` are in use by requests of `slot`, and by how many.
    pub(crate) fn shared(&self, slot: Slot, chain: &[SequenceHash]) -> Shared {
        let Some(tenure) = self.slots.get(slot.index as usize) else { return Shared::default() };
        let mut tenure = tenure.lock();
        tenure.of(slot.generation).map_or(Shared::default(), |forest| forest.shared(chain))
    }
}

/// The chains of one slot, each run with the number of requests that use it. A run is here as long as there are any.
#[derive(Debug, Default)]
struct Forest(ChainTree<u32>);

impl Forest {
    fn enter(&mut self, chain: &[SequenceHash]) -> Entered {
        let (shared, end) = self.0.enter(chain, |requests| *requests = requests.saturating_add(1));
        Entered { added: (chain.len() - shared) as u64, end: Some(end) }
    }

    /// Takes the way by which the chain came: whatever was counted up there is counted down.
    fn leave(&mut self, end: ChainEnd) -> u64 {
        let mut removed = 0;
        let mut next = Some(end);
        while let Some(end) = next {
            next = self.0.before(end);
            let Some(requests) = self.0.get_mut(end) else { break };
            *requests = requests.saturating_sub(1);
            if *requests == 0 {
                // Whoever uses what comes after a run uses the run, too: nothing comes after it any more.
                self.0.shorten(end, usize::MAX, |_| removed += 1);
            }
        }
        removed
    }

    fn shared(&self, chain: &[SequenceHash]) -> Shared {
        let (blocks, requests) = self.0.find(chain);
        Shared { blocks, requests: requests.copied().unwrap_or(0) }
    }
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
        assert_eq!(active.read().shared(SLOT, &chain(&[1, 2, 4, 9])), Shared { blocks: 3, requests: 1 });
        assert_eq!(active.read().shared(SLOT, &chain(&[1, 2, 9])), Shared { blocks: 2, requests: 2 });
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
        assert_eq!(entered.added, 4);
        assert_eq!(active.leave(SLOT, entered.end.unwrap()), 4);
        assert_eq!(active.read().shared(SLOT, &chain(&[1])), Shared::default());
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
        assert_eq!(active.read().shared(next, &chain(&[1, 2])).blocks, 2);
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
                for depth in 1..=chain.len() {
                    let shared = forest.shared(&chain[..depth]);
                    prop_assert_eq!(shared.blocks as u64, expected.min(depth as u64));
                    let last = chain.get(shared.blocks.wrapping_sub(1));
                    let uses = |other: &[SequenceHash]| last.is_some_and(|last| other.contains(last));
                    let users = alive.iter().filter(|(other, _)| uses(other)).count();
                    prop_assert_eq!(shared.requests as usize, users);
                }
                let entered = forest.enter(chain);
                prop_assert_eq!(entered.added, chain.len() as u64 - expected);
                total += entered.added;
                alive.push((chain, entered.end));
            }
            fastrand::Rng::with_seed(order).shuffle(&mut alive);
            while let Some((chain, end)) = alive.pop() {
                prop_assert_eq!(&forest.0.chain(end.unwrap()), chain);
                total -= forest.leave(end.unwrap());
                let union: BTreeSet<_> = alive.iter().flat_map(|(chain, _)| chain.iter()).collect();
                prop_assert_eq!(total, union.len() as u64);
            }
            prop_assert_eq!(forest.0.runs(), 0);
        }
    }
}
