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

/// The room of one rank's cache, and how the rank is told to begin anew.
pub(super) struct Room {
    pub(super) blocks: u64,
    pub(super) worker: WorkerId,
    pub(super) rank: Rank,
    pub(super) rebuild: Rebuild,
    /// When it was told so last, and for how long it is left alone since.
    pub(super) rebuilt: Option<(Instant, Duration)>,
}

impl Room {
    /// The index holds so many blocks of the rank on its GPU.
    pub(super) fn note(&mut self, held: u64) {
        if held <= self.blocks || self.rebuilt.is_some_and(|(rebuilt, pause)| rebuilt.elapsed() < pause) {
            return;
        }
        tracing::warn!(
            worker = %self.worker,
            rank = %self.rank,
            held,
            room = self.blocks,
            "the index holds more blocks of an engine than it has: removals were missed, or total_kv_blocks is not the engine's; \
             they are dropped, and asked for again"
        );
        let pause = self.rebuilt.map_or(PAUSE, |(_, pause)| (2 * pause).min(LONGEST_PAUSE));
        self.rebuilt = Some((Instant::now(), pause));
        self.rebuild.ask();
    }
}
