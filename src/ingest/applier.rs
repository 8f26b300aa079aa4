//! The threads that write to the index, and the handle that owns them.

use std::{
    io,
    sync::Arc,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{
    counters::Counters,
    expected::Block,
    expecting::{Expecting, Notices},
    gate::{Gate, Ticket},
    handle::Stream,
    index_sink::{IndexSink, Source},
    source::{Contexts, SourceError},
};
use crate::{
    event::Event,
    fleet::{ExpectedLimits, StreamState, StreamStatus},
    index::IndexWriter,
    slot::Slot,
};
use ahash::AHashMap;
use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, TryRecvError, bounded};
use smallvec::SmallVec;

/// Batches that may wait for one applier. A second's worth of a busy fleet: enough that a pause of the applier
/// stops no stream, few enough that a stream's credit never lags far behind its engine.
const QUEUE: usize = 1_024;
/// Blocks that tables are made for beforehand at most: a card may say anything, and 64 million take half a gigabyte.
const MOST_EXPECTED: u64 = 64 << 20;
/// How often a blocked stream looks whether it is to stop.
const STOP_CHECK: Duration = Duration::from_millis(20);

/// Owns the index's writers, one applier thread each, and opens streams into them.
///
/// Streams decode, normalise and hash on their own threads, which is most of the work and runs in parallel;
/// appliers only write to the index, in order per rank, because all of a slot's batches go to one of them.
///
/// Appliers end once the ingestor and every stream opened through it are dropped.
pub struct Ingestor {
    queues: Vec<Sender<Job>>,
    contexts: Contexts,
    counters: Arc<Counters>,
}

impl Ingestor {
    /// Starts an applier for each writer of an index.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(writers: Vec<IndexWriter>) -> io::Result<Self> {
        let counters = Arc::new(Counters::default());
        let mut queues = Vec::with_capacity(writers.len());
        for (shard, writer) in writers.into_iter().enumerate() {
            let (queue, jobs) = bounded(QUEUE);
            let applier = Applier::new(writer, Arc::clone(&counters));
            thread::Builder::new().name(format!("kv-apply-{shard}")).spawn(move || applier.run(&jobs))?;
            queues.push(queue);
        }
        Ok(Self { queues, contexts: Contexts::new(), counters })
    }

    /// Opens a rank's event stream, whose `status` is unproven from here on. Dropping the stream ends it; call [`Ingestor::retire`] after that.
    ///
    /// # Errors
    /// See [`Stream::open`].
    pub fn open(&self, source: Source, status: Arc<StreamStatus>) -> Result<Stream, SourceError> {
        let Some(queue) = self.queue(source.slot) else { return Err(SourceError::NoWriter) };
        if let Some(room) = source.room {
            // An error means that the applier is gone, and nobody will wait for its tables.
            let _ = queue.send(Job::Expect(source.slot, room));
        }
        let feed = source.feed.clone();
        let gate = Gate::new(status);
        gate.withdraw();
        let sink = IndexSink::new(source, gate, queue.clone(), Arc::clone(&self.counters));
        Stream::open(&self.contexts, &feed, sink)
    }

    /// Expects what is told to be sent to a rank to be cached there, and writes that to the index as what `slot` holds, until
    /// that is retired. Slots that are given out one after the other may be in different shards; then what the stream of `rank`
    /// says of its cache is not heard there.
    pub(super) fn expect(&self, rank: Slot, slot: Slot, limits: ExpectedLimits) -> Option<Notices> {
        let queue = self.queue(slot)?.clone();
        queue.send(Job::Begin { rank, slot, limits }).ok()?;
        Some(Notices { slot, queue, counters: Arc::clone(&self.counters) })
    }

    /// Drops everything the index holds of `slot`, after all that its stream has queued so far. Blocks while the
    /// queue is full, which lasts as long as an applier takes for a batch.
    pub fn retire(&self, slot: Slot) {
        if let Some(queue) = self.queue(slot) {
            // An error means that the applier is gone, and the index's writer with it.
            let _ = queue.send(Job::Retire(slot));
        }
    }

    /// What all streams together have done.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Batches that wait, one number an applier.
    #[must_use]
    pub fn queued(&self) -> Vec<usize> {
        self.queues.iter().map(Sender::len).collect()
    }

    fn queue(&self, slot: Slot) -> Option<&Sender<Job>> {
        // The index's rule for which writer a slot's events go to.
        self.queues.get(slot.index as usize % self.queues.len().max(1))
    }
}

