//! What ingestion can be told.

use std::{num::NonZeroUsize, time::Duration};

use super::stream::StreamSettings;
use crate::slot::Slot;

/// Replays that run at once unless said otherwise: enough to keep the appliers busy while some engines answer slowly.
pub(super) const DEFAULT_REPLAYS: NonZeroUsize = NonZeroUsize::new(16).unwrap();

/// Limits and times of ingestion.
#[derive(Clone, Copy, Debug)]
pub struct IngestSettings {
    /// Of each stream.
    pub stream: StreamSettings,
    /// Bytes that all indexes together may use; `None`, the default, sets no limit. See [`crate::index::IndexWriter::used_bytes`] for
    /// what counts.
    pub memory_limit: Option<u64>,
    /// Least time between two ranks being built anew because there is memory again. Default 10 s.
    pub growth_pause: Duration,
    /// Blocks of one rank that may wait for an applier; a batch counts for 256 at least. Default 65,536.
    pub share_blocks: u64,
    /// How long a live batch waits for room before the stream counts as overloaded; replays wait for as long as it takes.
    /// Default 1 s: a burst, or a writer that is busy for a moment, makes nothing incomplete.
    pub patience: Duration,
    /// Replays of all streams that may run at once; others wait for their turn. Default 16.
    pub replays: NonZeroUsize,
    /// How long ranks of a snapshot that did not register yet are waited for. By then an engine that works has said so much that its
    /// buffer hardly reaches back. Default 600 s.
    pub snapshot_kept: Duration,
    /// Called by appliers before each batch of a rank, on their thread; for tests that need slow ones.
    pub before_batch: Option<fn(Slot)>,
}

impl Default for IngestSettings {
    fn default() -> Self {
        Self {
            stream: StreamSettings::default(),
            memory_limit: None,
            growth_pause: Duration::from_secs(10),
            share_blocks: 1 << 16,
            patience: Duration::from_secs(1),
            replays: DEFAULT_REPLAYS,
            snapshot_kept: Duration::from_secs(600),
            before_batch: None,
        }
    }
}
