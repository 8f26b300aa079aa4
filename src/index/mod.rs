//! Who holds which prefix.
//!
//! A [`PrefixIndex`] is a tree of block chains; every block is marked with the slots that hold it, per tier.
//! [`IndexWriter`]s apply what the engines say; any thread may look prompts up meanwhile. One index serves
//! one (model, block size, hash rule): models never share block hashes.
//!
//! The index is exact: it holds what the engines reported, counting copies, keeping holes where a block in the
//! middle went away, and never crediting a block whose place it does not know.
//!
//! ```
//! use std::num::NonZeroUsize;
//! use kvroute::{
//!     event::{EngineHash, Event, Stored, StoredBlock, Tier},
//!     hash::BlockHash,
//!     index::{PrefixIndex, Scratch},
//!     slot::Slot,
//! };
//!
//! let (index, mut writers) = PrefixIndex::new(NonZeroUsize::MIN);
//! let slot = Slot { index: 0, generation: 0 };
//! let block = |name, content| StoredBlock { engine: EngineHash(name), content: Some(BlockHash(content)) };
//! let blocks = [block(901, 11), block(902, 22)].into_iter().collect();
//! writers[0].apply(slot, &Event::Stored(Stored { tier: Tier::Gpu, parent: None, blocks }));
//!
//! let prompt = [BlockHash(11), BlockHash(22), BlockHash(33)];
//! let mut scratch = Scratch::new();
//! let overlaps = index.overlap(&prompt, &mut scratch);
//! assert_eq!(overlaps.of(slot).gpu, 2);
//! assert_eq!(overlaps.levels().next(), Some((2, &[slot][..])));
//! ```
//!
//! # Places and names
//!
//! A block's *place* is the place of its parent plus the hash of its own tokens. The same tokens after
//! different prefixes are different places; blocks of several ranks with the same tokens after the same prefix
//! share one. An engine's hash is a *name* that a slot gives to a place, known for as long as the slot holds
//! the block in some tier. Names of different slots are independent: an engine that seeds its hashes differently
//! from its neighbours still shares their places.
//!
//! Where a name leads:
//!
//! * A block with content goes below its parent. A parent is looked up among the slot's own names, then among
//!   those of all slots of the shard. A name that other slots use for *different* places is not known: picking
//!   one could credit a block that is not there.
//! * A block without content (slower tiers name their blocks only) goes where its own name leads, looked up in
//!   the same way.
//! * A block that leads nowhere yet *waits*: it is kept with its copies, is removed and cleared like any other,
//!   and is never credited. It gets its place as soon as the name it waits for is known, whoever made it
//!   known. Each slot may have [`PENDING_LIMIT`] waiting blocks; beyond that the oldest are dropped and counted.
//! * A name leads to one place per slot. If it comes back at another place (or with other content and an unknown
//!   parent), the slot holds it at its last place only, in no tier but the one just reported.
//! * A block stored again under its name is one more copy; if only its parent is no longer known, its name and
//!   its content say which block it is.
//!
//! A store of several blocks is the same as several stores of one block, each below the one before.
//!
//! # Overlap
//!
//! A slot's overlap starts at the first block and ends at the first one that the slot does not hold on its GPU;
//! blocks beyond the hole stay held and count again once the hole is filled. From there the count goes on in
//! host memory, then on disk, then in an external store, each adding only consecutive further blocks.
//!
//! # Readers and writers
//!
//! Lookups take no lock: they read while the writer writes, and read again if it changed what they had read. The
//! answer for all slots of a shard is that of one moment between the lookup's start and its end. Of an event of several
//! blocks a lookup may see the first few only, as if the event were several.
//!
//! # Shards
//!
//! A slot lives in shard `index % shards`, each with one writer and at most 65,535 slots. Shards know nothing of each
//! other's names: a parent that only a rank of another shard holds is unknown.
//!
//! # Snapshots
//!
//! What one slot holds can be written out in steps between events and built again in another index: see [`snapshot`].
//!
//! # What it is not
//!
//! It does not judge a stream: missing events, restarts and resyncs are the business of whoever feeds it. It
//! does not tell whether an unreachable block will ever be useful, and it never evicts what an engine holds.

mod applied;
mod copies;
mod ledger;
mod overlap;
mod pending;
mod prefix_index;
mod raw;
pub mod reference;
pub mod snapshot;
mod split_map;
mod tree;
mod writer;

pub use applied::Applied;
pub use ledger::Export;
pub use overlap::{Extension, Overlap, Overlaps, Scratch};
pub use prefix_index::{PENDING_LIMIT, PrefixIndex, Totals};
pub use writer::IndexWriter;
