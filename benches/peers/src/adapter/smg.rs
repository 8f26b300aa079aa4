//! SMG's `ChainIndex` (crate `kv-index`), read through either of its faces.
//!
//! `score_into` calls back with each worker and its score and allocates nothing; `find_matches` is the same walk, whose
//! callback fills a hash map that starts empty.

use std::{ops::Range, sync::Arc, time::Duration};

use kv_index::{
    ChainBlockMap, ChainIndex, ContentHash, OverlapScores, SequenceHash, StoredBlock,
    compute_request_content_hashes,
};
use kvroute::hash::{BlockHash, BlockSize};

use super::{Hashing, Index, Opened, Reader, Writer, dense::Dense, dynamo, stopwatch::Stopwatch};
use crate::workload::{Op, Workload};

/// How lookups read it.
#[derive(Clone, Copy)]
pub(super) enum Face {
    Into,
    Map,
}

pub(super) fn open(workload: &Workload, face: Face) -> Opened {
    // Room for no more workers than there are: a lookup reads a word per 64 of them.
    let index = Arc::new(ChainIndex::with_max_workers(workload.workers as usize));
    for worker in 0..workload.workers {
        // Numbers are given out in order, so a worker's is our own.
        let interned = index.intern_worker(&worker.to_string());
        assert_eq!(interned.ok(), Some(worker), "SMG has room for 1,024 workers and numbers them in order");
    }
    let writer = Events {
        index: Arc::clone(&index),
        held: (0..workload.workers).map(|_| ChainBlockMap::default()).collect(),
        events: Vec::new(),
        blocks: Vec::new(),
        removed: Vec::new(),
        stopwatch: Stopwatch::default(),
    };
    let index = Shared { index, face, workers: workload.workers, block_size: workload.block_size };
    Opened { index: Arc::new(index), writer: Box::new(writer) }
}

/// Its events are slices, so they can lie one behind another in memory that is used again and again.
struct Events {
    index: Arc<ChainIndex>,
    /// Where each worker's blocks are, which SMG has its callers keep.
    held: Vec<ChainBlockMap>,
    events: Vec<Event>,
    blocks: Vec<StoredBlock>,
    removed: Vec<SequenceHash>,
    stopwatch: Stopwatch,
}

enum Event {
    Stored { worker: u32, parent: Option<SequenceHash>, blocks: Range<usize> },
    Removed { worker: u32, names: Range<usize> },
}

impl Writer for Events {
    fn load(&mut self, workload: &Workload, ops: Range<usize>) {
        self.events.clear();
        self.blocks.clear();
        self.removed.clear();
        for op in &workload.ops[ops] {
            let event = match op {
                Op::Stored { worker, parent, blocks } => {
                    let start = self.blocks.len();
                    self.blocks.extend(workload.blocks(blocks).iter().map(|block| StoredBlock {
                        seq_hash: SequenceHash(block.name),
                        content_hash: ContentHash(block.content.0),
                    }));
                    let blocks = start..self.blocks.len();
                    Event::Stored { worker: *worker, parent: parent.map(SequenceHash), blocks }
                }
                Op::Removed { worker, names } => {
                    let start = self.removed.len();
                    self.removed.extend(workload.removed(names).iter().map(|&name| SequenceHash(name)));
                    Event::Removed { worker: *worker, names: start..self.removed.len() }
                }
            };
            self.events.push(event);
        }
    }

    fn apply(&mut self) {
        let Self { index, held, events, blocks, removed, stopwatch } = self;
        stopwatch.time(|| {
            for event in events.iter() {
                match event {
                    Event::Stored { worker, parent, blocks: of } => {
                        let held = &mut held[*worker as usize];
                        // It refuses a store whose parent the worker does not hold, and then holds less than it
                        // should. That is no failure of the run: the scores will tell.
                        let _ = index.apply_stored(*worker, &blocks[of.clone()], *parent, held);
                    }
                    Event::Removed { worker, names } => {
                        index.apply_removed(*worker, &removed[names.clone()], &mut held[*worker as usize]);
                    }
                }
            }
        });
    }

    fn finish(&mut self) -> Duration {
        (self.events, self.blocks, self.removed) = (Vec::new(), Vec::new(), Vec::new());
        self.stopwatch.take()
    }
}

struct Shared {
    index: Arc<ChainIndex>,
    face: Face,
    workers: u32,
    block_size: BlockSize,
}

impl Index for Shared {
    fn reader(&self) -> Box<dyn Reader + '_> {
        match self.face {
            Face::Into => Box::new(Into {
                index: &self.index,
                prompt: Vec::new(),
                block_size: self.block_size,
                scores: Dense::new(self.workers),
            }),
            Face::Map => Box::new(Map {
                index: &self.index,
                prompt: Vec::new(),
                block_size: self.block_size,
                found: OverlapScores::default(),
            }),
        }
    }
}

/// Read through `score_into`, which takes whatever holds a hash.
struct Into<'a> {
    index: &'a ChainIndex,
    prompt: Vec<BlockHash>,
    block_size: BlockSize,
    scores: Dense,
}

/// Scores into the caller's memory.
///
/// A function of its own, or the loop that compares hashes would fetch a pointer from the stack for every block: with
/// more around it the compiler runs out of registers there.
#[inline(never)]
fn score<T>(index: &ChainIndex, prompt: &[T], hash_of: impl Fn(&T) -> u64, scores: &mut Dense) {
    scores.clear();
    index.score_into(prompt, hash_of, false, |worker, blocks| scores.set(worker, blocks));
}

impl Reader for Into<'_> {
    fn load(&mut self, prompt: &[BlockHash]) {
        self.prompt.clear();
        self.prompt.extend_from_slice(prompt);
    }

    fn lookup(&mut self) {
        score(self.index, &self.prompt, |hash| hash.0, &mut self.scores);
    }

    fn lookup_tokens(&mut self, hashing: Hashing, tokens: &[u32]) {
        if hashing == Hashing::Dynamo {
            let prompt = dynamo::hashes(tokens, self.block_size);
            score(self.index, &prompt, |hash| hash.0, &mut self.scores);
        } else {
            let prompt = hashes(tokens, self.block_size);
            score(self.index, &prompt, |hash| hash.0, &mut self.scores);
        }
    }

    fn scores(&self) -> Vec<(u32, u32)> {
        self.scores.scores()
    }
}

/// Read through `find_matches`.
struct Map<'a> {
    index: &'a ChainIndex,
    prompt: Vec<ContentHash>,
    block_size: BlockSize,
    found: OverlapScores,
}

impl Reader for Map<'_> {
    fn load(&mut self, prompt: &[BlockHash]) {
        self.prompt.clear();
        self.prompt.extend(prompt.iter().map(|hash| ContentHash(hash.0)));
    }

    fn lookup(&mut self) {
        // The map of the lookup before is dropped here, so that each call pays for one.
        self.found = self.index.find_matches(&self.prompt, false);
    }

    fn lookup_tokens(&mut self, _: Hashing, tokens: &[u32]) {
        self.prompt = hashes(tokens, self.block_size);
        self.lookup();
    }

    fn scores(&self) -> Vec<(u32, u32)> {
        self.found.scores.iter().map(|(&worker, &blocks)| (worker, blocks)).collect()
    }
}

/// SMG's block hashing, into the vector that it returns.
pub(super) fn hashes(tokens: &[u32], block_size: BlockSize) -> Vec<ContentHash> {
    compute_request_content_hashes(tokens, block_size.get() as usize)
}
