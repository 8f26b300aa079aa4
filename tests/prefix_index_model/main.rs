//! Random histories of events, applied to the index and to a model that is as literal as can be: every slot
//! has its names with their whole paths, and everything else is searched for from there. After every
//! operation the whole answer to several prompts must be the same.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    missing_docs,
    reason = "a failed expectation is how a test reports, and tests may read the environment"
)]

#[path = "../cases/mod.rs"]
mod cases;
mod history;
mod model;

use std::{collections::BTreeSet, num::NonZeroUsize};

use kvroute::{
    event::{EngineHash, Event, Removed, Stored, StoredBlock, Tier},
    hash::BlockHash,
    index::{IndexWriter, Overlap, PrefixIndex, Scratch, Totals},
    slot::Slot,
};
use proptest::prelude::*;

use crate::{
    cases::cases,
    history::{INDICES, Naming, Op, SLOTS, history},
    model::{Model, Path},
};

/// Of the dense answers: the first slot is beyond it.
const DENSE: usize = 16;

/// The index and its model, driven side by side.
struct Pair {
    index: PrefixIndex,
    writers: Vec<IndexWriter>,
    models: Vec<Model>,
    scratch: Scratch,
    generations: [u32; SLOTS as usize],
    naming: Naming,
}

impl Pair {
    fn new(naming: Naming, shards: usize, limit: usize) -> Self {
        let (index, writers) = PrefixIndex::with_pending_limit(NonZeroUsize::new(shards).unwrap(), limit);
        let models = (0..shards).map(|_| Model { limit, ..Model::default() }).collect();
        let generations = [1; SLOTS as usize];
        Self { index, writers, models, scratch: Scratch::new(), generations, naming }
    }

    fn slot(&self, index: u32) -> Slot {
        Slot { index: INDICES[index as usize], generation: self.generations[index as usize] }
    }

    fn shard(&self, slot: Slot) -> usize {
        slot.index as usize % self.writers.len()
    }

