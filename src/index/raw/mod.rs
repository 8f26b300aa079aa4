//! What readers and the writer share: the only unsafe code of the index.
//!
//! Everything here is laid out so that a reader may look at any time, without a lock and without writing anything: memory
//! never moves and is never unmapped while the index lives, so a stale address yields stale words at worst, and
//! versions tell afterwards whether what was read belongs together. One writer per shard changes it; nothing that
//! the writer reads needs ordering, because nobody else writes.
//!
//! ```text
//!  ChildTable  (parent run, offset, content) -> run      read by walk.rs
//!  Runs        headers: where the contents lie, who holds what
//!  Arena       contents and names of blocks; sets and lists of holders
//!  SeatTable   which slot a seat stands for, now
//!  NameTable   engine hash -> (run, offset)               the writer's own
//! ```
#![allow(unsafe_code)]

mod arena;
mod child_table;
mod compare;
mod marks;
mod name_segment;
mod name_table;
mod paint;
mod prefetch;
mod rows;
mod run;
mod seat_table;
mod shared;
mod sink;
mod slower;
mod space;
mod sync;
mod walk;

pub(super) use arena::CHUNK;
pub(super) use child_table::ChildTableWriter;
pub(super) use marks::{GPU, Interval, Mark, SeatSet, Who};
pub(super) use name_table::{NameTable, Names};
pub(super) use prefetch::prefetch;
pub(super) use run::{MAX_RUN, NO_SEATS, halves};
pub(super) use seat_table::{NO_SEAT, SEATS};
pub(super) use shared::{CONTENT, NAME, Shared};
pub(super) use sink::Depths;
pub(super) use space::Space;
pub(super) use walk::Path;
