//! What the writer will do, and what is true after each single block of it.

use fastrand::Rng;
use kvroute::{
    event::{Event, Removed, Stored, Tier},
    hash::BlockHash,
    index::{Applied, Scratch, reference::Reference},
    slot::Slot,
};

use crate::twin::{Answer, collect, depths, mix, removed, stored};

pub(crate) enum Step {
    Apply(Slot, Event),
    Retire(Slot),
    Tidy,
}

/// What varies from script to script.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) slots: u32,
    /// Blocks of the longest prompt.
    pub(crate) depth: usize,
    /// Of 8 events, how many are of slower tiers.
    pub(crate) slower: u8,
    /// Of 100 operations, how many clear, retire or begin anew.
    pub(crate) endings: u8,
    /// Every slot has names of its own.
    pub(crate) own_names: bool,
    pub(crate) steps: usize,
}

pub(crate) struct Script {
    pub(crate) prompts: Vec<Vec<BlockHash>>,
    /// Each step with the number of the moment at which all of it is done. Moment 0 is before everything.
    pub(crate) steps: Vec<(Step, usize)>,
    /// For each prompt, the moments at which its answer became another.
    changes: Vec<Vec<(usize, Answer)>>,
}

impl Script {
    pub(crate) fn new(seed: u64, kind: Kind) -> Self {
        let mut author = Author::new(seed, kind);
        let steps = (0..kind.steps).map(|_| author.write()).collect();
        Self { prompts: author.prompts, steps, changes: author.changes }
    }

    /// The right answers at the moments from `first` to `last`.
    pub(crate) fn allowed(&self, prompt: usize, first: usize, last: usize) -> impl Iterator<Item = &Answer> {
        let changes = &self.changes[prompt];
        let from = changes.partition_point(|(moment, _)| *moment <= first) - 1;
        changes[from..].iter().take_while(move |(moment, _)| *moment <= last).map(|(_, answer)| answer)
    }

    /// As [`Self::allowed`], only the GPU part, by slot index.
    pub(crate) fn allowed_depths(
        &self,
        prompt: usize,
        first: usize,
        last: usize,
        length: usize,
    ) -> impl Iterator<Item = Vec<u32>> {
        self.allowed(prompt, first, last).map(move |answer| depths(answer, length))
    }
}

struct Author {
    rng: Rng,
    kind: Kind,
    prompts: Vec<Vec<BlockHash>>,
    reference: Reference,
    slots: Vec<(Slot, Vec<(u64, Tier)>)>,
    moment: usize,
    changes: Vec<Vec<(usize, Answer)>>,
    scratch: Scratch,
}