/// One thing to do for a rank, in order.
pub(super) enum Job {
    Batch(Batch),
    Clear(Slot, Arc<Gate>),
    State(StreamState, Ticket, Arc<Gate>),
    Retire(Slot),
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

/// Puts a job into a queue, waiting while it is full; gives up when `stopped` says so.
pub(super) fn enqueue(queue: &Sender<Job>, mut job: Job, stopped: &dyn Fn() -> bool) {
    while let Err(SendTimeoutError::Timeout(back)) = queue.send_timeout(job, STOP_CHECK) {
        if stopped() {
            return;
        }
        job = back;
    }
}

struct Applier {
    writer: IndexWriter,
    counters: Arc<Counters>,
    /// Room of the caches whose ranks are here, by slot index.
    rooms: AHashMap<u32, u64>,
    expecting: Expecting,
}

impl Applier {
    fn new(writer: IndexWriter, counters: Arc<Counters>) -> Self {
        Self { writer, counters, rooms: AHashMap::new(), expecting: Expecting::new() }
    }

    fn run(mut self, jobs: &Receiver<Job>) {
        let mut untidy = false;
        loop {
            self.expecting.expire(&mut self.writer);
            // What clears and growth leave to do is done with later events, or now if none waits.
            let job = match jobs.try_recv() {
                Ok(job) => job,
                Err(TryRecvError::Empty) if untidy => {
                    untidy = self.writer.tidy();
                    continue;
                }
                Err(TryRecvError::Empty) => match self.wait(jobs) {
                    Ok(job) => job,
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => return,
                },
                Err(TryRecvError::Disconnected) => return,
            };
            untidy = true;
            match job {
                Job::Batch(batch) => self.apply(&batch),
                Job::Clear(slot, gate) => {
                    let gone = self.writer.apply(slot, &Event::Cleared(None));
                    self.counters.note_blocks(gone);
                    self.expecting.emptied(slot, &mut self.writer);
                    gate.status().set_cursor(None);
                }
                Job::State(state, ticket, gate) => gate.grant(state, ticket),
                Job::Retire(slot) => {
                    let gone = self.writer.retire(slot);
                    self.counters.note_blocks(gone);
                    self.rooms.remove(&slot.index);
                    self.expecting.end(slot);
                }
                Job::Expect(slot, room) => {
                    self.rooms.insert(slot.index, room);
                    self.writer.expect(self.rooms.values().sum::<u64>().min(MOST_EXPECTED) as usize);
                }
                Job::Begin { rank, slot, limits } => self.expecting.begin(rank, slot, limits),
                Job::Sent(slot, prompt) => self.expecting.sent(slot, &prompt, &mut self.writer),
                Job::Doubt(slot) => self.expecting.doubt(slot, &mut self.writer),
            }
        }
    }

    /// The next job, or that it is time to look at what is expected.
    fn wait(&self, jobs: &Receiver<Job>) -> Result<Job, RecvTimeoutError> {
        match self.expecting.wait() {
            Some(wait) => jobs.recv_timeout(wait),
            None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn apply(&mut self, batch: &Batch) {
        let events: SmallVec<[(Slot, &Event); 32]> =
            batch.events.iter().map(|event| (batch.slot, event)).collect();
        self.writer.apply_all(&events, |event, applied| self.counters.note_applied(event, applied));
        if batch.events.iter().any(|event| matches!(event, Event::Cleared(None))) {
            self.expecting.emptied(batch.slot, &mut self.writer);
        }
        let lag = if batch.timestamp_ms == 0 { 0 } else { unix_ms().saturating_sub(batch.timestamp_ms) };
        batch.gate.status().note_batch(batch.timestamp_ms, lag);
        // After the writes: whoever sees the cursor relies on them.
        batch.gate.status().set_cursor(Some(batch.sequence));
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
        event::{EngineHash, Stored, StoredBlock, Tier},
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
        let (queue, inbox) = crossbeam_channel::unbounded();
        jobs.into_iter().for_each(|job| queue.send(job).unwrap());
        drop(queue);
        Applier::new(writers.remove(0), Arc::clone(&counters)).run(&inbox);
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

    #[test]
    fn a_full_queue_blocks_until_there_is_room_or_the_stream_stops() {
        let (queue, inbox) = bounded(1);
        enqueue(&queue, Job::Retire(SLOT), &|| false);
        enqueue(&queue, Job::Retire(SLOT), &|| true);
        assert_eq!(inbox.len(), 1);
        thread::scope(|scope| {
            scope.spawn(|| enqueue(&queue, Job::Retire(SLOT), &|| false));
            assert!(inbox.recv().is_ok());
            assert!(inbox.recv().is_ok());
        });
    }
}
