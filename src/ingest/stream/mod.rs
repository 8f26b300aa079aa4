//! One rank's event stream as a state machine: no socket, no clock, no index.
//!
//! The driver tells it what happened ([`StreamMachine::live`], [`StreamMachine::replayed`], ...) and then
//! takes its [`Output`]s, all of them, before it tells it the next thing.
//!
//! What it promises, as far as what it is told allows:
//!
//! * batches are applied in rising order, none twice within an incarnation;
//! * after a [`Output::Clear`] nothing older is applied;
//! * `live` means that nothing is missing since the engine's start, or since its cache was last empty;
//! * from a lost connection on, nothing is credited until the engine is shown to be the same or new.
//!
//! # Same engine or a new one?
//!
//! A restarted engine listens on the same ports, counts from 0 again, and says nothing until it has served a
//! request. So the machine asks after every reconnect, and it asks for a replay *from the last batch it applied,
//! inclusive*:
//!
//! | answer | means | so |
//! |---|---|---|
//! | that batch, the same bytes | same incarnation (payloads carry the engine's clock) | go on, nothing lost |
//! | that batch, other bytes | another incarnation that came as far | clear, replay from 0 |
//! | only higher numbers | the batch fell out of the ring: whoever it is, batches are lost | clear, incomplete, go on from there |
//! | nothing at or above it | it cannot have fallen out, for only newer batches push it out: another incarnation | clear, replay from 0 |
//! | no answer | nothing | stay unproven, ask again later |
//!
//! Live batches that arrive meanwhile are held: the bytes are better evidence than a number that happens to
//! follow. Only where there is no replay endpoint, or it does not answer, does the next number decide: it
//! follows (the same engine), is lower (a new one), or is higher (a gap that nothing can fill).
//!
//! A replay that fills a gap is asked for in the same way: replay goes over a socket of its own, which may reach
//! the next engine before the loss of the last one shows on the live socket.
//!
//! The same question, asked when a stream has been silent for a while, finds batches that were lost at the end
//! of a burst, where no later number would ever show the gap.

//!
//! # When batches are not taken
//!
//! A sink whose queue is full for too long does not take a batch ([`StreamMachine::refused`]). From there on nothing is
//! applied and nothing held: the stream is *overloaded*, and incomplete. Once the sink has room, and not too soon after the
//! last time, a replay from the last batch that was taken brings the rest ([`StreamMachine::room`]). Without a replay endpoint
//! what was not taken is lost, and the index must not keep what it may have taken away.

mod held;
mod memory;
mod overload;
mod rules;
mod turn;

use std::{collections::VecDeque, ops::Deref, time::Duration};

use xxhash_rust::xxh3::xxh3_64;

pub use self::memory::Memory;
use self::{held::Held, overload::Handed};
use super::cursor::{Cursor, Observation};
use crate::fleet::StreamState;

/// Limits and times of one stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamSettings {
    /// Silence after which a replay counts as failed. Each replayed batch starts it again.
    pub replay_timeout: Duration,
    /// Pause before an engine that did not answer is asked again. It doubles with each time in a row, up to sixteenfold.
    pub retry: Duration,
    /// Silence on the live socket after which the engine is asked whether something was missed; `None` = never. If something was, and
    /// the socket stays silent for as long again, it counts as dead and is made anew.
    pub idle_check: Option<Duration>,
    /// Replays in a row that may end before they reach the held batches; then what is missing counts as lost.
    pub replay_attempts: u32,
    /// Live batches held while a replay runs. At this limit, or that of bytes, the replay is given up: what is
    /// missing counts as lost and the held batches are applied.
    pub held_batches: usize,
    /// Bytes of payload held while a replay runs.
    pub held_bytes: usize,
    /// Least time between two replays that an overload made necessary.
    pub resync_pause: Duration,
}

impl Default for StreamSettings {
    fn default() -> Self {
        Self {
            replay_timeout: Duration::from_secs(5),
            retry: Duration::from_secs(5),
            idle_check: Some(Duration::from_secs(30)),
            replay_attempts: 3,
            held_batches: 20_000,
            held_bytes: 64 << 20,
            resync_pause: Duration::from_secs(10),
        }
    }
}

