//! From a stream's bytes to events in an applier's queue: the one place that knows the decoder and the index.

use std::sync::Arc;

use super::{
    applier::{Batch, Job},
    counters::Counters,
    gate::Gate,
    lane::{Lane, Put},
    sink::{Note, Pace, Sink, Taken},
    snapshot::{ExportRequest, RankExport},
    source::Feed,
    stream::{Memory, Purpose},
};
use crate::{
    event::{Event, Learned, Normaliser, Rejection, Rejections, wire},
    fleet::{IndexOrigin, StreamState},
    hash::BlockSize,
    slot::{Rank, Slot, WorkerId},
};

/// One rank's events: whose they are, where they come from, and how to read them.
#[derive(Clone, Debug)]
pub struct Source {
    /// What the index knows the rank by.
    pub slot: Slot,
    /// The worker, for logs.
    pub worker: WorkerId,
    /// The rank. Batches that name another are counted and dropped: each rank has a stream of its own, so such
    /// a batch comes from an endpoint that was registered for the wrong rank, and crediting it would be a guess.
    pub rank: Rank,
    /// How to reach them.
    pub feed: Feed,
    /// Tokens in a block.
    pub block_size: BlockSize,
    /// The engine's blocks are hashed with one token of look-ahead.
    pub eagle: bool,
    /// Blocks that the rank's cache has room for, if known: the index makes its tables large enough beforehand, and
    /// a rank that seems to hold more is built anew.
    pub room: Option<u64>,
}

/// Decodes, normalises and hashes on the stream's thread, and queues the outcome.
pub(super) struct IndexSink {
    source: Source,
    batch: wire::Batch,
    normaliser: Normaliser,
    /// What the normaliser had counted when we last looked.
    seen: Rejections,
    gate: Arc<Gate>,
    lane: Lane,
    /// From the first batch that is not taken until the lane has room.
    overloaded: bool,
    /// The state that was told last.
    told: StreamState,
    counters: Arc<Counters>,
}

impl IndexSink {
    pub(super) fn new(source: Source, gate: Arc<Gate>, lane: Lane, counters: Arc<Counters>) -> Self {
        Self {
            normaliser: Normaliser::new(source.block_size, source.eagle),
            batch: wire::Batch::default(),
            seen: Rejections::default(),
            source,
            gate,
            lane,
            overloaded: false,
            told: StreamState::Unproven,
            counters,
        }
    }

    /// The index is to have the rank's blocks from a snapshot, and this is what the stream had learned then.
    pub(super) fn resume(&mut self, learned: &Learned) {
        self.normaliser.resume(learned);
        // From here on it is the stream's thread alone that changes it, by what it finds there.
        self.gate.status().set_origin(IndexOrigin::UnconfirmedSnapshot);
    }

    /// What the snapshot said is not true any more, or nobody can tell.
    fn give_up_snapshot(&mut self) {
        let status = self.gate.status();
        let origin = status.origin();
        status.set_origin(IndexOrigin::Events);
        if origin == IndexOrigin::UnconfirmedSnapshot {
            self.normaliser.reset();
            self.counters.note_given_up();
            tracing::info!(
                worker = %self.source.worker,
                rank = %self.source.rank,
                "the snapshot's blocks are dropped: the engine is another one, or its replay does not reach back so far"
            );
        }
    }

    /// The engine showed that what the snapshot said is true, and has said everything since.
    fn confirm_snapshot(&self) {
        let status = self.gate.status();
        if status.origin() == IndexOrigin::UnconfirmedSnapshot {
            self.counters.note_resumed();
            status.set_origin(IndexOrigin::Snapshot);
        }
    }

    /// Decodes the payload into [`Self::batch`]; `false` when that is not possible. Nothing is learned from it yet.
    fn decode(&mut self, payload: &[u8]) -> bool {
        let decoded = wire::decode(payload, &mut self.batch);
        if let Err(error) = &decoded {
            let (worker, rank) = (self.source.worker, self.source.rank);
            tracing::debug!(%worker, %rank, %error, "unreadable KV event batch");
        }
        decoded.is_ok()
    }

    /// Reads what was decoded into events; `None` if its end is missing, or a removal in it.
    fn read(&mut self) -> Option<Vec<Event>> {
        let mut events = Vec::new();
        if self.batch.rank.is_some_and(|rank| rank != self.source.rank.0) {
            self.counters.note_foreign_rank();
            return Some(events);
        }
        self.normaliser.normalise(&self.batch, &mut events);
        self.count_rejections();
        // What was taken away unread would stay in the index for good.
        let is_lost = self.batch.truncated || self.batch.lost_removal;
        if is_lost { None } else { Some(events) }
    }

    /// Says once for each overload that one began.
    fn refuse(&mut self) -> Taken {
        if !std::mem::replace(&mut self.overloaded, true) {
            self.gate.begin_overload();
            tracing::warn!(
                worker = %self.source.worker,
                rank = %self.source.rank,
                "KV events come faster than they are applied: they are dropped, and asked for again once there is room"
            );
        }
        Taken::Refused
    }

