//! The index as literally as can be.

use std::collections::{BTreeMap, BTreeSet};

use kvroute::{
    event::{Event, StoredBlock, Tier},
    index::{Applied, Overlap, Totals},
    slot::Slot,
};

pub(crate) type Path = Vec<u64>;
pub(crate) type Copies = [u32; 4];

/// One shard.
#[derive(Default)]
pub(crate) struct Model {
    pub(crate) limit: usize,
    pub(crate) slots: BTreeMap<u32, Rank>,
    /// In order of arrival.
    pub(crate) pending: Vec<Waiting>,
    pub(crate) dropped: u64,
}

#[derive(Default)]
pub(crate) struct Rank {
    pub(crate) generation: u32,
    pub(crate) retired: bool,
    pub(crate) held: BTreeMap<u64, (Path, Copies)>,
}

#[derive(Clone)]
pub(crate) struct Waiting {
    pub(crate) slot: u32,
    pub(crate) name: u64,
    pub(crate) below: Option<(u64, u64)>,
    pub(crate) copies: Copies,
}

impl Model {
    /// Own name first; else the one path that all slots agree on.
    pub(crate) fn known(&self, slot: u32, name: u64) -> Option<Path> {
        if let Some((path, _)) = self.slots.get(&slot).and_then(|rank| rank.held.get(&name)) {
            return Some(path.clone());
        }
        let paths: BTreeSet<&Path> =
            self.slots.values().filter_map(|rank| rank.held.get(&name)).map(|(path, _)| path).collect();
        if paths.len() == 1 { paths.first().map(|&path| path.clone()) } else { None }
    }

    pub(crate) fn listen(&mut self, slot: Slot, applied: &mut Applied) -> bool {
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

    pub(crate) fn apply(&mut self, slot: Slot, event: &Event) -> Applied {
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

    pub(crate) fn retire(&mut self, slot: Slot) -> Applied {
        let mut applied = Applied::default();
        if self.listen(slot, &mut applied) {
            self.clear(slot.index, None, &mut applied);
            self.slots.get_mut(&slot.index).unwrap().retired = true;
        }
        applied
    }

    pub(crate) fn store(
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

    pub(crate) fn put(&mut self, slot: u32, name: u64, path: Path, copies: Copies, applied: &mut Applied) {
        let held = &mut self.slots.get_mut(&slot).unwrap().held;
        let entry = held.entry(name).or_insert_with(|| (path.clone(), [0; 4]));
        if entry.0 != path {
            applied.moved += 1;
            *entry = (path, [0; 4]);
        }
        add(&mut entry.1, copies);
    }

    pub(crate) fn wait(&mut self, new: Waiting, waits: Option<usize>, applied: &mut Applied) {
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
    pub(crate) fn settle(&mut self, applied: &mut Applied) {
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
    pub(crate) fn copies_mut(&mut self, slot: u32) -> impl Iterator<Item = (u64, &mut Copies)> {
        let held = self.slots.get_mut(&slot).into_iter().flat_map(|rank| rank.held.iter_mut());
        let held = held.map(|(&name, (_, copies))| (name, copies));
        held.chain(self.pending.iter_mut().filter(move |w| w.slot == slot).map(|w| (w.name, &mut w.copies)))
    }

    pub(crate) fn forget_empty(&mut self) {
        for rank in self.slots.values_mut() {
            rank.held.retain(|_, (_, copies)| *copies != [0; 4]);
        }
        self.pending.retain(|waiting| waiting.copies != [0; 4]);
    }

    pub(crate) fn remove(
        &mut self,
        slot: u32,
        tier: usize,
        name: u64,
        remaining: Option<u32>,
        applied: &mut Applied,
    ) {
        match self.copies_mut(slot).find(|(own, copies)| *own == name && copies[tier] > 0) {
            None => applied.unknown += 1,
            Some((_, copies)) => {
                copies[tier] = remaining.unwrap_or(copies[tier] - 1);
                *(if copies[tier] == 0 { &mut applied.removed } else { &mut applied.kept }) += 1;
            }
        }
        self.forget_empty();
    }

    pub(crate) fn clear(&mut self, slot: u32, tier: Option<usize>, applied: &mut Applied) {
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

    pub(crate) fn overlap(&self, slot: u32, prompt: &[u64]) -> Overlap {
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

    pub(crate) fn blocks(&self, slot: u32) -> [u64; 4] {
        let mut blocks = [0; 4];
        for (_, copies) in self.slots.get(&slot).into_iter().flat_map(|rank| rank.held.values()) {
            for (block, &copies) in blocks.iter_mut().zip(copies) {
                *block += u64::from(copies > 0);
            }
        }
        blocks
    }

    pub(crate) fn totals(&self) -> Totals {
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

pub(crate) fn add(copies: &mut Copies, more: Copies) {
    for (mine, more) in copies.iter_mut().zip(more) {
        *mine += more;
    }
}
