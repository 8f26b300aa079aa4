//! What is replayed: lists of operations, and prompts to look up on the way.
//!
//! A workload is made once and handed to every index. Nothing in it is of any index's own form, so that each adapter
//! pays the same for turning it into what its index takes.

mod builder;
mod cache;
mod conversation;
mod deep;
mod fleet;
mod router;
mod shared_prompt;
mod text;

use std::ops::Range;

use kvroute::hash::{BlockHash, BlockSize};

pub(crate) use text::{Segment, Text};

use crate::trace::Request;
use fleet::Plan;

/// One list of operations with its prompts.
pub(crate) struct Workload {
    pub(crate) letter: char,
    pub(crate) title: String,
    /// Workers are numbered from 0; each is one slot.
    pub(crate) workers: u32,
    pub(crate) block_size: BlockSize,
    pub(crate) ops: Vec<Op>,
    blocks: Vec<Block>,
    removed: Vec<u64>,
    prompts: Vec<PromptAt>,
    hashes: Vec<BlockHash>,
    segments: Vec<Segment>,
    /// In order of `ops`; the last one is at the end.
    pub(crate) checkpoints: Vec<Checkpoint>,
    /// Prompts that arrive during the second half of the operations; empty where the operations are too few to read
    /// beside them.
    pub(crate) late: Vec<PromptId>,
    /// (block, worker) pairs held at the end.
    pub(crate) resident: usize,
    /// Blocks that all caches together have room for, which engines tell a router when they register; 0 where the workload
    /// has no caches.
    pub(crate) room: usize,
}

/// What happened to one worker's cache.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Blocks became resident below `parent`.
    Stored { worker: u32, parent: Option<u64>, blocks: Range<u32> },
    /// Blocks were evicted.
    Removed { worker: u32, names: Range<u32> },
}

/// A block under its engine's name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) name: u64,
    pub(crate) content: BlockHash,
}

/// Which prompt of a workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PromptId(u32);

#[derive(Clone, Debug)]
struct PromptAt {
    hashes: Range<usize>,
    segments: Range<usize>,
}

/// A moment at which prompts are looked up.
pub(crate) struct Checkpoint {
    /// How many operations come before.
    pub(crate) after: usize,
    pub(crate) prompts: Vec<PromptId>,
}

impl Workload {
    /// The blocks of a store.
    pub(crate) fn blocks(&self, of: &Range<u32>) -> &[Block] {
        &self.blocks[of.start as usize..of.end as usize]
    }

    /// The names of a removal.
    pub(crate) fn removed(&self, of: &Range<u32>) -> &[u64] {
        &self.removed[of.start as usize..of.end as usize]
    }

    /// The block hashes of a prompt.
    pub(crate) fn hashes(&self, prompt: PromptId) -> &[BlockHash] {
        &self.hashes[self.prompts[prompt.0 as usize].hashes.clone()]
    }

    /// What a prompt's tokens are made of.
    pub(crate) fn segments(&self, prompt: PromptId) -> &[Segment] {
        &self.segments[self.prompts[prompt.0 as usize].segments.clone()]
    }

    /// Blocks stored and blocks removed.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.blocks.len(), self.removed.len())
    }

    /// The mean length of the prompts that are looked up, in blocks.
    pub(crate) fn mean_prompt(&self) -> usize {
        let prompts = || self.checkpoints.iter().flat_map(|checkpoint| &checkpoint.prompts);
        prompts().map(|&prompt| self.hashes(prompt).len()).sum::<usize>() / prompts().count().max(1)
    }
}

/// Where the requests of the workloads A to H come from.
pub(crate) struct Source {
    /// Long prompts, of which few blocks are shared.
    pub(crate) conversation: Vec<Request>,
    /// Longer ones, of which most blocks are shared.
    pub(crate) synthetic: Vec<Request>,
}

impl Source {
    /// The project's own requests, where no trace is given.
    pub(crate) fn conversation() -> Vec<Request> {
        conversation::few_turns()
    }

    /// As [`Self::conversation`], for the second trace.
    pub(crate) fn synthetic() -> Vec<Request> {
        conversation::many_turns()
    }
}

/// Makes the workload of a letter; `None` if there is none. `checkpoints` are fractions of the requests.
pub(crate) fn make(letter: char, source: &Source, checkpoints: &[f64]) -> Option<Workload> {
    let (conversation, synthetic) = (&source.conversation, &source.synthetic);
    let b = Plan {
        letter,
        title: "conversation",
        workers: 64,
        block_size: 16,
        room: 16_384,
        requests: 6_000,
        removals_per_event: 1,
        decoded_per_event: 1,
        holes: false,
        checkpoints,
    };
    let replay = |requests: &[Request], plan: &Plan<'_>| fleet::replay(requests, plan);
    Some(match letter {
        'A' => replay(conversation, &Plan { workers: 8, ..b }),
        'B' => replay(conversation, &b),
        'C' => replay(conversation, &Plan { workers: 256, room: 8_192, ..b }),
        'D' => replay(conversation, &Plan { block_size: 64, room: 4_096, requests: 12_031, ..b }),
        'E' => replay(synthetic, &Plan { title: "synthetic", requests: 3_993, ..b }),
        'F' => replay(
            conversation,
            &Plan {
                title: "conversation, batched events",
                removals_per_event: 64,
                decoded_per_event: 8,
                ..b
            },
        ),
        'H' => {
            replay(conversation, &Plan { title: "conversation, holes", requests: 3_000, holes: true, ..b })
        }
        'S' => shared_prompt::everywhere(letter, 256),
        'T' => shared_prompt::to_every_depth(letter, 256),
        'V' => deep::forks(letter, 64),
        'W' => shared_prompt::everywhere(letter, 1_024),
        _ => return None,
    })
}
