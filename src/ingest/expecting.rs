//! How what is sent to ranks gets to the applier that expects it to be cached there.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ahash::AHashMap;

use super::{
    applier::Job,
    counters::Counters,
    expected::{Block, Expected},
    lane::{Lane, Put},
};
use crate::{
    fleet::{Expectations, ExpectedLimits},
    hash::{BlockHash, SequenceHash},
    index::IndexWriter,
    slot::Slot,
};

/// Blocks leave up to this much late, so that the applier is not woken for each.
const ROUNDING: Duration = Duration::from_millis(100);

/// Tells the applier what is sent to one rank.
#[derive(Debug)]
pub(super) struct Notices {
    pub(super) slot: Slot,
    pub(super) lane: Lane,
    pub(super) counters: Arc<Counters>,
}

impl Expectations for Notices {
    fn sent(&self, blocks: &[BlockHash], sequence: &[SequenceHash]) {
        if blocks.is_empty() {
            return;
        }
        let prompt: Vec<Block> = blocks.iter().copied().zip(sequence.iter().copied()).collect();
        // A request does not wait for the applier. What it misses is a guess the less.
        if self.lane.try_put(prompt.len(), Job::Sent(self.slot, prompt)) == Put::Refused {
            self.counters.note_unheard_prompt();
        }
    }

    fn doubt(&self) {
        // Nor does this: at worst the blocks stay until their time is over, or others need their place.
        let _ = self.lane.try_put(0, Job::Doubt(self.slot));
    }
}

/// What all ranks of an applier are expected to hold.
#[derive(Debug)]
pub(super) struct Expecting {
    of: AHashMap<Slot, Expected>,
    /// The slots beside those of ranks with events, by these.
    beside: AHashMap<Slot, Slot>,
    epoch: Instant,
    /// When to look for blocks whose time is over.
    due: Option<Duration>,
}

impl Expecting {
    pub(super) fn new() -> Self {
        Self { of: AHashMap::new(), beside: AHashMap::new(), epoch: Instant::now(), due: None }
    }

    pub(super) fn begin(&mut self, rank: Slot, slot: Slot, limits: ExpectedLimits) {
        self.of.insert(slot, Expected::new(limits));
        if rank != slot {
            self.beside.insert(rank, slot);
        }
    }

    /// The slot has ended, a rank's own or one beside.
    pub(super) fn end(&mut self, slot: Slot) {
        self.of.remove(&slot);
        self.beside.remove(&slot);
    }

    /// The cache of `rank` is empty, its events say.
    pub(super) fn emptied(&mut self, rank: Slot, writer: &mut IndexWriter) {
        if let Some(&beside) = self.beside.get(&rank) {
            self.doubt(beside, writer);
        }
    }

    /// A slot that has ended, or never began, is not listened to.
    pub(super) fn sent(&mut self, slot: Slot, prompt: &[Block], writer: &mut IndexWriter) {
        let now = self.epoch.elapsed();
        let Some(expected) = self.of.get_mut(&slot) else { return };
        expected.sent(prompt, now, |event| {
            writer.apply(slot, &event);
        });
        let due = expected.due().map(|due| due.saturating_add(ROUNDING));
        self.due = self.due.into_iter().chain(due).min();
    }

    pub(super) fn doubt(&mut self, slot: Slot, writer: &mut IndexWriter) {
        if let Some(expected) = self.of.get_mut(&slot) {
            writer.apply(slot, &expected.clear());
        }
    }

    /// How long it is until there is something to do; `None` if nothing is expected.
    pub(super) fn wait(&self) -> Option<Duration> {
        Some(self.due?.saturating_sub(self.epoch.elapsed()))
    }

    /// Ends what has been expected for long enough, if it is time to look.
    pub(super) fn expire(&mut self, writer: &mut IndexWriter) {
        if self.wait().is_none_or(|wait| !wait.is_zero()) {
            return;
        }
        let now = self.epoch.elapsed();
        for (&slot, expected) in &mut self.of {
            expected.expire(now, |event| {
                writer.apply(slot, &event);
            });
        }
        let next = self.of.values().filter_map(Expected::due).min();
        self.due = next.map(|due| due.saturating_add(ROUNDING));
    }
}