/// Why a replay is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Batches are missing, or may be: from the engine's start, or from a gap on.
    Heal,
    /// Whether the engine behind a new connection is the one whose blocks the index holds.
    Prove,
    /// Whether a silent engine has said something that was missed.
    Check,
}

/// What the driver has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output<P> {
    /// Apply this batch to the index.
    Apply {
        /// Its number.
        sequence: u64,
        /// Its bytes, as the engine sent them.
        payload: P,
    },
    /// Drop everything the index holds of this rank, at once. A [`Output::State`] always follows.
    Clear,
    /// All that the engine has said and still has is going to be told again, as if nothing of it had been.
    Anew,
    /// Ask the replay endpoint for every batch from this number on, in place of any request before it.
    AskReplay {
        /// The first number wanted.
        from: u64,
        /// What for.
        purpose: Purpose,
    },
    /// The stream is in this state now: once everything before is applied, except that
    /// [`StreamState::Unproven`] holds at once.
    State(StreamState),
    /// Batches were found missing.
    GapFound,
    /// The engine was found to be a new incarnation.
    RestartFound,
    /// The live socket brings nothing of what the engine says, though it seems connected: make it anew, if that is ours to do, and tell
    /// [`StreamMachine::disconnected`] of the old one.
    Reconnect,
}

/// The bytes of the batch that was applied last, in short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fingerprint {
    sequence: u64,
    hash: u64,
}

/// A replay that runs.
#[derive(Debug)]
struct Request {
    purpose: Purpose,
    /// The batch that the engine must show to be the same engine; `None` once it has, or if there is none.
    against: Option<Fingerprint>,
    deadline: Duration,
    /// How many ended too early before this one.
    attempts: u32,
    /// It has not been asked for yet: others come first.
    waits: bool,
}

/// One rank's stream. `P` is what a payload arrives in.
///
/// Times are durations since any fixed moment, never going back.
#[derive(Debug)]
pub struct StreamMachine<P> {
    settings: StreamSettings,
    can_replay: bool,
    cursor: Cursor,
    last: Option<Fingerprint>,
    connected: bool,
    /// Whether what the index holds is known to be the connected engine's.
    proven: bool,
    /// A number was said that may be another incarnation's, and nobody has shown since who it is: without an answer that decides, whichever
    /// question is outstanding by then.
    said_doubtful: bool,
    /// What the index holds was another stream's to build, and the engine has not shown yet that all of it is true.
    resumes: bool,
    /// The index was emptied of what `last` stands for while the engine had yet to show it: once it has, all of it is asked for.
    rebuild_due: bool,
    /// Batches before this number are lost for good.
    lost_before: Option<u64>,
    request: Option<Request>,
    /// Live batches, while a request that is not a check runs.
    held: Held<P>,
    retry_at: Option<Duration>,
    /// Requests in a row of which nothing was heard.
    unanswered: u32,
    check_at: Option<Duration>,
    /// A check brought batches, and the live socket nothing since.
    deaf: bool,
    /// What the sink was handed last.
    handed: Handed,
    /// While batches are not taken: when to look whether the sink has room.
    room_at: Option<Duration>,
    /// Before this no overload ends.
    resync_after: Duration,
    published: StreamState,
    restate: bool,
    outputs: VecDeque<Output<P>>,
}

impl<P: Deref<Target = [u8]>> StreamMachine<P> {
    /// The stream of an engine that has not been reached yet: unproven. `can_replay`: it has a replay endpoint.
    #[must_use]
    pub fn new(settings: StreamSettings, can_replay: bool) -> Self {
        Self {
            held: Held::new(settings.held_batches, settings.held_bytes),
            settings,
            can_replay,
            cursor: Cursor::new(),
            last: None,
            connected: false,
            proven: false,
            said_doubtful: false,
            resumes: false,
            rebuild_due: false,
            lost_before: None,
            request: None,
            retry_at: None,
            unanswered: 0,
            check_at: None,
            deaf: false,
            handed: Handed::default(),
            room_at: None,
            resync_after: Duration::ZERO,
            published: StreamState::Unproven,
            restate: false,
            outputs: VecDeque::new(),
        }
    }