    fn apply(&mut self, slot: Slot, event: &Event) {
        let shard = self.shard(slot);
        let expected = self.models[shard].apply(slot, event);
        assert_eq!(self.writers[shard].apply(slot, event), expected, "{slot}: {event:?}");
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Store { slot, speaks_as, tier, from, blocks, odd_names } => {
                let event = self.stored(*speaks_as, *tier, from, blocks, *odd_names);
                self.apply(self.slot(*slot), &event);
            }
            Op::Remove { slot, tier, picks, remaining } => {
                let slot = self.slot(*slot);
                let names = self.names_from_the_deepest(slot);
                let hashes: Vec<_> = picks.iter().filter_map(|&pick| names.get(pick)).copied().collect();
                let removed = Removed {
                    tier: Tier::ALL[*tier],
                    hashes: hashes.into(),
                    remaining_copies: remaining.clone(),
                };
                self.apply(slot, &Event::Removed(removed));
            }
            Op::RemoveNamed { slot, speaks_as, tier, path } => {
                let hashes = vec![EngineHash(self.naming.name(*speaks_as, path))];
                let removed =
                    Removed { tier: Tier::ALL[*tier], hashes: hashes.into(), remaining_copies: None };
                self.apply(self.slot(*slot), &Event::Removed(removed));
            }
            Op::Clear { slot, tier } => {
                self.apply(self.slot(*slot), &Event::Cleared(tier.map(|tier| Tier::ALL[tier])));
            }
            Op::Retire { slot } => {
                let slot = self.slot(*slot);
                self.retire(slot);
            }
            Op::NewGeneration { slot } => self.generations[*slot as usize] += 1,
            Op::StaleStore { slot } => {
                let slot = self.slot(*slot);
                let event = self.stored(0, 0, &[], &[(0, true)], false);
                self.apply(Slot { generation: slot.generation - 1, ..slot }, &event);
            }
        }
    }

    fn retire(&mut self, slot: Slot) {
        let shard = self.shard(slot);
        let expected = self.models[shard].retire(slot);
        assert_eq!(self.writers[shard].retire(slot), expected);
    }

    fn stored(
        &self,
        speaks_as: u32,
        tier: usize,
        from: &[u64],
        blocks: &[(u64, bool)],
        odd_names: bool,
    ) -> Event {
        let mut path = from.to_vec();
        let parent = (!from.is_empty()).then(|| EngineHash(self.naming.name(speaks_as, from)));
        let blocks = blocks.iter().map(|&(content, has_content)| {
            path.push(content);
            // Odd: the engine tells blocks apart that have the same place, so places get second names.
            let name = self.naming.name(speaks_as, &path).wrapping_add(u64::from(odd_names));
            StoredBlock { engine: EngineHash(name), content: has_content.then_some(BlockHash(content)) }
        });
        Event::Stored(Stored { tier: Tier::ALL[tier], parent, blocks: blocks.collect() })
    }

    fn names_from_the_deepest(&self, slot: Slot) -> Vec<EngineHash> {
        let model = &self.models[self.shard(slot)];
        let held = model.slots.get(&slot.index).into_iter().flat_map(|rank| &rank.held);
        let mut names: Vec<_> = held.map(|(&name, (path, _))| (path.len(), name)).collect();
        names.sort_unstable_by(|a, b| b.cmp(a));
        let waiting = model.pending.iter().filter(|waiting| waiting.slot == slot.index);
        names
            .into_iter()
            .map(|(_, name)| EngineHash(name))
            .chain(waiting.map(|w| EngineHash(w.name)))
            .collect()
    }

    /// The generation that the index knows, which lags behind until the first event of a newer one.
    fn current(&self, index: u32) -> Option<Slot> {
        let slot = self.slot(index);
        let rank = self.models[self.shard(slot)].slots.get(&slot.index)?;
        Some(Slot { generation: rank.generation, ..slot })
    }

    fn compare(&mut self, prompt: &[u64]) {
        let hashes: Vec<_> = prompt.iter().map(|&content| BlockHash(content)).collect();
        let slots: Vec<_> = (0..SLOTS).filter_map(|index| self.current(index)).collect();
        let expected: Vec<_> = slots
            .iter()
            .map(|&slot| (slot, self.models[self.shard(slot)].overlap(slot.index, prompt)))
            .collect();
        let overlaps = self.index.overlap(&hashes, &mut self.scratch);

        let mut seen = BTreeSet::new();
        for (depth, slots) in overlaps.levels() {
            assert!(depth > 0 && !slots.is_empty(), "a level without blocks or slots");
            for slot in slots {
                assert!(seen.insert(*slot), "{slot} is in two levels");
            }
        }
        let mut tiers = BTreeSet::new();
        for extension in overlaps.extensions() {
            assert!(extension.blocks > 0 && extension.tier != Tier::Gpu, "{extension:?}");
            assert!(tiers.insert((extension.slot, extension.tier)), "{extension:?} twice");
        }
        seen.extend(tiers.iter().map(|&(slot, _)| slot));
        let found: BTreeSet<_> =
            expected.iter().filter(|(_, overlap)| overlap.total() > 0).map(|&(slot, _)| slot).collect();
        assert_eq!(seen, found, "who holds {prompt:?}");
        assert_eq!(overlaps.is_empty(), found.is_empty());

        let mut dense = vec![Overlap { gpu: 77, ..Overlap::default() }; DENSE];
        overlaps.to_dense(&mut dense);
        for (slot, overlap) in &expected {
            assert_eq!(overlaps.of(*slot), *overlap, "{slot}: {prompt:?}");
        }
        for (at, overlap) in dense.iter().enumerate() {
            let slot = expected.iter().find(|(slot, _)| slot.index as usize == at);
            assert_eq!(*overlap, slot.map_or_else(Overlap::default, |slot| slot.1), "slot {at}: {prompt:?}");
        }
    }

    fn compare_sizes(&mut self) {
        self.tidy();
        let mut expected = Totals::default();
        for model in &self.models {
            let totals = model.totals();
            expected.places += totals.places;
            expected.pending += totals.pending;
            expected.dropped += totals.dropped;
            for (sum, blocks) in expected.blocks.iter_mut().zip(totals.blocks) {
                *sum += blocks;
            }
        }
        assert_eq!(self.index.totals(), Totals { bytes: self.index.totals().bytes, ..expected });
        for slot in (0..SLOTS).filter_map(|index| self.current(index)) {
            assert_eq!(self.index.blocks(slot), self.models[self.shard(slot)].blocks(slot.index));
            assert_eq!(self.index.blocks(Slot { generation: slot.generation + 1, ..slot }), [0; 4]);
        }
    }

    fn drain(&mut self) {
        for index in 0..SLOTS {
            self.retire(self.slot(index));
        }
        self.tidy();
        let Totals { dropped, bytes, .. } = self.index.totals();
        assert_eq!(self.index.totals(), Totals { dropped, bytes, ..Totals::default() });
    }

    /// What clears leave to be swept is swept.
    fn tidy(&mut self) {
        for writer in &mut self.writers {
            while writer.tidy() {}
        }
    }
}
fn replay(naming: Naming, shards: usize, limit: usize, history: &[(Op, [Path; 3])]) {
    let mut pair = Pair::new(naming, shards, limit);
    for (op, prompts) in history {
        pair.run(op);
        for prompt in prompts {
            pair.compare(prompt);
        }
        pair.compare_sizes();
    }
    pair.drain();
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn engines_that_name_alike(shards in 1_usize..4, limit in 0_usize..12, history in history()) {
        replay(Naming::Shared, shards, limit, &history);
    }

    #[test]
    fn engines_with_their_own_names(shards in 1_usize..3, limit in 0_usize..12, history in history()) {
        replay(Naming::Own, shards, limit, &history);
    }

    #[test]
    fn names_that_collide_and_move(shards in 1_usize..3, limit in 0_usize..12, history in history()) {
        replay(Naming::Few, shards, limit, &history);
    }
}
