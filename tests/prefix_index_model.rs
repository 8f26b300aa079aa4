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

mod cases;

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
};

use kvroute::{
    event::{EngineHash, Event, Removed, Stored, StoredBlock, Tier},
    hash::BlockHash,
    index::{Applied, IndexWriter, Overlap, PrefixIndex, Scratch, Totals},
    slot::Slot,
};
use proptest::prelude::*;

use crate::cases::cases;

type Path = Vec<u64>;
type Copies = [u32; 4];

/// One shard.
#[derive(Default)]
struct Model {
    limit: usize,
    slots: BTreeMap<u32, Rank>,
    /// In order of arrival.
    pending: Vec<Waiting>,
    dropped: u64,
}

#[derive(Default)]
struct Rank {
    generation: u32,
    retired: bool,
    held: BTreeMap<u64, (Path, Copies)>,
}

#[derive(Clone)]
struct Waiting {
    slot: u32,
    name: u64,
    below: Option<(u64, u64)>,
    copies: Copies,
}

impl Model {
    /// Own name first; else the one path that all slots agree on.
    fn known(&self, slot: u32, name: u64) -> Option<Path> {
        if let Some((path, _)) = self.slots.get(&slot).and_then(|rank| rank.held.get(&name)) {
            return Some(path.clone());
        }
        let paths: BTreeSet<&Path> =
            self.slots.values().filter_map(|rank| rank.held.get(&name)).map(|(path, _)| path).collect();
        if paths.len() == 1 { paths.first().map(|&path| path.clone()) } else { None }
    }

    fn listen(&mut self, slot: Slot, applied: &mut Applied) -> bool {
        let known = self
            .slots
            .entry(slot.index)
            .or_insert_with(|| Rank { generation: slot.generation, ..Rank::default() });
        if slot.generation < known.generation || (slot.generation == known.generation && known.retired) {
            applied.stale = true;
            return false;
        }
        if slot.generation > known.generation {
            self.clear(slot.index, None, applied);
            self.slots.insert(slot.index, Rank { generation: slot.generation, ..Rank::default() });
        }
        true
    }

    fn apply(&mut self, slot: Slot, event: &Event) -> Applied {
        let mut applied = Applied::default();
        if !self.listen(slot, &mut applied) {
            return applied;
        }
        match event {
            Event::Stored(stored) => {
                let mut parent = stored.parent.map(|hash| hash.0);
                for block in &stored.blocks {
                    self.store(slot.index, stored.tier.index(), parent, *block, &mut applied);
                    self.settle(&mut applied);
                    parent = Some(block.engine.0);
                }
            }
            Event::Removed(removed) => {
                for (i, hash) in removed.hashes.iter().enumerate() {
                    let remaining = removed.remaining_copies.as_ref().and_then(|all| all.get(i).copied());
                    self.remove(slot.index, removed.tier.index(), hash.0, remaining, &mut applied);
                    self.settle(&mut applied);
                }
            }
            Event::Cleared(tier) => self.clear(slot.index, tier.map(Tier::index), &mut applied),
        }
        applied
    }

    fn retire(&mut self, slot: Slot) -> Applied {
        let mut applied = Applied::default();
        if self.listen(slot, &mut applied) {
            self.clear(slot.index, None, &mut applied);
            self.slots.get_mut(&slot.index).unwrap().retired = true;
        }
        applied
    }

    fn store(
        &mut self,
        slot: u32,
        tier: usize,
        parent: Option<u64>,
        block: StoredBlock,
        applied: &mut Applied,
    ) {
        let name = block.engine.0;
        let own = self.slots[&slot].held.get(&name).map(|(path, _)| path.clone());
        let waits = self.pending.iter().position(|w| w.slot == slot && w.name == name);
        let path = match (block.content, parent) {
            (Some(content), None) => Some(vec![content.0]),
            (Some(content), Some(parent)) => match self.known(slot, parent) {
                Some(mut path) => {
                    path.push(content.0);
                    Some(path)
                }
                None => own.clone().filter(|path| path.last() == Some(&content.0)),
            },
            (None, _) if waits.is_some() => None,
            (None, _) => self.known(slot, name),
        };
        let mut copies = [0; 4];
        copies[tier] = 1;
        let Some(path) = path else {
            applied.pending += 1;
            if self.slots.get_mut(&slot).unwrap().held.remove(&name).is_some() {
                applied.moved += 1;
            }
            let below = block.content.map(|content| (parent.unwrap(), content.0));
            return self.wait(Waiting { slot, name, below, copies }, waits, applied);
        };

        let before = self.slots[&slot].held.get(&name).map_or(
            0,
            |(at, copies)| {
                if *at == path { copies[tier] } else { 0 }
            },
        );
        *(if before > 0 { &mut applied.already } else { &mut applied.stored }) += 1;
        if let Some(at) = waits {
            let waiting = self.pending.remove(at);
            if waiting.below.is_none_or(|(_, content)| path.last() == Some(&content)) {
                add(&mut copies, waiting.copies);
                applied.attached += 1;
            } else {
                applied.moved += 1;
            }
        }
        self.put(slot, name, path, copies, applied);
    }

