//! Where a stream's batches go.

use crate::fleet::StreamState;

use super::{
    snapshot::ExportRequest,
    stream::{Memory, Purpose},
};

/// The receiving end of one rank's stream. The driver calls it from the stream's thread, in the order in which
/// things are to happen.
pub trait Sink: Send {
    /// Takes a batch. It may block while its queue is full, for as long as it takes if the `pace` is ours to set;
    /// `stopped` then says when to give up.
    fn apply(&mut self, sequence: u64, payload: &[u8], pace: Pace, stopped: &dyn Fn() -> bool) -> Taken;

    /// Whether it takes batches again, after it has refused one.
    fn has_room(&mut self) -> bool {
        true
    }

    /// Drops everything of this rank. From this call on nothing of it may be credited, until the next
    /// [`Sink::publish`] that says so.
    fn clear(&mut self);

    /// The stream's state, to be seen once everything before is applied. [`StreamState::Unproven`] withdraws
    /// credit and is to be seen at once.
    fn publish(&mut self, state: StreamState);

    /// Writes out what is known of the rank, for a snapshot. `memory` is where the stream stands once everything before is applied,
    /// if that is certain.
    fn export(&mut self, memory: Option<Memory>, request: ExportRequest) {
        drop((memory, request));
    }

    /// Something to count.
    fn note(&mut self, note: Note);
}

/// Who says how fast batches come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// The engine.
    Live,
    /// We do: a replay goes on as fast as it is read.
    Replay,
}

/// What became of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// It was taken.
    Taken,
    /// It was taken, and one of its events emptied the rank's cache.
    Emptied,
    /// What it took away could not be read.
    Unreadable,
    /// It was not taken: there has been no room for too long.
    Refused,
}

/// Something that happened to a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// Batches were found missing.
    Gap,
    /// A replay was asked for.
    Replay(Purpose),
    /// The replay that was asked for last waits for its turn, or does so no more.
    ReplayWaits(bool),
    /// A new incarnation was recognised.
    Restart,
    /// All that the engine has said and still has is going to be told again: what was learned of blocks counts twice otherwise.
    Anew,
    /// The live socket was dead and is made anew.
    Reconnect,
    /// A message was not shaped like a batch and was dropped.
    BadMessage,
}
