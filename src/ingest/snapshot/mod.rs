//! Snapshots: what one frontend's indexes hold, for another one that starts.
//!
//! A router younger than the engines' replay buffers cannot learn from them what happened before. Another frontend knows. Its
//! [`FleetStreams::write_snapshot`](super::FleetStreams::write_snapshot) writes, rank by rank, what the index holds of the rank, under
//! which names, and where the rank's stream stands: all of one moment. The frontend that starts reads it ([`Snapshot::read`]), keeps it until its
//! own ranks register, and lets each begin where the other one stood.
//!
//! # What is believed
//!
//! Nothing, until the engine itself has been asked. The stream of such a rank begins as one that has lost its connection: it
//! is unproven, asks for a replay from the last batch of the snapshot on, and that batch must come back with the same bytes, which no
//! other incarnation has. Only when the replay is through, so that nothing that the engine took away meanwhile is left, is anything
//! credited. If the engine is another one, or its buffer no longer reaches back so far, or nobody answers, what the snapshot
//! said goes, and the stream begins as it would have without.
//!
//! # Writing while events come
//!
//! A rank is written by its applier, in steps between the batches of others ([`RankExport`]). Batches of the rank itself wait in
//! its queue meanwhile. What is written goes to memory, as fast as it can be made, and from there at the reader's pace; the next
//! rank begins after that. So a slow reader holds up no stream, and no more than one rank is in memory.

mod export;
mod import;
mod kept;
mod read;
mod wire;
mod write;

pub use self::{
    export::ExportRequest,
    read::{Snapshot, SnapshotError},
    wire::SNAPSHOT_FORMAT,
    write::{SnapshotBusy, SnapshotTotals},
};
pub(super) use self::{
    export::RankExport,
    import::Load,
    kept::{Claim, Kept, Whose},
    write::Writer,
};
