//! The handle that owns the appliers of an index, and opens streams into them.

use std::{io, sync::Arc, thread};

use super::{
    applier::{Applier, HandApplier, Job},
    budget::{Budget, IndexMemory, Member},
    counters::Counters,
    expecting::Notices,
    gate::Gate,
    handle::Stream,
    index_sink::{IndexSink, Source},
    lane::{Lane, Turn},
    replays::Replays,
    room::Watch,
    settings::IngestSettings,
    sink::Sink,
    snapshot::Load,
    source::{Contexts, SourceError},
    stream::Memory,
};
use crate::{
    event::Learned,
    fleet::{Expectations, ExpectedLimits, StreamStatus},
    index::IndexWriter,
    slot::Slot,
};
use ahash::AHashMap;
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;

/// Owns the index's writers, one applier thread each, and opens streams into them.
///
/// Streams decode, normalise and hash on their own threads, which is most of the work and runs in parallel;
/// appliers only write to the index, in order per rank, because all of a slot's batches go to one of them.
///
/// Appliers end once the ingestor and every stream opened through it are dropped.
pub struct Ingestor {
    appliers: Vec<Sender<Turn>>,
    /// Of the ranks that have streams, or had and are not retired.
    lanes: Mutex<AHashMap<Slot, Lane>>,
    contexts: Contexts,
    settings: IngestSettings,
    budget: Arc<Budget>,
    counters: Arc<Counters>,
}

