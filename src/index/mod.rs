//! Who holds which prefix.
//!
//! A [`PrefixIndex`] is a set of block chains; every block is marked with the slots that hold it, per tier.
//! [`IndexWriter`]s apply what the engines say; any thread may look prompts up meanwhile. One index serves
//! one (model, block size, hash rule): models never share block hashes.
//!
//! The index is exact: it holds what the engines reported, counting copies, keeping holes where a block in the
//! middle went away, and never crediting a block whose place it does not know.

mod overlap;
mod reference;

pub use overlap::{Extension, Overlap, Overlaps, Scratch};
