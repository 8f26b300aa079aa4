//! Where a stream's batches go.

use crate::fleet::StreamState;

use super::stream::Purpose;

/// The receiving end of one rank's stream. The driver calls it from the stream's thread, in the order in which
/// things are to happen.
pub trait Sink: Send {
    /// Takes a batch. It may block while its queue is full; `stopped` then says when to give up.
    fn apply(&mut self, sequence: u64, payload: &[u8], stopped: &dyn Fn() -> bool) -> Taken;

    /// Drops everything of this rank. From this call on nothing of it may be credited, until the next
    /// [`Sink::publish`] that says so.
    fn clear(&mut self, stopped: &dyn Fn() -> bool);

    /// The stream's state, to be seen once everything before is applied. [`StreamState::Unproven`] withdraws
    /// credit and is to be seen at once.
    fn publish(&mut self, state: StreamState, stopped: &dyn Fn() -> bool);

    /// Something to count.
    fn note(&mut self, note: Note);
}

/// What became of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// It was taken.
    Taken,
    /// It was taken, and one of its events emptied the rank's cache.
    Emptied,
    /// Its bytes could not be read.
    Unreadable,
}

/// Something that happened to a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// Batches were found missing.
    Gap,
    /// A replay was asked for.
    Replay(Purpose),
    /// A new incarnation was recognised.
    Restart,
    /// A message was not shaped like a batch and was dropped.
    BadMessage,
}
