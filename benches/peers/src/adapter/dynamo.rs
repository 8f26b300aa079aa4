//! Dynamo's concurrent compressed radix tree (crate `dynamo-kv-router`), behind its thread pool with one thread.
//!
//! The tree applies events in threads of its pool only; handing them over is public, applying them is not. Lookups run in
//! the caller's thread, and through the tree itself, which takes a slice where the pool's own face takes a vector
//! and a future.

use std::{mem, ops::Range, pin::pin, sync::Arc, task, thread, time::Duration};

use dynamo_kv_router::{
    ConcurrentRadixTreeCompressed, OverlapScores, ThreadPoolIndexer, compute_block_hash_for_seq,
    protocols::{
        BlockHashOptions, ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData,
        KvCacheStoreData, KvCacheStoredBlockData, LocalBlockHash, RouterEvent,
    },
};
use kvroute::hash::{BlockHash, BlockSize};

use super::{Hashing, Index, Opened, Reader, Writer, smg};
use crate::{
    clock::Threads,
    workload::{Op, Workload},
};

type Pool = ThreadPoolIndexer<ConcurrentRadixTreeCompressed>;

pub(super) fn open(workload: &Workload) -> Opened {
    let block_size = workload.block_size;
    let (pool, threads) = Threads::started_by(|| {
        Arc::new(Pool::new(ConcurrentRadixTreeCompressed::new(), 1, block_size.get()))
    });
    let told = threads.cpu_time();
    let writer = Events { pool: Arc::clone(&pool), threads, told, events: Vec::new() };
    Opened { index: Arc::new(Shared { pool, block_size }), writer: Box::new(writer) }
}

struct Events {
    pool: Arc<Pool>,
    threads: Threads,
    /// CPU time of the pool's thread up to the last call of `finish`.
    told: Duration,
    events: Vec<RouterEvent>,
}

impl Writer for Events {
    fn load(&mut self, workload: &Workload, ops: Range<usize>) {
        self.events.extend(ops.map(|at| event(workload, at)));
    }

    fn apply(&mut self) {
        for event in mem::take(&mut self.events) {
            // The queue has no limit, so only a pool whose thread has panicked refuses an event.
            if let Err(error) = self.pool.enqueue_event(event) {
                panic!("Dynamo's pool takes no more events: {error}");
            }
        }
        // A queue that grew would stay, and count as memory of the index.
        block_on(self.pool.flush());
    }

    fn finish(&mut self) -> Duration {
        let before = mem::replace(&mut self.told, self.threads.cpu_time());
        self.told - before
    }
}

fn event(workload: &Workload, at: usize) -> RouterEvent {
    let (worker, data) = match &workload.ops[at] {
        Op::Stored { worker, parent, blocks } => {
            let blocks = workload.blocks(blocks).iter();
            let stored = KvCacheStoreData {
                parent_hash: parent.map(ExternalSequenceBlockHash),
                start_position: None,
                blocks: blocks
                    .map(|block| KvCacheStoredBlockData {
                        block_hash: ExternalSequenceBlockHash(block.name),
                        tokens_hash: LocalBlockHash(block.content.0),
                        mm_extra_info: None,
                    })
                    .collect(),
            };
            (*worker, KvCacheEventData::Stored(stored))
        }
        Op::Removed { worker, names } => {
            let names = workload.removed(names).iter();
            let removed = KvCacheRemoveData {
                block_hashes: names.map(|&name| ExternalSequenceBlockHash(name)).collect(),
            };
            (*worker, KvCacheEventData::Removed(removed))
        }
    };
    RouterEvent::new(u64::from(worker), KvCacheEvent { event_id: at as u64, data, dp_rank: 0 })
}

struct Shared {
    pool: Arc<Pool>,
    block_size: BlockSize,
}

impl Index for Shared {
    fn reader(&self) -> Box<dyn Reader + '_> {
        Box::new(Lookups {
            tree: self.pool.backend(),
            block_size: self.block_size,
            prompt: Vec::new(),
            found: OverlapScores::new(),
        })
    }
}

struct Lookups<'a> {
    tree: &'a ConcurrentRadixTreeCompressed,
    block_size: BlockSize,
    prompt: Vec<LocalBlockHash>,
    found: OverlapScores,
}

impl Reader for Lookups<'_> {
    fn load(&mut self, prompt: &[BlockHash]) {
        self.prompt.clear();
        self.prompt.extend(prompt.iter().map(|hash| LocalBlockHash(hash.0)));
    }

    fn lookup(&mut self) {
        // The map of the lookup before is dropped here, so that each call pays for one.
        self.found = self.tree.find_matches_impl(&self.prompt, false);
    }

    fn lookup_tokens(&mut self, hashing: Hashing, tokens: &[u32]) {
        self.prompt = if hashing == Hashing::Dynamo {
            hashes(tokens, self.block_size)
        } else {
            // Both types are one number each: this changes the type of the vector and copies nothing.
            let hashes = smg::hashes(tokens, self.block_size).into_iter();
            hashes.map(|hash| LocalBlockHash(hash.0)).collect()
        };
        self.lookup();
    }

    fn scores(&self) -> Vec<(u32, u32)> {
        // It names some workers that hold nothing, with a score of 0.
        let held = self.found.scores.iter().filter(|(_, blocks)| **blocks > 0);
        held.map(|(worker, &blocks)| (worker.worker_id as u32, blocks)).collect()
    }
}

/// Dynamo's block hashing, into the vector that it returns.
pub(super) fn hashes(tokens: &[u32], block_size: BlockSize) -> Vec<LocalBlockHash> {
    compute_block_hash_for_seq(tokens, block_size.get(), BlockHashOptions::default())
}

/// Waits for a future whose waker other threads may call.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = task::Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut task::Context::from_waker(&waker)) {
            task::Poll::Ready(output) => return output,
            task::Poll::Pending => thread::park(),
        }
    }
}
