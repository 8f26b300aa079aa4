//! The memory that placements work in: it belongs to a thread, and is used again.

use std::{cell::RefCell, time::Instant};

use fastrand::Rng;

use super::asking::Prompt;
use crate::{
    fleet::{Fleet, SetView},
    hash::{self, BlockHash, BlockHasher, Identity, SequenceHash},
    index,
    metrics::Histogram,
    select::{self, Member, queue::Outlook},
};

/// A prompt's blocks, kept while its request waits.
#[derive(Debug)]
pub(super) struct Hashed {
    pub(super) hashes: Vec<BlockHash>,
    pub(super) sequence: Vec<SequenceHash>,
}

impl Hashed {
    pub(super) fn blocks(&self) -> Blocks<'_> {
        Blocks { hashes: &self.hashes, sequence: &self.sequence }
    }
}

/// A prompt's full blocks.
#[derive(Clone, Copy)]
pub(super) struct Blocks<'a> {
    pub(super) hashes: &'a [BlockHash],
    pub(super) sequence: &'a [SequenceHash],
}

/// Memory of one thread.
struct Workspace {
    hashes: Vec<BlockHash>,
    sequence: Vec<SequenceHash>,
    tools: Tools,
}

/// What a decision works in.
pub(super) struct Tools {
    pub(super) members: Vec<Member>,
    pub(super) lookup: index::Scratch,
    pub(super) rows: select::Scratch,
    pub(super) rng: Rng,
}

thread_local! {
    static WORKSPACE: RefCell<Workspace> = RefCell::new(Workspace {
        hashes: Vec::new(),
        sequence: Vec::new(),
        tools: Tools {
            members: Vec::new(),
            lookup: index::Scratch::new(),
            rows: select::Scratch::new(),
            rng: Rng::new(),
        },
    });
}

impl Tools {
    /// Lends those of this thread.
    pub(super) fn lend<R>(to: impl FnOnce(&mut Self) -> R) -> R {
        WORKSPACE.with_borrow_mut(|space| to(&mut space.tools))
    }

    /// A number below `bound`, which is above 0.
    pub(super) fn draw(&mut self, bound: usize) -> usize {
        self.rng.usize(..bound)
    }

    /// Whether `set` could take a request now, whichever.
    pub(super) fn outlook(&mut self, fleet: &Fleet, set: &SetView) -> Outlook {
        set.gather(None, fleet.now_ms(), &mut self.members);
        set.selector.outlook(&self.members, &mut self.rows, fleet.clock().now())
    }
}

/// Lends the memory of this thread, with the prompt's blocks in it; `hashing` is told how long they took.
pub(super) fn hashed<R>(
    set: &SetView,
    prompt: &Prompt,
    hashing: Option<&Histogram>,
    then: impl FnOnce(Blocks<'_>, &mut Tools) -> R,
) -> R {
    WORKSPACE.with_borrow_mut(|space| {
        let asked = Instant::now();
        hash_prompt(space, set, prompt);
        if let Some(hashing) = hashing {
            hashing.observe(asked.elapsed());
        }
        let Workspace { hashes, sequence, tools } = space;
        then(Blocks { hashes, sequence }, tools)
    })
}

fn hash_prompt(space: &mut Workspace, set: &SetView, prompt: &Prompt) {
    let identity = Identity::new(prompt.lora.as_deref(), prompt.salt.as_deref());
    let hasher = BlockHasher::new(set.block_size, identity);
    let tokens = hash::Prompt { eagle: set.eagle, ..hash::Prompt::text(&prompt.tokens.ids) };
    hasher.hash(&tokens, &mut space.hashes);
    hash::chain(&space.hashes, &mut space.sequence);
}
