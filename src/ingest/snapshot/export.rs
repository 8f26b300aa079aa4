//! One rank on its way out of the index.

use std::sync::Arc;

use crossbeam_channel::Sender;

use crate::{
    event::Learned,
    fleet::StreamState,
    index::{Export, IndexWriter, snapshot::Part},
    ingest::{applier::Job, gate::Gate, lane::Lane, stream::Memory},
    slot::Slot,
};

/// Blocks of a step: a fraction of what a batch may have, so that other ranks wait no longer than for each other.
const STEP: usize = 2_048;

/// Someone waits for what is known of a rank. Dropping it says that nothing certain is.
#[derive(Debug)]
pub struct ExportRequest(pub(in crate::ingest) Sender<Exported>);

/// What comes of it, in this order; the end of the channel is the end.
#[derive(Debug)]
pub(in crate::ingest) enum Exported {
    /// Once, if anything is certain.
    Begins(Box<(Memory, StreamState, Learned)>),
    /// Any number of times.
    Parts(Vec<Part>),
    /// Once, at the end.
    Ends,
}

/// A rank being written out, from the moment that its stream said where it stands.
pub(in crate::ingest) struct RankExport {
    pub(in crate::ingest) slot: Slot,
    pub(in crate::ingest) gate: Arc<Gate>,
    pub(in crate::ingest) lane: Lane,
    pub(in crate::ingest) memory: Memory,
    pub(in crate::ingest) learned: Learned,
    pub(in crate::ingest) request: ExportRequest,
    pub(in crate::ingest) export: Option<Export>,
}

impl RankExport {
    /// Writes some more, and goes back to the front of its queue if that was not all.
    pub(in crate::ingest) fn go_on(mut self: Box<Self>, writer: &IndexWriter) {
        if self.export.is_none() && !self.begin(writer) {
            return;
        }
        let Some(export) = &mut self.export else { return };
        let mut parts = Vec::new();
        let more = writer.export_some(export, STEP, |part| parts.push(part));
        // An error means that nobody waits any more.
        let is_wanted = parts.is_empty() || self.request.0.send(Exported::Parts(parts)).is_ok();
        if is_wanted && more {
            let lane = self.lane.clone();
            lane.put_first(Job::Export(self));
        } else if is_wanted {
            let _ = self.request.0.send(Exported::Ends);
        }
    }

    /// Whether the index is where the stream said.
    fn begin(&mut self, writer: &IndexWriter) -> bool {
        let status = self.gate.status();
        let state = status.state();
        let is_certain = matches!(state, StreamState::Live | StreamState::Incomplete)
            && status.cursor() == Some(self.memory.sequence);
        if !is_certain {
            return false;
        }
        // The index may hold less than the stream said, which whoever goes on from there cannot know.
        if state == StreamState::Incomplete && self.memory.lost_before.is_none() {
            self.memory.lost_before = Some(self.memory.sequence.saturating_add(1));
        }
        self.export = Some(writer.export(self.slot));
        let begins = Box::new((self.memory, state, std::mem::take(&mut self.learned)));
        self.request.0.send(Exported::Begins(begins)).is_ok()
    }
}