    fn put(&mut self, slot: u32, name: u64, path: Path, copies: Copies, applied: &mut Applied) {
        let held = &mut self.slots.get_mut(&slot).unwrap().held;
        let entry = held.entry(name).or_insert_with(|| (path.clone(), [0; 4]));
        if entry.0 != path {
            applied.moved += 1;
            *entry = (path, [0; 4]);
        }
        add(&mut entry.1, copies);
    }

    fn wait(&mut self, new: Waiting, waits: Option<usize>, applied: &mut Applied) {
        if let Some(at) = waits {
            let old = &mut self.pending[at];
            let differ = matches!((old.below, new.below), (Some((_, a)), Some((_, b))) if a != b);
            if !differ {
                add(&mut old.copies, new.copies);
                old.below = new.below.or(old.below);
                return;
            }
            self.pending.remove(at);
            applied.moved += 1;
        }
        let slot = new.slot;
        self.pending.push(new);
        while self.pending.iter().filter(|w| w.slot == slot).count() > self.limit {
            let oldest = self.pending.iter().position(|w| w.slot == slot).unwrap();
            self.pending.remove(oldest);
            applied.dropped += 1;
            self.dropped += 1;
        }
    }

    /// Again and again the oldest waiting block that has somewhere to go.
    fn settle(&mut self, applied: &mut Applied) {
        while let Some((at, path)) = self.pending.iter().enumerate().find_map(|(at, waiting)| {
            let path = match waiting.below {
                None => self.known(waiting.slot, waiting.name)?,
                Some((parent, content)) => {
                    let mut path = self.known(waiting.slot, parent)?;
                    path.push(content);
                    path
                }
            };
            Some((at, path))
        }) {
            let waiting = self.pending.remove(at);
            self.put(waiting.slot, waiting.name, path, waiting.copies, applied);
            applied.attached += 1;
        }
    }

    /// The copies of every block of `slot`, placed or waiting.
    fn copies_mut(&mut self, slot: u32) -> impl Iterator<Item = (u64, &mut Copies)> {
        let held = self.slots.get_mut(&slot).into_iter().flat_map(|rank| rank.held.iter_mut());
        let held = held.map(|(&name, (_, copies))| (name, copies));
        held.chain(self.pending.iter_mut().filter(move |w| w.slot == slot).map(|w| (w.name, &mut w.copies)))
    }

    fn forget_empty(&mut self) {
        for rank in self.slots.values_mut() {
            rank.held.retain(|_, (_, copies)| *copies != [0; 4]);
        }
        self.pending.retain(|waiting| waiting.copies != [0; 4]);
    }

    fn remove(&mut self, slot: u32, tier: usize, name: u64, remaining: Option<u32>, applied: &mut Applied) {
        match self.copies_mut(slot).find(|(own, copies)| *own == name && copies[tier] > 0) {
            None => applied.unknown += 1,
            Some((_, copies)) => {
                copies[tier] = remaining.unwrap_or(copies[tier] - 1);
                *(if copies[tier] == 0 { &mut applied.removed } else { &mut applied.kept }) += 1;
            }
        }
        self.forget_empty();
    }

    fn clear(&mut self, slot: u32, tier: Option<usize>, applied: &mut Applied) {
        for (_, copies) in self.copies_mut(slot) {
            for (at, copies) in copies.iter_mut().enumerate() {
                if *copies > 0 && tier.is_none_or(|tier| tier == at) {
                    *copies = 0;
                    applied.cleared += 1;
                }
            }
        }
        self.forget_empty();
        self.settle(applied);
    }

    fn overlap(&self, slot: u32, prompt: &[u64]) -> Overlap {
        let holds = |depth: usize, tier: usize| {
            let held = self.slots.get(&slot).map(|rank| &rank.held);
            held.is_some_and(|held| {
                held.values().any(|(path, copies)| path == &prompt[..depth] && copies[tier] > 0)
            })
        };
        let (mut depth, mut found) = (0, [0; 4]);
        for (tier, found) in found.iter_mut().enumerate() {
            while depth < prompt.len() && holds(depth + 1, tier) {
                depth += 1;
                *found += 1;
            }
        }
        Overlap { gpu: found[0], host: found[1], disk: found[2], external: found[3] }
    }

    fn blocks(&self, slot: u32) -> [u64; 4] {
        let mut blocks = [0; 4];
        for (_, copies) in self.slots.get(&slot).into_iter().flat_map(|rank| rank.held.values()) {
            for (block, &copies) in blocks.iter_mut().zip(copies) {
                *block += u64::from(copies > 0);
            }
        }
        blocks
    }

