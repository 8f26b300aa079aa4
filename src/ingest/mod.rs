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
//! Whoever has an order of things of their own, as a simulation has, goes without sockets and threads: a [`StreamMachine`] a rank, the
//! [`Sink`] that [`Ingestor::sink`] makes for it, and a [`HandApplier`] that does one thing whenever it is told to.
//!
//! # When the router is slower than the engines
//!
//! Nothing queues without bound, nothing is dropped unseen, and engines are never slowed. Each rank has a share of its
//! applier's queue ([`IngestSettings::share_blocks`]), so that one which is too fast holds up the others by no more than that.
//! When the share is full its stream's thread waits. Replays wait for as long as it takes, since they come as fast as they are
//! read. Live batches wait for [`IngestSettings::patience`], while more of them queue in ZMQ; then the stream is
//! *overloaded*: it is incomplete, its batches are dropped, and once half of the share is free, but not too soon after
//! the last time, it is replayed from the last batch that was taken.
//!
//! # When memory is short
//!
//! With a limit ([`IngestSettings::memory_limit`]) the ranks whose prefixes are matched least stop growing when the indexes come
//! near it: removals count as ever, new blocks are passed over, and the stream is incomplete. Where memory is free again
//! they are built anew, one after another, by a replay from the start.
//!
//! # When a rank seems to hold too much
//!
//! More blocks than its engine has room for prove that removals were missed, whatever the stream says of itself: the rank is built
//! anew (`room.rs`), after ten minutes at the earliest if that did not help, and then ever more rarely.
//!
//! # When many have to replay
//!
//! Of all streams [`IngestSettings::replays`] replay at once, in the order in which they asked (`replays.rs`). The others wait: those that
//! have to show first who they are stay unproven, the rest are incomplete, and nothing is held for them.
//!
//! # Ranks without events
//!
//! What a rank was sent can stand in for what it does not say: [`FleetStreams`] gives the fleet someone to tell
//! (`expecting.rs`), and the applier writes to the index what that lets expect (`expected.rs`).
//!
//! # Snapshots
//!
//! What the indexes hold can be given to another frontend that starts ([`FleetStreams::write_snapshot`], [`FleetStreams::keep`]); see
//! `snapshot/mod.rs` for what is believed of it, and when.
//!
//! # What this room is not
//!
//! It does not find engines, nor decide who is routable: the fleet opens and drops streams, and reads
//! [`crate::fleet::StreamStatus`].

mod applier;
mod budget;
mod counters;
mod cursor;
mod driver;
mod expected;
mod expecting;
mod fleet_streams;
mod gate;
mod handle;
mod index_sink;
mod ingestor;
mod lane;
mod replays;
mod retold;
mod room;
mod settings;
mod sink;
mod snapshot;
mod source;
mod stream;

pub use applier::HandApplier;
pub use budget::IndexMemory;
pub use counters::{BlockTotals, Counters, IngestTotals};
pub use cursor::{Cursor, Observation};
pub use fleet_streams::{FleetStreams, SnapshotUse};
pub use handle::Stream;
pub use index_sink::Source;
pub use ingestor::Ingestor;
pub use replays::ReplayTotals;
pub use settings::IngestSettings;
pub use sink::{Note, Pace, Sink, Taken};
pub use snapshot::{ExportRequest, SNAPSHOT_FORMAT, Snapshot, SnapshotBusy, SnapshotError, SnapshotTotals};
pub use source::{Contexts, Endpoint, EndpointMode, Feed, SourceError};
pub use stream::{Memory, Output, Purpose, StreamMachine, StreamSettings};
