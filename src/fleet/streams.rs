//! What the fleet asks of whoever follows the engines' events.

use std::{fmt::Debug, sync::Arc, time::Duration};

use super::{card::Card, endpoint::StreamDirection, stream_status::StreamStatus};
use crate::{
    hash::{BlockHash, BlockSize, SequenceHash},
    index::IndexWriter,
    slot::{Rank, Slot, WorkerId},
};

/// What tells indexes apart: models never share block hashes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct IndexKey {
    /// The base model's name.
    pub model: String,
    /// Tokens per block.
    pub block_size: u32,
    /// Whether block hashes look one token ahead.
    pub eagle: bool,
}

impl IndexKey {
    pub(super) fn of(card: &Card) -> Self {
        Self { model: card.set.model.clone(), block_size: card.block_size, eagle: card.eagle }
    }
}

/// Where one rank's events come from.
#[derive(Clone, Debug)]
pub struct StreamSource {
    /// The rank's slot.
    pub slot: Slot,
    /// Its worker.
    pub worker: WorkerId,
    /// Where that serves requests.
    pub url: String,
    /// When it was started, if it says: milliseconds since the Unix epoch, by its own clock.
    pub started_ms: Option<u64>,
    /// Its rank.
    pub rank: Rank,
    /// ZMQ endpoint of the events.
    pub events: String,
    /// ZMQ endpoint of the replay socket.
    pub replay: Option<String>,
    /// Which side connects on the event socket.
    pub direction: StreamDirection,
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Whether block hashes look one token ahead.
    pub eagle: bool,
    /// Blocks that the rank's cache has room for, if its card says so.
    pub room: Option<u64>,
}

/// What the fleet asks of ingestion. Calls come one at a time, in the order of the changes, and may block: no
/// request waits for them.
pub trait Streams: Send + Sync {
    /// A new index: from now on streams of this key feed `writers`.
    ///
    /// # Errors
    /// Why nothing can feed them, for whoever registered the worker that it was made for. There is no such index then, and the
    /// next worker of the key asks again.
    fn index_created(&self, key: &IndexKey, writers: Vec<IndexWriter>) -> Result<(), String>;
    /// No set needs an index any more, and none of its streams is open.
    fn index_dropped(&self, key: &IndexKey);
    /// A rank came. Its stream writes `status`.
    ///
    /// # Errors
    /// What is wrong with the endpoint, for whoever registered the worker. There is then nothing to close.
    fn open(&self, key: &IndexKey, source: StreamSource, status: Arc<StreamStatus>) -> Result<(), String>;
    /// The worker of a rank says that it was started at another time than it said before, and what that is. Who is behind the
    /// stream, if there is one, has to be shown anew before anything is credited to it.
    fn restarted(&self, slot: Slot, started_ms: u64);
    /// A rank came of which it is guessed what it has cached, from what it is sent: `slot` is to hold that, within `limits`, until
    /// it is closed. It is `rank`, the rank's own slot, or one beside it, which is emptied whenever the stream of `rank` says
    /// that its cache is empty. Who guesses is told by what is returned; `None` if nobody does.
    fn expect(
        &self,
        key: &IndexKey,
        rank: Slot,
        slot: Slot,
        limits: ExpectedLimits,
    ) -> Option<Box<dyn Expectations>> {
        let _ = (key, rank, slot, limits);
        None
    }
    /// A rank is gone: close its stream, if it had one, and drop its blocks. Called once for every slot that was
    /// given out, whether or not it had a stream, before its index is given out again.
    fn close(&self, key: &IndexKey, slot: Slot);
}

/// How much a rank is expected to hold of what it was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpectedLimits {
    /// From when a block was last sent; `None` for no limit.
    pub ttl: Option<Duration>,
    /// Blocks.
    pub most: usize,
}

/// Takes notice of what a rank is sent, and expects it to be cached there. Nobody waits for it.
pub trait Expectations: Send + Sync + Debug {
    /// A prompt was sent: its blocks, and their chained hashes.
    fn sent(&self, blocks: &[BlockHash], sequence: &[SequenceHash]);
    /// The rank could not be reached. An engine that comes back has an empty cache, so nothing is expected there.
    fn doubt(&self);
}
