//! The router's side of one rank: the production state machine and sink, and between them what a stream's thread does.

use std::{rc::Rc, sync::Arc, time::Duration};

use kvroute::{
    fleet::{Expectations, ExpectedLimits, StreamState, StreamStatus},
    hash::{BlockHash, BlockSize},
    index::{PrefixIndex, Scratch},
    ingest::{
        Endpoint, Feed, HandApplier, IngestSettings, Ingestor, Note, Output, Pace, Purpose, Sink, Source,
        StreamMachine, StreamSettings, Taken,
    },
    slot::{Rank, Slot, SlotAllocator, WorkerId},
};

use crate::network::Link;

/// Blocks that wait for their place, of one rank at most: few, so that some are dropped.
pub(crate) const PENDING: usize = 12;
/// Jobs of one rank that may wait for the applier: eight batches, and what connections and clears come to meanwhile.
pub(crate) const MOST_QUEUED: usize = 64;
/// Blocks that may be predicted for one rank.
pub(crate) const MOST_PREDICTED: usize = 10;

/// What is wrong with the router, where a test wants to know whether that is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Broken {
    Nothing,
    /// It goes on with what it holds when an engine turns out to be another one.
    KeepsOldEngines,
    /// It goes on with what it holds behind a gap that is not filled.
    StepsOverGaps,
    /// It goes on with what it holds after a batch that it cannot read.
    StepsOverGarble,
    /// What arrives of a replay that it has given up goes to the index.
    TakesLateReplays,
    /// It does not look at whether connections stand.
    TrustsConnections,
    /// It takes for taken what the sink did not take.
    ForgetsRefusals,
}

/// One index and what writes to it: of all ranks with one block size.
pub(crate) struct Shelf {
    pub(crate) block_size: u32,
    pub(crate) index: PrefixIndex,
    pub(crate) ingestor: Ingestor,
    pub(crate) applier: HandApplier,
    pub(crate) slots: SlotAllocator,
    /// Of every text.
    pub(crate) hashes: Vec<Vec<BlockHash>>,
    pub(crate) scratch: Scratch,
}

impl Shelf {
    pub(crate) fn new(block_size: u32, hashes: Vec<Vec<BlockHash>>) -> Self {
        let (index, writers) = PrefixIndex::with_pending_limit(std::num::NonZeroUsize::MIN, PENDING);
        // Eight batches of a rank may wait, and none for longer.
        let settings =
            IngestSettings { share_blocks: 2_048, patience: Duration::ZERO, ..IngestSettings::default() };
        let (ingestor, mut appliers) = Ingestor::by_hand(writers, settings);
        let (slots, scratch) = (SlotAllocator::new(), Scratch::new());
        Self { block_size, index, ingestor, applier: appliers.remove(0), slots, hashes, scratch }
    }

    pub(crate) fn apply_all(&mut self) {
        while self.applier.step() {}
    }
}

/// What a stream's outputs came to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Counted {
    pub(crate) gaps: u64,
    pub(crate) replays: u64,
    pub(crate) restarts: u64,
    pub(crate) batches: u64,
    pub(crate) unreadable: u64,
    pub(crate) reconnects: u64,
}

/// Why the next clear comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cause {
    Other,
    Gap,
    Restart,
    Garble,
}

/// The stream of one rank.
pub(crate) struct Stream {
    pub(crate) machine: StreamMachine<Rc<[u8]>>,
    sink: Box<dyn Sink>,
    pub(crate) status: Arc<StreamStatus>,
    pub(crate) slot: Slot,
    /// Which index it writes to.
    pub(crate) shelf: usize,
    /// The incarnation behind the connection that the router knows of.
    pub(crate) told: Option<usize>,
    pub(crate) counted: Counted,
    /// What it was sent counts as cached there, under a slot beside.
    pub(crate) predicted: Option<(Slot, Box<dyn Expectations>)>,
    /// Every request for a replay is answered.
    answers: bool,
    broken: Broken,
    cause: Cause,
}

impl Stream {
    pub(crate) fn open(
        (shelf, at): (&mut Shelf, usize),
        (settings, can_replay, answers): (StreamSettings, bool, bool),
        rank: u32,
        predicts: bool,
        broken: Broken,
    ) -> Self {
        let slot = shelf.slots.allocate();
        let status = Arc::new(StreamStatus::new(StreamState::Unproven));
        let source = Source {
            slot,
            worker: WorkerId(slot.index.into()),
            rank: Rank(rank),
            feed: Feed::new(Endpoint::connect("tcp://127.0.0.1:1")),
            block_size: BlockSize::new(shelf.block_size).unwrap(),
            eagle: false,
            room: None,
        };
        let sink = shelf.ingestor.sink(source, Arc::clone(&status)).unwrap();
        let predicted = predicts.then(|| {
            let (beside, limits) =
                (shelf.slots.allocate(), ExpectedLimits { ttl: None, most: MOST_PREDICTED });
            let expectations = shelf.ingestor.expect(slot, beside, limits).unwrap();
            (beside, Box::new(expectations) as Box<dyn Expectations>)
        });
        Self {
            machine: StreamMachine::new(settings, can_replay),
            sink: Box::new(sink),
            status,
            slot,
            shelf: at,
            told: None,
            counted: Counted::default(),
            predicted,
            answers,
            broken,
            cause: Cause::Other,
        }
    }

