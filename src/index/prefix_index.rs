//! The face of the index: lookups and totals, from any thread.

use std::{fmt, num::NonZeroUsize, sync::Arc};

use ahash::RandomState;

use super::{
    IndexWriter, Overlaps, Scratch,
    raw::{Depths, Shared},
};
use crate::{hash::BlockHash, slot::Slot};

/// How many blocks of one slot may wait for a place, unless chosen otherwise. It is a guess between two needs: a
/// router that starts among warm engines meets many orphans, and a waiting block takes about half a kilobyte
/// (so 2 MiB for a slot at the limit) that may never be of use.
pub const PENDING_LIMIT: usize = 4096;

/// Which slots hold which prefixes. Cheap to clone; all clones are the same index.
#[derive(Clone)]
pub struct PrefixIndex {
    shards: Arc<[Arc<Shared>]>,
}

/// The size of an index, summed over its shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Places in the tree: blocks that some slot holds, those on the way to them, and those of slots that are gone
    /// and have not been swept out yet.
    pub places: u64,
    /// Blocks, as their engines name them, held in each tier by all slots; see [`PrefixIndex::blocks`].
    pub blocks: [u64; 4],
    /// Blocks that wait for their place.
    pub pending: u64,
    /// Waiting blocks ever dropped because too many of one slot waited.
    pub dropped: u64,
    /// Bytes, room for growth included; those of tables other than the tree's are an estimate.
    pub bytes: u64,
}

impl PrefixIndex {
    /// An empty index with its writers, one a shard: all events of a slot go to
    /// `writers[slot.index % shards]`. [`PENDING_LIMIT`] blocks of a slot may wait.
    #[must_use]
    pub fn new(shards: NonZeroUsize) -> (Self, Vec<IndexWriter>) {
        Self::with_pending_limit(shards, PENDING_LIMIT)
    }

    /// As [`Self::new`], with another number of blocks of a slot that may wait for their place.
    #[must_use]
    pub fn with_pending_limit(shards: NonZeroUsize, pending_limit: usize) -> (Self, Vec<IndexWriter>) {
        let count = u32::try_from(shards.get()).unwrap_or(u32::MAX);
        // Random, so that nobody can make prompts that collide in the tables.
        let key = |salt: u32| RandomState::new().hash_one(salt);
        let shards: Arc<[_]> = (0..count).map(|shard| Arc::new(Shared::new(count, key(shard)))).collect();
        let writers = (0..count).zip(shards.iter());
        let writers = writers
            .map(|(shard, shared)| {
                IndexWriter::new(Arc::clone(shared), (shard, count), key(!shard), pending_limit)
            })
            .collect();
        (Self { shards }, writers)
    }

    /// How many leading blocks of `prompt` each slot holds, in any order of slots.
    ///
    /// Shards are read one after another: the answer for any one slot is of a single moment, those for slots of
    /// different shards may be of different moments. Allocates nothing once `scratch` has grown to the size
    /// of the answer.
    pub fn overlap<'a>(&self, prompt: &[BlockHash], scratch: &'a mut Scratch) -> Overlaps<'a> {
        let Scratch { answer, path } = scratch;
        answer.clear();
        for shard in self.shards.iter() {
            answer.begin_shard();
            shard.look_up(prompt, path, answer);
        }
        Overlaps { answer }
    }

    /// How many leading blocks of `prompt` each slot holds on its GPU, written to `depths[slot.index]`, and 0 for all
    /// others. Slots beyond the end of `depths` are left out.
    ///
    /// The fastest answer, for callers who number their workers densely. As with [`Overlaps::to_dense`], generations
    /// are the caller's to compare: the slots are those that were live at the moment of the answer.
    pub fn gpu_depths(&self, prompt: &[BlockHash], scratch: &mut Scratch, depths: &mut [u32]) {
        depths.fill(0);
        let shards = self.shards.len();
        for (shard, shared) in self.shards.iter().enumerate() {
            shared.look_up(prompt, &mut scratch.path, &mut Depths { depths, shard, shards });
        }
    }

    /// How many blocks `slot` holds in each tier, in order of [`Tier::ALL`](crate::event::Tier::ALL);
    /// zeros for an incarnation that is over or unknown.
    ///
    /// Blocks are counted as the engine names them: copies of one block count once, waiting blocks not at all.
    /// An engine cannot hold more than it has room for, so a larger count proves that removals were missed.
    #[must_use]
    pub fn blocks(&self, slot: Slot) -> [u64; 4] {
        self.shards[slot.index as usize % self.shards.len()].noted(slot)
    }

    /// The size of the index, for gauges.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for shard in self.shards.iter() {
            shard.add_totals(&mut totals);
        }
        totals
    }
}

impl fmt::Debug for PrefixIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefixIndex").field("totals", &self.totals()).finish_non_exhaustive()
    }
}
