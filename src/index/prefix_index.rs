//! The face of the index: lookups and totals, from any thread.

use std::{num::NonZeroUsize, sync::Arc};

use parking_lot::RwLock;

use super::{IndexWriter, Overlaps, Scratch, reference::Reference};
use crate::{hash::BlockHash, slot::Slot};

/// How many blocks of one slot may wait for a place, unless chosen otherwise. It is a guess between two needs: a
/// router that starts among warm engines meets many orphans, and a waiting block takes about half a kilobyte
/// (so 2 MiB for a slot at the limit) that may never be of use.
pub const PENDING_LIMIT: usize = 4096;

/// Which slots hold which prefixes. Cheap to clone; all clones are the same index.
#[derive(Clone, Debug)]
pub struct PrefixIndex {
    shards: Arc<[RwLock<Reference>]>,
}

/// The size of an index, summed over its shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Places in the tree: blocks that some slot holds, and those on the way to them.
    pub places: u64,
    /// Names in use; a name that several slots use counts once for each.
    pub names: u64,
    /// Blocks, as their engines name them, held in each tier by all slots; see [`PrefixIndex::blocks`].
    pub blocks: [u64; 4],
    /// Blocks that wait for their place.
    pub pending: u64,
    /// Waiting blocks ever dropped because too many of one slot waited.
    pub dropped: u64,
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
        let shards: Arc<[_]> =
            (0..shards.get()).map(|_| RwLock::new(Reference::new(pending_limit))).collect();
        let writers = (0..shards.len()).map(|shard| IndexWriter::new(Arc::clone(&shards), shard)).collect();
        (Self { shards }, writers)
    }

    /// How many leading blocks of `prompt` each slot holds, in any order of slots.
    ///
    /// Shards are read one after another: the answer for any one slot is of a single moment, those for slots of
    /// different shards may be of different moments. Allocates nothing once `scratch` has grown to the size
    /// of the answer.
    pub fn overlap<'a>(&self, prompt: &[BlockHash], scratch: &'a mut Scratch) -> Overlaps<'a> {
        scratch.clear();
        for shard in self.shards.iter() {
            shard.read().overlap(prompt, scratch);
        }
        Overlaps { scratch }
    }

    /// How many blocks `slot` holds in each tier, in order of [`Tier::ALL`](crate::event::Tier::ALL);
    /// zeros for an incarnation that is over or unknown.
    ///
    /// Blocks are counted as the engine names them: copies of one block count once, waiting blocks not at all.
    /// An engine cannot hold more than it has room for, so a larger count proves that removals were missed.
    #[must_use]
    pub fn blocks(&self, slot: Slot) -> [u64; 4] {
        self.shards[slot.index as usize % self.shards.len()].read().blocks(slot)
    }

    /// The size of the index, for gauges.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for shard in self.shards.iter() {
            shard.read().add_totals(&mut totals);
        }
        totals
    }
}