    /// Ends it, as the fleet does when a rank goes.
    pub(crate) fn close(self, shelf: &mut Shelf) {
        let Self { sink, slot, predicted, .. } = self;
        drop(sink);
        shelf.ingestor.retire(slot);
        shelf.slots.release(slot);
        if let Some((beside, expectations)) = predicted {
            drop(expectations);
            shelf.ingestor.retire(beside);
            shelf.slots.release(beside);
        }
    }

    pub(crate) fn connected(&mut self, now: Duration, incarnation: usize) {
        self.told = Some(incarnation);
        if self.broken != Broken::TrustsConnections || self.machine.state() == StreamState::Unproven {
            self.machine.connected(now);
        }
    }

    pub(crate) fn disconnected(&mut self) {
        self.told = None;
        if self.broken != Broken::TrustsConnections {
            self.machine.disconnected();
        }
    }

    /// Does what the machine asks for, all of it. `lost`: a replay that is asked for now will not be answered.
    pub(crate) fn drain(&mut self, now: Duration, shelf: &mut Shelf, link: &mut Link, lost: bool) {
        while let Some(output) = self.machine.next_output() {
            match output {
                Output::Apply { sequence, payload } => self.apply(now, shelf, (sequence, &payload)),
                Output::Clear => self.clear(),
                Output::State(state) => self.sink.publish(state),
                Output::GapFound => {
                    (self.cause, self.counted.gaps) = (Cause::Gap, self.counted.gaps + 1);
                    self.sink.note(Note::Gap);
                }
                Output::Anew => self.sink.note(Note::Anew),
                Output::RestartFound => {
                    (self.cause, self.counted.restarts) = (Cause::Restart, self.counted.restarts + 1);
                    self.sink.note(Note::Restart);
                }
                // With nothing but numbers to go by, nothing that travels may be lost.
                Output::Reconnect if !self.answers => {}
                Output::Reconnect => {
                    self.counted.reconnects += 1;
                    self.sink.note(Note::Reconnect);
                    link.renew();
                    self.disconnected();
                }
                Output::AskReplay { from, purpose } => {
                    self.counted.replays += u64::from(purpose != Purpose::Check);
                    self.sink.note(Note::Replay(purpose));
                    link.ask(from, lost);
                }
            }
        }
        if !self.machine.awaits_replay() {
            link.hang_up();
        }
        if self.broken != Broken::TakesLateReplays {
            link.abandoned.clear();
        } else if let Some((sequence, payload)) = link.abandoned.pop_front() {
            self.apply(now, shelf, (sequence, &payload));
        }
    }

    fn apply(&mut self, now: Duration, shelf: &mut Shelf, (sequence, payload): (u64, &[u8])) {
        self.cause = Cause::Other;
        let pace = if self.machine.awaits_replay() { Pace::Replay } else { Pace::Live };
        // A replay waits for room. Whatever else happens meanwhile, the applier goes on.
        while pace == Pace::Replay && !self.sink.has_room() && shelf.applier.step() {}
        let taken = self.sink.apply(sequence, payload, pace, &|| panic!("there was to be room"));
        self.counted.batches += u64::from(taken != Taken::Refused);
        match taken {
            Taken::Taken => {}
            Taken::Emptied => self.machine.emptied(sequence),
            Taken::Unreadable => {
                (self.cause, self.counted.unreadable) = (Cause::Garble, self.counted.unreadable + 1);
                self.machine.unreadable(sequence);
            }
            Taken::Refused if self.broken == Broken::ForgetsRefusals => {}
            Taken::Refused => self.machine.refused(now, sequence),
        }
    }

    fn clear(&mut self) {
        let is_kept = match self.cause {
            Cause::Restart => self.broken == Broken::KeepsOldEngines,
            Cause::Garble => self.broken == Broken::StepsOverGarble,
            Cause::Gap => self.broken == Broken::StepsOverGaps,
            Cause::Other => false,
        };
        if !is_kept {
            self.sink.clear();
        }
    }

    /// Tells the machine if the sink takes batches again.
    pub(crate) fn look_for_room(&mut self, now: Duration) {
        if self.machine.wants_room(now) && self.sink.has_room() {
            self.machine.room(now);
        }
    }
}
