//! Ours, through its public face.

use std::{num::NonZeroUsize, ops::Range, sync::Arc, time::Duration};

use kvroute::{
    event::{EngineHash, Event, Removed, Stored, StoredBlock, Tier},
    hash::{BlockHash, BlockHasher, BlockSize, Identity, Prompt},
    index::{IndexWriter, Overlaps, PrefixIndex, Scratch},
    slot::Slot,
};

use super::{Hashing, Index, Opened, Reader, Writer, dense::Dense, stopwatch::Stopwatch};
use crate::workload::{Op, Workload};

pub(super) fn open(workload: &Workload) -> Opened {
    let (index, mut writers) = PrefixIndex::new(NonZeroUsize::MIN);
    // As a router does when engines register. The peers have no such call.
    if let Some(writer) = writers.first_mut() {
        writer.expect(workload.room);
        while writer.tidy() {}
    }
    let index = Shared { index, workers: workload.workers, block_size: workload.block_size };
    let writer = Events { writer: writers.remove(0), events: Vec::new(), stopwatch: Stopwatch::default() };
    Opened { index: Arc::new(index), writer: Box::new(writer) }
}

struct Events {
    writer: IndexWriter,
    events: Vec<(Slot, Event)>,
    stopwatch: Stopwatch,
}

impl Writer for Events {
    fn load(&mut self, workload: &Workload, ops: Range<usize>) {
        self.events.clear();
        self.events.extend(workload.ops[ops].iter().map(|op| event(workload, op)));
    }

    fn apply(&mut self) {
        self.stopwatch.time(|| {
            self.writer.apply_all(&self.events, |_, applied| {
                std::hint::black_box(applied);
            });
        });
    }

    fn finish(&mut self) -> Duration {
        self.events = Vec::new();
        self.stopwatch.take()
    }
}

/// An operation as an event of ours.
pub(super) fn event(workload: &Workload, op: &Op) -> (Slot, Event) {
    let slot = |index| Slot { index, generation: 0 };
    match op {
        Op::Stored { worker, parent, blocks } => {
            let blocks = workload.blocks(blocks).iter();
            let blocks = blocks
                .map(|block| StoredBlock { engine: EngineHash(block.name), content: Some(block.content) })
                .collect();
            (slot(*worker), Event::Stored(Stored { tier: Tier::Gpu, parent: parent.map(EngineHash), blocks }))
        }
        Op::Removed { worker, names } => {
            let hashes = workload.removed(names).iter().map(|&name| EngineHash(name)).collect();
            (slot(*worker), Event::Removed(Removed { tier: Tier::Gpu, hashes, remaining_copies: None }))
        }
    }
}

/// Writes what slots hold on their GPU.
#[inline(always)]
pub(super) fn write(overlaps: Overlaps<'_>, scores: &mut Dense) {
    scores.clear();
    for (depth, slots) in overlaps.levels() {
        for slot in slots {
            scores.set(slot.index, depth);
        }
    }
}

struct Shared {
    index: PrefixIndex,
    workers: u32,
    block_size: BlockSize,
}

impl Index for Shared {
    fn reader(&self) -> Box<dyn Reader + '_> {
        Box::new(Lookups {
            index: &self.index,
            scratch: Scratch::new(),
            hasher: BlockHasher::new(self.block_size, Identity::plain()),
            hashes: Vec::new(),
            scores: Dense::new(self.workers),
        })
    }
}

struct Lookups<'a> {
    index: &'a PrefixIndex,
    scratch: Scratch,
    hasher: BlockHasher,
    hashes: Vec<BlockHash>,
    scores: Dense,
}

impl Reader for Lookups<'_> {
    fn load(&mut self, prompt: &[BlockHash]) {
        self.hashes.clear();
        self.hashes.extend_from_slice(prompt);
    }

    fn lookup(&mut self) {
        self.index.gpu_depths(&self.hashes, &mut self.scratch, self.scores.blocks_mut());
    }

    fn lookup_tokens(&mut self, _: Hashing, tokens: &[u32]) {
        self.hasher.hash(&Prompt::text(tokens), &mut self.hashes);
        self.lookup();
    }

    fn scores(&self) -> Vec<(u32, u32)> {
        self.scores.scores()
    }
}
