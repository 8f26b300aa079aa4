//! What ingestion has done, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    event::{Event, Rejection},
    index::Applied,
};

/// Counters of all streams of one [`super::Ingestor`].
///
/// Every access is `Relaxed`: each is a number of its own, read for display.
#[derive(Debug, Default)]
pub struct Counters {
    stored_events: AtomicU64,
    removed_events: AtomicU64,
    cleared_events: AtomicU64,
    stored: AtomicU64,
    already: AtomicU64,
    pending: AtomicU64,
    removed: AtomicU64,
    kept: AtomicU64,
    unknown: AtomicU64,
    cleared: AtomicU64,
    attached: AtomicU64,
    dropped: AtomicU64,
    refused: AtomicU64,
    bad_messages: AtomicU64,
    unreadable_batches: AtomicU64,
    foreign_rank_batches: AtomicU64,
    unheard_prompts: AtomicU64,
    loaded: AtomicU64,
    resumed: AtomicU64,
    given_up: AtomicU64,
    rejected: [AtomicU64; Rejection::ALL.len()],
}

/// The counters at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IngestTotals {
    /// Events applied that made blocks resident.
    pub stored_events: u64,
    /// Events applied that took blocks away.
    pub removed_events: u64,
    /// Events applied that emptied a tier or a cache.
    pub cleared_events: u64,
    /// What the index made of the blocks in them.
    pub blocks: BlockTotals,
    /// Messages that were not shaped like a batch.
    pub bad_messages: u64,
    /// Batches whose bytes could not be read, or not to their end, or with a removal among them that could not.
    pub unreadable_batches: u64,
    /// Batches that named another rank than their stream's.
    pub foreign_rank_batches: u64,
    /// Prompts sent to ranks without events whose blocks nobody expects there, since the applier had no time.
    pub unheard_prompts: u64,
    /// Blocks that were built from snapshots.
    pub loaded_blocks: u64,
    /// Ranks whose engines were shown to be those of a snapshot.
    pub resumed_ranks: u64,
    /// Ranks for which a snapshot had blocks that turned out not to be true any more, or could not be shown to be.
    pub given_up_ranks: u64,
    /// Events that could not be read or were not let through, by the normaliser's reason; every reason is there.
    pub rejected: Vec<(&'static str, u64)>,
}

/// Blocks by what became of them, as [`Applied`] counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockTotals {
    /// Newly held.
    pub stored: u64,
    /// Held already: another copy, or a prefix told of once more.
    pub already: u64,
    /// Waiting for a parent whose place is not known.
    pub pending: u64,
    /// No longer held.
    pub removed: u64,
    /// Lost a copy and have others left.
    pub kept: u64,
    /// Removals of blocks that were not held.
    pub unknown: u64,
    /// Gone with a cleared tier or cache, or with their slot.
    pub cleared: u64,
    /// Had waited, and got their place.
    pub attached: u64,
    /// Had waited, and went because too many did.
    pub dropped: u64,
    /// Not held because the index has no room.
    pub refused: u64,
}

impl Counters {
    pub(super) fn note_applied(&self, event: &Event, applied: Applied) {
        let kind = match event {
            Event::Stored(_) => &self.stored_events,
            Event::Removed(_) => &self.removed_events,
            Event::Cleared(_) => &self.cleared_events,
        };
        add(kind, 1);
        self.note_blocks(applied);
    }

    pub(super) fn note_blocks(&self, applied: Applied) {
        add(&self.stored, applied.stored.into());
        add(&self.already, applied.already.into());
        add(&self.pending, applied.pending.into());
        add(&self.removed, applied.removed.into());
        add(&self.kept, applied.kept.into());
        add(&self.unknown, applied.unknown.into());
        add(&self.cleared, applied.cleared.into());
        add(&self.attached, applied.attached.into());
        add(&self.dropped, applied.dropped.into());
        add(&self.refused, applied.refused.into());
    }

    pub(super) fn note_bad_message(&self) {
        add(&self.bad_messages, 1);
    }

    pub(super) fn note_unreadable_batch(&self) {
        add(&self.unreadable_batches, 1);
    }

    pub(super) fn note_foreign_rank(&self) {
        add(&self.foreign_rank_batches, 1);
    }

    pub(super) fn note_unheard_prompt(&self) {
        add(&self.unheard_prompts, 1);
    }

    pub(super) fn note_loaded(&self, blocks: u64) {
        add(&self.loaded, blocks);
    }

    pub(super) fn note_resumed(&self) {
        add(&self.resumed, 1);
    }

    pub(super) fn note_given_up(&self) {
        add(&self.given_up, 1);
    }

    pub(super) fn note_rejected(&self, reason: Rejection, count: u64) {
        add(&self.rejected[reason as usize], count);
    }

    /// Adds what others have counted.
    pub(super) fn add_all(&self, others: &Self) {
        for (sum, more) in self.each().zip(others.each()) {
            add(sum, more.load(Ordering::Relaxed));
        }
    }

    /// Every counter, in one order.
    fn each(&self) -> impl Iterator<Item = &AtomicU64> {
        // By name, so that one that is new is not left out.
        let Self {
            stored_events,
            removed_events,
            cleared_events,
            stored,
            already,
            pending,
            removed,
            kept,
            unknown,
            cleared,
            attached,
            dropped,
            refused,
            bad_messages,
            unreadable_batches,
            foreign_rank_batches,
            unheard_prompts,
            loaded,
            resumed,
            given_up,
            rejected,
        } = self;
        let events = [stored_events, removed_events, cleared_events];
        let blocks = [stored, already, pending, removed, kept, unknown, cleared, attached, dropped, refused];
        let problems = [bad_messages, unreadable_batches, foreign_rank_batches, unheard_prompts];
        let snapshots = [loaded, resumed, given_up];
        events.into_iter().chain(blocks).chain(problems).chain(snapshots).chain(rejected)
    }

    /// Reads them all.
    #[must_use]
    pub fn totals(&self) -> IngestTotals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        IngestTotals {
            stored_events: read(&self.stored_events),
            removed_events: read(&self.removed_events),
            cleared_events: read(&self.cleared_events),
            blocks: BlockTotals {
                stored: read(&self.stored),
                already: read(&self.already),
                pending: read(&self.pending),
                removed: read(&self.removed),
                kept: read(&self.kept),
                unknown: read(&self.unknown),
                cleared: read(&self.cleared),
                attached: read(&self.attached),
                dropped: read(&self.dropped),
                refused: read(&self.refused),
            },
            bad_messages: read(&self.bad_messages),
            unreadable_batches: read(&self.unreadable_batches),
            foreign_rank_batches: read(&self.foreign_rank_batches),
            unheard_prompts: read(&self.unheard_prompts),
            loaded_blocks: read(&self.loaded),
            resumed_ranks: read(&self.resumed),
            given_up_ranks: read(&self.given_up),
            rejected: Rejection::ALL
                .into_iter()
                .map(|reason| (reason.name(), read(&self.rejected[reason as usize])))
                .collect(),
        }
    }
}

fn add(counter: &AtomicU64, count: u64) {
    // Most of an event's block counts are 0: leave their cache lines alone.
    if count > 0 {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}
