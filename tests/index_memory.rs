//! The index's memory at a fixed number of held blocks stays what it is, however long blocks come and go.
//!
//! `KVROUTE_TURNOVERS` says how often all blocks are replaced (40 times unless set); `ci/long.sh` asks for more.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    missing_docs,
    reason = "a failed expectation is how a test reports, and tests may read the environment"
)]

use std::{collections::VecDeque, num::NonZeroUsize};

use kvroute::{
    event::{EngineHash, Event, Removed, Stored, StoredBlock, Tier},
    hash::BlockHash,
    index::{IndexWriter, PrefixIndex},
    slot::Slot,
};

const SLOTS: u32 = 16;
/// Blocks that all slots together hold.
const HELD: usize = 40_000;
const WARM_UP: usize = 10;

/// A fleet whose caches are always full: what comes makes the oldest go, tails before heads.
struct Fleet {
    index: PrefixIndex,
    writer: IndexWriter,
    /// The oldest chain first, each with its slot and its names from the head.
    chains: VecDeque<(Slot, Vec<EngineHash>)>,
    held: usize,
    next_name: u64,
    rng: fastrand::Rng,
}

impl Fleet {
    fn new(seed: u64) -> Self {
        let (index, mut writers) = PrefixIndex::new(NonZeroUsize::MIN);
        let rng = fastrand::Rng::with_seed(seed);
        Self { index, writer: writers.remove(0), chains: VecDeque::new(), held: 0, next_name: 0, rng }
    }

    fn slot(&mut self) -> Slot {
        Slot { index: self.rng.u32(..SLOTS), generation: 0 }
    }

    fn fresh(&mut self, count: usize) -> Vec<StoredBlock> {
        (0..count)
            .map(|_| {
                self.next_name += 1;
                let name = self.next_name.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                StoredBlock { engine: EngineHash(name), content: Some(BlockHash(name.rotate_left(17))) }
            })
            .collect()
    }

    /// A prompt that nobody had before arrives, and what is decoded after it, block by block.
    fn serve(&mut self) {
        // Lengths of all orders of magnitude, as prompts have them.
        let length = 1 << self.rng.u32(2..10);
        let (prefill, decoded) = (self.rng.usize(1..=length), self.rng.usize(..40));
        let slot = self.slot();
        let blocks = self.fresh(prefill + decoded);
        let mut stored = |parent: Option<usize>, new: &[StoredBlock]| {
            let parent = parent.map(|at| blocks[at].engine);
            let new = new.iter().copied().collect();
            self.writer.apply(slot, &Event::Stored(Stored { tier: Tier::Gpu, parent, blocks: new }));
        };
        stored(None, &blocks[..prefill]);
        for at in prefill..blocks.len() {
            stored(Some(at - 1), &blocks[at..=at]);
        }
        self.held += blocks.len();
        self.chains.push_back((slot, blocks.iter().map(|block| block.engine).collect()));
        while self.held > HELD {
            self.evict();
        }
    }

    fn evict(&mut self) {
        let Some((slot, names)) = self.chains.front_mut() else { return };
        let Some(name) = names.pop() else {
            self.chains.pop_front();
            return;
        };
        let hashes = [name].into_iter().collect();
        let removed = Removed { tier: Tier::Gpu, hashes, remaining_copies: None };
        assert_eq!(self.writer.apply(*slot, &Event::Removed(removed)).removed, 1);
        self.held -= 1;
    }
}

#[test]
fn bytes_stay_flat_while_blocks_come_and_go() {
    let turnovers = std::env::var("KVROUTE_TURNOVERS").map_or(40, |count| count.parse().unwrap());
    let mut fleet = Fleet::new(5);
    let mut after = Vec::new();
    for turnover in 0..WARM_UP + turnovers {
        let until = fleet.next_name + HELD as u64;
        while fleet.next_name < until {
            fleet.serve();
        }
        if turnover >= WARM_UP {
            after.push(fleet.index.totals().bytes);
        }
    }
    let totals = fleet.index.totals();
    assert!(totals.blocks[0] <= HELD as u64 && totals.places == totals.blocks[0]);
    let (first, most) = (after[0], after.iter().copied().max().unwrap());
    println!("{turnovers} turnovers of {HELD} blocks: {first} bytes at first, {most} at most, {after:?}");
    assert!(most as f64 <= first as f64 * 1.1, "{first} bytes grew to {most}");
}