impl Ingestor {
    /// Starts an applier for each writer of an index, with a memory limit of its own if `settings` has one.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(writers: Vec<IndexWriter>, settings: IngestSettings) -> io::Result<Self> {
        let (budget, replays) = (Arc::new(Budget::new(&settings)), Replays::new(settings.replays));
        Self::start_within(writers, settings, budget, replays)
    }

    /// The same within limits that others share.
    pub(super) fn start_within(
        writers: Vec<IndexWriter>,
        settings: IngestSettings,
        budget: Arc<Budget>,
        replays: Arc<Replays>,
    ) -> io::Result<Self> {
        let (ingestor, appliers) = Self::with_appliers(writers, settings, budget, replays);
        for (shard, (applier, inbox)) in appliers.into_iter().enumerate() {
            thread::Builder::new().name(format!("kv-apply-{shard}")).spawn(move || applier.run(&inbox))?;
        }
        Ok(ingestor)
    }

    /// An ingestor whose appliers, one a writer, do nothing but what they are told: for whoever has an order of things, and a
    /// time, of their own. Ranks are given to it by [`Ingestor::sink`], and it keeps to no memory limit.
    #[must_use]
    pub fn by_hand(writers: Vec<IndexWriter>, settings: IngestSettings) -> (Self, Vec<HandApplier>) {
        let budget = Arc::new(Budget::new(&IngestSettings { memory_limit: None, ..settings }));
        let replays = Replays::new(settings.replays);
        let (ingestor, appliers) = Self::with_appliers(writers, settings, budget, replays);
        (ingestor, appliers.into_iter().map(|(applier, turns)| HandApplier { applier, turns }).collect())
    }

    fn with_appliers(
        writers: Vec<IndexWriter>,
        settings: IngestSettings,
        budget: Arc<Budget>,
        replays: Arc<Replays>,
    ) -> (Self, Vec<(Applier, Receiver<Turn>)>) {
        let counters = Arc::new(Counters::default());
        // A turn for each rank at most.
        let (turns, inboxes): (Vec<_>, Vec<_>) = writers.iter().map(|_| unbounded()).unzip();
        let applier = |writer| {
            let mut applier = Applier::new(writer, Arc::clone(&counters), Arc::clone(&budget));
            applier.before_batch = settings.before_batch;
            applier
        };
        let appliers = writers.into_iter().map(applier).zip(inboxes).collect();
        let (lanes, contexts) = (Mutex::default(), Contexts::with(replays));
        (Self { appliers: turns, lanes, contexts, settings, budget, counters }, appliers)
    }

    /// Opens a rank's event stream, whose `status` is unproven from here on. Dropping the stream ends it; call [`Ingestor::retire`] after that.
    ///
    /// # Errors
    /// See [`Stream::open`].
    pub fn open(&self, source: Source, status: Arc<StreamStatus>) -> Result<Stream, SourceError> {
        self.resume(source, status, None)
    }

    /// The same for a rank of which a snapshot says where its stream stood, what that had learned, and what it held.
    pub(super) fn resume(
        &self,
        source: Source,
        status: Arc<StreamStatus>,
        snapshot: Option<(Memory, Learned, Bytes)>,
    ) -> Result<Stream, SourceError> {
        let Some(lane) = self.lane(source.slot) else { return Err(SourceError::NoWriter) };
        let (slot, worker, rank, has_room) = (source.slot, source.worker, source.rank, source.room.is_some());
        let feed = source.feed.clone();
        let gate = Gate::new(status);
        let mut sink = self.sink_of(source, &gate, &lane);
        let memory = snapshot.map(|(memory, learned, records)| {
            sink.resume(&learned);
            let counters = Arc::clone(&self.counters);
            let load = Load::new((slot, memory.sequence, records), Arc::clone(&gate), lane.clone(), counters);
            lane.put(Job::Load(Box::new(load)));
            memory
        });
        let stream = Stream::resume(&self.contexts, &feed, sink, memory).inspect_err(|_| {
            if memory.is_some() {
                lane.put(Job::Retire(slot));
            }
        })?;
        if has_room {
            lane.put(Job::Watch(slot, Watch { worker, rank, rebuild: stream.rebuild() }));
        }
        self.budget.enter(Member { slot, worker, rank, gate, rebuild: stream.rebuild() });
        self.lanes.lock().insert(slot, lane);
        Ok(stream)
    }

    /// Where a rank's batches and states go, for whoever drives its [`StreamMachine`](super::StreamMachine) by themselves: `status` is
    /// unproven from here on. `None` if there is no index to write to. Drop it before [`Ingestor::retire`].
    pub fn sink(&self, source: Source, status: Arc<StreamStatus>) -> Option<impl Sink + use<>> {
        let (slot, lane) = (source.slot, self.lane(source.slot)?);
        let sink = self.sink_of(source, &Gate::new(status), &lane);
        self.lanes.lock().insert(slot, lane);
        Some(sink)
    }

    fn sink_of(&self, source: Source, gate: &Arc<Gate>, lane: &Lane) -> IndexSink {
        if let Some(room) = source.room {
            lane.put(Job::Expect(source.slot, room));
        }
        gate.withdraw();
        IndexSink::new(source, Arc::clone(gate), lane.clone(), Arc::clone(&self.counters))
    }

    /// Expects what is told to be sent to a rank to be cached there, and writes that to the index as what `slot` holds, until
    /// that is retired. Slots that are given out one after the other may be in different shards; then what the stream of `rank`
    /// says of its cache is not heard there.
    pub fn expect(
        &self,
        rank: Slot,
        slot: Slot,
        limits: ExpectedLimits,
    ) -> Option<impl Expectations + use<>> {
        let is_beside = self.shard(rank) == self.shard(slot);
        let mut lanes = self.lanes.lock();
        // In one queue with what the rank's stream says, so that what it empties stays empty.
        let lane = lanes.get(&rank).filter(|_| is_beside).cloned().or_else(|| self.lane(slot))?;
        lane.put(Job::Begin { rank, slot, limits });
        lanes.insert(slot, lane.clone());
        Some(Notices { slot, lane, counters: Arc::clone(&self.counters) })
    }

    /// Drops everything the index holds of `slot`, after all that its stream has queued so far.
    pub fn retire(&self, slot: Slot) {
        self.budget.leave(slot);
        let lane = self.lanes.lock().remove(&slot);
        if let Some(lane) = lane.or_else(|| self.lane(slot)) {
            lane.put(Job::Retire(slot));
        }
    }

    /// What all streams together have done.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Batches and changes of state that wait, one number an applier.
    #[must_use]
    pub fn queued(&self) -> Vec<usize> {
        let mut queued = vec![0; self.appliers.len()];
        for (slot, lane) in self.lanes.lock().iter() {
            if let Some(queued) = queued.get_mut(self.shard(*slot)) {
                *queued += lane.len();
            }
        }
        queued
    }

    /// What the indexes of the ingestor's budget use.
    #[must_use]
    pub fn memory(&self) -> IndexMemory {
        self.budget.memory()
    }

    /// The index's rule for which writer a slot's events go to.
    fn shard(&self, slot: Slot) -> usize {
        slot.index as usize % self.appliers.len().max(1)
    }

    /// A queue for what concerns a slot.
    fn lane(&self, slot: Slot) -> Option<Lane> {
        let turns = self.appliers.get(self.shard(slot))?;
        Some(Lane::new(turns.clone(), &self.settings))
    }
}
