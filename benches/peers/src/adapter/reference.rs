//! What is right: kvroute's literal index, which is made to be read and not to be fast.

use std::{
    ops::Range,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use kvroute::{
    event::Event,
    hash::BlockHash,
    index::{PENDING_LIMIT, Scratch, reference::Reference},
    slot::Slot,
};

use super::{
    Hashing, Index, Opened, Reader, Writer,
    dense::Dense,
    kvroute::{event, write},
};
use crate::workload::Workload;

/// An empty literal index.
pub(crate) fn open(workload: &Workload) -> Opened {
    let reference = Arc::new(RwLock::new(Reference::new(PENDING_LIMIT)));
    let writer = Events { reference: Arc::clone(&reference), events: Vec::new() };
    let index = Shared { reference, workers: workload.workers };
    Opened { index: Arc::new(index), writer: Box::new(writer) }
}

struct Events {
    reference: Arc<RwLock<Reference>>,
    events: Vec<(Slot, Event)>,
}

impl Writer for Events {
    fn load(&mut self, workload: &Workload, ops: Range<usize>) {
        self.events.clear();
        self.events.extend(workload.ops[ops].iter().map(|op| event(workload, op)));
    }

    fn apply(&mut self) {
        let mut reference = self.reference.write().unwrap_or_else(PoisonError::into_inner);
        for (slot, event) in &self.events {
            reference.apply(*slot, event);
        }
    }

    /// Nobody times it.
    fn finish(&mut self) -> Duration {
        Duration::ZERO
    }
}

struct Shared {
    reference: Arc<RwLock<Reference>>,
    workers: u32,
}

impl Index for Shared {
    fn reader(&self) -> Box<dyn Reader + '_> {
        Box::new(Lookups {
            reference: &self.reference,
            scratch: Scratch::new(),
            hashes: Vec::new(),
            scores: Dense::new(self.workers),
        })
    }
}

struct Lookups<'a> {
    reference: &'a RwLock<Reference>,
    scratch: Scratch,
    hashes: Vec<BlockHash>,
    scores: Dense,
}

impl Reader for Lookups<'_> {
    fn load(&mut self, prompt: &[BlockHash]) {
        self.hashes.clear();
        self.hashes.extend_from_slice(prompt);
    }

    fn lookup(&mut self) {
        let reference = self.reference.read().unwrap_or_else(PoisonError::into_inner);
        write(reference.overlap(&self.hashes, &mut self.scratch), &mut self.scores);
    }

    /// It is asked by hashes only.
    fn lookup_tokens(&mut self, _: Hashing, _: &[u32]) {}

    fn scores(&self) -> Vec<(u32, u32)> {
        self.scores.scores()
    }
}
