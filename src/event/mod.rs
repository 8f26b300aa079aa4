//! What engines say about their KV caches, as typed events.
//!
//! An engine publishes batches over ZMQ. [`wire`] decodes the bytes, tolerantly; [`Normaliser`] drops what
//! the index must not see, carries cache salts down the chain and hashes the blocks' tokens; out come
//! [`Event`]s. Nothing here knows a socket, a clock or the index.

mod normalise;
mod rejection;
mod tier;
pub mod wire;

pub use normalise::{Learned, Normaliser};
pub use rejection::{Rejection, Rejections};
pub use tier::Tier;

use smallvec::SmallVec;

use crate::hash::BlockHash;

/// The opaque name that an engine gives a block (and, with it, the whole prefix before the block).
///
/// It is compared and never computed: engines differ in how they make it. Signed and byte-string
/// forms are folded to these 64 bits by the decoder.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EngineHash(pub u64);

/// One thing that happened to one rank's cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Blocks became resident.
    Stored(Stored),
    /// Blocks, or copies of blocks, are gone.
    Removed(Removed),
    /// Everything the rank held is gone: in one tier, or in every tier when `None`.
    Cleared(Option<Tier>),
}

/// A chain of blocks that became resident in one tier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Where the blocks lie now.
    pub tier: Tier,
    /// The block that the first one follows; `None` at the start of a prompt.
    pub parent: Option<EngineHash>,
    /// The blocks, each following the one before. A decoding engine stores one at a time, which needs no allocation.
    pub blocks: SmallVec<[StoredBlock; 1]>,
}

/// One block of a [`Stored`] chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredBlock {
    /// The engine's name for it.
    pub engine: EngineHash,
    /// The hash of its tokens; `None` when the engine named the block only (lower tiers do), in which case
    /// its place is the one that the name already has.
    pub content: Option<BlockHash>,
}

/// Blocks that left one tier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Removed {
    /// Which tier they left.
    pub tier: Tier,
    /// The engine's names. An evicting engine often removes one at a time, which needs no allocation.
    pub hashes: SmallVec<[EngineHash; 2]>,
    /// Copies still resident after this removal, one number per hash, where the engine says so. Without
    /// it each removal takes one copy away.
    pub remaining_copies: Option<Vec<u32>>,
}