    fn count_rejections(&mut self) {
        if *self.normaliser.rejections() == self.seen {
            return;
        }
        let now = self.normaliser.rejections().clone();
        for reason in Rejection::ALL {
            let (before, count) = (self.seen.get(reason), now.get(reason));
            self.counters.note_rejected(reason, count - before);
            if before == 0 && count > 0 {
                self.warn_of(reason);
            }
        }
        self.seen = now;
    }

    /// Says once per stream that events are not used: prefixes that never match are the commonest thing that
    /// goes wrong unseen.
    fn warn_of(&self, reason: Rejection) {
        let (worker, rank, reason_name) = (self.source.worker, self.source.rank, reason.name());
        if reason == Rejection::BlockSizeMismatch {
            tracing::warn!(
                %worker,
                %rank,
                block_size = self.source.block_size.get(),
                "the engine's blocks have another size than the worker was registered with: nothing of it will \
                 match; set block_size to the engine's --block-size"
            );
        } else {
            tracing::warn!(%worker, %rank, reason = reason_name, "some KV events are not used; counted from now on");
        }
    }
}

impl Sink for IndexSink {
    fn apply(&mut self, sequence: u64, payload: &[u8], pace: Pace, stopped: &dyn Fn() -> bool) -> Taken {
        let decoded = self.decode(payload);
        let blocks = if decoded { self.batch.named_blocks() } else { 0 };
        let (lane, gate) = (self.lane.clone(), Arc::clone(&self.gate));
        let mut taken = Taken::Taken;
        // A batch that is refused is replayed: what the normaliser learned of it before, it would learn twice.
        let put = lane.put_batch(blocks, pace, stopped, || {
            let read = if decoded { self.read() } else { None };
            taken = match &read {
                None => Taken::Unreadable,
                Some(events) if events.iter().any(|event| matches!(event, Event::Cleared(None))) => {
                    Taken::Emptied
                }
                Some(_) => Taken::Taken,
            };
            let timestamp_ms = if read.is_some() { self.batch.timestamp_ms } else { 0 };
            let events = read.unwrap_or_default();
            Job::Batch(Batch { slot: self.source.slot, sequence, timestamp_ms, events, gate })
        });
        if put == Put::Refused {
            return self.refuse();
        }
        if taken == Taken::Unreadable {
            self.counters.note_unreadable_batch();
            self.gate.status().note_unreadable_batch();
        }
        taken
    }

    fn has_room(&mut self) -> bool {
        let has_room = self.lane.has_room();
        if has_room && std::mem::take(&mut self.overloaded) {
            self.gate.end_overload();
        }
        has_room
    }

    fn clear(&mut self) {
        self.give_up_snapshot();
        self.gate.withdraw();
        self.lane.put(Job::Clear(self.source.slot, Arc::clone(&self.gate)));
    }

    fn publish(&mut self, state: StreamState) {
        // It may be told again, for what it holds of: a new incarnation, or after what the index held was dropped.
        let before = std::mem::replace(&mut self.told, state);
        if before != state {
            self.gate.status().note_transition(state);
            tracing::info!(worker = %self.source.worker, rank = %self.source.rank, %before, %state, "KV event stream");
        }
        if state == StreamState::Unproven {
            self.gate.withdraw();
        } else {
            self.confirm_snapshot();
            self.lane.put(Job::State(state, self.gate.ticket(), Arc::clone(&self.gate)));
        }
    }

    fn export(&mut self, memory: Option<Memory>, request: ExportRequest) {
        let Some(memory) = memory else { return };
        let (slot, gate, lane) = (self.source.slot, Arc::clone(&self.gate), self.lane.clone());
        let learned = self.normaliser.learned();
        let export = RankExport { slot, gate, lane, memory, learned, request, export: None };
        self.lane.put(Job::Export(Box::new(export)));
    }

    fn note(&mut self, note: Note) {
        match note {
            Note::Gap => self.gate.status().note_gap(),
            // Asked whether or not something is missing: it would drown those that are.
            Note::Replay(Purpose::Check) => {}
            Note::Replay(_) => self.gate.status().note_replay(),
            Note::ReplayWaits(waits) => self.gate.status().set_replay_waits(waits),
            Note::Restart => {
                tracing::info!(
                    worker = %self.source.worker,
                    rank = %self.source.rank,
                    "the engine was started anew: what its predecessor held is dropped"
                );
                self.gate.status().note_restart();
                self.normaliser.reset();
            }
            Note::Anew => self.normaliser.forget_blocks(),
            Note::Reconnect => {
                tracing::info!(
                    worker = %self.source.worker,
                    rank = %self.source.rank,
                    "the engine's KV events do not arrive, though it is connected: connecting anew"
                );
                self.gate.status().note_reconnect();
            }
            Note::BadMessage => self.counters.note_bad_message(),
        }
    }
}
