//! One event stream per rank: from an engine's sockets into the index.
//!
//! [`StreamMachine`] holds all the judgement: what a sequence number means, when to ask for a replay, whether the
//! engine is still the same. It does no I/O. [`Stream`] is the thread that moves bytes for it, and hands batches to a
//! [`Sink`].

mod cursor;
mod driver;
mod handle;
mod sink;
mod source;
mod stream;

pub use cursor::{Cursor, Observation};
pub use handle::Stream;
pub use sink::{Note, Sink, Taken};
pub use source::{Contexts, Endpoint, EndpointMode, Feed, SourceError};
pub use stream::{Output, Purpose, StreamMachine, StreamSettings};
