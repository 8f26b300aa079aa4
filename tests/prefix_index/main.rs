//! What the index says after each kind of event, one situation a test.
//!
//! Several situations are those in which Dynamo's router documents its own behaviour; where ours differs, the
//! test says how and why. In short: theirs forgets blocks that it can no longer reach, ours is exact.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod holes;
mod names;
mod places;
mod slots;
mod tiers;
mod waiting;
mod whole;

use std::num::NonZeroUsize;

use kvroute::{
    event::{EngineHash, Event, Removed, Stored, StoredBlock, Tier},
    hash::BlockHash,
    index::{Applied, Extension, IndexWriter, Overlap, PENDING_LIMIT, PrefixIndex, Scratch, Totals},
    slot::Slot,
};

const A: Slot = Slot { index: 0, generation: 0 };

const B: Slot = Slot { index: 7, generation: 0 };

const C: Slot = Slot { index: 65_534, generation: 3 };

/// An index of one shard. A block is written `(name, content)`; content 0 stands for a block of which only the
/// name is said.
struct Fixture {
    index: PrefixIndex,
    writer: IndexWriter,
}

impl Fixture {
    fn new() -> Self {
        Self::with_pending_limit(PENDING_LIMIT)
    }

    fn with_pending_limit(limit: usize) -> Self {
        let (index, mut writers) = PrefixIndex::with_pending_limit(NonZeroUsize::MIN, limit);
        Self { index, writer: writers.pop().unwrap() }
    }

    fn store_in(&mut self, slot: Slot, tier: Tier, parent: Option<u64>, blocks: &[(u64, u64)]) -> Applied {
        self.writer.apply(slot, &stored(tier, parent, blocks))
    }

    fn store(&mut self, slot: Slot, parent: Option<u64>, blocks: &[(u64, u64)]) -> Applied {
        self.store_in(slot, Tier::Gpu, parent, blocks)
    }

    fn remove_from(&mut self, slot: Slot, tier: Tier, names: &[u64]) -> Applied {
        let hashes = names.iter().map(|&name| EngineHash(name)).collect();
        self.writer.apply(slot, &Event::Removed(Removed { tier, hashes, remaining_copies: None }))
    }

    fn remove(&mut self, slot: Slot, names: &[u64]) -> Applied {
        self.remove_from(slot, Tier::Gpu, names)
    }

    fn remove_leaving(&mut self, slot: Slot, name: u64, remaining: Vec<u32>) -> Applied {
        let (tier, hashes) = (Tier::Gpu, vec![EngineHash(name)]);
        self.writer.apply(
            slot,
            &Event::Removed(Removed { tier, hashes: hashes.into(), remaining_copies: Some(remaining) }),
        )
    }

    fn clear(&mut self, slot: Slot, tier: Option<Tier>) -> Applied {
        self.writer.apply(slot, &Event::Cleared(tier))
    }

    /// The overlap of `slot` in each tier.
    fn overlap(&self, slot: Slot, prompt: &[u64]) -> [u32; 4] {
        let prompt: Vec<_> = prompt.iter().map(|&content| BlockHash(content)).collect();
        let mut scratch = Scratch::new();
        let Overlap { gpu, host, disk, external } = self.index.overlap(&prompt, &mut scratch).of(slot);
        [gpu, host, disk, external]
    }

    fn gpu(&self, slot: Slot, prompt: &[u64]) -> u32 {
        self.overlap(slot, prompt)[0]
    }

    /// Once everything is swept that clears leave behind. Bytes are another test's business.
    fn totals(&mut self) -> Totals {
        while self.writer.tidy() {}
        Totals { bytes: 0, ..self.index.totals() }
    }

    fn assert_empty(&mut self) {
        let Totals { dropped, .. } = self.totals();
        assert_eq!(self.totals(), Totals { dropped, ..Totals::default() });
    }
}

fn stored(tier: Tier, parent: Option<u64>, blocks: &[(u64, u64)]) -> Event {
    let block = |&(name, content): &(u64, u64)| StoredBlock {
        engine: EngineHash(name),
        content: (content != 0).then_some(BlockHash(content)),
    };
    let blocks = blocks.iter().map(block).collect();
    Event::Stored(Stored { tier, parent: parent.map(EngineHash), blocks })
}

/// Names 11, 12, ... with contents 1, 2, ...: a chain from the root.
fn chain(length: u64) -> Vec<(u64, u64)> {
    (1..=length).map(|at| (10 + at, at)).collect()
}

const NOTHING: Applied = Applied {
    stored: 0,
    already: 0,
    pending: 0,
    removed: 0,
    kept: 0,
    unknown: 0,
    cleared: 0,
    moved: 0,
    attached: 0,
    dropped: 0,
    refused: 0,
    stale: false,
};
