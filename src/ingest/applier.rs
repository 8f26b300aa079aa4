//! The threads that write to the index, and the handle that owns them.

use std::{
    io,
    sync::Arc,
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use super::{
    budget::{Budget, IndexMemory, Member},
    counters::Counters,
    expected::Block,
    expecting::{Expecting, Notices},
    gate::{Gate, Ticket},
    handle::Stream,
    index_sink::{IndexSink, Source},
    lane::{Lane, Turn},
    replays::Replays,
    retold,
    settings::IngestSettings,
    sink::Sink,
    snapshot::{Load, RankExport},
    source::{Contexts, SourceError},
    stream::Memory,
};
use crate::{
    event::{Event, Learned},
    fleet::{Expectations, ExpectedLimits, StreamState, StreamStatus},
    index::{Applied, IndexWriter},
    slot::Slot,
};
use ahash::AHashMap;
use bytes::Bytes;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, unbounded};
use parking_lot::Mutex;
use smallvec::SmallVec;

/// Blocks that tables are made for beforehand at most: a card may say anything, and 64 million take half a gigabyte.
const MOST_EXPECTED: u64 = 64 << 20;

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
        let (slot, worker, rank) = (source.slot, source.worker, source.rank);
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

/// An applier of an [`Ingestor::by_hand`].
pub struct HandApplier {
    applier: Applier,
    turns: Receiver<Turn>,
}

impl HandApplier {
    /// Does the next thing of the rank whose turn it is, or, where none waits, a part of what clears and growth left to do; whether
    /// there was either.
    pub fn step(&mut self) -> bool {
        match self.turns.try_recv() {
            Ok(turn) => {
                self.applier.take(turn);
                true
            }
            Err(_) => self.applier.writer.tidy(),
        }
    }
}

/// One thing to do for a rank, in order.
pub(super) enum Job {
    Batch(Batch),
    Clear(Slot, Arc<Gate>),
    State(StreamState, Ticket, Arc<Gate>),
    Retire(Slot),
    /// A rank is written out for a snapshot; nothing else of it is done before that is through.
    Export(Box<RankExport>),
    /// A rank comes whose blocks are in a snapshot.
    Load(Box<Load>),
    /// A rank comes whose cache has room for so many blocks.
    Expect(Slot, u64),
    /// A rank comes that is expected to cache what it is sent, which `slot` holds.
    Begin {
        rank: Slot,
        slot: Slot,
        limits: ExpectedLimits,
    },
    /// A prompt was sent to such a rank.
    Sent(Slot, Vec<Block>),
    /// Such a rank may have lost its cache.
    Doubt(Slot),
}

/// A batch ready for the index.
pub(super) struct Batch {
    pub(super) slot: Slot,
    pub(super) sequence: u64,
    /// By the engine's clock; 0 if it did not say.
    pub(super) timestamp_ms: u64,
    pub(super) events: Vec<Event>,
    pub(super) gate: Arc<Gate>,
}

struct Applier {
    writer: IndexWriter,
    counters: Arc<Counters>,
    budget: Arc<Budget>,
    /// Bytes that the budget knows of.
    noted: u64,
    /// Room of the caches whose ranks are here, by slot index.
    rooms: AHashMap<u32, u64>,
    expecting: Expecting,
    before_batch: Option<fn(Slot)>,
}

impl Applier {
    fn new(writer: IndexWriter, counters: Arc<Counters>, budget: Arc<Budget>) -> Self {
        let (rooms, expecting) = (AHashMap::new(), Expecting::new());
        Self { writer, counters, budget, noted: 0, rooms, expecting, before_batch: None }
    }

