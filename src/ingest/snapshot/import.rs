//! One rank on its way into the index.

use std::sync::Arc;

use bytes::{Buf as _, Bytes};

use super::{read::next_record, wire::Record};
use crate::{
    index::{IndexWriter, snapshot::Import},
    ingest::{applier::Job, counters::Counters, gate::Gate, lane::Lane},
    slot::Slot,
};

/// Blocks that a step takes out again at most.
const STEP: usize = 2_048;

/// A rank being built from a snapshot, before its stream's first batch.
pub(in crate::ingest) struct Load {
    records: Bytes,
    /// Where the stream stood.
    sequence: u64,
    import: Import,
    gate: Arc<Gate>,
    lane: Lane,
    counters: Arc<Counters>,
}

impl Load {
    /// What is held of a rank is built from these frames.
    pub(in crate::ingest) fn new(
        (slot, sequence, records): (Slot, u64, Bytes),
        gate: Arc<Gate>,
        lane: Lane,
        counters: Arc<Counters>,
    ) -> Self {
        let import = Import::new(slot, fastrand::u64(..));
        Self { records, sequence, import, gate, lane, counters }
    }

    /// Builds some more, and goes back to the front of its queue if that was not all.
    pub(in crate::ingest) fn go_on(mut self: Box<Self>, writer: &mut IndexWriter) {
        let more = self.put_some(writer) || self.import.finish(writer, STEP);
        if more {
            let lane = self.lane.clone();
            lane.put_first(Job::Load(self));
        } else {
            // After the writes, as for a batch.
            self.gate.status().set_cursor(Some(self.sequence));
        }
    }

    fn put_some(&mut self, writer: &mut IndexWriter) -> bool {
        // A rank that may not grow is incomplete, with whatever it has.
        if self.records.is_empty() || self.gate.status().growth_stopped() {
            return false;
        }
        // Every frame was read once before it was kept.
        let Ok((record, length)) = next_record(&self.records) else { return false };
        self.records.advance(length);
        if let Record::Parts(parts) = record {
            for part in parts {
                let applied = self.import.put(writer, &part.into());
                self.counters.note_loaded(u64::from(applied.stored));
            }
        }
        true
    }
}