    /// The next thing to do, oldest first. A batch counts as taken unless the next call is [`StreamMachine::refused`].
    pub fn next_output(&mut self) -> Option<Output<P>> {
        let output = self.outputs.pop_front()?;
        self.handed.note(&output);
        Some(output)
    }

    /// Whether a replay runs. Once it does not, the driver drops the socket it asked with.
    #[must_use]
    pub fn awaits_replay(&self) -> bool {
        self.request.is_some()
    }

    /// When [`StreamMachine::poll`] has something to do, if nothing else happens before.
    #[must_use]
    pub fn next_wake(&self) -> Option<Duration> {
        let deadline = self.request.as_ref().map(|request| request.deadline);
        [deadline, self.retry_at, self.check_at, self.room_at].into_iter().flatten().min()
    }

    /// The state as it stands.
    #[must_use]
    pub fn state(&self) -> StreamState {
        let request = self.request.as_ref().filter(|request| request.purpose == Purpose::Heal);
        let (heals, waits) = (request.is_some(), request.is_some_and(|request| request.waits));
        match (self.connected && self.proven, heals, self.lost_before) {
            (false, ..) => StreamState::Unproven,
            (true, ..) if self.resumes && (heals || self.room_at.is_some()) => StreamState::Unproven,
            (true, ..) if waits || self.room_at.is_some() => StreamState::Incomplete,
            (true, true, _) => StreamState::Replaying,
            (true, false, Some(_)) => StreamState::Incomplete,
            (true, false, None) => StreamState::Live,
        }
    }

    /// A connection stands. If one stood before, this is another engine or the same one again: either way
    /// it has to be shown anew.
    pub fn connected(&mut self, now: Duration) {
        self.drop_connection();
        self.connected = true;
        if self.last.is_some() {
            self.cursor.reconnected();
        } else {
            self.cursor.restart();
            self.lost_before = None;
        }
        self.ask_who_is_there(now);
    }

    fn ask_who_is_there(&mut self, now: Duration) {
        self.rest(now);
        if self.room_at.is_none() {
            self.identify(now);
        }
        self.publish();
    }

    /// The connection is gone, and with it all certainty about the engine.
    pub fn disconnected(&mut self) {
        self.drop_connection();
        self.publish();
    }

    /// The worker says that its engine started anew: not a thing to believe or to doubt, but to look into. The connection is the one that
    /// stood before, and batches that a replay overtook may still come over it.
    pub fn engine_start_changed(&mut self, now: Duration) {
        if self.connected {
            self.drop_connection();
            self.connected = true;
            self.ask_who_is_there(now);
        }
    }

    /// What the index holds of the rank is doubted, though nothing is known to be missing: it is dropped, and what the engine still
    /// has in its buffer is taken anew. Nothing happens where that cannot be had, or where the engine is being asked already.
    pub fn resync(&mut self, now: Duration) {
        if self.connected && self.proven && self.can_replay && !self.asks() && self.room_at.is_none() {
            self.start_over();
            self.outputs.push_back(Output::Anew);
            self.ask(now, Purpose::Heal);
            self.publish();
        }
    }

    /// Whether the engine is asked for more than whether something was missed.
    fn asks(&self) -> bool {
        self.request.as_ref().is_some_and(|request| request.purpose != Purpose::Check)
    }