    fn totals(&self) -> Totals {
        let held = || self.slots.values().flat_map(|rank| rank.held.values());
        let places: BTreeSet<&[u64]> =
            held().flat_map(|(path, _)| (1..=path.len()).map(move |depth| &path[..depth])).collect();
        let mut blocks = [0; 4];
        for &slot in self.slots.keys() {
            for (total, more) in blocks.iter_mut().zip(self.blocks(slot)) {
                *total += more;
            }
        }
        Totals {
            places: places.len() as u64,
            blocks,
            pending: self.pending.len() as u64,
            dropped: self.dropped,
            bytes: 0,
        }
    }
}

fn add(copies: &mut Copies, more: Copies) {
    for (mine, more) in copies.iter_mut().zip(more) {
        *mine += more;
    }
}

/// How engines name their blocks.
#[derive(Clone, Copy, Debug)]
enum Naming {
    /// Every slot gives a block the same name.
    Shared,
    /// Every slot has its own.
    Own,
    /// Few names for everything: they collide and move.
    Few,
}

impl Naming {
    fn name(self, slot: u32, path: &[u64]) -> u64 {
        let start = if matches!(self, Self::Own) { 1 + u64::from(slot) } else { 0 };
        let name = path.iter().fold(start, |name, content| {
            (name ^ content.wrapping_add(0x5851)).wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(23)
        });
        if matches!(self, Self::Few) { name % 11 } else { name }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Store {
        slot: u32,
        speaks_as: u32,
        tier: usize,
        from: Path,
        blocks: Vec<(u64, bool)>,
        odd_names: bool,
    },
    /// Held or waiting blocks of the slot, counted from the deepest.
    Remove {
        slot: u32,
        tier: usize,
        picks: Vec<usize>,
        remaining: Option<Vec<u32>>,
    },
    RemoveNamed {
        slot: u32,
        speaks_as: u32,
        tier: usize,
        path: Path,
    },
    Clear {
        slot: u32,
        tier: Option<usize>,
    },
    Retire {
        slot: u32,
    },
    NewGeneration {
        slot: u32,
    },
    StaleStore {
        slot: u32,
    },
}

const SLOTS: u32 = 5;
/// Sparse and descending, so that slots are met in another order than that of their indices.
const INDICES: [u32; SLOTS as usize] = [60_000, 13, 8, 3, 0];
/// Of the dense answers: the first slot is beyond it.
const DENSE: usize = 16;

fn content() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0_u64), 2 => Just(1), 1 => Just(2)]
}

fn path(len: std::ops::Range<usize>) -> impl Strategy<Value = Path> {
    prop::collection::vec(content(), len)
}

fn tier() -> impl Strategy<Value = usize> {
    prop_oneof![5 => Just(0_usize), 2 => Just(1), 1 => Just(2), 1 => Just(3)]
}

/// Mostly the slot's own voice, now and then that of another.
fn speakers() -> impl Strategy<Value = (u32, u32)> {
    (0..SLOTS, 0..SLOTS, prop::bool::weighted(0.15))
        .prop_map(|(slot, other, foreign)| (slot, if foreign { other } else { slot }))
}

fn op() -> impl Strategy<Value = Op> {
    let block = (content(), prop::bool::weighted(0.85));
    let store =
        (speakers(), tier(), path(0..4), prop::collection::vec(block, 0..5), prop::bool::weighted(0.1));
    let remaining = prop::option::weighted(0.2, prop::collection::vec(0_u32..3, 0..3));
    prop_oneof![
        12 => store.prop_map(|((slot, speaks_as), tier, from, blocks, odd_names)| {
            Op::Store { slot, speaks_as, tier, from, blocks, odd_names }
        }),
        6 => (0..SLOTS, tier(), prop::collection::vec(0_usize..6, 0..4), remaining)
            .prop_map(|(slot, tier, picks, remaining)| Op::Remove { slot, tier, picks, remaining }),
        2 => (speakers(), tier(), path(1..5)).prop_map(|((slot, speaks_as), tier, path)| {
            Op::RemoveNamed { slot, speaks_as, tier, path }
        }),
        1 => (0..SLOTS, prop::option::of(tier())).prop_map(|(slot, tier)| Op::Clear { slot, tier }),
        1 => (0..SLOTS).prop_map(|slot| Op::Retire { slot }),
        1 => (0..SLOTS).prop_map(|slot| Op::NewGeneration { slot }),
        1 => (0..SLOTS).prop_map(|slot| Op::StaleStore { slot }),
    ]
}

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

fn history() -> impl Strategy<Value = Vec<(Op, [Path; 3])>> {
    let prompts = [path(0..8), path(0..8), path(0..8)];
    prop::collection::vec((op(), prompts), 1..80)
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
