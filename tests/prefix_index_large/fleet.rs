//! A fleet of slots whose engines store and evict, one random history a seed.

use fastrand::Rng;
use kvroute::{
    event::{Event, Tier},
    slot::Slot,
};

use crate::{
    prompts::{Naming, Prompts},
    twin::{Twin, mix, removed, stored},
};

/// How often what is left of clears is worked off beyond what events do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tidiness {
    Never,
    Sometimes,
    Always,
}

/// What a history is like.
#[derive(Debug)]
pub(crate) struct Plan {
    slots: usize,
    scattered: bool,
    naming: Naming,
    tidiness: Tidiness,
    /// Of 8 events, how many are of slower tiers.
    slower: u8,
    /// Blocks of the longest chain, and of the longest tail that a fork adds.
    most: usize,
    tail: usize,
    /// Of 100 operations, how many clear, retire or begin anew.
    endings: u8,
    /// Of 8 stores, how many leave their parent unknown or name blocks only.
    vague: u8,
    pending_limit: usize,
    pub(crate) operations: usize,
}

impl Plan {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let any = |rng: &mut Rng, choices: &[usize]| choices[rng.usize(..choices.len())];
        let most = any(rng, &[3, 40, 300, 700]);
        Self {
            slots: any(rng, &[1, 3, 6, 20, 70, 200]),
            scattered: rng.bool(),
            naming: match rng.u8(..8) {
                0..4 => Naming::Shared,
                4 => Naming::Own,
                5 => Naming::Groups,
                6 => Naming::Few(rng.u64(2..40)),
                _ => Naming::Few(rng.u64(200..2_000)),
            },
            tidiness: [Tidiness::Never, Tidiness::Sometimes, Tidiness::Always][rng.usize(..3)],
            slower: [0, 0, 1, 4][rng.usize(..4)],
            most,
            tail: any(rng, &[2, most.div_ceil(4), most]),
            endings: [0, 2, 20][rng.usize(..3)],
            vague: [0, 0, 1, 4][rng.usize(..4)],
            pending_limit: any(rng, &[0, 5, 4_096]),
            operations: any(rng, &[150, 300, 600]),
        }
    }
}

/// One slot as its engine sees it.
struct Rank {
    slot: Slot,
    /// Names it stored, in order, with the tier; some may be gone.
    names: Vec<(u64, Tier)>,
}

pub(crate) struct Fleet {
    twin: Twin,
    plan: Plan,
    prompts: Prompts,
    ranks: Vec<Rank>,
    rng: Rng,
    /// Events that wait to be applied in one call.
    batch: Option<Vec<(Slot, Event)>>,
}

