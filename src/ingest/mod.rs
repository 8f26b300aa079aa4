//! One event stream per rank: from an engine's sockets into the index.
//!
//! ```text
//! source/zmq ──> driver (a thread a stream) ──> sink ──> applier (a thread a shard) ──> index
//!                   │   ▲                        decode, normalise          │
//!                   ▼   │                                                   ▼
//!              stream (state machine) ── cursor, held              StreamStatus
//! ```
//!
//! [`StreamMachine`] holds all the judgement: what a sequence number means, when to ask for a replay, whether the
//! engine is still the same. It does no I/O. [`Stream`] is the thread that moves bytes for it, and hands batches to a
//! [`Sink`]; [`Ingestor`] owns the index's writers and opens streams into them.
//!
//! # When the router is slower than the engines
//!
//! Nothing queues without bound. An applier's channel is bounded; when it is full the streams' threads
//! block; then their ZMQ queues fill; then the publisher drops batches for us; then the next number shows a gap and
//! the replay brings what was dropped, or the stream becomes incomplete. The engines are never slowed.
//!
//! # Ranks without events
//!
//! What a rank was sent can stand in for what it does not say: [`FleetStreams`] gives the fleet someone to tell
//! (`expecting.rs`), and the applier writes to the index what that lets expect (`expected.rs`).
//!
//! # What this room is not
//!
//! It does not find engines, nor decide who is routable: the fleet opens and drops streams, and reads
//! [`crate::fleet::StreamStatus`].

mod applier;
mod counters;
mod cursor;
mod driver;
mod expected;
mod expecting;
mod fleet_streams;
mod gate;
mod handle;
mod index_sink;
mod sink;
mod source;
mod stream;

pub use applier::Ingestor;
pub use counters::{BlockTotals, Counters, IngestTotals};
pub use cursor::{Cursor, Observation};
pub use fleet_streams::FleetStreams;
pub use handle::Stream;
pub use index_sink::Source;
pub use sink::{Note, Sink, Taken};
pub use source::{Contexts, Endpoint, EndpointMode, Feed, SourceError};
pub use stream::{Output, Purpose, StreamMachine, StreamSettings};