impl Author {
    fn new(seed: u64, kind: Kind) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut prompts: Vec<Vec<BlockHash>> = Vec::new();
        for at in 0..10 {
            let mut prompt = Vec::new();
            if at > 0 && rng.u8(..8) > 0 {
                let other = &prompts[rng.usize(..at)];
                prompt.extend_from_slice(&other[..rng.usize(..=other.len())]);
            }
            let length = rng.usize(1..=kind.depth);
            while prompt.len() < length {
                prompt.push(BlockHash(rng.u64(..)));
            }
            prompts.push(prompt);
        }
        let slots =
            (0..kind.slots).map(|index| (Slot { index: index * 37, generation: 1 }, Vec::new())).collect();
        let changes = vec![vec![(0, Vec::new())]; prompts.len()];
        let reference = Reference::new(0);
        Self { rng, kind, prompts, reference, slots, moment: 0, changes, scratch: Scratch::new() }
    }

    fn write(&mut self) -> (Step, usize) {
        let at = self.rng.usize(..self.slots.len());
        let step = match self.rng.u8(..100) {
            roll if roll < self.kind.endings => self.end(at),
            0..30 => self.evict(at),
            30..33 => Step::Tidy,
            _ => self.store(at),
        };
        match &step {
            Step::Apply(slot, event) => self.apply(*slot, event),
            Step::Retire(slot) => {
                let applied = self.reference.retire(*slot);
                self.pass(applied);
            }
            Step::Tidy => {}
        }
        (step, self.moment)
    }

    /// Block by block: lookups see the blocks of an event one after another.
    fn apply(&mut self, slot: Slot, event: &Event) {
        // A newer generation ends the older one before its first block.
        let applied = self.reference.apply(slot, &stored(Tier::Gpu, None, []));
        self.pass(applied);
        match event {
            Event::Stored(all) => {
                let mut parent = all.parent;
                for block in &all.blocks {
                    let one = Stored { tier: all.tier, parent, blocks: [*block].into_iter().collect() };
                    let applied = self.reference.apply(slot, &Event::Stored(one));
                    parent = Some(block.engine);
                    self.pass(applied);
                }
            }
            Event::Removed(all) => {
                for &hash in &all.hashes {
                    let one = Removed {
                        tier: all.tier,
                        hashes: [hash].into_iter().collect(),
                        remaining_copies: None,
                    };
                    let applied = self.reference.apply(slot, &Event::Removed(one));
                    self.pass(applied);
                }
            }
            Event::Cleared(_) => {
                let applied = self.reference.apply(slot, event);
                self.pass(applied);
            }
        }
    }

    /// A moment passes: answers that are others now are written down.
    fn pass(&mut self, applied: Applied) {
        self.moment += 1;
        let Applied { stored, removed, cleared, moved, .. } = applied;
        if stored + removed + cleared + moved == 0 {
            return;
        }
        let mut answer = Answer::new();
        for (prompt, changes) in self.prompts.iter().zip(&mut self.changes) {
            collect(&self.reference.overlap(prompt, &mut self.scratch), &mut answer);
            if changes.last().is_none_or(|(_, before)| *before != answer) {
                changes.push((self.moment, answer.clone()));
            }
        }
    }

    fn tier(&mut self) -> Tier {
        if self.rng.u8(..8) < self.kind.slower { Tier::ALL[self.rng.usize(1..4)] } else { Tier::Gpu }
    }

    fn store(&mut self, at: usize) -> Step {
        let tier = self.tier();
        let prompt = &self.prompts[self.rng.usize(..self.prompts.len())];
        let from = if self.rng.u8(..4) > 0 { 0 } else { self.rng.usize(..prompt.len()) };
        let to = if self.rng.bool() { prompt.len() } else { self.rng.usize(from..prompt.len()) + 1 };
        let (slot, names) = &mut self.slots[at];
        let mut name = if self.kind.own_names { u64::from(slot.index) } else { 1 };
        let mut parent = None;
        let mut blocks = Vec::new();
        for (position, content) in prompt[..to].iter().enumerate() {
            name = mix(name, content.0);
            if position + 1 == from {
                parent = Some(name);
            } else if position >= from {
                blocks.push((name, Some(content.0)));
                names.push((name, tier));
            }
        }
        Step::Apply(*slot, stored(tier, parent, blocks))
    }

    fn evict(&mut self, at: usize) -> Step {
        let (slot, names) = &mut self.slots[at];
        let count = self.rng.usize(..=names.len().min(8));
        let gone: Vec<(u64, Tier)> = match self.rng.u8(..3) {
            0 => names.split_off(names.len() - count).into_iter().rev().collect(),
            1 => names.drain(..count).collect(),
            _ => (0..count).map(|_| names.swap_remove(self.rng.usize(..names.len()))).collect(),
        };
        let tier = gone.first().map_or(Tier::Gpu, |&(_, tier)| tier);
        Step::Apply(*slot, removed(tier, gone.into_iter().map(|(name, _)| name), None))
    }

    fn end(&mut self, at: usize) -> Step {
        let (slot, names) = &mut self.slots[at];
        names.clear();
        let now = *slot;
        match self.rng.u8(..5) {
            0 => Step::Apply(now, Event::Cleared(Some(Tier::ALL[self.rng.usize(..4)]))),
            1 => {
                slot.generation += 1;
                Step::Retire(now)
            }
            2 => {
                slot.generation += 1;
                Step::Apply(*slot, stored(Tier::Gpu, None, []))
            }
            _ => Step::Apply(now, Event::Cleared(None)),
        }
    }
}