impl Fleet {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let plan = Plan::new(&mut rng);
        let prompts = Prompts::new(&mut rng, 6, plan.tail, plan.most);
        let ranks = (0..plan.slots as u32).map(|at| {
            let index = if plan.scattered { (mix(7, u64::from(at)) % 65_535) as u32 } else { at };
            Rank { slot: Slot { index, generation: 1 }, names: Vec::new() }
        });
        let mut ranks: Vec<Rank> = ranks.collect();
        ranks.sort_by_key(|rank| rank.slot);
        ranks.dedup_by_key(|rank| rank.slot);
        let mut twin = Twin::new(plan.pending_limit);
        if rng.bool() {
            twin.writer.expect(rng.usize(..200_000));
        }
        Self { twin, plan, prompts, ranks, rng, batch: None }
    }

    /// The whole history, compared step by step; then everything goes.
    pub(crate) fn live(mut self) {
        for at in 0..self.plan.operations {
            self.step();
            if self.batch.is_none() {
                self.compare(if at % 8 == 0 { 4 } else { 1 });
            }
        }
        self.flush();
        self.twin.tidy();
        self.twin.compare_totals(true);
        self.compare(16);
        self.twin.drain();
    }

    fn step(&mut self) {
        if self.rng.u8(..16) == 0 {
            match self.batch {
                None => self.batch = Some(Vec::new()),
                Some(_) => self.flush(),
            }
        }
        if self.rng.u8(..8) == 0 {
            self.prompts.renew(&mut self.rng);
        }
        let at = self.rng.usize(..self.ranks.len());
        match self.rng.u8(..100) {
            roll if roll < self.plan.endings => self.end(at),
            0..25 => self.evict(at),
            25..30 => self.everyone(),
            _ => self.store(at),
        }
        match self.plan.tidiness {
            Tidiness::Always if self.batch.is_none() => {
                self.twin.tidy();
                self.twin.compare_totals(true);
            }
            Tidiness::Sometimes if self.rng.u8(..8) == 0 => {
                self.twin.writer.tidy();
            }
            _ => {}
        }
    }

    fn apply(&mut self, slot: Slot, event: Event) {
        match &mut self.batch {
            Some(batch) => batch.push((slot, event)),
            None => self.twin.apply(slot, &event),
        }
    }

    fn flush(&mut self) {
        if let Some(batch) = self.batch.take() {
            self.twin.apply_all(&batch);
        }
    }

    fn tier(&mut self) -> Tier {
        if self.rng.u8(..8) < self.plan.slower { Tier::ALL[self.rng.usize(1..4)] } else { Tier::Gpu }
    }

    /// A stretch of a chain, at once or block by block, from its start or from wherever.
    fn store(&mut self, at: usize) {
        let chain = self.prompts.any(&mut self.rng).clone();
        let from = if self.rng.u8(..8) < 5 { 0 } else { self.rng.usize(..chain.len()) };
        let to = if self.rng.bool() { chain.len() } else { self.rng.usize(from..chain.len()) + 1 };
        let tier = self.tier();
        let step = if self.rng.u8(..4) == 0 { self.rng.usize(1..4) } else { to - from };
        let one_voice = self.rng.u8(..16) > 0;
        let nameless = self.rng.u8(..8) < self.plan.vague;
        let slot = self.ranks[at].slot;
        let speaks_as = if one_voice { slot.index } else { self.ranks[0].slot.index };
        let mut begin = from;
        while begin < to {
            let end = (begin + step).min(to);
            let name = |at: usize| self.plan.naming.name(speaks_as, &chain, at);
            let parent = (begin > 0).then(|| name(begin - 1));
            let blocks: Vec<(u64, Option<u64>)> =
                (begin..end).map(|at| (name(at), (!nameless).then_some(chain.contents[at]))).collect();
            self.ranks[at].names.extend(blocks.iter().map(|&(name, _)| (name, tier)));
            self.apply(slot, stored(tier, parent, blocks));
            begin = end;
        }
    }

    /// The same chain on many slots, to one depth or to as many as there are slots.
    fn everyone(&mut self) {
        let chain = self.prompts.any(&mut self.rng).clone();
        let tier = self.tier();
        let alike = self.rng.bool();
        let depth = self.rng.usize(1..=chain.len());
        for at in 0..self.ranks.len() {
            let slot = self.ranks[at].slot;
            let depth = if alike { depth } else { self.rng.usize(1..=chain.len()) };
            let blocks = (0..depth)
                .map(|at| (self.plan.naming.name(slot.index, &chain, at), Some(chain.contents[at])))
                .collect::<Vec<_>>();
            self.ranks[at].names.extend(blocks.iter().map(|&(name, _)| (name, tier)));
            self.apply(slot, stored(tier, None, blocks));
        }
    }

    /// Some of what a slot stored goes: from the tail, from the head, or anything, in one event or in many.
    fn evict(&mut self, at: usize) {
        let kind = self.rng.u8(..4);
        let names = &mut self.ranks[at].names;
        let most = if self.rng.bool() { 8 } else { names.len() };
        let count = self.rng.usize(..=most.min(names.len()));
        let mut gone: Vec<(u64, Tier)> = match kind {
            0 => names.split_off(names.len() - count).into_iter().rev().collect(),
            1 => names.drain(..count).collect(),
            _ => (0..count).map(|_| names.swap_remove(self.rng.usize(..names.len()))).collect(),
        };
        if self.rng.u8(..8) == 0 {
            gone.push((self.rng.u64(..), Tier::Gpu));
        }
        let Some(&(_, tier)) = gone.first() else { return };
        let one_by_one = self.rng.u8(..4) == 0;
        let counted = self.rng.u8(..8) == 0;
        let slot = self.ranks[at].slot;
        if one_by_one {
            for (name, tier) in gone {
                let remaining = counted.then(|| vec![self.rng.u32(..3)]);
                self.apply(slot, removed(tier, [name], remaining));
            }
        } else {
            let names: Vec<u64> = gone.into_iter().map(|(name, _)| name).collect();
            let remaining = counted.then(|| (0..names.len() / 2).map(|_| self.rng.u32(..3)).collect());
            self.apply(slot, removed(tier, names, remaining));
        }
    }

    /// Everything that a slot holds goes at once.
    fn end(&mut self, at: usize) {
        let slot = self.ranks[at].slot;
        match self.rng.u8(..8) {
            0..3 => self.apply(slot, Event::Cleared(None)),
            3 => {
                let tier = Tier::ALL[self.rng.usize(..4)];
                self.apply(slot, Event::Cleared(Some(tier)));
            }
            4 => {
                self.flush();
                self.twin.retire(slot);
                self.twin.compare_blocks(slot);
                self.ranks[at].slot.generation += self.rng.u32(..2);
            }
            5 => {
                let late = Slot { generation: slot.generation - 1, ..slot };
                self.apply(late, stored(Tier::Gpu, None, [(1, Some(1))]));
            }
            _ => self.ranks[at].slot.generation += 1,
        }
        if self.rng.bool() {
            self.ranks[at].names.clear();
        }
    }

    fn compare(&mut self, prompts: usize) {
        for _ in 0..prompts {
            let prompt = self.prompts.prompt(&mut self.rng);
            self.twin.compare(&prompt);
            let slot = self.ranks[self.rng.usize(..self.ranks.len())].slot;
            self.twin.compare_blocks(slot);
        }
        self.twin.compare_totals(false);
    }
}