    fn run(mut self, turns: &Receiver<Turn>) {
        let mut untidy = false;
        loop {
            self.expecting.expire(&mut self.writer);
            // What clears and growth leave to do is done with later events, or now if none waits.
            let turn = match turns.try_recv() {
                Ok(turn) => turn,
                Err(TryRecvError::Empty) if untidy => {
                    untidy = self.writer.tidy();
                    self.note_memory();
                    continue;
                }
                Err(TryRecvError::Empty) => match self.wait(turns) {
                    Ok(turn) => turn,
                    Err(RecvTimeoutError::Timeout) => {
                        self.note_memory();
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                },
                Err(TryRecvError::Disconnected) => break,
            };
            untidy = true;
            self.take(turn);
        }
        self.budget.note(&mut self.noted, 0);
    }

    fn take(&mut self, turn: Turn) {
        if let Some(job) = turn.take() {
            self.work(job);
        }
        self.note_memory();
    }

    fn note_memory(&mut self) {
        self.budget.note(&mut self.noted, self.writer.used_bytes());
    }

    fn work(&mut self, job: Job) {
        match job {
            Job::Batch(batch) => self.apply(&batch),
            Job::Clear(slot, gate) => {
                let gone = self.writer.apply(slot, &Event::Cleared(None));
                self.counters.note_blocks(gone);
                self.expecting.emptied(slot, &mut self.writer);
                gate.status().set_cursor(None);
                self.budget.emptied(slot);
            }
            Job::State(state, ticket, gate) => gate.grant(state, ticket),
            Job::Retire(slot) => {
                let gone = self.writer.retire(slot);
                self.counters.note_blocks(gone);
                self.rooms.remove(&slot.index);
                self.expecting.end(slot);
            }
            Job::Export(export) => export.go_on(&self.writer),
            Job::Load(load) => load.go_on(&mut self.writer),
            Job::Expect(slot, room) => {
                self.rooms.insert(slot.index, room);
                let all = self.rooms.values().sum::<u64>().min(MOST_EXPECTED);
                self.writer.expect(self.budget.expected(all) as usize);
            }
            Job::Begin { rank, slot, limits } => self.expecting.begin(rank, slot, limits),
            // Guesses give way before anything that engines said.
            Job::Sent(..) if self.budget.is_tight() => self.counters.note_unheard_prompt(),
            Job::Sent(slot, prompt) => self.expecting.sent(slot, &prompt, &mut self.writer),
            Job::Doubt(slot) => self.expecting.doubt(slot, &mut self.writer),
        }
    }

    /// The next turn, or that it is time to look at what is expected, or whether a rank may grow again.
    fn wait(&self, turns: &Receiver<Turn>) -> Result<Turn, RecvTimeoutError> {
        match [self.expecting.wait(), self.budget.wait()].into_iter().flatten().min() {
            Some(wait) => turns.recv_timeout(wait),
            None => turns.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    /// Applies events of one rank in order; what they did in all.
    fn apply_plain(&mut self, events: &[(Slot, &Event)], may_grow: bool) -> Applied {
        let mut sum = Applied::default();
        let mut note = |event: &Event, applied: Applied| {
            self.counters.note_applied(event, applied);
            sum += applied;
        };
        if may_grow {
            self.writer.apply_all(events, note);
        } else {
            for &(slot, event) in events {
                note(event, self.writer.apply_without_growth(slot, event));
            }
        }
        sum
    }

    fn apply(&mut self, batch: &Batch) {
        if let Some(before) = self.before_batch {
            before(batch.slot);
        }
        let status = batch.gate.status();
        let may_grow = !status.growth_stopped();
        let mut plain: SmallVec<[(Slot, &Event); 32]> = SmallVec::new();
        for event in &batch.events {
            let Some(stored) = retold::may_be(event) else {
                plain.push((batch.slot, event));
                continue;
            };
            // What came before counts before it is asked what the rank holds.
            self.apply_plain(&plain, may_grow);
            plain.clear();
            let applied = self.apply_plain(&[(batch.slot, event)], may_grow);
            retold::take_back(&mut self.writer, batch.slot, stored, applied);
        }
        self.apply_plain(&plain, may_grow);
        if batch.events.iter().any(|event| matches!(event, Event::Cleared(None))) {
            self.expecting.emptied(batch.slot, &mut self.writer);
        }
        let lag = if batch.timestamp_ms == 0 { 0 } else { unix_ms().saturating_sub(batch.timestamp_ms) };
        status.note_batch(batch.timestamp_ms, lag);
        // After the writes: whoever sees the cursor relies on them.
        status.set_cursor(Some(batch.sequence));
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::{
        event::{EngineHash, Removed, Stored, StoredBlock, Tier},
        hash::BlockHash,
        index::PrefixIndex,
    };

    const SLOT: Slot = Slot { index: 0, generation: 0 };

    fn unproven() -> Arc<Gate> {
        Gate::new(Arc::new(StreamStatus::new(StreamState::Unproven)))
    }

    fn stored(name: u64) -> Event {
        let block = StoredBlock { engine: EngineHash(name), content: Some(BlockHash(name)) };
        Event::Stored(Stored { tier: Tier::Gpu, parent: None, blocks: [block].into_iter().collect() })
    }

    /// What an applier makes of these jobs, once it is through with them.
    fn applied(jobs: Vec<Job>) -> (PrefixIndex, Counters) {
        let (index, mut writers) = PrefixIndex::new(NonZeroUsize::MIN);
        let counters = Arc::new(Counters::default());
        let (turns, inbox) = unbounded();
        let settings = IngestSettings::default();
        let lane = Lane::new(turns, &settings);
        jobs.into_iter().for_each(|job| lane.put(job));
        drop(lane);
        let budget = Arc::new(Budget::new(&settings));
        Applier::new(writers.remove(0), Arc::clone(&counters), budget).run(&inbox);
        (index, Arc::into_inner(counters).unwrap())
    }

    fn batch(gate: &Arc<Gate>, sequence: u64, events: Vec<Event>) -> Job {
        Job::Batch(Batch { slot: SLOT, sequence, timestamp_ms: 0, events, gate: Arc::clone(gate) })
    }

    #[test]
    fn batches_reach_the_index_and_move_the_cursor() {
        let gate = unproven();
        let state = Job::State(StreamState::Live, gate.ticket(), Arc::clone(&gate));
        let (index, counters) =
            applied(vec![batch(&gate, 4, vec![stored(1), stored(2)]), batch(&gate, 5, vec![]), state]);
        assert_eq!(index.blocks(SLOT)[Tier::Gpu.index()], 2);
        assert_eq!((gate.status().cursor(), gate.status().state()), (Some(5), StreamState::Live));
        let totals = counters.totals();
        assert_eq!((totals.stored_events, totals.blocks.stored), (2, 2));
        assert_eq!(gate.status().totals().batches, 2);
    }

    /// What is held after each event of one batch.
    fn held_after_each(events: &[Event]) -> Vec<u64> {
        let held = |count: usize| {
            let (index, _) = applied(vec![batch(&unproven(), 0, events[..count].to_vec())]);
            index.blocks(SLOT)[Tier::Gpu.index()]
        };
        (1..=events.len()).map(held).collect()
    }

    fn chain(parent: Option<u64>, names: &[u64]) -> Event {
        let block = |&name: &u64| StoredBlock { engine: EngineHash(name), content: Some(BlockHash(name)) };
        let (parent, blocks) = (parent.map(EngineHash), names.iter().map(block).collect());
        Event::Stored(Stored { tier: Tier::Gpu, parent, blocks })
    }

    fn removed(names: &[u64]) -> Event {
        let hashes = names.iter().copied().map(EngineHash).collect();
        Event::Removed(Removed { tier: Tier::Gpu, hashes, remaining_copies: None })
    }

    #[test]
    fn a_prefix_that_is_told_again_is_held_once() {
        let told = [chain(None, &[1, 2, 3]), chain(None, &[1, 2]), chain(None, &[1, 2, 3, 4])];
        let gone = [removed(&[4, 3]), removed(&[2]), removed(&[1])];
        assert_eq!(held_after_each(&[told, gone].concat()), [3, 3, 4, 2, 1, 0]);
        // What was evicted in between is stored anew, and what waits for its place gets it.
        assert_eq!(held_after_each(&[chain(None, &[1, 2]), removed(&[2]), chain(None, &[1, 2])]), [2, 1, 2]);
        let waits = [chain(Some(1), &[2]), chain(None, &[1, 2]), removed(&[2]), removed(&[1])];
        assert_eq!(held_after_each(&waits), [0, 2, 1, 0]);
    }

    #[test]
    fn a_block_that_is_computed_again_is_held_twice() {
        let end = [chain(None, &[1, 2]), chain(Some(1), &[2]), removed(&[2]), removed(&[2])];
        assert_eq!(held_after_each(&end), [2, 2, 2, 1]);
        let only = [chain(None, &[1]), chain(None, &[1]), removed(&[1]), removed(&[1])];
        assert_eq!(held_after_each(&only), [1, 1, 1, 0]);
    }

    #[test]
    fn a_clear_takes_everything_before_it_and_nothing_after() {
        let gate = unproven();
        let jobs = vec![
            batch(&gate, 0, vec![stored(1), stored(2)]),
            Job::Clear(SLOT, Arc::clone(&gate)),
            batch(&gate, 7, vec![stored(3)]),
        ];
        let (index, counters) = applied(jobs);
        assert_eq!(index.blocks(SLOT)[Tier::Gpu.index()], 1);
        assert_eq!(gate.status().cursor(), Some(7));
        assert_eq!(counters.totals().blocks.cleared, 2);
    }

    #[test]
    fn a_cleared_stream_has_no_cursor() {
        let gate = unproven();
        applied(vec![batch(&gate, 3, vec![]), Job::Clear(SLOT, Arc::clone(&gate))]);
        assert_eq!(gate.status().cursor(), None);
    }

    #[test]
    fn a_slot_is_retired_after_all_that_was_queued_for_it() {
        let gate = unproven();
        let jobs =
            vec![batch(&gate, 0, vec![stored(1)]), Job::Retire(SLOT), batch(&gate, 1, vec![stored(2)])];
        let (index, _) = applied(jobs);
        assert_eq!(index.blocks(SLOT), [0; 4]);
    }

    #[test]
    fn what_was_sent_is_expected_until_the_rank_is_empty_or_in_doubt_or_gone() {
        const BESIDE: Slot = Slot { index: 1, generation: 0 };
        let gate = unproven();
        let limits = ExpectedLimits { ttl: None, most: 100 };
        let begin = |slot| Job::Begin { rank: SLOT, slot, limits };
        let sent = |slot| {
            let prompt = [1, 2].map(|block| (BlockHash(block), crate::hash::SequenceHash(block)));
            Job::Sent(slot, prompt.to_vec())
        };
        let held = |jobs: Vec<Job>, slot| applied(jobs).0.blocks(slot)[Tier::Gpu.index()];
        assert_eq!(held(vec![begin(BESIDE), sent(BESIDE), sent(BESIDE)], BESIDE), 2);
        assert_eq!(held(vec![sent(BESIDE)], BESIDE), 0, "nobody expects anything of it");
        for (end, left) in [
            (Job::Clear(SLOT, Arc::clone(&gate)), 0),
            (batch(&gate, 1, vec![Event::Cleared(None)]), 0),
            (batch(&gate, 1, vec![Event::Cleared(Some(Tier::Host))]), 2),
            (batch(&gate, 1, vec![stored(1)]), 2),
            (Job::Doubt(BESIDE), 0),
            (Job::Retire(BESIDE), 0),
            (Job::Retire(SLOT), 2),
        ] {
            assert_eq!(held(vec![begin(BESIDE), sent(BESIDE), end], BESIDE), left);
        }
        // A rank without events is its own.
        assert_eq!(held(vec![begin(SLOT), sent(SLOT)], SLOT), 2);
        assert_eq!(held(vec![begin(SLOT), sent(SLOT), Job::Retire(SLOT), sent(SLOT)], SLOT), 0);
    }
}
