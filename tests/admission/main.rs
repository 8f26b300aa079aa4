//! Admission: what is booked where, and that all of it comes back.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    missing_docs,
    reason = "a failed expectation is how a test reports, and tests may read the environment"
)]

mod bookings;
#[path = "../cases/mod.rs"]
mod cases;
mod choices;
mod counters;
mod seconds;

use fastrand::Rng;
use kvroute::{
    device::{Condition, Weights},
    event::{EngineHash, Event, Stored, StoredBlock, Tier},
    hash::{BlockHash, BlockSize, SequenceHash, chain},
    index::{self, IndexWriter, Overlap, PrefixIndex},
    load::{Backlog, Booking, Claim, Loads, OutputGrowth, SlotLoad},
    select::{
        Choice, CostModel, Demand, Exclusion, Member, Mode, Overrides, Pin, PinField, Refusal, Row, Scratch,
        Selector, Tuning,
        cost::{Cost, blocks::BlockCost, time::TimeCost},
    },
    slot::{Rank, Slot, WorkerId},
};
use proptest::prelude::*;
use std::{collections::BTreeSet, num::NonZeroUsize, sync::Arc, thread, time::Duration};

const BLOCK: u32 = 4;

fn block_size() -> BlockSize {
    BlockSize::new(BLOCK).unwrap()
}

fn member(index: u32) -> Member {
    Member::new(Slot { index, generation: 0 }, WorkerId(u64::from(index) + 100), Rank(0))
}

/// A prompt of complete blocks, each named by a letter.
struct Prompt {
    hashes: Vec<BlockHash>,
    sequence: Vec<SequenceHash>,
}

impl Prompt {
    fn new(blocks: &str) -> Self {
        let hashes: Vec<_> = blocks.bytes().map(|letter| BlockHash(u64::from(letter))).collect();
        let mut sequence = Vec::new();
        chain(&hashes, &mut sequence);
        Self { hashes, sequence }
    }

    fn tokens(&self) -> u64 {
        (self.hashes.len() * BLOCK as usize) as u64
    }

    fn demand(&self) -> Demand<'_> {
        Demand::new(self.hashes.len() * BLOCK as usize, block_size(), &self.sequence)
    }
}

/// A selector with its members and an index.
struct Fleet {
    members: Vec<Member>,
    index: PrefixIndex,
    writer: IndexWriter,
    selector: Selector,
    scratch: Scratch,
    now: Duration,
    rng: Rng,
}

impl Fleet {
    fn new(mode: Mode, tuning: Tuning, members: u32) -> Self {
        let (index, writers) = PrefixIndex::new(NonZeroUsize::MIN);
        Self {
            members: (0..members).map(member).collect(),
            index,
            writer: writers.into_iter().next().unwrap(),
            selector: Selector::new(mode, tuning),
            scratch: Scratch::new(),
            now: Duration::ZERO,
            rng: Rng::with_seed(7),
        }
    }

    fn store(&mut self, slot: Slot, tier: Tier, prompt: &str) {
        let content = Prompt::new(prompt);
        let blocks = content.hashes.iter().zip(&content.sequence);
        let blocks = blocks
            .map(|(&content, engine)| StoredBlock { engine: EngineHash(engine.0), content: Some(content) });
        self.writer.apply(slot, &Event::Stored(Stored { tier, parent: None, blocks: blocks.collect() }));
    }

    fn admit(&mut self, prompt: &Prompt, demand: &Demand<'_>) -> Result<(Choice, Booking), Refusal> {
        let mut found = index::Scratch::new();
        let overlaps = self.index.overlap(&prompt.hashes, &mut found);
        self.selector.admit(&self.members, overlaps, demand, &mut self.scratch, self.now, &mut self.rng)
    }

    fn explain(&mut self, prompt: &Prompt, demand: &Demand<'_>) -> Result<Choice, Refusal> {
        let mut found = index::Scratch::new();
        let overlaps = self.index.overlap(&prompt.hashes, &mut found);
        self.selector.explain(&self.members, overlaps, demand, &mut self.scratch, self.now, &mut self.rng)
    }

    fn load(&self, index: usize) -> SlotLoad {
        self.selector.loads().get(self.members[index].slot)
    }
}

fn pin(index: u32) -> Option<Pin> {
    Some(Pin { worker: member(index).worker, rank: None, field: PinField::BackendInstanceId })
}

fn load(requests: u32, prefill_tokens: u64, decode_blocks: u64) -> SlotLoad {
    SlotLoad { requests, prefill_tokens, decode_blocks }
}

fn blocks_model() -> Tuning {
    Tuning { cost_model: CostModel::Blocks, ..Tuning::default() }
}

fn in_blocks(row: &Row) -> BlockCost {
    match row.cost {
        Some(Cost::Blocks(cost)) => cost,
        other => panic!("no cost in blocks: {other:?}"),
    }
}

fn in_seconds(row: &Row) -> TimeCost {
    match row.cost {
        Some(Cost::Time(cost)) => cost,
        other => panic!("no cost in seconds: {other:?}"),
    }
}
