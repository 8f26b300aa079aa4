//! How far a rank's event stream can be trusted, as everyone but its own thread sees it.
//!
//! `ingest` writes it, once per batch; routing, metrics and the admin listener read it. It lives here
//! because a member of the fleet carries it for as long as it is a member.

use std::{
    fmt,
    sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
};

/// What is known of one rank's events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamState {
    /// The worker has no event stream that is followed, and nobody guesses what it has cached: it is routed by load alone.
    Absent,
    /// The worker has no event stream that is followed: what it was sent lately is held to be cached there.
    Approximate,
    /// Connection lost, or never had: overlaps count as 0 until the stream is shown to be the same incarnation.
    Unproven,
    /// A gap was seen and the missing batches have been asked for.
    Replaying,
    /// Exact as far as it goes: some batches are lost for good, or the index may not hold what they said, so the rank may
    /// hold more than we know.
    Incomplete,
    /// Every batch since the engine's start, or since its cache was last empty, has been applied.
    Live,
}

impl StreamState {
    /// Every state.
    pub const ALL: [Self; 6] =
        [Self::Absent, Self::Approximate, Self::Unproven, Self::Replaying, Self::Incomplete, Self::Live];

    /// Whether blocks that the index holds for the rank may be credited to it.
    #[must_use]
    pub const fn credits_overlap(self) -> bool {
        matches!(self, Self::Live | Self::Incomplete | Self::Replaying | Self::Approximate)
    }

    /// The name used in metrics and on the admin listener.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Approximate => "approximate",
            Self::Unproven => "unproven",
            Self::Replaying => "replaying",
            Self::Incomplete => "incomplete",
            Self::Live => "live",
        }
    }
}

/// Where what the index holds of a rank came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexOrigin {
    /// From the engine's events alone.
    Events,
    /// From another frontend's snapshot, which the engine has yet to confirm: nothing of it is credited.
    UnconfirmedSnapshot,
    /// From a snapshot that the engine confirmed, and the events since.
    Snapshot,
}

impl IndexOrigin {
    const ALL: [Self; 3] = [Self::Events, Self::UnconfirmedSnapshot, Self::Snapshot];

    /// The name on the admin listener.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::UnconfirmedSnapshot => "unconfirmed-snapshot",
            Self::Snapshot => "snapshot",
        }
    }
}

impl fmt::Display for StreamState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The published status of one rank's stream.
///
/// Fields are facts of their own and read on their own, so accesses are `Relaxed`. Two of them speak of the index as well, and
/// are not: the state, see [`StreamStatus::set_state`], and the cursor, see [`StreamStatus::set_cursor`].
#[derive(Debug)]
pub struct StreamStatus {
    state: AtomicU8,
    /// Sequence number of the next batch expected; 0 before the first.
    next_sequence: AtomicU64,
    /// Unix time of the last batch by the engine's clock, in milliseconds.
    last_batch_ms: AtomicU64,
    /// From the engine's timestamp to the moment the batch was applied, in milliseconds.
    lag_ms: AtomicU64,
    batches: AtomicU64,
    gaps: AtomicU64,
    replays: AtomicU64,
    restarts: AtomicU64,
    reconnects: AtomicU64,
    unreadable_batches: AtomicU64,
    overloads: AtomicU64,
    /// Times that it came to each state, in the order of [`StreamState::ALL`].
    entered: [AtomicU64; StreamState::ALL.len()],
    overloaded: AtomicBool,
    growth_stopped: AtomicBool,
    replay_waits: AtomicBool,
    origin: AtomicU8,
    /// Fleet time at which a request was last sent there for what it has cached; 0 before the first.
    matched_ms: AtomicU64,
}

impl StreamStatus {
    /// The status of a stream in `state` that has seen nothing.
    #[must_use]
    pub const fn new(state: StreamState) -> Self {
        Self {
            state: AtomicU8::new(state as u8),
            next_sequence: AtomicU64::new(0),
            last_batch_ms: AtomicU64::new(0),
            lag_ms: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            gaps: AtomicU64::new(0),
            replays: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
            reconnects: AtomicU64::new(0),
            unreadable_batches: AtomicU64::new(0),
            overloads: AtomicU64::new(0),
            entered: [const { AtomicU64::new(0) }; StreamState::ALL.len()],
            overloaded: AtomicBool::new(false),
            growth_stopped: AtomicBool::new(false),
            replay_waits: AtomicBool::new(false),
            origin: AtomicU8::new(IndexOrigin::Events as u8),
            matched_ms: AtomicU64::new(0),
        }
    }

    /// The state now. Whoever credits what the index says by it looks here first and into the index after: in the other order
    /// it would credit what a dead engine held, if that was dropped and its successor granted in between.
    #[must_use]
    pub fn state(&self) -> StreamState {
        // Acquire: pairs with the Release in `set_state`.
        let state = self.state.load(Ordering::Acquire);
        StreamState::ALL.into_iter().find(|&known| known as u8 == state).unwrap_or(StreamState::Unproven)
    }

    /// Publishes a new state. Call it after the index has what the state vouches for, and no longer what it does not.
    pub fn set_state(&self, state: StreamState) {
        // Release: pairs with the Acquire in `state`; whoever sees a grant sees the index without what was dropped before it.
        self.state.store(state as u8, Ordering::Release);
    }

    /// Sequence number of the last batch that is in the index; `None` before the first.
    #[must_use]
    pub fn cursor(&self) -> Option<u64> {
        // Acquire: pairs with the Release in `set_cursor`; whoever sees the cursor sees the index with that
        // batch applied.
        self.next_sequence.load(Ordering::Acquire).checked_sub(1)
    }

