//! One event stream per rank: from an engine's sockets into the index.
//!
//! [`StreamMachine`] holds all the judgement: what a sequence number means, when to ask for a replay, whether the
//! engine is still the same. It does no I/O.

mod cursor;
mod stream;

pub use cursor::{Cursor, Observation};
pub use stream::{Output, Purpose, StreamMachine, StreamSettings};
