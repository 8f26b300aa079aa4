//! The threads that write to the index.

use std::{sync::Arc, thread, time::Duration};

use super::{
    budget::Budget,
    counters::Counters,
    expected::Block,
    expecting::Expecting,
    gate::{Gate, Ticket},
    lane::Turn,
    retold,
    room::{Room, Watch},
    snapshot::{Load, RankExport},
};
use crate::{
    event::{Event, Tier},
    fleet::{ExpectedLimits, StreamState, unix_ms},
    index::{Applied, IndexWriter},
    slot::Slot,
};
use ahash::AHashMap;
use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};
use smallvec::SmallVec;

/// Blocks that tables are made for beforehand at most: a card may say anything, and 64 million take half a gigabyte.
const MOST_EXPECTED: u64 = 64 << 20;

/// How long an applier that has done all there was lets more gather before it waits to be woken. Whoever queues something
/// meanwhile wakes nobody, and to wake a thread on an idle core costs a request more than all that the applier does for it. What
/// waits is in the index that much later.
const GATHERING: Duration = Duration::from_micros(500);

/// An applier of an [`Ingestor::by_hand`](super::Ingestor::by_hand).
pub struct HandApplier {
    pub(super) applier: Applier,
    pub(super) turns: Receiver<Turn>,
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
    /// It is to be built anew when it seems to hold more.
    Watch(Slot, Watch),
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

/// Writes what one shard's lanes bring, a turn at a time.
pub(super) struct Applier {
    writer: IndexWriter,
    counters: Arc<Counters>,
    budget: Arc<Budget>,
    /// Bytes that the budget knows of.
    noted: u64,
    /// Room of the caches whose ranks are here.
    rooms: AHashMap<Slot, Room>,
    expecting: Expecting,
    pub(super) before_batch: Option<fn(Slot)>,
}

impl Applier {
    pub(super) fn new(writer: IndexWriter, counters: Arc<Counters>, budget: Arc<Budget>) -> Self {
        let (rooms, expecting) = (AHashMap::new(), Expecting::new());
        Self { writer, counters, budget, noted: 0, rooms, expecting, before_batch: None }
    }

    pub(super) fn run(mut self, turns: &Receiver<Turn>) {
        let (mut untidy, mut gathered) = (false, true);
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
                Err(TryRecvError::Empty) if !gathered => {
                    gathered = true;
                    thread::sleep(GATHERING);
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
            (untidy, gathered) = (true, false);
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
                self.rooms.remove(&slot);
                self.expecting.end(slot);
            }
            Job::Export(export) => export.go_on(&self.writer),
            Job::Load(load) => load.go_on(&mut self.writer),
            Job::Expect(slot, room) => {
                self.rooms.insert(slot, Room::new(room));
                let all = in_all(self.rooms.values().map(Room::blocks));
                self.writer.expect(self.budget.expected(all) as usize);
            }
            Job::Watch(slot, watch) => {
                if let Some(room) = self.rooms.get_mut(&slot) {
                    room.watch(watch);
                }
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

    /// Applies events in order; what the last one did.
    fn apply_all(&mut self, events: &[(Slot, &Event)], may_grow: bool) -> Applied {
        let mut last = Applied::default();
        let mut note = |event: &Event, applied: Applied| {
            self.counters.note_applied(event, applied);
            last = applied;
        };
        if may_grow {
            self.writer.apply_all(events, note);
        } else {
            for &(slot, event) in events {
                note(event, self.writer.apply_without_growth(slot, event));
            }
        }
        last
    }

    fn apply(&mut self, batch: &Batch) {
        if let Some(before) = self.before_batch {
            before(batch.slot);
        }
        let status = batch.gate.status();
        let may_grow = !status.growth_stopped();
        let mut events: SmallVec<[(Slot, &Event); 32]> = SmallVec::new();
        // What the rank holds is asked before anything that comes after a prefix that may be told again.
        for run in batch.events.split_inclusive(|event| retold::may_be(event).is_some()) {
            events.clear();
            events.extend(run.iter().map(|event| (batch.slot, event)));
            let applied = self.apply_all(&events, may_grow);
            if let Some(stored) = run.last().and_then(retold::may_be) {
                retold::take_back(&mut self.writer, batch.slot, stored, applied);
            }
        }
        if batch.events.iter().any(|event| matches!(event, Event::Cleared(None))) {
            self.expecting.emptied(batch.slot, &mut self.writer);
        }
        // One that may not grow would stay empty.
        if may_grow && let Some(room) = self.rooms.get_mut(&batch.slot) {
            room.note(self.writer.blocks(batch.slot)[Tier::Gpu.index()]);
        }
        let lag = if batch.timestamp_ms == 0 { 0 } else { unix_ms().saturating_sub(batch.timestamp_ms) };
        status.note_batch(batch.timestamp_ms, lag);
        // After the writes: whoever sees the cursor relies on them.
        status.set_cursor(Some(batch.sequence));
    }
}

/// Blocks that these caches have room for, as far as tables are made for them.
fn in_all(rooms: impl Iterator<Item = u64>) -> u64 {
    rooms.fold(0, u64::saturating_add).min(MOST_EXPECTED)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use crossbeam_channel::unbounded;

    use super::*;
    use crate::{
        event::{EngineHash, Removed, Stored, StoredBlock},
        fleet::StreamStatus,
        hash::BlockHash,
        index::PrefixIndex,
        ingest::{IngestSettings, lane::Lane},
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
    fn rooms_beyond_all_measure_are_as_much_as_tables_are_made_for() {
        assert_eq!(in_all([3, 4].into_iter()), 7);
        assert_eq!(in_all([u64::MAX, 1].into_iter()), MOST_EXPECTED);
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
