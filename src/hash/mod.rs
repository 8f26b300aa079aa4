//! Tokens to block hashes.

/// The hash of one block's tokens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct BlockHash(pub u64);
