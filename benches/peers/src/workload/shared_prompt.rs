//! Workloads S, T and W: one system prompt of 8,192 tokens on every worker.

use fastrand::Rng;

use super::{Block, Segment, Workload, builder::Builder, text::names};

const BLOCK_SIZE: u32 = 16;
const SYSTEM: Segment = Segment { seed: 1, blocks: 8_192 / BLOCK_SIZE };
const SUFFIX_BLOCKS: u32 = 1_024 / BLOCK_SIZE;
const UNSEEN_BLOCKS: u32 = 256 / BLOCK_SIZE;
/// Conversations that each worker has had.
const SUFFIXES: u32 = 30;
const LOOKUPS: usize = 2_000;

/// S and W: every worker holds the whole system prompt and behind it 30 suffixes that nobody else has. The prompts
/// looked up go on for some blocks that nobody has.
pub(super) fn everywhere(letter: char, workers: u32) -> Workload {
    let mut fleet = Fleet::new(letter, "an 8k-token system prompt everywhere", workers);
    for worker in 0..workers {
        fleet.keep_system(worker, SYSTEM.blocks);
        for _ in 0..SUFFIXES {
            fleet.keep_suffix(worker);
        }
    }
    fleet.finish()
}

/// T: worker `i` holds the first `i / workers` of the system prompt, so that every worker has a depth of its own.
/// Suffixes hang from the only one that holds all of it.
pub(super) fn to_every_depth(letter: char, workers: u32) -> Workload {
    let mut fleet = Fleet::new(letter, "an 8k-token system prompt, each worker to another depth", workers);
    for worker in 0..workers {
        fleet.keep_system(worker, SYSTEM.blocks * (worker + 1) / workers);
    }
    for _ in 0..SUFFIXES {
        fleet.keep_suffix(workers - 1);
    }
    for _ in SUFFIXES as usize..LOOKUPS {
        let unseen = fleet.fresh(SUFFIX_BLOCKS);
        fleet.out.prompt(&[SYSTEM, unseen]);
    }
    fleet.finish()
}

struct Fleet {
    out: Builder,
    system: Vec<Block>,
    resident: usize,
    next_seed: u64,
}

impl Fleet {
    fn new(letter: char, title: &str, workers: u32) -> Self {
        let mut out = Builder::new(letter, title, workers, BLOCK_SIZE);
        let contents = out.hashes(&[SYSTEM]);
        let names = names(None, &contents);
        let system = names.into_iter().zip(contents).map(|(name, content)| Block { name, content }).collect();
        Self { out, system, resident: 0, next_seed: SYSTEM.seed + 1 }
    }

    fn fresh(&mut self, blocks: u32) -> Segment {
        self.next_seed += 1;
        Segment { seed: self.next_seed, blocks }
    }

    fn keep_system(&mut self, worker: u32, blocks: u32) {
        let kept = &self.system[..blocks as usize];
        self.resident += kept.len();
        self.out.stored(worker, None, kept.iter().copied());
    }

    fn keep_suffix(&mut self, worker: u32) {
        let (suffix, unseen) = (self.fresh(SUFFIX_BLOCKS), self.fresh(UNSEEN_BLOCKS));
        self.out.prompt(&[SYSTEM, suffix, unseen]);
        let parent = self.system.last().map(|block| block.name);
        let contents = self.out.hashes(&[suffix]);
        let names = names(parent, &contents);
        self.resident += names.len();
        let blocks = names.into_iter().zip(contents).map(|(name, content)| Block { name, content });
        self.out.stored(worker, parent, blocks);
    }

    fn finish(self) -> Workload {
        self.out.finish_with_picks(LOOKUPS, &mut Rng::with_seed(11), self.resident)
    }
}