    /// A batch arrived on the live socket. One that arrives while no connection stands is a leftover of the
    /// one that broke: it is dropped, and the question at the next connection finds it again.
    pub fn live(&mut self, now: Duration, sequence: u64, payload: P) {
        if !self.connected {
            return;
        }
        self.rest(now);
        self.deaf = false;
        let mut meaning = self.cursor.live(sequence);
        if meaning == Observation::Doubtful && self.can_replay && (self.asks() || self.room_at.is_some()) {
            self.said_doubtful = true;
            return;
        }
        if matches!(meaning, Observation::Restart | Observation::Doubtful) {
            self.begin_incarnation();
            meaning = self.cursor.live(sequence);
        }
        if self.room_at.is_some() {
            if !self.can_replay {
                self.lose_before(sequence.saturating_add(1));
            }
            self.publish();
            return;
        }
        let request = self.request.as_ref().filter(|request| request.purpose != Purpose::Check);
        let (asking, waits) = (request.is_some(), request.is_some_and(|request| request.waits));
        match meaning {
            Observation::Stale | Observation::Restart | Observation::Doubtful => {}
            _ if waits => {}
            _ if asking => self.hold(now, sequence, payload),
            // After a connection that was lost it would do for a proof.
            Observation::Contiguous if self.resumes || self.rebuild_due => {
                self.identify(now);
                self.hold(now, sequence, payload);
            }
            Observation::Contiguous => {
                // It answers a check by itself, and is all the proof there is where no replay answers.
                self.request = None;
                self.retry_at = None;
                self.prove();
                self.apply(sequence, payload);
            }
            Observation::Gap { .. } => self.gap(now, sequence, payload),
        }
        self.publish();
    }

    /// A replay brought a batch.
    pub fn replayed(&mut self, now: Duration, sequence: u64, payload: P) {
        let Some(request) = &mut self.request else { return };
        request.deadline = now + self.settings.replay_timeout;
        self.unanswered = 0;
        match request.against {
            Some(last) if sequence < last.sequence => {}
            Some(last) if sequence == last.sequence => {
                if xxh3_64(&payload) == last.hash {
                    self.same_incarnation(now);
                } else {
                    self.begin_incarnation();
                    self.ask(now, Purpose::Heal);
                }
            }
            // Higher than the batch that would prove it: for a check that is a gap, and else too.
            _ => self.replayed_next(now, sequence, payload),
        }
        self.publish();
    }

    /// The engine said that the replay is complete.
    pub fn replay_ended(&mut self, now: Duration) {
        let Some(request) = &self.request else { return };
        self.unanswered = 0;
        let attempts = request.attempts + 1;
        if request.against.is_some() {
            // Nothing at or above the batch we saw: see the module's table.
            self.begin_incarnation();
            self.ask(now, Purpose::Heal);
        } else if self.held.is_empty() {
            self.request = None;
            self.cursor.complete();
            if self.last.is_none() {
                // It has said nothing yet, so nothing is missing, whatever an earlier request failed to show.
                self.lost_before = None;
            }
            self.rest(now);
        } else if attempts < self.settings.replay_attempts {
            // Published between the answer and the first batch that was heard live.
            self.ask(now, Purpose::Heal);
            if let Some(request) = &mut self.request {
                request.attempts = attempts;
            }
        } else {
            self.give_up(now);
        }
        self.publish();
    }

    /// The replay cannot be had: the endpoint is wrong, or the socket failed.
    pub fn replay_failed(&mut self, now: Duration) {
        self.give_up(now);
        self.publish();
    }

    /// Time passed. Call it at [`StreamMachine::next_wake`], after everything that has arrived was told.
    pub fn poll(&mut self, now: Duration) {
        let due = |at: Option<Duration>| at.is_some_and(|at| at <= now);
        if due(self.request.as_ref().map(|request| request.deadline)) {
            self.give_up(now);
        }
        if due(self.retry_at) {
            self.retry_at = None;
            self.identify(now);
        }
        if due(self.check_at) {
            self.check_at = None;
            if self.request.is_none() && self.retry_at.is_none() && self.room_at.is_none() && self.proven {
                self.check(now);
            }
        }
        self.publish();
    }

    /// The batch with this number, just applied, said that the rank's cache was emptied: whatever was lost
    /// before it no longer matters.
    pub fn emptied(&mut self, sequence: u64) {
        if self.lost_before.is_some_and(|before| before <= sequence) {
            self.lost_before = None;
        }
        self.publish();
    }

    /// The batch with this number could not be read, so whatever it took away may still be in the index.
    pub fn unreadable(&mut self, sequence: u64) {
        // Before the batches that are still among the outputs: what they say is known, and what is in the index must go at once.
        // States that were decided on without this are over.
        self.outputs.retain(|output| !matches!(output, Output::State(_)));
        self.outputs.push_front(Output::Clear);
        self.restate = true;
        self.lost_before = Some(sequence.saturating_add(1));
        self.publish();
    }
}
