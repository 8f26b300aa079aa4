//! How many tokens a block has.

use std::fmt;
use std::num::NonZeroU32;

/// Tokens per block, at least 1. Every engine of a worker set must use the same one: blocks of different
/// sizes never have equal hashes.
///
/// ```
/// use kvroute::hash::BlockSize;
///
/// assert_eq!(BlockSize::new(16)?.get(), 16);
/// assert!(BlockSize::new(0).is_err());
/// # Ok::<(), kvroute::hash::BlockSizeError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockSize(NonZeroU32);

/// A block size of no tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("block size is 0; give the number of tokens in the engine's KV block, for example 16")]
pub struct BlockSizeError;

impl BlockSize {
    /// A block size of `tokens`.
    ///
    /// # Errors
    /// When `tokens` is 0.
    pub fn new(tokens: u32) -> Result<Self, BlockSizeError> {
        NonZeroU32::new(tokens).map(Self).ok_or(BlockSizeError)
    }

    /// The number of tokens.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }

    /// The number of tokens as a length. Nothing the crate builds for has a `usize` below 32 bits.
    pub(super) const fn tokens(self) -> usize {
        self.0.get() as usize
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
