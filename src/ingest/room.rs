//! Ranks that seem to hold more than their engines have room for.
//!
//! An engine cannot hold more blocks than it has, so some of those that the index holds were taken away without a word of it here,
//! and nobody knows which. All of them go then, and the engine is asked for what it still knows. If that comes to too much again, the
//! engine does not report all removals, or its card does not say how many blocks it has: the rank is left alone for a while, and each time
//! for twice as long.

use std::time::{Duration, Instant};

use super::handle::Rebuild;
use crate::slot::{Rank, WorkerId};

/// How long a rank that was built anew may seem to hold too much before it is again, the first time.
const PAUSE: Duration = Duration::from_secs(600);
/// The same after many times.
const LONGEST_PAUSE: Duration = Duration::from_secs(24 * 3600);

/// The room of one rank's cache.
pub(super) struct Room {
    blocks: u64,
    /// Of a rank whose stream can begin anew.
    watch: Option<Watch>,
    /// When it was told so last, and for how long it is left alone since.
    rebuilt: Option<(Instant, Duration)>,
}

/// Who a rank is, and how it is told to begin anew.
pub(super) struct Watch {
    pub(super) worker: WorkerId,
    pub(super) rank: Rank,
    pub(super) rebuild: Rebuild,
}

impl Room {
    pub(super) const fn new(blocks: u64) -> Self {
        Self { blocks, watch: None, rebuilt: None }
    }

    pub(super) const fn blocks(&self) -> u64 {
        self.blocks
    }

    /// From here on the rank is built anew when it seems to hold more.
    pub(super) fn watch(&mut self, watch: Watch) {
        self.watch = Some(watch);
    }

    /// The index holds so many blocks of the rank on its GPU.
    pub(super) fn note(&mut self, held: u64) {
        let Some(watch) = &self.watch else { return };
        if held <= self.blocks || self.rebuilt.is_some_and(|(rebuilt, pause)| rebuilt.elapsed() < pause) {
            return;
        }
        tracing::warn!(
            worker = %watch.worker,
            rank = %watch.rank,
            held,
            room = self.blocks,
            "the index holds more blocks of an engine than it has: removals were missed, or total_kv_blocks is not the engine's; \
             they are dropped, and asked for again"
        );
        let pause = self.rebuilt.map_or(PAUSE, |(_, pause)| (2 * pause).min(LONGEST_PAUSE));
        self.rebuilt = Some((Instant::now(), pause));
        watch.rebuild.ask();
    }
}