    /// Publishes the sequence number of the last batch that is in the index. Call it after the index has
    /// applied the batch: people wait for the cursor and then rely on the overlap.
    pub fn set_cursor(&self, last: Option<u64>) {
        // Release: the batch's writes to the index happen before the cursor moves; pairs with `cursor`.
        self.next_sequence.store(last.map_or(0, |last| last.wrapping_add(1)), Ordering::Release);
    }

    /// Notes a batch that was applied: the engine's timestamp and how long ago that was, in milliseconds.
    pub fn note_batch(&self, engine_time_ms: u64, lag_ms: u64) {
        self.last_batch_ms.store(engine_time_ms, Ordering::Relaxed);
        self.lag_ms.store(lag_ms, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the stream came to another state. What is credited follows once everything before it is applied.
    pub fn note_transition(&self, to: StreamState) {
        self.entered[to as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Times that the stream came to each state, in the order of [`StreamState::ALL`].
    #[must_use]
    pub fn transitions(&self) -> [u64; StreamState::ALL.len()] {
        self.entered.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Notes that batches were missing.
    pub fn note_gap(&self) {
        self.gaps.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a replay was asked for.
    pub fn note_replay(&self) {
        self.replays.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the engine turned out to be a new incarnation.
    pub fn note_restart(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a socket that brought nothing is made anew.
    pub fn note_reconnect(&self) {
        self.reconnects.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes a batch of which nobody can tell what it took away: its bytes could not be read, or not to their end, or a removal in it
    /// could not.
    pub fn note_unreadable_batch(&self) {
        self.unreadable_batches.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that batches begin to be dropped because those before them wait, or that they are asked for again.
    pub fn set_overloaded(&self, overloaded: bool) {
        if overloaded && !self.overloaded.load(Ordering::Relaxed) {
            self.overloads.fetch_add(1, Ordering::Relaxed);
        }
        self.overloaded.store(overloaded, Ordering::Relaxed);
    }

    /// Whether batches are being dropped because those before them wait.
    #[must_use]
    pub fn overloaded(&self) -> bool {
        self.overloaded.load(Ordering::Relaxed)
    }

    /// Notes whether the index holds no more blocks of the rank than it does, because memory is short.
    pub fn set_growth_stopped(&self, stopped: bool) {
        self.growth_stopped.store(stopped, Ordering::Relaxed);
    }

    /// Whether the index holds no more blocks of the rank than it does, because memory is short.
    #[must_use]
    pub fn growth_stopped(&self) -> bool {
        self.growth_stopped.load(Ordering::Relaxed)
    }

    /// Notes whether a replay that the stream needs waits, because as many of other ranks run as may.
    pub fn set_replay_waits(&self, waits: bool) {
        self.replay_waits.store(waits, Ordering::Relaxed);
    }

    /// Whether a replay that the stream needs waits, because as many of other ranks run as may.
    #[must_use]
    pub fn replay_waits(&self) -> bool {
        self.replay_waits.load(Ordering::Relaxed)
    }

    /// Notes where what the index holds of the rank came from.
    pub fn set_origin(&self, origin: IndexOrigin) {
        self.origin.store(origin as u8, Ordering::Relaxed);
    }

    /// Where what the index holds of the rank came from.
    #[must_use]
    pub fn origin(&self) -> IndexOrigin {
        let origin = self.origin.load(Ordering::Relaxed);
        IndexOrigin::ALL.into_iter().find(|&known| known as u8 == origin).unwrap_or(IndexOrigin::Events)
    }

    /// Notes that a request was sent to the rank and finds some of its prompt cached there; `now_ms` by the fleet's clock.
    pub fn note_match(&self, now_ms: u64) {
        self.matched_ms.store(now_ms.max(1), Ordering::Relaxed);
    }

    /// When a request was last sent there that found some of its prompt cached; 0 if none ever was.
    #[must_use]
    pub fn matched_ms(&self) -> u64 {
        self.matched_ms.load(Ordering::Relaxed)
    }

    /// The counters, for metrics and the admin listener.
    #[must_use]
    pub fn totals(&self) -> StreamTotals {
        StreamTotals {
            batches: self.batches.load(Ordering::Relaxed),
            gaps: self.gaps.load(Ordering::Relaxed),
            replays: self.replays.load(Ordering::Relaxed),
            restarts: self.restarts.load(Ordering::Relaxed),
            reconnects: self.reconnects.load(Ordering::Relaxed),
            unreadable_batches: self.unreadable_batches.load(Ordering::Relaxed),
            overloads: self.overloads.load(Ordering::Relaxed),
            last_batch_ms: self.last_batch_ms.load(Ordering::Relaxed),
            lag_ms: self.lag_ms.load(Ordering::Relaxed),
        }
    }
}

/// What a stream has been through, as read at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamTotals {
    /// Batches applied.
    pub batches: u64,
    /// Times that batches were found missing.
    pub gaps: u64,
    /// Replays asked for.
    pub replays: u64,
    /// New incarnations of the engine recognised.
    pub restarts: u64,
    /// Sockets that were made anew because they brought nothing of what the engine said.
    pub reconnects: u64,
    /// Batches that could not be read, or not to their end, or of which a removal could not.
    pub unreadable_batches: u64,
    /// Times that batches were dropped because those before them waited.
    pub overloads: u64,
    /// Engine time of the last batch, Unix milliseconds; 0 before the first.
    pub last_batch_ms: u64,
    /// Age of the last batch when it was applied, in milliseconds.
    pub lag_ms: u64,
}
